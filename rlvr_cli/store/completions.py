"""Select completions of the first and last rollout of a run, with the probabilities of their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import finite
from rlvr_cli.core.text import escape_control, shorten, to_one_line
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record

# Lower ends of the bins of a token probability.
BINS = (0.0, 0.01, 0.1, 0.5, 0.9)
MOST_PROBLEMS = 2
MOST_PROMPT = 2000
HEAD, TAIL = 300, 100
HEAD_CHARACTERS, TAIL_CHARACTERS = 3000, 1000

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """The text of a token, or of ``tokens`` tokens that form one character; ``probability`` is then their product.

    ``bin``: the index in ``BINS``. A piece with ``tokens`` = 0 marks omitted tokens.
    """

    text: str
    probability: float
    bin: int
    tokens: int = 1

    @property
    def title(self) -> str:
        rounded = f"{self.probability:.3f}" if self.probability >= 0.0005 else f"{self.probability:.1g}"
        return f"probability {rounded}" + (f" ({self.tokens} tokens together)" if self.tokens > 1 else "")


@dataclass(frozen=True)
class Completion:
    """A completion. ``pieces``: its tokens, empty if the record has no probabilities; ``text`` is then used.

    ``number``: of the completion in its rollout, from 1. ``reward``, ``advantage``: None if they are not numbers.
    ``left_out``: omitted tokens (of ``text``, characters) in the middle.
    """

    number: int
    correct: bool
    reason: str
    reward: float | None
    advantage: float | None
    answer: str | None
    tokens: int
    truncated: bool
    text: str
    pieces: tuple[Piece, ...]
    left_out: int


@dataclass(frozen=True)
class Sampled:
    """A problem of a rollout with its first correct and first incorrect completion.

    ``right``, ``completions_of_problem``: the numbers of correct and of all completions.
    """

    when: str
    rollout: int
    problem: str
    subgroup: str
    prompt: str
    right: int
    completions_of_problem: int
    completions: tuple[Completion, ...]


@dataclass(frozen=True)
class SampledCompletions:
    """The result of :func:`sampled_completions`.

    Attributes:
        pairs: a problem of the first rollout and one of the last; single problems if there is one rollout.
        how: the selection rule, in sentences. coloured: whether any record has probabilities.
    """

    pairs: tuple[tuple[Sampled, ...], ...]
    how: str
    coloured: bool


def sampled_completions(
    run: RunDir, most: int = MOST_PROBLEMS, *, rollouts: tuple[int, int] | None = None
) -> SampledCompletions:
    """Choose completions of the first and the last rollout of a run, by a rule that ignores their text.

    Problems that both rollouts have, else one problem of each rollout per common subgroup. Problems with recorded
    probabilities come first, then those with both a correct and an incorrect completion, then the order of sampling (of
    subgroups, of names). Of each problem, the first correct and the first incorrect completion.

    Args:
        most: the maximum number of pairs. rollouts: two rollouts instead of the first and the last, from 0, or the
            nearest saved ones.
    Raises RunError for damaged records.
    """
    files = sorted(run.rollouts_dir.glob("rollout-*.jsonl"))
    if not files:
        return SampledCompletions((), "The run has no completions on disk.", False)
    if rollouts is not None:
        files = list(dict.fromkeys(min(files, key=lambda path: abs(_number(path) - wanted)) for wanted in rollouts))
    ends = [files[0], files[-1]] if len(files) > 1 else files
    groups = [rollout_groups(run, path) for path in ends]
    chosen, how = _choose(groups, most)
    names = ("first rollout", "last rollout") if rollouts is None else ("before", "after")
    whens = names if len(ends) > 1 else ("only rollout",)
    pairs = tuple(
        tuple(
            _sampled(when, path, problem, group[problem])
            for when, path, group, problem in zip(whens, ends, groups, pair, strict=True)
        )
        for pair in chosen
    )
    completions = [completion for pair in pairs for sampled in pair for completion in sampled.completions]
    coloured = any(completion.pieces for completion in completions)
    if not all(completion.pieces for completion in completions):
        how += (
            " Completions without colours have no recorded probabilities, as only the first problems of a rollout do."
            if coloured
            else " The records have no token probabilities, so there are no colours."
        )
    return SampledCompletions(pairs, how, coloured)


Groups = dict[str, list[tuple[int, Record]]]


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def rollout_groups(run: RunDir, path: Path) -> Groups:
    """Return the records of a rollout by problem, each with its line number. Raises RunError for damaged records."""
    groups: Groups = {}
    for line, record in enumerate(read_record(run, path), start=1):
        problem = _record_problem(record)
        if problem:
            raise RunError(f"{path}:{line}: {problem}. The file was altered.")
        groups.setdefault(record["problem"], []).append((line, record))
    if not groups:
        raise RunError(f"{path}: holds no completion. The file was altered.")
    return groups


def _record_problem(record: Any) -> str | None:
    if not isinstance(record, dict):
        return "not a JSON object"
    kinds = {"problem": str, "subgroup": str, "prompt": str, "completion": str, "reason": str, "tokens": int}
    invalid = [name for name, kind in kinds.items() if not isinstance(record.get(name), kind)]
    invalid += [name for name in ("correct", "truncated") if not isinstance(record.get(name), bool)]
    return f"no valid {', '.join(invalid)}" if invalid else None


def _choose(groups: Sequence[Groups], most: int) -> tuple[list[tuple[str, ...]], str]:
    """Return tuples of one problem per rollout, and the selection rule."""
    if len(groups) == 1:
        return [(problem,) for problem in _ranked(groups[0], list(groups[0]))[:most]], _RULE
    first, last = groups
    both = [problem for problem in first if problem in last]
    if both:
        together = {problem: first[problem] + last[problem] for problem in both}
        return [
            (problem, problem) for problem in _ranked(together, both)[:most]
        ], f"Problems that both rollouts have. {_RULE}"
    shared = [name for name in _subgroups(first) if name in set(_subgroups(last))]
    pairs = [
        tuple(_ranked(group, [each for each in group if _subgroup(group, each) == name])[0] for group in groups)
        for name in shared
    ]
    pairs.sort(key=lambda pair: sum(not _coloured(group[each]) for group, each in zip(groups, pair, strict=True)))
    if pairs:
        return pairs[:most], f"The rollouts have no problem in common; these are of the same kind. {_RULE}"
    best = tuple(_ranked(group, list(group))[0] for group in groups)
    return [best], f"The rollouts have no problem and no kind of problem in common. {_RULE}"


_RULE = (
    "Selected by a rule that ignores the text: problems with recorded token probabilities first, then those with both "
    "a correct and a wrong completion, else in the order of sampling; of each the first correct and the first wrong."
)


def _ranked(groups: Groups, problems: Sequence[str]) -> list[str]:
    """Sort problems: those with probabilities first, then those with both correct and incorrect completions."""

    def rank(problem: str) -> tuple[bool, bool]:
        verdicts = {record["correct"] for _, record in groups[problem]}
        return not _coloured(groups[problem]), len(verdicts) < 2

    return sorted(problems, key=rank)


def _coloured(records: Sequence[tuple[int, Record]]) -> bool:
    return all("pieces" in record for _, record in records)


def _subgroups(groups: Groups) -> list[str]:
    return sorted({_subgroup(groups, problem) for problem in groups})


def _subgroup(groups: Groups, problem: str) -> str:
    return str(groups[problem][0][1]["subgroup"])


def _sampled(when: str, path: Path, problem: str, records: Sequence[tuple[int, Record]]) -> Sampled:
    selected = [next(((p, r) for p, r in records if r["correct"] is correct), None) for correct in (True, False)]
    record = records[0][1]
    return Sampled(
        when=when,
        rollout=_number(path) + 1,
        problem=to_one_line(problem),
        subgroup=to_one_line(record["subgroup"]),
        prompt=shorten(escape_control(record["prompt"]), MOST_PROMPT),
        right=sum(each["correct"] for _, each in records),
        completions_of_problem=len(records),
        completions=tuple(_completion(*pair) for pair in selected if pair is not None),
    )


def _completion(line: int, record: Record) -> Completion:
    pieces = _pieces(record)
    text = escape_control(record["completion"])
    if pieces is None:
        text, left_out = cut_middle(text)
        excerpt: tuple[Piece, ...] = ()
    else:
        left_out = sum(piece.tokens for piece in pieces[HEAD:-TAIL]) if len(pieces) > HEAD + TAIL else 0
        gap = Piece(f" … {left_out} tokens left out … ", 1.0, len(BINS) - 1, tokens=0)
        excerpt = (*pieces[:HEAD], gap, *pieces[-TAIL:]) if left_out else tuple(pieces)
        text = ""
    answer = record.get("answer")
    return Completion(
        number=line,
        correct=record["correct"],
        reason=to_one_line(record["reason"]),
        reward=finite(record.get("reward")),
        advantage=finite(record.get("advantage")),
        answer=None if answer is None else shorten(to_one_line(str(answer)), 200),
        tokens=record["tokens"],
        truncated=record["truncated"],
        text=text,
        pieces=excerpt,
        left_out=left_out,
    )


def cut_middle(text: str) -> tuple[str, int]:
    """Cut the middle out of a long text; return the text and the number of omitted characters."""
    left_out = max(0, len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS)
    return (f"{text[:HEAD_CHARACTERS]} … {text[-TAIL_CHARACTERS:]}" if left_out else text), left_out


def _pieces(record: Record) -> list[Piece] | None:
    """Return a completion's tokens, those of one character merged; None if the record lacks them."""
    texts, logs = record.get("pieces"), record.get("log_probs")
    if not isinstance(texts, list) or not isinstance(logs, list) or len(texts) != len(logs) or not texts:
        return None
    pieces: list[Piece] = []
    log_probability, count = 0.0, 0
    for index, (text, log) in enumerate(zip(texts, logs, strict=True)):
        value = finite(log)
        if not isinstance(text, str) or value is None:
            return None
        log_probability, count = log_probability + min(0.0, value), count + 1
        if text or index == len(texts) - 1:
            probability = math.exp(log_probability)
            pieces.append(Piece(escape_control(text), probability, bin_of(probability), count))
            log_probability, count = 0.0, 0
    return pieces


def bin_of(probability: float) -> int:
    return max(index for index, low in enumerate(BINS) if probability >= low)


def bin_names() -> list[str]:
    ends = [*BINS[1:], 1.0]
    return [f"below {ends[0]:g}", *(f"{low:g} to {high:g}" for low, high in zip(BINS[1:], ends[1:], strict=True))]
