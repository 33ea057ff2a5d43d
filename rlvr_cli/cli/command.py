"""What every command has: options made from the configuration's schema, `--json`, and how its errors end."""

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

# What a schema says of the keys below, so that no help has to load the schema: `python -m rlvr_cli.cli.key_texts`.
TEXTS = Path(__file__).with_name("key_texts.json")
# What has not happened where the input was bad.
NOTES = {
    **dict.fromkeys(("train", "sweep run", "sweep retry", "eval", "score"), "Nothing was started."),
    "compare": "Nothing was compared.",
    "report": "No page was written.",
    "analyze": "Nothing was analyzed.",
    **dict.fromkeys(("export", "tasks generate", "tasks filter", "methods plot", "new"), "Nothing was written."),
}
# The panels of a help that stand below the options that one needs first.
DATA_PANEL = "Problems and rewards"
MORE = "More options"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class KeyOption:
    """An option that stands for a key: help, default and type are the key's.

    Attributes:
        metavar: where the key's type says it badly.
        help: in place of the key's meaning, where the option means more or less.
        several: whether it can be given again, for a key that is a list.
    """

    key: str
    names: tuple[str, ...]
    metavar: str = ""
    help: str = ""
    several: bool = False
    panel: str | None = None

    @property
    def parameter(self) -> str:
        """The name of the function's parameter."""
        return self.names[0].lstrip("-").replace("-", "_")

    def signature(self) -> inspect.Parameter:
        """What typer makes the option of; the help is added when it is shown."""
        declared = typer.Option(*self.names, metavar=self.metavar or None, rich_help_panel=self.panel)
        value: Any = list[str] | None if self.several else str | None
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.parameter, kind, default=None, annotation=Annotated[value, declared])


def key_option(key: str, *names: str, **more: Any) -> KeyOption:
    """As `key_option("eval.temperature", "--temperature")`."""
    return KeyOption(key, names, **more)


def key_options(*options: KeyOption, into: str = "overrides") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options that stand for keys, after its parameter ``into``, in which it finds them as overrides."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            task = given.get("task")
            values = {option: given.pop(option.parameter) for option in options}
            asked = {option: [value] if isinstance(value, str) else value for option, value in values.items() if value}
            function(**{**given, into: _with_options(given[into] or [], asked, task)})

        vars(command)["key_options"] = options
        own = _parameters(function)
        place = 1 + next(place for place, parameter in enumerate(own) if parameter.name == into)
        return _as(command, function, [*own[:place], *(option.signature() for option in options), *own[place:]])

    return decorate


