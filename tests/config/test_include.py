"""A configuration file that starts from others: what it lays over them, where values are from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, load, load_config
from rlvr_cli.core.errors import UserError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def problems(file: Path) -> list[str]:
    """What is wrong with it, paths from its folder, the alignment to one blank."""
    with pytest.raises(UserError) as caught:
        load_config([file])
    return [" ".join(line.replace(f"{file.parent}/", "").split()) for line in caught.value.problems]


def test_a_file_lies_over_what_it_includes_and_each_value_keeps_its_place(tmp_path: Path) -> None:
    """Paths are from the including file's folder, at every depth; of a list the later file wins."""
    paper = tmp_path / "paper"
    lowest = write(paper / "_all.yaml", "optimizer:\n  lr: 1e-3\n  eps: 1e-7\n  weight_decay: 0.5\n")
    first = write(paper / "_kk.yaml", "include: _all.yaml\nrollout:\n  prompts: 8\n  group_size: 4\n")
    second = write(paper / "_short.yaml", "rollout:\n  prompts: 2\noptimizer: {eps: 1e-6}\n")
    row = write(
        paper / "figure" / "row.yaml",
        "optimizer: {lr: 2e-3}\ninclude:\n  - ../_kk.yaml\n  - ../_short.yaml\nmethod: dapo\n",
    )
    loaded = load([row])
    optimizer, rollout = loaded.config.optimizer, loaded.config.rollout
    assert (rollout.prompts, rollout.group_size, loaded.config.method.name) == (2, 4, "dapo")
    assert (optimizer.lr, optimizer.eps, optimizer.weight_decay) == (2e-3, 1e-6, 0.5)
    assert loaded.origin("optimizer", "lr") == f"{row}:1"
    assert loaded.origin("rollout", "prompts") == f"{second}:2"
    assert loaded.origin("rollout", "group_size") == f"{first}:4"
    assert loaded.origin("optimizer", "weight_decay") == f"{lowest}:4"
    assert "include" not in dump_yaml(loaded.config)


def test_a_file_that_two_include_does_not_undo_what_lies_over_it(tmp_path: Path) -> None:
    write(tmp_path / "all.yaml", "rollout: {prompts: 4}\n")
    write(tmp_path / "a.yaml", "include: all.yaml\nrollout: {prompts: 8}\n")
    write(tmp_path / "b.yaml", "include: all.yaml\nrollout: {group_size: 2}\n")
    rollout = load_config([write(tmp_path / "row.yaml", "include: [a.yaml, b.yaml]\n")]).rollout
    assert (rollout.prompts, rollout.group_size) == (8, 2)
    # Each -c file is whole: the later one wins, with all that it includes.
    assert load_config([tmp_path / "a.yaml", tmp_path / "b.yaml"]).rollout.prompts == 4


def test_a_link_on_the_way_is_followed_as_the_system_does(tmp_path: Path) -> None:
    write(tmp_path / "real" / "deep" / "row.yaml", "include: ../base.yaml\n")
    write(tmp_path / "real" / "base.yaml", "rollout: {prompts: 8}\n")
    write(tmp_path / "base.yaml", "rollout: {prompts: 2}\n")
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    assert load_config([tmp_path / "link" / "row.yaml"]).rollout.prompts == 8
