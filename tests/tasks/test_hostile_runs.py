"""No text of a judge's own characters takes more than linear time: every task, both rules, every style."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("hostile_runs.py")
STYLES = {
    "kk": ("logic_rl", "compact"),
    "countdown": ("tiny_zero",),
    "math": ("boxed", "reasoning_answer"),
    "gsm8k": ("reasoning_answer", "boxed"),
    "hitab": ("answer_tag", "boxed"),
}


@pytest.mark.parametrize("rule", ["paper", "strict"])
@pytest.mark.parametrize(
    ("name", "style"),
    [
        pytest.param(name, style, marks=() if style == styles[0] or name == "kk" else pytest.mark.slow)
        for name, styles in STYLES.items()
        for style in styles
    ],
)
def test_runs_of_every_expression_s_own_characters_are_judged_in_time(name, style, rule):
    # The script stops itself after 5 s of processor time for one text; the limit here is for what cannot be stopped.
    command = [sys.executable, str(SCRIPT), name, rule, style]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 1_000
