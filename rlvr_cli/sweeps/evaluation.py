"""How each finished trial is evaluated: the arguments of `rlvr eval`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.config.schema import Config
from rlvr_cli.sweeps.axes import key_problem, override_text
from rlvr_cli.sweeps.spec import EvalSpec, Problem, SweepFile


def eval_arguments(spec: EvalSpec | None) -> tuple[str, ...] | None:
    """What follows `rlvr eval RUN`; None where trials are not evaluated."""
    if spec is None:
        return None
    options = {
        "--pass-at": ",".join(map(str, spec.pass_at)) or None,
        "--samples": spec.samples,
        "--problems": spec.problems,
        "--split": spec.split,
        "--benchmark": ",".join(spec.benchmark) or None,
    }
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return (*given, *(override_text(key, value) for key, value in spec.set.items()))


def eval_problems(file: SweepFile, configs: Sequence[Config]) -> list[Problem]:
    """What is wrong with the evaluation that the file asks for, as far as that shows without a model.

    Args:
        configs: by which the trials are evaluated.
    """
    spec = file.spec.eval
    if spec is None:
        return []
    from rlvr_cli.evaluation.benchmarks import unknown_names
    from rlvr_cli.evaluation.settings import pass_at_problems

    found = [(file.place("eval", "set", key), f"eval.set: {wrong}") for key in spec.set if (wrong := key_problem(key))]
    found += [(file.place("eval", "benchmark"), f"eval: {said}") for said in unknown_names(spec.benchmark)]
    counts = {spec.samples} if spec.samples is not None else {config.eval.samples for config in configs}
    if spec.pass_at and not (spec.benchmark and spec.samples is None):
        for samples in sorted(counts):
            said = pass_at_problems(spec.pass_at, samples)
            found += [(file.place("eval", "pass_at"), f"eval: {one}") for one in said]
    return found
