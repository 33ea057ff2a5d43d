"""The samples of an evaluation: which are asked for, the record of each, and the folder that holds them. No torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl, sole_writer, truncate_jsonl, write_json, write_text
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.methods.preset import flat
from rlvr_cli.store.evaluation import CHECK, META_FORMAT, PROMPTS, read_prompts, read_samples, sample_check
from rlvr_cli.store.metrics import GREEDY
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem, Verdict

SampleKey = tuple[str, int | str]


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is: samples on disk of those planned, how many of them were there before, new tokens."""

    done: int
    planned: int
    found: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


class Sampler:
    """A model with what samples it: in this process, in vLLM, or behind a server.

    Attributes:
        weights: a hash of the weights, or what stands for it. engine_identity: what else decides the samples.
        style: the prompts that the model was made for. tokenizer: None where a server has the only one.
        served_as: the model's and its server's name in place of its own; None of a model that is loaded here.
        longest: the tokens of a prompt with its completion that a server takes; None = it does not say.
    """

    weights: str
    engine_identity: Mapping[str, Any] = MappingProxyType({})
    style: str
    tokenizer: Any = None
    served_as: tuple[str, str] | None = None
    longest: int | None = None

    def identity(self, task: Task, settings: EvalSettings) -> dict[str, Any]:
        """Return what decides the samples of an evaluation; a folder never holds those of two identities."""
        return {
            "weights": self.weights,
            **self.engine_identity,
            "task": task.settings,
            "split": settings.split,
            "sampling": settings.sampling(),
        }

    def fill(self, store: SampleStore, task: Task, problems: Sequence[Problem], settings: EvalSettings) -> None:
        """Add to ``store`` every sample that is asked for and missing.

        Raises UserError when the folder holds samples of other problems under the same ids, or the prompts cannot be
        put to the model; RunError when sampling fails.
        """
        raise NotImplementedError


class SampleStore:
    """Append-only samples of one model under one set of sampling settings.

    ``identity`` says which: the weights' hash, the task's settings, the sampling settings. A folder that holds samples
    of another identity is refused, so that samples of two checkpoints can never be mixed.

    Attributes:
        samples: those in the folder, once it is open, by (problem id, sample index or "greedy").
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], progress: ProgressCallback | None = None) -> None:
        self.folder, self.identity = folder, dict(identity)
        self.samples: dict[SampleKey, dict[str, Any]] = {}
        self._report, self._progress = progress, Progress(0, 0, 0, 0)

    @property
    def meta_path(self) -> Path:
        return self.folder / "meta.json"

    @property
    def samples_path(self) -> Path:
        return self.folder / "samples.jsonl"

    @contextmanager
    def open(self) -> Iterator[dict[SampleKey, dict[str, Any]]]:
        """Hold the folder for this process and give the samples in it.

        An unfinished last line, left by a killed writer, is cut off. Raises UserError when another process holds the
        folder, it belongs to another evaluation, or it cannot be written; RunError when its files were altered.
        """
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(sole_writer(self.folder, "Wait for it, or choose another folder with --output."))
            except OSError as error:
                raise UserError(
                    f"{self.folder}: cannot be written ({error.strerror}). Choose another folder with --output."
                ) from error
            self._check_identity()
            self.samples = self._read()
            yield self.samples

    def expect(self, problems: Sequence[Problem], settings: EvalSettings, prompts: Mapping[str, str]) -> None:
        """Report how many of the samples that are asked for are here.

        Args:
            prompts: the hash of each problem's prompt, by its id.
        Raises:
            UserError: samples here answer other prompts, or were judged by other gold answers.
        """
        judged_by = {problem.id: _judged_by(problem) for problem in problems}
        for (problem_id, _), record in self.samples.items():
            if problem_id not in prompts:
                continue
            if record.get("prompt") != prompts[problem_id]:
                raise UserError(
                    f"{self.folder}: its samples of problem {problem_id} were drawn for a different prompt: the data "
                    "or the tokenizer changed. Choose another folder with --output."
                )
            if record.get("judged_by") != judged_by[problem_id]:
                raise UserError(
                    f"{self.folder}: its samples of problem {problem_id} were judged against different data (such as "
                    "the gold answer): the data changed. Choose another folder with --output."
                )
        keys = [key for _, keys in passes(problems, settings) for key in keys]
        found = sum(key in self.samples for key in keys)
        self._progress = Progress(found, len(keys), found, 0)
        if self._report is not None:
            self._report(self._progress)

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Add samples, wait until they are on the disk, and report it. Raises RunError when the disk refuses."""
        try:
            append_jsonl(
                self.samples_path, [{**record, CHECK: sample_check(record)} for record in records], durable=True
            )
        except OSError as error:
            raise _unwritable(self.samples_path, error) from error
        self.samples |= {(record["problem"], record["sample"]): record for record in records}
        state = self._progress
        tokens = state.tokens + sum(record["tokens"] or 0 for record in records)
        self._progress = replace(state, done=state.done + len(records), tokens=tokens)
        if self._report is not None:
            self._report(self._progress)

    def add_prompts(self, texts: Mapping[str, str]) -> None:
        """Record the text of each problem's prompt in prompts.jsonl, for a reader of the samples. Raises RunError."""
        recorded = read_prompts(self.folder)
        if texts.items() <= recorded.items():
            return
        rows = ({"problem": problem, "prompt": text} for problem, text in {**recorded, **texts}.items())
        path = self.folder / PROMPTS
        try:
            write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        except OSError as error:
            raise _unwritable(path, error) from error

    def _check_identity(self) -> None:
        """Write meta.json before the first sample; afterwards raise if it is of another evaluation."""
        if not self.samples_path.exists():
            content = {"format": META_FORMAT, **self.identity, "fingerprint": digest(self.identity)}
            write_json(self.meta_path, content)
            return
        try:
            recorded = json.loads(self.meta_path.read_text(encoding="utf-8"))
            version = recorded.get("format")
        except FileNotFoundError:
            raise UserError(
                f"{self.folder}: has samples.jsonl but no meta.json, so it is unknown what was sampled. "
                "Choose another folder with --output."
            ) from None
        except (OSError, ValueError, AttributeError) as error:
            raise RunError(f"{self.meta_path}: cannot be read ({error}). The file was altered.") from error
        if version != META_FORMAT:
            raise UserError(f"{self.meta_path}: is of another version of rlvr. Remove {self.folder} to evaluate again.")
        if recorded.get("fingerprint") != digest(self.identity):
            differing = _differences(recorded, self.identity)
            raise UserError(
                f"{self.folder}: holds samples of another evaluation (different: {', '.join(differing)}). "
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
                    f"{self.samples_path}:{number}: {'not a sample' if None in key else f'{key} stands here twice'}. "
                    "The file was altered."
                )
            samples[key] = record  # type: ignore[index]
        return samples


