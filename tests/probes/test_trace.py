"""`trace_launches` tells every launch, the model's line, and where a run ended."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from mcp_server.model import PackageWorkload
from mcp_server.probes.cache import Cache
from mcp_server.tools.context import Context
from mcp_server.tools.trace_launches import Trace, trace_launches
from tests.conftest import ZooPackage
from tests.probes.conftest import Rebuild

pytestmark = pytest.mark.slow


def trace(context: Context, cache: Cache, package: Path, inputs: Path | None, **options: object) -> Trace:
    workload = PackageWorkload(package=package, inputs=inputs)
    return anyio.run(lambda: trace_launches(context, workload, cache=cache, **options))  # type: ignore[arg-type]


def test_a_good_run_is_traced_whole(
    zoo: ZooPackage, rebuild: Rebuild, context: Context, cache: Cache
) -> None:
    """Two calls of five launches, with arguments, wrapper lines and the model's own lines."""
    rebuild("ranker")
    package = zoo("ranker")
    seen = trace(context, cache, package, package.with_name("ranker.inputs.pt"), calls=2)
    assert (seen.how, seen.total, seen.calls, seen.cached) == ("returned", 10, 2, True)
    first = seen.launches[0]
    assert first.kernel == "cpp_fused_embedding_0" and first.arguments[-1] == "ks0 = 8"
    assert first.arguments[1].startswith("table_weight in_ptr1 read float32 (32, 16) stride (16, 1) at 0x")
    assert [place.code for place in first.model] == ["rows = self.table(ids)"]
    table = next(a for a in seen.artifacts if a.path.name == "trace.json")
    assert [row["launch"] for row in json.loads(table.path.read_text())] == [0, 1, 2, 3, 4] * 2


def test_a_failing_run_names_its_launch_and_its_error(
    zoo: ZooPackage, rebuild: Rebuild, context: Context, cache: Cache
) -> None:
    """A bad index: the launch, its line in the model, and the root error of the process."""
    rebuild("ranker")
    package = zoo("ranker")
    seen = trace(context, cache, package, package.with_name("ranker.bad-index.pt"))
    assert seen.how in ("threw", "died")
    assert seen.last is not None and seen.last.state == "open" and seen.last.launch == 0
    assert seen.failure is not None and "index out of bounds: 0 <= " in seen.failure.text


def test_without_inputs_the_package_is_handed_back_for_another_host(
    zoo: ZooPackage, rebuild: Rebuild, context: Context, cache: Cache
) -> None:
    """Nothing runs; the environment makes any host, Python or not, write the journal."""
    rebuild("ranker")
    seen = trace(context, cache, zoo("ranker"), None)
    assert seen.how == "not_run" and seen.package.exists() and seen.total == 0
    assert set(seen.environment) == {"AOTI_DEBUG_JOURNAL", "AOTI_DEBUG_SYNC"}
