"""The recipes of the papers: each can be planned, says where every value is from, and does its paper's arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.checks import check_training
from rlvr_cli.config.load import load_config
from rlvr_cli.config.schema import Config
from rlvr_cli.core.yaml import parse, read_text
from rlvr_cli.evaluation.benchmarks import chosen
from rlvr_cli.ledger.book import read_book
from rlvr_cli.methods.method import Method
from rlvr_cli.planning.plan import adapter_of, resources
from rlvr_cli.sweeps.naming import identity
from rlvr_cli.tasks.countdown.task import Countdown
from rlvr_cli.tasks.sets import data_sets, waits_for_a_folder

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "configs" / "papers"
# What rows share is in files whose names begin with _.
ROWS = sorted(FOLDER.rglob("[!_]*.yaml"))
PAPERS = ["acpo", "ar_lopti", "dgpo", "gtpo", "landscape"]
# Completions of a rollout, updates made of it in one pass, completions of an update, longest completion; the first
# pattern that fits.
EXPECTED = {
    "ar_lopti/table-1/*": (1024, 2, 512, 4096),
    "ar_lopti/*": (512, 2, 256, 4096),
    "acpo/table-2/*-near-on-policy": (1280, 2, 640, 3072),
    "acpo/table-2/*-off-policy": (2560, 16, 160, 3072),
    "acpo/*-near-on-policy": (4096, 2, 2048, 1024),
    "acpo/*-off-policy": (4096, 16, 256, 1024),
    "dgpo/*": (4096, 16, 256, 8192),
    "gtpo/*-sft": (2, 2, 1, 4000),
    "gtpo/*-g12*": (12, 1, 12, 1500),
    "gtpo/*": (8, 1, 8, 1500),
    "landscape/*/countdown-*-off-policy*": (1024, 4, 256, 1024),
    "landscape/*/countdown-*": (1024, 1, 1024, 1024),
    "landscape/*-off-policy*": (1024, 4, 256, 3072),
    "landscape/*": (1024, 1, 1024, 3072),
}


def name(file: Path) -> str:
    return file.relative_to(FOLDER).with_suffix("").as_posix()


@cache
def loaded(file: Path) -> Config:
    return load_config([file])


def rows(paper: str) -> list[Path]:
    return [file for file in ROWS if name(file).startswith(f"{paper}/")]


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)


@pytest.mark.parametrize("paper", PAPERS)
def test_each_can_be_planned_and_fits_its_gpus(paper: str) -> None:
    """As `rlvr plan` does: problems, arithmetic, memory; a set that is on no hub waits for its folder."""
    for file in rows(paper):
        config = loaded(file)
        if not waits_for_a_folder(config.task):
            check_training(config)
        needs = resources(config, gpus=None, gpu_memory="80GiB", prompt_tokens=None, speed=None)
        assert needs["memory"]["fits"] == "yes", file


@pytest.mark.parametrize("paper", PAPERS)
def test_the_arithmetic_of_the_paper(paper: str) -> None:
    for file in rows(paper):
        config = loaded(file)
        batch = batch_arithmetic(config)
        expected = next(numbers for pattern, numbers in EXPECTED.items() if fnmatchcase(name(file), pattern))
        updates = batch.steps_per_rollout // batch.passes
        assert (batch.completions, updates, batch.step_batch, config.rollout.max_new_tokens) == expected, file
        assert batch.completions == batch.step_batch * updates, file


@pytest.mark.parametrize("paper", PAPERS)
def test_every_value_says_where_it_is_from(paper: str) -> None:
    """A comment with a section, table or other place, or that the value is ours, behind every key with a value."""
    places = re.compile(
        r"#.*(section|table|figure|footnote|appendix|equation|listing|algorithm|script|released|default|ours|"
        r"not printed|ends at)"
    )
    for file in sorted((FOLDER / paper).rglob("*.yaml")):
        text = read_text(file)
        lines = text.splitlines()
        for path, line in parse(text).lines.items():
            written = lines[line - 1].strip()
            if not path or path[0] == "include" or path[-1] == "name" or written.endswith(":"):
                continue
            if written.startswith(f"{path[-1]}:"):
                assert places.search(written), f"{file}:{line}: {written}"


@pytest.mark.parametrize("file", ROWS, ids=name)
def test_it_begins_with_its_place_its_commands_and_what_the_paper_has(file: Path) -> None:
    head = read_text(file).partition("\ninclude:")[0]
    joined = " ".join(line.lstrip("#").strip().removesuffix("\\").strip() for line in head.splitlines())
    path = file.relative_to(REPOSITORY).as_posix()
    place = file.parent.name.replace("-", " ")
    assert place in joined and "Paper" in joined
    assert f"rlvr plan -c {path}" in joined
    train = re.search(rf"rlvr train -c {re.escape(path)} (?:--data-dir DATA )?run\.name=(\S+)", joined)
    assert train is not None
    assert re.search(rf"rlvr (eval|report) '?{re.escape(train[1])}(\s|$)", joined)


def test_the_commands_name_a_folder_where_problems_are_on_no_hub() -> None:
    for file in ROWS:
        config, head = loaded(file), read_text(file).partition("\ninclude:")[0].replace("\\\n#", "")
        train, evaluation = (re.search(rf"^# +rlvr {command}.*$", head, re.MULTILINE) for command in ("train", "eval"))
        assert train is not None and ("--data-dir DATA" in train[0]) == waits_for_a_folder(config.task), file
        if evaluation is not None:
            # A run's own folder is in its configuration; that of other sets is not.
            sets = (data_sets()[choice.benchmark] for choice in chosen(config.eval.benchmark)[0])
            assert ("--data-dir DATA" in evaluation[0]) == any(one.hub is None for one in sets), file


def test_no_two_rows_are_the_same_run() -> None:
    """A curve that is a row of another table is that row's file: its run serves both."""
    found: dict[str, str] = {}
    for file in ROWS:
        assert found.setdefault(identity(loaded(file)), name(file)) == name(file)


