"""Errors that are printed as plain messages; any other exception is a bug."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlvr_cli.core.text import redact_secrets

GAP = "  "
# Prefix of the last message of a truncated list.
FURTHER = "... and "


class UserError(Exception):
    """Bad input: the command line prints every problem and exits with 2, without a traceback.

    ``problems``: each with the problem, its location, the allowed values and the remedy.
    """

    # The consequence, as a sentence; set by the command.
    note = ""

    def __init__(self, problems: str | Sequence[str]) -> None:
        messages = (problems,) if isinstance(problems, str) else tuple(problems)
        self.problems: tuple[str, ...] = tuple(map(redact_secrets, messages))
        if not self.problems:
            raise ValueError("a UserError needs at least one problem")
        super().__init__("\n".join(self.problems))

    def summary(self) -> str:
        number = sum(not problem.startswith(FURTHER) for problem in self.problems)
        more = "more than " if number < len(self.problems) else ""
        return f"{more}{number} problem{'' if number == 1 else 's'}. {self.note}".rstrip()


class ConfigError(UserError):
    """Every problem of a configuration; `by_origin`: (origins of the values, message)."""

    def __init__(self, by_origin: Sequence[tuple[str, str]]) -> None:
        super().__init__(format_problems(by_origin))
        self.by_origin = tuple(by_origin)


class RunError(Exception):
    """A failure while running (a full disk, a non-finite loss): printed as one message, exit code 1."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(redact_secrets(argument) if isinstance(argument, str) else argument for argument in arguments)
        )


class JointError(RunError):
    """A failure that all processes of a training raise together, such as a decision to stop."""


@contextmanager
def collect_problems(
    problems: list[str], catch: type[Exception] | tuple[type[Exception], ...] = (UserError, RunError)
) -> Iterator[None]:
    """Collect the messages of an error in ``problems`` instead of raising it."""
    try:
        yield
    except catch as error:
        problems.extend(error.problems if isinstance(error, UserError) else str(error).splitlines())


def format_problems(problems: Sequence[tuple[str, str]]) -> list[str]:
    """Format one line per problem, aligning the messages after origins of similar length."""
    widths = [len(origin) for origin, _ in problems if len(origin) <= 40]
    width = max(widths, default=0)
    return [f"{origin:<{width}}{GAP}{message}" if origin else message for origin, message in problems]
