"""No text of a judge's own characters takes more than linear time: every task and both rules."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("hostile_runs.py")


def test_runs_of_every_expression_s_own_characters_are_judged_in_time():
    # The script stops itself after 2.5 s of processor time for one text; the limit here is for what cannot be stopped.
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = [int(line) for line in done.stdout.split()]
    assert len(counts) == 8 and min(counts) > 500
