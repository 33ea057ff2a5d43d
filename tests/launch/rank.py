"""A rank of test_torchrun: it reports as a training does, and runs the code of the environment in place of one."""

import os
import signal  # noqa: F401 - for the code
import subprocess  # noqa: F401
import time  # noqa: F401
import traceback
from pathlib import Path

from rlvr_cli.launch.command import FOLDER
from rlvr_cli.launch.ranks import RankReports
from rlvr_cli.launch.stopping import StopRequest
from rlvr_cli.launch.world import world_of_environment
from rlvr_cli.training.worker import exit_process

world = world_of_environment()
exec(os.environ.get(f"BEFORE_{world.rank}", ""))  # noqa: S102
with StopRequest(announce=False) as stop:
    reports = RankReports(Path(os.environ[FOLDER]), world)
    try:
        exec(os.environ[f"CODE_{world.rank}"])  # noqa: S102
    except BaseException as error:
        reports.report_failure(error, traceback.format_exc())
        exit_process(1)
    exit_process(0)
