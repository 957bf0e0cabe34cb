"""The packages of `models.py`, each compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CACHE, compiled_once

MADE = CACHE.parent / "wrong_launches"


@pytest.fixture(scope="session")
def wrong() -> Callable[[str], Path]:
    """NAME.pt2; NAME.exported.pt2 and NAME.inputs.pt lie next to it."""
    return lambda name: compiled_once(MADE / f"{name}.pt2", "tests.wrong_launches.models", name)
