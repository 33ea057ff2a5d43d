"""From the keys of the configuration to a :class:`Method`."""

from __future__ import annotations

from typing import Any

from rlvr_cli.config.method import PolicyMethodConfig, ShapingConfig
from rlvr_cli.config.section import Section
from rlvr_cli.methods.acpo import ACPO
from rlvr_cli.methods.advantage import Advantage
from rlvr_cli.methods.aggregation import Aggregation
from rlvr_cli.methods.aspo import ASPO
from rlvr_cli.methods.cispo import CISPO
from rlvr_cli.methods.clip import ClippedRatio
from rlvr_cli.methods.dgpo import DGPO
from rlvr_cli.methods.gae import GAEAdvantage
from rlvr_cli.methods.gppo import GPPO
from rlvr_cli.methods.group import GroupAdvantage
from rlvr_cli.methods.gspo import GSPO
from rlvr_cli.methods.gtpo import ConflictMask, EntropyFilter, EntropyPenalty
from rlvr_cli.methods.high_entropy import HighEntropy
from rlvr_cli.methods.importance import One, Ratio
from rlvr_cli.methods.kl import KLPenalty
from rlvr_cli.methods.likelihood import LikelihoodAdvantage
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.reinforce_pp import ReinforcePPAdvantage
from rlvr_cli.methods.reweight import Reweight
from rlvr_cli.methods.rloo import RLOOAdvantage
from rlvr_cli.methods.schedule import ByProbability, OnePass, Schedule
from rlvr_cli.methods.shaping import RolloutShaping, TokenShaping
from rlvr_cli.methods.weight import TokenWeight

ADVANTAGES: dict[str, type[Advantage]] = {
    "group": GroupAdvantage,
    "rloo": RLOOAdvantage,
    "likelihood": LikelihoodAdvantage,
    "reinforce_pp": ReinforcePPAdvantage,
    "gae": GAEAdvantage,
}
WEIGHTS: dict[str, type[TokenWeight]] = {
    "clip": ClippedRatio,
    "cispo": CISPO,
    "gppo": GPPO,
    "aspo": ASPO,
    "dgpo": DGPO,
    "acpo": ACPO,
    "gspo": GSPO,
    "ratio": Ratio,
    "one": One,
}
SCHEDULES: dict[str, type[Schedule]] = {"one_pass": OnePass, "lopti": ByProbability}


def make_method(config: PolicyMethodConfig, *, max_length: int) -> Method:
    """The method that ``config`` describes.

    Args:
        max_length: longest completion in tokens, L of the aggregation ``constant_length``.
    """
    aggregation = config.aggregation
    return Method(
        name=config.name,
        advantage=ADVANTAGES[config.advantage.kind](**_parameters(config.advantage)),
        weight=WEIGHTS[config.weight.kind](**_parameters(config.weight)),
        rollout_shaping=rollout_shaping(config.shaping),
        token_shaping=token_shaping(config.shaping),
        aggregation=Aggregation(
            aggregation.kind, aggregation.rows, max_length if aggregation.kind == "constant_length" else None
        ),
        schedule=SCHEDULES[config.schedule.kind](**_parameters(config.schedule)),
        kl=KLPenalty(**_parameters(config.kl)),
        reward=config.reward.source,
        noise=config.reward.noise,
    )


def rollout_shaping(config: ShapingConfig) -> tuple[RolloutShaping, ...]:
    """The shapings that are on, so that GTPO's advantage is lambda d (A - gamma H)."""
    chosen: list[RolloutShaping] = []
    if config.entropy_penalty > 0:
        chosen.append(EntropyPenalty(config.entropy_penalty))
    if config.entropy_filter is not None:
        chosen.append(
            EntropyFilter(
                config.entropy_filter,
                config.entropy_filter_rows,
                config.entropy_filter_when,
                config.entropy_filter_samples,
            )
        )
    if config.conflict != "off":
        chosen.append(ConflictMask(config.conflict, config.conflict_positive, config.conflict_negative))
    if config.high_entropy is not None:
        chosen.append(HighEntropy(config.high_entropy))
    return tuple(chosen)


def token_shaping(config: ShapingConfig) -> tuple[TokenShaping, ...]:
    """Advantage Reweighting, if it is on."""
    return (Reweight(config.reweight),) if config.reweight > 0 else ()


def _parameters(section: Section) -> dict[str, Any]:
    return section.model_dump(exclude={"kind"})
