"""The number that ranks a sweep's trials: what may be one, its value in a run, and the best arm with its interval."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlvr_cli.config.load import dump_yaml
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import append_jsonl, write_json
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.stats.intervals import mean_interval
from rlvr_cli.stats.passk import pass_at_k
from rlvr_cli.store.evaluation import FORMAT, add_hashes
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.objective import Objective
from rlvr_cli.sweeps.prepare import prepare_sweep, write_sweep
from rlvr_cli.sweeps.ranking import CONFIRM, confirmation_command, rank_arms, write_confirmation
from rlvr_cli.sweeps.spec import read_sweep
from tests.compare.made_runs import evaluate, make_run
from tests.sweeps.files import sweep


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("set: {validation.every: 5}\neval: {pass_at: [1]}\nobjective: accuracy", "held_out"),
        ("eval: {pass_at: [1]}\nobjective: accuracy", "eval"),
        ("objective: accuracy", "training"),
        ("set: {validation.every: 5}\nobjective: {metric: reward, of: training}", "training"),
    ],
)
def test_where_it_is_from(tmp_path: Path, text: str, of: str) -> None:
    found = sweep(tmp_path, f"methods: [grpo, lopti]\n{text}\n").objective
    assert found is not None and found.of == of and found.maximize


def value_of(objective: Objective, run: RunDir) -> float | None:
    return objective.values([run])[0].get(run.path)


def test_its_value_in_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a")
    run.metrics_path.unlink()
    for rollout, value in ((5, 0.2), (10, 0.4)):
        folder = run.held_out_dir / f"rollout-{rollout:06d}"
        folder.mkdir(parents=True)
        metrics = {"greedy": {"value": 0.9}, "avg@8": {"value": value}}
        result = {"format": FORMAT, "rollouts": rollout, "metrics": metrics}
        write_json(folder / "metrics.json", add_hashes(result, ""))
    (run.held_out_dir / "rollout-000015").mkdir()  # its process was killed before the numbers
    held_out = Objective("accuracy", "held_out", True)
    assert held_out.held_out_values(run) == [(5, 0.2), (10, 0.4)]
    assert held_out.held_out_values(run, after=5) == [(10, 0.4)]
    assert value_of(held_out, run) == 0.4
    assert value_of(Objective("greedy", "held_out", True), run) == 0.9
    assert value_of(Objective("pass@4", "held_out", True), run) is None

    append_jsonl(run.metrics_path, [{"rollout": at, "reward": float(at)} for at in range(20) for _ in range(2)])
    assert value_of(Objective("reward", "training", True), run) == 18.5, "the last tenth of 20 rollouts"

    evaluate(run, [2] * 4, step=4, samples=8)
    assert value_of(Objective("accuracy", "eval", True), run) == 0.25
    assert value_of(Objective("pass@2", "eval", True), run) == pass_at_k(8, 2, 2), "from the samples"
    assert value_of(Objective("accuracy", "eval", True, {"split": "dev"}), run) is None


def test_the_last_checkpoint_counts_and_not_the_last_evaluation(tmp_path: Path) -> None:
    """Two arms that are identical tie, though an early checkpoint of one was evaluated in the end."""
    first, second = (make_run(tmp_path, name, method=name, right=[3] * 8) for name in ("grpo", "dgpo"))
    for path in evaluate(second, [1] * 8, step=2).glob("*"):
        os.utime(path, (2**31, 2**31))
    objective = Objective("accuracy", "eval", True)
    assert objective.values([first, second])[0] == {first.path: 0.75, second.path: 0.75}


def test_trials_are_ranked_by_what_all_were_evaluated_on(tmp_path: Path) -> None:
    """Whatever one of them was evaluated on besides: other temperatures, more problems, more samples."""
    first, second = (make_run(tmp_path, name, method=name, right=[3] * 8) for name in ("grpo", "dgpo"))
    evaluate(second, [0] * 8, step=4, temperature=0.2)
    objective = Objective("accuracy", "eval", True, {"split": "test"})
    assert objective.values([first, second]) == ({first.path: 0.75, second.path: 0.75}, ())
    evaluate(second, [3] * 8 + [0] * 8, step=4)
    values, (note,) = objective.values([first, second])
    assert values == {first.path: 0.75, second.path: 0.75} and "8 are common to all, and compared" in note
    evaluate(second, [6] * 16, step=4, samples=8, folder=second.eval_dir / "zzz")
    assert objective.values([first, second])[0] == {first.path: 0.75, second.path: 1.0}, "the first four of eight"
    evaluate(first, [3] * 8, step=4, split="dev")
    evaluate(second, [3] * 8, step=4, split="dev")
    assert objective.values([first, second])[0] == {first.path: 0.75, second.path: 1.0}
    with pytest.raises(UserError, match="several settings"):
        Objective("accuracy", "eval", True).values([first, second])
    evaluate(second, [0] * 8, step=4, benchmark="hard")
    own = Objective("accuracy", "eval", True, {"split": "test", "benchmark": "kk-gen"})
    assert own.values([first, second])[0][second.path] == 1.0, "whatever else one was evaluated on by hand"


def finished(folder: Path, text: str, values: dict[str, float]) -> SweepDir:
    """A grid sweep whose trials have these held-out accuracies, by their names; the others were not begun."""
    made = sweep(folder, text)
    place = SweepDir(made.folder)
    place.path.mkdir(parents=True)
    write_sweep(made, place, prepare_sweep(made, place).plan)
    configs = {trial.name: trial.config for trial in made.trials}
    for name, value in values.items():
        run = RunDir(place.path / name)
        run.path.mkdir()
        run.config_path.write_text(dump_yaml(configs[name]))
        (run.held_out_dir / "rollout-000004").mkdir(parents=True)
        result = {"format": FORMAT, "rollouts": 4, "metrics": {"avg@32": {"value": value}}}
        write_json(run.held_out_dir / "rollout-000004" / "metrics.json", add_hashes(result, ""))
        run.update_manifest(status="finished")
    return place


TEXT = (
    "set: {train.rollouts: 4, validation.every: 4}\nmethods: [grpo, lopti, dapo]\nseeds: [2, 3, 4]\n"
    "objective: accuracy\n"
    "eval: {samples: 4, pass_at: [1], split: dev}\n"
)


def test_arms_are_ranked_by_their_means_and_the_best_is_said_with_its_interval(tmp_path: Path) -> None:
    text = TEXT.replace("eval: {samples: 4, pass_at: [1], split: dev}\n", "")
    values = {"grpo": (0.30, 0.32, 0.37), "lopti": (0.50, 0.41, 0.56), "dapo": (0.9, 0.9)}
    names = {f"{arm}-s{seed}": one for arm, several in values.items() for seed, one in enumerate(several, start=2)}
    place = finished(tmp_path, text, names)
    plan = place.read_plan()
    ranking = rank_arms(place, plan, place.statuses(plan))
    assert ranking is not None
    assert [(arm.name, len(arm.values), arm.planned, arm.state) for arm in ranking.arms] == [
        ("lopti", 3, 3, "finished"),
        ("grpo", 3, 3, "finished"),
        ("dapo", 2, 3, "waiting"),
    ]
    best = ranking.best
    assert best is not None and best.estimate == mean_interval(values["lopti"])
    first, second = ranking.sentences()
    low, high = best.estimate.low, best.estimate.high
    assert low is not None and high is not None and low == pytest.approx(0.302, abs=1e-3), "seeds are no coin flips"
    assert first == (
        "best of 2 by accuracy (held-out, in training): lopti, "
        f"0.490 (95% interval over 3 seeds {low:.3f} to {high:.3f})"
    )
    assert "Winner's curse: the best of 2 arms, so this number is biased high" in second


def test_the_interval_over_seeds_stays_in_the_range_of_a_share(tmp_path: Path) -> None:
    text = TEXT.replace("methods: [grpo, lopti, dapo]", "methods: [grpo]")
    place = finished(tmp_path, text.partition("eval: {s")[0], {"grpo-s2": 0.95, "grpo-s3": 0.90, "grpo-s4": 1.0})
    ranking = rank_arms(place, place.read_plan(), place.statuses(place.read_plan()))
    assert ranking is not None and ranking.best is not None and ranking.best.estimate is not None
    assert ranking.best.estimate.low == pytest.approx(0.826, abs=1e-3) and ranking.best.estimate.high == 1.0


def test_the_best_two_are_run_again_with_fresh_seeds_on_the_test_split(tmp_path: Path) -> None:
    values = {"grpo": (0.30, 0.32, 0.37), "lopti": (0.50, 0.41, 0.56), "dapo": (0.1, 0.2, 0.1)}
    names = {f"{arm}-s{seed}": one for arm, several in values.items() for seed, one in enumerate(several, start=2)}
    place = finished(tmp_path, TEXT, names)
    plan = place.read_plan()
    assert confirmation_command(place, plan) is None
    statuses = place.statuses(plan)
    # Trained, and not evaluated yet: not finished.
    assert {status.state for status in statuses} == {"waiting"}
    for status in statuses:
        place.record(status.entry, "start", worker=0, step=0, eval=plan.eval)
        place.record(status.entry, "end", outcome="finished", reason=None, eval=plan.eval)
    ranking = rank_arms(place, plan, place.statuses(plan))
    assert ranking is not None
    # As a sweep that was queued on a cluster has it.
    write_confirmation(place, replace(plan, given=[*plan.given, "--submit", "slurm", "--workers", "2"]), ranking)
    file = place.path / CONFIRM
    assert confirmation_command(place, plan) == f"rlvr sweep {file} && rlvr compare {place.path.parent}/s-confirm"
    again = expand(read_sweep(file))
    assert again.folder == place.path.parent / "s-confirm"
    assert {(trial.config.method.name, trial.config.run.seed) for trial in again.trials} == {
        (method, seed) for method in ("lopti", "grpo") for seed in range(5, 10)
    }
    assert yaml.safe_load(file.read_text())["eval"] == {"pass_at": [1], "samples": 4}


def test_what_confirms_the_best_can_differ_from_it(tmp_path: Path) -> None:
    text = TEXT.replace("eval: {samples: 4, pass_at: [1], split: dev}\n", "")
    values = {"grpo": 0.5, "dapo": 0.4, "lopti": 0.3}
    place = finished(tmp_path, text, {f"{arm}-s{seed}": values[arm] for arm in values for seed in (2, 3, 4)})
    plan = place.read_plan()
    ranking = rank_arms(place, plan, place.statuses(plan))
    assert ranking is not None and [arm.name for arm in ranking.complete] == ["grpo", "dapo", "lopti"]
    write_confirmation(place, plan, ranking)
    assert yaml.safe_load((place.path / CONFIRM).read_text())["list"] == [
        {"method.name": "grpo"},
        {"method.name": "lopti"},
    ]
    write_confirmation(place, plan, replace(ranking, arms=ranking.arms[:2]))
    assert confirmation_command(place, plan) is None
