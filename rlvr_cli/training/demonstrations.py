"""What supervised fine-tuning imitates: the task's own worked solutions, or prompts and completions from a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.model import AdapterConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.hashes import text_digest
from rlvr_cli.tasks.base import Task, prompt_ids, response_text
from rlvr_cli.tasks.files import BadRow, is_jsonl, parsed, raise_if, read_lines, text_problem
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import is_generated

# The files that decide what a run of supervised fine-tuning computes, TRL's own aside.
CODE = ("demonstrations.py", "sft.py", "../models/adapter.py")


@dataclass(frozen=True)
class Demonstration:
    """Token ids of a prompt and of the completion to imitate, which ends with the end-of-sequence token.

    Attributes:
        wording: of the problem, or the prompt of a file.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    wording: str = ""


@dataclass(frozen=True)
class SFTMethod:
    """Supervised fine-tuning: the mean negative log-likelihood of the completions' tokens, prompts left out.

    Attributes:
        name: as on the command line.
        source: where the demonstrations come from, in words.
        demonstrations: what is imitated, checked and in the order of the data.
        adapter: what of the model is trained.
    """

    name: str
    source: str
    demonstrations: tuple[Demonstration, ...]
    adapter: AdapterConfig

    def fingerprint(self) -> dict[str, Any]:
        """As that of a policy-gradient method; the demonstrations themselves are part of the choices."""
        listed = json.dumps([[row.prompt, row.completion] for row in self.demonstrations])
        choices = {
            "name": self.name,
            "demonstrations": {
                # Not its folder, which may be another one when the run is continued.
                "source": Path(self.source).name,
                "count": len(self.demonstrations),
                "sha256": text_digest(listed),
            },
            "lora": None if self.adapter.kind == "none" else self.adapter.model_dump(mode="json"),
        }
        here = Path(__file__).parent
        code = "".join((here / name).read_text(encoding="utf-8") for name in CODE)
        return {
            "choices": choices,
            "choices_sha256": text_digest(json.dumps(choices, sort_keys=True)),
            "code_sha256": text_digest(code),
        }


def load_demonstrations(config: Config, task: Task, model: Any, tokenizer: Any) -> SFTMethod:
    """The demonstrations that the ``method`` of ``config`` names, as tokens of the model.

    Raises UserError for a task that cannot solve its problems, a file that cannot be read, and every row of it that
    cannot be trained on.
    """
    encode = _Encoder(tokenizer, config.rollout.max_new_tokens, getattr(model.config, "max_position_embeddings", None))
    method = config.method
    if method.demonstration_file is not None:
        demonstrations = _from_file(local_path(method.demonstration_file), encode)
        source = method.demonstration_file
    else:
        assert method.demonstration_count is not None
        problems = task.problems("train", method.demonstration_count, config.run.seed)
        demonstrations = _worked(config, task, problems, tokenizer, encode)
        source = "the task's worked solutions"
    return SFTMethod(method.name, source, tuple(demonstrations), config.model.adapter)


class _Encoder:
    """Turns prompts and completions into demonstrations; calling it gives one, or says what is wrong.

    Args:
        longest: the most tokens of a completion, its end included. positions: the model's limit on prompt and
            completion together, None where it has none.
    """

    def __init__(self, tokenizer: Any, longest: int, positions: int | None) -> None:
        self.tokenizer, self.longest, self.positions = tokenizer, longest, positions

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, to which no special tokens are added."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def __call__(self, prompt: Sequence[int], completion: str) -> Demonstration | str:
        ids = self.ids(completion)
        end = self.tokenizer.eos_token_id
        ids = ids if ids[-1:] == [end] else [*ids, end]
        if len(ids) > self.longest:
            return (
                f"the completion has {len(ids)} tokens, more than rollout.max_new_tokens={self.longest}; make that "
                "larger, or the completion shorter"
            )
        if self.positions is not None and len(prompt) + len(ids) > self.positions:
            return f"prompt and completion have {len(prompt) + len(ids)} tokens, the model {self.positions} positions"
        return Demonstration(tuple(prompt), tuple(ids))


