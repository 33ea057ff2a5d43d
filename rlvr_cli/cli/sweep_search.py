"""What `rlvr sweep` shows of an objective and of an adaptive search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlvr_cli.cli.output import echo, plain_table, print_json, print_table

if TYPE_CHECKING:
    from rlvr_cli.sweeps.expand import Sweep
    from rlvr_cli.sweeps.folder import SweepDir, SweepPlan
    from rlvr_cli.sweeps.screen import Standing

Say = Callable[[str], None]


def dry_run_search(sweep: Sweep, *, as_json: bool) -> None:
    """Show the space, how many configurations there will be, and the most that they cost; start nothing."""
    from rlvr_cli.sweeps.folder import SweepDir
    from rlvr_cli.sweeps.prepare import prepare_sweep
    from rlvr_cli.sweeps.search_space import axis_name

    assert sweep.space is not None and sweep.objective is not None and sweep.file.spec.search is not None
    spec, budget, seeds = sweep.file.spec.search, sweep.file.spec.budget, len(sweep.space.seeds)
    prepared = prepare_sweep(sweep, SweepDir(sweep.folder))
    size = sweep.space.size()
    limits = [one for one in (spec.trials, size) if one is not None]
    rollouts = min([*(one * sweep.bound for one in limits), *([budget] if budget is not None else [])])
    missing = _missing()
    axes = [{"axis": axis_name(axis), **_described(axis)} for axis in sweep.space.axes]
    if as_json:
        print_json(
            {
                "sweep": sweep.file.name,
                "folder": str(sweep.folder),
                "search": spec.model_dump(),
                "objective": str(sweep.objective),
                "space": axes,
                "combinations": size,
                "seeds": seeds,
                "rollouts_at_most": rollouts,
                "rollouts_of_a_configuration": sweep.bound,
                "trials_so_far": len(prepared.plan.named),
                "notes": [*prepared.notes, *([missing] if missing else [])],
            }
        )
        return
    made = plain_table("axis", "searched", "values")
    for axis in axes:
        made.add_row(str(axis["axis"]), str(axis["kind"]), str(axis["values"]))
    print_table(made)
    per = f"{seeds} seed{'s' if seeds > 1 else ''} each, up to {sweep.bound:,} rollouts a configuration"
    number = f"{min(limits):,} configurations" if limits else "as many configurations as the budget allows"
    echo(f"\n{spec.sampler} search for {sweep.objective}: {number}, {per}; at most {rollouts:,} rollouts together")
    if size is not None and (spec.trials is None or size <= spec.trials):
        echo(f"the space has {size:,} combinations: a grid runs each once as well")
    if spec.pruning is not None:
        echo(
            "pruning: a configuration whose first seed is below the median at a held-out evaluation is stopped, once "
            f"{spec.pruning.startup} are finished"
        )
    if missing:
        echo(missing)
    if prepared.plan.named:
        echo(f"{len(prepared.plan.named)} trials are there already in {sweep.folder}")
    for note in prepared.notes:
        echo(note)


def _missing() -> str | None:
    """What has to be installed before the search can be run."""
    from rlvr_cli.core.errors import UserError
    from rlvr_cli.sweeps.prepare import check_optuna

    try:
        check_optuna()
    except UserError as error:
        return error.problems[0]
    return None


def ranking_json(folder: SweepDir, plan: SweepPlan, found: Sequence[Standing]) -> dict[str, Any]:
    """`objective` and `search`, of sweeps that have them."""
    from dataclasses import asdict

    from rlvr_cli.sweeps.ranking import confirmation, rank

    ranking = rank(folder, plan, [one.look for one in found])
    search = {} if plan.search is None else {"search": asdict(plan.search)}
    if ranking is None:
        return search
    return {"objective": {**ranking.as_json(), "confirm": confirmation(folder, plan)}, **search}


def show_search(plan: SweepPlan, found: Sequence[Standing], say: Say) -> None:
    """How far a search is, and what it gave up and why."""
    for one in found:
        if one.look.state == "pruned":
            say(f"{one.look.entry.name} pruned: {one.look.reason}")
    state = plan.search
    if state is None:
        return
    parts = [f"{state.configurations} configurations"]
    parts += [f"{state.again} suggestions of one that was there already"] if state.again else []
    parts += [f"{state.refused} excluded or not valid, and not run"] if state.refused else []
    say(f"search: {', '.join(parts)}{f'; ended: {state.ended}' if state.ended else ''}")


def show_ranking(folder: SweepDir, plan: SweepPlan, found: Sequence[Standing], say: Say) -> None:
    """The arms by the objective, the best of them, and how to confirm it."""
    from rlvr_cli.sweeps.ranking import confirmation, rank

    ranking = rank(folder, plan, [one.look for one in found])
    if ranking is None:
        return
    made = plain_table("arm", ranking.objective.metric, "95% interval over seeds", "seeds", "status")
    for arm in ranking.arms:
        one = arm.estimate
        interval = "-" if one is None or one.low is None else f"{one.low:.3f} to {one.high:.3f}"
        value = "-" if one is None else f"{one.value:.3f}"
        made.add_row(arm.name, value, interval, f"{len(arm.values)}/{arm.wanted}", arm.state)
    say("")
    print_table(made)
    for sentence in ranking.sentences():
        say(sentence)
    command = confirmation(folder, plan)
    if command:
        say(f"confirm: {command}")


def _described(axis: Any) -> dict[str, Any]:
    """How an axis is searched, in words."""
    from rlvr_cli.sweeps.search_space import labels

    interval = axis.interval
    if interval is None:
        texts = [label.removeprefix(f"{axis.keys[0]}=") if len(axis.keys) == 1 else label for label in labels(axis)]
        return {"kind": "one of", "values": "; ".join(texts) if len(axis.keys) > 1 else ", ".join(texts)}
    kind = f"{'logarithmic' if interval.log else 'uniform'}{', whole numbers' if interval.whole else ''}"
    step = f", step {interval.step:g}" if interval.step not in (None, 1) else ""
    return {"kind": kind, "values": f"{interval.low:g} to {interval.high:g}{step}"}
