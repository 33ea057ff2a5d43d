"""Adaptive search: what is suggested, run, reused, given up, and what a kill leaves of it. Nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.trial import TrialState
from rich.console import Console

from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import read_jsonl
from rlvr_cli.store.find import load_runs
from rlvr_cli.sweeps.driver import _Driver
from rlvr_cli.sweeps.folder import SweepDir, SweepPlan
from rlvr_cli.sweeps.ranking import rank_arms
from rlvr_cli.sweeps.search import Search
from rlvr_cli.sweeps.slots import Slot
from tests.sweeps.searches import HEAD, begin, end, go_on

SPACE = "methods: [grpo, lopti]\ngrid:\n  optimizer.lr: {log_range: [1e-5, 1e-2]}\n"


def bell(varies: Mapping[str, Any]) -> list[float]:
    """Best at a learning rate of 3e-4, and a little better with lopti."""
    top = math.exp(-((math.log10(varies["optimizer.lr"]) + 3.5) ** 2)) * (
        1.0 if varies["method.name"] == "lopti" else 0.9
    )
    return [top * share for share in (0.25, 0.5, 0.75, 1.0)]


def suggested(plan: SweepPlan) -> list[dict[str, Any]]:
    return [entry.varies for entry in plan.trials]


def states(place: SweepDir) -> dict[str, int]:
    statuses = place.statuses(place.read_plan())
    return {
        state: [status.state for status in statuses].count(state) for state in {status.state for status in statuses}
    }


@pytest.mark.parametrize("sampler", ["tpe"])
def test_one_seed_and_one_worker_give_the_same_trials(tmp_path: Path, sampler: str) -> None:
    """However often its processes are started again; with another seed, others."""
    text = HEAD + SPACE + f"search: {{sampler: {sampler}, trials: 6, startup: 3}}\n"
    once = begin(tmp_path / "a", text)
    first = go_on(once, bell, search=Search(once, once.read_plan()))
    again = go_on(begin(tmp_path / "b", text), bell)
    assert suggested(first) == suggested(again) and len(first.trials) == 6
    assert first.search is not None and first.search.ended == "the 6 configurations were run"
    other = go_on(begin(tmp_path / "c", text.replace("trials: 6", "trials: 6, seed: 1")), bell)
    assert not any(one in suggested(first) for one in suggested(other))


def test_a_rejected_suggestion_that_was_cut_short_counts_as_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + "methods: [grpo, lopti, dapo, cispo]\nexclude: [{method: [grpo, lopti, dapo]}]\nsearch: {trials: 2}\n"
    place = begin(tmp_path, text)

    def killed(*arguments: object, **others: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(optuna.Study, "tell", killed)
        with pytest.raises(KeyboardInterrupt):
            Search(place, place.read_plan()).advance(place.read_plan())
    search = Search(place, place.read_plan())
    assert [trial.user_attrs for trial in search.study.trials] == [{"unused": "excluded"}]
    search.advance(place.read_plan())
    assert search.study.trials[0].state == TrialState.PRUNED


@pytest.mark.parametrize("moment", ["before a parameter", "after the parameters", "in the study"])
def test_a_suggestion_that_was_cut_short_is_finished_as_it_would_have_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A kill between any two lines of the journal, and before its trials are in the plan."""
    text = HEAD + SPACE + "search: {trials: 5, startup: 2}\n"
    whole = suggested(go_on(begin(tmp_path / "whole", text), bell))
    place = begin(tmp_path / "cut", text)
    go_on(place, bell, most=3)
    where, name = {
        "before a parameter": (JournalStorage, "set_trial_param"),
        "after the parameters": (optuna.Trial, "set_user_attr"),
        "in the study": (SweepDir, "write_plan"),
    }[moment]

    def killed(*arguments: object, **others: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(where, name, killed)
        with pytest.raises(KeyboardInterrupt):
            Search(place, place.read_plan()).advance(place.read_plan())
    assert len(place.read_plan().trials) == 3
    plan = go_on(place, bell)
    assert suggested(plan) == whole
    assert len(Search(place, plan).configurations()) == 5


def test_a_kill_within_a_line_of_the_journal_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it began of the line is taken away by the next driver, and its lock with it.

    The folder's path is relative, as it is by default.
    """
    monkeypatch.chdir(tmp_path)
    text = HEAD + SPACE + "search: {trials: 5, startup: 2}\n"
    whole = suggested(go_on(begin(tmp_path / "whole", text), bell))
    place = SweepDir(begin(tmp_path / "cut", text).path.relative_to(tmp_path))
    go_on(place, bell, most=2)
    # A process dies while it has written 40 bytes of its line and holds the journal.
    with (place.path / "search.journal").open("ab") as stream:
        stream.write(b'{"op_code":4,"worker_id":"0f6e4ad5-93f8-4')
    (place.path / "search.journal.lock").symlink_to("search.journal")
    assert suggested(go_on(place, bell)) == whole
    read_jsonl(place.path / "search.journal")
    assert len(Search(place, place.read_plan()).configurations()) == 5


def test_every_configuration_has_all_seeds_and_its_value_is_their_mean(tmp_path: Path) -> None:
    place = begin(tmp_path, HEAD + SPACE + "seeds: [3, 5]\nsearch: {trials: 3}\n")
    plan = go_on(place, lambda varies: [0.0, 0.0, 0.0, 0.2 if varies["run.seed"] == 3 else 0.4])
    assert [entry.seed for entry in plan.trials] == [3, 5] * 3
    assert [trial.value for trial in Search(place, plan).configurations()] == pytest.approx([0.3] * 3)
    assert all(entry.name.endswith(f"-s{entry.seed}") for entry in plan.trials)


def test_two_workers_have_two_configurations_and_none_is_lost(tmp_path: Path) -> None:
    place = begin(tmp_path, HEAD + SPACE + "search: {trials: 2}\n")
    search = Search(place, place.read_plan())
    (first,) = search.advance(place.read_plan()).trials
    plan = search.advance(place.read_plan(), {first.id})
    assert len(plan.trials) == 2 and plan.trials[0] == first
    assert plan.search is not None and plan.search.ended is None
    end(place, search, plan.trials[1], bell(plan.trials[1].varies))
    assert search.advance(plan, {first.id}) == plan, "the other one has not ended"
    end(place, search, first, bell(first.varies))
    ended = search.advance(plan)
    assert ended.search is not None and ended.search.ended and len(ended.trials) == 2


def test_what_is_excluded_is_not_run(tmp_path: Path) -> None:
    text = HEAD + "grid:\n  update.epochs: [1, 2]\n"
    text += "methods: [grpo, lopti]\nexclude: [{method: lopti, update.epochs: 2}]\nsearch: {trials: 20, startup: 3}\n"
    place = begin(tmp_path, text)
    plan = go_on(place, lambda varies: [0.5 if varies["method.name"] == "lopti" else 0.1] * 4)
    found = {(varies["method.name"], varies["update.epochs"]) for varies in suggested(plan)}
    assert found == {("grpo", 1), ("grpo", 2), ("lopti", 1)} and len(plan.trials) == 3
    assert plan.search is not None and plan.search.ended == "all 3 configurations were run"


def test_a_configuration_that_is_there_already_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning rates that agree to 6 digits are one; the search ends when there is none but these."""
    monkeypatch.setattr("rlvr_cli.sweeps.search.MAX_IDLE", 8)
    text = HEAD + "grid:\n  optimizer.lr: {range: [1e-4, 1.00001e-4]}\nsearch: {trials: 9, startup: 3}\n"
    place = begin(tmp_path, text)
    plan = go_on(place, lambda varies: [0.5] * 4)
    assert 1 <= len(plan.trials) <= 2 and plan.search is not None
    assert plan.search.configurations == len(plan.trials)
    assert plan.search.ended is not None and "repeated" in plan.search.ended
    values = [trial.value for trial in Search(place, plan).study.trials]
    assert values == [0.5] * len(values), "a repeated suggestion has the value of the first"


def test_the_budget_ends_it_and_what_was_given_up_costs_what_it_had(tmp_path: Path) -> None:
    text = HEAD + SPACE + "budget: 26\nsearch: {sampler: random}\n"
    plan = go_on(begin(tmp_path / "a", text), bell)
    assert len(plan.trials) == 6 and plan.search is not None and "budget of 26" in str(plan.search.ended)
    pruned = text.replace("sampler: random", "sampler: random, pruning: {startup: 2}")
    place = begin(tmp_path / "b", pruned)
    plan = go_on(place, bell)
    counted = states(place)
    assert counted["pruned"] >= 1 and len(plan.trials) > 6
    spent = sum(place.pruned_rollout(entry) or entry.rollouts for entry in plan.trials)
    assert 22 < spent <= 26


def test_a_first_seed_below_the_median_is_given_up_and_its_other_seeds_are_not_run(tmp_path: Path) -> None:
    text = HEAD + "grid:\n  optimizer.lr: [1e-4, 2e-4, 3e-4, 4e-4, 5e-3]\nseeds: 2\n"
    place = begin(tmp_path, text + "search: {trials: 5, seed: 4, pruning: {startup: 2, warmup: 2}}\n")
    plan = go_on(place, lambda varies: [0.0] * 4 if varies["optimizer.lr"] == 5e-3 else [0.1, 0.2, 0.3, 0.4])
    statuses = {status.entry.name: status for status in place.statuses(plan)}
    bad = [status for status in statuses.values() if status.entry.varies["optimizer.lr"] == 5e-3]
    good = [status for status in statuses.values() if status not in bad]
    assert all(status.state == "finished" for status in good) and len(good) == 8
    assert [status.state for status in bad] == ["pruned"] and place.pruned_rollout(bad[0].entry) == 2
    assert "accuracy was 0.000 at best until rollout 2, below the median" in str(bad[0].reason)
    ranking = rank_arms(place, plan, list(statuses.values()))
    assert ranking is not None and [arm.state for arm in ranking.arms] == ["finished"] * 4 + ["pruned"]
    assert len(ranking.complete) == 4
    (note,) = load_runs([str(place.path)], tmp_path).notes
    assert "left out because the search stopped them" in note and bad[0].entry.name in note


@pytest.mark.parametrize("killed", [False, True])
def test_a_trial_that_ends_before_its_decision_is_given_up(tmp_path: Path, killed: bool) -> None:
    """Its last evaluations are read after its end, by the same driver or by the next."""
    text = HEAD + "grid:\n  optimizer.lr: [1e-4, 2e-4, 3e-4]\nseeds: 2\n"
    place = begin(tmp_path, text + "search: {trials: 3, pruning: {startup: 2}}\n")
    go_on(place, lambda varies: [0.1, 0.2, 0.3, 0.4], most=4)
    search = Search(place, place.read_plan())
    plan = search.advance(place.read_plan())
    bad = plan.trials[4]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "prune_decision", lambda entry: None)
        end(place, search, bad, [0.0] * 4)
    if not killed:
        assert search.advance(plan, {bad.id}).trials == plan.trials
        assert search.configurations()[-1].state == TrialState.RUNNING
    driver = _Driver(place, plan, [Slot()], (), Console(quiet=True))
    assert driver.run() == 0
    assert states(place) == {"finished": 4, "pruned": 1} and place.pruned_rollout(bad) == 1
    assert Search(place, plan).configurations()[-1].state == TrialState.PRUNED


