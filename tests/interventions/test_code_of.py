"""The code of a binary, apart from its line tables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mcp_server.worker.compiling import code_of


def test_code_is_the_same_whatever_the_path_of_the_source(tmp_path: Path) -> None:
    """Objects of one source at two paths, with line tables, differ as files and have the same code."""
    binaries = []
    for name, text in (("a", "+"), ("another_name", "+"), ("b", "-")):
        source, target = tmp_path / f"{name}.c", tmp_path / f"{name}.o"
        source.write_text(f"int f(int x) {{ return x {text} 3; }}\n")
        subprocess.run(["gcc", "-g", "-O1", "-c", str(source), "-o", str(target)], check=True)
        binaries.append(target.read_bytes())
    one, other, different = binaries
    assert one != other and code_of(one) == code_of(other) != code_of(different)
    assert code_of(one)[".text"]


@pytest.mark.parametrize("binary", [b"", b"\x7fELF\x02", b"\x7fELF\x02" + b"\xff" * 100, b"no binary" * 20])
def test_what_is_no_binary_has_no_code(binary: bytes) -> None:
    """A cut or foreign file gives nothing, and no error."""
    assert code_of(binary) == {}
