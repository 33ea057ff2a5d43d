"""What `rlvr eval` is given: found, checked and refused before any model is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlvr_cli.config.keys import make_override
from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.jobs import EvalJob, EvalRequest, make_jobs
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks.countdown import Countdown
from rlvr_cli.tasks.math_answers import AnswerTask
from tests.recipes import loaded

MakeRun = Callable[..., RunDir]


def request(tmp_path: Path, *arguments: str, **options: Any) -> EvalJob:
    return make_jobs((), EvalRequest(arguments=(*arguments, f"run.dir={tmp_path / 'runs'}"), **options))[0][0]


def plan(tmp_path: Path, names: str, *arguments: str, **options: Any) -> list[EvalJob]:
    return make_jobs((names,), EvalRequest(arguments=(*arguments, f"run.dir={tmp_path / 'runs'}"), **options))[0]


def problems_of(tmp_path: Path, *arguments: str, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        request(tmp_path, *arguments, **options)
    return "\n".join(caught.value.problems)


def test_with_nothing_named_the_newest_checkpoint_of_the_newest_run(tmp_path: Path, make_run: MakeRun) -> None:
    make_run("first", created="2026-01-01T00:00:00")
    make_run("second", steps=(5, 15), created="2026-01-02T00:00:00")
    asked = request(tmp_path)
    assert [subject.label for subject in asked.target.subjects] == ["second step 15"]
    assert asked.config.rollout.max_new_tokens == asked.settings.max_new_tokens == 12


def test_a_run_is_found_by_name_and_by_path_a_checkpoint_and_a_model_by_path(
    tmp_path: Path, make_run: MakeRun, models: list[Path]
) -> None:
    run = make_run("trained")
    for name, label in {
        "trained": "trained step 30",
        str(run.path): "trained step 30",
        str(run.checkpoints_dir / "step-10"): "trained step 10",
        str(models[1]): "model-1",
    }.items():
        subject = request(tmp_path, name).target.subjects[0]
        assert (subject.label, subject.style) == (label, "compact")


def test_the_base_of_a_run_is_evaluated_as_the_run_is(tmp_path: Path, make_run: MakeRun, models: list[Path]) -> None:
    run = make_run("trained")
    trained, base = request(tmp_path, "trained", against="base"), request(tmp_path, "base:trained")
    for target in (trained.against, base.target, request(tmp_path, against="base:trained").target):
        assert target is not None and target.subjects[0].model in (str(models[0]), str(run.checkpoints_dir / "step-30"))
    assert base.settings == trained.settings and base.config.task == trained.config.task
    assert "lab is a model; a run has a base" in problems_of(tmp_path, "lab", against="base")
    text = run.config_path.read_text(encoding="utf-8").replace(str(models[0]), "lab-math")
    run.config_path.write_text(text, encoding="utf-8")
    for other in ("base", "lab"):
        against = request(tmp_path, "trained", against=other).against
        assert against is not None and against.subjects[0].model == "lab-math"


def test_a_model_is_evaluated_by_a_configuration_file(tmp_path: Path, make_run: MakeRun, models: list[Path]) -> None:
    file = tmp_path / "base.yaml"
    text = f"model: {models[1]}\ntask: countdown\neval: {{samples: 3, pass_at: [1]}}\noptimizer: {{lr: 1e-3}}\n"
    file.write_text(text, encoding="utf-8")
    for asked, label in (
        (request(tmp_path, config=(file,)), "model-1"),
        (request(tmp_path, "lab", config=(file,)), "lab-countdown"),
    ):
        assert (asked.target.subjects[0].label, asked.config.task.name, asked.settings.samples) == (
            label,
            "countdown",
            3,
        )
    file.write_text(text.replace("samples: 3, pass_at: [1]", "samples: 0, greedy: false"), encoding="utf-8")
    asked = request(tmp_path, "eval.greedy=true", config=(file,))
    assert asked.target.subjects[0].label == "model-1", "the file is read with what makes it valid"
    make_run("trained")
    asked = request(tmp_path, "trained", "eval.samples=2", config=(file,))
    assert (asked.target.subjects[0].label, asked.config.task.name, asked.settings.samples) == (
        "trained step 30",
        "countdown",
        2,
    )


def test_a_damaged_newest_checkpoint_is_named_and_skipped(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run("trained")
    (run.checkpoints_dir / "step-30" / "model.safetensors").write_bytes(b"")
    target = request(tmp_path).target
    assert target.subjects[0].label == "trained step 20"
    assert "step-30 skipped: model.safetensors was altered after it was written (it has 0 bytes" in target.notes[0]
    assert "is damaged: model.safetensors" in problems_of(tmp_path, str(run.checkpoints_dir / "step-30"))


def test_average_last_takes_the_newest_and_refuses_more_than_there_are(
    tmp_path: Path, make_run: MakeRun, models: list[Path]
) -> None:
    make_run("trained")
    labels = [subject.label for subject in request(tmp_path, average_last=2).target.subjects]
    assert labels == ["trained step 30", "trained step 20"]
    assert "needs 4 checkpoints; this run has 3 (steps 10, 20, 30)" in problems_of(tmp_path, average_last=4)
    assert "only a run has checkpoints to average" in problems_of(tmp_path, str(models[0]), average_last=3)


def test_a_k_asks_for_as_many_samples_as_it_needs(tmp_path: Path, make_run: MakeRun) -> None:
    """By the run's section `eval`, which has 4 samples; what is sampled during training is another section's."""
    config = make_run().config_path
    config.write_text(config.read_text(encoding="utf-8").replace("samples: 32", "samples: 1"), encoding="utf-8")
    assert request(tmp_path).settings.samples == 4
    assert request(tmp_path, "eval.pass_at=[32]").settings.samples == 32
    assert request(tmp_path, "eval.pass_at=[2]").settings.samples == 4
    (math,) = plan(tmp_path, "math500", "eval.pass_at=[64]")
    assert math.settings.samples == 64
    asked = make_override("--pass-at", "eval.pass_at", ["1,8", "9", "8"])
    for samples, number in (("0", 9), ("8", 9), ("12", 12)):
        settings = request(tmp_path, asked, f"eval.samples={samples}").settings
        assert (settings.pass_at, settings.samples) == ((1, 8, 9), number)
    for samples, ks in (("0", ()), ("2", (1,)), ("8", (1, 4))):
        settings = request(tmp_path, f"eval.samples={samples}").settings
        assert (settings.pass_at, settings.samples) == (ks, int(samples))
    assert request(tmp_path, "eval.pass_at=[]").settings.pass_at == (1,), "those of 1, 8 and 32 that 4 samples allow"


def test_the_evaluations_during_training_have_settings_of_their_own() -> None:
    asked = ("samples=4", "problems=10", "temperature=0.5", "max_new_tokens=7", "split=test", "engine=transformers")
    config = load_config(
        overrides=["rollout.engine=local", "rollout.max_new_tokens=1024", *(f"validation.{text}" for text in asked)]
    )
    settings = EvalSettings(10, 4, (1,), 0.5, max_new_tokens=7, split="dev", engine="transformers")
    assert EvalSettings.in_training(config) == settings, "the dev split of generated problems"
    assert EvalSettings.from_config(config) == EvalSettings(engine="local")
    rows = load_config(overrides=["task=math", "task.data=dsr_uniform", "validation.split=dev"])
    assert EvalSettings.in_training(rows).split == "dev" and EvalSettings.from_config(rows).split == "test"


def test_generated_problems_are_a_benchmark_with_the_runs_settings(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run was trained on Knights & Knaves; its own settings stay."""
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    make_run()
    (same,) = plan(tmp_path, "kk-gen")
    assert same.config.task == request(tmp_path).config.task
    assert (same.settings, same.all_problems) == (request(tmp_path).settings, False)
    (other,) = plan(tmp_path, "countdown-gen", "task.numbers={4: 1.0}")
    assert isinstance(other.config.task, Countdown)
    assert (other.config.task.data, other.config.task.numbers) == ("countdown-gen", {4: 1.0})
    assert other.settings.samples == 4
    with pytest.raises(UserError, match="task countdown has no people"):
        plan(tmp_path, "countdown-gen", "task.people={2: 1.0}")


