"""Finds and runs an analysis by its name."""

from __future__ import annotations

import importlib
from typing import Any

from rlvr_cli.core.section import Section
from rlvr_cli.report.analyses.findings import Findings, Subject


def analyze(name: str, subject: Subject, options: Section) -> Findings:
    """Run the analysis ``name`` of ``config.analysis_kinds.ANALYSES``.

    Raises:
        UserError: the runs do not hold what it needs.
    """
    module: Any = importlib.import_module(f"rlvr_cli.report.analyses.{name}")
    found: Findings = module.analyze(subject, options)
    return found
