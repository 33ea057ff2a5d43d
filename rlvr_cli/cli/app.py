"""Entry point: registers the commands and maps errors to messages and exit codes.

Exit codes: 0 done, 1 failed while running, 2 bad input, 70 a bug in rlvr (with a traceback), 130 interrupted.
"""

from __future__ import annotations

import errno
import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from rlvr_cli import __version__
from rlvr_cli.cli import (
    analyze,
    compare,
    config,
    doctor,
    eval,
    export,
    methods,
    new,
    plan,
    report,
    runs,
    score,
    sweep,
    tasks,
    train,
)
from rlvr_cli.cli.command import App
from rlvr_cli.cli.output import echo
from rlvr_cli.core.errors import RunError, UserError
from rlvr_cli.core.text import redact_secrets

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_BUG = 70
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

GROUPS = {
    "sweep": sweep.app,
    "methods": methods.app,
    "tasks": tasks.app,
    "runs": runs.app,
    "config": config.app,
}
# Without a default for a flag of a group, typer loads pydantic to convert None: 0.1 s for every command's help.
DEFAULTS: dict[str, Any] = {
    "help": False,
    "install_completion": False,
    "show_completion": False,
    **{name: {"help": False} for name in GROUPS},
}

app = App(
    name="rlvr",
    help="Compare reinforcement-learning methods on tasks whose answers can be checked.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "default_map": DEFAULTS},
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"rlvr {__version__}")
        raise typer.Exit()


@app.callback()
def rlvr(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compare reinforcement-learning methods on tasks whose answers can be checked."""


app.command("train")(train.command)
app.command("eval")(eval.command)
app.command("compare")(compare.command)
app.command("report")(report.command)
app.command("analyze")(analyze.command)
app.command("plan")(plan.command)
app.command("export")(export.command)
app.command("score")(score.command)
app.command("doctor")(doctor.command)
app.command("new")(new.new)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code; errors go to standard error, bugs raise."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As standard error: a character that the terminal lacks is escaped.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="rlvr")
    except SystemExit as end:
        if line := _format_user_code_error(end):
            echo(line, file=sys.stderr)
            return EXIT_FAILED
        return end.code if isinstance(end.code, int) else 0 if end.code is None else EXIT_FAILED
    except UserError as error:
        echo("\n".join([*error.problems, error.summary()]), file=sys.stderr)
        return EXIT_BAD_INPUT
    except RunError as error:
        echo("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            echo(f"{error.filename}: {error.strerror}", file=sys.stderr)
            return EXIT_BAD_INPUT
        if error.errno not in DISK_ERRORS:
            raise
        echo(f"{error.filename or 'disk'}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _format_user_code_error(error: BaseException) -> str | None:
    user_code = sys.modules.get("rlvr_cli.core.user_code")
    return None if user_code is None else user_code.user_error_message(error)


def main() -> None:
    """Run the command line and exit: 70 with a traceback for a bug, 1 with file and line for an error in user code."""
    try:
        sys.exit(run())
    except Exception as error:
        import traceback

        if line := _format_user_code_error(error):
            echo(line, file=sys.stderr)
            sys.exit(EXIT_FAILED)
        echo(redact_secrets(traceback.format_exc()), end="", file=sys.stderr, unwrapped=True)
        print("This is a bug in rlvr; please report it with the lines above.", file=sys.stderr)
        sys.exit(EXIT_BUG)
