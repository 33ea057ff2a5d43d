"""An evaluation on disk: nothing sampled twice, nothing mixed, gaps filled as if never interrupted."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.store.evaluation import read_prompts, read_samples
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.kk import KnightsAndKnaves

SETTINGS = EvalSettings(problems=5, samples=4, pass_at=(1, 4), max_new_tokens=10, batch=6)
PLANNED = 5 * (4 + 1)


@pytest.fixture(scope="module")
def task() -> Task:
    return KnightsAndKnaves(style="compact")


@pytest.fixture(scope="module")
def problems(task: Task) -> list[Problem]:
    return task.problems("test", 5, 0)


@pytest.fixture(scope="module")
def loaded(models: list[Path]) -> Iterator[list[tuple[Any, Any]]]:
    from rlvr_cli.models.load import load_model

    yield [load_model(str(folder)) for folder in models]


def run(loaded: tuple[Any, Any], task: Task, problems: list[Problem], settings: EvalSettings, folder: Path) -> Any:
    from rlvr_cli.evaluation.evaluate import evaluate_with
    from rlvr_cli.evaluation.sampling import LocalSampler

    steps: list[Any] = []
    sampler = LocalSampler(*loaded, settings.engine)
    result = evaluate_with(sampler, task, problems, settings, folder, steps.append).result
    return result, steps


def records(folder: Path) -> dict[tuple[str, Any], dict[str, Any]]:
    rows = read_samples(folder)
    assert len({(row["problem"], row["sample"]) for row in rows}) == len(rows)
    return {(row["problem"], row["sample"]): row for row in rows}


def test_one_record_a_sample_one_file_of_numbers(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    result, steps = run(loaded[0], task, problems, SETTINGS, tmp_path)
    tokenizer = loaded[0][1]
    assert read_prompts(tmp_path) == {problem.id: task.prompt(problem, tokenizer) for problem in problems}
    found = records(tmp_path)
    assert set(found) == {(problem.id, index) for problem in problems for index in (*range(4), "greedy")}
    assert all(1 <= row["tokens"] <= 10 and row["log_prob"] < 0 for row in found.values())
    assert json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8")) == result
    assert {"greedy", "avg@4", "pass@1", "pass@4", "maj@4", "length", "truncated"} <= set(result["metrics"])
    assert sum(result["metrics"][f"reason/{reason}"]["value"] for reason in task.reasons) == pytest.approx(1.0)
    assert len(read_jsonl(tmp_path / "problems.jsonl")) == result["problems"] == 5
    assert (steps[0].done, steps[-1].done, steps[-1].planned) == (0, PLANNED, PLANNED)
    assert steps[-1].tokens == sum(row["tokens"] for row in found.values())


@pytest.mark.parametrize("engine", ["local", "transformers"])
def test_every_stop_token_of_the_generation_config_is_left_out_of_the_text(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """As the tokenizer's own is: models of Gemma's kind end a turn with another."""
    model, tokenizer = loaded[0]
    run(loaded[0], task, problems, SETTINGS, tmp_path / "before")
    words = [row["text"].split()[1] for row in records(tmp_path / "before").values() if len(row["text"].split()) > 2]
    stop = max(set(words), key=words.count)
    stops = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(stop)]
    monkeypatch.setattr(model.generation_config, "eos_token_id", stops)
    run(loaded[0], task, problems, replace(SETTINGS, engine=engine), tmp_path / "after")
    found = records(tmp_path / "after").values()
    assert not any(stop in row["text"].split() for row in found)
    assert any(not row["truncated"] and row["tokens"] == len(row["text"].split()) + 1 for row in found)


def test_problems_with_one_prompt_share_their_greedy_completion_and_no_other(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlvr_cli.models.sampling.local import DecodingBatch

    rows: list[int] = []
    begin = DecodingBatch.__init__

    def counted(self: DecodingBatch, decoder: Any, prompts: Any, max_new_tokens: int) -> None:
        rows.append(len(prompts))
        begin(self, decoder, prompts, max_new_tokens)

    monkeypatch.setattr(DecodingBatch, "__init__", counted)
    run(loaded[0], task, problems, replace(SETTINGS, batch=None), tmp_path / "five")
    assert sum(rows) == PLANNED
    rows.clear()
    again = [replace(problem, id=f"{problem.id}-again") for problem in problems[:4]]
    run(loaded[0], task, [*problems, *again], replace(SETTINGS, batch=None), tmp_path / "nine")
    assert sum(rows) == 5 + 9 * 4
    five, nine = records(tmp_path / "five"), records(tmp_path / "nine")
    for problem in problems[:4]:
        own, copy = nine[problem.id, "greedy"], nine[f"{problem.id}-again", "greedy"]
        assert {**own, "problem": copy["problem"]} == copy and own == five[problem.id, "greedy"]
    assert any(nine[problem.id, 0]["text"] != nine[f"{problem.id}-again", 0]["text"] for problem in problems[:4])


def test_a_second_evaluation_samples_nothing_and_more_samples_or_problems_only_the_rest(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    few = replace(SETTINGS, samples=2, pass_at=(1,), problems=3)
    run(loaded[0], task, problems[:3], few, tmp_path)
    before = records(tmp_path)
    _, again = run(loaded[0], task, problems[:3], few, tmp_path)
    assert again[-1].tokens == 0
    assert records(tmp_path) == before

    _, steps = run(loaded[0], task, problems, SETTINGS, tmp_path)
    assert steps[-1].earlier == len(before) == 9
    result, _ = run(loaded[0], task, problems, replace(SETTINGS, pass_at=(4,)), tmp_path)
    assert {"pass@1", "pass@4"} <= result["metrics"].keys(), "the k of a smaller evaluation stay"
    after = records(tmp_path)
    assert len(after) == PLANNED
    assert {key: after[key] for key in before} == before
    run(loaded[0], task, problems, SETTINGS, tmp_path / "whole")
    assert after == records(tmp_path / "whole")


@pytest.mark.parametrize(("batch", "fitting", "at_once"), [(None, 3, 3), (None, 1000, 20), (7, 3, 7)])
def test_as_many_at_once_as_fit_unless_a_person_says_how_many(
    loaded: list[Any],
    task: Task,
    problems: list[Problem],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    batch: int | None,
    fitting: int,
    at_once: int,
) -> None:
    from rlvr_cli.evaluation import sampling
    from rlvr_cli.models.sampling import local as sampler

    run(loaded[0], task, problems, SETTINGS, tmp_path / "six")
    sizes: list[int] = []
    begin = sampler.DecodingBatch.__init__

    def counted(self: Any, decoder: Any, prompts: Any, max_new_tokens: int) -> None:
        sizes.append(len(prompts))
        begin(self, decoder, prompts, max_new_tokens)

    monkeypatch.setattr(sampler.DecodingBatch, "__init__", counted)
    monkeypatch.setattr(sampling, "rows_that_fit", lambda *arguments, **named: fitting)
    run(loaded[0], task, problems, replace(SETTINGS, batch=batch), tmp_path / "other")
    assert max(sizes) == at_once
    assert records(tmp_path / "other") == records(tmp_path / "six")


def test_another_seed_gives_other_samples_but_the_same_greedy_completions(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    run(loaded[0], task, problems, SETTINGS, tmp_path / "0")
    run(loaded[0], task, problems, replace(SETTINGS, seed=1), tmp_path / "1")
    first, second = records(tmp_path / "0"), records(tmp_path / "1")
    same = {key for key in first if first[key]["text"] == second[key]["text"]}
    assert {key for key in first if key[1] == "greedy"} <= same
    assert len(same) < PLANNED


KILLED = """
import os, signal, sys
from pathlib import Path
from rlvr_cli.tasks.kk import KnightsAndKnaves
from rlvr_cli.evaluation.evaluate import evaluate_with
from rlvr_cli.evaluation.sampling import LocalSampler
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.models.load import load_model

