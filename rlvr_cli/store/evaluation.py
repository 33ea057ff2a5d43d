"""An evaluation on disk: metrics.json, problems.jsonl and samples.jsonl, read only as they were written."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError, collecting
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.core.hashes import digest, text_digest
from rlvr_cli.runs.folder import RunDir

# Of metrics.json: the hash of problems.jsonl, and of all the rest of metrics.json.
PROBLEMS_HASH, OWN_HASH = "problems_sha256", "sha256"
# Of a line of samples.jsonl: a hash of the rest of it; of meta.json: whether every line has one.
CHECK, CHECKED = "check", "checked"
# Of metrics.json: the version of its fields. Others are refused, as nothing was released with them.
FORMAT = 2
SETTINGS = ("benchmark", "split", "sampling", "task")
AGAIN = "`rlvr eval` makes the evaluation of a checkpoint again, from its samples."


def sealed(result: Mapping[str, Any], problems: str) -> dict[str, Any]:
    """``result`` with the hashes of it and of the content of problems.jsonl."""
    content = {key: value for key, value in result.items() if key != OWN_HASH}
    content[PROBLEMS_HASH] = text_digest(problems)
    # As it is read back: JSON has no integers as keys, and they sort in another order.
    return {**content, OWN_HASH: digest(json.loads(json.dumps(content)))}


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
        raise RunError(f"{path}: cannot be read ({error}). The file was altered.") from error
    if version != FORMAT:
        raise RunError(f"{path}: is of another version of rlvr. {AGAIN}")
    if OWN_HASH in result and result[OWN_HASH] != digest({k: v for k, v in result.items() if k != OWN_HASH}):
        raise RunError(f"{path}: was altered after it was written (its hash differs). {AGAIN}")
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
    path = folder / "metrics.json"
    if not path.exists():
        raise UserError(f"{folder}: no finished evaluation here (no metrics.json). `rlvr eval` makes one.")
    try:
        result = read_result(path)
        rows = tuple(ProblemValues.from_json(record) for record in read_jsonl(folder / "problems.jsonl"))
        count = result["problems"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}: the evaluation cannot be read ({error}). Its files were altered.") from error
    digest_of_rows = hashlib.sha256((folder / "problems.jsonl").read_bytes()).hexdigest() if rows else None
    if digest_of_rows != result.get(PROBLEMS_HASH, digest_of_rows):
        raise RunError(f"{folder / 'problems.jsonl'}: was altered after it was written (its hash differs). {AGAIN}")
    if len(rows) != count:
        raise RunError(f"{folder}: metrics.json is of {count} problems, problems.jsonl of {len(rows)}. Evaluate again.")
    evaluation = Evaluation(folder, result, rows)
    fault = _fault(evaluation)
    if fault:
        raise RunError(f"{folder}: the evaluation {fault}. Its files were altered; evaluate again.")
    return evaluation


def by_settings(evaluations: Iterable[Evaluation]) -> dict[str, list[Evaluation]]:
    """Return the evaluations by their settings as JSON."""
    groups: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(json.dumps(evaluation.settings, sort_keys=True), []).append(evaluation)
    return groups


def finals(run: RunDir) -> list[Evaluation]:
    """Return the evaluations of a run but those made during its training, sorted by their folders.

    Raises RunError with a line for each that is damaged.
    """
    return _read_all(sorted(run.eval_dir.glob("*/metrics.json")))


def held_out(run: RunDir) -> list[Evaluation]:
    """Return the evaluations made during a run's training, by their rollouts. Raises RunError as :func:`finals`."""
    evaluations = _read_all(sorted(run.held_out_dir.glob("rollout-*/metrics.json")))
    wrong = [one.folder for one in evaluations if type(one.result.get("rollouts")) is not int]
    if wrong:
        raise RunError(f"{wrong[0]}: the evaluation has no number of rollouts. Its files were altered.")
    return evaluations


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


def _read_all(paths: Sequence[Path]) -> list[Evaluation]:
    evaluations, problems = list[Evaluation](), list[str]()
    for path in paths:
        with collecting(problems):
            evaluations.append(read_evaluation(path.parent))
    if problems:
        raise RunError("\n".join(problems))
    return evaluations


def _fault(evaluation: Evaluation) -> str | None:
    """What is wrong with the content of an evaluation's files; None where nothing is."""
    result, rows = evaluation.result, evaluation.rows
    missing = [key for key in (*SETTINGS, "model", "samples", "steps") if key not in result]
    if missing:
        return f"has no {', '.join(missing)}"
    if type(result["samples"]) is not int or result["samples"] < 0 or not isinstance(result["benchmark"], str):
        return "has a number of samples or a benchmark that is none"
    if not isinstance(result["steps"], list) or any(type(step) is not int for step in result["steps"]):
        return "has steps that are none"
    if not all(isinstance(result[key], dict) for key in ("sampling", "task")):
        return "has settings that are none"
    if not rows or len({row.id for row in rows}) < len(rows):
        return "holds no problem, or one twice"
    for row in rows:
        for metric, value in row.values.items():
            if not isinstance(value, int | float) or not math.isfinite(value):
                return f"has {value!r} for {metric} of {row.id}"
    return None


def read_samples(folder: Path) -> list[dict[str, Any]]:
    """The samples of an evaluation, without what they are checked by.

    Raises RunError, naming file and line, where one is not as it was written.
    """
    path, meta = folder / "samples.jsonl", folder / "meta.json"
    try:
        checked = meta.exists() and json.loads(meta.read_text(encoding="utf-8")).get(CHECKED) is True
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise RunError(f"{meta}: cannot be read ({error}). The file was altered.") from error
    rows = read_jsonl(path)
    for number, row in enumerate(rows, start=1):
        check = row.pop(CHECK, None)
        if (check is not None or checked) and check != sample_check(row):
            raise RunError(
                f"{path}:{number}: this sample was altered after it was written (its hash differs). Put the file back "
                "from a copy; without the line, `rlvr eval` samples it again."
            )
    return rows


def sample_check(record: Mapping[str, Any]) -> str:
    """The hash of a sample as it is read back."""
    # As it is read back: JSON has no integers as keys, and they sort in another order.
    return digest(json.loads(json.dumps(record)))[:16]
