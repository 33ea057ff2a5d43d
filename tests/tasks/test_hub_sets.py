"""The hub's data sets, in rows shaped as theirs are: real parquet and JSON files, read by `datasets` itself."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks import countdown as countdown
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.data import LeftOut
from rlvr_cli.tasks.gsm8k import GSM8K
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.tasks.math import MathTask
from rlvr_cli.tasks.math_rows import problem_from

datasets = pytest.importorskip("datasets")

DAPO_HEAD = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'


def dapo(number, *, answer=None, copy=0):
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": f"{DAPO_HEAD}What is {number} + 1?{DAPO_TAIL}", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(answer or number + 1), "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"{copy}-{number}"},
    }


def orz(number):
    return [
        {"from": "human", "value": f"What is {number} + 1?"},
        {"from": "assistant", "ground_truth": {"value": str(number + 1)}},
    ]


def simplerl(number, answer=None):
    text = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nWhat is {number} + 1?"
    gold = str(number + 1) if answer is None else answer
    return {
        "data_source": "simplelr_qwen",
        "prompt": [{"content": text, "role": "user"}],
        "ability": "math",
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"question": f"What is {number} + 1?", "answer": gold, "index": number, "split": "train"},
        "level": 3 + number % 3,
        "gt_answer": gold,
    }


def numina(number, proof=False):
    end = "so it is proved." if proof else f"so it is \\boxed{{{number}}} minus nothing, \\boxed{{{number + 1}}}."
    return {
        "source": "olympiads",
        "problem": f"What is {number} + 1?",
        "solution": f"We add, {end}",
        "messages": [{"content": "?", "role": "user"}],
    }


def lighteval(number):
    return {
        "problem": f"What is {number} + 1?",
        "level": f"Level {1 + number % 5}",
        "type": "Algebra",
        "solution": f"It is $\\boxed{{{number + 1}}}$.",
    }


def parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder in place of the hub: ``hub / owner / name`` is a data set's repository."""
    root = tmp_path / "hub"
    real = datasets.load_dataset

    def load_dataset(hub_id, name=None, **options):
        return real(str(root / hub_id), name, cache_dir=str(tmp_path / "cache"), **options)

    def hf_hub_download(hub_id, filename, *, repo_type, revision):
        assert (repo_type, revision) == ("dataset", None)
        if not (root / hub_id / filename).is_file():
            raise FileNotFoundError(filename)
        return str(root / hub_id / filename)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hf_hub_download)
    return root


def loaded(kind, name, style="auto", **keys):
    task = kind(data=name, **keys).for_model(style)
    return [problem for split in ("train", "dev") for problem in task.problems(split, 100_000, 0)]


def expect_sums(problems, numbers):
    """Each problem asks for one of ``numbers`` plus one, without any words around it, and knows the answer."""
    found = {problem.question: problem.data["answer"] for problem in problems}
    assert found == {f"What is {number} + 1?": str(number + 1) for number in numbers}
    assert len(problems) == len(found) == len({problem.id for problem in problems})


def test_dapo_math_17k_comes_once_each_although_the_hub_repeats_it(hub):
    rows = [dapo(number, copy=copy) for copy in range(5) for number in range(300)]
    parquet(hub / "BytedTsinghua-SIA" / "DAPO-Math-17k" / "data" / "dapo-math-17k.parquet", rows)
    expect_sums(loaded(MathTask, "dapo_math_17k"), range(300))
    expect_sums(loaded(MathTask, "BytedTsinghua-SIA/DAPO-Math-17k"), range(300))


def test_a_repeated_question_whose_answers_differ_is_left_out(hub):
    rows = [dapo(0), dapo(1), dapo(0), dapo(1, answer=7), dapo(2)]
    parquet(hub / "BytedTsinghua-SIA" / "DAPO-Math-17k" / "data.parquet", rows)
    with pytest.warns(UserWarning, match="1 questions whose rows have different answers were left out"):
        problems = MathTask(data="dapo_math_17k").problems("train", 10, 0)
    assert "What is 1 + 1?" not in {problem.question for problem in problems}


