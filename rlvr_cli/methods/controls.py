"""Controls: rewards independent of the verifier, against which a gain in accuracy is measured.

    random:     R = 1 with probability p, else 0
    format:     R = 1 if the answer can be read in the requested format, else 0
    incorrect:  R = 1 if the answer can be read and is wrong, else 0
    majority:   R = 1 if the answer is the most frequent one of the prompt's completions, else 0

Shao et al., "Spurious Rewards", arXiv:2506.10947, section 2. Verdict and accuracy stay the verifier's; methods that
train by correctness take the reward 1 for correct.

How we differ from the paper: its incorrect rewards are for one wrong label of each problem, its format rewards for a
non-empty box, its majority labels from 64 samples of the untrained model. Here any readable wrong answer counts, and
each rollout's completions vote, as in TTRL (arXiv:2504.16084).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from rlvr_cli.methods.preset import Modifier, Paper

# Values of `method.reward.source`, and of a sweep's `controls`.
Control = Literal["random", "format", "incorrect", "majority"]
CONTROLS: tuple[Control, ...] = get_args(Control)


def modifier_of(control: str) -> str:
    """Return the modifier of a control: `random-reward`."""
    return f"{control}-reward"


def has_control(method: str) -> bool:
    """Return whether the name of a method has the modifier of a control."""
    return not set(map(modifier_of, CONTROLS)).isdisjoint(method.split("+")[1:])


def random_reward(seed: int, probability: float) -> float:
    """Return 1 with ``probability``, else 0, the same for the same ``seed``."""
    return float(random.Random(seed).random() < probability)


def majority_rewards(answers: Sequence[str | None], same: Mapping[str, str]) -> list[float]:
    """Return 1 for each answer of the majority of a prompt's ``answers``, else 0; None neither votes nor wins.

    ``same``: answer -> the equal answer that it votes for. Of equally frequent answers the first wins.
    """
    votes = [None if answer is None else same.get(answer, answer) for answer in answers]
    counts = Counter(vote for vote in votes if vote is not None).most_common(1)
    return [float(vote is not None and vote == counts[0][0]) for vote in votes]


PAPER = Paper("Spurious Rewards: Rethinking Training Signals in RLVR", "Shao et al.", "2506.10947")
SECTION = "Spurious Rewards paper, section 2"
_TEXTS = {
    "random": ("Rewards the toss of a coin: a control.", SECTION),
    "format": ("Rewards any readable answer: a control.", f"{SECTION}: a non-empty box"),
    "incorrect": (
        "Rewards readable wrong answers alone: a control.",
        f"{SECTION}: one wrong label of each problem; any wrong answer is our choice",
    ),
    "majority": (
        "Rewards the most frequent answer of the prompt's completions, without a verifier: a control.",
        f"{SECTION}: labels fixed before training; votes of each rollout are our choice, as in TTRL",
    ),
}
_PROBABILITY = {"reward.probability": (0.5, "Spurious Rewards paper: 0.5 in its main experiments")}
PRESETS = tuple(
    Modifier(
        modifier_of(control),
        title=f"{control.capitalize()} rewards",
        summary=summary,
        paper=PAPER,
        golden=() if control == "random" else ("controls",),
        sets={"reward.source": (control, source)} | (_PROBABILITY if control == "random" else {}),
    )
    for control, (summary, source) in _TEXTS.items()
)
