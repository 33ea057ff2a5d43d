"""The papers' evaluations as suites of benchmarks, and the settings of a benchmark that is named alone.

Every value says where it is from: a section or table of the paper, its authors' code, or `ours` where neither says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlvr_cli.core.text import did_you_mean
from rlvr_cli.tasks.sets import benchmarks, data_sets, generated_names

POWERS = (1, 2, 4, 8, 16, 32)

# The samples of a benchmark that is named alone, by its number of problems: most problems first.
_BY_SIZE = (
    (1_000, 4, "ACPO, table 1"),
    (40, 8, "ACPO, table 2; K&K: AR-Lopti, section 5.1"),
    (-1, 32, "DGPO, table 3"),
)


@dataclass(frozen=True)
class Setting:
    """How one benchmark is sampled, prompted and judged.

    Attributes:
        samples: sampled completions a problem; 0 = the greedy one alone.
        task: keys of the task's section.
        figures: what the paper prints: `greedy`, `avg` (over all samples), `pass@k` or `maj@k`.
        source: where `samples` (with k and greedy), `temperature`, `length` and `prompt` are from.
    """

    benchmark: str
    samples: int
    pass_at: tuple[int, ...] = ()
    greedy: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 4096
    task: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    source: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The setting as JSON values."""
        return {
            "benchmark": self.benchmark,
            "samples": self.samples,
            "pass_at": list(self.pass_at),
            "greedy": self.greedy,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_new_tokens": self.max_new_tokens,
            "task": {key: _plain(value) for key, value in self.task.items()},
            "figures": list(self.figures),
            "source": dict(self.source),
        }

    def choices(self) -> dict[str, Any]:
        """What distinguishes this setting from another of its benchmark, whatever the figures' sources are."""
        return {key: value for key, value in self.as_json().items() if key not in ("figures", "source")}


@dataclass(frozen=True)
class Average:
    """A mean over a suite's figures, each with the same weight.

    Attributes:
        parts: (benchmark, figure) pairs.
        by_subgroup: every subgroup of the benchmark is a figure of its own, as K&K's numbers of people.
    """

    name: str
    parts: tuple[tuple[str, str], ...]
    source: str
    by_subgroup: bool = False


@dataclass(frozen=True)
class Suite:
    """What one paper evaluates on."""

    name: str
    paper: str
    settings: tuple[Setting, ...]
    averages: tuple[Average, ...] = ()
    notes: tuple[str, ...] = ()


def _plain(value: Any) -> Any:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, Mapping) else value


def _people(*numbers: int) -> dict[int, float]:
    return {number: 1 / len(numbers) for number in numbers}


_OURS_LENGTH = "ours: the length of AR-Lopti's table 2"
_TINY_ZERO = "ours: the length of TinyZero's script"
_NO_PROMPT = "ours: the task's default"

_BOXED = {"style": "boxed", "template": "auto", "reward": "zero_one", "rule": "paper"}
_COUNTDOWN = {"numbers": {3: 0.5, 4: 0.5}, "style": "tiny_zero", "rule": "paper"}
_HITAB = {"style": "answer_tag", "rule": "paper"}


def _ar_lopti() -> Suite:
    plain = {"style": "boxed", "template": "none", "reward": "zero_one", "rule": "paper"}
    math = {"length": "table 2", "prompt": "appendix C.1.2: no template"}
    greedy = {**math, "samples": "section 5.2", "temperature": "section 5.2: greedy"}
    sampled = {**math, "samples": "section 5.2, table 1", "temperature": "the authors' code: 1.0"}
    kk = {
        "samples": "the authors' code: greedy (it logs one sample too; the paper does not say which it prints)",
        "temperature": "greedy",
        "length": "table 2",
        "prompt": "appendix C.1.1; 3 to 7 people: section 5.1",
    }
    once: dict[str, Any] = {"samples": 0, "greedy": True, "max_new_tokens": 4096, "task": plain, "figures": ("greedy",)}
    many: dict[str, Any] = {"samples": 16, "pass_at": (1, 16), "max_new_tokens": 4096, "task": plain}
    return Suite(
        "ar_lopti",
        "AR-Lopti (Yang et al. 2025)",
        (
            Setting(
                "kk",
                0,
                greedy=True,
                task={"people": _people(3, 4, 5, 6, 7), "reward": "logic_rl"},
                figures=("greedy",),
                source=kk,
            ),
            *(Setting(name, **once, source=greedy) for name in ("olympiadbench", "minerva", "math500")),
            Setting("amc23", **many, figures=("avg",), source=sampled),
            Setting("aime24", **many, figures=("pass@16", "avg"), source=sampled),
        ),
        (
            Average("K&K over numbers of people", (("kk", "greedy"),), "figure 4", by_subgroup=True),
            Average(
                "mathematics",
                (
                    ("olympiadbench", "greedy"),
                    ("minerva", "greedy"),
                    ("math500", "greedy"),
                    ("amc23", "avg"),
                    ("aime24", "pass@16"),
                    ("aime24", "avg"),
                ),
                "table 1: AIME 2024 counts twice",
            ),
        ),
        (
            "The paper's figures are means over the last three checkpoints: --average-last 3.",
            "Its AMC is 2022 and 2023 (83 problems, by its figures); here AMC 2023, 40 problems.",
            "Its K&K test is Logic-RL's, rows 1000 to 1099 of the hub's train split; here the hub's test split, 100 "
            "puzzles for each number of people.",
        ),
    )


