"""The samples of an evaluation: which are requested, the record of each, and the folder that holds them. No torch."""

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
    """Samples on disk and planned, those of an earlier call, and new tokens of an evaluation."""

    done: int
    planned: int
    earlier: int
    tokens: int


ProgressCallback = Callable[[Progress], None]


class Sampler:
    """A model with what samples it: in this process, in vLLM, or behind a server.

    Attributes:
        weights: a hash of the weights, or its substitute. engine_identity: what else decides the samples.
        style: the prompts that the model was made for. tokenizer: None if only a server has it.
        served_as: the names of a served model and of its server; None for a model that is loaded here.
        max_sequence: the tokens of a prompt with its completion that are possible; None = unknown, or no limit.
    """

    weights: str
    engine_identity: Mapping[str, Any] = MappingProxyType({})
    style: str
    tokenizer: Any = None
    served_as: tuple[str, str] | None = None
    max_sequence: int | None = None

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

    A folder that holds samples of another ``identity`` (the weights' hash, the task's settings, the sampling settings)
    is refused, so that samples of two checkpoints can never be mixed.

    Attributes:
        samples: of the folder, once it is open, by (problem id, sample index or "greedy").
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], progress: ProgressCallback | None = None) -> None:
        self.folder, self.identity = folder, dict(identity)
        self.meta_path, self.samples_path = folder / "meta.json", folder / "samples.jsonl"
        self.samples: dict[SampleKey, dict[str, Any]] = {}
        self._callback, self._progress = progress or (lambda _: None), Progress(0, 0, 0, 0)

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

    def expect(
        self, problems: Sequence[Problem], settings: EvalSettings, prompts: Mapping[str, str], texts: Mapping[str, str]
    ) -> None:
        """Report the number of planned samples and of those in the folder, and record the prompts for a reader.

        Args:
            prompts, texts: the hash and the text of each problem's prompt, by its id.
        Raises:
            UserError: the folder's samples answer other prompts, or were judged by other gold answers.
            RunError: the disk refuses the prompts.
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
        earlier = sum(key in self.samples for key in keys)
        self._progress = Progress(earlier, len(keys), earlier, 0)
        self._callback(self._progress)
        recorded = read_prompts(self.folder)
        if not texts.items() <= recorded.items():
            rows = ({"problem": problem, "prompt": text} for problem, text in {**recorded, **texts}.items())
            with self._writing(path := self.folder / PROMPTS):
                write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def add(self, records: Sequence[dict[str, Any]]) -> None:
        """Add samples, wait until they are on the disk, and report it. Raises RunError when the disk refuses."""
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
        """Write meta.json before the first sample; later raise an error if it is of another evaluation."""
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
            old, new = dict(flat(recorded)), dict(flat(self.identity))
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
                    f"{self.samples_path}:{number}: {'not a sample' if None in key else f'{key} stands here twice'}. "
                    "The file was altered."
                )
            samples[key] = record  # type: ignore[index]
        return samples


def passes(problems: Sequence[Problem], settings: EvalSettings) -> Iterator[tuple[float, list[SampleKey]]]:
    """Yield the temperature and the (problem, index) of each pass: the greedy completions, then the samples."""
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
    """Return one line of ``samples.jsonl``.

    Args:
        prompt: the hash of the prompt. tokens, log_prob: None if a server does not return it.
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
        # An unscorable one counts as not correct and has the reward 0; its reason shows their number.
        "reward": verdict.reward if verdict.scorable else 0.0,
        "parts": verdict.parts if verdict.scorable else dict.fromkeys(verdict.parts, 0.0),
        **({"logged": dict(verdict.logged)} if verdict.logged else {}),
    }


def _judged_by(problem: Problem) -> str:
    """Return a hash of the problem's data for the judge."""
    return digest(problem.data)[:16]
