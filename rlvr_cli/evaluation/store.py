"""The folder of one evaluation: what was sampled from what, the samples, and one writer at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import append_jsonl, sole_writer, truncate_jsonl, write_json, write_text
from rlvr_cli.core.hashes import digest
from rlvr_cli.methods.preset import flat
from rlvr_cli.store.evaluation import CHECK, META_FORMAT, PROMPTS, read_prompts, read_samples, sample_check

SampleKey = tuple[str, int | str]


class SampleStore:
    """Append-only samples of one model under one set of sampling settings.

    ``identity`` says which: the weights' hash, the task's settings, the sampling settings. A folder that holds samples
    of another identity is refused, so that samples of two checkpoints can never be mixed.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity = dict(identity)

    @property
    def meta_path(self) -> Path:
        return self.folder / "meta.json"

    @property
    def samples_path(self) -> Path:
        return self.folder / "samples.jsonl"

    @contextmanager
    def open(self) -> Iterator[dict[SampleKey, dict[str, Any]]]:
        """Hold the folder for this process and give the samples in it, by (problem id, sample index or "greedy").

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
            yield self._read()

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add samples and wait until they are on the disk. Raises RunError when the disk refuses."""
        try:
            append_jsonl(
                self.samples_path, [{**record, CHECK: sample_check(record)} for record in records], durable=True
            )
        except OSError as error:
            raise _unwritable(self.samples_path, error) from error

    def add_prompts(self, texts: Mapping[str, str]) -> None:
        """Record the text of each problem's prompt in prompts.jsonl, for a reader of the samples. Raises RunError."""
        recorded = read_prompts(self.folder)
        if texts.keys() <= recorded.keys():
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