def test_the_name_of_a_public_set_means_that_set(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    make_run()
    for name in ("kk", "countdown", "math", "gsm8k", "hitab", "math500"):
        (asked,) = plan(tmp_path, name)
        assert (asked.config.task.data, asked.benchmark) == (name, name) and asked.setting is not None
    # A run on the public set, evaluated on generated problems, and the other way round.
    (own,) = plan(tmp_path, "kk-gen", "task.data_dir=null")
    assert (own.config.task.data, own.benchmark) == ("kk-gen", "kk-gen")


def test_a_name_without_an_owner_is_a_run_or_is_refused_at_once(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("asked the hub"))
    assert f"There is no run in {tmp_path}" in problems_of(tmp_path, "first")
    assert "Did you mean `lab-math`? Give a model folder, a hub id with its owner" in problems_of(tmp_path, "lab-mth")
    make_run("first")
    assert "Did you mean `first`?" in problems_of(tmp_path, "frist")
    (tmp_path / "runs" / "sweep").mkdir()
    make_run("sweep/grpo-s0")
    trials = {"file": "s.yaml", "trials": [{"name": f"grpo-s{seed}", "method": "grpo"} for seed in range(9)]}
    (tmp_path / "runs" / "sweep" / "trials.json").write_text(json.dumps(trials), encoding="utf-8")
    for name in ("sweep", str(tmp_path / "runs" / "sweep")):
        text = problems_of(tmp_path, name)
        assert "is a sweep, not a run. Name one of its 9 trials:" in text and "/grpo-s0, " in text
        assert r"`printf '\neval: {}\n' >> s.yaml && rlvr sweep s.yaml` evaluates all." in text
    assert "sweep/grpo-s0`? Name one" in problems_of(tmp_path, "sweep/gpro-s0")
    assert request(tmp_path, "sweep/grpo-s0").target.run is not None


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, make_run: MakeRun) -> None:
    make_run(steps=())
    assert "no checkpoint that can be used (none was written yet)" in problems_of(tmp_path)


