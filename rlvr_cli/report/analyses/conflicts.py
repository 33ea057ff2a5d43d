"""`rlvr analyze conflicts`: tokens that right and wrong completions of a problem share, over the rollouts of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlvr_cli.analysis.conflicts import Tally, pooled, summary, tally
from rlvr_cli.analysis.loaded_policy import padded
from rlvr_cli.analysis.saved_rollout import last_rollouts, read_groups
from rlvr_cli.analysis.scoring import learned_from
from rlvr_cli.config.analysis_kinds import ConflictsOptions
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.text import visible
from rlvr_cli.methods.base import Rollout
from rlvr_cli.models.load import load_tokenizer
from rlvr_cli.report.analyses.absent import shown
from rlvr_cli.report.analyses.conflicts_figure import conflicts_figure
from rlvr_cli.report.analyses.findings import Findings, Subject, Table
from rlvr_cli.runs.directory import RunDir

_READING = (
    "A token is in conflict where completions of both signs of the advantage have it at the same place, counted from "
    "the start (prefix) or from the end (suffix), without a gap up to it. GRPO pushes it up in some completions and "
    "down in others; GTPO drops the pushes down and doubles those up (equation 9), which keeps the size of the signal "
    "where the two balance. A shared prefix is pushed by the sum of A / |o| of the completions that begin with it "
    "(equation 6): that is negative where the right ones are longer, although right completions need the prefix. The "
    "GTPO paper finds conflicts mostly in formatting tokens, and more of them with larger groups (figure 5b)."
)


def analyze(subject: Subject, options: ConflictsOptions) -> Findings:
    """The conflicts in the last ``options.rollouts`` saved rollouts up to ``subject.rollout``.

    Raises:
        UserError: no saved rollout, one without token ids, a file that was altered.
    """
    run = subject.run
    config = load_config([run.config_path])
    numbers = last_rollouts(run, subject.rollout, options.rollouts)
    tallies = {number: tally(_rollout(run, number, config)) for number in numbers}
    total = pooled(tallies.values())
    found = summary(total)
    tokens = _tokens(total, config, options.top)
    return Findings(
        headline=_headline(found, total, numbers),
        numbers={
            "summary": found,
            "rollouts": {str(number): summary(one) for number, one in tallies.items()},
            "counts": {name: value for name, value in dataclasses.asdict(total).items() if not isinstance(value, dict)},
            "spans": {"prefix": _sorted(total.prefix_spans), "suffix": _sorted(total.suffix_spans)},
            "tokens": tokens,
        },
        tables=(_trend(tallies), _pushes(total), _top(tokens)),
        reading=_READING,
        draw=lambda: conflicts_figure(tallies, total, tokens),
        notes=_notes(total, config),
    )


def _rollout(run: RunDir, number: int, config: Config) -> Rollout:
    rows = read_groups(run, number, config.rollout.group_size)
    ids, mask = padded([row["token_ids"] for row in rows])
    rewards = [math.nan if row["reward"] is None else row["reward"] for row in rows]
    return Rollout(
        rewards=torch.tensor(rewards, dtype=torch.float64),
        group_size=config.rollout.group_size,
        token_ids=ids,
        mask=mask * learned_from(rows, config),
    )


def _tokens(total: Tally, config: Config, top: int) -> list[dict[str, Any]]:
    """The tokens that are most often in conflict; one in both runs of a row counts for each."""
    often = total.prefix_ids + total.suffix_ids
    # By id where they are as frequent, so that equal runs give equal tables.
    chosen = sorted(often, key=lambda token: (-often[token], token))[:top]
    if not chosen:
        return []
    tokenizer = load_tokenizer(config.model.name, revision=config.model.revision)
    return [
        {
            "id": token,
            "text": visible(str(tokenizer.decode([token], skip_special_tokens=False))),
            "prefix": total.prefix_ids[token],
            "suffix": total.suffix_ids[token],
            "share": often[token] / often.total(),
            "penalised": total.penalised_ids[token],
        }
        for token in chosen
    ]


def _headline(found: Mapping[str, float | None], total: Tally, numbers: Sequence[int]) -> str:
    where = f"rollout {numbers[0]}" if len(numbers) == 1 else f"rollouts {numbers[0]} to {numbers[-1]}"
    if not total.conflict:
        return f"No token of {where} is in conflict."
    return (
        f"{_percent(found['conflict_share'])} of the {total.tokens:,} tokens of {where} are in conflict "
        f"({_percent(found['conflict_prefix_share'])} in prefixes, {_percent(found['conflict_suffix_share'])} in "
        f"suffixes), in {_percent(found['groups_share'])} of the groups. GRPO's pushes on them are "
        f"{_percent(found['negative_push_share'])} downwards, and {_percent(found['penalised_correct_share'])} of them "
        "are pushed down on the whole."
    )


def _trend(tallies: Mapping[int, Tally]) -> Table:
    names = {
        "conflict_share": "in conflict",
        "conflict_prefix_share": "prefix",
        "conflict_suffix_share": "suffix",
        "groups_share": "of groups",
        "negative_push_share": "pushed down",
        "penalised_correct_share": "net down",
        "negative_net_share": "shared prefixes net down",
    }
    rows = [
        (str(number), *(_percent(summary(one)[name]) for name in names), shown(summary(one)["span_mean"], ".1f"))
        for number, one in tallies.items()
    ]
    return Table("by rollout", ("from 0", *names.values(), "mean span"), rows)


def _pushes(total: Tally) -> Table:
    rows = [
        ("GRPO", f"{total.up:.4g}", f"{total.down:.4g}", f"{total.up - total.down:+.4g}"),
        ("GTPO", f"{total.gtpo_up:.4g}", f"{total.gtpo_down:.4g}", f"{total.gtpo_up - total.gtpo_down:+.4g}"),
    ]
    return Table("sum of |A| / |o| over conflict tokens", ("gradient", "up", "down", "net"), rows)


def _top(tokens: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (
            repr(one["text"]),
            str(one["prefix"]),
            str(one["suffix"]),
            _percent(one["share"]),
            _percent(one["penalised"] / (one["prefix"] + one["suffix"])),
        )
        for one in tokens
    ]
    return Table("tokens most often in conflict", ("token", "in prefixes", "in suffixes", "share", "net down"), rows)


def _notes(total: Tally, config: Config) -> tuple[str, ...]:
    notes = []
    if not total.mixed:
        notes.append(
            "No group has completions of both signs: all of a problem's completions have the same reward, so GRPO has "
            "no gradient there and nothing can conflict."
        )
    if config.method.name != "grpo":
        notes.append(
            f"The run was trained with {config.method.name}; the pushes are those that GRPO would have made on its "
            "rollouts."
        )
    return tuple(notes)


def _sorted(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(length): counts[length] for length in sorted(counts)}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
