"""The sanitised build of the C++ kernels sees what index asserts do not."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from mcp_server.model import PackageWorkload, TensorSpec
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.tools.context import Context, WorkerRun
from mcp_server.tools.locate_fault import locate_fault
from tests.conftest import ZooPackage
from tests.probes.conftest import Rebuild
from tests.zoo.names import THOROUGH

pytestmark = pytest.mark.slow


def run(context: Context, zoo: ZooPackage, rebuild: Rebuild, kind: str, options: Options) -> WorkerRun:
    rebuilt = rebuild("ranker", options)
    request = {"package": rebuilt.package, "inputs": zoo("ranker").with_name(f"ranker.{kind}.pt")}
    env = {"LD_PRELOAD": " ".join(rebuilt.preload), "ASAN_OPTIONS": "detect_leaks=0"}
    return anyio.run(lambda: context.worker("run", request, env=env))


BARE = Options(sanitize="address", index_asserts=False)


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
