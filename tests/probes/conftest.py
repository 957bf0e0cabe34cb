"""Fixtures: zoo packages rebuilt with probes, once per session and cached between sessions."""

import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context
from tests.conftest import Zoo
from tools.made import MADE

Rebuild = Callable[..., Instrumented]
CACHE = MADE / "instrumented"


@pytest.fixture(scope="session")
def cache() -> Cache:
    return Cache(CACHE)


@pytest.fixture(scope="session")
def rebuild(zoo: Zoo, cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Rebuild:
    """`rebuild(name, options)`, which gives the instrumented package of a zoo model."""

    def make(name: str, options: Options = Options()) -> Instrumented:  # noqa: B008 - frozen
        context = Context(tmp_path_factory.mktemp("rebuild"), Path(sys.executable))

        async def run() -> Instrumented:
            return await instrument(zoo(name), options, context, cache=cache)

        return anyio.run(run)

    return make
