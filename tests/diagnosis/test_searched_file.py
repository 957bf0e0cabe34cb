"""Files that the real compiler and linker refuse, and the variable whose directory brought them in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import log_text
from mcp_server.diagnosis.causes.environment import detect_searched_file
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.model import ScriptWorkload
from tests.diagnosis.support import capture, phase, run

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:5f0c8a9d1b7e44c2\nsize 298384\n"
SOURCE = "#include <sensor.h>\nint opened() { return 1; }\n"


def built(directory: Path, **variables: Path) -> str:
    """What g++ prints while it builds a library that needs `sensor.h` and `libsensor.so`."""
    source, own = directory / "opened.cpp", directory / "own"
    source.write_text(SOURCE)
    own.mkdir()
    (own / "sensor.h").touch()
    argv = ["g++", "-shared", "-fPIC", str(source), "-idirafter", str(own), "-lsensor", "-o", "opened.so"]
    env = {**os.environ, "LC_ALL": "C", **{name: str(path) for name, path in variables.items()}}
    return subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True).stderr


def compile_failed(output: str, flags: dict[str, str]) -> DiagnosisState:
    """A program whose compile failed with that output of the compiler, under these variables."""
    case = DiagnosisState(ScriptWorkload(script=Path("build.py")))
    case.capture = capture(compiles=[phase(1, how="aoti_compile_and_package", outcome="failed", flags=flags)])
    case.runs["script"] = run("script", f"CppCompileError: C++ compile error\n\nOutput:\n{output}")
    return case


@pytest.mark.parametrize("content", [POINTER, b"<html><body>404", b"\x7fELF\x02\x01\x01"])
def test_a_library_that_is_none_is_proven_by_the_linkers_refusal(tmp_path: Path, content: bytes) -> None:
    """The real linker's words name the file; the variable of the failed compile leads to it."""
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    (sdk / "libsensor.so").write_bytes(content)
    output = built(tmp_path, LIBRARY_PATH=sdk)
    case = compile_failed(output, {"LIBRARY_PATH": f"/opt/lib:{sdk}"})
    best = ranked([*log_text.detect_from_log(case), *detect_searched_file(case)], case)[0]
    assert (best.category, confidence(best, case)) == ("toolchain", "proven")
    assert best.guilty.name.endswith("libsensor.so") and "through LIBRARY_PATH" in best.summary
    assert best.fix is not None and f"take {sdk} out of LIBRARY_PATH" in best.fix.action


def test_a_refused_library_that_no_variable_led_to(tmp_path: Path) -> None:
    """Where the directory came in some other way, the refusal still proves the file; no variable is named."""
    (tmp_path / "libsensor.so").write_bytes(POINTER)
    case = compile_failed(built(tmp_path, LIBRARY_PATH=tmp_path), {"LIBRARY_PATH": "/opt/lib"})
    assert not list(detect_searched_file(case))
    (best,) = ranked(log_text.detect_from_log(case), case)
    assert confidence(best, case) == "proven" and "LIBRARY_PATH" not in best.summary


def test_a_header_that_is_none(tmp_path: Path) -> None:
    """The compiler's words do not say what a header should be: that it is at fault is likely, not proven."""
    sdk = tmp_path / "include"
    sdk.mkdir()
    (sdk / "sensor.h").write_bytes(POINTER)
    case = compile_failed(built(tmp_path, CPATH=sdk), {"CPATH": str(sdk)})
    best = ranked([*log_text.detect_from_log(case), *detect_searched_file(case)], case)[0]
    assert (best.category, best.guilty.name) == ("toolchain", str(sdk / "sensor.h"))
    assert confidence(best, case) == "likely"


def test_an_error_of_the_generated_code_is_no_headers() -> None:
    """A variable that is set says nothing about a file outside of its directories."""
    case = compile_failed("/c/x.kernel.cpp:1:1: error: expected ';'", {"CPATH": "/opt/sdk/include:"})
    assert not list(detect_searched_file(case))
