"""The recorder in a process that uses a GPU: the stream copies integers, and no call waits for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.recorder.ring import read_recording
from tests.gpu.zoo import CudaZoo

pytestmark = pytest.mark.gpu
PROGRAM = """
import statistics, sys, time, torch
from pathlib import Path
how, package, good, bad = sys.argv[1:]
good, bad = ([leaf.cuda() for leaf in torch.load(file)] for file in (good, bad))
model = torch._C._aoti.AOTIModelPackageLoader(package, "model", False, 1, -1)
for _ in range(20):
    model.run(list(good))
torch.cuda.synchronize()
times = []
for _ in range(300):
    start = time.perf_counter()
    model.run(list(good))
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
print(statistics.median(times))
if how == "bad":
    model.run(list(bad))
    torch.cuda.synchronize()
"""


def tool(*words: object) -> dict[str, Any]:
    argv = [sys.executable, "-c", "from mcp_server.cli.main import main; main()", str(words[0]), "--json"]
    done = subprocess.run(
        [*argv, *map(str, words[1:])], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A folder in memory: CUDA pins no memory of a file on a disk (seen on an H100, driver of CUDA 13.0)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_call_that_a_device_assert_ended_is_taken_from_the_recording(
    cuda_zoo: CudaZoo, tmp_path: Path, in_memory: Path
) -> None:
    """The host died; the index that was out of its bound is named, from what the stream had copied before."""
    call = cuda_zoo.call("ranker", "bad-index")
    recorded, kept = tmp_path / "recorded.pt2", in_memory
    tool("record", call.package, "--out", recorded, "--directory", kept)
    files = [str(cuda_zoo.inputs("ranker", name)) for name in ("inputs", "bad-index")]
    argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, "bad", str(recorded), *files]
    assert subprocess.run(argv, capture_output=True, timeout=300, check=False).returncode != 0
    (ring,) = kept.glob("*.ring")
    last = read_recording(ring).calls[-1]
    assert last.on_device and last.inputs[0].bytes is not None, "the index was not kept"
    verdict = tool("diagnose", call.package, "--recording", kept)
    assert verdict["category"] == "index_out_of_bounds", verdict["summary"]
    assert verdict["confidence"] == "proven"


def test_a_call_takes_as_long_as_without_the_recorder(
    cuda_zoo: CudaZoo, tmp_path: Path, in_memory: Path
) -> None:
    """Medians of 300 calls, process by process: within a tenth in one of three rounds."""
    call = cuda_zoo.call("ranker", "inputs")
    recorded = tmp_path / "recorded.pt2"
    tool("record", call.package, "--out", recorded, "--directory", in_memory)
    files = [str(cuda_zoo.inputs("ranker", "inputs"))] * 2
    ratios = []
    for _ in range(3):
        medians = []
        for package in (call.package, recorded, recorded, call.package):
            argv = [sys.executable, "-W", "ignore", "-c", PROGRAM, "good", str(package), *files]
            done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True)
            medians.append(float(done.stdout.split()[-1]))
        ratios.append((medians[1] + medians[2]) / (medians[0] + medians[3]))
    assert min(ratios) < 1.1, ratios
