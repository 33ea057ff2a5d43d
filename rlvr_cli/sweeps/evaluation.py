"""How each finished trial is evaluated: the arguments of `rlvr eval`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr_cli.config.schema import Config
from rlvr_cli.sweeps.axes import key_problem, override_text
from rlvr_cli.sweeps.spec import EvalSpec, Problem, SweepFile
from rlvr_cli.tasks.suites import unknown_names


def eval_arguments(spec: EvalSpec | None, configs: Sequence[Config]) -> tuple[str, ...] | None:
    """What follows `rlvr eval RUN`; None where trials are not evaluated.

    Benchmarks that all trials' configurations name are written out: then trials that were evaluated on others before
    are evaluated again.
    """
    if spec is None:
        return None
    named = {benchmarks_of(spec, config) for config in configs}
    options = {
        "--pass-at": ",".join(map(str, spec.pass_at)) or None,
        "--samples": spec.samples,
        "--problems": spec.problems,
        "--split": spec.split,
        "--benchmark": ",".join(named.pop()) or None if len(named) == 1 else None,
    }
    given = [part for name, value in options.items() if value is not None for part in (name, str(value))]
    return (*given, *(override_text(key, value) for key, value in spec.set.items()))


def benchmarks_of(spec: EvalSpec, config: Config) -> tuple[str, ...]:
    """What a finished trial is evaluated on: what the file says, else the trial's `eval.benchmark`, else its task."""
    return spec.benchmark or config.eval.benchmark


def eval_problems(file: SweepFile, configs: Sequence[Config]) -> list[Problem]:
    """What is wrong with the evaluation that the file asks for, as far as that shows without a model.

    Args:
        configs: by which the trials are evaluated.
    """
    spec = file.spec.eval
    if spec is None:
        return []
    from rlvr_cli.evaluation.request import idle_key
    from rlvr_cli.evaluation.settings import pass_at_problems

    found = [(file.place("eval", "set", key), f"eval.set: {wrong}") for key in spec.set if (wrong := key_problem(key))]
    found += [
        (file.place("eval", "set", key), f"eval.set: {key}: has no effect; {why}")
        for key in spec.set
        if key_problem(key) is None and (why := idle_key(key))
    ]
    found += [
        (file.place("eval", "set", f"eval.{name}"), f"eval.set: eval.{name}: is set by `{name}` too; leave one out")
        for name in ("pass_at", "samples", "problems", "split", "benchmark")
        if getattr(spec, name) and f"eval.{name}" in spec.set
    ]
    unknown = unknown_names(spec.benchmark, "--benchmark")
    found += [(file.place("eval", "benchmark"), f"eval: {said}") for said in unknown]
    # A benchmark says how many samples there are.
    own = {config.eval.samples for config in configs if not benchmarks_of(spec, config)}
    counts = own if spec.samples is None else {spec.samples}
    if spec.pass_at:
        for samples in sorted(counts):
            said = pass_at_problems(spec.pass_at, samples)
            found += [(file.place("eval", "pass_at"), f"eval: {one}") for one in said]
    return found