sampler = LocalSampler(*load_model(sys.argv[1]))
task = KnightsAndKnaves(style="compact")
settings = EvalSettings(problems=5, samples=4, pass_at=(1, 4), max_new_tokens=10, batch=6)

def die(progress):
    if progress.done >= 13:
        os.kill(os.getpid(), signal.SIGKILL)

evaluate_with(sampler, task, task.problems("test", 5, 0), settings, Path(sys.argv[2]), die)
"""


@pytest.fixture(scope="module")
def killed(models: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an evaluation that was killed by SIGKILL half way."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run([sys.executable, "-c", KILLED, str(models[0]), str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    return folder


@pytest.mark.parametrize("torn", [0, 1, 25])
def test_a_killed_evaluation_continues_to_the_same_samples(
    loaded: list[Any], killed: Path, task: Task, problems: list[Problem], tmp_path: Path, torn: int
) -> None:
    shutil.copytree(killed, tmp_path / "killed")
    path = tmp_path / "killed" / "samples.jsonl"
    path.write_bytes(path.read_bytes()[: -torn or None])
    kept = len(path.read_text(encoding="utf-8").split("\n")) - 1
    assert 0 < kept < PLANNED

    _, steps = run(loaded[0], task, problems, SETTINGS, tmp_path / "killed")
    assert steps[0].done == steps[0].earlier == kept
    run(loaded[0], task, problems, SETTINGS, tmp_path / "unbroken")
    assert records(tmp_path / "killed") == records(tmp_path / "unbroken")
    metrics = [(tmp_path / name / "metrics.json").read_text(encoding="utf-8") for name in ("killed", "unbroken")]
    assert metrics[0] == metrics[1]


def test_samples_of_other_weights_settings_or_prompts_are_never_mixed(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    run(loaded[0], task, problems, SETTINGS, tmp_path)
    before = (tmp_path / "samples.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"another evaluation \(different: weights\)"):
        run(loaded[1], task, problems, SETTINGS, tmp_path)
    with pytest.raises(UserError, match=r"different: sampling.max_new_tokens, sampling.temperature"):
        run(loaded[0], task, problems, replace(SETTINGS, temperature=0.5, max_new_tokens=9), tmp_path)
    swapped = [replace(problems[0], data=problems[1].data), *problems[1:]]
    with pytest.raises(UserError, match="were drawn for a different prompt"):
        run(loaded[0], task, swapped, SETTINGS, tmp_path)
    solution = [not knight for knight in problems[0].data["solution"]]
    corrected = [replace(problems[0], data={**problems[0].data, "solution": solution}), *problems[1:]]
    with pytest.raises(UserError, match="judged against different data"):
        run(loaded[0], task, corrected, SETTINGS, tmp_path)
    assert (tmp_path / "samples.jsonl").read_bytes() == before


def test_two_evaluations_cannot_write_one_folder(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    from rlvr_cli.evaluation.sample_store import SampleStore
    from rlvr_cli.evaluation.sampling import LocalSampler

    known = LocalSampler(*loaded[0]).identity(task, SETTINGS)
    with (
        SampleStore(tmp_path, known).open(),
        pytest.raises(UserError, match="in use by another process"),
    ):
        run(loaded[0], task, problems, SETTINGS, tmp_path)


def test_altered_records_are_named_with_their_line(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    run(loaded[0], task, problems, SETTINGS, tmp_path)
    path = tmp_path / "samples.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([lines[0], "nonsense\n", *lines[2:]]), encoding="utf-8")
    with pytest.raises(RunError, match=r"samples.jsonl:2: not a JSON line"):
        run(loaded[0], task, problems, SETTINGS, tmp_path)
    path.write_text("".join([lines[0], lines[0]]), encoding="utf-8")
    with pytest.raises(RunError, match=r"samples.jsonl:2: duplicate sample"):
        run(loaded[0], task, problems, SETTINGS, tmp_path)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_sample_that_was_edited_is_named_with_its_line(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path, sealed: bool
) -> None:
    """Also where the hash of the line was taken off."""
    run(loaded[0], task, problems, SETTINGS, tmp_path)
    path = tmp_path / "samples.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    rows[6]["correct"] = not rows[6]["correct"]
    if not sealed:
        del rows[6]["check"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(RunError, match=r"samples\.jsonl:7: this sample was altered"):
        run(loaded[0], task, problems, SETTINGS, tmp_path)


@pytest.mark.parametrize(
    ("name", "was", "now"),
    [("metrics.json", '"samples": 4', '"samples": 5'), ("problems.jsonl", '"length": ', '"length": 1')],
)
def test_numbers_that_were_edited_are_refused_and_made_again(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path, name: str, was: str, now: str
) -> None:
    from rlvr_cli.store.evaluation import read_evaluation

    run(loaded[0], task, problems, SETTINGS, tmp_path)
    path, before = tmp_path / name, (tmp_path / name).read_text(encoding="utf-8")
    path.write_text(before.replace(was, now, 1), encoding="utf-8")
    assert path.read_text(encoding="utf-8") != before
    with pytest.raises(RunError, match=rf"{name}: was altered"):
        read_evaluation(tmp_path)
    run(loaded[0], task, problems, SETTINGS, tmp_path)
    assert path.read_text(encoding="utf-8") == before and read_evaluation(tmp_path).rows


def test_weights_with_nan_are_refused_before_a_number_is_written(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    import copy

    import torch

    model, tokenizer = loaded[0]
    broken = copy.deepcopy(model)
    with torch.no_grad():
        next(broken.parameters()).fill_(float("nan"))
    with pytest.raises(RunError, match="not finite"):
        run((broken, tokenizer), task, problems, SETTINGS, tmp_path)
    assert not (tmp_path / "metrics.json").exists()


def test_evaluating_leaves_the_model_and_the_random_state_as_they_were(
    loaded: list[Any], task: Task, problems: list[Problem], tmp_path: Path
) -> None:
    import torch

    model, _ = loaded[2]
    model.train()
    state = torch.random.get_rng_state()
    run(loaded[2], task, problems, SETTINGS, tmp_path)
    assert model.training
    assert torch.equal(state, torch.random.get_rng_state())
