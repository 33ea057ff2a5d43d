"""What is refused of a configuration, and how: the file, the line, the key and the remedy, all problems at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_cli.config.load import load_config
from rlvr_cli.core.errors import UserError
from tests.refusals import check

SNAPSHOT = Path(__file__).with_name("refusals.txt")
# What a text file of cases cannot hold: huge values, other encodings, bytes that no text has.
HOSTILE = {
    b"rollout:\n  prompts: 8 # \xff\n": "a.yaml:2  is not UTF-8",
    b"rollout:\n  \x07prompts: 8\n": "a.yaml:2  ",
    b"run:\n  seed: " + b"9" * 5000: "a.yaml:2  ",
    b"a: " + b"[" * 100_000: "a.yaml:1  ",
    b"a: [" + b"1," * 90_000 + b"]": "a.yaml:1  ",
    b"#" * 200_001: "a.yaml  is larger than the maximum of 200,000 bytes",
}


def test_every_refusal_names_its_place_and_its_remedy(tmp_path: Path) -> None:
    check(SNAPSHOT, tmp_path)


def test_hostile_files_are_refused_and_nothing_heavy_is_imported_or_left_for_it(tmp_path: Path) -> None:
    """In a fresh process, which then says what it has imported."""
    code = (
        "import sys\nfrom rlvr_cli.cli.app import run\n"
        "assert run(['train', '-c', sys.argv[1]]) == 2\nprint(*sys.modules)"
    )
    for number, (text, message) in enumerate(HOSTILE.items()):
        file = tmp_path / "a.yaml"
        file.write_bytes(text)
        if number == 0:
            done = subprocess.run([sys.executable, "-c", code, "a.yaml"], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0 and done.stderr.startswith(message), done.stderr
            assert done.stderr.endswith("1 problem. Nothing was started.\n")
            assert not {"torch", "transformers", "trl", "datasets", "numpy"} & set(done.stdout.split())
        with pytest.raises(UserError) as caught:
            load_config([file])
        (problem,) = caught.value.problems
        assert problem.removeprefix(f"{tmp_path}/").startswith(message) and len(problem) < 1000
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "row.yaml").write_text("include: pipe.yaml\n")
    for name in ("pipe.yaml", "zero.yaml", "row.yaml"):
        with pytest.raises(UserError, match=r"a pipe or a device"):
            load_config([tmp_path / name])


def test_a_file_that_is_no_configuration_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text("root:$6$hunter2:19000:0:99999:7:::\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "shadow")
    (tmp_path / "row.yaml").write_text("include: shadow\n")
    for name in ("shadow", "link.yaml", "row.yaml"):
        with pytest.raises(UserError) as caught:
            load_config([tmp_path / name])
        assert "hunter2" not in json.dumps(caught.value.problems)


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("loss_type=cispo", "method=cispo method.policy_loss.eps_low=null"),
        ("loss_type=bnpo", "method.aggregation=token_mean"),
        ("use_adaptive_entropy=true", "method.entropy_bonus.target=0.2"),
        ("loss_type=dr_grpo", "method.aggregation=constant_length"),
        ("scale_rewards=false", "method.advantage.scale=none"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean", "method.aggregation=sequence_mean"),
        ("algorithm.adv_estimator=gae", "method=ppo"),
        ("importance_sampling_level=sequence", "method=gspo"),
    ],
)
def test_a_hint_for_another_librarys_value_works_when_it_is_followed(written: str, ours: str) -> None:
    with pytest.raises(UserError, match=f"Did you mean `{ours}`"):
        load_config(overrides=[written])
    load_config(overrides=ours.split())


def test_a_section_of_another_program_has_a_hint_for_each_of_its_keys(tmp_path: Path) -> None:
    keys = {"rollout.n": "rollout.group_size", "actor.clip_ratio_high": "method.policy_loss.eps_high"}
    keys |= {"actor.entropy_coeff": "method.entropy_bonus.coef", "actor.optim.lr": "optimizer.lr"}
    written = [f"actor_rollout_ref.{key}=0.3" for key in keys]
    (tmp_path / "verl.yaml").write_text(
        "actor_rollout_ref:\n  rollout: {n: 8}\n  actor:\n    clip_ratio_high: 0.3\n    entropy_coeff: 0.001\n"
        "    optim: {lr: 0.1}\n"
    )
    for given in ({"overrides": written}, {"config_files": [tmp_path / "verl.yaml"]}):
        with pytest.raises(UserError) as caught:
            load_config(**given)
        assert [re.findall("`(.*)`", problem) for problem in caught.value.problems] == [
            [ours] for ours in keys.values()
        ]
    with pytest.raises(UserError) as caught:
        load_config(overrides=["optimiser.lr=1", "optimiser.betas=[0, 1]"])
    assert len(caught.value.problems) == 2
