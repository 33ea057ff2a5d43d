"""`python -m rlvr_cli.training.worker`: what each process of a supervised training runs.

The parent says in a folder (environment RLVR_LAUNCH) what to do; the launcher gives the rank. Everything that goes
wrong is written there, so that the parent can tell a first failure from what follows of it.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from pathlib import Path

from rlvr_cli.launch.link import CONFIG, FOLDER, Link, failure_of
from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.launch.world import World, world_of_environment
from rlvr_cli.models.libraries import allow_remote_code


def main() -> None:
    """Train as this rank; never returns, since a communication thread that still lives would abort the exit."""
    code = 1
    world = world_of_environment()
    # First of all: the parent passes a signal on as soon as it knows of this process.
    with StopRequest(announce=False) as stop:
        link = Link(Path(os.environ[FOLDER]), world)
        try:
            _work(link, world, stop)
            code = 0
        except KeyboardInterrupt:
            pass
        except BaseException as error:
            failure_of(world.rank, error, traceback.format_exc()).write(link.folder)
        leave(code)


def leave(code: int) -> None:
    """End this process with ``code``, its helpers with it, and no other clean-up."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)


def _work(link: Link, world: World, stop: StopRequest) -> None:
    from rich.console import Console

    from rlvr_cli.config.load import load_config
    from rlvr_cli.runs.folder import RunDir
    from rlvr_cli.training import run

    order = link.order()
    allow_remote_code(order.get("trust_remote_code", False))
    # Lines are for the parent to label; a terminal's width is not known here.
    console = Console(file=sys.stdout, force_terminal=False, width=1000)
    context = run.RunContext(world, stop, link.begun)
    if order["resume"]:
        folder = RunDir(Path(order["resume"]))
        outcome = run.resume_training(folder, console=console, rollouts=order["rollouts"], context=context)
    else:
        config = load_config([link.folder / CONFIG], import_files=True)
        outcome = run.start_training(
            config, overwrite=order["overwrite"], console=console, command=order["command"], context=context
        )
    link.ended(run=str(outcome.run.path), status=outcome.status, exit_code=outcome.exit_code)


if __name__ == "__main__":
    main()