def test_all_of_a_file_is_evaluated_unless_its_name_says_a_split(tmp_path: Path, make_run: MakeRun) -> None:
    make_run()
    for name, split in {"mine.jsonl": "all", "mine.test.jsonl": "test"}.items():
        (tmp_path / name).write_text("", encoding="utf-8")
        assert request(tmp_path, f"task.data={tmp_path / name}").settings.split == split
    assert "`all` is for problems from --data" in problems_of(tmp_path, split="all")


def test_a_run_is_evaluated_on_the_benchmarks_that_its_configuration_names(
    tmp_path: Path, make_run: MakeRun, models: list[Path]
) -> None:
    """Unless the call names benchmarks, data or a task; a checkpoint is its run's; a model has none."""
    run = make_run("trained")
    text = run.config_path.read_text(encoding="utf-8")
    assert "  benchmark: []\n" in text
    run.config_path.write_text(text.replace("  benchmark: []\n", "  benchmark: [math500, gsm8k]\n"), encoding="utf-8")

    def asked(*arguments: str, names: tuple[str, ...] = (), **options: Any) -> list[str | None]:
        options = {"arguments": (*arguments, f"run.dir={tmp_path / 'runs'}"), **options}
        return [one.benchmark for one in make_jobs(names, EvalRequest(**options))[0]]

    assert asked() == asked("trained") == asked(str(run.checkpoints_dir / "step-10")) == ["math500", "gsm8k"]
    assert asked("trained", f"task.data_dir={tmp_path}", names=("kk",)) == ["kk"]
    assert asked("trained", "eval.benchmark=minerva") == ["minerva"]
    assert asked("trained", "eval.benchmark=[]") == asked("trained", "task.name=kk") == [None]
    assert asked(str(models[0])) == [None]
    assert asked(str(models[0]), "eval.benchmark=[aime24]") == ["aime24"]
    with pytest.raises(UserError, match=r"eval\.benchmark: unknown benchmark .math50"):
        asked("trained", "eval.benchmark=math50")


@pytest.mark.parametrize(("model", "template"), [("qwen2.5-7b", "none"), ("qwen2.5-7b-instruct", "auto")])
def test_a_recipes_run_is_evaluated_on_its_suite_with_the_prompts_that_it_was_trained_on(
    tmp_path: Path, make_run: MakeRun, model: str, template: str
) -> None:
    """Base models without a chat template, for both of the landscape suite's tasks."""
    recipe = dump_yaml(loaded(f"landscape/table-1/simplerl-{model}-pl"))
    make_run("trained").config_path.write_text(recipe, encoding="utf-8")
    requests = make_jobs((), EvalRequest(arguments=("trained", f"run.dir={tmp_path / 'runs'}")))[0]
    assert len(requests) == 6 and all(one.settings.samples == 0 and one.settings.greedy for one in requests)
    tasks = [one.config.task for one in requests]
    assert {task.name for task in tasks} == {"gsm8k", "math"}
    assert all(isinstance(task, AnswerTask) and task.template == template for task in tasks)
