"""Packages that were overwritten or removed, and files that the real compiler and linker refuse."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import invalid_package, log_text
from mcp_server.diagnosis.observe.static import OpenPackage
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.model import ScriptWorkload
from mcp_server.runtime.context import Context
from tests.diagnosis.support import capture, phase, run


def opened(package: Path, directory: Path, size: int) -> DiagnosisState:
    """A case after its package was opened, which had `size` bytes when the program loaded it."""
    case = DiagnosisState(None)
    case.call = CallSpec("replay", {"package": str(package)}, package)
    case.capture = capture(loads=[phase(2, loader="L", package=str(package), outcome="failed", bytes=size)])
    anyio.run(OpenPackage().act, case, Context(directory, Path("python")))
    return case


@pytest.mark.parametrize("left", [None, b"PK half"])
def test_a_package_that_the_program_took_away(tmp_path: Path, left: bytes | None) -> None:
    """It was whole when it was loaded, for all that is known: no claim is made, and nothing is replayed."""
    package = tmp_path / "large.pt2"
    if left is not None:
        package.write_bytes(left)
    case = opened(package, tmp_path, 4000)
    assert list(invalid_package.detect_loading(case)) == [] and not case.failed
    assert case.call is None and "had 4000 bytes when the program loaded it" in case.notes[0]


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
    """The real linker's words name the file."""
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    (sdk / "libsensor.so").write_bytes(content)
    output = built(tmp_path, LIBRARY_PATH=sdk)
    case = compile_failed(output, {"LIBRARY_PATH": f"/opt/lib:{sdk}"})
    (best,) = ranked(log_text.detect_from_log(case), case)
    assert (best.category, confidence(best, case)) == ("toolchain", "proven")
    assert best.guilty.name.endswith("libsensor.so")
