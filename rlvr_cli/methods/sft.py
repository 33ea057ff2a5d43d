"""Supervised fine-tuning on worked solutions: a baseline without reinforcement learning."""

from __future__ import annotations

from rlvr_cli.methods.preset import MethodPreset, Paper

PAPER = Paper("Training language models to follow instructions with human feedback", "Ouyang et al.", "2203.02155")
PRESETS = (
    MethodPreset(
        "sft",
        title="Supervised Fine-Tuning",
        summary="Imitates worked solutions: a baseline without reinforcement learning.",
        paper=PAPER,
        extra_cost="no sampling, and no old log-probs",
    ),
)


PAPER = Paper("Training language models to follow instructions with human feedback", "Ouyang et al.", "2203.02155")
PRESETS = (
    MethodPreset(
        "sft",
        title="Supervised Fine-Tuning",
        summary="Imitates worked solutions: a baseline without reinforcement learning.",
        paper=PAPER,
        extra_cost="no sampling, and no old log-probs",
    ),
)
