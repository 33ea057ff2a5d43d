"""Layers at depth: choices, their parameters, and what a later choice drops."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, leaves, load, load_config
from rlvr_cli.methods.dgpo import DGPO
from rlvr_cli.methods.grpo import PPOClip
from rlvr_cli.methods.lopti import ByProbability
from rlvr_cli.methods.method import Method
from rlvr_cli.methods.reweight import Reweight


def policy(method: str | None = None, *overrides: str, files: tuple[Path, ...] = ()) -> Method:
    config = load_config(files, method=method, overrides=overrides).method
    assert isinstance(config, Method)
    return config


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_later_layer_keeps_the_other_parameters(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "method:\n  name: dgpo\n  policy_loss:\n    m: 3\n")
    loaded = load([file], overrides=["method.policy_loss.n=2"])
    assert isinstance(loaded.config.method, Method)
    assert loaded.config.method.policy_loss == DGPO(n=2.0, m=3.0)
    assert loaded.origin("method", "policy_loss", "n") == "override method.policy_loss.n=2"
    assert loaded.origin("method", "policy_loss", "m") == f"{file}:4"
    assert loaded.origin("method", "policy_loss", "eps_low") == "preset dgpo"
    assert loaded.origin("method", "shaping", "reweight") == "default"


def test_another_kind_drops_the_parameters_of_the_kind_before(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "method:\n  name: dgpo\n  policy_loss:\n    eps_high: 0.5\n    n: 3\n")
    loaded = load([file], overrides=["method.policy_loss.kind=ppo_clip"])
    assert isinstance(loaded.config.method, Method)
    assert loaded.config.method.policy_loss == PPOClip()
    assert loaded.origin("method", "policy_loss", "eps_high") == "default"
    assert loaded.origin("method", "policy_loss", "kind") == "override method.policy_loss.kind=ppo_clip"


def test_another_aggregation_drops_its_rows() -> None:
    """Dr. GRPO counts every row, which means nothing to a token mean."""
    assert policy("dr-grpo").aggregation.sequences == "all"
    assert policy("dr-grpo", "method.aggregation=token_mean").aggregation.sequences == "valid"
    assert policy("dr-grpo", "method.aggregation=constant_length").aggregation.sequences == "all"


def test_another_name_drops_what_was_said_of_the_method_before(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "method:\n  name: lopti\n  passes:\n    eta: 0.3\n  kl:\n    beta: 0.5\n")
    assert policy(files=(file,)).passes == ByProbability(eta=0.3)
    for name in ("dgpo+lopti", "grpo", "sft"):
        loaded, plain = load([file], method=name), load(method=name)
        assert loaded.config == plain.config
        for path, _ in leaves(loaded.config):
            assert loaded.origin(*path) == plain.origin(*path)
    assert load_config([file], overrides=["method=gtpo"]) == load_config(method="gtpo")


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("method.policy_loss=dgpo", ("policy_loss", "kind"), "dgpo"),
        ("method.advantage=rloo", ("advantage", "kind"), "rloo"),
        ("method.aggregation=sequence_mean", ("aggregation", "kind"), "sequence_mean"),
        ("method.passes=lopti", ("passes", "kind"), "lopti"),
        ("method.passes={kind: lopti, order: high_first}", ("passes", "order"), "high_first"),
        ("method={policy_loss: {kind: dgpo, n: 3}}", ("policy_loss", "n"), 3.0),
        ("method={policy_loss: dgpo}", ("policy_loss", "kind"), "dgpo"),
        ("method.shaping.reweight=0.3", ("shaping", "reweight"), Reweight(alpha=0.3)),
    ],
)
def test_a_plain_value_chooses_a_kind(override: str, path: tuple[str, str], value: object) -> None:
    section = getattr(policy(None, override), path[0])
    assert getattr(section, path[1]) == value


@pytest.mark.parametrize(
    "overrides",
    [
        ("method.policy_loss.n=3", "method.policy_loss=dgpo"),
        ("method.policy_loss=dgpo", "method.policy_loss.n=3"),
        ("method.policy_loss.n=3", "method.policy_loss.kind=dgpo", "method=dapo"),
        ("method.policy_loss.n=3", "method.name=gppo", "method.policy_loss=dgpo"),
    ],
)
def test_the_order_of_overrides_does_not_drop_one_of_them(overrides: tuple[str, ...]) -> None:
    assert policy(None, *overrides).policy_loss == DGPO(n=3.0)


def test_of_two_overrides_of_one_key_the_last_wins() -> None:
    assert policy("dgpo", "method.policy_loss.n=3", "method.policy_loss.n=4").policy_loss == DGPO(n=4.0)
    assert policy(None, "method=dgpo", "method=dapo").name == "dapo"
    assert policy(None, "method.policy_loss=dgpo", "method.policy_loss=gspo").policy_loss.kind == "gspo"


def test_the_modifiers_stand_over_the_method_and_under_the_user(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "method:\n  name: reinforce-pp+ar-lopti\n  passes:\n    eta: 0.4\n")
    loaded = load([file])
    assert loaded.origin("method", "advantage", "gamma") == "preset reinforce-pp"
    assert loaded.origin("method", "passes", "order") == "preset lopti"
    assert loaded.origin("method", "passes", "eta") == f"{file}:4"


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=dgpo+lopti", "method.policy_loss.n=2", "method.passes.order=high_first"),
        ("method=gtpo", "method.shaping.conflict=off", "method.shaping.entropy_filter=null"),
        ("method=dr-grpo", "method.aggregation=token_mean"),
        ("method=grpo", "method.policy_loss=acpo", "method.policy_loss.bins=1", "method.advantage=gae"),
        ("method=sft", "model.adapter=lora", "model.adapter.rank=8", "method.data=x.jsonl"),
    ],
)
def test_a_resolved_method_reads_back_equal(overrides: tuple[str, ...], tmp_path: Path) -> None:
    """What a preset left over without effect must not be refused when its own file is read."""
    config = load_config(overrides=overrides)
    assert load_config([write(tmp_path, "config.yaml", dump_yaml(config))]) == config
