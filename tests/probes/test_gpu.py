"""The same on a GPU: bit-identical outputs, and a device fault put on its launch.

AOTI_DEBUG_CUDA_ZOO names a directory with packages made by `tests.zoo.build NAME DIRECTORY cuda`; without it
the few models needed are compiled here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from mcp_server.model import PackageWorkload
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context
from mcp_server.tools.trace_launches import Trace, trace_launches
from tests.conftest import ROOT, torch_environment
from tests.zoo.names import CPU_MODELS

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

USER_KERNELS = ("user_lookup", "user_shift", "user_spread")
# Compiling takes a minute a model: without packages made before, only what differs on CUDA.
COMPILED_HERE = ("ranker", "loop", "branch", "plugin", "user_lookup", "user_shift")
NAMES = (*CPU_MODELS, *USER_KERNELS) if os.environ.get("AOTI_DEBUG_CUDA_ZOO") else COMPILED_HERE
AT_ONCE = 6


def cuda_package(name: str, directory: Path) -> Path:
    """A CUDA package of the zoo: given, or compiled now."""
    given = os.environ.get("AOTI_DEBUG_CUDA_ZOO")
    if given:
        return Path(given) / f"{name}.pt2"
    argv = [sys.executable, "-W", "ignore", "-m", "tests.zoo.build", name, str(directory), "cuda"]
    done = subprocess.run(
        argv, env=torch_environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return directory / f"{name}.pt2"


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("cuda-zoo")
    return {name: cuda_package(name, directory) for name in NAMES}


def rebuilt(packages: Iterable[Path], directory: Path, cache: Cache) -> dict[str, Instrumented]:
    """All packages instrumented, several at once."""
    done: dict[str, Instrumented] = {}

    async def one(package: Path, limit: anyio.CapacityLimiter) -> None:
        async with limit:
            place = directory / package.stem
            place.mkdir()
            done[package.stem] = await instrument(
                package, Options(), Context(place, Path(sys.executable)), cache=cache
            )

    async def every() -> None:
        limit = anyio.CapacityLimiter(AT_ONCE)
        async with anyio.create_task_group() as tasks:
            for package in packages:
                tasks.start_soon(one, package, limit)

    anyio.run(every)
    return done


def traced(package: Path, inputs: str, context: Context, cache: Cache) -> Trace:
    workload = PackageWorkload(package=package, inputs=package.with_name(f"{package.stem}.{inputs}.pt"))
    return anyio.run(lambda: trace_launches(context, workload, cache=cache))


def test_cuda_models_are_the_same_programs(packages: dict[str, Path], cache: Cache, tmp_path: Path) -> None:
    """Outputs of three calls are bit-identical, and every launch has probes."""
    pairs = []
    for name, done in rebuilt(packages.values(), tmp_path, cache).items():
        assert done.skipped == (), name
        inputs = packages[name].with_name(f"{name}.inputs.pt")
        pair = {"original": packages[name], "rebuilt": done.package, "inputs": inputs, "device": "cuda"}
        pairs.append({key: str(value) for key, value in pair.items()})
        print(name, done.probed, done.seconds)
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    argv = [sys.executable, "-W", "ignore", "-m", "tests.probes.pairs", str(tmp_path / "pairs.json")]
    done_pairs = subprocess.run(
        argv, env=torch_environment(), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done_pairs.returncode == 0, done_pairs.stderr
    assert json.loads(done_pairs.stdout) == [True] * len(pairs)


FAULTS = [("user_lookup", "bad-read", "lookup_kernel_0"), ("user_shift", "bad-read", "shift_kernel_0")]


@pytest.mark.parametrize(("name", "inputs", "kernel"), FAULTS)
def test_a_device_fault_is_put_on_the_launch_that_caused_it(
    packages: dict[str, Path], context: Context, cache: Cache, name: str, inputs: str, kernel: str
) -> None:
    """Synchronous mode alone names the launch, with no NVIDIA tool. In user_shift three launches share one
    kernel, and only the last is guilty."""
    seen = traced(packages[name], inputs, context, cache)
    assert seen.how == "fault" and seen.last is not None and seen.last.kernel == kernel
    # The same bug reads as an illegal access or as a wrong address space, from run to run.
    assert seen.last.state == "fault"
    assert any(text in seen.summary for text in ("illegal memory access", "address space"))
    same = [row.launch for row in seen.launches if row.kernel == kernel]
    assert seen.last.launch == max(same)
