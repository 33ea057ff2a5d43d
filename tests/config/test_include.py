"""A configuration file that starts from others: what it lays over them, where values are from, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlvr_cli.config.load import dump_yaml, load, load_config
from rlvr_cli.core.errors import UserError

WANTED = "must be a file or a list of files, their paths from this file's folder; got"


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


def test_what_is_wrong_with_a_value_is_told_of_the_file_that_sets_it(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "rollout:\n  promts: 8\noptimizer:\n  lr: 5\n")
    row = write(tmp_path / "row.yaml", "include: base.yaml\ntrain:\n  rollouts: 0\n")
    assert {" ".join(line.split()[:2]) for line in problems(row)} == {
        "base.yaml:2 rollout.promts:",
        "base.yaml:4 optimizer.lr:",
        "row.yaml:3 train.rollouts:",
    }


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


@pytest.mark.parametrize(
    ("include", "said"),
    [
        ("include: no.yaml", "row.yaml:2 include: no.yaml: no such file"),
        ("include:\n  - base.yaml\n  - no.yaml", "row.yaml:4 include: no.yaml: no such file"),
        ("include: folder", "row.yaml:2 include: folder: is a folder; name a YAML file in it"),
        ("include: empty.yaml", "row.yaml:2 include: empty.yaml: is empty; a configuration sets at least one key"),
        ("include: row.yaml", "row.yaml:2 include: row.yaml: includes itself: row.yaml -> row.yaml"),
        ("include: ring.yaml", "ring.yaml:1 include: row.yaml: includes itself: row.yaml -> ring.yaml -> row.yaml"),
        ("include: list.yaml", "list.yaml:1 must be a mapping of sections, as in `rollout: ...`; it is a list"),
        ("include: broken.yaml", "broken.yaml:2 rollout: duplicate key (first on line 1)"),
        ("include: 3", f"row.yaml:2 include: {WANTED} 3"),
        ("include: []", f"row.yaml:2 include: {WANTED} []"),
        ("include:", f"row.yaml:2 include: {WANTED} null"),
        ('include: "a\\0.yaml"', f'row.yaml:2 include: {WANTED} "a\\u0000.yaml"'),
        (
            "include:\n  - base.yaml\n  - ~nobody-here/a.yaml",
            "row.yaml:4 include: ~nobody-here/a.yaml: there is no home folder ~nobody-here. Write the path out.",
        ),
    ],
)
def test_what_cannot_be_included_is_refused_with_its_line(tmp_path: Path, include: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    write(tmp_path / "base.yaml", "rollout: {prompts: 2}\n")
    write(tmp_path / "empty.yaml", "# nothing\n")
    write(tmp_path / "list.yaml", "[1]\n")
    write(tmp_path / "broken.yaml", "rollout: {}\nrollout: {}\n")
    write(tmp_path / "ring.yaml", "include: row.yaml\n")
    found = problems(write(tmp_path / "row.yaml", f"train: {{rollouts: 0}}\n{include}\n"))
    assert said in found
    assert len(found) == 2, "what else is wrong is told too, and nothing twice"


@pytest.mark.parametrize("name", ["shadow", "link.yaml", "secret.env"])
def test_a_file_that_is_no_configuration_is_not_shown(tmp_path: Path, name: str) -> None:
    secret = "root:$6$hunter2:19000:0:99999:7:::\ndaemon:*:19000:0\n"
    write(tmp_path / "shadow", secret)
    write(tmp_path / "secret.env", "PASSWORD: hunter2\n")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "shadow")
    (found,) = problems(write(tmp_path / "row.yaml", f"include: {name}\n"))
    assert f"row.yaml:1 include: {name}: is not named *.yaml or *.yml" in found
    (found,) = problems(tmp_path / name)
    assert "hunter2" not in found and "PASSWORD" not in found


def test_a_pipe_or_a_device_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe.yaml", "zero.yaml"):
        assert problems(tmp_path / name) == [f"{name} is a pipe, a device or a socket; a configuration is a file"]
    (found,) = problems(write(tmp_path / "row.yaml", "include: pipe.yaml\n"))
    assert "row.yaml:1 include: pipe.yaml: is a pipe" in found


def test_a_chain_of_files_has_an_end(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{depth}.yaml", f"include: {depth + 1}.yaml\n") for depth in range(40)]
    assert problems(files[0]) == [
        "20.yaml:1 include: 21.yaml: lies below more than 20 files; a configuration has a few levels"
    ]
    write(tmp_path / "20.yaml", "rollout: {prompts: 2}\n")
    assert load_config([files[0]]).rollout.prompts == 2


def test_include_is_for_files_not_for_overrides() -> None:
    with pytest.raises(UserError, match=r"include: unknown section.*; in a file also `include`"):
        load_config(overrides=["include=base.yaml"])


@pytest.mark.parametrize("value", ["ar_lopti", "[math500, dgpo]", "[]"])
def test_benchmarks_are_named_one_or_several(tmp_path: Path, value: str) -> None:
    config = load_config([write(tmp_path / "a.yaml", f"eval: {{benchmark: {value}}}\n")])
    assert ", ".join(config.eval.benchmark) == value.strip("[]")


def test_unknown_benchmarks_are_refused_at_their_line_with_the_nearest(tmp_path: Path) -> None:
    (line,) = problems(write(tmp_path / "a.yaml", "eval:\n  benchmark: [math50, aime24]\n"))
    assert line.startswith("a.yaml:2 eval.benchmark: math50: unknown. Did you mean `math500`? Benchmarks: countdown,")
    assert "Suites: ar_lopti, acpo" in line
