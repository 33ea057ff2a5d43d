"""Jinja templates of a configuration: checked without evaluation, rendered in a worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment


def find_template_error(template: str) -> str | None:
    """Return an error in a template (syntax, filters, tests), or None, without evaluating it."""
    from jinja2 import TemplateSyntaxError, nodes

    environment = _make_environment()
    try:
        for node in environment.parse(template).find_all((nodes.Filter, nodes.Test)):
            kind = "filter" if isinstance(node, nodes.Filter) else "test"
            if node.name not in (environment.filters if kind == "filter" else environment.tests):
                return f'line {node.lineno}: unknown {kind} "{node.name}"'
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "its expressions are nested too deeply"
    except ValueError as error:
        return f"it cannot be read ({error})"  # a number of too many digits
    return None


def make_handler(template: str) -> Callable[[dict[str, Any]], tuple[str, str]]:
    """Return the worker's job handler: maps the columns of a row to (text, error)."""
    compiled: list[Any] = []

    def render(columns: dict[str, Any]) -> tuple[str, str]:
        try:
            # In the first job, so that its limits apply to constants too.
            if not compiled:
                compiled.append(_make_environment().from_string(template))
            return compiled[0].render(**columns), ""
        except MemoryError:
            raise
        except Exception as error:
            return "", f"{error}" or type(error).__name__

    return render


def _make_environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
