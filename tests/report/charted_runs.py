"""Run directories with known metrics, and what stands in an SVG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from rlvr_cli.config.load import dump_yaml, load_config
from rlvr_cli.report.charts.chart import Chart
from rlvr_cli.runs.folder import RunDir, create_run
from rlvr_cli.store.find import Run, read_run

SVG = "{http://www.w3.org/2000/svg}"


def charted(
    root: Path,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    method: str = "grpo",
    overrides: Sequence[str] = (),
    seconds: float = 1.0,
) -> Run:
    """A run with these metrics, one mapping a rollout; every update of it has them. A rollout's length is 10 tokens."""
    run = create_run(root, name, overwrite=False)
    config = load_config(method=method, overrides=[f"run.dir={root}", f"run.name={name}", *overrides])
    run.config_path.write_text(dump_yaml(config), encoding="utf-8")
    run.update_manifest(name=name, status="finished", created="2026-01-01T00:00:00+00:00", method=method)
    steps, timings = [], []
    for rollout, values in enumerate(rows):
        for update in range(config.batch.steps_per_rollout):
            step = len(steps) + 1
            place = {"step": step, "rollout": rollout, "update": update, "update_tokens": 640.0}
            steps.append({**place, "length": 10.0, **values})
            timings.append({"step": step, "seconds": seconds, "seconds/update": seconds / 2})
    # Not the project's writer, which refuses NaN: files may have been written by anybody.
    run.metrics_path.write_text("".join(json.dumps(row) + "\n" for row in steps), encoding="utf-8")
    run.timings_path.write_text("".join(json.dumps(row) + "\n" for row in timings), encoding="utf-8")
    return found(run)


def found(made: RunDir) -> Run:
    """The run in this folder, as a command finds it."""
    return read_run(made.path)


def by_key(figures: Sequence[Chart]) -> dict[str, Chart]:
    return {figure.key: figure for figure in figures}


def column(figure: Chart, name: str, **where: str) -> list[str]:
    """A column of the table, of the rows with these values in other columns."""
    header, *rows = figure.table
    return [row[header.index(name)] for row in rows if all(row[header.index(key)] == v for key, v in where.items())]


def elements(figure: Chart) -> list[ElementTree.Element]:
    """All elements of a chart's pictures."""
    return [element for panel in figure.panels for element in ElementTree.fromstring(panel.svg).iter()]


def heights(figure: Chart, colour: str = "--c0", width: str = "1.8") -> np.ndarray:
    """[points] y in the picture of the line of this colour and width, positive upwards."""
    (path,) = [
        element.attrib["d"]
        for element in elements(figure)
        if element.get("stroke") == f"var({colour})" and element.get("stroke-width") == width and "d" in element.attrib
    ]
    return np.array([-float(point.split(",")[1]) for point in path[1:].split("L")])


def thin_lines(figure: Chart) -> list[str]:
    """The paths of single runs."""
    return [one.attrib["d"] for one in elements(figure) if one.get("stroke-width") == "0.8" and one.get("data-arm")]


def texts(figure: Chart) -> list[str]:
    """What can be read in a chart's pictures."""
    return [element.text or "" for element in elements(figure) if element.tag == f"{SVG}text"]
