"""Earlier weights of the policy, to sample with (``rollout.behind``).

With ``behind`` = k, the weights of rollout i are those after the updates on i - k rollouts; the first k rollouts have
the initial ones. Every process keeps the trained parameters after the last k + 1 rollouts in host memory, and the main
process writes the k that a resumed run needs into each checkpoint, so that a run is the same however it is interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_FILE = re.compile(r"behind-(\d+)\.safetensors")


class PastWeights:
    """The trained parameters of ``model`` after each of the last rollouts, by the number of rollouts trained on."""

    def __init__(self, model: Any, behind: int) -> None:
        self.model, self.behind = model, behind
        self.history: dict[int, dict[str, Tensor]] = {}

    @contextmanager
    def loaded(self, rollout: int) -> Iterator[None]:
        """Load the weights that sample ``rollout`` inside the context; before the updates on it."""
        if not self.behind:
            yield
            return
        trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        if rollout not in self.history:
            self.history[rollout] = {name: weight.detach().to("cpu", copy=True) for name, weight in trained.items()}
        sampled_by = max(0, rollout - self.behind)
        self.history = {number: weights for number, weights in self.history.items() if number >= sampled_by}
        _copy(self.history[sampled_by], trained)
        try:
            yield
        finally:
            _copy(self.history[rollout], trained)

    def save(self, folder: Path) -> None:
        """Write the weights that later rollouts need into ``folder``."""
        next_rollout = max(self.history, default=-1) + 1
        for number, weights in self.history.items():
            if number >= next_rollout - self.behind:
                save_file(weights, folder / f"behind-{number}.safetensors")

    def load(self, folder: Path) -> None:
        """Read the weights of :meth:`save`."""
        files = ((_FILE.fullmatch(path.name), path) for path in folder.iterdir())
        self.history = {int(match[1]): load_file(path) for match, path in files if match}


@torch.no_grad()
def _copy(weights: dict[str, Tensor], parameters: dict[str, Any]) -> None:
    for name, parameter in parameters.items():
        parameter.copy_(weights[name])
