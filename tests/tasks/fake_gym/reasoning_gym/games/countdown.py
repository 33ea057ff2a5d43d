"""A verifier that has SymPy evaluate what the model wrote."""

from sympy.parsing.sympy_parser import parse_expr


def score(answer, entry):
    return 1.0 if parse_expr(answer) == entry["metadata"]["target"] else 0.01
