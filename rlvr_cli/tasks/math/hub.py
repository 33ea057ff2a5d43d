"""Data sets of the hub as this project knows them: which config and split they keep their rows in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlvr_cli.config.errors import UserError


@dataclass(frozen=True)
class _Layout:
    """Configs to read, and the hub's split of each of ours; a split that is not named does not exist there."""

    configs: tuple[str | None, ...] = (None,)
    train: str | None = None
    test: str | None = None


_LAYOUTS = {
    "openai/gsm8k": _Layout(("main",), train="train", test="test"),
    "HuggingFaceH4/MATH-500": _Layout(test="test"),
    "HuggingFaceH4/aime_2024": _Layout(test="train"),
    "math-ai/aime24": _Layout(test="test"),
    "math-ai/aime25": _Layout(test="test"),
    "opencompass/AIME2025": _Layout(("AIME2025-I", "AIME2025-II"), test="test"),
    "yentinglin/aime_2025": _Layout(test="train"),
    "BytedTsinghua-SIA/AIME-2024": _Layout(test="train"),
    "math-ai/amc23": _Layout(test="test"),
    "math-ai/minervamath": _Layout(test="test"),
    "math-ai/olympiadbench": _Layout(test="test"),
    "Hothan/OlympiadBench": _Layout(("OE_TO_maths_en_COMP",), test="train"),
    "DigitalLearningGmbH/MATH-lighteval": _Layout(train="train", test="test"),
    "BytedTsinghua-SIA/DAPO-Math-17k": _Layout(train="train"),
    "agentica-org/DeepScaleR-Preview-Dataset": _Layout(train="train"),
    "AI-MO/NuminaMath-CoT": _Layout(train="train", test="test"),
}
_OTHER = _Layout(train="train", test="test")


def hub_records(hub_id: str, split: str) -> tuple[list[Any], bool]:
    """The rows of a hub data set, and whether they are train rows that dev and train divide between them.

    A data set that is not in the table is read by its own default config and split names.

    Raises:
        UserError: the data set has no such split, or it cannot be loaded.
    """
    if split == "all":
        raise UserError(f"task.data={hub_id!r}: split `all` is for local files; choose train, dev or test.")
    layout = _LAYOUTS.get(hub_id, _OTHER)
    theirs = layout.test if split == "test" else layout.train
    if theirs is None:
        have = "test problems" if layout.train is None else "training problems"
        raise UserError(f"task.data={hub_id!r}: this data set has {have} only, and {split} ones were asked for.")
    from datasets import load_dataset

    records: list[Any] = []
    for config in layout.configs:
        try:
            records += load_dataset(hub_id, name=config, split=theirs)
        # A missing data set, a wrong layout, no network: the hub client has no common base class below these.
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(
                f"task.data={hub_id!r}: cannot load split {theirs} ({type(error).__name__}: {error}). Check the id and "
                "the network, or give a local .jsonl file."
            ) from error
    return records, split != "test"
