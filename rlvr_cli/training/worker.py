"""`python -m rlvr_cli.training.worker`: the entry point of each rank that torchrun starts for `rlvr train`.

The folder of the launch (environment RLVR_LAUNCH) has the options, torchrun sets the rank. Failures are reported in the
folder, so that the first cause can be separated from its consequences.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from pathlib import Path

from rlvr_cli.launch.command import FOLDER
from rlvr_cli.launch.ranks import CONFIG, RankReports
from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.launch.world import World, world_of_environment
from rlvr_cli.models.libraries import allow_remote_code


def main() -> None:
    """Train as this rank; exit without returning, since communication threads would abort a normal exit."""
    code = 1
    world = world_of_environment()
    # First: signals are forwarded as soon as this process's pid is reported.
    with StopRequest(announce=False) as stop:
        reports = RankReports(Path(os.environ[FOLDER]), world)
        try:
            _train(reports, world, stop)
            code = 0
        except BaseException as error:
            reports.report_failure(error, traceback.format_exc())
        exit_process(code)


def exit_process(code: int) -> None:
    """Exit with ``code`` after the exit handlers, without further clean-up."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _train(reports: RankReports, world: World, stop: StopRequest) -> None:
    from rich.console import Console

    from rlvr_cli.config.load import load_config
    from rlvr_cli.runs.folder import RunDir
    from rlvr_cli.training import run

    options = reports.options
    allow_remote_code(options["trust_remote_code"])
    if options["console"]["stderr"]:
        os.dup2(2, 1)  # library output must not mix with JSON on standard output
    console = Console(**options["console"])
    context = run.RunContext(world, stop, reports.report_run)
    if options["resume"]:
        folder = RunDir(Path(options["resume"]))
        outcome = run.resume_training(folder, console=console, rollouts=options["rollouts"], context=context)
    else:
        config = load_config([reports.folder / CONFIG], import_files=True)
        outcome = run.start_training(
            config, overwrite=options["overwrite"], console=console, command=options["command"], context=context
        )
    reports.report_result(run=str(outcome.run.path), status=outcome.status, exit_code=outcome.exit_code)


if __name__ == "__main__":
    main()
