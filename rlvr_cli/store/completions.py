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
_RULE = (
    "Selected by a rule that ignores the text: problems with recorded token probabilities first, then those with both "
    "a correct and a wrong completion, else in the order of sampling; of each the first correct and the first wrong."
)

# A record of a rollout, with its line number from 1.
Line = tuple[int, Mapping[str, Any]]
# The records of a rollout by problem.
Groups = dict[str, list[Line]]


@dataclass(frozen=True)
class Piece:
    """The text of a token, or of ``tokens`` tokens that form one character; ``probability`` is then their product.

    A piece with ``tokens`` = 0 marks omitted tokens.
    """

    text: str
    probability: float = 1.0
    tokens: int = 1

    @property
    def bin(self) -> int:
        """Return the index in ``BINS``."""
        return max(index for index, low in enumerate(BINS) if self.probability >= low)

    @property
    def title(self) -> str:
        rounded = f"{self.probability:.3f}" if self.probability >= 0.0005 else f"{self.probability:.1g}"
        return f"probability {rounded}" + (f" ({self.tokens} tokens together)" if self.tokens > 1 else "")


@dataclass(frozen=True)
class Completion:
    """A completion. ``pieces``: its tokens, empty if the record has no probabilities; ``text`` is then used.

    ``number``: of the completion in its rollout, from 1. ``reward``, ``advantage``: None if they are not numbers.
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


def sampled_completions(run: RunDir) -> SampledCompletions:
    """Choose completions of the first and the last rollout of a run, by a rule that ignores their text.

    Problems that both rollouts have, else one problem of each rollout per common subgroup. Problems with recorded
    probabilities come first, then those with both a correct and an incorrect completion, then the order of sampling (of
    subgroups, of names). Of each problem, the first correct and the first incorrect completion.

    Raises RunError for damaged records.
    """
    files = sorted(run.rollouts_dir.glob("rollout-*.jsonl"))
    if not files:
        return SampledCompletions((), "The run has no completions on disk.", False)
    ends = {"first rollout": files[0], "last rollout": files[-1]} if len(files) > 1 else {"only rollout": files[0]}
    groups = [rollout_groups(run, path) for path in ends.values()]
    chosen, how = _choose(groups)
    pairs = tuple(
        tuple(
            _sampled(when, path, problem, group[problem])
            for (when, path), group, problem in zip(ends.items(), groups, pair, strict=True)
        )
        for pair in chosen
    )
    has_pieces = [bool(each.pieces) for pair in pairs for sampled in pair for each in sampled.completions]
    if not any(has_pieces):
        how += " The records have no token probabilities, so there are no colours."
    elif not all(has_pieces):
        how += (
            " Completions without colours have no recorded probabilities, as only the first problems of a rollout do."
        )
    return SampledCompletions(pairs, how, any(has_pieces))


def rollout_groups(run: RunDir, path: Path) -> Groups:
    """Return the records of a rollout by problem, each with its line number. Raises RunError for damaged records."""
    groups: Groups = {}
    try:
        for line, record in enumerate(read_record(run, path), start=1):
            groups.setdefault(record["problem"], []).append((line, record))
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: a line lacks {error}. The file was altered.") from error
    if not groups:
        raise RunError(f"{path}: holds no completion. The file was altered.")
    return groups


def _choose(groups: Sequence[Groups]) -> tuple[list[tuple[str, ...]], str]:
    """Return tuples of one problem per rollout, and the selection rule."""
    first, last = groups[0], groups[-1]
    if both := [problem for problem in first if problem in last]:
        together = {problem: [line for group in groups for line in group[problem]] for problem in both}
        rule = _RULE if len(groups) == 1 else f"Problems that both rollouts have. {_RULE}"
        return [(problem,) * len(groups) for problem in _rank(together)[:MOST_PROBLEMS]], rule
    by_subgroup = [_best_by_subgroup(group) for group in groups]
    pairs = [tuple(best[name] for best in by_subgroup) for name in sorted(set.intersection(*map(set, by_subgroup)))]
    pairs.sort(key=lambda pair: sum(not _coloured(group[each]) for group, each in zip(groups, pair, strict=True)))
    if pairs:
        return pairs[:MOST_PROBLEMS], f"The rollouts have no problem in common; these are of the same kind. {_RULE}"
    best = tuple(_rank(group)[0] for group in groups)
    return [best], f"The rollouts have no problem and no kind of problem in common. {_RULE}"


def _rank(groups: Groups) -> list[str]:
    """Sort problems: those with probabilities first, then those with both correct and incorrect completions."""
    return sorted(
        groups,
        key=lambda problem: (
            not _coloured(groups[problem]),
            len({record["correct"] for _, record in groups[problem]}) < 2,
        ),
    )


def _best_by_subgroup(groups: Groups) -> dict[str, str]:
    best: dict[str, str] = {}
    for problem in _rank(groups):
        best.setdefault(str(groups[problem][0][1]["subgroup"]), problem)
    return best


def _coloured(lines: Sequence[Line]) -> bool:
    return all("pieces" in record for _, record in lines)


def _sampled(when: str, path: Path, problem: str, lines: Sequence[Line]) -> Sampled:
    selected = [next((line for line in lines if line[1]["correct"] is correct), None) for correct in (True, False)]
    record = lines[0][1]
    return Sampled(
        when=when,
        rollout=int(path.stem.rpartition("-")[2]) + 1,
        problem=to_one_line(problem),
        subgroup=to_one_line(record["subgroup"]),
        prompt=shorten(escape_control(record["prompt"]), MOST_PROMPT),
        right=sum(each["correct"] for _, each in lines),
        completions_of_problem=len(lines),
        completions=tuple(_completion(*line) for line in selected if line is not None),
    )


def _completion(number: int, record: Mapping[str, Any]) -> Completion:
    pieces, answer = _pieces(record), record.get("answer")
    if len(pieces) > HEAD + TAIL:
        left_out = sum(piece.tokens for piece in pieces[HEAD:-TAIL])
        pieces = [*pieces[:HEAD], Piece(f" … {left_out} tokens left out … ", tokens=0), *pieces[-TAIL:]]
    return Completion(
        number=number,
        correct=record["correct"],
        reason=to_one_line(record["reason"]),
        reward=finite(record.get("reward")),
        advantage=finite(record.get("advantage")),
        answer=None if answer is None else shorten(to_one_line(str(answer)), 200),
        tokens=record["tokens"],
        truncated=record["truncated"],
        text="" if pieces else cut_middle(escape_control(record["completion"])),
        pieces=tuple(pieces),
    )


def cut_middle(text: str) -> str:
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    return f"{text[:HEAD_CHARACTERS]} … {text[-TAIL_CHARACTERS:]}"


def _pieces(record: Mapping[str, Any]) -> list[Piece]:
    """Return a completion's tokens, those of one character merged; none if the record lacks them."""
    texts, pieces = record.get("pieces") or [], list[Piece]()
    # A log-prob that is not finite is recorded as None.
    if None in record.get("log_probs", ()):
        return []
    log_probability, tokens = 0.0, 0
    for index, (text, log_prob) in enumerate(zip(texts, record["log_probs"] if texts else [], strict=True)):
        log_probability, tokens = log_probability + min(0.0, log_prob), tokens + 1
        if text or index == len(texts) - 1:
            pieces.append(Piece(escape_control(text), math.exp(log_probability), tokens))
            log_probability, tokens = 0.0, 0
    return pieces


def bin_names() -> list[str]:
    ends = [*BINS[1:], 1.0]
    return [f"below {ends[0]:g}", *(f"{low:g} to {high:g}" for low, high in zip(BINS[1:], ends[1:], strict=True))]
