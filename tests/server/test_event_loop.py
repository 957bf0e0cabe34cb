"""The event loop never reads a package: it answers all other requests meanwhile."""

from __future__ import annotations

import asyncio
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.jobs.manager import JobState, Manager
from mcp_server.jobs.store import Store
from mcp_server.operations.arguments import validated
from mcp_server.operations.table import OPERATIONS
from mcp_server.operations.work import work_of
from mcp_server.package import dataflow, kernels, wrapper
from tests.conftest import ZooPackage

GOOD = "ranker.inputs.pt"
BAD = "ranker.bad-index.pt"
ASSERTION = "index out of bounds: 0 <= tmp4 < ks1"

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("diagnose", {"package": "ranker.pt2", "inputs": BAD}),
    ("diagnose", {"package": "ranker.pt2", "inputs": GOOD}),
    ("diagnose", {"exported": "ranker.exported.pt2", "inputs": BAD}),
    ("diagnose", {"package": "logarithm.pt2", "inputs": "logarithm.bad-nan.pt"}),
    ("explain_error", {"text": ASSERTION, "package": "ranker.pt2"}),
    ("check_devices", {"package": "ranker.pt2", "inputs": GOOD}),
    ("inspect_package", {"package": "ranker.pt2", "assertion": ASSERTION}),
    ("run_deterministic", {"package": "ranker.pt2", "inputs": BAD, "repeats": 1}),
    ("dump_kernel_io", {"package": "ranker.pt2", "inputs": GOOD}),
    ("dump_kernel_io", {"exported": "ranker.exported.pt2", "inputs": GOOD, "backend": "printer"}),
    ("locate_fault", {"package": "ranker.pt2", "inputs": BAD}),
    ("trace_launches", {"package": "ranker.pt2", "inputs": GOOD}),
    ("try_fix", {"package": "ranker.pt2", "inputs": BAD, "changes": ["0: clamp 0 9"]}),
    ("compare_with_eager", {"package": "ranker.pt2", "exported": "ranker.exported.pt2", "inputs": GOOD}),
    ("compile_with_flags", {"exported": "ranker.exported.pt2"}),
    ("reduce", {"exported": "ranker.exported.pt2", "inputs": GOOD, "budget_s": 10}),
    ("reduce", {"package": "ranker.pt2", "inputs": GOOD, "scope": "launch", "launch": 0}),
    ("bisect", {"exported": "ranker.exported.pt2", "inputs": GOOD, "budget_s": 10}),
]


def test_every_operation_is_tried() -> None:
    """The table below leaves no operation out."""
    assert {name for name, _ in CALLS} == {operation.name for operation in OPERATIONS}


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stacks of what opens an archive, parses a wrapper or builds a dataflow where an event loop runs."""
    found: list[str] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if asyncio._get_running_loop() is not None:
                frames = [f for f in traceback.extract_stack() if "mcp_server" in f.filename]
                found.append(
                    " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[:-6:-1])
                )
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(zipfile.ZipFile, "__init__", watched(zipfile.ZipFile.__init__))
    monkeypatch.setattr(wrapper, "read_cpp_kernels", watched(kernels.read_cpp_kernels))
    monkeypatch.setattr(dataflow.Dataflow, "__init__", watched(dataflow.Dataflow.__init__))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments"), CALLS, ids=[f"{name}-{n}" for n, (name, _) in enumerate(CALLS)]
)
def test_no_package_is_read_on_the_event_loop(
    name: str, arguments: dict[str, Any], zoo: ZooPackage, tmp_path: Path, on_the_loop: list[str]
) -> None:
    """Whatever an operation does with a package, it does in a thread, to the end of a real call."""
    folder = zoo("ranker").parent
    zoo("logarithm")
    given = {"python": sys.executable} if name not in ("explain_error", "inspect_package") else {}
    files = {"package", "exported", "inputs"}
    given |= {key: str(folder / value) if key in files else value for key, value in arguments.items()}
    operation = next(operation for operation in OPERATIONS if operation.name == name)

    async def main() -> JobState:
        async with Manager.open(Store(tmp_path / "state")) as manager:
            job = manager.start(name, work_of(operation, validated(operation.arguments, given)))
            return await manager.wait(job.id, 240)

    state = anyio.run(main)
    assert state.state in ("finished", "failed") and "defect" not in str(state.problem), state.problem
    assert not on_the_loop, "\n".join(dict.fromkeys(on_the_loop))
