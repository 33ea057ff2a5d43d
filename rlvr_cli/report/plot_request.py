"""What `rlvr methods plot` was asked to draw, checked before torch or matplotlib is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlvr_cli.core.errors import UserError
from rlvr_cli.methods.method import Method
from rlvr_cli.report.named_methods import policy_config
from rlvr_cli.results.figure import COLOURS, check_path

OLD_PROBS = (0.1, 0.5, 0.9)
MOST_OLD_PROBS = 5
SPREAD = 0.1


@dataclass(frozen=True)
class PlotRequest:
    """Methods in the order of drawing, where to, at which old probabilities, and ACPO's assumed spread."""

    configs: tuple[Method, ...]
    out: Path
    old_probs: tuple[float, ...]
    spread: float

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(config.name for config in self.configs)


def plot_request(names: Sequence[str], out: Path | None, old_probs: Sequence[str], spread: float | None) -> PlotRequest:
    """The request of a command line.

    `--old-prob 0.1 0.5 0.9` leaves 0.5 and 0.9 among the names, since an option takes one value; they are taken as
    what they are meant to be.

    Raises:
        UserError: an unknown method, more than can be told apart, a value out of its range, or a file that cannot be.
    """
    numbers = [word for word in names if old_probs and _is_number(word)]
    methods = [word for word in names if word not in numbers]
    values = [part for text in (*old_probs, *numbers) for part in text.split(",") if part.strip()]
    configs = {config.name: config for config in map(policy_config, methods)}
    if not configs:
        raise UserError("name at least one method to draw, as in `rlvr methods plot dgpo gppo cispo grpo`.")
    lines = sum(2 if _draws_two_lines(config) else 1 for config in configs.values())
    if lines > len(COLOURS):
        raise UserError(
            f"{lines} curves cannot be told apart in one picture; draw {len(COLOURS)} at most. (A method whose weight "
            "depends on entropy takes two.)"
        )
    path = out or Path(f"weights-{'-'.join(configs)}.png")
    check_path(path)
    return PlotRequest(tuple(configs.values()), path, _probabilities(values), _spread(spread))


def _draws_two_lines(config: Method) -> bool:
    return getattr(config.weight, "eps_high_entropy", None) is not None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _probabilities(values: Sequence[str]) -> tuple[float, ...]:
    found = []
    for text in values:
        value = float(text) if _is_number(text) else math.nan
        if not 0 < value <= 1:
            raise UserError(f"--old-prob {text}: must be a probability, above 0 and at most 1, as in 0.1,0.5,0.9.")
        found.append(value)
    if len(set(found)) > MOST_OLD_PROBS:
        raise UserError(
            f"--old-prob: {len(set(found))} probabilities are a row of panels each; {MOST_OLD_PROBS} at most."
        )
    return tuple(dict.fromkeys(found)) or OLD_PROBS


def _spread(value: float | None) -> float:
    if value is None:
        return SPREAD
    if not 0 <= value < 1:
        raise UserError(f"--spread {value:g}: must be at least 0 and below 1; ratios spread by it around 1.")
    return value