def test_a_local_copy_of_dapo_math_17k_collapses_too_and_other_files_do_not(tmp_path):
    (tmp_path / "train").mkdir()
    text = "".join(json.dumps(dapo(number)) + "\n" for _ in range(3) for number in range(40))
    for name in ("dapo_math_17k", "dsr_uniform"):
        (tmp_path / "train" / f"{name}.jsonl").write_text(text)
    expect_sums(loaded(MathTask, "dapo_math_17k", data_dir=str(tmp_path)), range(40))
    assert len(loaded(MathTask, "dsr_uniform", data_dir=str(tmp_path))) == 120


def test_orz_57k_is_a_json_file_of_turns_on_the_hub_and_lines_of_turns_in_a_folder(hub, tmp_path):
    folder = hub / "Open-Reasoner-Zero" / "orz_math_57k_collection"
    with pytest.raises(UserError, match=r"cannot load orz_math_57k_collection\.json \(FileNotFoundError"):
        loaded(MathTask, "orz_57k")
    folder.mkdir(parents=True)
    (folder / "orz_math_57k_collection.json").write_text(json.dumps([orz(number) for number in range(90)]))
    expect_sums(loaded(MathTask, "orz_57k"), range(90))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "orz_57k.jsonl").write_text("".join(json.dumps(orz(n)) + "\n" for n in range(30)))
    expect_sums(loaded(MathTask, "orz_57k", data_dir=str(tmp_path)), range(30))


def test_simplerl_is_the_file_of_levels_3_to_5_and_its_questions_are_bare(hub):
    folder = hub / "hkust-nlp" / "SimpleRL-Zoo-Data"
    parquet(folder / "simplelr_qwen_level1to4" / "train.parquet", [simplerl(number) for number in range(500, 600)])
    rows = [*(simplerl(number) for number in range(90)), simplerl(90, answer=""), simplerl(91, answer="")]
    parquet(folder / "simplelr_qwen_level3to5" / "train.parquet", rows)
    parquet(folder / "simplelr_qwen_level3to5" / "test.parquet", [simplerl(number) for number in range(700, 720)])
    with pytest.warns(UserWarning, match="2 rows with an empty answer were left out"):
        problems = loaded(MathTask, "simplerl")
    expect_sums(problems, range(90))
    assert {problem.subgroup for problem in problems} == {"level 3", "level 4", "level 5"}


def test_numina_math_takes_the_last_box_and_leaves_proofs_out(hub):
    rows = [numina(number, proof=number % 4 == 0) for number in range(200)]
    parquet(hub / "AI-MO" / "NuminaMath-CoT" / "data" / "train-00000-of-00001.parquet", rows)
    parquet(hub / "AI-MO" / "NuminaMath-CoT" / "data" / "test-00000-of-00001.parquet", rows[:4])
    with pytest.warns(UserWarning, match=r"50 rows whose solution has no boxed answer were left out .*:0, "):
        problems = loaded(MathTask, "numina_math")
    expect_sums(problems, [number for number in range(200) if number % 4])
    assert all(problem.data["solution"].startswith("We add") for problem in problems)


def test_math_has_train_and_test(hub):
    folder = hub / "DigitalLearningGmbH" / "MATH-lighteval" / "data"
    parquet(folder / "train-00000-of-00001.parquet", [lighteval(number) for number in range(80)])
    parquet(folder / "test-00000-of-00001.parquet", [lighteval(number) for number in range(80, 95)])
    expect_sums(loaded(MathTask, "math"), range(80))
    test = MathTask(data="math").problems("test", 100, 0)
    expect_sums(test, range(80, 95))
    assert {problem.subgroup for problem in test} == {f"level {level}" for level in range(1, 6)}


