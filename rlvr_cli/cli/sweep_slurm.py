"""What `rlvr sweep` says of the tasks that a sweep has in a cluster's queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlvr_cli.cli.output import echo, print_json, print_table

if TYPE_CHECKING:
    from rlvr_cli.sweeps.screen import Standing
    from rlvr_cli.sweeps.slurm import Submitted
    from rlvr_cli.sweeps.slurm_queue import Task


def say_submitted(submitted: Submitted, *, as_json: bool) -> None:
    """Say what is in the queue, and what was left out."""
    from rlvr_cli.sweeps.screen import counts, table

    folder = submitted.folder
    if as_json:
        print_json(
            {
                "folder": str(folder.path),
                "jobs": [{"job": one.job, "trials": one.trials} for one in submitted.submissions],
                "trials": with_jobs(submitted.standings, submitted.tasks),
                "notes": submitted.notes,
            }
        )
        return
    print_table(table(submitted.standings))
    echo(f"\n{folder.path}: {counts(submitted.standings)}")
    for note in submitted.notes:
        echo(note)
    for one in submitted.submissions:
        number = len(one.trials)
        echo(f"submitted {number} trial{'s' if number > 1 else ''} as the array {one.job}")
    if not submitted.submissions:
        echo("nothing was submitted: no trial waits that is not in the queue")
    if any(one.look.state == "failed" for one in submitted.standings):
        echo(f"mend the causes of failures, then: rlvr sweep retry {folder.path} --submit slurm")
    echo(f"how they stand: rlvr sweep status {folder.path}; to save and end them: rlvr sweep stop {folder.path}")


def with_jobs(standings: list[Standing], tasks: Mapping[str, Task]) -> list[dict[str, Any]]:
    """The trials as JSON, each with its task's number in SLURM; None where it has none there."""
    own = [(one, tasks.get(one.look.entry.name)) for one in standings]
    return [{**one.as_json(), "job": task.id if task else None} for one, task in own]
