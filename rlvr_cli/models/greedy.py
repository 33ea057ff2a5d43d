"""Greedy completions: rows of the same prompt are alike, so each prompt is completed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlvr_cli.models.completions import Completions, Engine, OnDone


def greedy_once(
    engine: Engine,
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    keys: Sequence[int],
    on_done: OnDone | None = None,
    **options: Any,
) -> Completions:
    """What ``engine`` gives for ``prompts`` at temperature 0, every copy for the price of one. Raises as it does."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(tuple(prompt), []).append(row)
    copies = list(rows.values())

    def done(of_prompts: Sequence[int], completions: Completions) -> None:
        if on_done is not None:
            for index, prompt in enumerate(of_prompts):
                on_done(copies[prompt], completions.of([index] * len(copies[prompt])))

    found = engine(
        model, list(rows), keys=[keys[alike[0]] for alike in copies], temperature=0.0, on_done=done, **options
    )
    prompt_of = {row: prompt for prompt, alike in enumerate(copies) for row in alike}
    return found.of(prompt_of[row] for row in range(len(prompts)))
