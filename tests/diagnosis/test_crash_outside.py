"""A program that dies of a signal between its calls, in a line of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes.environment import detect_crash_outside
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.model import ScriptWorkload
from tests.diagnosis.support import capture, phase, run

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
    """Neither where a call was open, nor where the last call dies by itself as well."""
    assert not list(detect_crash_outside(crashed(tmp_path, outcome="unfinished")))
    case = crashed(tmp_path)
    case.runs["plain"] = run("plain", "Segmentation fault", ending="signal")
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


def test_the_heap_checks_of_the_c_library_accuse_no_line(tmp_path: Path) -> None:
    """They find damage late: the line that frees is not the one that wrote."""
    case = crashed(tmp_path)
    script = case.runs["script"]
    case.runs["script"] = replace(script, finished=replace(script.finished, signal="SIGABRT"))
    assert not list(detect_crash_outside(case))


def test_a_line_that_releases_a_package_may_run_the_packages_own_code(tmp_path: Path) -> None:
    """What its destructor does is not on the Python stack: such a line is no more than possible."""
    case = crashed(tmp_path, CAPSULE)
    (found,) = detect_crash_outside(case)
    assert found.guilty.model_locations[0].code == "del model" and confidence(found, case) == "possible"
