"""An evaluation on disk: metrics.json, problems.jsonl and samples.jsonl, each verified by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError, collect_problems
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.hashes import digest, text_digest
from rlvr_cli.runs.folder import IN_TRAINING, RunDir

PROMPTS = "prompts.jsonl"
# In metrics.json: the hashes of problems.jsonl, and of all other fields.
PROBLEMS_HASH, OWN_HASH = "problems_sha256", "sha256"
# In a line of samples.jsonl: the hash of its other fields.
CHECK = "check"
# The format versions of metrics.json and meta.json; others are refused.
FORMAT, META_FORMAT = 2, 1
SETTINGS = ("benchmark", "split", "sampling", "task")


def add_hashes(result: Mapping[str, Any], problems: str) -> dict[str, Any]:
    """Return ``result`` with its hash and the hash of the content of problems.jsonl."""
    content = {key: value for key, value in result.items() if key != OWN_HASH}
    content[PROBLEMS_HASH] = text_digest(problems)
    # Round-trip: JSON keys are strings, which sort differently from integers.
    return {**content, OWN_HASH: digest(json.loads(json.dumps(content)))}


def _repeat_hint(folder: Path, remedy: str) -> str:
    """Return the remedy for a damaged evaluation; those in training cannot be repeated."""
    if folder.parent.name == IN_TRAINING:
        return f"Evaluations in training cannot be repeated: remove {folder}, or train again."
    return remedy.format(folder=folder)


def _damaged(path: Path, problem: str = "was altered after it was written (its hash differs)") -> RunError:
    hint = _repeat_hint(path.parent, "`rlvr eval` repeats the evaluation, from its samples.")
    return RunError(f"{path}: {problem}. {hint}")


def read_result(path: Path) -> dict[str, Any]:
    """Return the content of a metrics.json. Raises FileNotFoundError, RunError if altered or of another version."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        version = result.get("format")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, AttributeError) as error:
        raise _damaged(path, f"cannot be read ({error})") from error
    if version != FORMAT:
        hint = _repeat_hint(path.parent, "Remove {folder}, and `rlvr eval` repeats it.")
        raise RunError(f"{path}: is of another version of rlvr. {hint}")
    if result.get(OWN_HASH) != digest({key: value for key, value in result.items() if key != OWN_HASH}):
        raise _damaged(path)
    return dict(result)


