r"""reasoning-gym's verdicts on `knights_knaves` and `countdown` against ours, with every disagreement by its cause.

    python -m benchmarks.rg_verdicts [--count 1000] [--problems 200] [--seed 0]

Needs reasoning-gym. For each of the two, `--count` responses to `--problems` of its problems, in the ways in which
models write answers: those of `benchmarks/rules_texts.py`, and some that matter here. Both judge the same text; right
is a score of 1 there and `correct` here. Where our task would have its prompt asked for `<think>`, the response has it.

reasoning-gym calls knights and knaves saints and sinners, heroes and villains, ..., another pair in each puzzle.
Responses are written with these. Ours knows knights and knaves alone, so it judges the text with the puzzle's words
(`metadata["knight_knave_terms"]`) put back; the first table has the figures without that too. Prints Markdown.
"""

from __future__ import annotations

import argparse
import random
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.rules_texts import Answers, Style, styles
from rlvr_cli.config.load import choose_task
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.rg import ReasoningGym

RULES = ("paper", "strict")
# Their data set -> our task, and the options with which problems are drawn.
PAIRS: dict[str, tuple[str, list[dict[str, int]]]] = {
    "knights_knaves": ("kk", [{"n_people": people} for people in (2, 3, 4)]),
    "countdown": ("countdown", [{}]),
}
_ROLE = re.compile(r"\b(an? )?(knight|knave)(s?)\b", re.IGNORECASE)
# Written with words of its own, whatever the puzzle calls its people.
_OTHER, _OURS = "the roles of another puzzle", "`knight` and `knave` in a puzzle of others"


@dataclass(frozen=True)
class Response:
    """A way of writing an answer to a problem, in the words of the problem, and in ours."""

    style: Style
    problem: Problem
    text: str
    ours: str


def ways(name: str) -> list[Style]:
    """The ways of writing of a data set."""
    return [*styles(PAIRS[name][0]), *(_more_people() if name == "knights_knaves" else _more_sums())]


def _more_people() -> list[Style]:
    def block(answer: str) -> str:
        return f" Hm. </think><answer>{answer}</answer>"

    def pairs(a: Answers) -> list[tuple[str, bool]]:
        names, solution = a.data["names"], a.data["solution"]
        assert isinstance(names, list) and isinstance(solution, list)
        return list(zip(names, solution, strict=True))

    def said(people: Sequence[tuple[str, bool]], between: str = ", and ", role: str = "knight knave") -> str:
        knight, knave = role.split()
        return between.join(f"{who} is a {knight if is_knight else knave}" for who, is_knight in people)

    def flipped(a: Answers) -> list[tuple[str, bool]]:
        return [(who, not knight) for who, knight in pairs(a)]

    return [
        Style("reasoning-gym's own answer", True, lambda a: block(f"{said(pairs(a))}.")),
        Style("every role flipped", False, lambda a: block(f"{said(flipped(a))}.")),
        Style("a person left out", False, lambda a: block(said(pairs(a)[1:]))),
        Style("a person twice, in both roles", False, lambda a: block(said([*pairs(a), flipped(a)[0]]))),
        Style("a person twice, in the same role", True, lambda a: block(said([*pairs(a), pairs(a)[0]]))),
        Style("a person who is not there", False, lambda a: block(said([*pairs(a), ("Bob", True)]))),
        Style("the right roles or others", False, lambda a: block(said(pairs(a)) + ", or " + said(flipped(a)))),
        Style("people in another order", True, lambda a: block(said(pairs(a)[::-1]))),
        Style("capitals", True, lambda a: block(said(pairs(a)).upper())),
        Style("semicolons", True, lambda a: block(said(pairs(a), "; "))),
        Style("no-break spaces", True, lambda a: block(said(pairs(a)).replace(" ", "\u00a0"))),
        Style("`X \u2192 knight`", True, lambda a: block(said(pairs(a)).replace("is a", "\u2192"))),
        Style("`X must be a knight`", True, lambda a: block(said(pairs(a)).replace("is a", "must be a"))),
        Style(_OTHER, False, lambda a: block(said(pairs(a), role="elf orc"))),
        Style(_OURS, True, lambda a: block(said(pairs(a)))),
        Style("prose before the answer", True, lambda a: block(f"As one of them must lie, {said(pairs(a))}.")),
        Style("an empty block", False, lambda a: block(" ")),
    ]


