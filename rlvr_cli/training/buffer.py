"""The rows of a rollout batch: gathered from all processes, dealt out again to optimizer steps and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rlvr_cli.core.streams import stream_seed

Rows = dict[str, Tensor]

# Prompts end where completions begin.
LEFT_PADDED = ("prompt_ids", "prompt_mask")


def gather_rows(rows: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor], processes: int, pad_id: int) -> Rows:
    """The rows of every process in the order of the processes, padded to one width.

    Args:
        rows: tensors whose first dimension is this process's rows; (n,), (n, 1) or (n, T).
        gather: joins a tensor of equal shape on all processes along its first dimension.
    """
    if processes == 1:
        return dict(rows)
    gathered: Rows = {}
    for key in sorted(rows):
        value = rows[key].contiguous()
        if value.dim() == 2:
            widths = gather(torch.tensor([value.shape[1]], device=value.device))
            missing = int(widths.max()) - value.shape[1]
            sides = (missing, 0) if key in LEFT_PADDED else (0, missing)
            fill = pad_id if key in ("prompt_ids", "completion_ids") else 0
            value = torch.nn.functional.pad(value, sides, value=fill)
        gathered[key] = gather(value)
    return gathered


def row_order(seed: int, rollout: int, rows: int) -> Tensor:
    """(rows,) permutation that deals the rows of ``rollout`` to optimizer steps; equal in all processes.

    Args:
        seed: of the run.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "row-order", rollout))
    return torch.randperm(rows, generator=generator)


def split_into_steps(rows: Rows, order: Tensor, *, steps: int, process: int, processes: int) -> list[Rows]:
    """This process's rows of each optimizer step of one pass over a rollout.

    The rows of an optimizer step are the same for any number of processes. Those with an advantage are dealt out first
    and by their length, so that every process has as much to compute.

    Args:
        rows: the whole rollout, of all processes.
        order: (N,) permutation of the rows; optimizer step i takes the i-th of ``steps`` equal parts.
    """
    lengths = rows["completion_mask"].sum(dim=1)
    idle = (rows["advantages"] == 0).all(dim=1)
    parts: list[Rows] = []
    for chosen in order.to(lengths.device).chunk(steps):
        by_length = chosen[torch.sort(lengths[chosen], stable=True).indices]
        dealt = by_length[torch.sort(idle[by_length].int(), stable=True).indices]
        parts.append({key: value[dealt[process::processes]] for key, value in rows.items()})
    return parts
