"""A rollback on disk: whole, or to be finished by the next process, whenever the one that does it dies."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.runs import rollbacks
from rlvr_cli.runs.checkpoints import thinned, write_checkpoint
from rlvr_cli.runs.directory import RunDir
from rlvr_cli.runs.rollbacks import Rollback, finish_rollback, folder_of, newest_before, roll_back, rollbacks_of
from tests.runs.folders import make_run

UPDATES = 2
COLLAPSE = {"pattern": "format_loss", "first": 5, "evidence": [], "beside": []}


def back(number: int, from_step: int, to_step: int) -> Rollback:
    return Rollback(number, "2025-01-01T00:00:00+00:00", [COLLAPSE], 2, from_step, to_step, 0.5, f"rollback {number}")


def train(run: RunDir, first: int, last: int, life: int) -> None:
    """The records of steps ``first`` to ``last``, which are others in each life."""
    for path in (run.metrics_path, run.timings_path):
        with path.open("a") as stream:
            stream.writelines(
                json.dumps({"step": step, "rollout": (step - 1) // UPDATES, "life": life}) + "\n"
                for step in range(first, last + 1)
            )
    for step in range(first, last + 1):
        if (step - 1) % UPDATES == 0:
            (run.rollouts_dir / f"rollout-{(step - 1) // UPDATES:06d}.jsonl").write_text(f"{life}\n")
        if step % UPDATES == 0:
            folder = run.held_out_dir / f"rollout-{step // UPDATES:06d}"
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text(str(life))
        if step % 3 == 0:
            write_checkpoint(run.checkpoints_dir, step, lambda aside: (aside / "life").write_text(str(life)) and None)
            # Of other weights, the fingerprint is another.
            evaluation = run.eval_dir / f"logic-test-step-{step}-abc{life}"
            evaluation.mkdir()
            (evaluation / "metrics.json").write_text(str(life))


def contents(run: RunDir) -> dict[str, str]:
    files = [path for path in run.path.rglob("*") if path.is_file()]
    return {str(path.relative_to(run.path)): path.read_text() for path in files}


def test_every_step_has_one_line_and_what_was_thrown_away_lies_aside(tmp_path: Path) -> None:
    """Eleven steps, back to 3 in the middle of a rollout, on to 7, back to the start."""
    run = make_run(tmp_path, "run")
    train(run, 1, 11, 0)
    roll_back(run, back(1, 11, 3), UPDATES)
    train(run, 4, 7, 1)
    roll_back(run, back(2, 7, 0), UPDATES)
    train(run, 1, 2, 2)
    found = contents(run)
    assert [json.loads(line)["life"] for line in found["metrics.jsonl"].splitlines()] == [2, 2]
    first, second = (contents(folder_of(run, number)) for number in (1, 2))
    assert [json.loads(line)["step"] for line in first["metrics.jsonl"].splitlines()] == [4, 5, 6, 7, 8, 9, 10, 11]
    lives = [json.loads(line)["life"] for line in second["timings.jsonl"].splitlines()]
    assert lives == [0, 0, 0, 1, 1, 1, 1]
    # Rollout 1 was sampled before step 3, and went on after it.
    assert sorted(name for name in first if "rollouts/" in name) == [
        f"rollouts/rollout-{number:06d}.jsonl" for number in (2, 3, 4, 5)
    ]
    assert first["eval/in-training/rollout-000002/metrics.json"] == "0"
    assert second["eval/in-training/rollout-000001/metrics.json"] == "0"
    assert sorted(name for name in first if "step" in name) == [
        f"eval/logic-test-step-{step}-abc0/metrics.json" for step in (6, 9)
    ]
    assert sorted(name for name in second if "step" in name) == [
        f"eval/logic-test-step-{step}-abc{life}/metrics.json" for step, life in ((3, 0), (6, 1))
    ]
    assert [path.name for path in run.checkpoints_dir.iterdir()] == []
    assert [rollback.number for rollback in rollbacks_of(run)] == [1, 2]


WORK = ("truncate_jsonl", "write_text", "remove_after", "rollouts_after", "held_out_after", "evaluations_after")


class Death(BaseException):
    """As of a process that is killed."""


@contextlib.contextmanager
def dying_before(call: int) -> Iterator[list[int]]:
    """Death before the so-maniest piece of work that touches the disk; how many there were."""
    calls = [0]

    def deadly(work: Callable[..., Any]) -> Callable[..., Any]:
        def doing(*arguments: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                raise Death
            return work(*arguments, **named)

        return doing

    with pytest.MonkeyPatch.context() as patched:
        for name in WORK:
            patched.setattr(rollbacks, name, deadly(getattr(rollbacks, name)))
        patched.setattr(Path, "rename", deadly(Path.rename))
        patched.setattr(RunDir, "update_manifest", deadly(RunDir.update_manifest))
        with contextlib.suppress(Death):
            yield calls


def test_a_process_that_dies_anywhere_leaves_it_to_the_next(tmp_path: Path) -> None:
    rollback, start = back(1, 11, 3), make_run(tmp_path, "start")
    train(start, 1, 11, 0)

    def copied(name: str) -> RunDir:
        return RunDir(Path(shutil.copytree(start.path, tmp_path / name)))

    undisturbed = copied("undisturbed")
    with dying_before(0) as pieces:
        roll_back(undisturbed, rollback, UPDATES)
    assert pieces[0] >= 15
    for call in range(1, pieces[0] + 1):
        run = copied(str(call))
        with dying_before(call):
            roll_back(run, rollback, UPDATES)
        assert rollbacks_of(run) == []
        if finish_rollback(run, UPDATES) is None:
            assert call == 1 and contents(run) == contents(start), "it was not decided, and nothing was done"
            continue
        assert contents(run) == contents(undisturbed) and finish_rollback(run, UPDATES) is None


def test_a_step_that_is_made_again_has_the_rollbacks_that_it_had() -> None:
    """A resume from before a rollback's checkpoint, where that was damaged, makes the same steps."""
    two = [back(1, 40, 20), back(2, 60, 30)]
    assert [newest_before(two, step) for step in (1, 20, 21, 30, 31, 70)] == [0, 0, 1, 1, 2, 2]
    further = [*two, back(3, 50, 10)]
    assert [newest_before(further, step) for step in (10, 11, 25, 40)] == [0, 3, 3, 3]


def test_what_is_kept_to_go_back_to_gets_thinner_with_age_and_nothing_is_missed_later() -> None:
    assert sorted(thinned(120, 10)) == [10, 80, 100, 110, 120] and thinned(9, 10) == frozenset()
    kept: set[int] = set()
    for step in range(1, 500):
        kept.add(step)
        assert thinned(step, 1) <= kept, "none that was deleted is wanted again"
        kept &= thinned(step, 1)
        assert len(kept) <= step.bit_length() + 1
        for age in range(step):
            # The newest of those that are old enough is less than four times as old, or the first.
            fits = max((one for one in kept if one <= step - age), default=1)
            assert fits == 1 or fits > step - 4 * max(age, 1)