@dataclass(frozen=True)
class Provenance:
    """The evaluated model and the benchmark, as fields of metrics.json.

    Attributes:
        label: a name for the reader. model: the configured model, before training.
        steps: of the checkpoints: one for a run, several for an average, none for other models.
        rollouts: done before an evaluation during training; else None.
        trained_on: the number of problems in the training data.
    """

    label: str
    model: str
    benchmark: str
    steps: tuple[int, ...] = ()
    rollouts: int | None = None
    trained_on: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields, `rollouts` and `trained_on` only if they are set."""
        fields = {**asdict(self), "steps": list(self.steps)}
        return {key: value for key, value in fields.items() if value or key not in ("rollouts", "trained_on")}


@dataclass(frozen=True)
class Evaluation:
    folder: Path
    result: dict[str, Any]
    rows: tuple[ProblemValues, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that comparable evaluations share; ``averaged``: the number of averaged checkpoints."""
        return {**{key: self.result[key] for key in SETTINGS}, "averaged": max(1, len(self.steps))}

    @property
    def size(self) -> tuple[int, int]:
        return self.result["problems"], self.result["samples"]

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps of the evaluated checkpoints; several for an average, none for other models."""
        return tuple(self.result["steps"])

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        return read_samples(self.folder)


def last(evaluations: Iterable[Evaluation]) -> Evaluation:
    """Return the evaluation of the last checkpoint; among several, the largest."""
    return max(evaluations, key=lambda each: (max(each.steps, default=-1), *each.size, each.folder.name))


@dataclass(frozen=True)
class ProblemValues:
    """The metrics of one problem, the sampling unit of the intervals.

    ``same``: maps wrong answers to an equal answer with another spelling; they vote together.
    """

    id: str
    subgroup: str
    values: dict[str, float]
    same: Mapping[str, str] = field(default_factory=dict)

    def vote(self, answer: str | None) -> str | None:
        return None if answer is None else self.same.get(answer, answer)

    def as_json(self) -> dict[str, Any]:
        same = {"same": dict(self.same)} if self.same else {}
        return {"problem": self.id, "subgroup": self.subgroup, "values": self.values, **same}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ProblemValues:
        return cls(record["problem"], record["subgroup"], dict(record["values"]), dict(record.get("same", {})))


def read_evaluation(folder: Path) -> Evaluation:
    """Return the evaluation in ``folder``. Raises UserError if there is none, RunError if its files were altered."""
    try:
        return _with_problems(folder, read_result(folder / "metrics.json"))
    except FileNotFoundError:
        raise UserError(f"{folder}: holds no finished evaluation (no metrics.json). `rlvr eval` creates it.") from None


def _with_problems(folder: Path, result: dict[str, Any]) -> Evaluation:
    path = folder / "problems.jsonl"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(path, f"cannot be read ({error.strerror})") from error
    if result.get(PROBLEMS_HASH) != hashlib.sha256(content).hexdigest():
        raise _damaged(path)
    return Evaluation(folder, result, tuple(ProblemValues.from_json(json.loads(line)) for line in content.splitlines()))


def group_by_settings(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(json.dumps(evaluation.settings, sort_keys=True), []).append(evaluation)
    return groups


def final_evaluations(run: RunDir, benchmark: str | None = None) -> list[Evaluation]:
    """Return the evaluations of a run after its training, sorted by folder.

    Args:
        benchmark: read only this benchmark, and ignore damage in others.
    Raises RunError with a line for each damaged evaluation.
    """
    return _read_all(sorted(run.eval_dir.glob("*/metrics.json")), benchmark)


def held_out(run: RunDir) -> list[Evaluation]:
    """Return the evaluations during a run's training, sorted by rollout. Raises RunError with all damaged ones."""
    return _read_all(sorted(run.held_out_dir.glob("rollout-*/metrics.json")))


def iter_results(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield metrics.json of each evaluation in a folder, sorted by folder. Raises RunError if one was altered."""
    for path in sorted(folder.glob("*/metrics.json")):
        try:
            yield read_result(path)
        except FileNotFoundError:
            continue  # a resumed run deletes later evaluations


def has_evaluation(folder: Path) -> bool:
    return any(folder.glob("*/metrics.json"))


def read_undamaged(folder: Path) -> list[Evaluation]:
    evaluations: list[Evaluation] = []
    for path in sorted(folder.glob("*/metrics.json")):
        with collect_problems([]):
            evaluations.append(read_evaluation(path.parent))
    return evaluations


def _read_all(paths: Sequence[Path], benchmark: str | None = None) -> list[Evaluation]:
    evaluations, problems = list[Evaluation](), list[str]()
    for path in paths:
        with collect_problems(problems), suppress(FileNotFoundError):  # a resumed run deletes later evaluations
            result = read_result(path)
            if benchmark in (None, result["benchmark"]):
                evaluations.append(_with_problems(path.parent, result))
    if problems:
        raise RunError("\n".join(problems))
    return evaluations


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of an evaluation, without their hashes. Raises RunError with the line of an altered sample."""
    path = folder / "samples.jsonl"
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        if row.pop(CHECK, None) != digest(row)[:16]:
            raise RunError(
                f"{path}:{number}: this sample was altered after it was written (its hash differs). Put the file back "
                "from a copy; without the line, `rlvr eval` samples it again."
            )
    return rows


def read_prompts(folder: Path) -> dict[str, str]:
    """Return the text of each problem's prompt, as far as recorded. Raises RunError for an altered file."""
    path = folder / PROMPTS
    try:
        return {row["problem"]: row["prompt"] for row in read_jsonl(path)}
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{path}: a line lacks {error}. The file was altered. Remove it; `rlvr eval` writes it again."
        ) from error


def sample_check(record: Mapping[str, Any]) -> str:
    """Return the hash of a sample, 16 hexadecimal digits."""
    # Round-trip: JSON keys are strings, which sort differently from integers.
    return digest(json.loads(json.dumps(record)))[:16]
