"""The package of `models.py`, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import CACHE, compiled_once

MADE = CACHE.parent / "interventions"


@pytest.fixture(scope="session")
def masked() -> Path:
    """masked.pt2; its inputs lie next to it (see `models.py`)."""
    return compiled_once(MADE / "masked.pt2", "tests.interventions.models")
