"""The two rules for parsing Knights & Knaves' answers, and the reward of Logic-RL.

The reward and `logic_rl`'s parser follow the public code: Logic-RL (Xie et al. 2025) and AR-Lopti (Yang et al. 2025,
appendix C.1.1 and table 4), `reward_score/kk.py`. The paper's table calls -2 "completely wrong"; in the code, and here,
-2 is the reward of an unparsable answer, and every parsable wrong answer scores -1.5.

`strict` parses the meaning, not the spelling. It has a closed vocabulary: a text with any other word, with a missing or
unknown person, or with contradictory statements is refused, since a lenient parser could be exploited for reward. Both
take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from rlvr_cli.tasks import kk_compact as compact
from rlvr_cli.tasks.answers import TAG, last_tagged
from rlvr_cli.tasks.problem import Verdict

FORMAT_RIGHT, FORMAT_WRONG = 1.0, -1.0
ANSWER_RIGHT, ANSWER_WRONG, ANSWER_UNREADABLE = 2.0, -1.5, -2.0

REASONS = ("correct", "wrong", "no_answer", "bad_format", "too_long")

# Prepended to a response, as in Logic-RL's chat prompt.
RESPONSE_HEADER = "<|im_start|>assistant\n<think>"

_TAG_ORDER = ("<think>", "</think>", "<answer>", "</answer>")

_BLOCK = [("/", "think"), ("", "answer"), ("/", "answer")]

# Typographic apostrophes, dashes and arrows -> ASCII.
_ASCII = str.maketrans({"\u2019": "'", "\u2013": "-", "\u2014": "-", "\u2192": "->", "\u21d2": "->", "\u2022": "*"})
_WORD = r"[^\W\d_]+(?:'[^\W\d_]+)?"
_ARROW = r"[-=]{1,3}+>"
# Between a name and its role a colon; between two claims "implies" or "equals".
_JOIN = re.compile(rf"{_ARROW}|[=>]")
_HEADING = ("=", ">")
# A horizontal rule or the line below a table's header, and a quotation of the whole answer.
_RULE = re.compile(r"^[^\S\n]*[|:+*_=-](?:[^\S\n]*[|:+*_=-]){2,}[^\S\n]*$", re.MULTILINE)
_QUOTED = re.compile(r"\s*>[^\n]*(?:\n\s*>[^\n]*)*\s*")
_QUOTE = re.compile(r"^\s*>", re.MULTILINE)
_NUMBERING = re.compile(r"\(?\b\d{1,2}[.):]")
# Characters of an answer block, far above those of eight people.
_MAX_ANSWER = 10_000

_ROLES = {"knight": True, "knights": True, "knave": False, "knaves": False}
_NEGATION = re.compile(r"not|isn't|aren't|isnt|arent|cannot")
_GROUP_WORD = re.compile(r"are|both|all|aren't|arent|knights|knaves")
# Ambiguous with a negation: "not both knights" allows one knight.
_QUANTIFIER = re.compile(r"both|all|each|every")
# These refer to people without naming them.
_GENERAL = re.compile(r"both|all|each|every|person|people|characters?|inhabitants?")
_PEOPLE = re.compile(r"person|people|characters?|inhabitants?")
_AND = ("and", "&", "also")
_VERB = re.compile(r"is|are|was|be|must")
# Words after a denied role that begin a new claim: `not a knave but a knight`.
_APART = re.compile(r"is|are|was|be|must|but|so|thus|hence|therefore|[-.;:(|*]")
_NO_PERSON = re.compile(r"none|nobody")
_FILLER = re.compile(
    r"is|are|was|be|must|a|an|the|and|but|also|so|thus|hence|therefore|both|all|of|each|every|final|answers?|solution"
    r"|conclusion|results?|identity|identities|roles?|names?|person|people|characters?|inhabitants?"
    r"|[-,;.:=>*_`#|()\[\]&]"
)


@dataclass(frozen=True)
class ParsedRoles:
    """A parsed response: whether its format is valid, and each person's role (True = knight) or None."""

    format_ok: bool
    roles: tuple[bool, ...] | None


def read_logic_rl(response: str, names: Sequence[str]) -> ParsedRoles:
    text = _strip_header(RESPONSE_HEADER + response)
    format_ok = _has_valid_format(text)
    answer = last_tagged(text) if format_ok else None
    return ParsedRoles(format_ok, _parse_paper_roles(answer, names) if answer else None)


def read_compact(response: str, people: int) -> ParsedRoles:
    if not compact.has_valid_format(response):
        return ParsedRoles(False, None)
    roles = compact.parse_answer(response)
    return ParsedRoles(True, roles if roles is not None and len(roles) == people else None)


def roles_verdict(reading: ParsedRoles, solution: Sequence[bool], *, truncated: bool = False) -> Verdict:
    """Judge a parsed response. ``too_long``: it reached the token limit before a parsable answer.

    The components: format +1 or -1; answer +2 correct, -1.5 wrong, -2 unparsable (or invalid format).
    """
    roles = reading.roles if reading.format_ok else None
    correct = roles == tuple(solution)
    components = {"format": FORMAT_RIGHT if reading.format_ok else FORMAT_WRONG, "answer": ANSWER_UNREADABLE}
    if roles is not None:
        components["answer"] = ANSWER_RIGHT if correct else ANSWER_WRONG
        reason = "correct" if correct else "wrong"
    elif truncated:
        reason = "too_long"
    else:
        reason = "no_answer" if reading.format_ok else "bad_format"
    answer = None if roles is None else compact.roles_text(roles)
    return Verdict(sum(components.values()), components, correct, answer, reason)


