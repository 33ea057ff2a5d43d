"""The hub's data sets, in rows shaped as theirs are: read by `datasets` itself, and fetched into a folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import countdown
from rlvr_cli.tasks import gpqa as gpqa_task
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.data import PUBLIC
from rlvr_cli.tasks.fetch import fetch, read_manifest
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import data_sets, task_to_fetch
from rlvr_cli.tasks.suites import default_setting
from tests.tasks.rows import write

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the hub: ``hub / owner / name`` is a data set's repository. The working directory is new."""
    root, real = tmp_path / "hub", datasets.load_dataset

    def load_dataset(hub_id: str, name: str | None = None, *, revision: str | None = None, **options: Any) -> Any:
        return real(str(root / hub_id), name, cache_dir=str(tmp_path / "cache"), **options)

    def download(hub_id: str, file: str, **_: Any) -> str:
        if not (root / hub_id / file).is_file():
            raise FileNotFoundError(file)
        return str(root / hub_id / file)

    def dataset_info(self: Any, hub_id: str, *, revision: str | None = None) -> Any:
        return SimpleNamespace(sha=COMMIT if revision is None else revision)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("rlvr_cli.models.source.find_connection_problem", lambda: None)
    monkeypatch.setattr("rlvr_cli.models.source.is_offline", lambda: False)
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


