"""Recipes: the configuration and sweep files in `configs/`, by name. A wheel has them inside the package."""

from __future__ import annotations

import itertools
import os
import re
from pathlib import Path

from rlvr_cli.core.files import local_path
from rlvr_cli.core.text import nearest
from rlvr_cli.core.yaml import YamlProblem, read_text

_PACKAGE = Path(__file__).resolve().parents[1]
# In a checkout, also one that is installed with `pip install -e`, next to the package.
FOLDER = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"


def recipe_files() -> dict[str, Path]:
    """Return every file in the folder by its name, as `sweeps/methods`; those of shared settings begin with `_`."""
    return {recipe_name(path): path for path in sorted(FOLDER.rglob("*.*"))}


def recipe_name(path: Path) -> str:
    if not path.is_absolute() or not path.is_relative_to(FOLDER):
        return str(path)
    return path.relative_to(FOLDER).as_posix().removesuffix(".yaml")


def config_file(name: str | Path, folder: Path = Path()) -> Path:
    """Return the path of ``name`` in ``folder``, or of the recipe of that name, with or without `.yaml`.

    A file takes precedence; where there is neither, returns the path in ``folder``.
    """
    path = folder / local_path(str(name))
    if os.path.lexists(path) and not path.is_dir():
        return path
    return recipe_files().get(str(name).removesuffix(".yaml"), path)


def read_config(path: Path) -> str:
    """Read a configuration or sweep file as :func:`read_text`, with recipes of a similar name where it is missing."""
    if os.path.lexists(path):
        return read_text(path)
    raise YamlProblem(None, no_recipe(str(path)))


def no_recipe(name: str) -> str:
    names, short = list(recipe_files()), re.sub(r"\.ya?ml$", "", name)
    similar = [other for other in names if Path(other).name == Path(short).name] or [nearest(short, names) or ""]
    if similar[0]:
        return f"no such file or recipe. Did you mean {' or '.join(f'`{other}`' for other in similar)}?"
    return "no such file" if name != short else "no such file or recipe; `rlvr config recipes` lists the recipes"


def summary(path: Path) -> str:
    """Return the beginning of the comment at the top of a file, up to its first `.`, `:` or `;`."""
    if path.suffix == ".json":
        return "A preset of launch.deepspeed as a file"
    lines = itertools.takewhile(lambda line: line.startswith("# "), read_text(path).splitlines())
    return re.split(r"[.:;](?: |$)", " ".join(line[2:].strip() for line in lines))[0]


def copyable(path: Path) -> str:
    """Return the text of a recipe with the names of recipes in place of its relative paths, for any folder."""

    def named(match: re.Match[str]) -> str:
        file = Path(os.path.normpath(path.parent / match[0]))
        return recipe_name(file) if file.is_file() else match[0]

    return re.sub(r"[\w./-]+\.yaml", named, read_text(path))
