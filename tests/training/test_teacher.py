"""On-policy distillation: the gradient of the reverse KL divergence, and a teacher that a run keeps."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

import rlvr_cli
from experiments.lab.model import make_tokenizer
from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import ConfigError, UserError
from rlvr_cli.methods.base import Rollout
from rlvr_cli.methods.grpo import GroupAdvantage
from rlvr_cli.methods.opd import TeacherAdvantage
from rlvr_cli.models.source import LAB_BASES
from rlvr_cli.runs.folder import RunDir
from rlvr_cli.tasks import kk_compact as compact
from tests.matrix import metrics, resume
from tests.methods.samples import coefficients, method, random_rollout, random_tokens
from tests.training import harness
from tests.training.processes import interrupted_after
from tests.training.sft_runs import start
from tests.training.test_trainers import arguments

ROWS = 16
TINY = {"validation__every": 0, "update__epochs": 1, "rollout__max_new_tokens": 24}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's model with some noise in every weight."""
    folder = tmp_path_factory.mktemp("models") / "teacher"
    shutil.copytree(LAB_BASES / "kk", folder)
    disturb(folder, 0.3)
    return folder


def disturb(folder: Path, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    noisy = {
        name: (values + size * values.float().std() * torch.randn(values.shape, generator=generator)).to(values.dtype)
        for name, values in weights.items()
    }
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})


# --- the formula ------------------------------------------------------------------------------------------------


def test_in_expectation_it_is_the_gradient_of_the_reverse_divergence() -> None:
    """Every token of a vocabulary of seven, each as often as the policy samples it."""
    generator = torch.Generator().manual_seed(0)
    logits, of_teacher = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    log_probs, teacher = logits.log_softmax(0), of_teacher.log_softmax(0)
    old = log_probs.detach().unsqueeze(1)
    rollout = Rollout(torch.zeros(7), 1, torch.arange(7).unsqueeze(1), torch.ones(7, 1), old)
    advantages = TeacherAdvantage(clip=1e3).advantages(replace(rollout, teacher_log_probs=teacher.unsqueeze(1)))
    surrogate = (old.exp() * advantages.double() * log_probs.unsqueeze(1)).sum()
    (expected,) = torch.autograd.grad((log_probs.exp() * (log_probs - teacher)).sum(), logits, retain_graph=True)
    (ours,) = torch.autograd.grad(surrogate, logits)
    torch.testing.assert_close(ours, -expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_trainer_makes_that_gradient(tmp_path: Path, temperature: float) -> None:
    """Against autograd through half the squared log ratio, whose gradient is the log ratio times that of log pi."""
    opd, base, taught = (
        harness.method_of("opd", "advantage.clip=1000"),
        harness.load_base(tmp_path),
        harness.tiny_model(1),
    )
    prompts, completions, _ = harness.ScriptedRollouts(ROWS).script(0)
    with torch.no_grad():
        target = harness.completion_log_probs(taught, prompts, completions, temperature)
    log_probs = harness.completion_log_probs(base, prompts, completions, temperature)
    valid = torch.arange(log_probs.shape[1]) < torch.tensor([len(ids) for ids in completions]).unsqueeze(1)
    ((log_probs - target).square()[valid].sum() / 2 / valid.sum()).backward()
    expected = harness.flat_gradient(base)
    base.zero_grad()
    trainer = harness.train(tmp_path, opd, base, micro_batch=4, rollouts=1, temperature=temperature)
    assert float((trainer.gradients[0] - expected).norm() / expected.norm()) < 1e-6
    divergence = float((log_probs.detach() - target)[valid].mean())
    assert trainer.rollout_metrics == {"kl_teacher": pytest.approx(divergence, rel=1e-5), "teacher_clipped": 0.0}
    assert any(row.get("kl_teacher") == trainer.rollout_metrics["kl_teacher"] for row in trainer.state.log_history)


def test_the_reward_is_added_and_read_only_if_it_has_a_weight() -> None:
    rollout = random_rollout()
    other = replace(rollout, rewards=-3 * rollout.rewards)
    alone, both = TeacherAdvantage(), TeacherAdvantage(reward_weight=0.5)
    assert torch.equal(alone.advantages(rollout), alone.advantages(other))
    added = both.advantages(rollout) - alone.advantages(rollout)
    torch.testing.assert_close(added, 0.5 * GroupAdvantage().advantages(rollout).expand_as(added))
    assert not alone.needs_rewards and alone.needs_group is None and both.needs_rewards and both.needs_group


def test_the_clip_bounds_what_the_teacher_rules_out() -> None:
    rollout = random_rollout()
    ruled_out = replace(rollout, teacher_log_probs=torch.full_like(rollout.mask, -torch.inf))
    clipped = TeacherAdvantage(clip=2.0)
    valid = rollout.mask.bool()
    assert (clipped.advantages(ruled_out)[valid] == -2).all()
    assert clipped.metrics(ruled_out)["teacher_clipped"] == 1
    assert TeacherAdvantage(clip=1e6).metrics(rollout)["teacher_clipped"] == 0


def test_low_only_trains_only_the_unlikely_tokens_of_the_same_gradient() -> None:
    tokens = random_tokens()
    of_tokens = replace(tokens, advantages=torch.randn_like(tokens.log_probs))
    opd = method(advantage=TeacherAdvantage())
    low = opd.replace(passes=harness.method_of("opd+low-only").passes)
    expected = torch.where(tokens.old_probs < 0.5, coefficients(opd, of_tokens), 0.0)
    torch.testing.assert_close(coefficients(low, of_tokens, "low"), expected)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_what_cannot_teach_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*overrides: str) -> str:
        assert rlvr(["train", "--method", "opd", f"run.dir={tmp_path}", *overrides]) == 2
        return " ".join(capsys.readouterr().err.split())

    assert "method opd learns from a teacher. Set method.advantage.teacher" in refused()
    assert "method.advantage.teacher: no such folder: nobody." in refused("method.advantage.teacher=nobody")
    assert "Both need the same tokenizer" in refused("method.advantage.teacher=lab-math")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"dynamic_sampling=2 replaces groups .* reads no reward"):
        load_config(method="opd", overrides=["rollout.dynamic_sampling=2"])
    load_config(method="opd", overrides=["rollout.dynamic_sampling=2", "method.advantage.reward_weight=1"])
    with pytest.raises(ConfigError, match=r"method\.reward\.noise"):
        load_config(method="opd+noise")
    with pytest.raises(UserError, match="learns from a teacher"):
        rlvr_cli.OPDTrainer(harness.load_base(tmp_path), args=arguments(tmp_path))