def _more_sums() -> list[Style]:
    def block(name: str, worth: bool, inside: str) -> Style:
        return Style(name, worth, lambda a: f" Hm. </think>\n<answer> {inside.replace('RIGHT', a.right)} </answer>")

    def changed(name: str, worth: bool, pattern: str, by: str) -> Style:
        def write(a: Answers) -> str | None:
            text = re.sub(pattern, by, a.right)
            return f" Hm. </think>\n<answer> {text} </answer>" if text != a.right else None

        return Style(name, worth, write)

    return [
        changed("no spaces", True, " ", ""),
        block("brackets around all of it", True, "((RIGHT))"),
        changed("`x` for times", True, r"\*", "x"),
        changed("`\u22c5` for times", True, r"\*", "\u22c5"),
        changed("`4.0` for `4`", False, r"(\d+)", r"\1.0"),
        changed("`04` for `4`", False, r"(\d+)", r"0\1"),
        changed("square brackets", False, r"(^.*$)", r"[\1]"),
        block("`** 1` behind it", False, "(RIGHT) ** 1"),
        block("the whole negated twice", False, "-(-(RIGHT))"),
        block("`+ 0` behind it", False, "RIGHT + 0"),
        block("a comment behind it", False, "RIGHT # as wanted"),
        block("an empty block", False, ""),
    ]


def told_in(text: str, terms: Mapping[str, str]) -> str:
    """The text with the puzzle's words for knight and knave, in the letters' case of the text."""

    def word(match: re.Match[str]) -> str:
        role = match[2]
        new = terms[role.lower()]
        cased = new.upper() if role.isupper() else new.title() if role.istitle() else new
        article = terms[f"a_{role.lower()}"].partition(" ")[0] + " " if match[1] else ""
        return (article.upper() if role.isupper() else article) + cased + match[3]

    return _ROLE.sub(word, text)


def read_back(text: str, terms: Mapping[str, str]) -> str:
    """The text with `knight` and `knave` for the puzzle's words."""
    for role in ("knight", "knave"):
        text = re.sub(
            rf"\b(an?\s)?({terms[role]})(s?)\b",
            lambda match, role=role: ("a" + match[1][-1] if match[1] else "") + role + match[3],  # type: ignore[misc]
            text,
            flags=re.IGNORECASE,
        )
    return text


