"""What each worker has to itself."""

from __future__ import annotations

import pytest

from rlvr_cli.core.errors import UserError
from rlvr_cli.sweeps import slots as module
from rlvr_cli.sweeps.slots import Slot, allocate_slots


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six cores, four GPUs."""
    monkeypatch.setattr(module, "_available_cores", lambda: [0, 1, 4, 5, 6, 7])
    monkeypatch.setattr(module, "count_visible_gpus", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_without_slots_everything_is_shared() -> None:
    assert allocate_slots(None, {"cores": None, "gpus": None}) == [Slot()]
    assert allocate_slots(3, {"cores": None, "gpus": None}) == [Slot()] * 3
    assert Slot().environment() == {}


def test_no_two_workers_have_the_same() -> None:
    assert allocate_slots(None, {"cores": 2, "gpus": 2}) == [Slot((0, 1), ("0", "1")), Slot((4, 5), ("2", "3"))]
    assert [slot.environment() for slot in allocate_slots(2, {"cores": None, "gpus": 0})] == [
        {"CUDA_VISIBLE_DEVICES": ""}
    ] * 2


def test_gpus_keep_the_names_that_the_environment_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6,GPU-abc,7")
    assert [slot.gpus for slot in allocate_slots(None, {"gpus": 2})] == [("5", "6"), ("GPU-abc", "7")]


@pytest.mark.parametrize(
    ("wanted", "each", "said"),
    [
        (4, {"cores": 2}, "4 workers of 2 cores each need 8, and this machine has 6. At most 3 fit"),
        (None, {"cores": 8}, "1 worker of 8 cores each need 8, and this machine has 6. At most 0 fit"),
        (3, {"gpus": 2}, "3 workers of 2 GPUs each need 6, and this machine has 4. At most 2 fit"),
    ],
)
def test_more_than_the_machine_has_is_refused(wanted: int | None, each: dict[str, int | None], said: str) -> None:
    with pytest.raises(UserError) as caught:
        allocate_slots(wanted, each)
    assert said in caught.value.problems[0]
