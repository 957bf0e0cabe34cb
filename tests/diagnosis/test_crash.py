"""Signals that end a process: inside a call, outside of all calls, or of a stack that is too small."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import environment, illegal_memory_access
from mcp_server.diagnosis.causes.environment import detect_crash_outside
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.launches import LocateFault
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.jobs.command import Finished
from mcp_server.logs.captured import CapturedCall
from mcp_server.logs.log import read_log
from mcp_server.model import ScriptWorkload
from mcp_server.tools.requests import _step
from mcp_server.worker.protocol import Step
from tests.conftest import ZooPackage
from tests.diagnosis.support import LOG, capture, package_case, phase, run, trial

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


UNMAPPED = """
import ctypes, mmap
memory = mmap.mmap(-1, 4096)
area = (ctypes.c_char * 4096).from_buffer(memory)
address = ctypes.addressof(area)
del area
memory.close()
def first():
    return ctypes.string_at(address, 8)
first()
"""

CAPSULE = """
import ctypes
make = ctypes.pythonapi.PyCapsule_New
make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
model = make(1, None, 8)  # an object whose destructor is at address 8
del model
"""


def crashed(tmp_path: Path, code: str = UNMAPPED, **of_call: Any) -> DiagnosisState:
    """What the crash of a real program printed, after a call that came back unless it says otherwise."""
    script = tmp_path / "serve.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    ended = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
    assert ended.returncode < 0
    case = DiagnosisState(ScriptWorkload(script=script))
    case.capture = capture(calls=[phase(3, load=1, thread=1, **of_call)])
    seen = run("script", ended.stderr, ending="signal")
    case.runs["script"] = replace(seen, finished=replace(seen.finished, signal="SIGSEGV"))
    case.runs["plain"] = run("plain")
    return case


def test_the_line_of_a_crash_between_calls_is_named(tmp_path: Path) -> None:
    """The stack of the signal has the line, the journal has no open call; a late damage is not ruled out."""
    case = crashed(tmp_path)
    (found,) = detect_crash_outside(case)
    assert (found.category, confidence(found, case)) == ("script_error", "likely")
    assert found.guilty.model_locations[0].code == "return ctypes.string_at(address, 8)"
    assert "earlier call" in found.summary


def test_nothing_is_claimed_of_a_crash_in_a_call(tmp_path: Path) -> None:
    """Where a call was open, the last call dies by itself, or the C library found damage, which is late."""
    assert not list(detect_crash_outside(crashed(tmp_path, outcome="unfinished")))
    case = crashed(tmp_path)
    script = case.runs["script"]
    case.runs["script"] = replace(script, finished=replace(script.finished, signal="SIGABRT"))
    assert not list(detect_crash_outside(case))
    case.runs |= {"script": script, "plain": run("plain", "Segmentation fault", ending="signal")}
    assert not list(detect_crash_outside(case))


@pytest.mark.parametrize("file", ["torch/_inductor/package/package.py", "torch/_library/custom_ops.py"])
def test_a_frame_of_aotinductor_or_of_an_operator_is_not_the_programs(tmp_path: Path, file: str) -> None:
    """The same crash with such a file on the stack has other suspects."""
    case = crashed(tmp_path)
    text = f'Current thread 0x7f (most recent call first):\n  File "/v/{file}", line 9 in f\n'
    text += f'  File "{tmp_path}/serve.py", line 10 in <module>\n'
    seen = run("script", text, ending="signal")
    case.runs["script"] = replace(seen, finished=replace(seen.finished, signal="SIGSEGV"))
    assert not list(detect_crash_outside(case))


def test_a_line_that_releases_a_package_may_run_the_packages_own_code(tmp_path: Path) -> None:
    """What its destructor does is not on the Python stack: such a line is no more than possible."""
    case = crashed(tmp_path, CAPSULE)
    (found,) = detect_crash_outside(case)
    assert found.guilty.model_locations[0].code == "del model" and confidence(found, case) == "possible"


SMALL = 256 << 10


def overflowed(**step: Any) -> DiagnosisState:
    """A call that died of SIGSEGV when it was made again."""
    case = DiagnosisState(None)
    case.call = CallSpec("replay", {"steps": [cast(Step, {"do": "call", **step})]}, Path("m.pt2"))
    seen = run("plain", ending="signal")
    case.runs["plain"] = replace(seen, finished=replace(seen.finished, signal="SIGSEGV"))
    return case


def test_a_large_stack_decides() -> None:
    """It is possible until the call passes on a large stack, and refuted when it does not."""
    assert list(environment.detect_limit(overflowed())) == [], "a stack as large as usual"
    case = overflowed(stack=SMALL)
    (found,) = environment.detect_limit(case)
    assert found.category == "environment" and confidence(found, case) == "possible"
    assert found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    (found,) = environment.detect_limit(case)
    assert confidence(found, case) == "proven" and str(SMALL) in found.summary
    assert found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    assert ranked(environment.detect_limit(case), case) == []


@pytest.mark.parametrize(("size", "kept"), [(SMALL, True), (8 << 20, False), (None, False)])
def test_a_small_stack_is_replayed(tmp_path: Path, size: int | None, kept: bool) -> None:
    """A call that did not come back is made again on a stack of its size, where that is less than usual."""
    call = CapturedCall(pid=1, n=1, number=1, load=0, thread=1, file=tmp_path, stack_bytes=size)
    assert ("stack" in _step(call)) is kept
    assert "stack" not in _step(call.model_copy(update={"outcome": "ok"}))
