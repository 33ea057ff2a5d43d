"""A few completions of the first and of the last rollout of a run, chosen by a rule, with the tokens' probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.files import number
from rlvr_cli.core.text import one_line, shortened, visible
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.runs.records import read_record

# Bins of a token's probability, by their lower ends. The page draws bin i in its own way, the lower the stronger.
BINS = (0.0, 0.01, 0.1, 0.5, 0.9)
MOST_PROBLEMS = 2
MOST_PROMPT = 2000
HEAD, TAIL = 300, 100
HEAD_CHARACTERS, TAIL_CHARACTERS = 3000, 1000

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Piece:
    """Text of a token, or of ``tokens`` of them that make one character; ``probability`` is then their product.

    ``bin``: which of ``BINS`` the probability lies in. A gap, ``tokens`` = 0, stands for what is left out and says so.
    """

    text: str
    probability: float
    bin: int
    tokens: int = 1

    @property
    def title(self) -> str:
        """The probability in words."""
        shown = f"{self.probability:.3f}" if self.probability >= 0.0005 else f"{self.probability:.1g}"
        return f"probability {shown}" + (f" ({self.tokens} tokens together)" if self.tokens > 1 else "")


@dataclass(frozen=True)
class Completion:
    """One completion. ``pieces``: its tokens, none where the record has no probabilities; ``text`` is then shown.

    ``place``: of the completion in its rollout, from 1. ``reward``, ``advantage``: None where they are no number.
    ``left_out``: tokens (of ``text``, characters) in the middle that are not shown.
    """

    place: int
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
    """A problem of a rollout, its prompt, and its completions: the first right one and the first wrong one.

    ``right``, ``completions_of_problem``: of how many completions how many were right.
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
    """What :func:`sampled_completions` found.

    Attributes:
        pairs: for each choice the problem of the first rollout and that of the last, one alone where there is one.
        how: how they were chosen, plain sentences. coloured: whether any record has probabilities.
    """

    pairs: tuple[tuple[Sampled, ...], ...]
    how: str
    coloured: bool


