"""What a sweep's folder is checked for before it is run: changed files, other sweeps' folders, trials that are kept."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import lock_folder, read_jsonl
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.expand import Sweep, expand
from rlvr_cli.sweeps.folder import MAX_LOST, SweepDir, SweepPlan
from rlvr_cli.sweeps.prepare import check_arms, check_not_running, prepare_sweep, write_sweep
from tests.sweeps.files import sweep

TEXT = "name: pair\nmethods: [grpo, lopti]\nseeds: 2\n"


def begun(folder: Path, text: str = TEXT) -> tuple[Sweep, SweepDir, SweepPlan]:
    """A sweep whose folder is made, with a run directory for each trial, none of them trained."""
    made = sweep(folder, text)
    place = SweepDir(made.folder)
    place.path.mkdir(parents=True, exist_ok=True)
    plan = prepare_sweep(made, place).plan
    write_sweep(made, place, plan)
    for trial in made.trials:
        run = place.path / trial.name
        run.mkdir(exist_ok=True)
        (run / "config.yaml").write_text(dump_yaml(trial.config))
    return made, place, plan


def test_an_unchanged_sweep_prepares_to_the_same_plan(tmp_path: Path) -> None:
    made, place, plan = begun(tmp_path)
    again = prepare_sweep(made, place)
    assert again.plan == place.read_plan() == plan and again.notes == ()
    assert place.file_copy.read_text() == TEXT


def test_a_base_that_includes_others_is_kept_so_that_it_needs_none(tmp_path: Path) -> None:
    """The trials of the kept files are those of the file, in a folder where no `include` would be found."""
    (tmp_path / "all.yaml").write_text("# ours\nrollout: {prompts: 8}\ntrain: {rollouts: 7}\n")
    (tmp_path / "row.yaml").write_text("include: all.yaml\nrollout: {group_size: 4}\n")
    made, _, plan = begun(tmp_path, f"base: row.yaml\n{TEXT}")
    kept = plan.trials[0].base
    assert [Path(name).name for name in kept] == ["1.1-all.yaml", "1.2-row.yaml"]
    assert Path(kept[0]).read_text().startswith("# ours\n")
    (tmp_path / "all.yaml").unlink()
    for trial, entry in zip(made.trials, plan.trials, strict=True):
        assert (
            load_config([Path(file) for file in entry.base], entry.option, None, None, entry.overrides) == trial.config
        )


def test_a_changed_file_keeps_names_adds_and_drops(tmp_path: Path) -> None:
    _, place, plan = begun(tmp_path)
    wider = sweep(tmp_path, "name: pair\nmethods: [grpo]\nseeds: 2\ngrid: {optimizer.lr: [5e-4, 1e-3]}\n")
    found = prepare_sweep(wider, place)
    # The lab's own learning rate is 5e-4: these two trials are those that are there.
    assert [entry.name for entry in found.plan.named] == ["grpo-s0", "grpo-s1", "lr1e-3-s0", "lr1e-3-s1"]
    assert [entry.name for entry in found.plan.trials if not entry.named] == ["lopti-s0", "lopti-s1"]
    assert found.notes == (
        "2 trials added: lr1e-3-s0, lr1e-3-s1",
        "removed from the sweep file, kept on disk: lopti-s0, lopti-s1",
    )
    write_sweep(wider, place, found.plan)
    back = prepare_sweep(sweep(tmp_path, TEXT), place)
    assert [entry.id for entry in back.plan.named] == [entry.id for entry in plan.named]


def test_finished_trials_that_are_not_asked_for_stay_in_the_sweep(tmp_path: Path) -> None:
    made, place, _ = begun(tmp_path)
    RunDir(place.path / "grpo-s0").update_manifest(status="finished")
    some = expand(made.file, [f"run.dir={tmp_path}/runs"], only="lopti")
    found = prepare_sweep(some, place)
    assert [entry.name for entry in found.plan.named] == ["lopti-s0", "lopti-s1", "grpo-s0"]
    assert found.plan.command.endswith("--only=lopti")


def test_another_sweep_of_the_same_name_is_refused(tmp_path: Path) -> None:
    _, place, _ = begun(tmp_path)
    other = sweep(tmp_path, TEXT + "set: {optimizer.lr: 1e-3}\n")
    with pytest.raises(UserError) as caught:
        prepare_sweep(other, place)
    assert "another sweep" in caught.value.problems[0] and "another `name:`" in caught.value.problems[0]


def test_a_trial_directory_of_another_sweep_is_refused(tmp_path: Path) -> None:
    made, place, _ = begun(tmp_path)
    config = sweep(tmp_path, TEXT + "set: {optimizer.lr: 1e-3}\n").trials[0].config
    (place.path / "grpo-s0" / "config.yaml").write_text(dump_yaml(config))
    with pytest.raises(UserError) as caught:
        prepare_sweep(made, place)
    assert len(caught.value.problems) == 1
    assert "grpo-s0: has the run of another trial" in caught.value.problems[0]


def test_a_running_sweep_says_what_was_changed_under_it(tmp_path: Path) -> None:
    made, place, _ = begun(tmp_path)
    check_not_running(made, place)
    with lock_folder(place.path, ""):
        with pytest.raises(UserError, match="this sweep is running"):
            check_not_running(made, place)
        changed = sweep(tmp_path, TEXT.replace("seeds: 2", "seeds: 3"))
        with pytest.raises(UserError) as caught:
            check_not_running(changed, place)
    assert "was changed while the sweep" in caught.value.problems[0]
    assert f"rlvr sweep stop {place.path}" in caught.value.problems[0]


def test_arms_that_cannot_differ_are_refused_until_the_file_asks_or_they_have_begun(tmp_path: Path) -> None:
    text = "name: pair\nmethods: [grpo, cispo]\nseeds: 2\n"
    alike = sweep(tmp_path, text)
    with pytest.raises(UserError, match="grpo and cispo are the same gradient"):
        check_arms(alike)
    # What the message offers.
    check_arms(sweep(tmp_path, text, "update.mini_batches=2"))
    check_arms(sweep(tmp_path, text + "exclude: [{method: cispo}]\n"))
    check_arms(sweep(tmp_path, text + "identical_arms: true\n"))
    begun(tmp_path, text)
    check_arms(sweep(tmp_path, text.replace("seeds: 2", "seeds: 3")))
    with pytest.raises(UserError, match="grpo, cispo and dapo are"):
        check_arms(sweep(tmp_path, text.replace("cispo]", "cispo, dapo]")))


def test_attempts_decide_what_is_open(tmp_path: Path) -> None:
    _, place, plan = begun(tmp_path)
    first, second, third, fourth = plan.trials

    def states() -> list[str]:
        return [status.state for status in place.statuses(plan)]

    def attempt(entry: int, outcome: str | None) -> None:
        place.record(plan.trials[entry], "start", worker=0, step=0)
        if outcome is not None:
            place.record(plan.trials[entry], "end", outcome=outcome, reason="why", step=0)

    assert states() == ["waiting"] * 4
    for _ in range(plan.retries):
        attempt(0, "failed")
    attempt(1, "bad_input")
    attempt(2, None)
    assert states() == ["interrupted", "failed", "interrupted", "waiting"]
    attempt(0, "failed")
    assert states()[0] == "failed"
    place.record(first, "retry")
    assert states()[0] == "waiting"
    # A worker's end leaves half a line, and an attempt without an end: the next one says so, and goes on.
    with place.attempts_path(third).open("a") as stream:
        stream.write('{"event": "en')
    for number in range(MAX_LOST):
        with place.lease(third) as mine, place.lease(third) as again:
            assert mine and not again
            assert place.status(plan, third).state == ("running" if number < MAX_LOST - 1 else "failed")
        attempt(2, None)
    assert f"{MAX_LOST} times" in str(place.status(plan, third).reason)
    # One that was killed when its trial was finished already has finished it.
    attempt(3, None)
    (place.path / fourth.name / "manifest.json").write_text('{"status": "finished"}')
    place.close_attempts(plan)
    assert read_jsonl(place.attempts_path(fourth))[-1]["outcome"] == "finished"
    # Its evaluation waits; only one that was begun is interrupted.
    evaluated = replace(plan, eval=[])
    assert place.status(evaluated, fourth).state == "waiting"
    place.record(fourth, "start", worker=0, step=0, eval=[])
    assert place.status(evaluated, fourth).state == "interrupted"
    assert place.status(plan, fourth).state == "finished" and place.status(plan, second).reason == "why"


def test_a_lost_copy_of_the_plan_is_made_again(tmp_path: Path) -> None:
    made, place, plan = begun(tmp_path)
    place.plan_path.unlink()
    shutil.rmtree(place.path / "grpo-s0")
    for name in ("lopti-s0", "grpo-s1", "lopti-s1"):
        shutil.rmtree(place.path / name)
    assert prepare_sweep(made, place).plan == plan


def test_an_edited_reward_makes_another_sweep(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"prompt": "A: BK {number} ?"}}\n' for number in range(20)))
    reward = tmp_path / "rewards.py"
    reward.write_text("def one(completions, **columns):\n    return [1.0 for _ in completions]\n")
    task = f"{{name: own, data: {tmp_path}/rows.jsonl, reward: {reward}:one}}"
    text = f"name: pair\nset: {{task: {task}}}\nseeds: 2\n"
    _, place, _ = begun(tmp_path, text)
    assert prepare_sweep(sweep(tmp_path, text), place).notes == ()
    reward.write_text(reward.read_text().replace("1.0", "0.5"))
    with pytest.raises(UserError, match=r"none of its 2 trials is among the 2 .* \(editing the file of a method"):
        prepare_sweep(sweep(tmp_path, text), place)
