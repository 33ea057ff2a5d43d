"""Rows of a sweep file by name: several lists, included files, `FILE:ROW`, `--only`, `--seeds`, reported numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.cli.app import run
from rlvr_cli.config.load import load, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.naming import config_hash
from rlvr_cli.sweeps.rows import config_source, trial_rows
from rlvr_cli.sweeps.spec import read_sweep
from tests.sweeps.files import problems

TABLE = """\
name: ours
set: {train.rollouts: 4}
list:
  - - {name: small, include: low.yaml}
    - {name: large, include: [low.yaml, high.yaml], optimizer.lr: 3e-3}
  - - {name: plain, method: {name: grpo, kl: {beta: 0.1}}}
    - {name: dgpo, method: dgpo, method.policy_loss.n: 2}
exclude: [large-dgpo]
reported:
  - {place: table 9, columns: [accuracy, pass@8 aime24], rows: {small-plain: [1.5, null], "*-dgpo": [2, 3]}}
"""


# Neither a number of seeds nor a list of them; a billion is too many, as in the file.
SEEDS = ("none", "0", "00", "1000000000", "3,", "-1,2", "5,4294967296")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "low.yaml").write_text("optimizer: {lr: 1e-3, betas: [0.9, 0.99]}\nrollout: {prompts: 8}\n")
    (tmp_path / "high.yaml").write_text("rollout:\n  prompts: 16\n")
    path = tmp_path / "s.yaml"
    path.write_text(TABLE)
    return path


def test_lists_in_a_list_are_axes_and_included_files_lie_below_an_items_own_keys(table: Path) -> None:
    configs = {trial.name: trial.config for trial in expand(read_sweep(table)).trials}
    assert list(configs) == ["small-plain", "small-dgpo", "large-plain"]
    assert [(one.optimizer.lr, one.rollout.prompts) for one in configs.values()] == [(1e-3, 8), (1e-3, 8), (3e-3, 16)]
    assert all(one.optimizer.betas == (0.9, 0.99) for one in configs.values())
    assert configs["large-plain"].method.kl.beta == 0.1


def test_a_row_alone_is_the_trial(table: Path) -> None:
    for trial in expand(read_sweep(table)).trials:
        assert config_hash(load_config([config_source(Path(f"{table}:{trial.name}"))])) == trial.id
    found = load([config_source(Path(f"{table}:large-plain"))])
    assert found.origin("rollout", "prompts") == f"{table.parent}/high.yaml:2"
    assert found.origin("optimizer", "lr") == f"{table}:5" and found.origin("train", "rollouts") == f"{table}:2"
    over = load_config([config_source(Path(f"{table}:small-dgpo"))], method="grpo", overrides=["optimizer.lr=1e-4"])
    assert over.method.name == "grpo" and over.method.policy_loss.kind == "ppo_clip" and over.optimizer.lr == 1e-4


def test_the_row_of_one_method_has_its_name(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("methods: [dgpo+lopti]\nseeds: 2\n")
    assert [(trial.row, trial.name) for trial in expand(read_sweep(file)).trials] == [
        ("dgpo+lopti", "dgpo+lopti-s0"),
        ("dgpo+lopti", "dgpo+lopti-s1"),
    ]
    assert list(trial_rows(read_sweep(file))) == ["dgpo+lopti"]
    file.write_text("set: {method: ar-lopti}\nseeds: 2\n")
    assert [trial.row for trial in expand(read_sweep(file), only="reweight+*").trials] == ["reweight+lopti"] * 2
    assert list(trial_rows(read_sweep(file))) == ["reweight+lopti"]
    assert {trial.row for trial in expand(read_sweep(file), ["method=dgpo"]).trials} == {"dgpo"}
    (tmp_path / "base.yaml").write_text("method: lopti\n")
    file.write_text("base: base.yaml\nseeds: 2\n")
    assert list(trial_rows(read_sweep(file))) == ["lopti"]


def test_a_row_on_the_command_line(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "-c", f"{table}:small-dgpo", "--format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"]["policy_loss"]["n"] == 2
    assert run(["plan", "-c", f"{table}:small-dgpo", "--format=json"]) == 0
    capsys.readouterr()
    assert run(["plan", "-c", str(table)]) == 2
    assert "is a sweep file, not a configuration" in capsys.readouterr().err
    assert run(["plan", "-c", f"{table}:small-dgpi"]) == 2
    assert "s.yaml: unknown row 'small-dgpi'. Did you mean `small-dgpo`?" in capsys.readouterr().err


def test_a_configuration_is_not_taken_for_a_sweep_file(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    low = table.parent / "low.yaml"
    for command in (["sweep", str(low), "--dry-run"], ["plan", "-c", f"{low}:1"]):
        assert run(command) == 2
        said = capsys.readouterr().err
        assert "low.yaml: is a configuration, not a sweep file" in said and "unknown key" not in said


def test_some_trials_and_other_seeds(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, place = read_sweep(table), f"run.dir={table.parent}/runs"
    names = [trial.name for trial in expand(file, only="small-*", seeds="3,5").trials]
    assert names == ["small-plain-s3", "small-plain-s5", "small-dgpo-s3", "small-dgpo-s5"]
    assert list(trial_rows(file)) == ["small-plain", "small-dgpo", "large-plain"]
    assert run(["sweep", str(table), place, "--only", "*-dgpo", "--seeds", "2", "--dry-run", "--format=json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["name"] for trial in found["trials"]] == ["small-dgpo-s0", "small-dgpo-s1"]
    assert [one["rows"] for one in found["reported"]] == [{"*-dgpo": [2, 3]}]
    assert run(["sweep", str(table), place, "--dry-run"]) == 0
    assert "table 9" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"--only big-\*: matches no trial"):
        expand(file, only="big-*")
    for text in SEEDS:
        with pytest.raises(UserError, match=f"--seeds {text}: must be a number of seeds, .* as 42,43"):
            expand(file, seeds=text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("list: [{include: low.yaml}]", "s.yaml:1 list: an item that includes files needs a `name`"),
        ("list: [{name: a, include: none.yaml}]", "none.yaml no such file"),
        ("list: [{name: a, include: {b: c}}]", "s.yaml:1 list: include: must be a file or a list of files"),
        (
            "list: [[{name: a, optimizer.lr: 1}], [{name: b, optimizer.lr: 2}]]",
            "optimizer.lr is also set by another axis",
        ),
        ("list: [{name: a, optimizer.lr: 1e-3}]\nexclude: ['b*']", "s.yaml:2 exclude: b* matches no trial"),
        (
            TABLE.replace("small-plain:", "smal-plain:"),
            "reported: unknown trial smal-plain. Did you mean `small-plain`?",
        ),
        (TABLE.replace("[2, 3]", "[2]"), "*-dgpo has 1 numbers, and there are 2 columns"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(table: Path, text: str, said: str) -> None:
    assert any(said in line for line in problems(table.parent, text)), problems(table.parent, text)
