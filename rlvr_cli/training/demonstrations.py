"""Tokenized demonstrations: the worked solutions of a task, or the rows of a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.core.text import count
from rlvr_cli.tasks.base import Task, prompt_ids, response_text
from rlvr_cli.tasks.files import BadRow, find_text_error, is_jsonl, parse_json, raise_row_errors, read_lines


@dataclass(frozen=True)
class Demonstration:
    """Token ids of a prompt and of a completion that ends with the end-of-sequence token.

    ``wording``: the problem's, or the prompt's text from a file.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    wording: str = ""


@dataclass(frozen=True)
class SFTMethod:
    """Supervised fine-tuning: minimises the mean negative log-likelihood of the completions' tokens."""

    source: str
    demonstrations: tuple[Demonstration, ...]

    def fingerprint(self) -> dict[str, Any]:
        """Return the fingerprint that a resumed run must have, as :meth:`Method.fingerprint`, including the data."""
        rows = json.dumps([[row.prompt, row.completion] for row in self.demonstrations])
        # The file may be moved before the run is resumed.
        data = {"source": Path(self.source).name, "count": len(self.demonstrations), "sha256": text_digest(rows)}
        choices = {"name": "sft", "demonstrations": data}
        code = (__file__, Path(__file__).with_name("sft.py"))
        return {
            "choices": choices,
            "choices_sha256": text_digest(json.dumps(choices, sort_keys=True)),
            "code_sha256": text_digest("".join(Path(file).read_text(encoding="utf-8") for file in code)),
        }


def load_demonstrations(config: Config, task: Task, model: Any, tokenizer: Any) -> SFTMethod:
    """Load and tokenize the demonstrations. Raises UserError without solutions, and for every invalid row."""
    encoder = _Encoder(tokenizer, config.rollout.max_new_tokens, getattr(model.config, "max_position_embeddings", None))
    path = config.method.demonstration_file
    if path is not None:
        return SFTMethod(path, tuple(_load_file(local_path(path), encoder)))
    demonstrations, unsolved = _load_solutions(config, task, encoder)
    omitted = f"; {count(unsolved, 'problem')} without a solution left out" if unsolved else ""
    return SFTMethod(f"the task's worked solutions{omitted}", tuple(demonstrations))


@dataclass(frozen=True)
class _Encoder:
    """Tokenizer of demonstrations.

    ``max_tokens``: of a completion, including the end-of-sequence token. ``positions``: the model's limit of prompt and
    completion together; None = no limit.
    """

    tokenizer: Any
    max_tokens: int
    positions: int | None

    def encode(self, name: str, text: str) -> list[int]:
        if problem := find_text_error(text):
            raise BadRow(f"{name}: {problem}")
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        if not ids:
            raise BadRow(f"{name} has no tokens")
        unknown = self.tokenizer.unk_token_id
        if unknown is not None and unknown in ids:
            words = (word for word in text.split() if unknown in self.tokenizer(word)["input_ids"])
            raise BadRow(f"{name} has text without tokens in the model's tokenizer: {next(words, text)[:40]!r}")
        return ids

    def make_demonstration(self, prompt: Sequence[int], completion: str, wording: str) -> Demonstration:
        ids, end = self.encode("completion", completion), self.tokenizer.eos_token_id
        ids = ids if ids[-1] == end else [*ids, end]
        if len(ids) > self.max_tokens:
            raise BadRow(
                f"the completion has {len(ids)} tokens, more than rollout.max_new_tokens={self.max_tokens}; increase "
                "the limit, or shorten the completion"
            )
        length = len(prompt) + len(ids)
        if self.positions is not None and length > self.positions:
            raise BadRow(
                f"prompt and completion have {length} tokens, more than the model's {self.positions} positions"
            )
        return Demonstration(tuple(prompt), tuple(ids), wording)


def _load_solutions(config: Config, task: Task, encoder: _Encoder) -> tuple[list[Demonstration], int]:
    """Return the first solution of each problem that fits, judged as decoded tokens, and the number without any."""
    demonstrations, errors, solved = [], [], []
    style = " Is task.style the style of the model?" if hasattr(task, "style") else ""
    training = task.problems("train", config.method.demonstration_count or 0, config.run.seed)
    for problem in training:
        solutions = task.solutions(problem)
        if solutions is None:
            continue
        solved.append(problem)
        prompt, wording = prompt_ids(task, problem, encoder.tokenizer), task.problem_wording(problem)
        reason = "none"
        for solution in solutions:
            try:
                demonstrations.append(encoder.make_demonstration(prompt, str(solution), wording))
                break
            except BadRow as error:
                reason = str(error)
        else:
            errors.append(f"task: the worked solutions of problem {problem.id}: {reason}.{style}")
    if not solved:
        raise UserError(
            f"task {task.name} has no worked solutions. Set method.data to a JSONL file of prompt and completion."
        )
    raise_row_errors(errors)
    end = encoder.tokenizer.eos_token_id
    texts = [response_text(encoder.tokenizer, row.completion, [end]) for row in demonstrations]
    verdicts = task.judge_many(solved, texts, [False] * len(texts))
    raise_row_errors(
        [
            f"task: the worked solution of problem {problem.id} is judged {verdict.reason} as the model's tokenizer "
            f"decodes it ({text[:40]!r}...). Remove the problem from task.data, or set method.data.{style}"
            for problem, text, verdict in zip(solved, texts, verdicts, strict=True)
            if not verdict.correct
        ]
    )
    return demonstrations, len(training) - len(solved)


def _load_file(path: Path, encoder: _Encoder) -> list[Demonstration]:
    if not path.exists():
        raise UserError(f"method.data={str(path)!r}: no such file. Name a .jsonl file of prompt and completion.")
    if path.is_dir() or not is_jsonl(path):
        raise UserError(f"method.data={str(path)!r}: must be a .jsonl or .jsonl.gz file of prompt and completion.")
    demonstrations, errors = [], []
    for number, line in read_lines(path):
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise BadRow("not a JSON object; a row is {prompt, completion}")
            if missing := [name for name in ("prompt", "completion") if name not in row]:
                raise BadRow(f"no field {', '.join(missing)}; a row needs prompt and completion")
            for name in ("prompt", "completion"):
                if not isinstance(row[name], str) or not row[name].strip():
                    raise BadRow(f"{name} must be text")
            prompt = encoder.encode("prompt", row["prompt"])
            demonstrations.append(encoder.make_demonstration(prompt, row["completion"], row["prompt"]))
        except BadRow as error:
            errors.append(f"{path}:{number}: {error}")
    raise_row_errors(errors)
    if not demonstrations:
        raise UserError(f"method.data={str(path)!r}: the file has no rows.")
    return demonstrations
