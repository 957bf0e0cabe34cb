"""The package of `models.py`, compiled once."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CACHE, ROOT, torch_environment

MADE = CACHE.parent / "symptom"


@pytest.fixture(scope="session")
def scaled() -> Path:
    """scaled.pt2; its inputs and what is right lie beside it (see `models.py`)."""
    package, source = MADE / "scaled.pt2", Path(__file__).with_name("models.py")
    MADE.mkdir(parents=True, exist_ok=True)
    with (MADE / "scaled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not package.exists() or package.stat().st_mtime < source.stat().st_mtime:
            argv = [sys.executable, "-W", "ignore", "-m", "tests.symptom.models", str(MADE)]
            done = subprocess.run(
                argv, env=torch_environment(), cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr[-4000:]
    return package
