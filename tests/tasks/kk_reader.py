"""Knights & Knaves by other means than the project's: the English text is read by a grammar, and solved as clauses.

Nothing here uses rlvr_cli. A puzzle's text becomes one claim for each person, each claim clauses (Tseitin's encoding),
and a search that propagates unit clauses lists every solution. The project's solver works on nested tuples and tries
all assignments at once in bit masks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Clause = frozenset[int]


class Unreadable(Exception):
    """The text is not a puzzle in the public data's English."""


@dataclass(frozen=True)
class Claim:
    """``word`` is is, not, and, or, if or iff; ``is`` has a person's name and whether it is called a knight."""

    word: str
    parts: tuple[Claim, ...] = ()
    name: str = ""
    knight: bool = True


def read_puzzle(question: str) -> tuple[list[str], dict[str, Claim]]:
    """The people in the order in which they are met, and what each of them claims."""
    met = re.search(r"You meet (\d+) inhabitants: (.*?)\. ", question)
    end = question.rfind(" So who is a knight")
    if met is None or end < 0:
        raise Unreadable(question)
    names = [name.removeprefix("and ").strip() for name in met[2].split(", ")]
    if len(names) != int(met[1]):
        raise Unreadable(f"{met[1]} inhabitants, but {len(names)} names")
    claims: dict[str, Claim] = {}
    reports = re.sub(r"[\",:]|'s\b| - ", " ", question[met.end() - 1 : end])
    for report in filter(str.strip, reports.split(".")):
        speaker, claim = _report(re.findall(r"[()]|[A-Za-z]+", report), names)
        if speaker in claims:
            raise Unreadable(f"{speaker} speaks twice")
        claims[speaker] = claim
    if set(claims) != set(names):
        raise Unreadable(f"silent: {set(names) - set(claims)}")
    return names, claims


def solutions(names: Sequence[str], claims: dict[str, Claim]) -> list[tuple[bool, ...]]:
    """Every way to be knights and knaves, as the names are ordered; True = knight."""
    variables = {name: number for number, name in enumerate(names, start=1)}
    clauses: list[Clause] = []
    fresh = itertools.count(len(names) + 1)
    for name, claim in claims.items():
        truth = _encode(claim, variables, fresh, clauses)
        clauses += [frozenset({-variables[name], truth}), frozenset({variables[name], -truth})]
    found = {tuple(model[number] for number in range(1, len(names) + 1)) for model in _models(clauses, {})}
    return sorted(found)


def _report(words: list[str], names: Sequence[str]) -> tuple[str, Claim]:
    """The one person named next to the claim, and the claim: the longest that can be read from anywhere."""
    best: tuple[int, int, Claim] | None = None
    for start in range(len(words)):
        parser = _Parser(words, start, names)
        try:
            claim = parser.claim()
        except Unreadable:
            continue
        if best is None or parser.place - start > best[1] - best[0]:
            best = (start, parser.place, claim)
    if best is None:
        raise Unreadable(" ".join(words))
    speakers = [word for word in words[: best[0]] + words[best[1] :] if word in names]
    if len(speakers) != 1:
        raise Unreadable(f"{len(speakers)} speakers: {' '.join(words)}")
    return speakers[0], best[2]


class _Parser:
    """claim = `if` term `then` term | term [(and | or | if and only if) term];
    term = `(` claim `)` | `it is not the case that` term | NAME is [not] a (knight | knave)."""

    def __init__(self, words: list[str], place: int, names: Sequence[str]) -> None:
        self.words, self.place, self.names = words, place, names

    def claim(self) -> Claim:
        if self._take("if"):
            condition = self._term()
            self._need("then")
            return Claim("if", (condition, self._term()))
        left = self._term()
        for word, spelled in (("and", ["and"]), ("or", ["or"]), ("iff", ["if", "and", "only", "if"])):
            if self._take(*spelled):
                return Claim(word, (left, self._term()))
        return left

    def _term(self) -> Claim:
        if self._take("("):
            inner = self.claim()
            self._need(")")
            return inner
        if self._take("it", "is", "not", "the", "case", "that"):
            return Claim("not", (self._term(),))
        name = self.words[self.place] if self.place < len(self.words) else ""
        if name not in self.names:
            raise Unreadable(name)
        self.place += 1
        self._need("is")
        denied = self._take("not")
        self._need("a")
        knight = self._take("knight")
        if not knight:
            self._need("knave")
        claim = Claim("is", name=name, knight=knight)
        return Claim("not", (claim,)) if denied else claim

    def _take(self, *words: str) -> bool:
        here = [word.lower() for word in self.words[self.place : self.place + len(words)]]
        if here != list(words):
            return False
        self.place += len(words)
        return True

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise Unreadable(word)


def _encode(claim: Claim, variables: dict[str, int], fresh: Iterator[int], clauses: list[Clause]) -> int:
    """The literal that is true exactly when the claim is; its meaning is added to ``clauses``."""
    if claim.word == "is":
        return variables[claim.name] if claim.knight else -variables[claim.name]
    literals = [_encode(part, variables, fresh, clauses) for part in claim.parts]
    if claim.word == "not":
        return -literals[0]
    if claim.word == "if":
        literals[0] = -literals[0]
    left, right = literals
    new = next(fresh)
    meaning = {
        "and": [(-new, left), (-new, right), (new, -left, -right)],
        "or": [(new, -left), (new, -right), (-new, left, right)],
        "if": [(new, -left), (new, -right), (-new, left, right)],
        "iff": [(-new, -left, right), (-new, left, -right), (new, left, right), (new, -left, -right)],
    }[claim.word]
    clauses += [frozenset(clause) for clause in meaning]
    return new


def _models(clauses: list[Clause], known: dict[int, bool]) -> Iterator[dict[int, bool]]:
    """Every assignment of the variables in ``clauses`` that makes all of them true (DPLL)."""
    known = dict(known)
    while True:
        remaining = []
        for clause in clauses:
            if any(known.get(abs(literal)) == (literal > 0) for literal in clause):
                continue
            unknown = frozenset(literal for literal in clause if abs(literal) not in known)
            if not unknown:
                return
            remaining.append(unknown)
        units = [next(iter(clause)) for clause in remaining if len(clause) == 1]
        if not units:
            break
        for literal in units:
            if known.setdefault(abs(literal), literal > 0) != (literal > 0):
                return
        clauses = remaining
    if not remaining:
        yield known
        return
    chosen = min(abs(literal) for clause in remaining for literal in clause)
    for value in (True, False):
        yield from _models(remaining, {**known, chosen: value})
