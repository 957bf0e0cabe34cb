"""Runs the worker, and Python programs under the hook, as the product does."""

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import torch

from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.runtime.context import Context, WorkerRun, read_events
from mcp_server.tools.capture import Capture, capture
from mcp_server.worker import protocol
from mcp_server.worker.events import Event
from mcp_server.worker.main import OPERATIONS
from mcp_server.worker.report import Report
from tests.served import served

QUICK = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}


class Of(torch.nn.Module):  # type: ignore[misc]
    """A model without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def context_in(directory: Path) -> Context:
    """Make a context with a new directory below `directory`."""
    directory.mkdir(exist_ok=True)
    return Context(directory=Path(tempfile.mkdtemp(dir=directory)), python=Path(sys.executable))


def work(directory: Path, operation: str, request: Mapping[str, object], **options: Any) -> WorkerRun:
    """Run one operation of the worker to its end."""
    assert set(request) <= set(request_type(operation).__annotations__)
    return served(Context.worker, context_in(directory), operation, request, **{"cwd": directory, **options})


def here(directory: Path, operation: str, request: Mapping[str, object]) -> tuple[Event, ...]:
    """Run one operation in this process, and return its events."""
    report = Path(tempfile.mkdtemp(dir=directory)) / "report.jsonl"
    plain = json.loads(json.dumps(request, default=str))
    assert set(plain) <= set(request_type(operation).__annotations__)
    function_of(operation)(plain, Report(str(report)))
    return read_events(report)


def function_of(operation: str) -> Any:
    module, _, function = OPERATIONS[operation].function.rpartition(".")
    return getattr(importlib.import_module(f"mcp_server.worker.{module}"), function)


def request_type(operation: str) -> Any:
    """The protocol class that an operation's function takes."""
    annotations = list(function_of(operation).__annotations__.values())
    return getattr(protocol, annotations[0])


def saved(directory: Path, name: str, value: object) -> Path:
    path = directory / name
    torch.save(value, path)
    return path


def captured(directory: Path, code: str, *args: str, **options: Any) -> Capture:
    """Run a script with this code under the hook."""
    script = directory / "program.py"
    script.write_text(code)
    env, until_stalled = {**QUICK, **options.pop("env", {})}, options.pop("until_stalled", False)
    workload = ScriptWorkload(script=script, args=list(args), env=env, cwd=directory, **options)

    async def run() -> Capture:
        return await capture(context_in(directory / "job"), workload, until_stalled=until_stalled)

    return anyio.run(run)


def captured_command(directory: Path, argv: list[str], **options: Any) -> Capture:
    workload = CommandWorkload(argv=argv, cwd=directory, env=QUICK, timeout_s=60)

    async def run() -> Capture:
        return await capture(context_in(directory / "job"), workload, **options)

    return anyio.run(run)
