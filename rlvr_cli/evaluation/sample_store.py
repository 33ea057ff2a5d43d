"""The samples of an evaluation: the plan, the records, and the folder that stores them. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl, lock_folder, truncate_jsonl, write_json, write_text
from rlvr_cli.core.hashes import digest
from rlvr_cli.core.nested import flatten
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.store.evaluation import CHECK, META_FORMAT, PROMPTS, read_prompts, read_samples, sample_check
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem, Verdict

SampleKey = tuple[str, int | str]


@dataclass(frozen=True)
class Progress:
    """The numbers of samples on disk, planned and from earlier calls, and of new tokens."""

    done: int
    planned: int
    earlier: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


class Sampler:
    """A model with its sampling engine: in this process, in vLLM, or behind a server.

    Attributes:
        weights: a hash of the weights, or its substitute. engine_identity: further determinants of the samples.
        style: the prompt style of the model. tokenizer: None if only a server has it.
        served_as: the names of a served model and of its server; None for a local model.
        max_sequence: the maximum length of prompt and completion in tokens; None = unknown, or unlimited.
    """

    weights: str
    engine_identity: Mapping[str, Any] = MappingProxyType({})
    style: str
    tokenizer: Any = None
    served_as: tuple[str, str] | None = None
    max_sequence: int | None = None

    def identity(self, task: Task, settings: EvalSettings) -> dict[str, Any]:
        """Return everything that determines the samples; the samples in a folder share one identity."""
        return {
            "weights": self.weights,
            **self.engine_identity,
            "task": task.settings,
            "split": settings.split,
            "sampling": settings.sampling(),
        }

    def fill(self, store: SampleStore, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Add the samples that ``store`` lacks. Raises UserError for conflicting ids or unusable prompts, RunError."""
        raise NotImplementedError