def test_a_search_may_be_made_longer_and_another_space_is_refused(tmp_path: Path) -> None:
    text = HEAD + SPACE + "search: {trials: 4, sampler: random}\n"
    place = begin(tmp_path, text)
    before = go_on(place, bell)
    begin(tmp_path, text.replace("trials: 4", "trials: 6"))
    plan = go_on(place, bell)
    assert plan.trials[:4] == before.trials and len(plan.trials) == 6
    whole = go_on(begin(tmp_path / "whole", text.replace("trials: 4", "trials: 6")), bell)
    assert suggested(plan) == suggested(whole)
    for other in (text.replace("1e-2", "1e-1"), text.replace("grpo, lopti", "grpo"), text + "seeds: 2\n"):
        with pytest.raises(UserError, match="search over other axes"):
            begin(tmp_path, other)


def test_a_failed_configuration_holds_nothing_up_and_counts_once_it_is_mended(tmp_path: Path) -> None:
    place = begin(tmp_path, HEAD + SPACE + "retries: 0\nsearch: {trials: 2}\n")
    search = Search(place, place.read_plan())
    (entry,) = search.advance(place.read_plan()).trials
    place.record(entry, "start", worker=0, pid=0, step=0)
    place.record(entry, "end", outcome="failed", reason="no memory")
    plan = go_on(place, bell)
    assert states(place) == {"failed": 1, "finished": 1} and plan.search is not None and plan.search.ended
    place.record(entry, "retry")
    plan = go_on(place, bell)
    assert states(place) == {"finished": 2}
    assert all(trial.value is not None for trial in Search(place, plan).configurations())
