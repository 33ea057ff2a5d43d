"""The format of records: written with the version, and another one refused in one line by whatever reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.version import FORMAT, __version__
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.folder import SweepDir
from rlvr_cli.sweeps.prepare import make_folder, prepare_sweep, write_sweep
from rlvr_cli.sweeps.spec import read_sweep
from tests.commands import run_in

REFUSED = f"has format 2 of rlvr 0.9.0; rlvr {__version__} reads format 1. Install rlvr==0.9.0, or start a new run"
NEWER = {"format": 2, "rlvr": "0.9.0"}


def newer(folder: Path, name: str) -> None:
    """A finished run of a later version."""
    run = RunDir(folder / "runs" / name)
    run.checkpoints_dir.mkdir(parents=True)
    run.config_path.write_text(dump_yaml(load_config()).replace("format: 1", "format: 2"))
    run.manifest_path.write_text(json.dumps({**NEWER, "status": "finished", "step": 3, "rollouts_total": 3}))


def test_a_manifest_begins_with_the_format_and_keeps_its_writer(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.update_manifest(status="running")
    assert list(run.read_manifest().items()) == [("format", 1), ("rlvr", __version__), ("status", "running")]
    run.manifest_path.write_text(json.dumps({"format": 1, "rlvr": "0.1.7"}))  # a patch version reads and extends it
    run.update_manifest(status="finished")
    assert run.read_manifest() == {"format": 1, "rlvr": "0.1.7", "status": "finished"}


def test_a_run_of_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    newer(tmp_path, "a")
    newer(tmp_path, "b")
    for words in (
        ("train", "--resume", "a"),
        ("eval", "a"),
        ("compare", "a", "b"),
        ("report", "a"),
        ("export", "a", "-o", "x"),
    ):
        (done,) = run_in(tmp_path, words)
        assert done.code != 0 and f"runs/a: {REFUSED}." in done.err and "Traceback" not in done.err, done
    shown, listed = run_in(tmp_path, ("runs", "show", "a"), ("runs", "list"))
    assert REFUSED in shown.out and REFUSED in listed.out + listed.err
    with pytest.raises(RunError, match="has format 2"):
        RunDir(tmp_path / "runs/a").update_manifest(status="running")


def test_files_may_name_their_format(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("format: 1\noptimizer: {lr: 1e-3}\n")
    config = load_config([file])
    assert config.optimizer.lr == 1e-3 and dump_yaml(config).startswith(f"format: {FORMAT}\n")
    sweep = tmp_path / "s.yaml"
    sweep.write_text("format: 1\nbase: mine.yaml\nmethods: [grpo]\n")
    with_format = expand(read_sweep(sweep)).trials
    sweep.write_text("base: mine.yaml\nmethods: [grpo]\n")
    assert expand(read_sweep(sweep)).trials == with_format
    for format in ("2", "true", "'1'"):
        file.write_text(f"optimizer: {{lr: 1e-3}}\nformat: {format}\n")
        for read in (lambda: load_config([file]), lambda: read_sweep(file)):
            with pytest.raises(UserError, match=rf"mine\.yaml:2 +has format .* reads format {FORMAT}\. Adapt"):
                read()


def test_a_sweep_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("methods: [grpo]\n")
    sweep = expand(read_sweep(file), [f"run.dir={tmp_path}/runs"])
    folder = SweepDir(sweep.folder)
    make_folder(folder)
    write_sweep(sweep, folder, prepare_sweep(sweep, folder).plan)
    content = json.loads(folder.plan_path.read_text())
    assert (content["format"], content["rlvr"]) == (FORMAT, __version__)
    folder.plan_path.write_text(json.dumps({**content, **NEWER}))
    with pytest.raises(RunError, match=f"s: {REFUSED}"):
        prepare_sweep(sweep, folder)
