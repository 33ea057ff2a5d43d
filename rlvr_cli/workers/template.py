"""A template of the configuration, which is a program that came with it: checked without running it, run in a worker.

What compiles a template evaluates the constants in it, so even that happens in the worker alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment

# Characters that a template may write for a row.
MOST_CHARACTERS = 1_000_000


def problem_of(template: str) -> str | None:
    """What is wrong with a template, by its syntax and the names of filters and tests; None where nothing is."""
    from jinja2 import TemplateSyntaxError, nodes

    environment = _environment()
    try:
        tree = environment.parse(template)
        for node in tree.find_all((nodes.Filter, nodes.Test)):
            kind = "filter" if isinstance(node, nodes.Filter) else "test"
            if node.name not in (environment.filters if kind == "filter" else environment.tests):
                return f"line {node.lineno}: there is no {kind} {node.name!r}"
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "its expressions are nested too deep"
    except ValueError as error:
        return f"it cannot be read ({error})"  # a number of too many digits
    return None


def ready(template: str) -> Callable[[dict[str, Any]], list[str]]:
    """What writes a row by ``template``: ``["ok", text]`` or ``["error", why]``. In a worker only."""
    environment, compiled = _environment(), list[Any]()

    def write(columns: dict[str, Any]) -> list[str]:
        try:
            # Not before the first row: what takes too long or too much of that is killed with it.
            if not compiled:
                compiled.append(environment.from_string(template))
            text = compiled[0].render(**columns)
        except MemoryError:
            raise
        except Exception as error:
            return ["error", f"{error}" or type(error).__name__]
        if len(text) > MOST_CHARACTERS:
            return ["error", f"it writes {len(text):,} characters; at most {MOST_CHARACTERS:,}"]
        return ["ok", text]

    return write


def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