def problems_of(name: str, count: int, seed: int) -> list[tuple[Problem, dict[str, object]]]:
    """Problems of reasoning-gym, each with the fields that make it one of ours."""
    found = []
    options = PAIRS[name][1]
    for place, one in enumerate(options):
        task = ReasoningGym(datasets={name: 1.0}, options={name: one})
        for problem in task.problems("test", count // len(options) + (place < count % len(options)), seed):
            about = problem.data["metadata"]
            if name == "knights_knaves":
                fields = {"question": problem.question, "names": about["names"], "solution": list(about["solution"])}
            else:
                fields = {"nums": about["numbers"], "target": about["target"]}
            found.append((problem, fields))
    return found


def responses(name: str, problems: int, count: int, seed: int) -> list[tuple[Response, dict[str, object]]]:
    """``count`` responses, the ways of writing in turn, each to a problem drawn at random; with its fields of ours."""
    rng = random.Random(f"{seed} {name}")
    pool = problems_of(name, problems, seed)
    made: list[tuple[Response, dict[str, object]]] = []
    chosen = ways(name)
    while len(made) < count:
        style = chosen[len(made) % len(chosen)]
        problem, fields = rng.choice(pool)
        right, wrong = _answers(name, problem, fields, rng)
        text = style.write(Answers(right, wrong, fields, rng))
        if text is None:
            continue
        ours = text
        if name == "knights_knaves":
            terms = problem.data["metadata"]["knight_knave_terms"]
            if style.name == _OURS and terms["knight"] == "knight":
                continue
            if style.name == _OTHER:
                ours = text
            elif style.name != _OURS:
                text = told_in(text, terms)
                ours = read_back(text, terms)
        made.append((Response(style, problem, text, ours), fields))
    return made


def _answers(name: str, problem: Problem, fields: Mapping[str, object], rng: random.Random) -> tuple[str, str]:
    """The right answer and a wrong one as our tasks spell them."""
    if name == "countdown":
        nums, target = problem.data["metadata"]["numbers"], problem.data["metadata"]["target"]
        return problem.data["answer"], " + ".join(map(str, nums)) if sum(nums) != target else " * ".join(map(str, nums))
    names, solution = problem.data["metadata"]["names"], problem.data["metadata"]["solution"]
    place = rng.randrange(len(names))
    turned = [role != (number == place) for number, role in enumerate(solution)]
    lines = [
        [f"({number}) {who} is a {'knight' if knight else 'knave'}" for number, (who, knight) in enumerate(pairs, 1)]
        for pairs in (zip(names, solution, strict=True), zip(names, turned, strict=True))
    ]
    return "\n".join(lines[0]), "\n".join(lines[1])


@dataclass(frozen=True)
class Judged:
    """A response: whether reasoning-gym finds it right, and our reason by rule (`correct` is right)."""

    style: Style
    theirs: bool
    ours: dict[str, str]


def judged(name: str, rows: Sequence[tuple[Response, dict[str, object]]]) -> list[Judged]:
    """Both judge every response; `paper as told` is the rule on the words of the puzzle."""
    gym = ReasoningGym(datasets={name: 1.0})
    cut = ["cut off" in row.style.name for row, _ in rows]
    theirs = gym.judge_many([row.problem for row, _ in rows], [row.text for row, _ in rows], cut)
    ours: dict[str, list[str]] = {}
    for rule in RULES:
        task: Task = choose_task(PAIRS[name][0], ["task.data=null"], rule).for_model("logic_rl")
        problems = [task.problem_from(dict(fields), "a problem of reasoning-gym") for _, fields in rows]
        for key, texts in ((rule, [row.ours for row, _ in rows]), (f"{rule} as told", [row.text for row, _ in rows])):
            ours[key] = [one.reason for one in task.judge_many(problems, texts, cut)]
    return [
        Judged(row.style, verdict.correct, {key: reasons[place] for key, reasons in ours.items()})
        for place, ((row, _), verdict) in enumerate(zip(rows, theirs, strict=True))
    ]


def cause(name: str, rule: str, one: Judged) -> str:
    """Why the two differ on a response, by what ours made of it."""
    reason, way = one.ours[rule], one.style.name
    if way == "tags in capitals":
        return "tags in capitals: `strict` takes them for tags, reasoning-gym does not"
    if one.theirs and reason == "bad_format" and (name, rule) == ("countdown", "paper"):
        return "an answer that is not whole on the last line, which is all that the paper's code reads"
    if one.theirs and reason == "bad_format":
        return (
            "the place of the block: reasoning-gym reads the last `<answer>` block wherever it is, ours wants one "
            "block, after one `</think>`"
        )
    if name == "countdown":
        if one.theirs and reason == "no_answer":
            return "a sign before a number or a bracket, which `strict` refuses"
        return "signs of print (\u00d7, \u00f7, \u2212, \u22c5): `strict` reads them, reasoning-gym does not"
    if one.theirs and rule == "paper":
        return "roles said twice: `paper` wants as many roles as people, reasoning-gym makes a set of them"
    if one.theirs:
        return "words around the answer: reasoning-gym skips all that it does not know, `strict` refuses them"
    if way == _OURS:
        return "`knight` and `knave` where the puzzle has other words: wrong for reasoning-gym"
    if way in ("a question", "semicolons"):
        return "`;` or `?` behind a role, which reasoning-gym takes for a part of it"
    return "another way to say it: reasoning-gym reads `NAME is a ROLE` alone, `strict` what means the same"


def summary(name: str, rows: Sequence[Judged]) -> list[str]:
    """Rows of the first table: how often both, neither, ours alone and theirs alone found a response right."""
    lines = []
    for rule in rows[0].ours:
        told = rule.endswith("as told")
        if told and name != "knights_knaves":
            continue
        found = Counter((one.theirs, one.ours[rule] == "correct") for one in rows)
        pairs = [found[pair] for pair in ((True, True), (False, False), (False, True), (True, False))]
        words = "the puzzle's own" if told else "knight, knave" if name == "knights_knaves" else "-"
        counts = " | ".join(map(str, pairs))
        lines.append(f"| {name} | {words} | {rule.partition(' ')[0]} | {counts} | {pairs[2] + pairs[3]} |")
    return lines


def differences(name: str, rows: Sequence[Judged]) -> list[str]:
    """Rows of the second table: causes, with the ways of writing in which they were seen."""
    lines = []
    for rule in RULES:
        causes: dict[str, list[Judged]] = defaultdict(list)
        for one in rows:
            if one.theirs != (one.ours[rule] == "correct"):
                causes[cause(name, rule, one)].append(one)
        for said, found in sorted(causes.items(), key=lambda item: -len(item[1])):
            pay = sum(one.theirs for one in found)
            seen = Counter(one.style.name.replace("|", "\\|") for one in found)
            written = ", ".join(f"{way} ({number})" for way, number in seen.items())
            lines.append(f"| {name} | {rule} | {len(found)} | {pay} | {len(found) - pay} | {said} | {written} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    results = {name: judged(name, responses(name, options.problems, options.count, options.seed)) for name in PAIRS}
    print("| data set | words | our rule | both right | neither | ours alone | theirs alone | disagreements |")
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for name, rows in results.items():
        print("\n".join(summary(name, rows)))
    print("\n| data set | our rule | responses | theirs pays | ours pays | cause | ways of writing |")
    print("|---|---|---:|---:|---:|---|---|")
    for name, rows in results.items():
        print("\n".join(differences(name, rows)))


if __name__ == "__main__":
    main()
