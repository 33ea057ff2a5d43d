"""The rows of a rollout batch: gathered from all processes, dealt out again to optimizer steps and micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rlvr_cli.streams import stream_seed

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


def row_order(seed: int, stream: Sequence[str | int], rows: int) -> Tensor:
    """(rows,) permutation that deals the rows of a rollout to optimizer steps; equal in all processes.

    Args:
        seed: of the run. stream: names the rollout's random streams (`rollback.stream_of_rollout`).
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, "row-order", *stream))
    return torch.randperm(rows, generator=generator)


def split_into_steps(
    rows: Rows, order: Tensor, *, steps: int, micro_batches: int, process: int, processes: int
) -> list[Rows]:
    """This process's micro-batches of one pass over a rollout, those of the first optimizer step first.

    The rows of an optimizer step are the same for any number of processes and micro-batches. Within a step the
    shortest come first, so that rows of like length share a micro-batch and need little padding.

    Args:
        rows: the whole rollout, of all processes.
        order: (N,) permutation of the rows; optimizer step i takes the i-th of ``steps`` equal parts.
    """
    lengths = rows["completion_mask"].sum(dim=1)
    parts: list[Rows] = []
    for chosen in order.to(lengths.device).chunk(steps):
        by_length = chosen[torch.sort(lengths[chosen], stable=True).indices]
        for part in by_length[process::processes].chunk(micro_batches):
            parts.append({key: value[part] for key, value in rows.items()})
    return parts