def card(folder: Path, configs: dict[str, dict[str, str]]) -> None:
    """Write the README of a data set: configuration -> split -> file."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [line for split, path in splits.items() for line in (f"  - split: {split}", f"    path: {path}")]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]))


def dapo(number: int, answer: int | None = None) -> dict[str, Any]:
    return {
        "prompt": [{"content": f"{DAPO_HEAD}What is {number} + 1?{DAPO_TAIL}", "role": "user"}],
        "reward_model": {"ground_truth": str(answer or number + 1), "style": "rule-lighteval/MATH_v2"},
    }


def orz(number: int) -> list[dict[str, Any]]:
    return [
        {"from": "human", "value": f"What is {number} + 1?"},
        {"from": "assistant", "ground_truth": {"value": str(number + 1)}},
    ]


def simplerl(number: int, answer: str | None = None) -> dict[str, Any]:
    text = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is {number} + 1?"
    gold = str(number + 1) if answer is None else answer
    return {
        "prompt": [{"content": text, "role": "user"}],
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"question": f"What is {number} + 1?", "answer": gold, "index": number, "split": "train"},
        "level": 3 + number % 3,
        "gt_answer": gold,
    }


def numina(number: int) -> dict[str, Any]:
    proof = number % 4 == 0
    end = "so it is proved." if proof else f"so it is \\boxed{{{number}}} minus nothing, \\boxed{{{number + 1}}}."
    return {"problem": f"What is {number} + 1?", "solution": f"We add, {end}", "messages": [{"content": "?"}]}


def lighteval(number: int) -> dict[str, Any]:
    solution = f"It is $\\boxed{{{number + 1}}}$."
    return {"problem": f"What is {number} + 1?", "level": f"Level {1 + number % 5}", "solution": solution}


def grade_school(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"It is <<{number}+1={number + 1}>>.\n#### {number + 1}"}


# Each writes a repository and returns the questions that it has, split by split.
Split = dict[str, set[str]]


def sums(**splits: Any) -> Split:
    return {split: {f"What is {number} + 1? {number + 1}" for number in numbers} for split, numbers in splits.items()}


def of_gsm8k(hub: Path) -> Split:
    folder = hub / "openai" / "gsm8k"
    for split, first in (("train", 0), ("test", 100)):
        rows = [grade_school(first + number) for number in range(60)]
        write(folder / "main" / f"{split}-00000-of-00001.parquet", rows)
        write(folder / "socratic" / f"{split}-00000-of-00001.parquet", [{"question": "Why?", "answer": "#### 1"}])
    card(folder, {part: {s: f"{part}/{s}-*" for s in ("train", "test")} for part in ("main", "socratic")})
    return sums(train=range(60), test=range(100, 160))


def of_kk(hub: Path) -> Split:
    folder = hub / "K-and-K" / "knights-and-knaves"
    asked: Split = {"train": set(), "test": set()}
    for config, questions in asked.items():
        for people in range(2, 9):
            names = [f"{'ABCDEFGH'[person]}{config}" for person in range(people)]
            quizzes = [f"{config} {people} {number}" for number in range(9)]
            rows = [
                {"quiz": text, "names": names, "solution": [True] * people, "index": n}
                for n, text in enumerate(quizzes)
            ]
            write(folder / config / f"{people}ppl.jsonl", rows)
            questions |= set(quizzes)
    card(folder, {config: {f"{p}ppl": f"{config}/{p}ppl.jsonl" for p in range(2, 9)} for config in asked})
    return asked


def of_dapo(hub: Path) -> Split:
    """Every row comes several times; what has two answers is left out."""
    rows = [dapo(number) for _ in range(3) for number in range(80)]
    write(hub / "BytedTsinghua-SIA" / "DAPO-Math-17k" / "data.parquet", [*rows, dapo(1, answer=9)])
    return sums(train=set(range(80)) - {1})


def of_orz(hub: Path) -> Split:
    file = hub / "Open-Reasoner-Zero" / "orz_math_57k_collection" / "orz_math_57k_collection.json"
    write(file, [orz(number) for number in range(60)])
    return sums(train=range(60))


def of_math(hub: Path) -> Split:
    for split, first in (("train", 0), ("test", 100)):
        rows = [lighteval(first + number) for number in range(60)]
        write(hub / "DigitalLearningGmbH" / "MATH-lighteval" / f"{split}.parquet", rows)
    return sums(train=range(60), test=range(100, 160))


def of_simplerl(hub: Path) -> Split:
    """The file of levels 3 to 5, whose test rows are not used."""
    folder = hub / "hkust-nlp" / "SimpleRL-Zoo-Data"
    write(folder / "simplelr_qwen_level1to4" / "train.parquet", [simplerl(number) for number in range(500, 560)])
    rows = [*(simplerl(number) for number in range(60)), simplerl(90, answer=""), simplerl(91, answer="")]
    write(folder / "simplelr_qwen_level3to5" / "train.parquet", rows)
    write(folder / "simplelr_qwen_level3to5" / "test.parquet", [simplerl(number) for number in range(700, 720)])
    return sums(train=range(60))


def of_numina(hub: Path) -> Split:
    """The last box is the answer; a proof has none."""
    rows = [numina(number) for number in range(100)]
    write(hub / "AI-MO" / "NuminaMath-CoT" / "data" / "train-00000-of-00001.parquet", rows)
    return sums(train=[number for number in range(100) if number % 4])


def of_countdown(hub: Path) -> Split:
    rows = [{"nums": [number + 1, number + 2, 50], "target": 2 * number + 53} for number in range(90)]
    write(hub / "Jiayi-Pan" / "Countdown-Tasks-3to4" / "data" / "train.parquet", rows)
    return {}


MADE: dict[str, Callable[[Path], Split]] = {
    "gsm8k": of_gsm8k,
    "kk": of_kk,
    "dapo_math_17k": of_dapo,
    "orz_57k": of_orz,
    "math": of_math,
    "simplerl": of_simplerl,
    "numina_math": of_numina,
    "countdown": of_countdown,
}


def problems(name: str, split: Any, folder: str | None) -> dict[str, Problem]:
    task = task_to_fetch(name).replace(data_dir=folder)
    return {problem.id: problem for problem in task.problems(split, 100_000, 0)}


def questions(*found: dict[str, Problem]) -> list[str]:
    every = [problem for problems in found for problem in problems.values()]
    return sorted(f"{one.question} {one.data['answer']}" if "answer" in one.data else one.question for one in every)


@pytest.mark.parametrize("name", MADE)
def test_a_set_of_the_hub_has_each_of_its_problems_once_and_fetched_it_is_the_same(hub: Path, name: str) -> None:
    asked = MADE[name](hub)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fetched = fetch(task_to_fetch(name), Path(PUBLIC))
        of_hub = {
            split: problems(name, split, None) for split in ("train", "dev", *(("test",) if "test" in asked else ()))
        }
    assert fetched == read_manifest(name, Path(PUBLIC)) and fetched.revision == COMMIT
    warned = {"dapo_math_17k": "1 questions whose", "simplerl": "2 rows with", "numina_math": "25 rows whose"}
    assert (name in warned) == bool(caught) == (len(fetched.left_out) == 1)
    assert name not in warned or warned[name] in str(caught[0].message)
    assert of_hub["train"] and of_hub["dev"]
    for split, found in of_hub.items():
        assert problems(name, split, PUBLIC) == found
    if asked:
        assert questions(of_hub["train"], of_hub["dev"]) == sorted(asked["train"])
        assert "test" not in asked or questions(of_hub["test"]) == sorted(asked["test"])
        assert sum(file.rows for file in fetched.files) == sum(map(len, asked.values()))
    if name in ("math", "simplerl"):
        levels = {problem.subgroup for problem in of_hub["train"].values()}
        assert levels == {f"level {level}" for level in (range(1, 6) if name == "math" else range(3, 6))}
    assert not list(Path(PUBLIC).glob(".*"))


def test_countdown_divides_its_one_split_as_tiny_zero_does(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"target": number + 5, "nums": [number, 2, 3]} for number in range(60)]
    # The first test puzzle is the first one to train on, with its numbers in another order.
    rows[40] = {"target": 5, "nums": [3, 2, 0]}
    write(hub / "Jiayi-Pan" / "Countdown-Tasks-3to4" / "data" / "train-00000-of-00001.parquet", rows)
    monkeypatch.setattr(countdown, "_HUB_TRAIN", 40)
    monkeypatch.setattr(countdown, "_HUB_TEST", 10)
    task = Countdown(data="countdown", numbers={3: 1.0}, style="tiny_zero")
    train, dev, test = ({one.id for one in task.load(split)} for split in ("train", "dev", "test"))
    assert test == {f"countdown-{number}" for number in range(40, 50)}
    assert len(train) + len(dev) == 39 and "countdown-0" not in train | dev
    with pytest.raises(UserError, match="split `all` is for local files"):
        task.load("all")


def test_what_was_fetched_is_found_with_no_further_argument_and_says_where_it_is_from(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_gsm8k(hub)
    assert load_config(overrides=["task=gsm8k"]).task.data_dir is None
    assert rlvr(["tasks", "fetch", "gsm8k"]) == 0
    assert "60 in data/public/gsm8k/test.jsonl" in (shown := capsys.readouterr().out) and "MIT" in shown
    loaded = load([], overrides=["task=gsm8k"])
    assert loaded.config.task.data_dir == str(Path(PUBLIC).absolute())
    assert loaded.origin("task", "data_dir") == "folder data/public"
    about = str(loaded.config.task.describe_data())
    assert "120 problems of openai/gsm8k at 0123456789ab" in about and "ALTERED" not in about
    assert load_config(overrides=["task=gsm8k", "task.data_dir=null"]).task.data_dir is None
    assert load_config(overrides=["task=math", "task.data=math500"]).task.data_dir is None, "that one is not there"
    with (Path(PUBLIC) / "gsm8k" / "test.jsonl").open("a") as stream:
        stream.write("\n")
    assert "ALTERED" in str(load_config(overrides=["task=gsm8k"]).task.describe_data())


def test_a_second_fetch_leaves_it_and_what_was_changed_or_put_there_is_not_replaced(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_gsm8k(hub)
    first = fetch(task_to_fetch("gsm8k"), Path(PUBLIC))
    assert fetch(task_to_fetch("gsm8k"), Path(PUBLIC)) == first
    assert "already fetched: 120 problems" in capsys.readouterr().out
    assert fetch(task_to_fetch("gsm8k"), Path(PUBLIC), revision="v2").revision == "v2"
    (Path(PUBLIC) / "gsm8k" / "train.jsonl").unlink()
    assert fetch(task_to_fetch("gsm8k"), Path(PUBLIC)).revision == COMMIT, "a missing file is fetched again"
    (Path(PUBLIC) / "gsm8k" / "test.jsonl").write_text("mine")
    assert rlvr(["tasks", "fetch", "gsm8k"]) == 2
    assert "gsm8k/test.jsonl: was changed" in capsys.readouterr().err
    assert rlvr(["tasks", "fetch", "gsm8k", "--overwrite"]) == 0
    write(Path("own") / "math" / "test.jsonl", ["mine"])
    with pytest.raises(UserError, match=r"math/test\.jsonl: exists, but was not fetched"):
        fetch(task_to_fetch("math"), Path("own"))


def test_a_fetch_that_fails_leaves_nothing(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"cannot load main, train .*or use a local file"):
        fetch(task_to_fetch("gsm8k"), Path(PUBLIC))
    with pytest.raises(UserError, match=r"cannot load orz_math_57k_collection\.json \(FileNotFoundError"):
        fetch(task_to_fetch("orz_57k"), Path(PUBLIC))
    of_gsm8k(hub)

    def stopped(path: Path, *_: Any) -> Any:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("os.fsync", stopped)
    with pytest.raises(UserError, match="No space left on device"):
        fetch(task_to_fetch("gsm8k"), Path(PUBLIC))
    assert not [path for path in Path(PUBLIC).rglob("*") if path.is_file()]


# --- benchmarks, which have test rows alone ----------------------------------------------------------------------


def arena(number: int) -> dict[str, Any]:
    # AIME's answers are integers on the hub, HMMT's and BRUMO's text.
    return {"problem_idx": number, "problem": f"What is {number} + 1?", "answer": number + 1}


def amc(number: int) -> dict[str, Any]:
    return {"id": number, "problem": f"What is {number} + 1?", "answer": float(number + 1), "url": "https://x"}


def gpqa(number: int) -> dict[str, Any]:
    return {
        "Record ID": f"rec{number}",
        "Question": f"What is {number} + 1?",
        "Correct Answer": f" {number + 1}\n",
        **{f"Incorrect Answer {wrong}": str(number + 10 * wrong) for wrong in (1, 2, 3)},
        "Explanation": "Adding.",
        "High-level domain": "Physics" if number % 2 else "Biology",
    }


CONTESTS = [f"v202412_{contest}_en" for contest in ("AMC", "CCEE", "CNMO", "WLPMC")]
# The set -> its repository on the hub, its configurations, its split there, and a row.
BENCHMARKS: dict[str, tuple[str, list[str], str, Callable[[int], dict[str, Any]]]] = {
    "aime26": ("MathArena/aime_2026", ["default"], "train", arena),
    "hmmt_feb25": ("MathArena/hmmt_feb_2025", ["default"], "train", arena),
    "hmmt_nov25": ("MathArena/hmmt_nov_2025", ["default"], "train", arena),
    "hmmt_feb26": (
        *("MathArena/hmmt_feb_2026", ["default"], "train"),
        lambda number: {**arena(number), "answer": f"\\frac{{{2 * number + 2}}}{{2}}", "problem_type": ["Algebra"]},
    ),
    "brumo25": ("MathArena/brumo_2025", ["default"], "train", lambda n: {**arena(n), "answer": str(n + 1)}),
    "beyondaime": (
        *("ByteDance-Seed/BeyondAIME", ["default"], "test"),
        lambda number: {"problem": f"What is {number} + 1?", "answer": number + 1},
    ),
    "amc83": ("AI-MO/aimo-validation-amc", ["default"], "train", amc),
    "livemathbench": (
        *("opencompass/LiveMathBench", [*CONTESTS, "v202412_AMC_cn"], "test"),
        lambda number: {"question": f"What is {number} + 1?", "answer": f"${number + 1}$"},
    ),
    "gpqa_diamond": ("Idavidrein/gpqa", ["gpqa_diamond", "gpqa_main"], "train", gpqa),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_is_read_in_the_columns_of_its_authors_and_judged(hub: Path, name: str) -> None:
    repository, configs, split, row = BENCHMARKS[name]
    folder = hub / repository
    for part, config in enumerate(configs):
        write(folder / config / "rows.parquet", [row(10 * part + number) for number in range(6)])
    card(folder, {config: {split: f"{config}/rows.parquet"} for config in configs})
    read = {"livemathbench": 4}.get(name, 1)
    of_hub = problems(name, "test", None)
    assert len(of_hub) == 6 * read
    fetch(task_to_fetch(name), Path(PUBLIC))
    assert problems(name, "test", PUBLIC) == of_hub
    task = load_config(overrides=[f"task={task_to_fetch(name).name}", f"task.data={name}"]).task
    for problem in of_hub.values():
        number = int(problem.question.split()[2])
        right = str(number + 1)
        if name == "gpqa_diamond":
            listed = dict(line.split(") ", 1) for line in problem.question.splitlines() if line[1:2] == ")")
            right = next(letter for letter, text in listed.items() if text == right)
            assert len(listed) == 4 and problem.subgroup == ("Physics" if number % 2 else "Biology")
        assert task.judge(problem, f"So it is \\boxed{{{right}}}.").correct
        assert not task.judge(problem, f"So it is \\boxed{{{'D' if right == 'A' else 'A'}}}.").correct
        assert task.judge(problem, "I do not know.").reason == "no_answer"


def test_a_benchmark_of_2026_is_sampled_as_its_authors_do() -> None:
    setting = default_setting("hmmt_feb26")
    assert (setting.samples, setting.pass_at, setting.greedy) == (4, (1, 2, 4), False)
    assert (setting.temperature, setting.max_new_tokens, data_sets()["hmmt_feb26"].size) == (0.6, 16_000, 33)
    assert "MathArena" in setting.source["samples"] and set(setting.source) == set(default_setting("aime24").source)
    assert default_setting("livemathbench").pass_at == (1, 2, 4, 8, 16, 32)
    assert [data_sets()[name].size for name in ("amc23", "amc83", "gpqa_diamond", "beyondaime")] == [40, 83, 198, 100]


def test_choices_are_in_an_order_of_the_problem_alone_and_letters_are_read() -> None:
    """Every letter is right somewhere, and the same for every reading of the row."""
    read = [gpqa_task.GPQA().problem_from({"id": "x", **gpqa(number)}, "row") for number in range(40)]
    again = [gpqa_task.GPQA().problem_from({"id": "y", **gpqa(number)}, "elsewhere") for number in range(40)]
    assert read == again and {problem.data["answer"] for problem in read} == set("ABCD")
    for text, strict, paper in [
        *((text, "B", "B") for text in ("B", "(B)", "B.", "B)", r"\text{B}", r"\textbf{(B)}", "$B$", "**B**")),
        ("B) the second", None, "B"),
        *((text, None, None) for text in ("AB", "b", "E", "", "the second", "A or B")),
    ]:
        assert (gpqa_task.read_letter(text), gpqa_task.read_letter(text, "paper")) == (strict, paper), text
    with pytest.raises(UserError, match="answer must be one of A, B, C, D"):
        gpqa_task.GPQA().problem_from({"id": "x", "question": "?", "answer": "E"}, "row")
    with pytest.raises(UserError, match="Incorrect Answer 2"):
        gpqa_task.GPQA().problem_from({**gpqa(1), "Incorrect Answer 2": None}, "row")
