"""The learning rate of a run, where the configuration gives a rule in place of a number."""

from __future__ import annotations

from collections.abc import Callable

from rlvr_cli.config.rates import ScaledRate
from rlvr_cli.config.schema import Config


def learning_rate(config: Config, parameters: Callable[[], int]) -> float:
    """The peak learning rate; ``parameters``, the model's number of them, is asked for where the rule needs it."""
    rate = config.optimizer.lr
    if not isinstance(rate, ScaledRate):
        return rate
    named = rate.scale_from.this_model
    return rate.scale_from.rate(named if named is not None else parameters())


def of_model(model: object) -> int:
    """The parameters of a loaded model as :mod:`rlvr_cli.planning.architecture` counts them, adapters left out."""
    from rlvr_cli.planning.architecture import from_config

    described = from_config(model.config.to_dict())  # type: ignore[attr-defined]
    return described.parameters if described is not None else int(model.num_parameters())  # type: ignore[attr-defined]
