"""Base class of the commands: options from the configuration's schema, `--json`, and notes on errors."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from rlvr_cli.core.errors import UserError

# Help of the options, so that `--help` need not load the schema: `python -m rlvr_cli.cli.key_texts`.
TEXTS = Path(__file__).with_name("key_texts.json")
# Printed after errors in the input, by command.
NOTES = {
    **dict.fromkeys(("train", "sweep run", "sweep retry", "eval", "score"), "Nothing was started."),
    "compare": "Nothing was compared.",
    "report": "No page was written.",
    "analyze": "Nothing was analyzed.",
    **dict.fromkeys(("export", "tasks generate", "tasks filter", "methods plot", "new"), "Nothing was written."),
}
# Panels of the help below the main options.
DATA_PANEL = "Problems and rewards"
MORE = "More options"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class KeyOption:
    """An option that sets a key, with the key's help, default and type.

    Attributes:
        metavar: replaces that of the key's type.
        help: replaces the key's meaning.
        several: whether the option can be repeated, for a list.
    """

    key: str
    names: tuple[str, ...]
    metavar: str = ""
    help: str = ""
    several: bool = False
    panel: str | None = None

    @property
    def parameter(self) -> str:
        return self.names[0].lstrip("-").replace("-", "_")

    def signature(self) -> inspect.Parameter:
        """Return the parameter for typer; `format_help` adds the help."""
        declared = typer.Option(*self.names, metavar=self.metavar or None, rich_help_panel=self.panel)
        value: Any = list[str] | None if self.several else str | None
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.parameter, kind, default=None, annotation=Annotated[value, declared])


def key_option(key: str, *names: str, **more: Any) -> KeyOption:
    """Return an option of a key, as `key_option("eval.temperature", "--temperature")`."""
    return KeyOption(key, names, **more)


def key_options(*options: KeyOption, into: str = "overrides") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options to a command after its parameter ``into``, which receives their values as overrides."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**arguments: Any) -> None:
            task = arguments.get("task")
            values = {option: arguments.pop(option.parameter) for option in options}
            chosen = {option: [text] if isinstance(text, str) else text for option, text in values.items() if text}
            function(**{**arguments, into: _add_overrides(arguments[into] or [], chosen, task)})

        vars(command)["key_options"] = options
        parameters = _parameters(function)
        index = 1 + [parameter.name for parameter in parameters].index(into)
        parameters[index:index] = [option.signature() for option in options]
        return _replace(command, function, parameters)

    return decorate


def options_from(build: Callable[..., Any], *, into: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of ``build`` to a command, and pass its result to the command's parameter ``into``."""
    inputs = _parameters(build)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**arguments: Any) -> None:
            value = build(**{parameter.name: arguments.pop(parameter.name) for parameter in inputs})
            function(**{**arguments, into: value})

        return _replace(command, function, [*inputs, *_parameters(function, excluded=into)])

    return decorate


def _parameters(function: Callable[..., Any], excluded: str = "") -> list[inspect.Parameter]:
    """Return the parameters except ``excluded``, keyword-only, with evaluated annotations."""
    raw = inspect.signature(function)
    # Types of parameters that are not options may be imported under TYPE_CHECKING only.
    others = [raw.return_annotation, *(raw.parameters[name].annotation for name in [excluded] if name)]
    parameters = inspect.signature(function, eval_str=True, locals={str(other): Any for other in others}).parameters
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [parameter.replace(kind=keyword) for name, parameter in parameters.items() if name != excluded]