def _acpo() -> Suite:
    ours = {"temperature": "ours", "prompt": _NO_PROMPT}
    math = {
        "samples": "table 2: 8 runs",
        "temperature": "released script: 1",
        "length": "released script: 3072",
        "prompt": "ours: the task's default; no template: released script",
    }
    plain = {**_BOXED, "template": "none"}
    names = ("amc23", "minerva", "math500", "olympiadbench")
    many: dict[str, Any] = {"samples": 8, "pass_at": (1, 8), "max_new_tokens": 3072, "task": plain, "figures": ("avg",)}
    few: dict[str, Any] = {"samples": 4, "pass_at": (1, 4), "figures": ("avg",)}
    four = {**ours, "samples": "table 1: 4 evaluations"}
    return Suite(
        "acpo",
        "ACPO (What Are Key Factors for Updates in RL for LLM Reasoning?)",
        (
            *(Setting(name, **many, source=math) for name in names),
            Setting("countdown", **few, max_new_tokens=1024, task=_COUNTDOWN, source={**four, "length": _TINY_ZERO}),
            Setting("hitab", **few, task=_HITAB, source={**four, "length": _OURS_LENGTH}),
        ),
        (Average("mathematics", tuple((name, "avg") for name in names), "table 2"),),
        (
            "The paper leaves temperature, length and prompts to its scripts; only those for mathematics are released.",
            "Its scripts prompt for mathematics with Open-Reasoner-Zero's conversation; here the task's own words.",
            "Its AMC2023 has 83 problems, by its figures; here 40.",
            "Countdown and HiTab are its best validation rewards; its HiTab figures fit 300 problems. Here all test "
            "problems.",
        ),
    )


def _dgpo() -> Suite:
    task = {"style": "boxed", "template": "auto", "reward": "plus_minus", "rule": "paper"}
    source = {
        "temperature": "appendix B.4: rollouts at 1.0, top_p 1.0; evaluation is not named",
        "length": "table 12",
        "prompt": "appendix B.2: the answer in \\boxed{}",
    }
    curve = {**source, "samples": "table 3; k: table 14"}
    both = {**source, "samples": "table 3"}
    many: dict[str, Any] = {"samples": 32, "max_new_tokens": 8192, "task": task, "figures": ("avg", "pass@32")}
    contests, others = ("aime24", "aime25"), ("amc23", "math500", "minerva", "olympiadbench")
    return Suite(
        "dgpo",
        "DGPO (Fu et al. 2026)",
        (
            *(Setting(name, **many, pass_at=POWERS, source=curve) for name in contests),
            *(Setting(name, **many, pass_at=(1, 32), source=both) for name in others),
        ),
        tuple(
            Average(text, tuple((name, figure) for name in (*contests, *others)), "table 3")
            for text, figure in (("avg@32", "avg"), ("pass@32", "pass@32"))
        ),
        (
            "The paper judges its evaluation with prime_math; here math-verify judges, as in its training.",
            "Its Pass@32 on AIME is no multiple of 1/30, so it is no plain share over 32 samples; here pass@k is the "
            "unbiased estimator.",
        ),
    )


