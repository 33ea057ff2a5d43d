"""The strict verdict's reading of a response: what it means, not how it is spelled.

Only a closed vocabulary is understood. A text with any other word, with a person missing or unknown, or with
statements that disagree is refused: a reader that guesses could be talked into a reward.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from rlvr_cli.tasks.kk.reward import ParsedRoles

_TAG = re.compile(r"<\s*+(/?)\s*+(think|answer)\s*+>", re.IGNORECASE)
_BLOCK = [("/", "think"), ("", "answer"), ("/", "answer")]

# Typographic apostrophes, dashes and arrows, read as their plain forms.
_SPELLINGS = str.maketrans({"\u2019": "'", "\u2013": "-", "\u2014": "-", "\u2192": "->", "\u21d2": "->", "\u2022": "*"})
_WORD = r"[^\W\d_]+(?:'[^\W\d_]+)?"
_ARROW = r"[-=]{1,3}+>"
# A colon where they stand between a name and its role; between two claims they say "implies" or "equals".
_JOIN = re.compile(rf"{_ARROW}|[=>]")
_HEADING = ("=", ">")
# A rule or the line below a table's header, and a quotation that holds the whole answer.
_RULE = re.compile(r"^[^\S\n]*[|:+*_=-](?:[^\S\n]*[|:+*_=-]){2,}[^\S\n]*$", re.MULTILINE)
_QUOTED = re.compile(r"\s*>[^\n]*(?:\n\s*>[^\n]*)*\s*")
_QUOTE = re.compile(r"^\s*>", re.MULTILINE)
_NUMBERING = re.compile(r"\(?\b\d{1,2}[.):]")
# Eight people fit many times over; a longer block is not an answer.
_MAX_ANSWER = 10_000

_ROLES = {"knight": True, "knights": True, "knave": False, "knaves": False}
_NEGATION = re.compile(r"not|isn't|aren't|isnt|arent|cannot")
_GROUP_WORD = re.compile(r"are|both|all|aren't|arent|knights|knaves")
# With a negation these leave open who is meant: one of "not both knights" may be a knight.
_QUANTIFIER = re.compile(r"both|all|each|every")
# These speak of people without naming them.
_GENERAL = re.compile(r"both|all|each|every|person|people|characters?|inhabitants?")
_PEOPLE = re.compile(r"person|people|characters?|inhabitants?")
_AND = ("and", "&", "also")
_VERB = re.compile(r"is|are|was|be|must")
# Between a denied role and a role, what makes the second one a claim of its own: `not a knave but a knight`.
_APART = re.compile(r"is|are|was|be|must|but|so|thus|hence|therefore|[-.;:(|*]")
_NOBODY = re.compile(r"none|nobody")
_FILLER = re.compile(
    r"is|are|was|be|must|a|an|the|and|but|also|so|thus|hence|therefore|both|all|of|each|every|final|answers?|solution"
    r"|conclusion|results?|identity|identities|roles?|names?|person|people|characters?|inhabitants?"
    r"|[-,;.:=>*_`#|()\[\]&]"
)


def read_roles(response: str, names: Sequence[str], *, letters: bool = False) -> ParsedRoles:
    """Read what a model wrote after a prompt that ends with ``<think>``.

    Args:
        names: the people, in order. letters: whether a bare word of K and N in their order is an answer too.

    Format: the tags ``</think>``, ``<answer>``, ``</answer>`` in this order and no others, apart from one repeated
    ``<think>`` at the very beginning; letter case and white space inside a tag do not count. Time is linear.
    """
    # One tag too many is enough to refuse it, however many a model wrote; the first may be left out.
    tags = list(islice(_TAG.finditer(response), len(_BLOCK) + 2))
    if tags and (tags[0][1], tags[0][2].lower()) == ("", "think") and not response[: tags[0].start()].strip():
        tags = tags[1:]
    if [(tag[1], tag[2].lower()) for tag in tags] != _BLOCK:
        return ParsedRoles(False, None)
    answer = response[tags[1].end() : tags[2].start()]
    if letters and re.fullmatch(r"\s*+(?:[KN]\s*+)++", answer):
        roles = tuple(letter == "K" for letter in answer if letter in "KN")
        return ParsedRoles(True, roles if len(roles) == len(names) else None)
    return ParsedRoles(True, _roles(answer, names) if len(answer) <= _MAX_ANSWER else None)


def _roles(answer: str, names: Sequence[str]) -> tuple[bool, ...] | None:
    """Each person's role; None when the text says anything but exactly one role for each."""
    claims = _claims(_tokens(answer, names))
    if claims is None:
        return None
    roles: dict[int, bool] = {}
    for person, role in claims:
        if roles.setdefault(person, role) != role:
            return None
    return tuple(roles[person] for person in range(len(names))) if len(roles) == len(names) else None


