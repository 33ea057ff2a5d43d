"""Carry out a request: load each model, evaluate it, average checkpoints, compare with another model."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.files import local_path, write_json
from rlvr_cli.core.hashes import digest
from rlvr_cli.evaluation.loading import LoadedModel, load_subject, revision_of, tokenizer_location
from rlvr_cli.evaluation.metrics import PairedDifference, average, compare_evals, paired_rows
from rlvr_cli.evaluation.request import MOST_COMPLETIONS, EvalRequest
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.targets import EvaluatedModel, Target, slug
from rlvr_cli.models.reading import unread
from rlvr_cli.runs.checkpoints import STEP
from rlvr_cli.runs.trained_on import FILE, training_problems, wording_hash
from rlvr_cli.store.evaluation import Evaluation, ProblemValues, Provenance, read_result
from rlvr_cli.tasks import Problem, Task
from rlvr_cli.tasks.base import HARDLY_READABLE, PROMPTS_MEASURED, prompt_ids, unread_share
from rlvr_cli.tasks.problem import FEW
from rlvr_cli.tasks.sets import data_sets, problems_name
from rlvr_cli.tracking.tracking import EvaluationTracking

if TYPE_CHECKING:
    from rlvr_cli.models.tokenizer import ModelFacts


TWO_RUNS = (
    "note: the differences are of these two runs, over problems; one run says nothing of its method. `rlvr sweep` with "
    "3 or more seeds compares methods."
)


@dataclass(frozen=True)
class PairedComparison:
    """Another model (before) against the request's (after), paired by problem; overall and by subgroup.

    ``note``: what two runs of methods do not tell; None of others.
    """

    before: Evaluation
    overall: dict[str, PairedDifference]
    by_subgroup: dict[str, dict[str, PairedDifference]]
    note: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        return {
            "before": self.before.result["label"],
            "metrics": {name: item.as_json() for name, item in self.overall.items()},
            "by_subgroup": {
                group: {name: item.as_json() for name, item in table.items()}
                for group, table in self.by_subgroup.items()
            },
            "note": self.note,
        }


class Session:
    """One request's evaluations, from problems that were read to results on disk.

    Args:
        watch: given a label, returns the callback that is told of the progress.
        say: shows one line to the person.
    Raises:
        UserError: the data cannot be read, or ``out`` holds another evaluation.
    """

    def __init__(self, request: EvalRequest, *, watch: Callable[[str], Any], say: Callable[[str], None]) -> None:
        self.request, self.watch, self.say = request, watch, say
        self.config: Config = request.config
        self.settings: EvalSettings = request.settings
        self.several = len(request.target.subjects) > 1 or request.against is not None
        if self.several and request.out is not None and (request.out / "meta.json").exists():
            raise UserError(
                f"{request.out}: holds a single evaluation. Choose another --output for several evaluations."
            )
        # Bad data must show before a model is loaded, which takes long. A model of the hub has no known style yet;
        # which problems there are does not depend on it.
        for note in request.notes:
            say(note)
        subjects = [*request.target.subjects, *(request.against.subjects if request.against else ())]
        tasks = [self.config.task.for_model(s.style or "logic_rl") for s in subjects]
        self.problems = self._read(tasks[0])
        wordings = [wording_hash(tasks[0].problem_wording(problem)) for problem in self.problems]
        self._trained_on: dict[str, int] = {}
        for target, option in ((request.target, ""), (request.against, " (--against)")):
            if target is not None:
                self._look_for_training_problems(tasks[0], target, option, wordings)

    def fit(self, subject: EvaluatedModel, facts: ModelFacts, longest: int | None, whose: str) -> None:
        """Cut a benchmark's own length, or a run's, to what fits into ``longest`` tokens, and say so.

        Args:
            whose: what has that limit. longest: None = it has none.
        Raises:
            UserError: a length that this call asks for does not fit, or a prompt alone does not.
        """
        if longest is None:
            return
        task = self.config.task.for_model(subject.style or facts.style)
        prompt = max(len(prompt_ids(task, problem, facts.tokenizer)) for problem in self.problems)
        asked, new_tokens, room = self.request.length_asked, self.settings.max_new_tokens, longest - prompt
        if new_tokens <= room:
            return
        name = f"{self.request.benchmark}: " if self.request.benchmark else ""
        problem = f"prompts of up to {prompt} tokens and {new_tokens} new ones are more than the {longest} {whose}"
        if room < 1:
            raise UserError(f"{name}{problem}. Evaluate on shorter problems.")
        if asked is not None:
            given = f"{asked}{' ' if asked.startswith('--') else '='}{new_tokens}"
            raise UserError(f"{name}{given}: {problem}. Allowed: up to {room}.")
        self.say(f"{name}{problem}; completions are cut at {room}")
        self.settings = replace(self.settings, max_new_tokens=room)

    def evaluate(self, subject: EvaluatedModel, loaded: LoadedModel) -> Evaluation:
        """Evaluate one model. Raises UserError and RunError as :func:`evaluate` does."""
        from rlvr_cli.evaluation.evaluate import evaluate_with

        task = self.config.task.for_model(subject.style or loaded.style)
        known = loaded.sampler.identity(task, self.settings)
        benchmark = self.request.benchmark or problems_name(self.config.task.name, self.config.task.data)
        stem = loaded.stem or subject.stem
        if loaded.stem is not None and subject.step is not None:
            # A server has any checkpoint under one name.
            known, stem = {**known, "step": subject.step}, f"{subject.stem}-{stem}"
        name = f"{slug(benchmark)}-{self.settings.split}-{stem}-{self._key(digest(known))}"
        folder = subject.root / name
        if self.request.out is not None:
            folder = self.request.out / name if self.several else self.request.out
        model = loaded.label or subject.label
        self._warn_of_unread(task, loaded, model)
        label = model if self.request.setting is None else f"{model}, {benchmark}"
        steps = () if subject.step is None else (subject.step,)
        trained_on = self._trained_on.get(subject.label, 0)
        provenance = Provenance(model, subject.base or subject.model, benchmark, steps, trained_on=trained_on)
        with self.watch(label) as progress:
            evaluation = evaluate_with(
                loaded.sampler,
                task,
                self.problems,
                self.settings,
                folder,
                progress,
                provenance,
                known_identity=known,
            )
        return self._kept(evaluation)

    def _kept(self, evaluation: Evaluation) -> Evaluation:
        """Return the evaluation, after a remark where its folder keeps a larger one."""
        kept = read_result(evaluation.folder / "metrics.json")
        size = kept["problems"], kept["samples"]
        if size > evaluation.size:
            self.say(
                f"{evaluation.folder} keeps its evaluation of {size[0]:,} problems x {size[1]:,} samples, which "
                "`rlvr compare` reads; the new samples are added. The numbers shown are of this call alone."
            )
        return evaluation

    def _warn_of_unread(self, task: Task, loaded: LoadedModel, model: str) -> None:
        """Say where the model's tokenizer does not know what the prompts consist of: no number means much then."""
        tokenizer = loaded.tokenizer
        if tokenizer is None:
            return
        share = unread_share([prompt_ids(task, one, tokenizer) for one in self.problems[:PROMPTS_MEASURED]], tokenizer)
        if share >= HARDLY_READABLE:
            self.say(f"WARNING: {unread(task.name, model, share)}")

    def finish(self, parts: list[Evaluation], before: Evaluation | None) -> tuple[Evaluation, PairedComparison | None]:
        """The result of all of the target's evaluations (averaged where there are several), against ``before``."""
        outcome = parts[0] if len(parts) == 1 else self._average(parts)
        if before is None:
            return outcome, None
        runs = {target.run.path for target in (self.request.target, self.request.against) if target and target.run}
        comparison = replace(_compare(before, outcome), note=TWO_RUNS if len(runs) > 1 else None)
        write_json(outcome.folder / f"against-{before.folder.name}.json", comparison.as_json())
        return outcome, comparison

    def _read(self, task: Task) -> list[Problem]:
        settings, whole = self.settings, self.request.whole
        count = MOST_COMPLETIONS if whole else settings.problems
        name = f"{self.request.benchmark}: " if self.request.setting else ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            problems = task.problems(settings.split, count, settings.problems_seed)  # type: ignore[arg-type]
        for warning in caught:
            self.say(f"{name}{warning.message}")
        if len(problems) * max(1, settings.samples) > MOST_COMPLETIONS:
            raise UserError(
                f"--samples {settings.samples}: with {len(problems)} problems at most "
                f"{MOST_COMPLETIONS // len(problems)} (the samples of an evaluation are held in memory)."
            )
        if len(problems) < settings.problems and not whole:
            few = "; the intervals will be wide" if len(problems) < FEW else ""
            self.say(
                f"{name}{len(problems)} problems: that is all the data has ({settings.problems} were asked for){few}"
            )
        self.settings = replace(settings, problems=len(problems))
        return problems

    def _look_for_training_problems(self, task: Task, target: Target, option: str, wordings: Sequence[str]) -> None:
        """Count the problems that a model was trained on, and say so: its accuracy on them is not one on new ones."""
        subject = target.subjects[0]
        known = training_problems(target.run.path if target.run else local_path(subject.model))
        if known is None:
            if target.run is not None:
                self.say(f"{target.run.path}: has no {FILE}, so it is not known which problems it was trained on")
            return
        count = sum(wording in known for wording in wordings)
        for each in target.subjects:
            self._trained_on[each.label] = count
        if not count:
            return
        name = f"{target.run.name if target.run else subject.label}{option}"
        overlap = f"{count:,} of these {len(wordings):,} problems are training problems of {name}"
        self.say(f"WARNING: {overlap}{self._without_them(task, known)}")

    def _without_them(self, task: Task, known: frozenset[str]) -> str:
        """What leaves the training problems out, where that is known."""
        if self.settings.split != "all":
            return ""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                test = task.problems("test", MOST_COMPLETIONS, self.settings.problems_seed)
            except UserError:
                return ""
        left = sum(wording_hash(task.problem_wording(problem)) in known for problem in test)
        return "; --split test leaves them out" if not left else f"; with --split test {left:,} of {len(test):,} are"

    def _key(self, fingerprint: str) -> str:
        """What the folder of an evaluation ends in; settings of a benchmark keep apart what shares a fingerprint."""
        setting = self.request.setting
        return (fingerprint if setting is None else digest([fingerprint, setting.choices()]))[:8]

    def _average(self, parts: list[Evaluation]) -> Evaluation:
        from rlvr_cli.evaluation.evaluate import write_results
        from rlvr_cli.evaluation.metrics import summarise

        rows = average([part.rows for part in parts])
        first = parts[0].result
        labels = [part.result["label"] for part in reversed(parts)]
        fingerprint = digest([part.result["fingerprint"] for part in parts])
        result = {
            **first,
            "label": f"average of {', '.join(labels)}",
            "steps": [step for part in reversed(parts) for step in part.steps],
            "fingerprint": fingerprint,
            "averaged": [str(part.folder) for part in reversed(parts)],
            **summarise(rows, first),
        }
        name = f"{slug(first['benchmark'])}-{first['split']}-last-{len(parts)}-{self._key(fingerprint)}"
        folder = self.request.out or self.request.target.subjects[0].root / name
        folder.mkdir(parents=True, exist_ok=True)
        return self._kept(write_results(Evaluation(folder, result, tuple(rows))))


