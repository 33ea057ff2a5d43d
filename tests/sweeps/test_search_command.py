"""`rlvr sweep` on searches, without a training: the dry run, the status, what is refused, a file changed meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.prepare import check_not_running
from rlvr_cli.sweeps.ranking import CONFIRM, rank_arms, write_confirmation
from rlvr_cli.sweeps.search import Search
from tests.sweeps.files import sweep
from tests.sweeps.searches import HEAD, begin, go_on
from tests.sweeps.test_search import SPACE, bell

TEXT = HEAD + SPACE + "seeds: 2\nbudget: 60\nsearch: {trials: 5, startup: 2, pruning: {startup: 2}}\n"


def test_the_status_says_the_best_and_how_to_confirm_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = begin(tmp_path, TEXT)
    assert run(["sweep", "status", str(place.path)]) == 0
    assert "no arm has a value of accuracy (held-out, in training) for every seed yet" in capsys.readouterr().out
    plan = go_on(place, bell)
    ranking = rank_arms(place, plan, place.statuses(plan))
    assert ranking is not None
    write_confirmation(place, plan, ranking)
    assert run(["sweep", "status", str(place.path)]) == 0
    shown = capsys.readouterr().out
    number = len(ranking.complete)
    assert f"best of {number} by accuracy" in shown and f"Winner's curse: the best of {number} arms" in shown
    assert f"confirm: rlvr sweep {place.path / CONFIRM} && rlvr compare {place.path.parent}/s-confirm" in shown
    assert "pruned: accuracy was" in shown and "search: 5 configurations; ended: the 5 configurations" in shown
    assert run(["sweep", "status", str(place.path), "--format=json"]) == 0
    content = json.loads(capsys.readouterr().out)
    values = [arm["value"] for arm in content["objective"]["arms"] if arm["seeds"] == arm["of"]]
    assert values == sorted(values, reverse=True) and content["objective"]["best"] == ranking.arms[0].name
    assert content["search"]["configurations"] == 5


def test_a_file_that_is_changed_while_its_search_runs_is_refused(tmp_path: Path) -> None:
    place = begin(tmp_path, TEXT)
    go_on(place, bell, most=3)
    assert isinstance(place, SweepDir) and len(Search(place, place.read_plan()).configurations()) >= 2
    with place.lock():
        with pytest.raises(UserError, match="this sweep is running"):
            check_not_running(sweep(tmp_path, TEXT), place)
        with pytest.raises(UserError, match="was changed while the sweep"):
            check_not_running(sweep(tmp_path, TEXT.replace("seeds: 2", "seeds: 1")), place)