def test_gsm8k_is_read_by_its_config(hub):
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n}+1=<<{n}+1={n + 1}>>\n#### {n + 1}"} for n in range(60)]
    for part in ("main", "socratic"):
        for split, taken in (("train", rows[:50]), ("test", rows[50:])):
            taken = [{**one, "question": one["question"] + (" Why?" if part == "socratic" else "")} for one in taken]
            parquet(hub / "openai" / "gsm8k" / part / f"{split}-00000-of-00001.parquet", taken)
    card = "".join(
        f"- config_name: {part}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {part}/{split}-*\n" for split in ("train", "test"))
        for part in ("main", "socratic")
    )
    (hub / "openai" / "gsm8k" / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    expect_sums(loaded(GSM8K, "gsm8k"), range(50))
    expect_sums(GSM8K(data="gsm8k").problems("test", 100, 0), range(50, 60))


def test_countdown_divides_its_one_split_as_tiny_zero_does(hub, monkeypatch):
    rows = [{"target": number + 5, "nums": [number, 2, 3]} for number in range(60)]
    parquet(hub / "Jiayi-Pan" / "Countdown-Tasks-3to4" / "data" / "train-00000-of-00001.parquet", rows)
    monkeypatch.setattr(countdown, "_HUB_TRAIN", 40)
    monkeypatch.setattr(countdown, "_HUB_TEST", 10)
    assert len(loaded(Countdown, "countdown", "tiny_zero", numbers={3: 1.0})) == 40
    task = Countdown(data="countdown", numbers={3: 1.0}, style="tiny_zero")
    assert {problem.id for problem in task.problems("test", 99, 0)} == {f"countdown-{n}" for n in range(40, 50)}


def test_knights_and_knaves_has_a_config_for_each_split_and_a_split_for_each_number_of_people(hub):
    folder = hub / "K-and-K" / "knights-and-knaves"
    card = ""
    for config, count in (("train", 24), ("test", 6)):
        rows = [
            {"quiz": f"Who, {config} {n}?", "names": ["Ann", "Bob"], "solution": [True, False], "index": n}
            for n in range(count)
        ]
        (folder / config).mkdir(parents=True)
        (folder / config / "people2.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
        card += f"- config_name: {config}\n  data_files:\n  - split: 2ppl\n    path: {config}/people2.jsonl\n"
    (folder / "README.md").write_text(f"---\nconfigs:\n{card}---\n")
    assert len(loaded(KnightsAndKnaves, "kk", "logic_rl", people={2: 1.0})) == 24
    task = KnightsAndKnaves(data="kk", people={2: 1.0}, style="logic_rl")
    assert {problem.question for problem in task.problems("test", 99, 0)} == {f"Who, test {n}?" for n in range(6)}


def test_what_the_hub_does_not_have_is_one_message(hub):
    with pytest.raises(UserError, match=r"cannot load train .*or give a local file"):
        loaded(MathTask, "dapo_math_17k")
    with pytest.raises(UserError, match="local files"):
        MathTask(data="numina_math").problems("all", 1, 0)
    with pytest.raises(UserError, match="local files"):
        MathTask(data="math500").problems("all", 1, 0)


def test_verls_instruction_behind_a_question_is_taken_off():
    text = "What is 1 + 1? Let's think step by step and output the final answer within \\boxed{}."
    fields = {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "2"}}
    assert problem_from(fields, "here").question == "What is 1 + 1?"


def test_a_row_without_an_answer_is_an_error_unless_its_solution_is_a_proof():
    with pytest.raises(UserError, match="here: no field answer") as raised:
        problem_from({"question": "?"}, "here")
    assert not isinstance(raised.value, LeftOut)
    with pytest.raises(LeftOut, match="here: a row whose solution has no boxed answer cannot be judged"):
        problem_from({"question": "?", "solution": "Clear."}, "here")
