"""An evaluation on disk: metrics.json, problems.jsonl and samples.jsonl, each with its hash, read only as written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError, collecting
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.hashes import digest, text_digest
from rlvr_cli.runs.folder import IN_TRAINING, RunDir

PROMPTS = "prompts.jsonl"
# In metrics.json: the hash of problems.jsonl, and of all the rest of metrics.json.
PROBLEMS_HASH, OWN_HASH = "problems_sha256", "sha256"
# In a line of samples.jsonl: a hash of the rest of it.
CHECK = "check"
# In metrics.json, and in meta.json: the version of its fields. Others are refused, as nothing was released with them.
FORMAT, META_FORMAT = 2, 1
SETTINGS = ("benchmark", "split", "sampling", "task")


def sealed(result: Mapping[str, Any], problems: str) -> dict[str, Any]:
    """Return ``result`` with the hashes of it and of the content of problems.jsonl."""
    content = {key: value for key, value in result.items() if key != OWN_HASH}
    content[PROBLEMS_HASH] = text_digest(problems)
    # As it is read back: JSON has no integers as keys, and they sort in another order.
    return {**content, OWN_HASH: digest(json.loads(json.dumps(content)))}


def _again(folder: Path, remedy: str) -> str:
    """Return how an evaluation of a checkpoint is had again; one in training is not."""
    if folder.parent.name == IN_TRAINING:
        return f"Evaluations in training are not made again: remove {folder}, or train again."
    return remedy.format(folder=folder)


def _altered(path: Path, fault: str = "was altered after it was written (its hash differs)") -> RunError:
    again = _again(path.parent, "`rlvr eval` makes the evaluation again, from its samples.")
    return RunError(f"{path}: {fault}. {again}")


def read_result(path: Path) -> dict[str, Any]:
    """Return the content of a metrics.json.

    Raises FileNotFoundError, and RunError where it was altered or is of another version.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        version = result.get("format")
    except FileNotFoundError:
        raise
    except (OSError, ValueError, AttributeError) as error:
        raise _altered(path, f"cannot be read ({error})") from error
    if version != FORMAT:
        again = _again(path.parent, "Remove {folder}, and `rlvr eval` makes it again.")
        raise RunError(f"{path}: is of another version of rlvr. {again}")
    if result.get(OWN_HASH) != digest({key: value for key, value in result.items() if key != OWN_HASH}):
        raise _altered(path)
    return dict(result)


@dataclass(frozen=True)
class Provenance:
    """What was evaluated, as fields of metrics.json.

    Attributes:
        label: names what was evaluated to the reader. model: as the configuration names it, before any training.
        benchmark: names the problems.
        steps: of the checkpoints: one of a run, several of an average, none of other models.
        rollouts: after which an evaluation during training was made; None of others.
        trained_on: how many of the problems the model was trained on.
    """

    label: str
    model: str
    benchmark: str
    steps: tuple[int, ...] = ()
    rollouts: int | None = None
    trained_on: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields, `rollouts` and `trained_on` only where they are set."""
        fields = {**asdict(self), "steps": list(self.steps)}
        return {key: value for key, value in fields.items() if value or key not in ("rollouts", "trained_on")}


@dataclass(frozen=True)
class Evaluation:
    """A finished evaluation as read from its folder."""

    folder: Path
    result: dict[str, Any]
    rows: tuple[ProblemValues, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """Return what another evaluation must share for a difference to be one between models.

        ``averaged``: over how many checkpoints its values are the mean.
        """
        return {**{key: self.result[key] for key in SETTINGS}, "averaged": max(1, len(self.steps))}

    @property
    def size(self) -> tuple[int, int]:
        """Return the numbers of problems and of samples of each."""
        return self.result["problems"], self.result["samples"]

    @property
    def steps(self) -> tuple[int, ...]:
        """Return the steps of the checkpoints that were evaluated; several of an average, none of other models."""
        return tuple(self.result["steps"])

    @cached_property
    def samples(self) -> list[dict[str, Any]]:
        """Return :func:`read_samples`, read once and kept in memory. Raises RunError where one is damaged."""
        return read_samples(self.folder)


def last(evaluations: Iterable[Evaluation]) -> Evaluation:
    """Return the evaluation of the last checkpoint, of several the one of most problems and samples."""
    return max(evaluations, key=lambda each: (max(each.steps, default=-1), *each.size, each.folder.name))


@dataclass(frozen=True)
class ProblemValues:
    """One problem's value of every metric; the unit over which intervals are made.

    ``same``: for wrong answers that equal an earlier one in another spelling, that one; they vote together.
    """

    id: str
    subgroup: str
    values: dict[str, float]
    same: Mapping[str, str] = field(default_factory=dict)

    def vote(self, answer: str | None) -> str | None:
        """What a sample with this answer votes for."""
        return None if answer is None else self.same.get(answer, answer)

    def as_json(self) -> dict[str, Any]:
        """The values as one JSON record of ``problems.jsonl``."""
        same = {"same": dict(self.same)} if self.same else {}
        return {"problem": self.id, "subgroup": self.subgroup, "values": self.values, **same}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ProblemValues:
        """The inverse of ``as_json``."""
        return cls(record["problem"], record["subgroup"], dict(record["values"]), dict(record.get("same", {})))


def read_evaluation(folder: Path) -> Evaluation:
    """Return the evaluation in ``folder``.

    Raises UserError when there is none, RunError when its files were altered or are not of one evaluation.
    """
    try:
        return _with_problems(folder, read_result(folder / "metrics.json"))
    except FileNotFoundError:
        raise UserError(f"{folder}: no finished evaluation here (no metrics.json). `rlvr eval` makes one.") from None


def _with_problems(folder: Path, result: dict[str, Any]) -> Evaluation:
    path = folder / "problems.jsonl"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _altered(path, f"cannot be read ({error.strerror})") from error
    if result.get(PROBLEMS_HASH) != hashlib.sha256(content).hexdigest():
        raise _altered(path)
    return Evaluation(folder, result, tuple(ProblemValues.from_json(json.loads(line)) for line in content.splitlines()))


def by_settings(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    """Return the evaluations by their settings as JSON."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(json.dumps(evaluation.settings, sort_keys=True), []).append(evaluation)
    return groups


