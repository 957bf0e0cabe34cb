"""Fixtures of the GPU tests. Tools run in parallel, so that a session takes a few minutes.

AOTI_DEBUG_CUDA_ZOO names a directory for the compiled packages, kept between sessions.
AOTI_DEBUG_GPU_RECORD names a directory for every tool's result as JSON, and its log.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.model import Record
from mcp_server.runtime.context import Context
from tests.gpu.zoo import CudaZoo, make, plain_compiler

AT_ONCE = 6
HAS_CUDA = "import torch; raise SystemExit(not torch.cuda.is_available())"
LARGEST_LOG = 300_000  # bytes

Answers = Mapping[str, "Future[Any]"]


@pytest.fixture(scope="session")
def cuda_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compiler that links libstdc++ dynamically, jobs that share the GPU, and caches of this session."""
    asked = [sys.executable, "-W", "ignore", "-c", HAS_CUDA]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("no torch with a CUDA device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", os.environ.get("CXX") or plain_compiler())
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
        patch.setenv("AOTI_DEBUG_SHARE_GPUS", "1")
        patch.setenv("AOTI_DEBUG_CACHE", str(tmp_path_factory.mktemp("instrumented")))
        yield


@pytest.fixture(scope="session")
def cuda_zoo(cuda_environment: None, tmp_path_factory: pytest.TempPathFactory) -> CudaZoo:
    given = os.environ.get("AOTI_DEBUG_CUDA_ZOO")
    return make(Path(given) if given else tmp_path_factory.mktemp("cuda-zoo"))


@pytest.fixture(scope="session")
def answers(cuda_zoo: CudaZoo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """All calls by name, started. `result()` waits for one."""
    from tests.gpu.calls import CALLS

    def answer(name: str) -> Record:
        context = Context(tmp_path_factory.mktemp(name), Path(sys.executable))
        result = anyio.run(CALLS[name], context, cuda_zoo)
        _record(name, result, context.directory)
        return result

    pool = ThreadPoolExecutor(AT_ONCE)
    yield {name: pool.submit(answer, name) for name in CALLS}
    pool.shutdown(cancel_futures=True)


def _record(name: str, result: Record, directory: Path) -> None:
    """Keep a result, and the output of all its children."""
    asked = os.environ.get("AOTI_DEBUG_GPU_RECORD")
    if not asked:
        return
    kept = Path(asked)
    kept.mkdir(parents=True, exist_ok=True)
    (kept / f"{name}.json").write_text(result.model_dump_json(indent=1, exclude_defaults=True))
    for log in sorted(directory.glob("*/output.log")):
        if 0 < log.stat().st_size < LARGEST_LOG:
            shutil.copyfile(log, kept / f"{name}.{log.parent.name}.log")


@pytest.fixture
def cuda_context(cuda_environment: None, tmp_path: Path) -> Context:
    return Context(tmp_path, Path(sys.executable))
