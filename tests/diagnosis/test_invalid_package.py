"""Packages that were overwritten or removed, and files that the real compiler and linker refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import invalid_package, log_text
from mcp_server.diagnosis.observe.static import OpenPackage
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.model import ScriptWorkload
from mcp_server.package.archive import open_package
from mcp_server.runtime.context import Context
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, phase, run
from tests.package.archives import changed, twice, twice_with_other_weights

FILE = "/c/a.wrapper.cpp"
OTHER = "/c/b.wrapper.cpp"
LINE = {"file": "/app/release.py", "line": 43, "code": "aot_compile(net, example)"}
CHECK = "\n".join(
    [
        "Traceback (most recent call last):",
        '  File "/app/release.py", line 66, in sign',
        '    raise RuntimeError("not released")',
        "RuntimeError: not released",
    ]
)


def compiled(n: int, digest: str, file: str = FILE) -> dict[str, Any]:
    return phase(n, how="aot_compile", package=file, digests={"w": digest}, stack=[LINE])


def packaged(n: int, package: str = "all.pt2", **files: str) -> dict[str, Any]:
    return phase(n, package=package, files=files)


def released(
    package: Path, *events: dict[str, Any], refused: bool = False, text: str = CHECK
) -> DiagnosisState:
    """A program that did this, called its model `model`, and then failed over a check of its own."""
    case = DiagnosisState(None)
    case.package = open_package(package, "model")
    case.runs["script"], case.runs["plain"] = run("script", text), run("plain")
    inputs = package  # any file that exists
    call = phase(21, number=7, load=1, thread=1, file=inputs)
    end = {**phase(22, calls=[7] if refused else []), "outcome": "failed"}
    case.capture = capture(
        compiles=[event for event in events if "how" in event],
        packagings=[event for event in events if "files" in event],
        loads=[phase(20, loader="L", package="all.pt2", options={"model_name": "model"})],
        calls=[call],
        ends=[end],
    )
    return case


@pytest.fixture
def same(zoo: ZooPackage, tmp_path: Path) -> Path:
    return changed(zoo("ranker"), tmp_path / "same.pt2", twice)


LOST = (compiled(1, "1"), compiled(2, "2"), packaged(3, model=FILE, coast=FILE))


def test_compiles_that_wrote_over_each_other(same: Path) -> None:
    """The package is guilty at the line of the compile, where a check of the program's results failed."""
    for refused in (True, False):
        case = released(same, *LOST, refused=refused)
        (found,) = invalid_package.detect_overwritten(case)
        assert (found.category, found.guilty.name) == ("invalid_package", "all.pt2")
        assert found.guilty.model_locations[0].line == 43 and confidence(found, case) == "likely"
    assert list(invalid_package.detect_overwritten(released(same, *LOST, text="KeyError: 'price'"))) == []


@pytest.mark.parametrize(
    "events",
    [
        (compiled(1, "1"), packaged(3, model=FILE, coast=FILE)),
        (compiled(1, "1"), compiled(2, "1"), packaged(3, model=FILE, coast=FILE)),
        (compiled(1, "1"), compiled(2, "2", OTHER), packaged(3, model=FILE, coast=OTHER)),
        (
            compiled(1, "1"),
            packaged(2, "a.pt2", a=FILE),
            compiled(3, "2"),
            packaged(4, model=FILE, coast=FILE),
        ),
        (compiled(1, "1"), compiled(2, "2"), packaged(3, model=FILE)),
    ],
    ids=["one compile", "equal weights", "own paths", "packaged in between", "one name"],
)
def test_names_that_share_a_model_on_purpose(same: Path, events: tuple[dict[str, Any], ...]) -> None:
    """Nothing was lost where no two different compiles wrote the path since it was last packaged."""
    assert list(invalid_package.detect_overwritten(released(same, *events))) == []


def test_models_that_differ_in_the_package(zoo: ZooPackage, tmp_path: Path) -> None:
    """The package itself must show it: files may have been copied in between."""
    differ = changed(zoo("ranker"), tmp_path / "differ.pt2", twice_with_other_weights)
    assert list(invalid_package.detect_overwritten(released(differ, *LOST))) == []


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


def test_a_package_that_is_as_it_was(tmp_path: Path, zoo: ZooPackage) -> None:
    """It is read, and what is wrong with it counts; a file of no bytes at the load was missing then."""
    package = Path(shutil.copy(zoo("ranker"), tmp_path))
    assert opened(package, tmp_path, package.stat().st_size).package is not None
    package.write_bytes(b"PK half")
    (found,) = invalid_package.detect_loading(opened(package, tmp_path, 7))
    assert found.category == "invalid_package"
    (found,) = invalid_package.detect_loading(opened(tmp_path / "large.pt2", tmp_path, 0))
    assert (found.category, found.guilty.value) == ("invalid_package", "missing_file")


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
