"""`rlvr config`: the resolved configuration, and the lists of all keys and recipes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlvr_cli.cli.command import App, key_options
from rlvr_cli.cli.options import TRAINING, ConfigFiles, Method, Model, Overrides, Task, config_sources
from rlvr_cli.cli.output import Format, ListFormat, print_json, print_table
from rlvr_cli.cli.output import show as show_document
from rlvr_cli.core.terminal import Cell, Marked
from rlvr_cli.core.text import escape_for_terminal

app = App(help="Show the resolved configuration, every key with its meaning, or the recipes.", no_args_is_help=True)


@app.command()
@key_options(*TRAINING)
def show(
    config: ConfigFiles = None,
    method: Method = None,
    task: Task = None,
    model: Model = None,
    overrides: Overrides = None,
    origins: Annotated[bool, typer.Option("--origins", help="Show where each value is set.")] = False,
    form: Format = "table",
) -> None:
    """Print the configuration that `rlvr train` would use with the same options.

    Python files are not imported: of a task or method in a file, only the keys that are set are shown.
    """
    from rlvr_cli.config.load import as_plain, dump_yaml, leaves, load

    loaded = load(config_sources(config, import_files=False), method, task, model, overrides or [])
    if not origins:
        if form == "json":
            print_json(as_plain(loaded.config))
        else:
            text = dump_yaml(loaded.config)
            # Escapes are for a terminal only.
            print(escape_for_terminal(text) if sys.stdout is not None and sys.stdout.isatty() else text, end="")
        return
    rows = [
        {"key": ".".join(path), "value": value, "origin": loaded.origin(*path)} for path, value in leaves(loaded.config)
    ]
    if form == "json":
        print_json(rows)
        return
    from rlvr_cli.core.yaml import yaml_text

    cells = [(row["key"], yaml_text(row["value"]), _mark_origin(row["origin"])) for row in rows]
    print_table(("key", "value", "set by"), cells)


def _mark_origin(origin: str) -> Cell:
    return origin if origin == "default" else Marked(origin, "strong")


@app.command()
def keys(
    query: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Only this section or key, or any word, as `method.kl`, `split`."),
    ] = None,
    form: ListFormat = "table",
) -> None:
    """List every key with its type, default and meaning; for a choice, the kinds that have the key."""
    from rlvr_cli.config.keys import KEYS
    from rlvr_cli.core.errors import UserError
    from rlvr_cli.core.table import ResultDocument, Table
    from rlvr_cli.core.yaml import yaml_text

    chosen = KEYS.search(query) if query else list(KEYS.keys)
    if not chosen:
        guess = KEYS.suggest(query.split(".")) if query else None
        hint = f" Did you mean `{guess}`?" if guess else ""
        raise UserError(f"no key has `{query}` in its name or meaning.{hint} Sections: {', '.join(KEYS.section_names)}")
    rows = [
        {"key": k.name, "kinds": list(k.kinds), "type": k.type, "default": k.default, "meaning": k.meaning}
        for k in chosen
    ]
    cells = []
    for key in chosen:
        default = list(key.default) if isinstance(key.default, tuple) else key.default
        kinds = f"{', '.join(key.kinds)}: " if key.kinds else ""
        cells.append((key.name, yaml_text(default), kinds + key.meaning, key.type))
    table = Table("", ("key", "default", "meaning", "type"), cells)
    show_document(form, ResultDocument(tables=[table], data=rows, rows=rows))


@app.command()
def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Print this recipe; or list those in a folder, as `papers/dgpo`."),
    ] = None,
    form: ListFormat = "table",
) -> None:
    """List the configuration and sweep files that come with rlvr, or print one, to copy and change.

    A recipe's name stands for its file: `rlvr sweep sweeps/methods`, `rlvr train -c lab_stable`.
    """
    from rlvr_cli.core.errors import UserError
    from rlvr_cli.core.recipes import copyable, no_recipe, recipe_files, summary
    from rlvr_cli.core.table import ResultDocument, Table

    files = recipe_files()
    if name is not None and (file := files.get(name.removesuffix(".yaml"))) is not None:
        print(copyable(file), end="")
        return
    folder = "" if name is None else f"{name.rstrip('/')}/"
    listed = {key: path for key, path in files.items() if key.startswith(folder) and not path.name.startswith("_")}
    if name is not None and not listed:
        raise UserError(f"{name}: {no_recipe(name)}")
    rows = [{"name": key, "content": summary(path), "path": str(path)} for key, path in listed.items()]
    table = Table("", ("name", "content"), [(row["name"], row["content"]) for row in rows])
    show_document(form, ResultDocument(tables=[table], data=rows, rows=rows))
