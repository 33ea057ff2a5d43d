"""`rlvr analyze landscape`: the course of training of runs and arms, and completions from around a collapse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_cli.analysis.landscape import Course, course
from rlvr_cli.config.analysis_kinds import LandscapeOptions
from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.core.errors import UserError
from rlvr_cli.core.text import one_line, shortened
from rlvr_cli.report.analyses.findings import Findings, Subject, Table, told_apart
from rlvr_cli.report.analyses.landscape_figure import landscape_figure
from rlvr_cli.results.arms import Arm, group_arms
from rlvr_cli.results.completions import sampled_completions
from rlvr_cli.results.find import Run, find_runs
from rlvr_cli.runs.curves import whole_rows
from rlvr_cli.runs.seals import read_record
from rlvr_cli.stats.intervals import mean_interval

MOST_TEXT = 400
# Columns of the tables: what is shown of the summary, and its name for people.
_COLUMNS = {
    "courses: accuracy and collapse": {
        "accuracy_start": "start",
        "accuracy_best": "best",
        "accuracy_end": "end",
        "accuracy_held_out": "held-out",
        "collapsed": "collapsed",
        "collapse_at": "at rollout",
        "truncated_end": "truncated",
    },
    "courses: length and entropy": {
        "length_start": "length",
        "length_end": "end",
        "length_largest_ratio": "largest/start",
        "entropy_start": "entropy",
        "entropy_end": "end",
        "entropy_largest_ratio": "largest/start",
    },
    "courses: updates": {
        "steps_per_rollout": "a rollout",
        "grad_norm_mean": "grad norm",
        "prob_distance_mean": "|pi - pi_old|",
        "ratio_distance_mean": "rms of r - 1",
        "clip_share_mean": "clipped",
        "value_correct_end": "value if right",
        "value_incorrect_end": "if wrong",
    },
}
_READING = (
    "Each panel is one number over the rollouts: a line is the mean over the runs of an arm, its band Student's 95% "
    "interval over them at each rollout by itself (of two runs: their curves); a cross is the rollout at which a run's "
    "collapse was told. The landscape paper sees, with one update a rollout: PL loses entropy and length and then "
    "accuracy, and stays there (figures 2, 9, 10); NL gains entropy and length with bursts of the gradient norm, and "
    "is not stable there (11); CL collapses later, GRPO hardly ever (4). Clipping with several updates, and token "
    "normalisation, delay or prevent it (3, 5); several updates without clipping hasten it (7), and |pi - pi_old| "
    "grows until the collapse (13). PPO's value head predicts less than 0 on wrong completions, which no value can be "
    "where rewards are 0 and 1 (8)."
)


def analyze(subject: Subject, options: LandscapeOptions) -> Findings:
    """The courses of the runs, up to ``subject.rollout`` where that is given.

    Raises:
        UserError: a run without any optimizer step, or without that rollout; two runs of one arm with the same seed.
    """
    problems: list[str] = []
    runs = find_runs([str(run.path) for run in subject.runs], subject.root, problems, [], unfinished=True)
    arms = group_arms(runs, problems, alone=True) if runs else ()
    names = dict(zip((run.path for run in runs), told_apart([run.dir for run in runs]), strict=True))
    courses = {names[run.path]: found for run in runs if (found := _course(run, subject.rollout, problems)) is not None}
    if problems:
        raise UserError(problems)
    members = {arm.name: [names[run.path] for run in arm.runs.values()] for arm in arms}
    samples = _samples(arms, names, courses, options.samples)
    of_arms = {arm: [courses[name] for name in members[arm]] for arm in members}
    return Findings(
        headline=_headline(of_arms),
        numbers={
            "summary": next(iter(courses.values())).summary if len(courses) == 1 else {},
            "runs": {name: _as_json(found) for name, found in courses.items()},
            "arms": {arm: {"runs": members[arm], "summary": _means(of_arms[arm])} for arm in members},
            "samples": samples,
        },
        tables=(*_tables(of_arms), _collapses(courses), *_shown(samples)),
        reading=_READING,
        draw=lambda: landscape_figure(of_arms),
        notes=_notes(courses),
    )


def _course(run: Run, last: int | None, problems: list[str]) -> Course | None:
    rows = whole_rows(read_record(run.dir, run.dir.metrics_path))
    if not rows:
        problems.append(f"{run.path}: has no optimizer step yet, so there is nothing to look at.")
        return None
    newest = max(row["rollout"] for row in rows)
    if last is not None and last > newest:
        problems.append(f"{run.path}: there is no rollout {last} yet; the newest is {newest}.")
        return None
    kept = [row for row in rows if last is None or row["rollout"] <= last]
    return course(kept, run.config.rollout.prompts, batch_arithmetic(run.config).steps_per_rollout)


def _as_json(found: Course) -> dict[str, Any]:
    return {
        "summary": found.summary,
        "collapses": [collapse.as_json() for collapse in found.collapses],
        "kl": found.kl,
        "curves": {name: curve.as_json() for name, curve in found.curves.items() if curve.points},
    }


def _means(courses: Sequence[Course]) -> dict[str, dict[str, Any]]:
    """Of each number, over the runs that have it: the mean and Student's 95% interval."""
    means = {}
    for name in courses[0].summary:
        values = [float(value) for one in courses if (value := one.summary[name]) is not None]
        if values:
            found = mean_interval(values)
            means[name] = {"mean": found.value, "low": found.low, "high": found.high, "runs": found.n}
    return means