def _compare(before: Evaluation, after: Evaluation) -> PairedComparison:
    overall = compare_evals(before, after)
    new = {row.id: row for row in after.rows}
    groups: dict[str, list[ProblemValues]] = {name: [] for name in after.result["by_subgroup"]}
    for row in before.rows:
        groups[row.subgroup].append(row)
    by_subgroup = {
        name: paired_rows(rows, [new[row.id] for row in rows], after.result) for name, rows in groups.items()
    }
    return PairedComparison(before, overall, by_subgroup)


def make_sessions(
    requests: Sequence[EvalRequest], *, watch: Callable[[str], Any], say: Callable[[str], None]
) -> list[Session]:
    """A session for each request.

    Raises UserError with the problems of every request's data; the hub, which may be slow to answer, is asked only
    where nothing is wrong with the others.
    """
    sessions: dict[int, Session] = {}
    problems: list[str] = []
    for place in sorted(range(len(requests)), key=lambda place: _on_hub(requests[place])):
        if problems and _on_hub(requests[place]):
            break
        try:
            sessions[place] = Session(requests[place], watch=watch, say=say)
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(list(dict.fromkeys(problems)))
    return [sessions[place] for place in range(len(requests))]


def _on_hub(request: EvalRequest) -> bool:
    task = request.config.task
    return task.data_dir is None and task.data in data_sets() and data_sets()[task.data].hub is not None


