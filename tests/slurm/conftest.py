"""A cluster for all tests here, and the environment in which srun finds it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import DAEMONS, Cluster, installed, running


@pytest.fixture(scope="session")
def started_cluster() -> Iterator[Cluster]:
    """Skips where Slurm or its daemons are not installed. Its folder has a short path, for the sockets."""
    missing = [name for name in (*DAEMONS, "srun") if installed(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: slurm-wlm)")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    try:
        with running(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def cluster(started_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster without any job, before the test and after it."""
    monkeypatch.setenv("SLURM_CONF", str(started_cluster.config))
    yield started_cluster
    started_cluster.clear()