def _headline(arms: Mapping[str, Sequence[Course]]) -> str:
    courses = [found for group in arms.values() for found in group]
    if len(courses) > 1:
        told = [f"{sum(bool(found.collapses) for found in group)} of {len(group)} {arm}" for arm, group in arms.items()]
        return f"{len(courses)} runs in {len(arms)} arms. Collapsed: {', '.join(told)}."
    (found,) = courses
    numbers = {name: _figure(found.summary[f"accuracy_{name}"]) for name in ("start", "best", "end")}
    end = f"Accuracy {numbers['start']} at the start, {numbers['best']} at best, {numbers['end']} at the end"
    if not found.collapses:
        return f"{end} of {found.rollouts} rollouts; no collapse."
    first = found.collapses[0]
    return f"{end} of {found.rollouts} rollouts; {first.name} at rollout {first.first + 1}."


def _tables(arms: Mapping[str, Sequence[Course]]) -> list[Table]:
    tables = []
    for title, columns in _COLUMNS.items():
        rows = []
        for arm, group in arms.items():
            means = _means(group)
            cells = [_figure(means[name]["mean"]) if name in means else "-" for name in columns]
            rows.append((arm, str(len(group)), *cells))
        tables.append(Table(f"{title}, means over runs", ("arm", "runs", *columns.values()), rows))
    return tables


def _collapses(courses: Mapping[str, Course]) -> Table:
    rows = [
        (name, str(collapse.first + 1), collapse.name, str(collapse))
        for name, found in courses.items()
        for collapse in found.collapses
    ]
    return Table("collapses", ("run", "at rollout", "pattern", "what moved"), rows or [("none", "", "", "")])


def _samples(
    arms: Sequence[Arm], names: Mapping[str, str], courses: Mapping[str, Course], most: int
) -> list[dict[str, Any]]:
    """Completions of the first run of each arm that collapsed, from before and after; of its ends where none did."""
    found = []
    for arm in arms:
        runs = list(arm.runs.values())
        run = next((one for one in runs if courses[names[one.path]].collapses), runs[0])
        one = courses[names[run.path]]
        # Not the last of the run: what was saved after the rollouts looked at is no part of this.
        around = (one.sound[0], one.collapses[0].first) if one.collapses else (0, one.rollouts - 1)
        for pair in sampled_completions(run.dir, most, rollouts=around).pairs:
            for sampled in pair:
                found += [
                    {
                        "run": names[run.path],
                        "rollout": sampled.rollout,
                        "problem": sampled.problem,
                        "correct": completion.correct,
                        "reason": completion.reason,
                        "tokens": completion.tokens,
                        "text": completion.text or "".join(piece.text for piece in completion.pieces),
                    }
                    for completion in sampled.completions
                ]
    return found


def _shown(samples: Sequence[Mapping[str, Any]]) -> list[Table]:
    rows = [
        (
            str(one["run"]),
            str(one["rollout"]),
            str(one["reason"]),
            str(one["tokens"]),
            shortened(one_line(one["text"]), MOST_TEXT),
        )
        for one in samples
    ]
    return (
        [Table("completions before and after", ("run", "rollout", "verdict", "tokens", "text"), rows)] if rows else []
    )


def _notes(courses: Mapping[str, Course]) -> tuple[str, ...]:
    notes = []
    short = [name for name, found in courses.items() if found.rollouts < 8]
    if short:
        notes.append(f"{', '.join(short)}: fewer than 8 rollouts, too few for starts, ends and warnings to mean much.")
    if not any(found.curves["probability distance"].points for found in courses.values()):
        notes.append(
            "|pi - pi_old| was not recorded (older runs have no `prob_distance`); the distance of the ratio from 1 was."
        )
    if all(found.summary["steps_per_rollout"] == 1 for found in courses.values()):
        notes.append("With one update a rollout the updated policy is the one that sampled: both distances are 0.")
    return tuple(notes)


def _figure(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.4g}"