def test_the_lab_is_that_of_the_task(tmp_path: Path) -> None:
    assert rlvr(["plan", "--method", "opd", "method.advantage.teacher=lab", "--task", "countdown"]) == 0


# --- runs -------------------------------------------------------------------------------------------------------


def test_a_student_comes_nearer_to_its_teacher_and_a_kl_term_keeps_its_own_reference(
    tmp_path: Path, teacher: Path
) -> None:
    settings = {**TINY, "train__rollouts": 8, "rollout__prompts": 16, "optimizer__lr": 3e-4}
    settings |= {"method__advantage__teacher": str(teacher), "method__kl__beta": 0.001, "train__on_no_signal": "stop"}
    rows = metrics(start(tmp_path, "student", "opd", **settings).run)
    divergences = [row["kl_teacher"] for row in rows if row["step"] % 2]
    assert 0 < sum(divergences[-3:]) < 0.7 * sum(divergences[:3])
    assert 0 < rows[-1]["kl_reference"] < divergences[0]
    assert all(row["nonzero_advantage"] == 1 and 0 <= row["accuracy"] < 1 for row in rows)


def test_a_run_teaches_and_the_students_run_goes_on_with_that_teacher_alone(tmp_path: Path) -> None:
    taught = start(tmp_path, "teacher", "grpo", **TINY, train__rollouts=1, optimizer__lr=1e-2).run
    settings = {**TINY, "train__rollouts": 2, "method__advantage__teacher": "teacher", "checkpoint__every": 1}
    settings |= {"checkpoint__keep": 8}
    whole = start(tmp_path, "whole", "opd+lopti", **settings).run
    with interrupted_after(3):
        run = start(tmp_path, "student", "opd+lopti", **settings).run
    recorded = run.read_manifest()["teacher"]
    assert Path(recorded["model"]) == next(taught.checkpoints_dir.iterdir()).resolve()
    weights = Path(recorded["model"]) / "model.safetensors"
    before = weights.read_bytes()
    disturb(weights.parent, 0.01)
    for path in weights.parent.parent.glob("step-*/checkpoint.json"):
        path.unlink(missing_ok=True)
    with pytest.raises(UserError):
        resume(run)
    weights.write_bytes(before)
    assert resume(run).status == "finished"
    assert [row["kl_teacher"] for row in metrics(run)] == [row["kl_teacher"] for row in metrics(whole)]
    assert newest_weights(run) == newest_weights(whole)
    assert rlvr(["analyze", "ratio", "--run", str(run.path)]) == 0


def newest_weights(run: RunDir) -> bytes:
    return (run.checkpoints_dir / "step-8" / "model.safetensors").read_bytes()


def test_another_teacher_is_refused_when_a_run_is_resumed(tmp_path: Path, teacher: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(teacher, own)
    with interrupted_after(1):
        run = start(tmp_path, "student", "opd", **TINY, method__advantage__teacher=str(own)).run
    disturb(own, 0.01)
    with pytest.raises(UserError, match=r"its teacher is now .* and was .* at the start. Restore that model"):
        resume(run)


def test_trls_own_generation_needs_no_reward_function(tmp_path: Path) -> None:
    harness.tiny_model(harness.TEACHER).save_pretrained(tmp_path / "teacher")
    make_tokenizer(compact.vocabulary()).save_pretrained(tmp_path / "teacher")
    made = rlvr_cli.PolicyTrainer(
        harness.load_base(tmp_path),
        args=arguments(tmp_path, max_steps=4, steps_per_generation=1, learning_rate=0.05),
        method="opd",
        overrides=[f"advantage.teacher={tmp_path / 'teacher'}"],
        processing_class=make_tokenizer(compact.vocabulary()),
        train_dataset=Dataset.from_dict({"prompt": ["a knight", "b knave"] * 8}),
    )
    made.train()
    rows: list[dict[str, Any]] = [row for row in made.state.log_history if "grad_norm" in row]
    assert len(rows) == 4 and all(row["kl_teacher"] > 0 and row["trained"] == 1 for row in rows)