def _replace(
    command: Callable[..., None], function: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Give ``command`` the name and docs of ``function`` and a signature of ``parameters`` for typer."""
    functools.update_wrapper(command, function)
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _add_overrides(overrides: list[str], chosen: dict[KeyOption, list[str]], task: str | None) -> list[str]:
    if not chosen:
        return overrides
    from rlvr_cli.config.keys import make_override

    def conflict(option: KeyOption) -> str:
        others = [text for text in overrides if text.partition("=")[0].strip() == option.key]
        if others:
            return f"and {others[0]} cannot be combined. Remove one"
        is_free = option.key != "task.reward" or task in (None, "own")
        return "" if is_free else f"and task {task}, which defines its reward, cannot be combined. Remove one"

    implied = ["task.name=own"] if task is None and any(option.key == "task.reward" for option in chosen) else []
    added = [make_override(option.names[0], option.key, values, conflict(option)) for option, values in chosen.items()]
    return [*implied, *overrides, *added]


class Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(parameter.name == "form" for parameter in self.params):
            args = ["--format=json" if text == "--json" else text for text in args]
        if any(parameter.name == "resume" for parameter in self.params):
            args = _expand_resume(args)
        _check_repeated(self.params, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # By name: typer vendors click, or uses the installed one.
            names = {parameter.name for parameter in self.params}
            if type(error).__name__ == "NoSuchOption" and not names.isdisjoint(_OVERRIDES):
                _suggest_key(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            error.note = NOTES.get(ctx.command_path.partition(" ")[2], "")
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        texts = json.loads(TEXTS.read_text(encoding="utf-8"))
        options = {option.parameter: option for option in getattr(self.callback, "key_options", ())}
        for parameter in self.params:
            if parameter.name in options:
                self._add_text(parameter, options[parameter.name], texts)
        _simplify_help(self, ctx)
        super().format_help(ctx, formatter)

    def _add_text(self, parameter: Any, option: KeyOption, texts: dict[str, dict[str, str]]) -> None:
        from rich.markup import escape

        text = texts[option.key]
        parameter.metavar = option.metavar or text["metavar"]
        parameter.help = f"{escape(option.help or text['meaning'])} [dim]({escape(text['about'])})[/dim]"


_OVERRIDES = ("overrides", "arguments")
# Value of `--resume` without a value; not a valid name of a run.
NEWEST = "(newest unfinished)"
_KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+=")


def _check_repeated(parameters: list[Any], args: list[str]) -> None:
    """Raise UserError for repeated options of a single value, of which the last would silently win."""
    problems = []
    for parameter in parameters:
        if getattr(parameter, "multiple", True) or getattr(parameter, "is_flag", False):
            continue
        names = [
            text for text in (word.partition("=")[0] for word in args) if text in parameter.opts and text[0] == "-"
        ]
        problems += (
            [f"{names[0]}: given {len(names)} times, but takes one value. Remove the others."] if len(names) > 1 else []
        )
    if problems:
        raise UserError(problems)


def _expand_resume(args: list[str]) -> list[str]:
    """Return the arguments with ``NEWEST`` after a `--resume` without a run."""
    expanded: list[str] = []
    for text, following in zip(args, (*args, "")[1:], strict=True):
        bare = text == "--resume" and (not following or following.startswith("-") or _KEY.match(following))
        expanded += [text, NEWEST] if bare else [text]
    return expanded


def _suggest_key(error: Any) -> None:
    """Suggest the key that an unknown option may mean, by its name here or in TRL and Hugging Face."""
    from rlvr_cli.config.keys import KEYS
    from rlvr_cli.core.keys import normalize_name

    names = (KEYS.suggest([normalize_name(error.option_name)]) or "").split(" or ")
    if all("." in name for name in names):
        error.possibilities = None
        error.message += f" Did you mean {' or '.join(f'{name}=VALUE' for name in names)} (without dashes)?"


class Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        _simplify_help(self, ctx)
        super().format_help(ctx, formatter)


def _simplify_help(command: TyperCommand | TyperGroup, ctx: Any) -> None:
    """Remove Python's types of flags and arguments from the help, and line breaks from its paragraphs."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            vars(parameter)["metavar"] = ""
        elif isinstance(parameter, TyperArgument):
            vars(parameter)["display_type_rich"] = lambda ctx: None


class App(typer.Typer):
    def __init__(self, cls: type[Group] = Group, **options: Any) -> None:
        super().__init__(cls=cls, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Decorate as typer's `command`, with ``Command``."""
        return super().command(name, cls=Command, **options)