def _fit_positions(sessions: Sequence[Session], subject: EvaluatedModel) -> None:
    """``Session.fit`` of every session by the positions of ``subject``. Raises UserError with all problems found."""
    from rlvr_cli.models.tokenizer import load_facts

    try:
        facts = load_facts(*tokenizer_location(subject.model), revision=revision_of(subject, sessions[0].config))
    except UserError:
        # Unknown to this machine (a server's own name), or not to be had: loading it says why.
        return
    problems: list[str] = []
    for session in sessions:
        try:
            session.fit(subject, facts, facts.positions, f"positions of {subject.label}")
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)


def run_sessions(sessions: Sequence[Session]) -> Iterator[tuple[Evaluation, PairedComparison | None]]:
    """Carry out sessions of one plan; gives each session's result as it is there.

    A model is loaded once for all sessions in a row that it stands in: `lab` is another model with another task.
    Raises UserError and RunError as :func:`evaluate` does.
    """
    tracking = _tracking(sessions[0])
    try:
        for _, alike in itertools.groupby(sessions, key=lambda session: _models(session.request)):
            for outcome, comparison in _run_on_same_models(list(alike)):
                if tracking is not None:
                    tracking.add(outcome.result, outcome.folder)
                yield outcome, comparison
    finally:
        if tracking is not None:
            tracking.end()


