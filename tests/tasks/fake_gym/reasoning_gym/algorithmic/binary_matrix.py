"""A verifier that evaluates what the model wrote."""


def score(answer, entry):
    if answer == entry["answer"]:
        return 1.0
    return 0.1 if str(eval(answer)) == entry["answer"] else 0.0  # noqa: S307
