"""For tests alone, by PYTHONPATH: lets DeepSpeed train on CPUs.

accelerate has no CPU backend for them. With gloo under the type of a GPU run both work. The patches are made when a
module is first imported, so that processes which never load torch start as fast as before.
"""

import importlib.abc
import importlib.machinery
import os
import sys


def _accelerate_state(module):
    module.PartialState._prepare_backend = lambda self, *args, **kwargs: (
        "gloo",
        module.DistributedType.MULTI_GPU,
    )


def _deepspeed_torch(module):
    # Else it compiles an extension at the first start, for more than a minute.
    module.build_shm_op = lambda: None


def _trainer(module):
    """RLVR_TEST_NAN=2 makes the loss of optimizer step 2 NaN, and leaves its gradient finite."""
    step = int(os.environ.get("RLVR_TEST_NAN", "0"))
    whole = module.PolicyTrainer._loss

    def _loss(self, *args, **kwargs):
        loss = whole(self, *args, **kwargs)
        return loss + float("nan") if self.state.global_step + 1 == step else loss

    module.PolicyTrainer._loss = _loss


def _bf16_arguments(module):
    """RLVR_TEST_BF16: train in bfloat16, as on GPUs."""
    if "RLVR_TEST_BF16" in os.environ:
        module.is_torch_bf16_gpu_available = lambda: True


def _bf16_build(module):
    if "RLVR_TEST_BF16" in os.environ:
        module.has_bfloat16 = lambda: True


PATCHES = {
    "accelerate.state": _accelerate_state,
    "deepspeed.comm.torch": _deepspeed_torch,
    "rlvr_cli.training.build": _bf16_build,
    "rlvr_cli.training.trainer": _trainer,
    "transformers.training_args": _bf16_arguments,
}


class _Patching(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module

        def load_and_patch(module):
            load(module)
            PATCHES[name](module)

        spec.loader.exec_module = load_and_patch
        return spec


# A launcher passes none of accelerate's variables on, so it is set in the process itself.
if "RLVR_LAUNCH" in os.environ and "RANK" in os.environ:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    sys.meta_path.insert(0, _Patching())
