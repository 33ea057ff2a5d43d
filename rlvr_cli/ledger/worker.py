"""`python -m rlvr_cli.ledger.worker`: carries out one job after the other, read as JSON lines, until its input ends.

It answers each with a line: null, or why it failed. What the libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from rlvr_cli.core.errors import RunError, UserError


def carry_out(kind: str, content: dict[str, Any]) -> None:
    """Do the job. Raises UserError and RunError for what people can mend."""
    if kind == "base":
        from rlvr_cli.ledger.trainings import build_base

        build_base(Path(content["recipe"]), content["seed"], Path(content["folder"]))
        return
    from rlvr_cli.ledger.measures import compute

    compute(content)


def attempt(kind: str, content: dict[str, Any]) -> str | None:
    """Do the job; why it failed, None where it did not."""
    try:
        carry_out(kind, content)
    except (UserError, RunError) as error:
        return " ".join(str(error).split("\n"))
    except Exception as error:
        # One computation that fails must not take the others with it; the log has the whole story.
        traceback.print_exc()
        return f"a bug in rlvr: {type(error).__name__}: {error}"
    return None


def main() -> None:
    """Until standard input ends. Argument: the threads to compute with; none = as many as there are cores."""
    from rlvr_cli.models.libraries import set_threads

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if len(sys.argv) > 1:
        os.environ["OMP_NUM_THREADS"] = sys.argv[1]
    set_threads(int(sys.argv[1]) if len(sys.argv) > 1 else None)
    for line in sys.stdin:
        job = json.loads(line)
        answers.write(json.dumps(attempt(job["kind"], job["content"])) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
