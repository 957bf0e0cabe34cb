"""Signals that end a process: inside a call, outside of all calls, or of a stack that is too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import illegal_memory_access
from mcp_server.diagnosis.observe.launches import LocateFault
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.jobs.command import Finished
from mcp_server.logs.captured import CapturedCall
from mcp_server.logs.log import read_log
from mcp_server.tools.requests import _step
from tests.conftest import ZooPackage
from tests.diagnosis.support import LOG, package_case

# What the interpreter prints when a signal ends it (CPython 3.11, Python/pylifecycle.c and traceback.c).
STACK = """Fatal Python error: Segmentation fault

Current thread 0x00007f18fadc2b80 (most recent call first):
  File "/srv/ops.py", line 7 in {function}
  File "/usr/lib/python3/site-packages/torch/_library/custom_ops.py", line 502 in wrapped_fn
"""


def died(package: Path, signal: str, function: str) -> DiagnosisState:
    """A call that this signal ended while the interpreter was inside that function."""
    case = package_case(package)
    ended = Finished("signal", None, signal, 1.0, LOG, LOG, LOG)
    text = STACK.format(function=function).splitlines()
    case.runs["plain"] = RunSeen("plain", ended, read_log(text))
    return case


@pytest.mark.parametrize(
    ("signal", "category"), [("SIGSEGV", "illegal_memory_access"), ("SIGABRT", "custom_op")]
)
def test_the_operator_in_which_the_process_died(zoo: ZooPackage, signal: str, category: str) -> None:
    """The operator whose function was running is guilty at its line, and no checker is asked."""
    case = died(zoo("plugin"), signal, "halve_rows")
    (found,) = illegal_memory_access.detect_died_inside(case)
    assert (found.category, found.guilty.kind, found.guilty.name) == (category, "op", "aotizoo::halve_rows")
    assert [line.line for line in found.guilty.model_locations] == [7]
    assert LocateFault().gain(case, []) == 0


def test_a_signal_outside_of_operators_is_looked_for(zoo: ZooPackage) -> None:
    """Where no operator was running, a memory checker is to find the access."""
    case = died(zoo("plugin"), "SIGSEGV", "main")
    assert list(illegal_memory_access.detect_died_inside(case)) == [] and LocateFault().gain(case, []) == 1


SMALL = 256 << 10


@pytest.mark.parametrize(("size", "kept"), [(SMALL, True), (8 << 20, False), (None, False)])
def test_a_small_stack_is_replayed(tmp_path: Path, size: int | None, kept: bool) -> None:
    """A call that did not come back is made again on a stack of its size, where that is less than usual."""
    call = CapturedCall(pid=1, n=1, number=1, load=0, thread=1, file=tmp_path, stack_bytes=size)
    assert ("stack" in _step(call)) is kept
    assert "stack" not in _step(call.model_copy(update={"outcome": "ok"}))
