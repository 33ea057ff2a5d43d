"""What a person is told when a run runs out of memory, or is ended by code of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlvr_cli.core.errors import RunError
from rlvr_cli.core.user_code import load_name, read_user_file
from rlvr_cli.models.sampling.memory import SamplingMemoryError, explain_out_of_memory
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.training.run import explain_error

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def test_a_want_of_memory_names_what_takes_it(tmp_path: Path) -> None:
    """In an update the rows of a micro-batch, in sampling the rows that are sampled at once."""
    run = RunDir(tmp_path)
    update = str(explain_error(FULL, run, "again"))
    assert "update.micro_batch" in update and "rollout.batch" not in update
    with pytest.raises(SamplingMemoryError) as told, explain_out_of_memory(64, 4096):
        raise FULL
    sampling = explain_error(told.value, run, "continue with: rlvr train --resume it")
    assert isinstance(sampling, RunError) and str(sampling).startswith(f"{tmp_path}: out of memory while sampling 64")
    assert "rollout.batch=32" in str(sampling) and "update.micro_batch" not in str(sampling)
    assert str(sampling).endswith("continue with: rlvr train --resume it")


def test_code_that_ends_the_process_is_named_as_what_ended_the_training(tmp_path: Path) -> None:
    """`sys.exit(0)` in code of the user's own must not look like a training that came to its end."""
    file = tmp_path / "mine.py"
    file.write_text("import sys\n\ndef loss():\n    sys.exit(0)\n")
    loss = load_name(read_user_file(file), "loss")
    with pytest.raises(SystemExit) as told:
        loss()
    shown = explain_error(told.value, RunDir(tmp_path), "continue with: rlvr train --resume it")
    assert isinstance(shown, RunError)
    assert str(shown) == f"{file}:4: SystemExit: 0 ended the training; continue with: rlvr train --resume it"