def _tokens(answer: str, names: Sequence[str]) -> list[int | str]:
    """People as numbers, other words in lower case, other signs one by one; numbering is dropped."""
    people = {name.casefold(): number for number, name in enumerate(names)}
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest_first)
    text = _RULE.sub("", _NUMBERING.sub("\n", answer.translate(_SPELLINGS)))
    if _QUOTED.fullmatch(text):
        text = _QUOTE.sub("", text)
    found = re.finditer(rf"{pattern}|{_WORD}|{_ARROW}|\|\||\S", text, re.IGNORECASE)
    return [people.get(match[0].casefold(), match[0].lower()) for match in found]


def _claims(tokens: Sequence[int | str]) -> list[tuple[int, bool]] | None:
    """(person, role) pairs; None when a word is not understood or a sentence is incomplete."""
    first = next((token for token in tokens if isinstance(token, int) or token in _ROLES), None)
    if first is None:
        return None
    return _name_first(tokens) if isinstance(first, int) else _role_first(tokens)


def _name_first(tokens: Sequence[int | str]) -> list[tuple[int, bool]] | None:
    """Read names followed by roles: `Zoey: knight`, `Zoey and Mia are not knaves`, `Zoey is a knight, not a knave`."""
    claims: list[tuple[int, bool]] = []
    subjects: list[int] = []
    joined = negated = described = denied = quantified = general = open_denial = affirmed = False
    before: int | str = ""
    for token in tokens:
        if isinstance(token, int):
            if described or not subjects:
                subjects, joined, described, denied = [], False, False, False
            if negated:
                return None
            subjects.append(token)
            general = open_denial = affirmed = False
        elif _NEGATION.fullmatch(token):
            if negated or not subjects:
                return None
            negated, joined = True, joined or bool(_GROUP_WORD.fullmatch(token))
            denied = denied or len(subjects) > 1
        elif token in _ROLES:
            joined = joined or bool(_GROUP_WORD.fullmatch(token))
            if not subjects or (len(subjects) > 1 and not joined and not described):
                return None
            if negated and quantified and len(subjects) > 1:
                return None
            # `all people are knaves`, `Zoey and all are knights`; `not a knave and a knight` may deny both at once.
            if general or (open_denial and not negated):
                return None
            # A second role of the same person, `knaves are all people`, may be said of others.
            if affirmed and not negated:
                return None
            claims += [(subject, _ROLES[token] != negated) for subject in subjects]
            open_denial, affirmed = negated, affirmed or not negated
            negated, described, quantified = False, True, False
        elif _JOIN.fullmatch(token):
            # Between a name and its role it is a colon; after a claim it says what the claim implies.
            if described or (not subjects and token not in _HEADING):
                return None
        elif _FILLER.fullmatch(token):
            joined = joined or bool(_GROUP_WORD.fullmatch(token))
            quantified = quantified or bool(_QUANTIFIER.fullmatch(token))
            if quantified and denied and described:
                return None
            if subjects and _GENERAL.fullmatch(token):
                alone = described or len(subjects) == 1 or before in _AND
                general = general or alone or _PEOPLE.fullmatch(token) is not None
            open_denial = open_denial and not _APART.fullmatch(token)
        else:
            return None
        before = token
    return claims if described and not negated else None


def _role_first(tokens: Sequence[int | str]) -> list[tuple[int, bool]] | None:
    """Read roles followed by names: `Knights: Zoey, Mia. Knaves: Oliver`, `The knights are Zoey, Mia; knaves: none`."""
    claims: list[tuple[int, bool]] = []
    role: bool | None = None
    listed = True
    general = verb = False
    for token in tokens:
        if isinstance(token, int):
            if role is None:
                return None
            claims.append((token, role))
            listed, verb = True, False
        elif token in _ROLES:
            # `Zoey is a knight` among lists, and `all people are knaves`.
            if not listed or general or (verb and role is not None):
                return None
            role, listed = _ROLES[token], False
        elif _JOIN.fullmatch(token):
            if listed and (role is not None or token not in _HEADING):
                return None
        elif _NOBODY.fullmatch(token):
            if listed:
                return None
            listed = True
        elif not _FILLER.fullmatch(token):
            return None
        elif token != "both" and _GENERAL.fullmatch(token):
            if role is not None:
                return None
            general = True
        else:
            # A heading: `the roles of all people: ...`.
            general = general and token != ":"
            verb = verb or (listed and _VERB.fullmatch(token) is not None)
    return claims if listed else None
