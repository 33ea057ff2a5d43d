"""Jinja templates of a configuration: checked without being run, rendered in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment


def find_template_error(template: str) -> str | None:
    """Return the problem of a template (syntax, filters, tests), or None, without evaluating it."""
    from jinja2 import TemplateSyntaxError, nodes

    environment = _environment()
    try:
        for node in environment.parse(template).find_all((nodes.Filter, nodes.Test)):
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


def make_handler(template: str) -> Callable[[dict[str, Any]], tuple[str, str]]:
    """Return the worker's job handler: a row of columns to its text, or an error."""
    compiled: list[Any] = []

    def write(columns: dict[str, Any]) -> tuple[str, str]:
        try:
            # With the first row, so that the limits apply to constants too.
            if not compiled:
                compiled.append(_environment().from_string(template))
            return compiled[0].render(**columns), ""
        except MemoryError:
            raise
        except Exception as error:
            return "", f"{error}" or type(error).__name__

    return write


def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
