"""Countdown problems from a named set, the hub, a folder or a JSONL file. The format is in docs/tasks/countdown.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.base import Problem, Split
from rlvr_cli.tasks.countdown.prompt import question
from rlvr_cli.tasks.countdown.puzzles import MAX_NUMBERS, MIN_NUMBERS, Puzzle, key
from rlvr_cli.tasks.rows import DataSplit, Loader, Place, from_hub, split_of

_LARGEST = 10**9

# TinyZero's rows of `Jiayi-Pan/Countdown-Tasks-3to4`, whose one split is called train.
_HUB_TRAIN, _HUB_TEST = 327_680, 1_024


def problem_from(fields: Mapping[str, Any], where: str) -> Problem:
    """The problem of a row's fields `nums` and `target`; `id` is ``where`` when there is none.

    Raises UserError naming ``where`` and the field.
    """
    missing = [name for name in ("nums", "target") if name not in fields]
    if missing:
        raise UserError(f"{where}: no field {', '.join(missing)}; a row needs nums (the numbers) and target")
    nums, target = fields["nums"], fields["target"]
    if not isinstance(nums, list) or not all(type(n) is int and 0 <= n <= _LARGEST for n in nums):
        raise UserError(f"{where}: nums must be a list of whole numbers from 0 to {_LARGEST}")
    if not MIN_NUMBERS <= len(nums) <= MAX_NUMBERS:
        raise UserError(f"{where}: nums has {len(nums)} numbers; allowed are {MIN_NUMBERS} to {MAX_NUMBERS}")
    if type(target) is not int or abs(target) > _LARGEST:
        raise UserError(f"{where}: target must be a whole number from -{_LARGEST} to {_LARGEST}")
    return make_problem(Puzzle(tuple(nums), target), str(fields.get("id", where)))


def make_problem(puzzle: Puzzle, identifier: str) -> Problem:
    """The problem that asks for a puzzle's solution."""
    return Problem(
        id=identifier,
        question=question(puzzle.nums, puzzle.target),
        data={"nums": list(puzzle.nums), "target": puzzle.target},
        subgroup=f"{len(puzzle.nums)} numbers",
        structure=key(puzzle),
    )


class _Rows(Loader[Problem]):
    """Puzzles; those that differ in the order of their numbers only stay together."""

    accepts = "Give a folder of {split}.jsonl files, a .jsonl file, or `Jiayi-Pan/Countdown-Tasks-3to4`."
    row = '{"nums": [...], "target": n}'
    no_files = "no file named test.jsonl (or .jsonl.gz). A folder holds {train|dev|test}.jsonl[.gz]."

    def item(self, record: dict[str, Any], place: Place) -> Problem:
        return problem_from({"id": place.default_id, **record}, place.where)

    def identity(self, item: Problem) -> str:
        return item.id

    def part(self, item: Problem) -> Split:
        return split_of(str(item.structure))

    def hub(self, hub_id: str, split: Split) -> list[Problem]:
        table = from_hub(hub_id, "its split train", "a local folder of {split}.jsonl files", split="train")
        rows = islice(enumerate(table), _HUB_TRAIN + _HUB_TEST)
        problems = self.items(((row, Place(f"{hub_id}:{i}", f"countdown-{i}", "countdown")) for i, row in rows), [])
        if len(problems) < _HUB_TRAIN + _HUB_TEST:
            return self.divided(problems, split)
        train, test = problems[:_HUB_TRAIN], problems[_HUB_TRAIN:]
        if split == "test":
            return test
        held_out = {problem.structure for problem in test}
        return self.share([problem for problem in train if problem.structure not in held_out], split)


def load_problems(data: str, split: DataSplit, numbers: Iterable[int], folder: str | None = None) -> list[Problem]:
    """The problems of ``split`` with as many numbers as one of ``numbers``, in the order of the data.

    Args:
        data: a data set's name (looked for in ``folder``), a folder of `{train|dev|test}.jsonl[.gz]`, one `.jsonl` or
            `.jsonl.gz` file, or a hub id laid out as `Jiayi-Pan/Countdown-Tasks-3to4`.
        split: as in :meth:`Loader.load`; in files whose name says no split, rows are divided as generated problems are.
    Raises:
        UserError: nothing at ``data``, an unreadable file, malformed rows (each with file:line), or no matching row.
    """
    wanted = sorted(set(numbers))
    problems = _Rows().load(data, split, folder)
    matching = [problem for problem in problems if len(problem.data["nums"]) in wanted]
    if not matching:
        found = sorted({len(problem.data["nums"]) for problem in problems})
        have = f"it has {_listed(found)} numbers" if found else "it has no rows"
        raise UserError(
            f"task.data={data!r}: no {split} problem with {_listed(wanted)} numbers ({have}). "
            "Set task.numbers to what the data has, or choose another split."
        )
    return matching


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