def finals(run: RunDir, benchmark: str | None = None) -> list[Evaluation]:
    """Return the evaluations of a run but those made during its training, sorted by their folders.

    Args:
        benchmark: the only one to read; damage in the problems of others is then no fault.
    Raises RunError with a line for each that is damaged.
    """
    return _read_all(sorted(run.eval_dir.glob("*/metrics.json")), benchmark)


def held_out(run: RunDir) -> list[Evaluation]:
    """Return the evaluations made during a run's training, by their rollouts. Raises RunError as :func:`finals`."""
    return _read_all(sorted(run.held_out_dir.glob("rollout-*/metrics.json")))


def results_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield metrics.json of each evaluation in a folder, sorted by their folders, without reading their problems.

    Raises RunError for one that was altered.
    """
    for path in sorted(folder.glob("*/metrics.json")):
        try:
            yield read_result(path)
        except FileNotFoundError:
            continue  # a run that goes back takes it away


def has_evaluation(folder: Path) -> bool:
    """Return whether a folder of evaluations has one that is finished."""
    return any(folder.glob("*/metrics.json"))


def evaluations_in(folder: Path) -> list[Evaluation]:
    """Return the undamaged evaluations of models in a folder, which may belong to any run."""
    evaluations: list[Evaluation] = []
    for path in sorted(folder.glob("*/metrics.json")):
        with collecting([]):
            evaluations.append(read_evaluation(path.parent))
    return evaluations


def _read_all(paths: Sequence[Path], benchmark: str | None = None) -> list[Evaluation]:
    evaluations, problems = list[Evaluation](), list[str]()
    for path in paths:
        with collecting(problems), suppress(FileNotFoundError):  # a run that goes back takes it away
            result = read_result(path)
            if benchmark in (None, result["benchmark"]):
                evaluations.append(_with_problems(path.parent, result))
    if problems:
        raise RunError("\n".join(problems))
    return evaluations


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """Return the samples of an evaluation, without their hashes.

    Raises RunError, naming file and line, where one is not as it was written.
    """
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
    """Return the text of each problem's prompt, as far as an evaluation recorded it."""
    return {row["problem"]: row["prompt"] for row in read_jsonl(folder / PROMPTS)}


def sample_check(record: Mapping[str, Any]) -> str:
    """Return the hash of a sample as it is read back."""
    # As it is read back: JSON has no integers as keys, and they sort in another order.
    return digest(json.loads(json.dumps(record)))[:16]