class SampleStore:
    """Append-only samples of one model with one set of sampling settings.

    Samples of another ``identity`` in the folder raise an error, so that samples of two checkpoints are never mixed.

    Attributes:
        samples: by (problem id, sample index or "greedy"); empty until :meth:`open`.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], progress: ProgressCallback | None = None) -> None:
        self.folder, self.identity = folder, dict(identity)
        self.meta_path, self.samples_path = folder / "meta.json", folder / "samples.jsonl"
        self.samples: dict[SampleKey, dict[str, Any]] = {}
        self._callback, self._progress = progress or (lambda _: None), Progress(0, 0, 0, 0)

    @contextmanager
    def open(self) -> Iterator[dict[SampleKey, dict[str, Any]]]:
        """Lock the folder and yield its samples. Raises UserError if it cannot be used, RunError for altered files."""
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_folder(self.folder, "Wait for it, or choose another folder with --output."))
            except OSError as error:
                raise UserError(
                    f"{self.folder}: cannot be written ({error.strerror}). Choose another folder with --output."
                ) from error
            self._check_identity()
            self.samples = self._read()
            yield self.samples

    def prepare(
        self, problems: Sequence[Problem], settings: EvalSettings, prompts: Mapping[str, str], texts: Mapping[str, str]
    ) -> None:
        """Check the stored samples against the plan, report progress, and record the prompts' texts.

        Args:
            prompts, texts: the hash and the text of each problem's prompt, by its id.
        Raises:
            UserError: stored samples have other prompts, or were judged by other gold answers.
            RunError: the prompts cannot be written.
        """
        judged_by = {problem.id: _judge_digest(problem) for problem in problems}
        for (problem_id, _), record in self.samples.items():
            if problem_id not in prompts:
                continue
            changes = []
            if record.get("prompt") != prompts[problem_id]:
                changes.append("drawn for a different prompt: the data or the tokenizer changed")
            if record.get("judged_by") != judged_by[problem_id]:
                changes.append("judged against different data (such as the gold answer): the data changed")
            if changes:
                raise UserError(
                    f"{self.folder}: its samples of problem {problem_id} were {changes[0]}. Choose another folder with "
                    "--output."
                )
        keys = [key for _, keys in iter_passes(problems, settings) for key in keys]
        earlier = sum(key in self.samples for key in keys)
        self._progress = Progress(earlier, len(keys), earlier, 0)
        self._callback(self._progress)
        recorded = read_prompts(self.folder)
        if not texts.items() <= recorded.items():
            rows = ({"problem": problem, "prompt": text} for problem, text in {**recorded, **texts}.items())
            with self._writing(path := self.folder / PROMPTS):
                write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Append samples durably and report progress. Raises RunError if they cannot be written."""
        rows = [{**record, CHECK: sample_check(record)} for record in records]
        with self._writing(self.samples_path):
            append_jsonl(self.samples_path, rows, durable=True)
        self.samples |= {(record["problem"], record["sample"]): record for record in records}
        state = self._progress
        tokens = state.tokens + sum(record["tokens"] or 0 for record in records)
        self._progress = replace(state, done=state.done + len(records), tokens=tokens)
        self._callback(self._progress)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{path}: cannot be written ({error.strerror}). The samples so far are kept: once there is room, the "
                "same command continues."
            ) from error

    def _check_identity(self) -> None:
        """Write meta.json before the first sample; afterwards raise an error if it is of another evaluation."""
        if not self.samples_path.exists():
            content = {"format": META_FORMAT, **self.identity, "fingerprint": digest(self.identity)}
            write_json(self.meta_path, content)
            return
        try:
            recorded = json.loads(self.meta_path.read_text(encoding="utf-8"))
            version = recorded.get("format")
        except FileNotFoundError:
            raise UserError(
                f"{self.folder}: has samples.jsonl but no meta.json, so its evaluation is unknown. "
                "Choose another folder with --output."
            ) from None
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"{self.meta_path}: cannot be read ({error}). The file was altered.") from error
        if version != META_FORMAT:
            raise UserError(f"{self.meta_path}: is of another version of rlvr. Remove {self.folder} to evaluate again.")
        if recorded.get("fingerprint") != digest(self.identity):
            old, new = flatten(recorded), flatten(self.identity)
            keys = (old.keys() | new.keys()) - {"format", "fingerprint"}
            different = sorted(key for key in keys if old.get(key) != new.get(key)) or ["fingerprint"]
            raise UserError(
                f"{self.folder}: holds samples of another evaluation (different: {', '.join(different)}). "
                "Samples are never mixed: choose another folder with --output."
            )

    def _read(self) -> dict[SampleKey, dict[str, Any]]:
        records = read_samples(self.folder)
        if self.samples_path.exists():
            truncate_jsonl(self.samples_path, len(records))
        samples: dict[SampleKey, dict[str, Any]] = {}
        for number, record in enumerate(records, start=1):
            key = (record.get("problem"), record.get("sample"))
            if None in key or key in samples:
                raise RunError(
                    f"{self.samples_path}:{number}: {'not a sample' if None in key else f'duplicate sample {key}'}. "
                    "The file was altered."
                )
            samples[key] = record  # type: ignore[index]
        return samples


def iter_passes(problems: Sequence[Problem], settings: EvalSettings) -> Iterator[tuple[float, list[SampleKey]]]:
    """Yield each sampling pass, greedy completions first: its temperature and (problem id, index) keys."""
    if settings.greedy:
        yield 0.0, [(problem.id, GREEDY) for problem in problems]
    yield settings.temperature, [(problem.id, index) for problem in problems for index in range(settings.samples)]


def sample_record(
    problem: Problem,
    index: int | str,
    *,
    prompt: str,
    text: str,
    tokens: int | None,
    log_prob: float | None,
    truncated: bool,
    verdict: Verdict,
) -> dict[str, Any]:
    """Return a line of ``samples.jsonl``; ``prompt``: its hash. ``tokens``, ``log_prob``: None from some servers."""
    return {
        "problem": problem.id,
        "sample": index,
        "prompt": prompt,
        "judged_by": _judge_digest(problem),
        "text": text,
        "tokens": tokens,
        # Rounded because float32 sums depend on the composition of the batch.
        "log_prob": None if log_prob is None else round(log_prob, 3),
        "truncated": truncated,
        "correct": verdict.correct,
        "answer": verdict.answer,
        "reason": verdict.reason,
        "scorable": verdict.scorable,
        # An unscorable completion counts as incorrect with reward 0; the share of its reason is a metric.
        "reward": verdict.reward if verdict.scorable else 0.0,
        "parts": verdict.parts if verdict.scorable else dict.fromkeys(verdict.parts, 0.0),
        **({"logged": dict(verdict.logged)} if verdict.logged else {}),
    }


def _judge_digest(problem: Problem) -> str:
    """Return a digest of the judge's data of a problem, such as the gold answer."""
    return digest(problem.data)[:16]
