"""No tool lets torch open an archive with a member whose path leads outside."""

import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mcp_server.operations.table import OPERATIONS
from mcp_server.package.members import refuse_unsafe
from mcp_server.package.problems import PackageError
from tests.conftest import Zoo
from tests.package.archives import climbing, write
from tests.server.clients import drive, real_server, text_of

LOAD = "import sys, torch; torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1)"
HOST = [sys.executable, "-c", "print('the host ran')"]

# Arguments of each tool that takes an archive; {unsafe}, {inputs} and {exported} stand for files.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("diagnose", {"package": "{unsafe}", "inputs": "{inputs}"}),
    ("diagnose", {"package": "{unsafe}"}),
    ("explain_error", {"package": "{unsafe}", "text": "RuntimeError: index out of bounds: 0 <= tmp4 < ks1"}),
    ("check_devices", {"package": "{unsafe}", "inputs": "{inputs}"}),
    ("inspect_package", {"package": "{unsafe}"}),
    ("run_deterministic", {"package": "{unsafe}", "inputs": "{inputs}", "repeats": 1}),
    ("dump_kernel_io", {"package": "{unsafe}", "inputs": "{inputs}"}),
    ("decompile", {"package": "{unsafe}", "inputs": "{inputs}"}),
    ("record", {"package": "{unsafe}"}),
    ("post_mortem", {"core": "core", "package": "{unsafe}"}),
    ("locate_fault", {"package": "{unsafe}", "inputs": "{inputs}"}),
    ("locate_fault", {"package": "{unsafe}", "command": HOST}),
    ("trace_launches", {"package": "{unsafe}", "inputs": "{inputs}"}),
    ("compare_with_eager", {"package": "{unsafe}", "exported": "{exported}", "inputs": "{inputs}"}),
    ("try_fix", {"package": "{unsafe}", "inputs": "{inputs}", "changes": ["args[0]: contiguous"]}),
    ("compare_with_eager", {"exported": "{unsafe}"}),
    ("compile_with_flags", {"exported": "{unsafe}"}),
    ("reduce", {"exported": "{unsafe}"}),
    ("bisect", {"exported": "{unsafe}"}),
]


def test_every_tool_that_takes_an_archive_is_called_here() -> None:
    """A new tool with a `package` or an `exported` needs a row here."""
    fields = {operation.name: operation.arguments.model_fields for operation in OPERATIONS}
    taking = {name for name, of in fields.items() if {"package", "exported"} & set(of)}
    assert {tool for tool, _ in CALLS} == taking


@pytest.mark.slow
def test_no_tool_lets_torch_open_it(zoo: Zoo, tmp_path: Path) -> None:
    """Each tool says that the archive was refused, and the file outside is never written."""
    package = zoo("ranker")
    unsafe, outside = climbing(package, tmp_path / "unsafe.pt2")
    files = {
        "{unsafe}": str(unsafe),
        "{inputs}": str(package.with_name("ranker.inputs.pt")),
        "{exported}": str(package.with_name("ranker.exported.pt2")),
    }
    silent = []

    async def talk(client: Client) -> None:
        for tool, asked in CALLS:
            arguments = {
                name: files.get(value, value) if isinstance(value, str) else value
                for name, value in asked.items()
            }
            waiting = (
                {}
                if tool in ("explain_error", "inspect_package", "record", "post_mortem")
                else {"wait_s": 45}
            )
            answer = text_of(await client.call_tool(tool, {**arguments, **waiting}))
            if "climbs out of the archive" not in answer or outside.exists():
                silent.append((tool, asked, answer[:300], outside.exists()))

    drive(real_server(tmp_path / "state", AOTI_DEBUG_PYTHON=sys.executable), talk)
    assert silent == []
    logs = [path.read_text() for path in (tmp_path / "state").rglob("output.log")]
    assert not any("the host ran" in log for log in logs)


@pytest.mark.slow
def test_torch_alone_writes_the_file_outside(zoo: Zoo, tmp_path: Path) -> None:
    """The archive of these tests does harm where nobody checks it (torch 2.13)."""
    unsafe, outside = climbing(zoo("ranker"), tmp_path / "unsafe.pt2")
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(unsafe)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert outside.read_bytes() == b"written outside"


def test_a_second_directory_that_only_torch_would_find_is_refused(tmp_path: Path) -> None:
    """`zipfile` reads the directory before the end record; miniz reads it at the offset in that record."""
    good = write(tmp_path / "good.pt2", {"m/data/aotinductor/model/a.wrapper.cpp": b""}).read_bytes()
    evil = write(tmp_path / "evil.pt2", {"../../evil.so": b"x"}).read_bytes()
    path = tmp_path / "two.pt2"
    path.write_bytes(evil[: evil.rindex(b"PK\5\6")] + good)
    both = bytearray(path.read_bytes())
    struct.pack_into("<I", both, both.rindex(b"PK\5\6") + 16, evil.index(b"PK\1\2"))
    path.write_bytes(both)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["m/data/aotinductor/model/a.wrapper.cpp"]
    with pytest.raises(PackageError, match="not where its end record says") as caught:
        refuse_unsafe(path)
    assert (caught.value.slug, caught.value.value) == ("unsafe_archive", str(path))


def test_a_directory_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    """`zipfile` stops at a damaged entry of the directory; what another reader does is not known."""
    path = write(tmp_path / "odd.pt2", {"m/data/aotinductor/model/a.wrapper.cpp": b""})
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\1\2")] = 0
    path.write_bytes(data)
    with pytest.raises(PackageError, match="cannot be checked"):
        refuse_unsafe(path)


@pytest.mark.parametrize("cut", [0, 10, 1000])
def test_what_torch_itself_refuses_passes(tmp_path: Path, cut: int) -> None:
    """A cut archive has no directory; the loader's own words on it are worth having."""
    whole = write(tmp_path / "whole.pt2", {"m/data/aotinductor/model/a.so": bytes(5000)})
    path = tmp_path / "cut.pt2"
    shutil.copy(whole, path)
    with path.open("r+b") as file:
        file.truncate(cut)
    refuse_unsafe(path)


def test_archives_of_real_packages_pass(zoo: Zoo) -> None:
    """A package, its exported program and its inputs, as torch writes them."""
    package = zoo("ranker")
    for name in ("ranker.pt2", "ranker.exported.pt2", "ranker.inputs.pt"):
        refuse_unsafe(package.with_name(name))
