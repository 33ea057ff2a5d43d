"""Find, load and check the teacher of a distillation, which scores the policy's own completions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlvr_cli.config.load import preset_of_task
from rlvr_cli.config.schema import Config
from rlvr_cli.core.errors import UserError
from rlvr_cli.evaluation.targets import find_target
from rlvr_cli.methods.opd import KEY
from rlvr_cli.models.load import eos_token_ids, load_model, load_tokenizer
from rlvr_cli.models.source import ModelSource, resolve_model
from rlvr_cli.runs.folder import match_run


@dataclass(frozen=True)
class Teacher:
    """A frozen model. ``location``: its folder or hub id; ``fingerprint``: of its weights."""

    model: Any = field(repr=False)
    location: str
    fingerprint: str


def find_teacher(config: Config) -> ModelSource | None:
    """Return the model that the method's teacher names; None without one. Raises UserError for an unknown name."""
    name = config.method.teacher
    return None if name is None else resolve_teacher(preset_of_task(name, config.task.name), Path(config.run.dir))


def resolve_teacher(name: str, runs: Path) -> ModelSource:
    """Resolve a run (its newest checkpoint), a checkpoint, a model folder, a preset or a hub id.

    Runs are searched in ``runs`` and, for a trial of a sweep, in the folder of the sweep's folder. Raises UserError.
    """
    try:
        root = runs if match_run(name, runs) else runs.parent if match_run(name, runs.parent) else runs
        return resolve_model(find_target(name, root).subjects[0].model)
    except UserError as error:
        raise UserError([f"{KEY}: {problem.removeprefix('model: ')}" for problem in error.problems]) from error


def load_teacher(
    source: ModelSource, policy: Any, tokenizer: Any, *, dtype: str, attention: str | None = None
) -> Teacher:
    """Load ``source`` on the device of ``policy``, whose tokenizer is ``tokenizer``.

    Raises UserError if the two have different tokens, or end completions by different ones.
    """
    tokens, needed = load_tokenizer(source.name).get_vocab(), tokenizer.get_vocab()
    different = sorted(token for token, index in needed.items() if tokens.get(token) != index)
    if different:
        raise UserError(
            f"{KEY}={source.name}: {len(different)} of the policy's {len(needed)} tokens are not the teacher's under "
            f"the same id, as {different[0]!r}. Both need the same tokenizer: use a teacher of the policy's family."
        )
    model, teacher_tokenizer = load_model(source.name, dtype=dtype, device=policy.device, attention=attention)
    ends, expected = eos_token_ids(model, teacher_tokenizer), eos_token_ids(policy, tokenizer)
    if not set(ends) & set(expected):
        of_policy, of_teacher = (
            " or ".join(map(repr, owner.convert_ids_to_tokens(list(ids))))
            for owner, ids in ((tokenizer, expected), (teacher_tokenizer, ends))
        )
        raise UserError(
            f"{KEY}={source.name}: the policy ends a completion with {of_policy}, the teacher with {of_teacher}, so it "
            "would teach never to end. Use a teacher with the same end of sequence."
        )
    from rlvr_cli.models.adapter import fingerprint

    return Teacher(model.requires_grad_(False), source.location, fingerprint(model))
