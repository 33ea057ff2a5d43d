"""The one table of data sets by name: the task that judges each, its place in a data folder and on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """A set of problems that has a name.

    Attributes:
        task: the task that writes its prompts and judges.
        what: one line for people.
        files: split (train, test) -> file or folder inside a data folder, without `.jsonl` or `.jsonl.gz`. Generated
            problems have none.
        hub: the hub data set with these splits (the task's loader knows configs and columns); None: on no hub that the
            project knows.
        licence: of the origin, as its publishers state it.
    """

    task: str
    what: str
    files: Mapping[str, str]
    hub: str | None
    licence: str

    @property
    def generated(self) -> bool:
        """Whether the project makes these problems up: any number, with train, dev and test of their own."""
        return not self.files


_MAA = "MIT (collection); the problems are the MAA's, none stated"
_OURS = "that of this project"

DATA_SETS: dict[str, DataSet] = {
    "kk": DataSet(
        "kk",
        "Knights & Knaves, 2 to 8 people (mem-kk-logic).",
        {"train": "kk", "test": "kk"},
        "K-and-K/knights-and-knaves",
        "MIT (the generator)",
    ),
    "countdown": DataSet(
        "countdown",
        "Countdown with 3 and 4 numbers (TinyZero's division into train and test).",
        {"train": "countdown/train", "test": "countdown/test"},
        "Jiayi-Pan/Countdown-Tasks-3to4",
        "none stated; TinyZero's code is Apache-2.0",
    ),
    "hitab": DataSet(
        "hitab",
        "HiTab, questions on hierarchical tables.",
        {"train": "hitab/train", "test": "hitab/test"},
        None,
        "C-UDA 1.0",
    ),
    "gsm8k": DataSet(
        "gsm8k",
        "GSM8K, grade-school word problems.",
        {"train": "gsm8k/train", "test": "gsm8k/test"},
        "openai/gsm8k",
        "MIT",
    ),
    "math500": DataSet(
        "math", "MATH-500: 500 of MATH's test problems.", {"test": "math/math500"}, "HuggingFaceH4/MATH-500", "MIT"
    ),
    "aime24": DataSet("math", "AIME 2024, 30 problems.", {"test": "math/aime24"}, "HuggingFaceH4/aime_2024", _MAA),
    "aime25": DataSet("math", "AIME 2025, 30 problems.", {"test": "math/aime25"}, "math-ai/aime25", _MAA),
    "amc23": DataSet("math", "AMC 2023, 40 problems.", {"test": "math/amc23"}, "math-ai/amc23", _MAA),
    "minerva": DataSet(
        "math", "Minerva's OCW questions, 272 problems.", {"test": "math/minerva"}, "math-ai/minervamath", "MIT"
    ),
    "olympiadbench": DataSet(
        "math",
        "OlympiadBench, English open-ended mathematics without pictures.",
        {"test": "math/olympiadbench"},
        "math-ai/olympiadbench",
        "MIT",
    ),
    "college_math": DataSet(
        "math", "College mathematics from textbooks.", {"test": "math/college_math"}, None, "by row; some are CC BY-NC"
    ),
    "gaokao2023en": DataSet("math", "Gaokao 2023 in English.", {"test": "math/gaokao2023en"}, None, "MIT (collection)"),
    "math": DataSet(
        "math",
        "MATH (Hendrycks), every level.",
        {"train": "math/train", "test": "math/test"},
        "DigitalLearningGmbH/MATH-lighteval",
        "MIT",
    ),
    "dapo_math_17k": DataSet(
        "math",
        "DAPO-Math-17k, competition problems with whole-number answers.",
        {"train": "train/dapo_math_17k"},
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "Apache-2.0",
    ),
    "orz_57k": DataSet(
        "math",
        "ORZ-57k, Open-Reasoner-Zero's problems of mathematics and reasoning.",
        {"train": "train/orz_57k"},
        "Open-Reasoner-Zero/orz_math_57k_collection",
        "MIT",
    ),
    "dsr_uniform": DataSet(
        "math",
        "DSR-uniform, DeepScaleR's problems drawn evenly over difficulty.",
        {"train": "train/dsr_uniform"},
        None,
        "Apache-2.0",
    ),
    "simplerl": DataSet(
        "math",
        "SimpleRL's problems, MATH of levels 3 to 5.",
        {"train": "train/math_lvl3to5"},
        "hkust-nlp/SimpleRL-Zoo-Data",
        "Apache-2.0",
    ),
    "numina_math": DataSet(
        "math",
        "NuminaMath-CoT: problems whose solution ends in a boxed answer.",
        {"train": "train/numina_math"},
        "AI-MO/NuminaMath-CoT",
        "Apache-2.0",
    ),
    "numina_hard": DataSet(
        "math",
        "Numina-Hard: what Qwen2.5-7B fails twice of numina_math; made by `rlvr tasks filter`.",
        {"train": "train/numina_hard"},
        None,
        "Apache-2.0",
    ),
    "kk-gen": DataSet("kk", "Knights & Knaves, generated here.", {}, None, _OURS),
    "countdown-gen": DataSet("countdown", "Countdown, generated here.", {}, None, _OURS),
    "math-gen": DataSet("math", "Arithmetic and algebra, generated here.", {}, None, _OURS),
    "gsm8k-gen": DataSet("gsm8k", "Grade-school word problems, generated here.", {}, None, _OURS),
    "hitab-gen": DataSet("hitab", "Hierarchical tables with questions, generated here.", {}, None, _OURS),
}


def sets_of(task: str, split: str | None = None) -> tuple[str, ...]:
    """The names of the data sets of ``task``, those with problems of ``split`` (train, test) where one is given."""
    return tuple(name for name, one in DATA_SETS.items() if one.task == task and (split is None or split in one.files))


def generated_name(task: str) -> str:
    """The name of the problems that are generated for ``task``."""
    return f"{task}-gen"


def is_generated(data: str) -> bool:
    """Whether ``data`` (`task.data`) names problems that are generated."""
    return data in DATA_SETS and DATA_SETS[data].generated
