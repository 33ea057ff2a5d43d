"""An analysis is one file: a test adds one, and nothing else of the package names it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlvr_cli.analyses
from rlvr_cli.analyses.base import _DEFINED, analyses
from rlvr_cli.cli.app import run
from tests.analyses.lab_runs import trained

DOCS = Path(__file__).parents[2] / "docs/analyses"
FILE = '''
"""`rlvr analyze lengths`: the longest completion."""

from __future__ import annotations

from pydantic import Field

from rlvr_cli.analyses.base import Findings, AnalysisInput, analysis
from rlvr_cli.analyses.saved_rollout import last_rollouts, read_rollout
from rlvr_cli.core.section import Count, Section
from rlvr_cli.core.table import Table


class LengthsOptions(Section):
    rollouts: Count = Field(2, description="Saved rollouts that are looked at.")


@analysis("how long completions are", paper="nobody", options=LengthsOptions, policy=False)
def lengths(subject: AnalysisInput, options: LengthsOptions) -> Findings:
    numbers = last_rollouts(subject.run, subject.rollout, options.rollouts)
    longest = {number: max(row["tokens"] for row in read_rollout(subject.run, number)) for number in numbers}

    def draw():
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot(list(longest), list(longest.values()))
        return figure

    return Findings(
        headline=f"The longest of {len(numbers)} rollouts has {max(longest.values())} tokens.",
        numbers={"summary": {"longest": max(longest.values())}},
        tables=(Table("by rollout", ("rollout", "longest"), [(str(at), str(most)) for at, most in longest.items()]),),
        reading="Longer is longer.",
        draw=draw,
    )
'''


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "lengths.py").write_text(FILE)
    monkeypatch.setattr(rlvr_cli.analyses, "__path__", [*rlvr_cli.analyses.__path__, str(tmp_path)])
    analyses.cache_clear()
    yield
    _DEFINED.pop("lengths", None)
    analyses.cache_clear()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = ["train.rollouts=2", "rollout.prompts=2", "rollout.group_size=2", "rollout.max_new_tokens=8"]
    return trained(tmp_path_factory, [*settings, "task.train_size=16", "run.threads=1"])


def test_one_file_is_listed_explained_run_and_measured(
    added: None, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(["analyze"]) == 0
    listed = capsys.readouterr().out
    assert "how long completions are" in listed and "lengths rollouts=" in listed

    assert run(["analyze", "lengths", "rolouts=3"]) == 2
    assert "unknown key. Did you mean `rollouts`?" in capsys.readouterr().err
    assert run(["analyze", "lengts", "--run", "lab"]) == 2
    assert "Did you mean `lengths`?" in capsys.readouterr().err

    assert run(["analyze", "lengths", "rollouts=1", "--run", "lab", "--runs", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "The longest of 1 rollouts" in shown and (root / "lab/analysis/lengths.svg").exists()
    assert json.loads((root / "lab/analysis/lengths.json").read_text())["options"] == {"rollouts": 1}


def test_every_analysis_has_its_page_and_its_line() -> None:
    index = (DOCS / "README.md").read_text()
    for name in analyses():
        assert (DOCS / f"{name}.md").is_file() and f"[{name}]({name}.md)" in index