def _gtpo() -> Suite:
    task = {"style": "reasoning_answer", "template": "auto", "reward": "gtpo", "rule": "paper"}
    source = {
        "temperature": "section 6: training at 1.0; evaluation is not named",
        "length": "listing 1: max_seq_length, which counts the prompt too",
        "prompt": "box 8.2; format and reward: appendix",
    }
    inside = {**source, "samples": "figure 2: k up to 32"}
    outside = {**source, "samples": "table 1"}
    few: dict[str, Any] = {"samples": 32, "pass_at": POWERS, "max_new_tokens": 5500, "task": task, "source": inside}
    many: dict[str, Any] = {"samples": 64, "max_new_tokens": 5500, "task": task, "source": outside}
    return Suite(
        "gtpo",
        "GTPO (Simoni et al. 2025)",
        (
            *(Setting(name, **few, figures=("pass@32", "maj@32")) for name in ("gsm8k", "math500")),
            *(Setting(n, **many, pass_at=(1, 8, 16, 32, 64), figures=("pass@64",)) for n in ("aime24", "aime25")),
            Setting("amc23", **many, pass_at=(1, 4, 8, 16, 32, 64), figures=("pass@64", "maj@64")),
        ),
        (),
        (
            "The paper prints no average.",
            "It tests on all 5,000 of MATH's test problems; here MATH-500, 500 of them. `--benchmark math` is all.",
            "Its pass@k on AMC are multiples of 1/40: problems with a right one of k completions; here the unbiased "
            "estimator over all samples.",
        ),
    )


def _landscape() -> Suite:
    # With a chat template or without one as in training: base models have none there.
    task = {key: value for key, value in _BOXED.items() if key != "template"}
    names = ("gsm8k", "math500", "college_math", "gaokao2023en", "minerva", "olympiadbench")
    source = {
        "samples": "ours: greedy, VeRL's default. MATH-500 in table 1 is in multiples of 1/500: one completion each",
        "temperature": "greedy",
        "length": _OURS_LENGTH,
        "prompt": "ours: the task's, with the template of the run",
    }
    return Suite(
        "landscape",
        "Optimization Landscape of GRPO (Jain et al.)",
        tuple(Setting(name, 0, greedy=True, task=task, figures=("greedy",), source=source) for name in names),
        (Average("all", tuple((name, "greedy") for name in names), "ours: the paper prints none"),),
    )


SUITES: dict[str, Suite] = {suite.name: suite for suite in (_ar_lopti(), _acpo(), _dgpo(), _gtpo(), _landscape())}


def evaluation_names() -> tuple[str, ...]:
    """Every name that an evaluation may be asked for by."""
    return (*benchmarks(), *generated_names(), *SUITES)


def unknown_names(names: Sequence[str], key: str) -> list[str]:
    """What is wrong with ``names``, which were given as ``key`` (`--benchmark`): a line for each unknown one."""
    unknown = [name for name in dict.fromkeys(names) if name not in evaluation_names()]
    lines = [f"{key} {name}: unknown.{did_you_mean(name, evaluation_names())}" for name in unknown]
    listed = (
        f" Benchmarks: {', '.join(benchmarks())}. Generated: {', '.join(generated_names())}. "
        f"Suites: {', '.join(SUITES)}."
    )
    return [*lines[:-1], *(line + listed for line in lines[-1:])]


def setting_alone(benchmark: str) -> Setting:
    """The setting of a benchmark that is named without a suite.

    Samples by the number of problems: 32 up to 40 problems, 8 up to 1,000, 4 above, with every power of two up to them
    as k, and the greedy completion; sampled at temperature 1.
    """
    one = data_sets()[benchmark]
    samples, source = next((n, source) for above, n, source in _BY_SIZE if one.size > above)
    by_size = (8192, "DGPO, table 12") if samples == 32 else (4096, "AR-Lopti, table 2")
    length, length_source = one.length or by_size
    # Which problems there are is the benchmark's, not the run's; how they are prompted and judged is left to the run.
    return Setting(
        benchmark,
        samples,
        pass_at=tuple(k for k in POWERS if k <= samples),
        greedy=True,
        max_new_tokens=length,
        task=one.keys,
        source={
            "samples": f"by size: {source}",
            "temperature": "AR-Lopti's code, DGPO's rollouts: 1.0",
            "length": length_source,
            "prompt": "the run's own, else the task's default",
        },
    )
