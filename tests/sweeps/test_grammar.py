"""What any sweep file means: the product of its axes, without what it excludes, under names of their own."""

from __future__ import annotations

import json
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps.axes import combinations, merge_values, read_axes
from rlvr_cli.sweeps.expand import expand
from rlvr_cli.sweeps.spec import SweepFile, read_sweep

VALUES: dict[str, list[Any]] = {
    "optimizer.lr": [1e-5, 3e-5, 1e-4, 1e-3],
    "update.epochs": [1, 2, 3],
    "optimizer.weight_decay": [0.0, 0.1, 0.01],
    "rollout.temperature": [0.6, 0.8, 1.0],
}
LISTS = {key: st.lists(st.sampled_from(values), min_size=1, unique=True) for key, values in VALUES.items()}
GRIDS = st.fixed_dictionaries({}, optional=LISTS).filter(bool)
QUICK = settings(max_examples=25, deadline=None)
METHODS = st.lists(st.sampled_from(["grpo", "dapo", "lopti", "cispo"]), min_size=1, unique=True)
SEEDS = st.one_of(st.integers(1, 3), st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))


def read(folder: str, content: dict[str, Any]) -> SweepFile:
    path = Path(folder) / "s.yaml"
    path.write_text(json.dumps(content))
    return read_sweep(path)


def expanded(content: dict[str, Any]) -> list[dict[str, Any]]:
    """The values of each combination, in order."""
    with TemporaryDirectory() as folder:
        file = read(folder, content)
        return [merge_values(points) for points in combinations(read_axes(file), file)]


@QUICK
@given(methods=METHODS, grid=GRIDS, seeds=SEEDS)
def test_a_sweep_is_the_product_of_its_axes_the_first_slowest(
    methods: list[str], grid: dict[str, list[Any]], seeds: int | list[int]
) -> None:
    numbers = list(range(seeds)) if isinstance(seeds, int) else seeds
    keys = ["method.name", *grid, "run.seed"]
    wanted = [dict(zip(keys, values, strict=True)) for values in product(methods, *grid.values(), numbers)]
    assert expanded({"methods": methods, "grid": grid, "seeds": seeds}) == wanted


@QUICK
@given(grid=GRIDS, rows=st.integers(1, 3), data=st.data())
def test_what_is_zipped_varies_together(grid: dict[str, list[Any]], rows: int, data: st.DataObject) -> None:
    zipped = {key: data.draw(st.lists(st.sampled_from(VALUES[key]), min_size=rows, max_size=rows)) for key in grid}
    assert expanded({"zip": zipped}) == [
        dict(zip(grid, row, strict=True)) for row in zip(*zipped.values(), strict=True)
    ]
    lists = [{key: values[row] for key, values in zipped.items()} for row in range(rows)]
    assert expanded({"list": lists}) == expanded({"zip": zipped}), "as the same points written out"
    other = [[{"run.seed": 1}, {"run.seed": 2}], lists]
    assert expanded({"list": other}) == [{"run.seed": seed, **point} for seed in (1, 2) for point in lists]


@QUICK
@given(methods=METHODS, grid=GRIDS, data=st.data())
def test_an_exclusion_removes_what_it_names_and_nothing_else(
    methods: list[str], grid: dict[str, list[Any]], data: st.DataObject
) -> None:
    axes = {"method.name": methods, **grid}
    keys = data.draw(st.lists(st.sampled_from(list(axes)), min_size=1, unique=True))
    rule = {key: data.draw(st.lists(st.sampled_from(axes[key]), min_size=1, unique=True)) for key in keys}
    content = {"methods": methods, "grid": grid}
    every = expanded(content)
    wanted = [point for point in every if not all(point[key] in values for key, values in rule.items())]
    assert len(every) - len(wanted) == prod(len(rule.get(key, values)) for key, values in axes.items())
    try:
        kept = expanded({**content, "exclude": [rule]})
    except UserError as error:
        assert not wanted and "excludes all" in str(error)
    else:
        assert kept == wanted and kept


@settings(max_examples=10, deadline=None)
@given(methods=METHODS, grid=GRIDS, seeds=SEEDS)
def test_trials_have_names_and_identities_of_their_own(
    methods: list[str], grid: dict[str, list[Any]], seeds: int | list[int]
) -> None:
    number = len(methods) * prod(map(len, grid.values())) * (seeds if isinstance(seeds, int) else len(seeds))
    assume(number <= 24)
    with TemporaryDirectory() as folder:
        trials = expand(read(folder, {"methods": methods, "grid": grid, "seeds": seeds})).trials
    assert len(trials) == len({trial.name for trial in trials}) == len({trial.id for trial in trials}) == number
