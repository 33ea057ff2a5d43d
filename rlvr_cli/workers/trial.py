"""Try user files in a separate process before importing them, since they may exit, hang or exhaust memory."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rlvr_cli.core import user_code
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.user_code import UserFile, display_path, load_module
from rlvr_cli.workers.pool import JobError, JobTimeout, Limits, Target, shared_pool

# Limits of the process. The margin on the files' timeout is for imports of the project, and code in C.
_MEMORY_MIB, _MARGIN = 16_384, 60.0


def try_files(function: str, files: Sequence[UserFile], values: Any = None) -> None:
    """Call `module:function` of the project with the files and, if not None, JSON values in a separate process.

    Raises UserError if the function raised it, or the files ended the process.
    """
    texts, named = json.dumps([file.as_json() for file in files]), ", ".join(display_path(file.path) for file in files)
    if problems := _run_trial(function, texts, json.dumps(values), named):
        raise UserError(problems)


@lru_cache(maxsize=1024)
def _run_trial(function: str, files: str, values: str, named: str) -> tuple[str, ...]:
    seconds = user_code.IMPORT_TIMEOUT
    limits = Limits(seconds + _MARGIN, memory_mib=_MEMORY_MIB)
    pool = shared_pool(Target(f"{__name__}:make_handler", purpose="tries files"), limits)
    job = {"function": function, "files": json.loads(files), "values": json.loads(values), "seconds": seconds}
    event = "while it was loaded" if job["values"] is None else "during its trial"
    try:
        return tuple(pool.submit(job).result())
    except JobTimeout:
        return (f"{named}: took more than {seconds:g} s {event}.",)
    except JobError as error:
        return (f"{named}: {error} {event}.",)


def make_handler(settings: Any) -> Callable[[Any], list[str]]:
    def handle(job: Mapping[str, Any]) -> list[str]:
        function = pkgutil.resolve_name(job["function"])
        files = [UserFile.from_json(file) for file in job["files"]]
        try:
            for file in files:
                load_module(file, job["seconds"])
            function(*files) if job["values"] is None else function(files, job["values"])
        except UserError as error:
            return list(error.problems)
        return []

    return handle
