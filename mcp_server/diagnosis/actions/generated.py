"""The source of a kernel that failed before there was a package: the file that its error names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mcp_server.diagnosis.case import Case, GeneratedKernel
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.diagnosis.index_parts import index_error
from mcp_server.steps.context import Context

# Inductor names generated files by the base32 of their SHA-256 (torch/_inductor/codecache.py, 2.8-2.15).
_GENERATED = re.compile(r"c[a-z2-7]{50,51}\.py")
_KERNEL = re.compile(r"^def (triton_\w+)\(", re.MULTILINE)
LARGEST = 4 << 20


class ReadGeneratedKernel:
    """Only after a run of our own, and only a file that the compiler wrote: a log may name any path."""

    name = "read_generated_kernel"
    seconds = 0.1
    alone = False

    def gain(self, case: Case, _open: Sequence[Hypothesis]) -> float:
        return 1.0 if case.package is None and case.runs and _named(case) is not None else 0.0

    async def act(self, case: Case, _context: Context) -> None:
        named = _named(case)
        case.generated = _read(*named) if named is not None else None


def _named(case: Case) -> tuple[Path, int] | None:
    """The generated file and the line in it that the index assertion names."""
    error = index_error(case)
    file, line = (
        (error.fields.get("file", ""), error.fields.get("line", "")) if error is not None else ("", "")
    )
    path = Path(file)
    return (path, int(line)) if _GENERATED.fullmatch(path.name) and line.isdigit() else None


def _read(path: Path, line: int) -> GeneratedKernel | None:
    """None for a file that is gone, too large, or no Triton kernel."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return None
    text = path.read_text(errors="replace")
    kernel, lines = _KERNEL.search(text), text.splitlines()
    if kernel is None or "@triton.jit" not in text or line > len(lines):
        return None
    return GeneratedKernel(kernel[1], path, line, lines[line - 1].strip()[:300])
