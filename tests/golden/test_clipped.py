"""The clipped ratio (GRPO, DAPO, Dr. GRPO) and the sequence's ratio (GSPO)."""

from __future__ import annotations

from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.gspo import GSPO
from tests.golden.cases import Case, golden
from tests.golden.objective import compare_objective, method


@golden("grpo", "dapo", "dr_grpo")
def test_clipped_ratio(case: Case) -> None:
    params = case.params
    weight = PPOClip(eps_low=params["eps_low"], eps_high=params["eps_high"], dual_clip=params["dual_clip_c"])
    compare_objective(case, method(params, weight), case.tokens())


@golden("gspo")
def test_sequence_ratio(case: Case) -> None:
    params = case.params
    weight = GSPO(eps_low=params["eps_low"], eps_high=params["eps_high"], max_log_ratio=params["log_seq_ratio_max"])
    compare_objective(case, method(params, weight), case.tokens())
