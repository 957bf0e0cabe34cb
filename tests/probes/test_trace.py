"""Launches told one by one, and the sanitised build of their kernels, which sees what asserts do not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.model import PackageWorkload, TensorSpec
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.tools.locate_fault import locate_fault
from mcp_server.tools.trace_launches import Trace, trace_launches
from tests.conftest import ZooPackage
from tests.probes.conftest import Rebuild
from tests.zoo.names import THOROUGH, thorough

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


def run(context: Context, zoo: ZooPackage, rebuild: Rebuild, kind: str, options: Options) -> WorkerRun:
    rebuilt = rebuild("ranker", options)
    request = {"package": rebuilt.package, "inputs": zoo("ranker").with_name(f"ranker.{kind}.pt")}
    env = {"LD_PRELOAD": " ".join(rebuilt.preload), "ASAN_OPTIONS": "detect_leaks=0"}
    return anyio.run(lambda: context.worker("run", request, env=env))


BARE = Options(sanitize="address", index_asserts=False)


@thorough
def test_an_overrun_of_one_weight_into_the_next_is_seen(
    zoo: ZooPackage, rebuild: Rebuild, context: Context
) -> None:
    """Row 32 of a 32-row embedding lies inside the blob of all weights: AddressSanitizer sees it only because
    each weight has an allocation of its own. The report names kernel.cpp and its line."""
    done = run(context, zoo, rebuild, "bad-index", BARE)
    report = done.finished.stderr.read_text()
    assert not done.finished.ok
    assert "AddressSanitizer: heap-buffer-overflow" in report
    frame = next(line for line in report.splitlines() if " in cpp_fused_embedding_0 " in line)
    assert ".kernel.cpp:" in frame


@pytest.mark.skipif(not THOROUGH, reason="one more rebuild of the kernels")
def test_undefined_behaviour_is_put_on_its_launch_and_input(
    zoo: ZooPackage, context: Context, cache: Cache
) -> None:
    """An index of 2**60 overflows the product with the row's size before any memory is touched."""
    huge = TensorSpec(shape=[8, 6], dtype="int64", low=2**60, high=2**60)
    workload = PackageWorkload(package=zoo("ranker"), inputs=[huge])
    found = anyio.run(partial(locate_fault, context, workload, tool="ubsan", plain_runs=0, cache=cache))
    assert found.fault is not None and found.fault.kernel == "cpp_fused_embedding_0"
    assert "signed integer overflow" in found.fault.text
    assert found.fault.launch is not None and found.fault.launch.index == 0


def test_a_good_run_stays_clean(zoo: ZooPackage, rebuild: Rebuild, context: Context) -> None:
    """No report, and the outputs' statistics are told as usual."""
    done = run(context, zoo, rebuild, "inputs", BARE)
    assert done.finished.ok, done.finished.stderr.read_text()[:2000]
    assert "AddressSanitizer" not in done.finished.stderr.read_text()
