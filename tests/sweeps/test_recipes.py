"""Recipes by name: the same trials as by path, in any folder; copies to change; errors with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.recipes import FOLDER, copyable, recipe_files
from rlvr_cli.runs.trials import evaluation_command
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.folder import SweepDir, find_sweep
from rlvr_cli.sweeps.prepare import prepare_sweep, write_sweep
from rlvr_cli.sweeps.rows import resolve_config, trial_rows
from rlvr_cli.sweeps.spec import read_sweep
from tests.commands import ROOT, run_in

SWEEPS = [name for name in recipe_files() if name.startswith("sweeps/")]
# Of each paper, the first table or figure.
PAPERS = [min(FOLDER.glob(f"papers/{paper.name}/[!_]*")) for paper in (FOLDER / "papers").iterdir()]


def test_a_checkout_has_its_own_configs_folder() -> None:
    assert FOLDER == ROOT / "configs" and {"lab_stable", "papers/gtpo/_gtpo", "words/kk-compact"} <= set(recipe_files())


@pytest.mark.parametrize("name", [*SWEEPS, "papers/ar_lopti/figure-4"])
def test_a_sweep_by_name_has_the_trials_of_its_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_path = expand(read_sweep(ROOT / f"configs/{name}.yaml"), only="*lopti*" if "papers" in name else None)
    by_name = expand(read_sweep(Path(name)), only="*lopti*" if "papers" in name else None)
    assert by_name.corners and by_name == by_path


def test_a_sweep_by_name_is_continued_by_path_and_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plans = []
    for name in ("sweeps/methods", "sweeps/methods.yaml", str(ROOT / "configs/sweeps/methods.yaml")):
        sweep = expand(read_sweep(Path(name)), seeds="2")
        folder = SweepDir(sweep.folder)
        folder.path.mkdir(parents=True, exist_ok=True)
        prepared = prepare_sweep(sweep, folder)
        assert prepared.notes == ()
        write_sweep(sweep, folder, prepared.plan)
        plans.append(folder.read_plan())
        assert folder.path == Path("runs/methods") == find_sweep(name).path
        assert folder.file_copy.read_text() == (ROOT / "configs/sweeps/methods.yaml").read_text()
    assert plans[0] == plans[1] == plans[2] and len(plans[0].named) == 8
    assert plans[0].command == "rlvr sweep sweeps/methods --seeds=2"
    # Without an `eval`, a copy gets it, not the recipe.
    evaluate = evaluation_command({"file": str(FOLDER / "sweeps/long.yaml"), "given": ["run.dir=x"]})
    added = r"printf '\neval: {}\n' >> long.yaml"
    assert evaluate == f"rlvr config recipes sweeps/long > long.yaml && {added} && rlvr sweep long.yaml run.dir=x"


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.parent.name)
def test_a_copy_of_a_recipe_works_in_any_folder(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(copyable(path))
    rows, copied = trial_rows(read_sweep(path)), trial_rows(read_sweep(copy))
    assert rows and list(rows) == list(copied)
    assert [load_config([row]) for row in rows.values()] == [load_config([row]) for row in copied.values()]


def test_files_come_before_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = load_config([resolve_config(Path("lab_stable"))])
    assert recipe.optimizer.lr == 2e-4
    Path("lab_stable").mkdir()  # a folder is no configuration
    assert load_config([resolve_config(Path("lab_stable"))]) == recipe
    Path("lab_stable").rmdir()
    Path("mine.yaml").write_text("include: lab_stable\nrun: {seed: 3}\n")
    assert load_config([Path("mine.yaml")]).optimizer.lr == 2e-4
    Path("lab_stable.yaml").write_text("optimizer: {lr: 1e-3}\n")
    assert load_config([resolve_config(Path("lab_stable.yaml"))]).optimizer.lr == 1e-3
    assert load_config([resolve_config(Path("lab_stable"))]) == recipe


def test_a_wrong_name_has_the_nearest_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, hint in {
        "whatever": "; `rlvr config recipes` lists the recipes",
        "methods": ". Did you mean `sweeps/methods`?",
        "figure-6.yaml": ". Did you mean `papers/ar_lopti/figure-6` or `papers/gtpo/figure-6` or "
        "`papers/landscape/figure-6`?",
    }.items():
        with pytest.raises(UserError) as caught:
            read_sweep(Path(name))
        assert " ".join(str(caught.value.problems[0]).split()) == f"{name} no such file or recipe{hint}"
    Path("mine.yaml").write_text("include: _kk.yaml\n")
    with pytest.raises(UserError, match=r"_kk.yaml: no such file or recipe. Did you mean `papers/ar_lopti/_kk`"):
        load_config([Path("mine.yaml")])


def test_recipes_are_listed_and_printed(tmp_path: Path) -> None:
    listed, papers, printed, wrong = run_in(
        tmp_path,
        ("config", "recipes"),
        ("config", "recipes", "papers/dgpo", "--format", "csv"),
        ("config", "recipes", "sweeps/long"),
        ("config", "recipes", "sweeps/lang"),
    )
    assert "sweeps/methods" in listed.out and "/_" not in listed.out
    assert [line.split(",")[0] for line in papers.out.splitlines()[1:]] == [
        f"papers/dgpo/{name}" for name in ("figure-3", "table-13", "table-3")
    ]
    assert printed.out.endswith("base: lab_long\nseeds: 3\n")
    assert wrong.code == 2 and "Did you mean `sweeps/long`?" in wrong.err
