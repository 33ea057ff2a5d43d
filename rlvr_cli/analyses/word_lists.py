"""Lists of kinds of words: read from YAML, and compiled to one regular expression a kind. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from rlvr_cli.config.schema import FromList
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path
from rlvr_cli.core.section import Section, Text
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import Document, YamlProblem, parse, read_text

TABLE_5 = Path(__file__).with_name("words.yaml")
# Characters that `...` stands for, at most: without a bound, a text of nothing but "if" takes quadratic time.
LONGEST_GAP = 200
GAP = "..."
MOST_KINDS = 12
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_Words = Annotated[tuple[Text, ...], FromList]


class Kind(Section):
    """The words of one kind."""

    verbs: _Words = Field((), description="Counted with past tense and past participle, on the first word.")
    nouns: _Words = Field((), description="Counted with the plural, on the last word.")
    words: _Words = Field((), description="Counted as they stand.")

    def forms(self) -> tuple[str, ...]:
        """Every form that is counted, each once."""
        found = [*self.words]
        for verb in self.verbs:
            first, space, rest = verb.partition(" ")
            found += [verb, f"{past(first)}{space}{rest}"]
        for noun in self.nouns:
            rest, space, last = noun.rpartition(" ")
            found += [noun, f"{rest}{space}{plural(last)}"]
        return tuple(dict.fromkeys(form.lower() for form in found))


def read_lists(path: Path | None) -> dict[str, Kind]:
    """The kinds of words by their names, in the order of the file; None for those of AR-Lopti's table 5.

    Raises:
        UserError: everything that is wrong with the file, with its lines.
    """
    source = TABLE_5 if path is None else path
    try:
        document = parse(read_text(source))
    except YamlProblem as problem:
        raise UserError(f"{source}{_line(problem.line)}  {problem.message}") from None
    problems: list[str] = []
    lists = _checked(source, document, problems)
    if problems:
        raise UserError(problems)
    return lists


def find_lists(name: str | None) -> Path | None:
    """The file of the key `lists`. Raises UserError for a path that cannot be one."""
    return None if name is None else local_path(name)


def compiled(kind: Kind) -> re.Pattern[str]:
    """One expression for all forms of a kind, for lower-case text; the longest form that fits is counted, once."""
    forms = sorted(kind.forms(), key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(_pattern, forms))})(?!\w)")


def past(verb: str) -> str:
    """The regular past tense, which is the past participle too."""
    if verb.endswith("e"):
        return f"{verb}d"
    if re.search(r"[^aeiou]y$", verb):
        return f"{verb[:-1]}ied"
    return f"{verb}ed"


def plural(noun: str) -> str:
    """The regular plural."""
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return f"{noun}es"
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def _parts(form: str) -> list[str]:
    return form.replace("\u2026", GAP).replace(GAP, f" {GAP} ").split()


def _pattern(form: str) -> str:
    pattern, glue = "", ""
    for part in _parts(form):
        if part == GAP:
            pattern, glue = rf"{pattern}\b[^.?!\n]{{0,{LONGEST_GAP}}}?\b", ""
        else:
            # A straight apostrophe stands for a curly one too.
            word = re.escape(part).replace(r"\*", r"\w+").replace("'", "['\u2019]")
            pattern, glue = f"{pattern}{glue}{word}", r"\s+"
    return pattern


def _checked(source: Path, document: Document, problems: list[str]) -> dict[str, Kind]:
    def at(*place: Any) -> str:
        known = (document.lines.get(place[:end]) for end in range(len(place), -1, -1))
        return f"{source}{_line(next((line for line in known if line is not None), None))}"

    data = document.data
    if not isinstance(data, dict) or not data:
        problems.append(f"{source}  must be a mapping of kinds of words, as `doubt: {{words: [maybe, perhaps]}}`.")
        return {}
    if len(data) > MOST_KINDS:
        problems.append(f"{source}  has {len(data)} kinds of words; at most {MOST_KINDS} can be shown.")
    lists = {}
    for name, value in data.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(f"{at(name)}  {name}: a kind's name is a small letter, then small letters, digits and _.")
            continue
        try:
            lists[name] = Kind.model_validate(value)
        except ValidationError as error:
            for detail in error.errors(include_url=False, include_context=False):
                problems.append(f"{at(name, *detail['loc'])}  {_said(name, detail['loc'], detail['type'])}")
            continue
        problems += [f"{at(name)}  {name}: {text}" for text in _faults(lists[name])]
    return lists


def _said(name: str, loc: Sequence[Any], kind: str) -> str:
    keys = ", ".join(Kind.model_fields)
    if kind == "extra_forbidden":
        return f"{name}.{loc[0]}: unknown key.{did_you_mean(str(loc[0]), Kind.model_fields)} There are: {keys}."
    if not loc:
        return f"{name}: must be a mapping with some of {keys}, each a list of words."
    return f"{name}.{loc[0]}: must be a list of words."


def _faults(kind: Kind) -> list[str]:
    if not kind.forms():
        return ["has no word."]
    faults = []
    for form in (*kind.verbs, *kind.nouns, *kind.words):
        parts = _parts(form)
        if not any(re.search(r"\w", part) for part in parts):
            faults.append(f"`{form}`: has no word in it.")
        elif not all(re.match(r"[\w*]", part) for part in (parts[0], parts[-1])):
            faults.append(f"`{form}`: must begin and end with a word or `*`; `...` stands between two.")
    return faults


def _line(line: int | None) -> str:
    return "" if line is None else f":{line}"