def _unwritable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be written ({error.strerror}). The samples so far are kept: once there is room, the same "
        "command continues."
    )


def _differences(recorded: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys of an identity whose values differ."""
    first, second = (dict(flat(identity)) for identity in (recorded, wanted))
    keys = (first.keys() | second.keys()) - {"format", "fingerprint"}
    return sorted(key for key in keys if first.get(key) != second.get(key)) or ["fingerprint"]


def passes(problems: Sequence[Problem], settings: EvalSettings) -> Iterator[tuple[float, list[SampleKey]]]:
    """Yield the temperature and the (problem, index) of each pass: the greedy completions, then the samples."""
    if settings.greedy:
        yield 0.0, [(problem.id, GREEDY) for problem in problems]
    indices = range(settings.samples)
    yield settings.temperature, [(problem.id, index) for problem in problems for index in indices]


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
    """Return one line of ``samples.jsonl``.

    Args:
        prompt: the hash of the prompt. tokens, log_prob: None where a server does not tell.
    """
    return {
        "problem": problem.id,
        "sample": index,
        "prompt": prompt,
        "judged_by": _judged_by(problem),
        "text": text,
        "tokens": tokens,
        # Sums of float32 differ in the last digits between batches of different make-up.
        "log_prob": None if log_prob is None else round(log_prob, 3),
        "truncated": truncated,
        "correct": verdict.correct,
        "answer": verdict.answer,
        "reason": verdict.reason,
        "scorable": verdict.scorable,
        # Counted as not correct, and in the mean reward as nothing; its reason says how many there are.
        "reward": verdict.reward if verdict.scorable else 0.0,
        "parts": verdict.parts if verdict.scorable else dict.fromkeys(verdict.parts, 0.0),
        **({"logged": dict(verdict.logged)} if verdict.logged else {}),
    }


def _judged_by(problem: Problem) -> str:
    """Return a hash of a problem as the judge gets it."""
    return digest(problem.data)[:16]
