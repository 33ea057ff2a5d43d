"""Mathematics with a boxed answer: generated or loaded problems, rewards of three papers, two judging rules."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.section import Contradiction
from rlvr_cli.core.streams import stream_seed
from rlvr_cli.tasks import math_rows as rows
from rlvr_cli.tasks.base import Data, RuleKey
from rlvr_cli.tasks.data import SkippedRow, hash_split
from rlvr_cli.tasks.math_answers import AnswerTask, ParsedAnswer, Style, extract_answer
from rlvr_cli.tasks.math_stories import (
    MAX_STEPS,
    OPENING,
    Story,
    add_story,
    draw_story,
    from_row,
    story_problem,
    write_compact_prompt,
    write_compact_trace,
)
from rlvr_cli.tasks.problem import DataSet, DataSplit, JudgeSession, Problem, Split, Verdict, generated_set
from rlvr_cli.tasks.shares import Share, SumToOne
from rlvr_cli.verify.math_answer import MAX_LENGTH, UNPARSED_GOLD, Outcome, clean
from rlvr_cli.verify.numbers import exact_number

# The generated problems, which the compact styles cover.
STORIES = "math-story-gen"
# Consecutive draws without a new problem after which generation fails.
_PATIENCE = 100_000
_ARENA = "CC BY-NC-SA 4.0"
_MAA = "MIT (collection); the problems are the MAA's, none stated"


def _arena(title: str, name: str, repository: str, size: int) -> DataSet:
    """Return a competition of MathArena, with its four runs of each problem; its own parser judges there."""
    where = "MathArena's configurations of 2025; those of 2026 leave it to the model's"
    source = {"samples": "MathArena: --n, 4 by default", "temperature": f"{where}: 0.6"}
    return DataSet(
        f"{title}, {size} problems, as MathArena publishes it.",
        {"test": f"math/{name}"},
        f"MathArena/{repository}",
        _ARENA,
        size=size,
        hub_splits={"test": "train"},
        length=(16_000, where),
        sampling={"samples": 4, "temperature": 0.6, "greedy": False, "source": source},
    )


class MathTask(AnswerTask):
    """Mathematics with a boxed answer."""

    sets: ClassVar = {
        "math500": DataSet(
            "MATH-500: 500 of MATH's test problems.",
            {"test": "math/math500"},
            "HuggingFaceH4/MATH-500",
            "MIT",
            size=500,
        ),
        "aime24": DataSet(
            "AIME 2024, 30 problems.",
            {"test": "math/aime24"},
            "HuggingFaceH4/aime_2024",
            _MAA,
            size=30,
            hub_splits={"test": "train"},
        ),
        "aime25": DataSet("AIME 2025, 30 problems.", {"test": "math/aime25"}, "math-ai/aime25", _MAA, size=30),
        "aime26": _arena("AIME 2026", "aime26", "aime_2026", 30),
        "hmmt_feb25": _arena("HMMT February 2025", "hmmt_feb25", "hmmt_feb_2025", 30),
        "hmmt_nov25": _arena("HMMT November 2025", "hmmt_nov25", "hmmt_nov_2025", 30),
        "hmmt_feb26": _arena("HMMT February 2026", "hmmt_feb26", "hmmt_feb_2026", 33),
        "brumo25": _arena("BRUMO 2025", "brumo25", "brumo_2025", 30),
        "beyondaime": DataSet(
            "BeyondAIME, 100 problems with whole-number answers.",
            {"test": "math/beyondaime"},
            "ByteDance-Seed/BeyondAIME",
            "CC0-1.0",
            size=100,
        ),
        "amc23": DataSet("AMC 2023, 40 problems.", {"test": "math/amc23"}, "math-ai/amc23", _MAA, size=40),
        "amc83": DataSet(
            "AMC 2022 and 2023, 83 problems with whole-number answers.",
            {"test": "math/amc83"},
            "AI-MO/aimo-validation-amc",
            "Apache-2.0 (collection); the problems are the MAA's, none stated",
            size=83,
            hub_splits={"test": "train"},
            sampling={
                "samples": 16,
                "greedy": False,
                "source": {"samples": "AR-Lopti, section 5.2, table 1", "temperature": "AR-Lopti's code: 1.0"},
            },
        ),
        "livemathbench": DataSet(
            "LiveMathBench v202412 in English, 119 problems of four contests; behind a form on the hub.",
            {"test": "math/livemathbench"},
            "opencompass/LiveMathBench",
            "not verified: see the hub's form",
            size=119,
            config=tuple(f"v202412_{contest}_en" for contest in ("AMC", "CCEE", "CNMO", "WLPMC")),
            length=(8192, "OpenCompass's configuration of v202505"),
            sampling={"samples": 48, "greedy": False, "source": {"samples": "OpenCompass: n=48 for G-Pass@16"}},
        ),
        "minerva": DataSet(
            "Minerva's OCW questions, 272 problems.", {"test": "math/minerva"}, "math-ai/minervamath", "MIT", size=272
        ),
        "olympiadbench": DataSet(
            "OlympiadBench, English open-ended mathematics without pictures.",
            {"test": "math/olympiadbench"},
            "math-ai/olympiadbench",
            "MIT",
            size=675,
        ),
        "college_math": DataSet(
            "College mathematics from textbooks.",
            {"test": "math/college_math"},
            None,
            "by row; some are CC BY-NC",
            size=2818,
        ),
        "gaokao2023en": DataSet(
            "Gaokao 2023 in English.", {"test": "math/gaokao2023en"}, None, "MIT (collection)", size=385
        ),
        "math": DataSet(
            "MATH (Hendrycks), every level.",
            {"train": "math/train", "test": "math/test"},
            "DigitalLearningGmbH/MATH-lighteval",
            "MIT",
            size=5000,
        ),
        "dapo_math_17k": DataSet(
            "DAPO-Math-17k, competition problems with whole-number answers.",
            {"train": "train/dapo_math_17k"},
            "BytedTsinghua-SIA/DAPO-Math-17k",
            "Apache-2.0",
            repeated=True,
        ),
        "orz_57k": DataSet(
            "ORZ-57k, Open-Reasoner-Zero's problems of mathematics and reasoning.",
            {"train": "train/orz_57k"},
            "Open-Reasoner-Zero/orz_math_57k_collection",
            "MIT",
            hub_splits={"train": "orz_math_57k_collection.json"},
        ),
        "dsr_uniform": DataSet(
            "DSR-uniform, DeepScaleR's problems drawn evenly over difficulty.",
            {"train": "train/dsr_uniform"},
            None,
            "Apache-2.0",
        ),
        "simplerl": DataSet(
            "SimpleRL's problems, MATH of levels 3 to 5.",
            {"train": "train/math_lvl3to5"},
            "hkust-nlp/SimpleRL-Zoo-Data",
            "Apache-2.0",
            hub_splits={"train": "simplelr_qwen_level3to5/train.parquet"},
        ),
        "numina_math": DataSet(
            "NuminaMath-CoT: problems whose solution ends in a boxed answer.",
            {"train": "train/numina_math"},
            "AI-MO/NuminaMath-CoT",
            "Apache-2.0",
            # Test rows are loaded only by the hub id.
            hub_splits={"test": "test"},
        ),
        "numina_hard": DataSet(
            "Numina-Hard: what Qwen2.5-7B fails twice of numina_math; made by `rlvr tasks filter`.",
            {"train": "train/numina_hard"},
            None,
            "Apache-2.0",
        ),
        STORIES: generated_set("Generated word problems of several steps."),
    }
    pooled: ClassVar = True
    problem_keys: ClassVar = ("steps",)
    json_columns: ClassVar = ("story",)
    bypasses_template: ClassVar = {**AnswerTask.bypasses_template, "style": ("compact", "compact_tag")}

    name: Literal["math"] = Field("math", description="math = mathematics with a boxed answer.")
    data: Data = STORIES
    rule: RuleKey = "strict"
    style: Literal["auto", "boxed", "reasoning_answer", "compact", "compact_tag"] = Field(  # type: ignore[assignment]
        "auto",
        description="Prompt format: boxed (the answer in \\boxed{}), reasoning_answer (GTPO's <reasoning> and "
        "<answer>), compact (the lab's words), compact_tag (the same, with <think> as the completion's first word), "
        "auto = by model and reward.",
    )
    steps: Annotated[dict[Annotated[int, Field(ge=1, le=MAX_STEPS)], Share], SumToOne] = Field(
        {2: 0.3, 3: 0.4, 4: 0.3},
        min_length=1,
        description="For math-story-gen: number of steps (1 to 8) -> share of the problems; the shares sum to 1.",
    )

    def contradictions(self) -> Iterator[Contradiction]:
        yield from super().contradictions()
        if self._is_compact and self.reward == "gtpo":
            yield Contradiction(
                ("task.style", "task.reward"),
                f"task.reward=gtpo rewards <reasoning> and <answer>, and task.style={self.style} has no such tags. Set "
                "task.reward=zero_one",
            )

    def for_model(self, style: str) -> Self:
        """Resolve the style: compact for generated problems of the lab's model.

        Loaded rows need an explicit ``task.style``, since public sets exceed the compact vocabulary.
        """
        if self.style != "auto" or style != "compact" or not self.is_generated:
            return self
        settled = self.replace(style="compact")
        for wrong in settled.contradictions():
            raise UserError(f"{wrong.message}, or use a model that reads English.")
        return settled

    @property
    def _is_compact(self) -> bool:
        return self.style in ("compact", "compact_tag")

    @property
    def form(self) -> Style:
        return "boxed" if self._is_compact else super().form

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "style": self.style if self._is_compact else self.form}

    @property
    def prompt_tokens(self) -> int:
        return 64 if self._is_compact else super().prompt_tokens

    def prompt(self, problem: Problem, tokenizer: Any) -> str:
        """Return the prompt; the compact style ends it in ``<think>``, compact_tag before it."""
        if not self._is_compact:
            return super().prompt(problem, tokenizer)
        return write_compact_prompt(_story(problem), opened=self.style == "compact")

    def solutions(self, problem: Problem) -> Iterator[str]:
        if not self._is_compact:
            return super().solutions(problem)
        worked_out = write_compact_trace(_story(problem), random.Random(0))
        return iter([worked_out if self.style == "compact" else f"{OPENING} {worked_out}"])

    def describe_data(self) -> str | None:
        if not self.is_generated:
            return super().describe_data()
        return f"{STORIES}: generated word problems. task.data takes a public set or your rows (rlvr tasks sets)."

    def load(self, split: DataSplit) -> list[Problem]:
        problems = super().load(split)
        if self._is_compact and any(problem.data.get("story") is None for problem in problems):
            raise UserError(f"task.data={self.data!r}: the compact styles need `story` in every row.")
        return problems

    def start_judging(self) -> JudgeSession:
        """Compare answers in the pool as responses arrive, within its deadline per distinct pair."""
        return _JudgeSession(self)

    def group_answers(self, answers: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        from rlvr_cli.verify.pool import PairBatch, math_pool

        votes: list[dict[str, str]] = [{} for _ in answers]
        remaining = [list(dict.fromkeys(spellings)) for spellings in answers]
        with PairBatch(math_pool(), self.rule) as batch:
            while any(len(spellings) > 1 for spellings in remaining):
                for first, *others in filter(None, remaining):
                    for other in others:
                        batch.submit(first, other)
                for row, spellings in enumerate(remaining):
                    outcomes = {other: batch.result(spellings[0], other) for other in spellings[1:]}
                    votes[row] |= {other: spellings[0] for other, outcome in outcomes.items() if outcome.equal}
                    # Answers whose comparison timed out are grouped by spelling.
                    stopped = {other for other, outcome in outcomes.items() if outcome.equal is None}
                    slow = stopped if len(stopped) < len(outcomes) else set()
                    remaining[row] = [other for other in outcomes if not outcomes[other].equal and other not in slow]
        return votes

    def with_workers(self, workers: int) -> Self:
        from rlvr_cli.verify.pool import resize_math_pool

        resize_math_pool(workers)
        return self

    def row_problem(self, fields: dict[str, Any], where: str) -> Problem:
        return add_story(rows.problem_from(fields, where), fields, where)

    def problem_from(self, fields: dict[str, Any], where: str) -> Problem:
        """Return the problem of a row; a stored response to a row without an answer is not scorable."""
        try:
            return self.row_problem(fields, where)
        except SkippedRow:
            return rows.make_problem(fields, rows.find_question(fields, where), "")

    def generate(self, split: Split, count: int, seed: int) -> list[Problem]:
        rng = random.Random(stream_seed(seed, self.name, split))
        problems: dict[str, Problem] = {}
        idle = 0
        while len(problems) < count:
            (steps,) = rng.choices(list(self.steps), weights=list(self.steps.values()))
            problem = story_problem(draw_story(rng, steps), rng)
            idle = idle + 1 if problem.id in problems or hash_split(str(problem.structure)) != split else 0
            if idle > _PATIENCE:
                raise UserError(f"task.train_size: the generator has only {len(problems)} {split} problems.")
            if not idle:
                problems[problem.id] = problem
        return list(problems.values())


class _JudgeSession(JudgeSession):
    def __init__(self, task: MathTask) -> None:
        # Imported here: loading a configuration creates no pool.
        from rlvr_cli.verify.pool import PairBatch, math_pool

        self._task, self._batch = task, PairBatch(math_pool(), task.rule)
        self._rows: list[tuple[Problem, ParsedAnswer, bool]] = []

    def add(self, problem: Problem, response: str, *, truncated: bool = False) -> None:
        gold, reading = _gold(problem), extract_answer(response, self._task.form, self._task.rule)
        if gold.strip() and reading.answer is not None:
            self._batch.submit(gold, reading.answer)
        self._rows.append((problem, reading, truncated))

    def verdicts(self) -> list[Verdict]:
        return [
            self._task.verdict(
                reading,
                self._compare(_gold(problem), reading.answer),
                answer=canonical_answer(reading.answer),
                truncated=truncated,
            )
            for problem, reading, truncated in self._rows
        ]

    def _compare(self, gold: str, answer: str | None) -> Outcome | None:
        if not gold.strip():
            return UNPARSED_GOLD
        if answer is None:
            return None
        outcome = self._batch.result(gold, answer)
        # As accuracy_reward, which returns 0 after a timeout.
        stopped = self._task.rule == "paper" and outcome.reason in ("timeout", "died")
        return replace(outcome, equal=False) if stopped else outcome

    def close(self) -> None:
        self._batch.__exit__()


def canonical_answer(answer: str | None) -> str | None:
    """Return the canonical spelling of an answer: numbers in lowest terms, others cleaned (`1 1/2` is not `11/2`)."""
    if answer is None:
        return None
    text = clean(answer[:MAX_LENGTH])
    number = exact_number(text, powers=True)
    return str(number) if number is not None else " ".join(text.split())


def _story(problem: Problem) -> Story:
    return from_row(problem.data["story"], problem.id)


def _gold(problem: Problem) -> str:
    return str(problem.data["answer"])
