"""Combinations of method choices that have no meaning, and settings that change nothing, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rlvr_cli.config.method import PolicyMethodConfig
from rlvr_cli.config.schema import Config
from rlvr_cli.config.tree import Path, default
from rlvr_cli.methods.grpo import GroupAdvantage
from rlvr_cli.methods.likelihood import LikelihoodAdvantage
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.ppo import GAEAdvantage
from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
from rlvr_cli.methods.rloo import RLOOAdvantage

SetByUser = Callable[[Path], bool]


@dataclass(frozen=True)
class CrossProblem:
    """A contradiction between keys: their dotted names, the one to blame first, and the message."""

    keys: tuple[str, ...]
    message: str


def contradictions(config: Config) -> Iterable[CrossProblem]:
    """Choices that cannot act together, whatever way they were made."""
    if isinstance(config.method, PolicyMethodConfig):
        for check in _CHECKS:
            yield from check(config, config.method)


def without_effect(config: Config, set_by_user: SetByUser) -> Iterable[CrossProblem]:
    """Keys of the method that a person set to something else than the default, where nothing reads them."""
    for key, switch, reason in _idle_keys(config):
        path = tuple(key.split("."))
        value = _at(config, path)
        if set_by_user(path) and value != default(path):
            keys = (key, switch) if set_by_user(tuple(switch.split("."))) else (key,)
            yield CrossProblem(keys, f"{key}={_plain(value)} has no effect: {reason}")


# --- choices that cannot act together ------------------------------------------------------------------------------


def _groups_of_one(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    """Verl keeps the raw reward in a group of one, which would be another method under the same name."""
    if config.rollout.group_size > 1:
        return
    advantage = method.advantage
    needs: list[tuple[str, object, str]] = []
    if isinstance(advantage, (GroupAdvantage, RLOOAdvantage)):
        needs.append(("method.advantage.kind", advantage.kind, "compares the completions of a prompt with one another"))
    if isinstance(advantage, ReinforcePPAdvantage) and advantage.baseline == "group":
        needs.append(("method.advantage.baseline", "group", "subtracts the mean reward of the prompt's completions"))
    if method.shaping.conflict != "off":
        needs.append(
            ("method.shaping.conflict", method.shaping.conflict, "looks for tokens that right and wrong rows share")
        )
    if config.rollout.dynamic_sampling:
        needs.append(
            ("rollout.dynamic_sampling", config.rollout.dynamic_sampling, "replaces groups whose rewards are all equal")
        )
    for key, value, why in needs:
        yield CrossProblem(
            (key, "rollout.group_size"),
            f"{key}={value} {why}, and rollout.group_size=1 leaves nothing to compare. "
            "Set rollout.group_size to 2 or more, or take an advantage without groups "
            "(method.advantage=reinforce_pp, likelihood or gae)",
        )


def _rows_with_one_advantage(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    """What asks for the sign of a row; an entropy filter on all rows and the penalty look at no advantage."""
    advantage, shaping = method.advantage, method.shaping
    if not isinstance(advantage, (ReinforcePPAdvantage, GAEAdvantage)):
        return
    asked: list[tuple[str, str, str]] = []
    if shaping.conflict != "off":
        asked.append(("conflict", shaping.conflict, "leave the shaping out"))
    if shaping.entropy_filter is not None and shaping.entropy_filter_rows == "negative":
        asked.append(("entropy_filter_rows", "negative", "set method.shaping.entropy_filter_rows=all"))
    for name, value, instead in asked:
        key = f"method.shaping.{name}"
        yield CrossProblem(
            (key, "method.advantage.kind"),
            f"{key}={value} tells rows by the sign of their advantage, and method.advantage.kind={advantage.kind} "
            "gives each token of a row an advantage of its own. Take an advantage that a row's tokens share "
            f"(method.advantage=group, rloo or likelihood), or {instead}",
        )


def _two_sides(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    """Of likelihood methods with one side only: there is no row of the other sign."""
    advantage, shaping = method.advantage, method.shaping
    if not isinstance(advantage, LikelihoodAdvantage):
        return
    keys = ("method.advantage.side", "method.advantage.kind")
    if advantage.side != "both" and shaping.conflict != "off":
        yield CrossProblem(
            ("method.shaping.conflict", *keys),
            f"method.shaping.conflict={shaping.conflict} looks for tokens that rows of both signs share, and "
            f"method.advantage.side={advantage.side} trains on one sign. Set method.advantage.side=both",
        )
    if advantage.side != "both" and shaping.entropy_penalty > 0:
        yield CrossProblem(
            ("method.shaping.entropy_penalty", *keys),
            f"method.shaping.entropy_penalty={_plain(shaping.entropy_penalty)} lowers the advantage of every row, and "
            f"so would train on those that method.advantage.side={advantage.side} leaves out, pushing them down by "
            "their entropy. Set method.advantage.side=both, or leave the penalty out",
        )
    if advantage.side == "positive" and shaping.entropy_filter is not None and shaping.entropy_filter_rows != "all":
        yield CrossProblem(
            ("method.shaping.entropy_filter_rows", *keys),
            "method.shaping.entropy_filter_rows=negative filters rows of negative advantage, and "
            "method.advantage.side=positive has none. Set method.shaping.entropy_filter_rows=all",
        )


def _verdicts_of_a_verifier(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    """Likelihood methods train by the verdict, so a reward that is not of the verifier would not be read."""
    if not isinstance(method.advantage, LikelihoodAdvantage):
        return
    unread = []
    if method.reward.source == "entropy_min":
        unread.append(("method.reward.source", "entropy_min", "a reward from the policy's entropy"))
    control = config.task.without_verifier()
    if control is not None:
        unread.append(control)
    for key, value, what in unread:
        yield CrossProblem(
            (key, "method.advantage.kind"),
            f"{key}={value} is {what}, and method.advantage.kind=likelihood trains by the verifier's verdict, which it "
            "is not. Take method.advantage=group",
        )


def _noise_needs_a_verifier(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    if method.reward.noise > 0 and method.reward.source == "entropy_min":
        yield CrossProblem(
            ("method.reward.noise", "method.reward.source"),
            f"method.reward.noise={_plain(method.reward.noise)} mirrors the verifier's rewards, and "
            "method.reward.source=entropy_min asks no verifier. Keep one of the two",
        )


def _dynamic_sampling_needs_a_verifier(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    if config.rollout.dynamic_sampling and method.reward.source == "entropy_min":
        yield CrossProblem(
            ("rollout.dynamic_sampling", "method.reward.source"),
            f"rollout.dynamic_sampling={config.rollout.dynamic_sampling} judges groups by the verifier's rewards, "
            "and method.reward.source=entropy_min trains on others. Keep one of the two",
        )


def _something_to_train_on(config: Config, method: PolicyMethodConfig) -> Iterable[CrossProblem]:
    schedule = method.schedule
    if not isinstance(schedule, ByProbability):
        return
    if (schedule.order, schedule.eta) in (("low_only", 0.0), ("high_only", 1.0)):
        side = "below 0: none" if schedule.order == "low_only" else "of 1 alone: next to none"
        yield CrossProblem(
            ("method.schedule.eta", "method.schedule.order"),
            f"method.schedule.eta={_plain(schedule.eta)} with method.schedule.order={schedule.order} trains on tokens "
            f"of a {schedule.rule} {side}. Take an eta between 0 and 1",
        )


_CHECKS: tuple[Callable[[Config, PolicyMethodConfig], Iterable[CrossProblem]], ...] = (
    _groups_of_one,
    _rows_with_one_advantage,
    _two_sides,
    _verdicts_of_a_verifier,
    _noise_needs_a_verifier,
    _dynamic_sampling_needs_a_verifier,
    _something_to_train_on,
)


# --- settings that change nothing ----------------------------------------------------------------------------------


def _idle_keys(config: Config) -> Iterable[tuple[str, str, str]]:
    """Keys that nothing reads as things stand: (key, the key that switches it off, the reason)."""
    method = config.method
    if not isinstance(method, PolicyMethodConfig):
        if method.data is not None:
            yield "method.demonstrations", "method.data", "method.data gives the worked solutions. Leave one out"
        return
    shaping, weight = method.shaping, method.weight
    if method.kl.beta == 0:
        for name in ("log_ratio_clamp", "value_clamp"):
            yield f"method.kl.{name}", "method.kl.beta", "method.kl.beta=0 is no penalty. Set method.kl.beta"
    if method.aggregation.kind == "token_mean":
        reason = "token_mean divides by tokens, not by rows. Set method.aggregation=sequence_mean or constant_length"
        yield "method.aggregation.rows", "method.aggregation.kind", reason
    if shaping.conflict == "off":
        for name in ("conflict_positive", "conflict_negative"):
            reason = "method.shaping.conflict=off. Set method.shaping.conflict=both"
            yield f"method.shaping.{name}", "method.shaping.conflict", reason
    if shaping.entropy_filter is None:
        for name in ("entropy_filter_rows", "entropy_filter_when", "entropy_filter_samples"):
            reason = "there is no filter. Set method.shaping.entropy_filter, in nats"
            yield f"method.shaping.{name}", "method.shaping.entropy_filter", reason
    elif shaping.entropy_filter_when == "always":
        reason = "the filter is on whatever the initial entropy. Set method.shaping.entropy_filter_when=initially_below"
        yield "method.shaping.entropy_filter_samples", "method.shaping.entropy_filter_when", reason
    for name, switch, reason in weight.unused():
        yield f"method.weight.{name}", f"method.weight.{switch}", reason


def _at(config: Config, path: Path) -> object:
    value: object = config
    for key in path:
        value = getattr(value, key)
    return value


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
