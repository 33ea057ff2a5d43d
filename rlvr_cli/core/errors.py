"""The errors that reach a user as plain messages. Anything else that escapes is a bug of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlvr_cli.core.text import without_secrets

GAP = "  "
# How the last message of a list that was cut begins.
FURTHER = "... and "


class UserError(Exception):
    """Bad input: the command line prints every problem and exits with 2, without a traceback.

    Args:
        problems: one message or several; each says what is wrong, where, what is allowed and what to do.
    """

    # What has not happened, as a sentence: the command that was given says it.
    note = ""

    def __init__(self, problems: str | Sequence[str]) -> None:
        messages = (problems,) if isinstance(problems, str) else tuple(problems)
        self.problems: tuple[str, ...] = tuple(map(without_secrets, messages))
        if not self.problems:
            raise ValueError("a UserError needs at least one problem")
        super().__init__("\n".join(self.problems))

    def summary(self) -> str:
        """Return the closing line: how many problems, and what has (not) happened."""
        listed = sum(not problem.startswith(FURTHER) for problem in self.problems)
        more = "more than " if listed < len(self.problems) else ""
        return f"{more}{listed} problem{'' if listed == 1 else 's'}. {self.note}".rstrip()


class ConfigError(UserError):
    """Every problem of a configuration; `by_origin` holds them as (places that set the values, message)."""

    def __init__(self, by_origin: Sequence[tuple[str, str]]) -> None:
        super().__init__(layout(by_origin))
        self.by_origin = tuple(by_origin)


class RunError(Exception):
    """A failure while running (a full disk, a non-finite loss): printed as one message, exit code 1."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(without_secrets(argument) if isinstance(argument, str) else argument for argument in arguments)
        )


class JointError(RunError):
    """A failure that all processes of a training come to alike, such as a decision to stop: no one rank's."""


@contextmanager
def collecting(problems: list[str]) -> Iterator[None]:
    """Add the messages of a UserError or RunError to ``problems`` in place of raising it: all are shown at once."""
    try:
        yield
    except UserError as error:
        problems.extend(error.problems)
    except RunError as error:
        problems.extend(str(error).splitlines())


def layout(problems: Sequence[tuple[str, str]]) -> list[str]:
    """One line a problem, the messages aligned behind the places where those are of like length."""
    widths = [len(origin) for origin, _ in problems if len(origin) <= 40]
    width = max(widths, default=0)
    return [f"{origin:<{width}}{GAP}{message}" if origin else message for origin, message in problems]
