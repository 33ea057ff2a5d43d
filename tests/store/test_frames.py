"""Results as data frames: the rows are the records', and bad input is refused as by the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli import store
from rlvr_cli.core.errors import RunError, UserError
from tests.compare.made_runs import ROLLOUTS, SAMPLES, evaluate, make_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        make_run(root, f"grpo-{seed}", seed=seed, right=[1, 2, 3], held_out={1: [0, 1], 2: [4, 4]})
        make_run(root, f"dgpo-{seed}", seed=seed, method="dgpo", right=[4, 4, 2])
    make_run(root, "begun", seed=2, status="interrupted")
    return root


def test_runs_have_their_arm_state_and_every_key(root: Path) -> None:
    frame = store.runs(root=root).set_index("name")
    assert list(frame.index) == ["begun", "dgpo-0", "dgpo-1", "grpo-0", "grpo-1"]
    assert frame.loc["dgpo-0", "arm"] == frame.loc["dgpo-1", "arm"] == "dgpo"
    assert frame.loc["begun", "arm"] == frame.loc["grpo-0", "arm"] == "grpo"
    assert frame.loc["begun", "status"] == "interrupted"
    assert list(frame["seed"]) == [2, 0, 1, 0, 1]
    assert set(frame["train.rollouts"]) == {ROLLOUTS}


def test_steps_join_metrics_and_seconds(root: Path) -> None:
    frame = store.steps(store.runs("grpo-*", root=root))
    for _, own in frame.groupby("run"):
        assert list(own["step"]) == list(range(1, len(own) + 1))
        assert own["update_tokens"].sum() == 640 * len(own)
        assert own["seconds"].sum() == own["seconds/update"].sum() + own["seconds/rollout"].sum()


def test_problems_are_those_of_each_evaluation(root: Path) -> None:
    made = store.evaluations(store.runs("grpo-0", "dgpo-0", root=root))
    assert dict(zip(made["arm"], made["step"], strict=True)) == {"grpo": ROLLOUTS, "dgpo": ROLLOUTS}
    assert (
        set(made["split"]) == {"test"} and set(made["sampling.temperature"]) == {1.0} and set(made["model"]) == {"lab"}
    )
    frame = store.problems(made)
    means = frame.groupby(frame["run"].map(lambda path: Path(path).name))[f"avg@{SAMPLES}"].mean()
    assert means.to_dict() == pytest.approx({"grpo-0": 6 / 12, "dgpo-0": 10 / 12})
    assert set(frame["benchmark"]) == {"kk-gen"}
    held_out = store.problems(store.evaluations(store.runs("grpo-0", root=root), in_training=True))
    assert held_out.groupby("rollouts")[f"pass@{SAMPLES}"].mean().to_dict() == {1: 0.5, 2: 1.0}


def test_samples_give_the_numbers_of_their_problems(root: Path) -> None:
    made = store.evaluations(store.runs("grpo-0", root=root))
    samples = store.samples(made)
    sampled = samples[samples["sample"] != "greedy"]
    by_problem = sampled.groupby("problem")["correct"].mean()
    of_problems = store.problems(made).set_index("problem")[f"avg@{SAMPLES}"]
    assert by_problem.to_dict() == of_problems.to_dict()
    assert "parts/answer" in samples.columns


def test_the_last_evaluation_is_that_of_the_commands(root: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path, "one", right=[1, 1])
    for step, temperature in ((2, 1.0), (4, 0.5), (1, 0.5)):
        evaluate(run, [2, 2], step=step, temperature=temperature)
    final = store.last(store.evaluations(store.runs("one", root=tmp_path)))
    assert dict(zip(final["sampling.temperature"], final["step"], strict=True)) == {1.0: ROLLOUTS, 0.5: 4}


def test_arms_by_other_keys(root: Path) -> None:
    frame = store.runs("grpo-*", "dgpo-0", root=root, by="method.name")
    assert dict(zip(frame["name"], frame["arm"], strict=True)) == {"dgpo-0": "dgpo", "grpo-0": "grpo", "grpo-1": "grpo"}
    with pytest.raises(UserError, match=r"method\.nme: unknown key"):
        store.runs(root=root, by=("method.nme",))


def test_names_that_stand_for_nothing_and_altered_records_are_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        store.runs(root=tmp_path / "nowhere")
    with pytest.raises(UserError, match="grpo-7: no run"):
        store.runs("grpo-7", root=root)
    run = make_run(tmp_path, "one", right=[1, 1])
    (path,) = run.eval_dir.glob("*/problems.jsonl")
    path.write_text(path.read_text().replace("0.25", "0.5"))
    with pytest.raises(RunError, match="altered"):
        store.evaluations(store.runs("one", root=tmp_path))


def test_no_run_is_an_empty_frame(tmp_path: Path) -> None:
    runs = store.runs(root=tmp_path)
    made = store.evaluations(runs)
    assert runs.empty and store.steps(runs).empty and made.empty and store.arms(runs).empty
    assert store.last(made).empty and {"run", "arm", "evaluation", "problem"} <= set(store.problems(made))
    assert list(store.samples(made)["sample"]) == []
