"""`rlvr runs samples`: completions of one rollout of a run, with prompt, verdict and reason."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import Annotated

import typer

from rlvr_cli.cli.options import RUNS, Runs
from rlvr_cli.cli.output import Format, echo, print_json
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import count

COLUMNS = ("problem", "prompt", "completion", "correct", "reason", "answer", "reward", "tokens", "truncated")


def samples(
    run: Annotated[
        str, typer.Argument(help="A run's name in the folder of runs (`sweep/run` in a sweep), or its path.")
    ],
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=1, help="Step whose rollout is shown. Default: the newest.")
    ] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only incorrect completions.")] = False,
    right: Annotated[bool, typer.Option("--right", help="Only correct completions.")] = False,
    number: Annotated[
        int, typer.Option("-n", metavar="N", min=1, help="Number of completions, one of each problem first.")
    ] = 5,
    root: Runs = RUNS,
    form: Format = "table",
) -> None:
    """Show completions of a training: prompt, completion, verdict and reason."""
    from rlvr_cli.runs.folder import find_run
    from rlvr_cli.store.completions import rollout_groups

    folder = find_run(run, root)
    files = {int(path.stem.rpartition("-")[2]): path for path in sorted(folder.rollouts_dir.glob("rollout-*.jsonl"))}
    if not files:
        raise UserError(f"{folder.path}: no completions on disk.")
    manifest = folder.read_manifest()
    updates = max(1, (manifest.get("steps_total") or 1) // (manifest.get("rollouts_total") or 1))
    rollout = max(files) if step is None else (step - 1) // updates
    if rollout not in files:
        last = (max(files) + 1) * updates
        raise UserError(f"--step {step}: no rollout on disk. Allowed: 1 to {last}.")
    groups = rollout_groups(folder, files[rollout])
    verdicts_shown = {True, False} if right == wrong else {right}
    records = [[record for _, record in group if record["correct"] in verdicts_shown] for group in groups.values()]
    chosen = [record for each in zip_longest(*records) for record in each if record is not None][:number]
    if form == "json":
        print_json([{name: record.get(name) for name in COLUMNS} for record in chosen])
        return
    verdicts = [record["correct"] for group in groups.values() for _, record in group]
    done = f"rollout {rollout + 1}, step {(rollout + 1) * updates}"
    echo(f"{done}: {count(len(verdicts), 'completion')}, {sum(verdicts)} correct")
    for record in chosen:
        verdict = "correct" if record["correct"] else f"not correct ({record['reason']})"
        reward = "none" if record.get("reward") is None else f"{record['reward']:.4g}"
        echo(f"\n{record['problem']}: {verdict}, answer {record.get('answer')}, reward {reward}")
        for name in ("prompt", "completion"):
            echo(f"{name}:\n{textwrap.indent(record[name], '  ')}")
