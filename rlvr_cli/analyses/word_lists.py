"""Word lists: read from YAML and compiled to one regular expression per kind of words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.recipes import config_file, read_config
from rlvr_cli.core.section import FromList, Section, Text
from rlvr_cli.core.yaml import YamlProblem, parse

TABLE_5 = Path(__file__).with_name("words.yaml")
# Characters that `...` may match: unbounded, a completion of repeated "if" takes quadratic time.
LONGEST_GAP = 200
GAP = "..."
MOST_KINDS = 12
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_Words = Annotated[tuple[Text, ...], FromList, Field(title="a list of words")]


class WordKind(Section):
    """The words of one kind."""

    verbs: _Words = Field((), description="Counted with past tense and past participle, on the first word.")
    nouns: _Words = Field((), description="Counted with the plural, on the last word.")
    words: _Words = Field((), description="Counted verbatim.")

    def forms(self) -> tuple[str, ...]:
        forms = [*self.words]
        for verb in self.verbs:
            first, space, rest = verb.partition(" ")
            forms += [verb, f"{past_tense(first)}{space}{rest}"]
        for noun in self.nouns:
            rest, space, last = noun.rpartition(" ")
            forms += [noun, f"{rest}{space}{plural(last)}"]
        return tuple(dict.fromkeys(form.lower() for form in forms))


def read_lists(path: Path | None) -> dict[str, WordKind]:
    """Return the kinds of words in file order, by default AR-Lopti's table 5. Raises UserError with all problems."""
    source = TABLE_5 if path is None else config_file(path)
    try:
        document = parse(read_config(source))
    except YamlProblem as problem:
        raise UserError(f"{problem.location(source)}  {problem.message}") from None
    if not isinstance(document.data, dict) or not document.data:
        raise UserError(f"{source}  must map names to kinds of words, as in `doubt: {{words: [maybe, perhaps]}}`.")
    problems, lists = list[str](), dict[str, WordKind]()
    if len(document.data) > MOST_KINDS:
        problems.append(f"{source}  must have at most {MOST_KINDS} kinds of words; got {len(document.data)}.")
    for name, value in document.data.items():
        at = document.location(source, (name,))
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.append(f"{at}  {name}: must start with a lower-case letter and hold only a-z, 0-9 and _.")
            continue
        kind, errors = read_section(WordKind, value)
        for error in errors:
            key = ".".join([name, *map(str, error.path)])
            problems.append(f"{document.location(source, (name, *error.value_path))}  {key}: {error.message}")
        if kind is not None:
            lists[name] = kind
            problems += [f"{at}  {name}: {message}" for message in _validate(kind)]
    if problems:
        raise UserError(problems)
    return lists


def compile_kind(kind: WordKind) -> re.Pattern[str]:
    forms = sorted(kind.forms(), key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(_form_pattern, forms))})(?!\w)")


def past_tense(verb: str) -> str:
    if verb.endswith("e"):
        return f"{verb}d"
    if re.search(r"[^aeiou]y$", verb):
        return f"{verb[:-1]}ied"
    return f"{verb}ed"


def plural(noun: str) -> str:
    if re.search(r"(s|x|z|ch|sh)$", noun):
        return f"{noun}es"
    if re.search(r"[^aeiou]y$", noun):
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def _split_form(form: str) -> list[str]:
    return form.replace("\u2026", GAP).replace(GAP, f" {GAP} ").split()


def _form_pattern(form: str) -> str:
    pattern, glue = "", ""
    for word in _split_form(form):
        if word == GAP:
            pattern, glue = rf"{pattern}\b[^.?!\n]{{0,{LONGEST_GAP}}}?\b", ""
        else:
            # A straight apostrophe matches a curly one too.
            escaped = re.escape(word).replace(r"\*", r"\w+").replace("'", "['\u2019]")
            pattern, glue = f"{pattern}{glue}{escaped}", r"\s+"
    return pattern


def _validate(kind: WordKind) -> list[str]:
    if not kind.forms():
        return ["must have at least one word."]
    errors = []
    for form in (*kind.verbs, *kind.nouns, *kind.words):
        words = _split_form(form)
        if not any(re.search(r"\w", word) for word in words):
            errors.append(f"`{form}`: must contain a word.")
        elif not all(re.match(r"[\w*]", word) for word in (words[0], words[-1])):
            errors.append(f"`{form}`: must begin and end with a word or `*`; use `...` between words.")
    return errors