def sampled_completions(
    run: RunDir, most: int = MOST_PROBLEMS, *, rollouts: tuple[int, int] | None = None
) -> SampledCompletions:
    """Completions of the first and of the last rollout of a run, before and after.

    Chosen without looking at what they say: problems that both rollouts have, else of each of some subgroups that both
    have a problem of each. Problems and subgroups go by the order of sampling and of names, but those whose records
    have probabilities come first, and among these problems those with both a right and a wrong completion. Of a
    problem, the first right and the first wrong completion.

    Args:
        most: pairs of problems. rollouts: two others in place of the first and the last, from 0; of those that were
            not saved, the nearest that were.
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
            _sampled(when, path, problem, found[problem])
            for when, path, found, problem in zip(whens, ends, groups, pair, strict=True)
        )
        for pair in chosen
    )
    coloured = any(one.pieces for pair in pairs for sampled in pair for one in sampled.completions)
    plain = any(not one.pieces for pair in pairs for sampled in pair for one in sampled.completions)
    if plain:
        how += (
            " Those without colours have no probabilities on record, which only the first problems of a rollout have."
            if coloured
            else " The records have no probabilities of tokens, so there are no colours."
        )
    return SampledCompletions(pairs, how, coloured)


Groups = dict[str, list[tuple[int, Record]]]


def _number(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def rollout_groups(run: RunDir, path: Path) -> Groups:
    """Return the records of a rollout by problem, each with its place, in the order of the file.

    Raises RunError for damaged records.
    """
    groups: Groups = {}
    for place, record in enumerate(read_record(run, path), start=1):
        fault = _fault(record)
        if fault:
            raise RunError(f"{path}:{place}: {fault}. The file was altered.")
        groups.setdefault(record["problem"], []).append((place, record))
    if not groups:
        raise RunError(f"{path}: holds no completion. The file was altered.")
    return groups


def _fault(record: Any) -> str | None:
    if not isinstance(record, dict):
        return "not a JSON object"
    kinds = {"problem": str, "subgroup": str, "prompt": str, "completion": str, "reason": str, "tokens": int}
    wrong = [name for name, kind in kinds.items() if not isinstance(record.get(name), kind)]
    wrong += [name for name in ("correct", "truncated") if not isinstance(record.get(name), bool)]
    return f"no valid {', '.join(wrong)}" if wrong else None


def _choose(groups: Sequence[Groups], most: int) -> tuple[list[tuple[str, ...]], str]:
    """Problems of each rollout that stand next to one another, and how they were found."""
    if len(groups) == 1:
        return [(problem,) for problem in _ranked(groups[0], list(groups[0]))[:most]], _RULE
    first, last = groups
    both = [problem for problem in first if problem in last]
    if both:
        together = {problem: first[problem] + last[problem] for problem in both}
        return [(one, one) for one in _ranked(together, both)[:most]], f"Problems that both rollouts have. {_RULE}"
    shared = [name for name in _subgroups(first) if name in set(_subgroups(last))]
    pairs = [
        tuple(_ranked(found, [one for one in found if _subgroup(found, one) == name])[0] for found in groups)
        for name in shared
    ]
    pairs.sort(key=lambda pair: sum(not _coloured(found[one]) for found, one in zip(groups, pair, strict=True)))
    if pairs:
        return pairs[:most], f"The rollouts have no problem in common; these are of the same kind. {_RULE}"
    alone = tuple(_ranked(found, list(found))[0] for found in groups)
    return [alone], f"The rollouts have no problem and no kind of problem in common. {_RULE}"


_RULE = (
    "Picked by a rule, not by what they say: problems with recorded token probabilities first, then those with both a "
    "right and a wrong completion, else in the order of sampling; of each the first right and the first wrong one."
)


def _ranked(groups: Groups, problems: Sequence[str]) -> list[str]:
    """Problems with probabilities first, among them those with both a right and a wrong completion."""

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
    picked = [next(((p, r) for p, r in records if r["correct"] is right), None) for right in (True, False)]
    record = records[0][1]
    return Sampled(
        when=when,
        rollout=_number(path) + 1,
        problem=one_line(problem),
        subgroup=one_line(record["subgroup"]),
        prompt=shortened(visible(record["prompt"]), MOST_PROMPT),
        right=sum(one["correct"] for _, one in records),
        completions_of_problem=len(records),
        completions=tuple(_completion(*one) for one in picked if one is not None),
    )


def _completion(place: int, record: Record) -> Completion:
    pieces = _pieces(record)
    text = visible(record["completion"])
    if pieces is None:
        shown, left_out = cut_middle(text)
        kept: tuple[Piece, ...] = ()
    else:
        left_out = sum(one.tokens for one in pieces[HEAD:-TAIL]) if len(pieces) > HEAD + TAIL else 0
        gap = Piece(f" … {left_out} tokens left out … ", 1.0, len(BINS) - 1, 0)
        kept = (*pieces[:HEAD], gap, *pieces[-TAIL:]) if left_out else tuple(pieces)
        shown = ""
    answer = record.get("answer")
    return Completion(
        place=place,
        correct=record["correct"],
        reason=one_line(record["reason"]),
        reward=number(record.get("reward")),
        advantage=number(record.get("advantage")),
        answer=None if answer is None else shortened(one_line(str(answer)), 200),
        tokens=record["tokens"],
        truncated=record["truncated"],
        text=shown,
        pieces=kept,
        left_out=left_out,
    )


def cut_middle(text: str) -> tuple[str, int]:
    """The text without its middle where it is long, and how many characters that leaves out."""
    left_out = max(0, len(text) - HEAD_CHARACTERS - TAIL_CHARACTERS)
    return (f"{text[:HEAD_CHARACTERS]} … {text[-TAIL_CHARACTERS:]}" if left_out else text), left_out


def _pieces(record: Record) -> list[Piece] | None:
    """The tokens of a completion; None where the record does not have them.

    A token without text is a part of a character whose text stands at a later one: they are shown together.
    """
    texts, logs = record.get("pieces"), record.get("log_probs")
    if not isinstance(texts, list) or not isinstance(logs, list) or len(texts) != len(logs) or not texts:
        return None
    found: list[Piece] = []
    waiting, count = 0.0, 0
    for place, (text, log) in enumerate(zip(texts, logs, strict=True)):
        value = number(log)
        if not isinstance(text, str) or value is None:
            return None
        waiting, count = waiting + min(0.0, value), count + 1
        if text or place == len(texts) - 1:
            probability = math.exp(waiting)
            found.append(Piece(visible(text), probability, bin_of(probability), count))
            waiting, count = 0.0, 0
    return found


def bin_of(probability: float) -> int:
    """The place in ``BINS`` of the last lower end that ``probability`` reaches."""
    return max(place for place, low in enumerate(BINS) if probability >= low)


def bin_names() -> list[str]:
    """What a legend calls the bins, from the lowest."""
    ends = [*BINS[1:], 1.0]
    return [f"below {ends[0]:g}", *(f"{low:g} to {high:g}" for low, high in zip(BINS[1:], ends[1:], strict=True))]
