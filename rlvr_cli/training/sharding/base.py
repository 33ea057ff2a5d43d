"""Gather and save the model of a trainer; here every process holds all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.trainer_utils import load_sharded_checkpoint
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from rlvr_cli.core.errors import RunError
from rlvr_cli.training import checkpoint_state
from rlvr_cli.training.value_head import NAME as VALUE_HEAD


class Sharding:
    """Every process holds the whole model and its optimizer's state.

    Attributes:
        divided: whether every process has a part of the training's state that the others have not.
    """

    name = "whole"
    divided = False

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def begin(self) -> None:
        """The trainer has wrapped its model and made its optimizer."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Gather the parameters of the trainer's model for reading; forward passes wait for no other process.

        Every process enters and leaves it; in between they are independent.
        """
        yield

    def weights(self) -> dict[str, Tensor]:
        """The whole model's weights on rank 0; on the others possibly nothing. Called in every process."""
        trainer = self.trainer
        weights: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}
        return without_ties(trainer.model, weights) if self.divided else weights

    def gathered(self, tensors: Callable[[Any], dict[str, Tensor]]) -> dict[str, Tensor]:
        """The whole of some trained tensors, which ``tensors`` reads off the model. Called in every process."""
        return tensors(self.trainer.model)

    def optimizer_part(self) -> dict[str, Any]:
        """Return what this process holds of the optimizer's state, as ``checkpoint_state.save_optimizer`` takes it."""
        state: dict[str, Any] = self.trainer.optimizer.state_dict()
        return state

    def restore_optimizer_part(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`optimizer_part`, on a trainer that has made no step."""
        self.trainer.optimizer.load_state_dict(state)

    def described(self) -> dict[str, Any]:
        """Return what must be the same for a checkpoint's optimizer state to fit."""
        return {"kind": self.name}

    def check_same(self, checkpoint: Path, before: dict[str, Any] | None) -> None:
        """Raise RunError where ``checkpoint`` was written by a training that was divided in another way."""
        if before is not None and before != self.described():
            difference = "with another DeepSpeed configuration"
            if before.get("kind") != self.name:
                difference = f"under {before.get('kind')}, and this is {self.name}"
            raise RunError(f"{checkpoint}: was written {difference}. Continue with launch.deepspeed's file as it was.")

    def step_norm(self, loss: float) -> float | None:
        """Make the optimizer step where the trainer does not, and return the gradient's norm; None = not made.

        A step whose gradient or ``loss`` is not finite leaves the weights as they were and returns infinity.
        """
        return None


def group_settings(optimizer: Any) -> list[dict[str, Any]]:
    """The groups' settings (learning rate, ...), without the parameters."""
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def restore_group_settings(optimizer: Any, groups: list[dict[str, Any]]) -> None:
    """The inverse of :func:`group_settings`."""
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update(saved)


def without_ties(model: Any, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """``weights`` with every tied tensor once, as a model that is not divided is saved."""
    ties = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: value for name, value in weights.items() if not (name in ties and ties[name] in weights)}


def load_model_weights(model: nn.Module, folder: Path) -> None:
    """Load a checkpoint's weights into a model that is whole. Raises RunError where they are another model's."""
    if (folder / SAFE_WEIGHTS_INDEX_NAME).exists():
        result = load_sharded_checkpoint(model, str(folder), strict=False, prefer_safe=True)
    else:
        result = model.load_state_dict(load_file(folder / SAFE_WEIGHTS_NAME), strict=False)
    ties = set(getattr(model, "all_tied_weights_keys", None) or {})
    # PPO's value head is in a separate file.
    missing = [key for key in result.missing_keys if key not in ties and not key.startswith(f"{VALUE_HEAD}.")]
    if missing or result.unexpected_keys:
        named = ", ".join([*missing, *result.unexpected_keys][:3])
        raise RunError(f"{folder}: its weights do not belong to this model ({named}).")


def optimizer_name(rank: int) -> str:
    """Return what a process's part of the optimizer's state is called in a checkpoint, without ending."""
    return f"{checkpoint_state.OPTIMIZER}-{rank}"