def _tracking(session: Session) -> EvaluationTracking | None:
    """The trackers that are sent the results; None where there are none."""
    request = session.request
    subject = request.target.subjects[0]
    if not request.config.track.to:
        return None
    step = STEP.fullmatch(Path(subject.model).name) if request.target.run else None
    name = request.target.run.name if request.target.run else subject.label
    return EvaluationTracking(request.config, name, request.target.run, int(step[1]) if step else 0, session.say)


def _models(request: EvalRequest) -> list[str]:
    return [subject.model for target in (request.target, request.against) if target for subject in target.subjects]


def _run_on_same_models(sessions: Sequence[Session]) -> Iterator[tuple[Evaluation, PairedComparison | None]]:
    request, say = sessions[0].request, sessions[0].say
    against = request.against
    for note in (*request.target.notes, *(against.notes if against else ())):
        say(note)
    subjects = [*request.target.subjects, *(against.subjects[:1] if against else ())]
    # Before the first model is loaded, and for all models of a comparison: they are sampled at the same length.
    for subject in {subject.model: subject for subject in reversed(subjects)}.values():
        _fit_positions(sessions, subject)
    parts: list[list[Evaluation]] = [[] for _ in sessions]
    for number, subject in enumerate(subjects, start=1):
        # A server has one model; what it is compared with is sampled here.
        compared = against is not None and number == len(subjects)
        engine = "auto" if compared and request.settings.engine == "openai" else request.settings.engine
        loaded = load_subject(subject, request.config, engine, say)
        if loaded.facts is not None:
            for session in sessions:
                session.fit(subject, loaded.facts, loaded.longest, f"tokens of {request.config.eval.base_url}")
        for session, outcomes in zip(sessions, parts, strict=True):
            outcomes.append(session.evaluate(subject, loaded))
            if number == len(subjects):
                before = outcomes.pop() if against else None
                yield session.finish(outcomes, before)
        del loaded
        gc.collect()
