"""`rlvr tasks fetch`: public sets as files that task.data finds, from a folder in place of the hub."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest

from rlvr_cli.cli.app import run as rlvr
from rlvr_cli.config.load import load, load_config
from rlvr_cli.core.errors import UserError
from rlvr_cli.tasks.data import PUBLIC
from rlvr_cli.tasks.fetch import fetch, manifest
from rlvr_cli.tasks.problem import Problem
from rlvr_cli.tasks.sets import set_to_fetch
from tests.tasks.test_hub_sets import dapo, lighteval, orz, parquet

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of the hub: ``hub / owner / name`` is a data set's repository. The working directory is new."""
    root, real = tmp_path / "hub", datasets.load_dataset

    def load_dataset(hub_id: str, name: str | None = None, *, revision: str | None = None, **options: Any) -> Any:
        return real(str(root / hub_id), name, cache_dir=str(tmp_path / "cache"), **options)

    def dataset_info(self: Any, hub_id: str, *, revision: str | None = None) -> Any:
        return SimpleNamespace(sha=COMMIT if revision is None else revision)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda hub_id, file, **_: str(root / hub_id / file))
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", dataset_info)
    monkeypatch.setattr("rlvr_cli.models.source.connection_problem", lambda: None)
    monkeypatch.setattr("rlvr_cli.models.source.is_offline", lambda: False)
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return root


def grade_school(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"It is <<{number}+1={number + 1}>>.\n#### {number + 1}"}


def gsm8k(hub: Path) -> None:
    for split, first in (("train", 0), ("test", 100)):
        rows = [grade_school(first + number) for number in range(60)]
        parquet(hub / "openai" / "gsm8k" / "main" / f"{split}-00000-of-00001.parquet", rows)
    card = ["---", "configs:", "- config_name: main", "  data_files:"]
    card += [line for split in ("train", "test") for line in (f"  - split: {split}", f"    path: main/{split}-*")]
    (hub / "openai" / "gsm8k" / "README.md").write_text("\n".join([*card, "---", ""]))


def knights(hub: Path) -> None:
    for config in ("train", "test"):
        for people in range(2, 9):
            names = [f"{'ABCDEFGH'[one]}{config}" for one in range(people)]
            rows = [
                {
                    "quiz": f"{config} {people} {number}",
                    "names": names,
                    "solution": [True] * people,
                    "index": number,
                }
                for number in range(9)
            ]
            path = hub / "K-and-K" / "knights-and-knaves" / config / f"{people}ppl.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    card = hub / "K-and-K" / "knights-and-knaves" / "README.md"
    lines = ["---", "configs:"]
    for config in ("train", "test"):
        lines += [f"- config_name: {config}", "  data_files:"]
        lines += [line for p in range(2, 9) for line in (f"  - split: {p}ppl", f"    path: {config}/{p}ppl.jsonl")]
    card.write_text("\n".join([*lines, "---", ""]))


def others(hub: Path) -> None:
    rows = [dapo(number, copy=copy) for copy in range(3) for number in range(80)]
    parquet(hub / "BytedTsinghua-SIA" / "DAPO-Math-17k" / "data.parquet", [*rows, dapo(1, answer=9)])
    folder = hub / "Open-Reasoner-Zero" / "orz_math_57k_collection"
    folder.mkdir(parents=True)
    (folder / "orz_math_57k_collection.json").write_text(json.dumps([orz(number) for number in range(60)]))
    for split, first in (("train", 0), ("test", 100)):
        rows = [lighteval(first + number) for number in range(60)]
        parquet(hub / "DigitalLearningGmbH" / "MATH-lighteval" / f"{split}.parquet", rows)
    countdown = [{"nums": [number + 1, number + 2, 50], "target": 2 * number + 53} for number in range(90)]
    parquet(hub / "Jiayi-Pan" / "Countdown-Tasks-3to4" / "data" / "train.parquet", countdown)


def problems(name: str, split: Any, folder: str | None) -> dict[str, Problem]:
    task = set_to_fetch(name).replace(data_dir=folder)
    return {problem.id: problem for problem in task.problems(split, 100_000, 0)}


@pytest.mark.parametrize(
    ("made", "name", "rows"),
    [
        (gsm8k, "gsm8k", 120),
        (knights, "kk", 126),
        (others, "dapo_math_17k", 79),
        (others, "orz_57k", 60),
        (others, "math", 120),
        (others, "countdown", 90),
    ],
)
@pytest.mark.filterwarnings("ignore:1 questions whose rows")
def test_a_set_that_was_fetched_is_that_of_the_hub(
    hub: Path, made: Callable[[Path], None], name: str, rows: int
) -> None:
    made(hub)
    found = fetch(set_to_fetch(name), Path(PUBLIC))
    assert (sum(file.rows for file in found.files), found.revision) == (rows, COMMIT) and found == manifest(
        name, Path(PUBLIC)
    )
    assert (len(found.left_out) == 1) == (name == "dapo_math_17k")
    for split in ("train", "dev", "test"):
        if split == "test" and "test" not in set_to_fetch(name).sets[name].files:
            continue
        of_hub, of_folder = problems(name, split, None), problems(name, split, PUBLIC)
        assert of_hub == of_folder and of_hub
    assert not list(Path(PUBLIC).glob(".*"))


