"""Memory faults of CPU packages: sanitized kernels, a debugger's stack, printed assertions."""

from __future__ import annotations

import shutil
from pathlib import Path

from mcp_server.evidence.native import read_native
from mcp_server.faults.access import Access, from_backtrace, from_native
from mcp_server.steps.memcheck import printed_assertion

# The interpreter's own handler for SIGSEGV, faulthandler's, must not replace the sanitizer's.
SANITIZER_ENV = {
    "ASAN_OPTIONS": "detect_leaks=0:handle_segv=2:handle_sigbus=2:handle_abort=1:detect_container_overflow=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def gdb_prefix() -> tuple[str, ...]:
    """gdb in batch mode around a program; empty where there is none."""
    gdb = shutil.which("gdb")
    return (gdb, "-batch", "-nx", "-ex", "run", "-ex", "bt 100", "--args") if gdb else ()


def read_accesses(output: Path) -> list[Access]:
    """Reports of sanitizers, then the assertion that was printed, then a native stack."""
    with output.open(encoding="utf-8", errors="replace") as lines:
        native = read_native(lines)
    found = [from_native(error) for error in native.errors if error.kind != "ABRT"]
    found += printed_assertions(output)
    stack = from_backtrace(native.backtrace, native.signal)
    return [*found, *([stack] if stack is not None else [])]


def printed_assertions(output: Path) -> list[Access]:
    """The index assertions of an output, each once; the place of the throw is on a line of its own."""
    text = output.read_text(encoding="utf-8", errors="replace")[-200_000:]
    return [found] if "index out of bounds: " in text and (found := printed_assertion(_around(text))) else []


def _around(text: str) -> str:
    at = text.index("index out of bounds: ")
    return text[at : at + 2000]
