"""Compare arms: scores, contrasts with intervals, sentences and tables. Imports no torch.

from rlvr_cli.compare import compare

compare("kk-lopti*", "kk-grpo*")[["arm", "mean.value", "difference.value", "difference.low", "p_holm"]]
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def compare(*names: str, root: str | Path = "runs", **options: Any) -> pd.DataFrame:
    """Return the result of `rlvr compare` as a data frame: one row per arm, with the columns of `--format csv`.

    Args:
        names: runs, folders of runs and globs, as on the command line.
        options: of :class:`rlvr_cli.compare.request.CompareRequest`, as ``baseline="grpo"`` or ``metric="pass@8"``.
    Raises UserError with all problems.
    """
    from rlvr_cli.compare.document import comparison_frame
    from rlvr_cli.compare.read import read_scores
    from rlvr_cli.compare.request import CompareRequest
    from rlvr_cli.compare.results import compare_arms

    sequences = {key: (value,) for key in ("by", "over", "where") if isinstance(value := options.get(key), str)}
    request = CompareRequest(names=names, root=Path(root), **{**options, **sequences})
    return comparison_frame(compare_arms(read_scores(request)))
