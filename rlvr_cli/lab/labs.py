"""Every lab by its name, and recipes read from YAML to make other bases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import UserError, layout
from rlvr_cli.core.messages import read_section
from rlvr_cli.core.text import did_you_mean
from rlvr_cli.core.yaml import YamlProblem, parse, read_text
from rlvr_cli.lab.countdown import CountdownLab
from rlvr_cli.lab.form import Lab
from rlvr_cli.lab.kk import KKLab
from rlvr_cli.lab.math import MathLab
from rlvr_cli.lab.recipe import Recipe

LABS: Mapping[str, Lab[Any]] = {lab.name: lab for lab in (KKLab(), CountdownLab(), MathLab())}


def find_lab(name: str) -> Lab[Any]:
    """The lab ``name``. Raises UserError where there is none."""
    if name not in LABS:
        raise UserError(f"there is no lab {name}; there are {', '.join(LABS)}.{did_you_mean(name, LABS)}")
    return LABS[name]


def load_recipe(path: Path, lab: Lab[Any] = LABS["kk"]) -> Recipe:
    """The recipe in a YAML file, of a base for ``lab``; keys left out keep their defaults.

    Raises:
        UserError: the file is missing, is not YAML, or has unknown keys or values out of range.
    """
    try:
        document = parse(read_text(path))
    except YamlProblem as problem:
        raise UserError(f"{problem.at(path)}  {problem.message}") from None
    recipe, faults = read_section(lab.recipe, {} if document.data is None else document.data)
    if recipe is None:
        raise UserError(layout([(document.at(path, fault.place), str(fault)) for fault in faults]))
    return recipe
