"""The run directory: names, paths, the lock, and the manifest."""

from __future__ import annotations

import datetime
import errno
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.files import LOCK, check_no_link, local_path, lock_folder, replace_folder, write_json
from rlvr_cli.core.version import FORMAT, FORMAT_KEY, WRITER_KEY, __version__, other_format

# Status of a queued run that has not started.
SUBMITTED = "submitted"
# Folder of the evaluations during training, in eval/.
IN_TRAINING = "in-training"
# Key of the manifest: the working directory of `rlvr train`.
STARTED_IN = "started_in"


def now() -> str:
    """Return the UTC time in ISO 8601, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunDir:
    """A run on disk: ``<root>/<name>/``, with the layout of docs/runs.md, "A run on disk"."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timings_path(self) -> Path:
        return self.path / "timings.jsonl"

    @property
    def log_path(self) -> Path:
        return self.path / "log.txt"

    @property
    def rollouts_dir(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    @property
    def eval_dir(self) -> Path:
        return self.path / "eval"

    @property
    def held_out_dir(self) -> Path:
        return self.eval_dir / IN_TRAINING

    def make_folders(self) -> None:
        for folder in (self.rollouts_dir, self.checkpoints_dir, self.eval_dir):
            folder.mkdir(exist_ok=True)

    def read_manifest(self) -> dict[str, Any]:
        """Read the manifest. Raises RunError if it is missing, damaged or of another format."""
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(f"{self.manifest_path}: cannot be read ({error}).") from error
        if not isinstance(manifest, dict):
            raise RunError(f"{self.manifest_path}: not a JSON object. The file was altered.")
        if fault := other_format(manifest):
            raise RunError(f"{self.path}: {fault}.")
        return manifest

    def update_manifest(self, **fields: Any) -> None:
        """Set ``fields`` in the manifest, atomically, creating it if missing."""
        new = {FORMAT_KEY: FORMAT, WRITER_KEY: __version__}
        manifest = self.read_manifest() if self.manifest_path.exists() else new
        write_json(self.manifest_path, {**manifest, **fields})

    def started_in(self) -> Path | None:
        """Return the base of the configuration's relative paths; None if not recorded."""
        if not self.manifest_path.is_file():
            return None
        folder = self.read_manifest().get(STARTED_IN)
        return Path(folder) if isinstance(folder, str) else None

    def check_no_links(self) -> None:
        names = (LOCK, "config.yaml", "manifest.json", "records.json", "metrics.jsonl", "timings.jsonl", "log.txt")
        paths = [self.path / name for name in (*names, "rewound")]
        for folder in (self.rollouts_dir, self.checkpoints_dir, self.eval_dir, self.held_out_dir):
            paths += [folder, *folder.glob("*")]
        for path in paths:
            check_no_link(path)

    def lock(self) -> AbstractContextManager[None]:
        return lock_folder(self.path, "Wait for it, stop it, or set another run.name.")


def create_run(root: Path, name: str, *, overwrite: bool, fill: Callable[[RunDir], None] = lambda run: None) -> RunDir:
    """Create ``root/name`` for a new run atomically.

    ``fill`` writes the initial files into a temporary folder, which is then renamed. Raises UserError if the run exists
    (without ``overwrite``) or is locked, if the folder is not a run, or cannot be created.
    """
    run = RunDir(root / name)
    check_free(run, overwrite=overwrite)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            if run.path.exists():
                held.enter_context(run.lock())
            aside = RunDir(held.enter_context(replace_folder(run.path, overwrite=overwrite)))
            with aside.lock():
                aside.make_folders()
                fill(aside)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            check_free(run, overwrite=False)  # another process has taken the name
        raise UserError(
            f"{run.path}: cannot be created ({error.strerror}). Free disk space, or set run.dir to a writable folder."
        ) from error
    return run


def check_free(run: RunDir, *, overwrite: bool) -> None:
    """Raise UserError if ``run`` exists, with ``overwrite`` only if its folder is not a run."""
    if not run.path.exists():
        return
    if not _is_run_folder(run):
        raise UserError(
            f"{run.path}: exists and is not a run directory, so --overwrite does not delete it. Set another run.name."
        )
    if not overwrite:
        remedy = f"Continue it with --resume {run.path}, replace it" if run.manifest_path.exists() else "Replace it"
        raise UserError(f"{run.path}: this run exists. {remedy} with --overwrite, or set another run.name.")


def _is_run_folder(run: RunDir) -> bool:
    if not run.path.is_dir():
        return False
    if run.manifest_path.exists():
        return True
    names = {path.name for path in run.path.iterdir()}
    folders = [folder for folder in (run.rollouts_dir, run.checkpoints_dir, run.eval_dir) if folder.is_dir()]
    is_empty = names <= {LOCK, *(folder.name for folder in folders)} and not any(
        any(directory.iterdir()) for directory in folders
    )
    return is_empty or {run.config_path.name, run.checkpoints_dir.name} <= names


def unique_name(root: Path, stem: str) -> str:
    """Return the first free name under ``root`` of ``stem``, ``stem-2``, ``stem-3``, ..."""
    name, number = stem, 1
    while (root / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return name


def open_run(path: Path) -> RunDir:
    """Open the run at ``path``. Raises UserError if it does not exist."""
    run = RunDir(path)
    if not path.is_dir():
        raise UserError(f"{path}: no such run. Use `rlvr runs list` to see the runs.")
    if not run.manifest_path.exists() or not run.config_path.exists():
        raise UserError(f"{path}: not a run directory (no manifest.json or config.yaml).")
    return run


def find_run(name: str, root: Path) -> RunDir:
    """Open the run that ``name`` matches (:func:`match_run`). Raises UserError without one."""
    run, path = match_run(name, root), local_path(name)
    return run or open_run(path if path.exists() else root / name)


def match_run(name: str, root: Path) -> RunDir | None:
    """Return the run ``name`` in ``root``, else the run at the path ``name``, else None.

    Names take precedence, so that another folder of that name does not hide the run. Raises UserError for a run without
    a configuration.
    """
    if RunDir(root / name).manifest_path.exists():
        return open_run(root / name)
    path = local_path(name)
    # A model folder may have a manifest.json too.
    is_model = (path / "config.json").exists()
    return None if is_model or not RunDir(path).manifest_path.exists() else open_run(path)


def list_runs(root: Path) -> list[RunDir]:
    """Return the runs in ``root``, oldest first by the manifest's time of creation."""
    if not root.is_dir():
        return []
    folders = (path.parent for path in root.glob("*/manifest.json"))
    runs = [RunDir(path) for path in folders if not path.name.startswith(".")]
    return sorted(runs, key=lambda run: (_created(run), run.name))


def _created(run: RunDir) -> str:
    try:
        return str(run.read_manifest().get("created", ""))
    except RunError:
        return ""


def newest_run(root: Path) -> RunDir | None:
    runs = list_runs(root)
    return runs[-1] if runs else None
