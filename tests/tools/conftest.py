"""Fixtures of the steps: a package compiled with flags, shared since each compile takes long."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.model import ExportedWorkload
from mcp_server.runtime.context import Context
from mcp_server.tools.compile_with_flags import Compiled, compile_with_flags
from tests.conftest import ZooPackage

RANKER_FLAGS: dict[str, object] = {
    "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER": 3,
    "INDUCTOR_PROVENANCE": 1,
    "aot_inductor.check_lowerbound": False,
}


@pytest.fixture(scope="session")
def flagged_ranker(zoo: ZooPackage, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """The ranker compiled with flags of both kinds: variables and configuration."""
    context = Context(directory=tmp_path_factory.mktemp("flagged"), python=Path(sys.executable))
    workload = ExportedWorkload(exported=zoo("ranker").with_name("ranker.exported.pt2"))
    return anyio.run(partial(compile_with_flags, context, workload, RANKER_FLAGS))
