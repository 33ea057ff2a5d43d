"""Worked solutions of Knights & Knaves in English: implications, suppositions, contradictions."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from rlvr_cli.core.text import join_and
from rlvr_cli.tasks.kk_puzzles import KKPuzzle, claim_text, holds, people_in

Roles = dict[int, bool]

# Derivations with possibly wrong suppositions, before a last one with correct ones.
_ATTEMPTS = 4


def write_solutions(puzzle: KKPuzzle, rng: random.Random) -> Iterator[str]:
    """Yield correct responses in Logic-RL's format to a prompt ending in ``<think>``; the last is short.

    Every sentence of the reasoning is true under the suppositions so far.
    """
    answer = "\n".join(
        f"({number}) {_fact(puzzle, person, role)}"
        for number, (person, role) in enumerate(enumerate(puzzle.solution), start=1)
    )
    for attempt in range(_ATTEMPTS + 1):
        reasoning = _Derivation(puzzle, rng, may_err=attempt < _ATTEMPTS).derive()
        yield f" {reasoning} </think><answer> {answer} </answer>"


def _role(knight: bool) -> str:
    return "knight" if knight else "knave"


def _fact(puzzle: KKPuzzle, person: int, knight: bool) -> str:
    return f"{puzzle.names[person]} is a {_role(knight)}"


class _Derivation:
    """A search for the roles: propagate implications, then suppose a role, the correct one unless ``may_err``."""

    def __init__(self, puzzle: KKPuzzle, rng: random.Random, *, may_err: bool) -> None:
        self.puzzle, self.rng, self.may_err = puzzle, rng, may_err
        self.sentences: list[str] = []
        self.involved = [
            sorted({speaker, *people_in(statement)}) for speaker, statement in enumerate(puzzle.statements)
        ]
        self.claims = [claim_text(statement, puzzle.names).replace("If ", "if ") for statement in puzzle.statements]

    def derive(self) -> str:
        roles = self._search({})
        assert roles is not None
        facts = join_and([_fact(self.puzzle, person, roles[person]) for person in sorted(roles)])
        return " ".join([*self.sentences, f"This agrees with every statement, so {facts}."])

    def _search(self, assigned: Roles) -> Roles | None:
        """Extend ``assigned`` to all roles; return None after a contradiction."""
        while self._propagate(assigned):
            unknown = [person for person in range(len(self.puzzle.names)) if person not in assigned]
            if not unknown:
                return assigned
            person = unknown[0]
            role = self.rng.random() < 0.5 if self.may_err else self.puzzle.solution[person]
            self.sentences.append(f"Suppose {_fact(self.puzzle, person, role)}.")
            if (roles := self._search({**assigned, person: role})) is not None:
                return roles
            assigned[person] = not role
            self.sentences.append(f"So {_fact(self.puzzle, person, not role)}.")
        return None

    def _propagate(self, assigned: Roles) -> bool:
        """Add to ``assigned`` the implications of single statements; return False after a contradiction."""
        waiting = list(range(len(self.puzzle.names)))
        while waiting:
            speaker = waiting.pop(0)
            unknown = [person for person in self.involved[speaker] if person not in assigned]
            possible = list(self._consistent_roles(speaker, assigned, unknown))
            if not possible:
                self._write_contradiction(speaker, assigned)
                return False
            implied = {
                person: possible[0][person] for person in unknown if len({roles[person] for roles in possible}) == 1
            }
            if implied:
                self._write_implication(speaker, assigned, implied)
                assigned |= implied
                waiting = [
                    other
                    for other in range(len(self.puzzle.names))
                    if other in waiting or not implied.keys().isdisjoint(self.involved[other])
                ]
        return True

    def _consistent_roles(self, speaker: int, assigned: Roles, unknown: list[int]) -> Iterator[Roles]:
        for values in itertools.product((True, False), repeat=len(unknown)):
            roles = dict(zip(unknown, values, strict=True))
            everybody = [roles.get(person, assigned.get(person, True)) for person in range(len(self.puzzle.names))]
            if holds(self.puzzle.statements[speaker], everybody) == everybody[speaker]:
                yield roles

    def _write_implication(self, speaker: int, assigned: Roles, implied: Roles) -> None:
        name, claim = self.puzzle.names[speaker], self.claims[speaker]
        facts = join_and([_fact(self.puzzle, person, role) for person, role in implied.items()])
        if assigned.get(speaker) and claim == facts:
            self.sentences.append(f"As {name} is a knight, {facts}.")
        elif speaker in assigned:
            truth = "true" if assigned[speaker] else "false"
            self.sentences.append(f"As {name} is a {_role(assigned[speaker])}, it is {truth} that {claim}, so {facts}.")
        elif speaker in implied:
            truth = "true" if implied[speaker] else "false"
            self.sentences.append(f"{name} said that {claim}, which can only be {truth}, so {facts}.")
        else:
            self.sentences.append(f"{name} said that {claim}; be that true or false, {facts}.")

    def _write_contradiction(self, speaker: int, assigned: Roles) -> None:
        name, claim = self.puzzle.names[speaker], self.claims[speaker]
        if speaker in assigned:
            truth, role = ("false", "knight") if assigned[speaker] else ("true", "knave")
            self.sentences.append(
                f"But then it is {truth} that {claim}, and {name}, a {role}, said so: a contradiction."
            )
        else:
            self.sentences.append(f"But {name}, who said that {claim}, could then be neither: a contradiction.")
