"""The tests of the jobs run on asyncio, the event loop of the server."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
