"""How the arms' configurations differ, and the whole of each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlvr_cli.config.load import dump_yaml
from rlvr_cli.report.report_subject import Subject
from rlvr_cli.report.report_table import NONE, Table, table
from rlvr_cli.results.arms import Arm

# Names of runs, and the seed that makes several runs of one arm.
OF_RUN = ("run.name", "run.dir", "run.seed")
_ABSENT = object()


def differences_table(subject: Subject) -> Table | None:
    """The keys that are not the same in all runs, by arm; None where all agree."""
    rows = []
    for key in dict.fromkeys(key for run in subject.runs for key in run.values):
        if key in OF_RUN:
            continue
        if len({_text(run.values.get(key, _ABSENT)) for run in subject.runs}) > 1:
            rows.append([key, *(_of_arm(arm, key) for arm in subject.arms)])
    if not rows:
        return None
    header = ("key", *(arm.name for arm in subject.arms))
    return table(
        "Configuration keys that are not the same everywhere",
        header,
        rows,
        texts=range(1, len(header)),
        note="All other keys are the same in all runs, but for names, folders and seeds.",
    )


def configurations(subject: Subject) -> list[tuple[str, str]]:
    """Of each arm a title, and the resolved configuration of its first run as YAML."""
    found = []
    for arm in subject.arms:
        run = next(iter(arm.runs.values()))
        found.append((f"{arm.name}, as in {run.path}", dump_yaml(run.config)))
    return found


def _of_arm(arm: Arm, key: str) -> str:
    values = list(dict.fromkeys(_text(run.values.get(key, _ABSENT)) for run in arm.runs.values()))
    return _either(values)


def _either(values: Sequence[str]) -> str:
    return " or ".join(values)


def _text(value: Any) -> str:
    if value is _ABSENT:
        return NONE
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
