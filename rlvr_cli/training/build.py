"""Build the trainer of a run, for a policy gradient or supervised fine-tuning."""

from __future__ import annotations

import warnings

from accelerate.utils import DistributedType, DynamoBackend
from transformers import PrinterCallback

from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import RunError
from rlvr_cli.launch.deepspeed_config import is_sharded
from rlvr_cli.models.adapter import PATTERNS_OF_PARAMETERS
from rlvr_cli.training.demonstrations import SFTMethod
from rlvr_cli.training.policy_run import PolicyRunTrainer
from rlvr_cli.training.prepare import RunParts
from rlvr_cli.training.run_trainer import RunTrainer
from rlvr_cli.training.sft import SFTRunTrainer


def build_trainer(run_parts: RunParts) -> RunTrainer:
    """Build the trainer of a run. Raises RunError if accelerate's environment contradicts the configuration."""
    warnings.filterwarnings("ignore", PATTERNS_OF_PARAMETERS)
    kind = SFTRunTrainer if isinstance(run_parts.prepared.method, SFTMethod) else PolicyRunTrainer
    trainer: RunTrainer = kind(run_parts)
    trainer.remove_callback(PrinterCallback)
    _check_accelerate(trainer, run_parts.config)
    return trainer


def _check_accelerate(trainer: RunTrainer, config: Config) -> None:
    accelerator, launch = trainer.accelerator, config.launch
    types = [DistributedType.MULTI_CPU, DistributedType.MULTI_GPU]
    if is_sharded(launch):
        types = [DistributedType.DEEPSPEED]
    elif launch.processes == 1:
        types.append(DistributedType.NO)
    if accelerator.num_processes != launch.processes or accelerator.distributed_type not in types:
        raise RunError(
            f"launch.processes={launch.processes} and launch.deepspeed={launch.deepspeed or 'null'} were requested, "
            f"but accelerate runs {accelerator.num_processes} as {accelerator.distributed_type.value}. Unset its "
            "environment variables (ACCELERATE_..., RANK, WORLD_SIZE)."
        )
    expected = ("bf16" if trainer.args.bf16 else "no", DynamoBackend.NO.value)
    actual = (accelerator.mixed_precision, accelerator.state.dynamo_plugin.backend.value)
    if actual != expected:
        raise RunError(
            f"accelerate computes with mixed precision {actual[0]} and compiler {actual[1].lower()}, but the run with "
            f"{expected[0]} and none. Unset ACCELERATE_MIXED_PRECISION and ACCELERATE_DYNAMO_BACKEND (`accelerate "
            "launch` sets them from its options and configuration)."
        )
