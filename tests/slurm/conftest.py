"""The marker and the cluster of the tests that need a Slurm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import Cluster, missing


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slurm: needs Debian's slurm-wlm (docs/slurm.md); `make test-slurm` runs it")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A private Slurm; tests that need it are skipped where it is not installed."""
    if lacking := missing():
        pytest.skip(f"{', '.join(lacking)} not installed; docs/slurm.md says how")
    with Cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running
