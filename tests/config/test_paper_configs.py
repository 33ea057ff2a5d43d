"""The configurations of the papers: each loads, says where every value is from, and does the papers' arithmetic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlvr_cli.config.batch import batch_arithmetic
from rlvr_cli.config.load import load_config
from rlvr_cli.config.yaml_reader import parse, read_text
from rlvr_cli.planning.rates import learning_rate

FOLDER = Path(__file__).parents[2] / "configs" / "papers"
# completions of a rollout, optimizer steps made of it, completions of a step, longest completion
EXPECTED = {
    "ar_lopti/kk": (512, 4, 256, 4096),
    "ar_lopti/math": (1024, 4, 512, 4096),
    "acpo/orz_near_on_policy": (1280, 2, 640, 3072),
    "acpo/orz_off_policy": (2560, 16, 160, 3072),
    "acpo/countdown": (512, 16, 32, 1024),
    "acpo/hitab": (512, 16, 32, 1024),
    "dgpo/1.5b": (512, 16, 32, 8192),
    "dgpo/7b": (512, 16, 32, 8192),
    "dgpo/14b": (512, 16, 32, 8192),
    "gtpo/gsm8k": (12, 1, 12, 1500),
    "gtpo/math": (12, 1, 12, 1500),
    "landscape/on_policy": (1024, 1, 1024, 3072),
    "landscape/off_policy": (1024, 4, 256, 3072),
}
FILES = sorted(FOLDER.rglob("*.yaml"))


def name(file: Path) -> str:
    return file.relative_to(FOLDER).with_suffix("").as_posix()


def test_every_file_is_expected() -> None:
    assert {name(file) for file in FILES} == set(EXPECTED)


@pytest.mark.parametrize("file", FILES, ids=name)
def test_the_arithmetic_of_the_paper(file: Path) -> None:
    config = load_config([file])
    batch = batch_arithmetic(config)
    found = (batch.completions, batch.steps_per_rollout, batch.step_batch, config.rollout.max_new_tokens)
    assert found == EXPECTED[name(file)]
    # Lopti's second pass makes steps, not other batches.
    assert batch.completions == batch.step_batch * batch.steps_per_rollout // batch.passes


@pytest.mark.parametrize("file", FILES, ids=name)
def test_every_value_says_where_it_is_from(file: Path) -> None:
    """A comment with a section, table or other place, or that the value is ours, behind every key with a value."""
    text = read_text(file)
    lines, document = text.splitlines(), parse(text)
    places = re.compile(
        r"#.*(section|table|appendix|equation|listing|script|released|default|ours|not printed|ends at)"
    )
    for path, line in document.lines.items():
        written = lines[line - 1]
        key = f"{path[-1]}:" if path else ""
        is_section = written.strip().endswith(":")
        if is_section or not written.strip().startswith(key) or path[-1:] == ("name",):
            continue
        assert places.search(written), f"{file}:{line}: {written}"


@pytest.mark.parametrize("processes", [1, 4, 8])
@pytest.mark.parametrize("file", FILES, ids=name)
def test_it_divides_among_gpus(file: Path, processes: int) -> None:
    if name(file).startswith("gtpo") and processes == 8:
        pytest.skip("one prompt a step: 12 completions")
    micro = ["update.micro_batch=null"] if name(file).startswith("gtpo") else []
    sharded = [] if processes > 1 else ["launch.deepspeed=null", "launch.fsdp=false"]
    config = load_config([file], overrides=[f"launch.processes={processes}", *sharded, *micro])
    assert batch_arithmetic(config).processes == processes


@pytest.mark.parametrize(("size", "printed"), [("1.5b", 1e-6), ("7b", 4.63e-7), ("14b", 3.27e-7)])
def test_the_rates_of_dgpo_are_the_printed_ones(size: str, printed: float) -> None:
    config = load_config([FOLDER / "dgpo" / f"{size}.yaml"])
    assert learning_rate(config, lambda: pytest.fail("counted")) == pytest.approx(printed, abs=0.5e-9)


def test_gtpo_trains_adapters_on_four_bits() -> None:
    from rlvr_cli.planning.setup import adapter_of

    adapter = adapter_of(load_config([FOLDER / "gtpo" / "gsm8k.yaml"]))
    assert adapter is not None
    assert (adapter.rank, adapter.quantized, len(adapter.targets or ())) == (128, True, 7)


@pytest.mark.parametrize("paper", ["acpo", "ar_lopti", "landscape"])
def test_the_papers_that_train_with_verl_have_its_optimizer(paper: str) -> None:
    """Its AdamW: betas of 0.9 and 0.999, a weight decay of 0.01 where the paper does not say that there is none."""
    for file in (FOLDER / paper).glob("*.yaml"):
        optimizer = load_config([file]).optimizer
        assert optimizer.betas == (0.9, 0.999), file
        assert optimizer.weight_decay == (0.0 if paper == "landscape" else 0.01), file


@pytest.mark.parametrize("file", sorted((FOLDER / "gtpo").glob("*.yaml")), ids=name)
def test_gtpo_scales_its_adapters_by_one(file: Path) -> None:
    adapter = load_config([file]).model.adapter
    assert adapter.kind == "qlora"
    assert adapter.alpha == adapter.rank