def _strip_header(text: str) -> str:
    for header in ("Assistant:", "<|im_start|>assistant"):
        if header in text:
            return text.partition(header)[2]
    return text


def _has_valid_format(text: str) -> bool:
    positions = [text.find(tag) for tag in _TAG_ORDER]
    return positions == sorted(positions) and all(text.count(tag) == 1 for tag in _TAG_ORDER)


def _parse_paper_roles(answer: str, names: Sequence[str]) -> tuple[bool, ...] | None:
    lowered = answer.lower()
    if lowered.count("knight") + lowered.count("knave") != len(names):
        return None
    roles = []
    for name in names:
        match = re.search(rf"\b{re.escape(name)}\b\s+is\s+a\s+\b(knight|knave)\b", answer, re.IGNORECASE)
        if match is None:
            return None
        roles.append(match[1].lower() == "knight")
    return tuple(roles)


def read_roles(response: str, names: Sequence[str], *, letters: bool = False) -> ParsedRoles:
    """Parse a response to a prompt that ends with ``<think>``.

    Args:
        names: the people, in order. letters: also accept a word of K and N in their order.

    Format: exactly the tags ``</think>``, ``<answer>``, ``</answer>`` in this order, optionally after a repeated
    ``<think>`` at the beginning; letter case and white space inside a tag are ignored. Linear time.
    """
    # Stop at the first excess tag; the first tag is optional.
    tags = list(islice(TAG.finditer(response), len(_BLOCK) + 2))
    if tags and (tags[0][1], tags[0][2].lower()) == ("", "think") and not response[: tags[0].start()].strip():
        tags = tags[1:]
    if [(tag[1], tag[2].lower()) for tag in tags] != _BLOCK:
        return ParsedRoles(False, None)
    answer = response[tags[1].end() : tags[2].start()]
    if letters and re.fullmatch(r"\s*+(?:[KN]\s*+)++", answer):
        roles = tuple(letter == "K" for letter in answer if letter in "KN")
        return ParsedRoles(True, roles if len(roles) == len(names) else None)
    return ParsedRoles(True, _parse_roles(answer, names) if len(answer) <= _MAX_ANSWER else None)


def _parse_roles(answer: str, names: Sequence[str]) -> tuple[bool, ...] | None:
    """Return each person's role; None unless the text assigns each exactly one."""
    claims = _parse_claims(_tokenize(answer, names))
    if claims is None:
        return None
    roles: dict[int, bool] = {}
    for person, role in claims:
        if roles.setdefault(person, role) != role:
            return None
    return tuple(roles[person] for person in range(len(names))) if len(roles) == len(names) else None


def _tokenize(answer: str, names: Sequence[str]) -> list[int | str]:
    """Split into people as numbers, lower-case words and single signs, without numbering."""
    people = {name.casefold(): number for number, name in enumerate(names)}
    longest_first = sorted(names, key=len, reverse=True)
    pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest_first)
    text = _RULE.sub("", _NUMBERING.sub("\n", answer.translate(_ASCII)))
    if _QUOTED.fullmatch(text):
        text = _QUOTE.sub("", text)
    words = re.finditer(rf"{pattern}|{_WORD}|{_ARROW}|\|\||\S", text, re.IGNORECASE)
    return [people.get(match[0].casefold(), match[0].lower()) for match in words]


def _parse_claims(tokens: Sequence[int | str]) -> list[tuple[int, bool]] | None:
    """Return (person, role) pairs; None for an unknown word or an incomplete sentence."""
    first = next((token for token in tokens if isinstance(token, int) or token in _ROLES), None)
    if first is None:
        return None
    return _parse_name_first(tokens) if isinstance(first, int) else _parse_role_first(tokens)


def _parse_name_first(tokens: Sequence[int | str]) -> list[tuple[int, bool]] | None:
    """Parse names followed by roles: `Zoey: knight`, `Zoey and Mia are not knaves`, `Zoey is a knight, not a knave`."""
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
            # `all people are knaves`, `Zoey and all are knights`; `not a knave and a knight` may deny both.
            if general or (open_denial and not negated):
                return None
            # A second role of the same person, as in `knaves are all people`, may refer to others.
            if affirmed and not negated:
                return None
            claims += [(subject, _ROLES[token] != negated) for subject in subjects]
            open_denial, affirmed = negated, affirmed or not negated
            negated, described, quantified = False, True, False
        elif _JOIN.fullmatch(token):
            # Between a name and its role it is a colon; after a claim, an implication.
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


def _parse_role_first(tokens: Sequence[int | str]) -> list[tuple[int, bool]] | None:
    """Parse roles followed by names: `Knights: Zoey, Mia. Knaves: Oliver`, `The knights are Zoey; knaves: none`."""
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
        elif _NO_PERSON.fullmatch(token):
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
