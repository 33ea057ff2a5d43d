"""Carry out a request: load each model, evaluate it, average checkpoints, compare with another model."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlvr_cli.config.errors import UserError
from rlvr_cli.config.schema import Config
from rlvr_cli.evaluation.compare import Difference, compare_evals, paired_rows, read_evaluation
from rlvr_cli.evaluation.metrics import ProblemValues, average
from rlvr_cli.evaluation.request import Request
from rlvr_cli.evaluation.settings import EvalSettings, digest
from rlvr_cli.evaluation.targets import Subject
from rlvr_cli.models.load import load_model, quiet_hub
from rlvr_cli.models.source import prompt_style
from rlvr_cli.models.threads import set_threads
from rlvr_cli.runs.atomic import write_json
from rlvr_cli.tasks import Problem, Task, make_task, task_style


@dataclass(frozen=True)
class Outcome:
    """One evaluation's folder and the content of its metrics.json."""

    folder: Path
    result: dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Another model (before) against the request's (after), paired by problem; overall and by subgroup."""

    before: Outcome
    overall: dict[str, Difference]
    by_subgroup: dict[str, dict[str, Difference]]

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "before": self.before.result["label"],
            "metrics": {name: item.as_json() for name, item in self.overall.items()},
            "by_subgroup": {
                group: {name: item.as_json() for name, item in table.items()}
                for group, table in self.by_subgroup.items()
            },
        }


class Session:
    """The state that the evaluations of one request share.

    Args:
        watch: given a subject's label, returns the callback that is told of its progress.
        say: shows one line to the person.
    """

    def __init__(self, request: Request, *, watch: Callable[[str], Any], say: Callable[[str], None]) -> None:
        self.request, self.watch, self.say = request, watch, say
        self.config: Config = request.config
        self.settings: EvalSettings = request.settings
        self._problems: list[Problem] | None = None
        self.several = len(request.target.subjects) > 1 or request.against is not None
        if self.several and request.out is not None and (request.out / "meta.json").exists():
            raise UserError(f"{request.out}: holds one evaluation. Choose another --out for several.")
        # Bad data must show before a model is loaded, which takes long.
        subjects = [*request.target.subjects, *(request.against.subjects if request.against else ())]
        for subject in subjects:
            if subject.style is not None:
                self._task(subject.style)

    def run(self) -> tuple[Outcome, Comparison | None]:
        """Evaluate what was asked for. Raises UserError and RunError as ``evaluate`` does."""
        target, against = self.request.target, self.request.against
        for note in (*target.notes, *(against.notes if against else ())):
            self.say(note)
        parts = [self._evaluate(subject) for subject in target.subjects]
        outcome = parts[0] if len(parts) == 1 else self._average(parts)
        if against is None:
            return outcome, None
        before = self._evaluate(against.subjects[0])
        comparison = _compare(before, outcome)
        write_json(outcome.folder / f"against-{before.folder.name}.json", comparison.as_json())
        return outcome, comparison

    def _evaluate(self, subject: Subject) -> Outcome:
        from rlvr_cli.evaluation.evaluate import evaluate
        from rlvr_cli.evaluation.sampling import identity

        model, tokenizer = _load(subject, self.config)
        task, problems = self._task(subject.style or prompt_style(model.config))
        known = identity(model, task, self.settings)
        benchmark = self.request.benchmark or task.name
        name = f"{benchmark}-{self.settings.split}-{subject.stem}-{digest(known)[:8]}"
        folder = subject.root / name
        if self.request.out is not None:
            folder = self.request.out / name if self.several else self.request.out
        with self.watch(subject.label) as progress:
            result = evaluate(
                model,
                tokenizer,
                task,
                problems,
                self.settings,
                folder,
                progress,
                label=subject.label,
                known_identity=known,
                benchmark=benchmark,
            )
        del model
        gc.collect()
        return Outcome(folder, result)

    def _task(self, style: str) -> tuple[Task, list[Problem]]:
        task = make_task(self.config.task, task_style(self.config.task, style))
        if self._problems is None:
            settings = self.settings
            self._problems = task.problems(settings.split, settings.problems, settings.problems_seed)  # type: ignore[arg-type]
            if len(self._problems) < settings.problems:
                self.say(f"{len(self._problems)} problems: the data has no more ({settings.problems} were asked for)")
                self.settings = replace(settings, problems=len(self._problems))
        return task, self._problems

    def _average(self, parts: list[Outcome]) -> Outcome:
        from rlvr_cli.evaluation.evaluate import write_results
        from rlvr_cli.evaluation.metrics import summarise

        evaluations = [read_evaluation(part.folder) for part in parts]
        rows = average([evaluation.rows for evaluation in evaluations])
        first = parts[0].result
        labels = [part.result["label"] for part in reversed(parts)]
        fingerprint = digest([part.result["fingerprint"] for part in parts])
        result = {
            **first,
            "label": f"average of {', '.join(labels)}",
            "fingerprint": fingerprint,
            "averaged": [str(part.folder) for part in reversed(parts)],
            **summarise(rows),
        }
        name = f"{first['benchmark']}-{first['split']}-last-{len(parts)}-{fingerprint[:8]}"
        folder = self.request.out or self.request.target.subjects[0].root / name
        folder.mkdir(parents=True, exist_ok=True)
        write_results(folder, result, rows)
        return Outcome(folder, result)


def _compare(before: Outcome, after: Outcome) -> Comparison:
    overall = compare_evals(before.folder, after.folder)
    old, new = read_evaluation(before.folder).rows, {row.id: row for row in read_evaluation(after.folder).rows}
    groups: dict[str, list[ProblemValues]] = {name: [] for name in after.result["by_subgroup"]}
    for row in old:
        groups[row.subgroup].append(row)
    by_subgroup = {name: paired_rows(rows, [new[row.id] for row in rows]) for name, rows in groups.items()}
    return Comparison(before, overall, by_subgroup)


def _load(subject: Subject, config: Config) -> tuple[Any, Any]:
    quiet_hub()
    set_threads(config.run.threads)
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    revision = config.model.revision if subject.model == config.model.name else None
    return load_model(subject.model, revision=revision, dtype=config.model.dtype, device=device)
