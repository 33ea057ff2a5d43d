"""A learning rate from a model of another size: DGPO's rule, and its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, load, load_config
from rlvr_cli.config.optimizer import ScaleFrom

RULE = "optimizer.lr={scale_from: {lr: 1e-6, parameters: 1.5e9}}"
# Printed in the paper (arXiv:2603.14389, appendix A.4 and table 12), by the models' names in billions.
PRINTED = {7e9: 4.63e-7, 14e9: 3.27e-7}
COUNTED = {1.5e9: 1_777_088_000, 7e9: 7_615_616_512, 14e9: 14_770_033_664}


@pytest.mark.parametrize(("named", "printed"), PRINTED.items())
def test_the_papers_rates_follow_from_the_names_of_its_models(named: float, printed: float) -> None:
    assert ScaleFrom(lr=1e-6, parameters=1.5e9, this_model=named).rate(lambda: 1) == pytest.approx(printed, abs=0.5e-9)
    # And not from the numbers of parameters, whichever of both models'.
    assert ScaleFrom(lr=1e-6, parameters=COUNTED[1.5e9]).rate(lambda: COUNTED[named]) != pytest.approx(
        printed, abs=5e-9
    )
    assert ScaleFrom(lr=1e-6, parameters=1.5e9).rate(lambda: COUNTED[named]) != pytest.approx(printed, abs=5e-9)


def test_the_rule_is_stored_and_read_back(tmp_path: Path) -> None:
    config = load_config(overrides=[RULE])
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(config), encoding="utf-8")
    assert load_config([file]) == config
    assert config.learning_rate.peak(lambda: 6_000_000_000) == pytest.approx(5e-7)


def test_a_file_replaces_the_presets_number_whole_and_an_override_the_files_rule(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("optimizer:\n  lr:\n    scale_from: {lr: 1e-6, parameters: 1.5e9}\n", encoding="utf-8")
    assert load([file]).origin("optimizer", "lr") == f"{file}:2"
    assert load_config([file], overrides=["optimizer.lr=1e-5"]).optimizer.lr == 1e-5
