"""The package of `models.py`, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import CACHE, compiled_once

MADE = CACHE.parent / "symptom"


@pytest.fixture(scope="session")
def scaled() -> Path:
    """scaled.pt2; its inputs and what is right lie next to it (see `models.py`)."""
    return compiled_once(MADE / "scaled.pt2", "tests.symptom.models")