def test_it_is_found_with_no_further_argument_and_says_where_it_is_from(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gsm8k(hub)
    assert load_config(overrides=["task=gsm8k"]).task.data_dir is None
    assert rlvr(["tasks", "fetch", "gsm8k"]) == 0
    shown = capsys.readouterr()
    assert "60 in data/public/gsm8k/test.jsonl" in shown.out and "MIT" in shown.out
    loaded = load([], overrides=["task=gsm8k"])
    assert loaded.config.task.data_dir == str(Path(PUBLIC).absolute())
    assert loaded.origin("task", "data_dir") == "folder data/public"
    about = str(loaded.config.task.about_data())
    assert "120 problems of openai/gsm8k at 0123456789ab" in about and "ALTERED" not in about
    assert load_config(overrides=["task=gsm8k", "task.data_dir=null"]).task.data_dir is None
    assert load_config(overrides=["task=math", "task.data=math500"]).task.data_dir is None, "that one is not there"
    assert rlvr(["plan", "--task", "gsm8k", "train.on_no_signal=off"]) == 0
    assert "120 problems of openai/gsm8k" in " ".join(capsys.readouterr().out.split())
    assert rlvr(["tasks", "sets", "--format", "json"]) == 0
    assert {one["name"]: one.get("rows") for one in json.loads(capsys.readouterr().out)["sets"]}["gsm8k"] == {
        "train": 60,
        "test": 60,
    }
    with (Path(PUBLIC) / "gsm8k" / "test.jsonl").open("a") as stream:
        stream.write("\n")
    assert "ALTERED" in str(load_config(overrides=["task=gsm8k"]).task.about_data())


def test_a_second_fetch_leaves_it_and_what_was_changed_or_put_there_is_not_replaced(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gsm8k(hub)
    first = fetch(set_to_fetch("gsm8k"), Path(PUBLIC))
    assert fetch(set_to_fetch("gsm8k"), Path(PUBLIC)) == first
    assert "is there, 120 problems" in capsys.readouterr().out
    assert fetch(set_to_fetch("gsm8k"), Path(PUBLIC), revision="v2").revision == "v2"
    (Path(PUBLIC) / "gsm8k" / "train.jsonl").unlink()
    assert fetch(set_to_fetch("gsm8k"), Path(PUBLIC)).revision == COMMIT, "a missing file is fetched again"
    (Path(PUBLIC) / "gsm8k" / "test.jsonl").write_text("mine")
    assert rlvr(["tasks", "fetch", "gsm8k"]) == 2
    assert "gsm8k/test.jsonl: was changed" in capsys.readouterr().err
    assert rlvr(["tasks", "fetch", "gsm8k", "--overwrite"]) == 0
    own = Path("own") / "math"
    own.mkdir(parents=True)
    (own / "test.jsonl").write_text("mine")
    with pytest.raises(UserError, match=r"math/test\.jsonl: is where the data set belongs, but was not fetched"):
        fetch(set_to_fetch("math"), Path("own"))


def test_an_interruption_leaves_no_part_of_it(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gsm8k(hub)

    def stopped(path: Path, *_: Any) -> Any:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("os.fsync", stopped)
    with pytest.raises(UserError, match="No space left on device"):
        fetch(set_to_fetch("gsm8k"), Path(PUBLIC))
    assert not [path for path in Path(PUBLIC).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["gsm9k"], "Did you mean `gsm8k`"),
        (["kk-gen"], "rlvr tasks generate kk"),
        (["hitab"], "hitab/train.jsonl and hitab/test.jsonl"),
        (["gsm8k", "math", "--revision", "x"], "one by one"),
    ],
)
def test_what_cannot_be_fetched(names: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rlvr(["tasks", "fetch", *names]) == 2
    assert said in capsys.readouterr().err


def test_without_a_network_it_says_so(hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("rlvr_cli.models.source.connection_problem", lambda: "no connection to https://huggingface.co")
    assert rlvr(["tasks", "fetch", "gsm8k"]) == 2
    assert "no connection" in (said := capsys.readouterr().err) and "copy data/public" in said
    monkeypatch.setattr("rlvr_cli.models.source.is_offline", lambda: True)
    assert rlvr(["tasks", "fetch", "gsm8k"]) == 2
    assert "HF_HUB_OFFLINE" in capsys.readouterr().err and not Path(PUBLIC).exists()


def test_a_broken_hub_is_one_message(hub: Path) -> None:
    with pytest.raises(UserError, match="cannot load main, train"):
        fetch(set_to_fetch("gsm8k"), Path(PUBLIC))
    assert not Path(PUBLIC).exists() or not list(Path(PUBLIC).iterdir())