@pytest.mark.parametrize("processes", [1, 4, 8])
@pytest.mark.parametrize("paper", PAPERS)
def test_they_divide_among_gpus(paper: str, processes: int) -> None:
    sharded = [] if processes > 1 else ["launch.deepspeed=null", "launch.fsdp=false"]
    for file in rows(paper):
        if batch_arithmetic(loaded(file)).step_batch % processes == 0:
            overrides = [f"launch.processes={processes}", "update.micro_batch=null", *sharded]
            assert batch_arithmetic(load_config([file], overrides=overrides)).processes == processes


@pytest.mark.parametrize("paper", PAPERS)
def test_its_page_and_the_overview_count_its_rows(paper: str) -> None:
    pages = REPOSITORY / "docs" / "papers"
    overview = re.search(rf"\]\({paper}\.md\) \| (\d+) \|", (pages / "README.md").read_text(encoding="utf-8"))
    assert overview is not None and int(overview[1]) == len(rows(paper))
    text = (pages / f"{paper}.md").read_text(encoding="utf-8")
    said = re.search(rf"`configs/papers/{paper}/`, (\d+) rows", " ".join(text.split()))
    assert said is not None and int(said[1]) == len(rows(paper))


def configs(paper: str) -> Iterator[Config]:
    return map(loaded, rows(paper))


@pytest.mark.parametrize(("size", "printed"), [("1.5b", 1e-6), ("7b", 4.63e-7), ("14b", 3.27e-7)])
def test_the_rates_of_dgpo_are_the_printed_ones(size: str, printed: float) -> None:
    rates = {one.optimizer.peak_lr(lambda: pytest.fail("counted")) for one in configs("dgpo") if size in one.model.name}
    assert list(rates) == [pytest.approx(printed, abs=0.5e-9)]


@pytest.mark.parametrize("paper", ["acpo", "ar_lopti", "landscape"])
def test_the_papers_that_train_with_verl_have_its_optimizer(paper: str) -> None:
    """Its AdamW: betas of 0.9 and 0.999, a weight decay of 0.01 where the paper does not say that there is none."""
    optimizers = [config.optimizer for config in configs(paper)]
    assert {one.betas for one in optimizers} == {(0.9, 0.999)}
    assert {one.weight_decay for one in optimizers} == {0.0 if paper == "landscape" else 0.01}


def test_gtpo_trains_adapters_of_scale_one_on_four_bits() -> None:
    for config in configs("gtpo"):
        adapter = adapter_of(config)
        assert adapter is not None and adapter.quantized and len(adapter.targets or ()) == 7
        assert config.model.adapter.kind == "qlora" and config.model.adapter.alpha == config.model.adapter.rank


def test_ar_lopti_saves_every_twenty_rollouts_and_averages_three() -> None:
    for config in configs("ar_lopti"):
        assert config.checkpoint.every == 20 * batch_arithmetic(config).steps_per_rollout
        assert config.checkpoint.keep == 3


@pytest.mark.parametrize("paper", ["acpo", "dgpo"])
def test_a_batch_of_512_counts_prompts_as_verl_does(paper: str) -> None:
    """ORZ's is the released script's."""
    batches = {config.rollout.prompts for file in rows(paper) if "/orz-" not in name(file) for config in [loaded(file)]}
    assert batches == {512}


def test_countdown_pays_1_or_0() -> None:
    found = [(name(file), loaded(file).task) for file in ROWS]
    rewards = {file: task.reward for file, task in found if isinstance(task, Countdown)}
    assert len(rewards) == 22 and set(rewards.values()) == {"zero_one"}


def test_ar_lopti_evaluates_for_its_test_curves() -> None:
    """Table 6 has seconds, and no curves."""
    for config in (loaded(file) for file in rows("ar_lopti") if file.parent.name != "table-6"):
        assert config.eval.every == 20 and config.eval.greedy and config.eval.samples == 0
        assert config.eval.split == ("test" if config.task.name == "kk" else "dev")


def test_alpha_is_that_of_table_3() -> None:
    for file in rows("ar_lopti"):
        method = loaded(file).method
        assert isinstance(method, Method)
        if "reweight" in file.stem and "alpha" not in file.stem:
            expected = 0.3 if loaded(file).task.name == "kk" and "reinforce-pp" not in file.stem else 0.1
            assert dict(method.shaping)["reweight"].alpha == expected, file


def test_acpo_and_cispo_have_one_reading() -> None:
    """The presets', by which the ledger goes too."""
    for config in configs("acpo"):
        assert isinstance(config.method, Method)
        preset = load_config(method=config.method.name).method
        assert isinstance(preset, Method)
        if config.method.name != "dapo":  # clip-higher is the released script's
            assert config.method.policy_loss == preset.policy_loss
    ledger = [arm.set for arm in read_book().arms.values() if arm.set.get("method") in ("acpo", "cispo")]
    assert ledger and not any(key.startswith("method.policy_loss") for arm in ledger for key in arm)


def test_the_landscape_runs_are_on_policy_unless_they_say_so() -> None:
    """Without clipping, in the name, is without importance sampling too: off-policy, with a weight of 1."""
    for file in rows("landscape"):
        config = loaded(file)
        assert isinstance(config.method, Method)
        assert (config.update.mini_batches == 4) == ("off-policy" in file.stem), file
        if "off-policy" in file.stem:
            assert config.method.policy_loss.kind == ("no_is" if "no-clip" in file.stem else "ppo_clip"), file
