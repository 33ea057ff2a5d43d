"""The recipes of the papers: each can be planned and does its paper's arithmetic; what is reported names its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

from rlvr_cli.config.checks import check_training
from rlvr_cli.config.schema import Config
from rlvr_cli.methods.method import Method
from rlvr_cli.planning.plan import plan_resources
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.naming import config_digest
from rlvr_cli.tasks.sets import data_sets, needs_folder
from tests.recipes import PAPERS, loaded, recipes, tables

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


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVR_DATA_DIR", raising=False)


@pytest.mark.parametrize("paper", PAPERS)
def test_each_can_be_planned_and_fits_its_gpus(paper: str) -> None:
    """As `rlvr plan` does: problems, arithmetic, memory; a set that is not on the hub waits for its folder."""
    for name in recipes(paper):
        config = loaded(name)
        if not needs_folder(config.task):
            check_training(config)
        # A value head is not divided by ZeRO.
        needs = plan_resources(config, gpu_memory="180GiB" if config.method.needs_values else "80GiB")
        assert needs["memory"]["fits"] == "yes", name


@pytest.mark.parametrize("paper", PAPERS)
def test_the_arithmetic_of_the_paper(paper: str) -> None:
    for name in recipes(paper):
        config = loaded(name)
        batch = config.batch
        expected = next(numbers for pattern, numbers in EXPECTED.items() if fnmatchcase(name, pattern))
        updates = batch.steps_per_rollout // batch.passes
        assert (batch.completions, updates, batch.step_batch, config.rollout.max_new_tokens) == expected, name
        assert batch.completions == batch.step_batch * updates, name


@pytest.mark.parametrize("paper", PAPERS)
def test_a_table_is_a_sweep(paper: str) -> None:
    """Those whose problems are all on a hub, as `rlvr sweep FILE --seeds 3` would train and evaluate them."""
    for table, file in tables(paper).items():
        names = [name for name in recipes(paper) if name.startswith(f"{table}/")]
        if any(needs_folder(loaded(name).task) for name in names):
            continue
        trials = expand(file, seeds="3").trials
        assert [f"{table}/{trial.row}" for trial in trials] == [name for name in names for _ in range(3)]
        assert file.name == table.replace("_", "-").replace("/", "-")


# A metric, of a benchmark, of puzzles of so many people, or on the average.
COLUMN = re.compile(r"(?:(best )?(accuracy|avg@\d+|pass@\d+|maj@\d+) ?)?((\d) people|average|\w+)?")


def test_what_is_reported_is_of_known_benchmarks_and_adds_up() -> None:
    """An average is that of its row, as far as the paper's rounding goes; seconds come to their sum."""
    for table, file in tables().items():
        for one in file.spec.reported:
            for column in one.columns:
                found = COLUMN.fullmatch(column)
                assert found is not None, f"{table}: {column}"
                if one.unit == "%" and found[3] not in (None, "average"):
                    assert found[3] in data_sets() or found[3].replace("_", "-") in data_sets(), f"{table}: {column}"
            last, most = one.columns[-1], {"%": 100.0, "share": 1.0, "seconds": 1000.0}[one.unit]
            for name, row in one.rows.items():
                values = [value for value in row if value is not None]
                assert len(values) == len(one.columns) and all(0 <= value <= most for value in values), name
                if last.endswith("average"):
                    assert values[-1] == pytest.approx(sum(values[:-1]) / len(values[:-1]), abs=most / 100), name
                elif last == "together":
                    assert values[-1] == pytest.approx(sum(values[:-1]), abs=0.2), name


def test_no_two_rows_are_the_same_run() -> None:
    """A curve that is a row of another table is that row's file: its run serves both."""
    found: dict[str, str] = {}
    for name in recipes():
        assert found.setdefault(config_digest(loaded(name)), name) == name


def configs(paper: str) -> Iterator[Config]:
    return map(loaded, recipes(paper))


@pytest.mark.parametrize("paper", ["acpo", "ar_lopti", "landscape"])
def test_the_papers_that_train_with_verl_have_its_optimizer(paper: str) -> None:
    """Its AdamW: betas of 0.9 and 0.999, a weight decay of 0.01 where the paper does not say that there is none."""
    optimizers = [config.optimizer for config in configs(paper)]
    assert {one.betas for one in optimizers} == {(0.9, 0.999)}
    assert {one.weight_decay for one in optimizers} == {0.0 if paper == "landscape" else 0.01}


@pytest.mark.parametrize("paper", ["acpo", "dgpo"])
def test_a_batch_of_512_counts_prompts_as_verl_does(paper: str) -> None:
    """ORZ's is the released script's."""
    batches = {loaded(name).rollout.prompts for name in recipes(paper) if "/orz-" not in name}
    assert batches == {512}


def test_the_landscape_runs_are_on_policy_unless_they_say_so() -> None:
    """Without clipping, in the name, is without importance sampling too: off-policy, with a weight of 1."""
    for name in recipes("landscape"):
        config = loaded(name)
        assert isinstance(config.method, Method)
        assert (config.update.mini_batches == 4) == ("off-policy" in name), name
        if "off-policy" in name:
            assert config.method.policy_loss.kind == ("no_is" if "no-clip" in name else "ppo_clip"), name
