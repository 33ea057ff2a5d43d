"""What a report takes for the model before training."""

from __future__ import annotations

from pathlib import Path

from rlvr_cli.evaluation.evaluate import write_results
from rlvr_cli.report.evaluations import BASE, measure_change
from rlvr_cli.store.arm import group_arms
from rlvr_cli.store.evaluation import Evaluation, read_evaluation
from rlvr_cli.store.find import load_runs
from tests.compare.made_runs import evaluate, make_run


def add_base(root: Path, model: str, right: list[int]) -> None:
    """The evaluation of an untrained model, next to the runs."""
    source = read_evaluation(evaluate(make_run(root / "other", f"x{model.replace('/', '-')}"), right, step=4))
    folder = root / "evals" / model.replace("/", "-")
    folder.mkdir(parents=True)
    result = {**source.result, "model": model, "label": Path(model).name, "steps": []}
    write_results(Evaluation(folder, result, source.rows))


def before(root: Path) -> tuple[str, float]:
    (arm,) = group_arms(load_runs(["a*"], root).runs, alone=True)
    problems: list[str] = []
    change = measure_change(arm, root, problems)
    assert change is not None and not problems
    return change.first, change.before.value


def test_the_model_before_training_is_the_one_that_the_run_began_from(tmp_path: Path) -> None:
    """Another model whose folder has the same name is none."""
    make_run(tmp_path, "a0", right=[3] * 8, overrides=["model.name=lab"])
    add_base(tmp_path, "lab", [1] * 8)
    add_base(tmp_path, "elsewhere/lab", [4] * 8)
    assert before(tmp_path) == (BASE, 0.25)


def test_runs_that_were_evaluated_under_different_settings_have_no_mean_before_and_after(tmp_path: Path) -> None:
    add_base(tmp_path, "lab", [1] * 8)
    for seed, temperature in ((0, 1.0), (1, 0.2)):
        held_out = {1: [0] * 4, 2: [2] * 4}
        make_run(tmp_path, f"a{seed}", seed=seed, right=[3] * 8, temperature=temperature, held_out=held_out)
    assert before(tmp_path) == ("after 1 rollout", 0.0)
