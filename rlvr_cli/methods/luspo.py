"""LUSPO: GSPO with each completion's loss multiplied by its length, so that a token weighs the same in any completion.

    J = 1/N sum_i |o_i| min(s_i A_i, clip(s_i, 1 - eps_low, 1 + eps_high) A_i)        s_i: GSPO's ratio
    F = s, but 0 where s < 1 - eps_low and A < 0, and where s > 1 + eps_high and A > 0; Z = N (``sequence_sum``)

Liu et al., arXiv:2602.05261, equations 7 and 8: |o_i| cancels the 1 / |o_i| in grad s_i.

How we differ from the released code: as :mod:`rlvr_cli.methods.gspo`. TRL's ``loss_type="luspo"`` is LUSPO only with
``importance_sampling_level="sequence"``, which is not its default.
"""

from __future__ import annotations

from rlvr_cli.methods.preset import MethodPreset, Paper, trust_region

PAPER = Paper(
    "Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in RLVR",
    "Liu et al.",
    "2602.05261",
)
PRESETS = (
    MethodPreset(
        "luspo",
        trainer="LUSPOTrainer",
        title="Length-Unbiased Sequence Policy Optimization",
        summary="GSPO without its division by length: a token weighs the same in any completion.",
        paper=PAPER,
        golden=("luspo",),
        inherits="gspo",
        sets={
            **trust_region(0.002, 0.0025, "LUSPO paper, section 5.1"),
            "aggregation.kind": ("sequence_sum", "LUSPO paper, equation 7: times the length; divided by completions"),
        },
    ),
)