def takes(build: Callable[..., Any], into: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the parameters of ``build`` in the place of its own ``into``, which gets what it makes of them."""
    built = _parameters(build)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:
            value = build(**{parameter.name: given.pop(parameter.name) for parameter in built})
            function(**{**given, into: value})

        return _as(command, function, [*built, *_parameters(function, but=into)])

    return decorate


def _parameters(function: Callable[..., Any], but: str = "") -> list[inspect.Parameter]:
    """The parameters without ``but``, all given by their names, with their annotations evaluated."""
    written = inspect.signature(function)
    # Of these, which are no options, the types may be known to type checkers alone.
    others = [written.return_annotation, *(one.annotation for one in written.parameters.values() if one.name == but)]
    found = inspect.signature(function, eval_str=True, locals={str(other): Any for other in others})
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [one.replace(kind=keyword) for one in found.parameters.values() if one.name != but]


def _as(
    command: Callable[..., None], function: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """``command`` in the place of ``function``, with the parameters where typer looks for them."""
    functools.update_wrapper(command, function)
    vars(command)["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _with_options(overrides: list[str], asked: dict[KeyOption, list[str]], task: str | None) -> list[str]:
    if not asked:
        return overrides
    from rlvr_cli.config.keys import option_override

    def problem(option: KeyOption) -> str:
        others = [text for text in overrides if text.partition("=")[0].strip() == option.key]
        if others:
            return f"and {others[0]} set the same thing; give one of them"
        own = option.key != "task.reward" or task in (None, "own")
        return "" if own else f"and task {task}, which has a reward of its own; leave one of the two out"

    implied = ["task.name=own"] if task is None and any(option.key == "task.reward" for option in asked) else []
    given = [option_override(one.names[0], one.key, values, problem(one)) for one, values in asked.items()]
    return [*implied, *overrides, *given]


class Command(TyperCommand):
    """A command of `rlvr`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(parameter.name == "form" for parameter in self.params):
            args = ["--format=json" if text == "--json" else text for text in args]
        if any(parameter.name == "resume" for parameter in self.params):
            args = _with_newest(args)
        _refuse_repeated(self.params, args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Typer brings its own copy of click, or takes the one installed.
            if type(error).__name__ == "NoSuchOption" and any(one.name in _OVERRIDES for one in self.params):
                _say_key(error)
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
        _plain(self, ctx)
        super().format_help(ctx, formatter)

    def _add_text(self, parameter: Any, option: KeyOption, texts: dict[str, dict[str, str]]) -> None:
        from rich.markup import escape

        text = texts[option.key]
        parameter.metavar = option.metavar or text["metavar"]
        parameter.help = f"{escape(option.help or text['meaning'])} [dim]({escape(text['about'])})[/dim]"


_OVERRIDES = ("overrides", "arguments")
# What `--resume` without a value stands for. No run can be called so.
NEWEST = "(newest unfinished)"
_KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)+=")


def _refuse_repeated(parameters: list[Any], args: list[str]) -> None:
    """Raise UserError for an option that takes one value and is there twice: its last value would silently count."""
    single = [one for one in parameters if not (getattr(one, "multiple", True) or getattr(one, "is_flag", False))]
    problems = []
    for parameter in single:
        names = [
            text for text in (word.partition("=")[0] for word in args) if text in parameter.opts and text[0] == "-"
        ]
        problems += [f"{names[0]}: is there {len(names)} times; it takes one value."] if len(names) > 1 else []
    if problems:
        raise UserError(problems)


def _with_newest(args: list[str]) -> list[str]:
    """The arguments with ``NEWEST`` after a `--resume` that names no run: an override or an option is no run."""
    found: list[str] = []
    for text, following in zip(args, (*args, "")[1:], strict=True):
        bare = text == "--resume" and (not following or following.startswith("-") or _KEY.match(following))
        found += [text, NEWEST] if bare else [text]
    return found


def _say_key(error: Any) -> None:
    """An unknown option is answered with the key that it means, by our name or by that of TRL or Hugging Face."""
    from rlvr_cli.config.keys import KEYS
    from rlvr_cli.core.keys import plain_name

    names = (KEYS.suggest([plain_name(error.option_name)]) or "").split(" or ")
    if all("." in name for name in names):
        error.possibilities = None
        error.message += f" Did you mean {' or '.join(f'{name}=VALUE' for name in names)} (without dashes)?"


class Group(TyperGroup):
    """A group of commands of `rlvr`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _plain(self, ctx)
        super().format_help(ctx, formatter)


def _plain(command: TyperCommand | TyperGroup, ctx: Any) -> None:
    """Help without Python's types next to flags and arguments, its paragraphs wrapped by the terminal."""
    command.help = "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n"))
    for parameter in command.get_params(ctx):
        if getattr(parameter, "is_flag", False):
            vars(parameter)["metavar"] = ""
        elif isinstance(parameter, TyperArgument):
            vars(parameter)["display_type_rich"] = lambda ctx: None


class App(typer.Typer):
    """A group of commands."""

    def __init__(self, cls: type[Group] = Group, **options: Any) -> None:
        super().__init__(cls=cls, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """As typer's, for our kind of command."""
        return super().command(name, cls=Command, **options)
