"""An evaluation whose samples vLLM makes in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr_cli.evaluation.plan import ProgressCallback
from rlvr_cli.evaluation.served.tokenizer import ModelFacts
from rlvr_cli.evaluation.settings import EvalSettings
from rlvr_cli.evaluation.store import Key, SampleStore
from rlvr_cli.models.sampling.vllm import files_hash, generate_with_vllm
from rlvr_cli.tasks.base import Task
from rlvr_cli.tasks.problem import Problem


class VllmSampler:
    """A model in vLLM.

    Args:
        engine: `vllm.LLM`. folder: the model's files, whose hash stands for the weights.
    """

    def __init__(self, engine: Any, facts: ModelFacts, folder: Path) -> None:
        self.engine, self.facts, self.weights = engine, facts, f"files {files_hash(folder)}"

    def identity(self, task: Task, settings: EvalSettings) -> dict[str, Any]:
        """What decides the samples; never that of the same model under another engine, whose random streams differ."""
        return {
            "weights": self.weights,
            "engine": "vllm",
            "task": task.settings,
            "split": settings.split,
            "sampling": settings.sampling(),
        }

    def fill(
        self,
        store: SampleStore,
        samples: dict[Key, dict[str, Any]],
        task: Task,
        problems: Sequence[Problem],
        settings: EvalSettings,
        progress: ProgressCallback | None = None,
    ) -> None:
        """See :func:`rlvr_cli.evaluation.sampling.fill_batches`; log-probabilities only where they are of what was
        sampled from: at temperature 0 and 1."""
        from rlvr_cli.evaluation.sampling import BatchSource, fill_batches

        facts = self.facts
        source = BatchSource(
            generate_with_vllm, self.engine, facts.tokenizer, facts.stops, (0.0, 1.0), positions=facts.positions
        )
        fill_batches(source, store, samples, task, problems, settings, progress)