def _worked(
    config: Config, task: Task, problems: Sequence[Problem], tokenizer: Any, encode: _Encoder
) -> list[Demonstration]:
    """Each problem with the first of its solutions that is short enough, in the order of the problems."""
    solved = [task.solutions(problem) for problem in problems]
    candidates = [solutions for solutions in solved if solutions is not None]
    if len(candidates) < len(solved):
        raise UserError(
            f"task {task.name} has no worked solutions to imitate. Give some as method.data, a JSONL file of prompt "
            "and completion."
        )
    prompts = [prompt_ids(task, problem, tokenizer) for problem in problems]
    found: dict[int, Demonstration] = {}
    too_long: dict[int, str] = {}
    # A round takes the next solution of every problem that has none yet, so that they are judged together.
    while left := [index for index in range(len(problems)) if index not in found]:
        solutions = [next(candidates[index], None) for index in left]
        raise_if(
            [
                f"task: the worked solutions of problem {problems[index].id}: {too_long[index]}."
                for index, solution in zip(left, solutions, strict=True)
                if solution is None
            ]
        )
        written = [str(solution) for solution in solutions]
        raise_if(
            [
                f"task: a worked solution of problem {problems[index].id}: {unwritable}."
                for index, solution in zip(left, written, strict=True)
                if (unwritable := text_problem(solution)) is not None
            ]
        )
        _check_solutions(config, task, [problems[index] for index in left], written)
        for index, solution in zip(left, written, strict=True):
            outcome = encode(prompts[index], solution)
            if isinstance(outcome, Demonstration):
                found[index] = replace(outcome, wording=task.problem_wording(problems[index]))
            else:
                too_long[index] = outcome
    demonstrations = [found[index] for index in range(len(problems))]
    _check_tokens(task, problems, demonstrations, tokenizer)
    return demonstrations


def _wrong(task: Task, problems: Sequence[Problem], responses: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The id of every problem whose response is not judged correct, with the reason."""
    verdicts = task.judge_many(problems, responses, [False] * len(problems))
    for problem, verdict in zip(problems, verdicts, strict=True):
        if not verdict.correct:
            yield problem.id, verdict.reason


def _check_solutions(config: Config, task: Task, problems: Sequence[Problem], solutions: Sequence[str]) -> None:
    wrong = list(_wrong(task, problems, solutions))
    assert not is_generated(config.task.data) or not wrong, (
        f"{task.name}: solutions of its own are judged wrong: {wrong[:3]}"
    )
    raise_if(
        [
            f"task.data: the worked solution of problem {name} is judged {reason}, so its names or its solution "
            "cannot be written as the judge wants them. Remove it, or give method.data."
            for name, reason in wrong
        ]
    )


def _check_tokens(
    task: Task, problems: Sequence[Problem], demonstrations: Sequence[Demonstration], tokenizer: Any
) -> None:
    """What the model would learn to write must be right too, not only the text that it was made from."""
    texts = [response_text(tokenizer, row.completion, [tokenizer.eos_token_id]) for row in demonstrations]
    raise_if(
        [
            f"the tokenizer of the model cannot write the worked solution of problem {name} (what is left of it is "
            f"judged {reason}). Is task.style the one that the model was made for?"
            for name, reason in _wrong(task, problems, texts)
        ]
    )


def _from_file(path: Path, encode: _Encoder) -> list[Demonstration]:
    if not path.exists():
        raise UserError(f"method.data={str(path)!r}: no such file. Give a .jsonl file of prompt and completion.")
    if path.is_dir() or not is_jsonl(path):
        raise UserError(f"method.data={str(path)!r}: not a .jsonl or .jsonl.gz file of prompt and completion.")
    found: list[Demonstration] = []
    problems: list[str] = []
    for number, line in read_lines(path):
        outcome = _row(line, encode)
        if isinstance(outcome, Demonstration):
            found.append(outcome)
        else:
            problems.append(f"{path}:{number}: {outcome}")
    raise_if(problems)
    if not found:
        raise UserError(f"method.data={str(path)!r}: it has no rows.")
    return found


def _row(line: bytes, encode: _Encoder) -> Demonstration | str:
    try:
        record = parsed(line)
    except BadRow as error:
        return str(error)
    if not isinstance(record, dict):
        return "not a JSON object; a row is {prompt, completion}"
    missing = [key for key in ("prompt", "completion") if key not in record]
    if missing:
        return f"no field {', '.join(missing)}; a row needs prompt and completion"
    for key in ("prompt", "completion"):
        if problem := _text_problem(key, record[key], encode):
            return problem
    outcome = encode(encode.ids(record["prompt"]), record["completion"])
    return outcome if isinstance(outcome, str) else replace(outcome, wording=record["prompt"])


def _text_problem(key: str, value: Any, encode: _Encoder) -> str | None:
    """Why a field cannot be trained on, None when it can."""
    if not isinstance(value, str) or not value.strip():
        return f"{key} must be text"
    if problem := text_problem(value):
        return f"{key}: {problem}"
    unknown = encode.tokenizer.unk_token_id
    if not (ids := encode.ids(value)):
        return f"{key} has no tokens"
    if unknown is not None and unknown in ids:
        return f"{key} holds what the model's tokenizer has no token for{_first_unknown(value, encode.ids, unknown)}"
    return None


def _first_unknown(text: str, ids: Callable[[str], list[int]], unknown: int) -> str:
    word = next((word for word in text.split() if unknown in ids(word)), None)
    return "" if word is None else f": {word[:40]!r}"
