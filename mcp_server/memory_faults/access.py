"""One bad memory access, in a form common to all tools that report one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mcp_server.logs.crash_reports import CoreDump, LoggedException, NativeError, NativeFrame
from mcp_server.logs.sanitizer import Site, Triple
from mcp_server.logs.sanitizer_lines import Nearest
from mcp_server.package.assertion import Assertion

Tool = Literal[
    "memcheck",
    "initcheck",
    "racecheck",
    "synccheck",
    "core_dump",
    "sync",
    "asan",
    "ubsan",
    "native",
    "assert",
]
_OUTLINED = re.compile(r"\s*(?:\(.*|\[clone .*\]|\._omp_fn\.\d+.*)$")


@dataclass(frozen=True)
class Access:
    """A fault as a tool reported it. Fields that the tool did not report are empty.

    `kernel` is the device symbol or the C++ function. `line` is 1-based in the generated file. `size` is in
    bytes. `launch_offset` is the offset of the launching call in the package's library.
    """

    tool: Tool
    kind: str
    text: str
    kernel: str = ""
    file: str = ""
    line: int | None = None
    direction: str = ""
    size: int | None = None
    address: int | None = None
    thread: Triple | None = None
    block: Triple | None = None
    count: int = 1
    nearest: Nearest | None = None
    launch_offset: int | None = None
    condition: str = ""


def from_site(site: Site, tool: Tool) -> Access:
    """Convert a compute-sanitizer record."""
    kind = "misaligned" if "misaligned" in site.problem or "isaligned" in site.text else site.kind
    return Access(
        tool=tool,
        kind=kind,
        text=" ".join([site.text, *site.details[:1]]) if site.kind == "race" else site.text,
        kernel=site.kernel,
        file=site.file,
        line=site.line,
        direction=site.direction,
        size=site.size,
        address=site.address,
        thread=site.thread,
        block=site.block,
        count=site.count,
        nearest=site.nearest,
        launch_offset=site.launch_offset,
    )


def from_core(dump: CoreDump) -> Access:
    """Convert a core dump read with cuda-gdb. It has no address; the line is approximate unless `exact`."""
    return Access(
        tool="core_dump",
        kind="assert" if dump.is_assert else _kind(dump.exception),
        text=dump.exception + ("" if dump.exact else " (the line is near, not exact)"),
        kernel=dump.kernel,
        file=dump.file,
        line=dump.line if dump.exact else None,
        thread=dump.thread,
        block=dump.block,
    )


def from_progress(exception: LoggedException) -> Access:
    """Convert an entry of the CUDA driver's log, which names only the exception and the kernel."""
    return Access(
        tool="core_dump",
        kind="assert" if "ASSERT" in exception.name else _kind(exception.name),
        text=exception.name,
        kernel=exception.kernel,
    )


def _kind(text: str) -> str:
    return "misaligned" if "isaligned" in text or "MISALIGNED" in text else "invalid_access"


def from_native(error: NativeError) -> Access:
    """Convert a report of AddressSanitizer or UndefinedBehaviorSanitizer."""
    frame = generated_frame(error.frames)
    asan = error.tool == "AddressSanitizer"
    # AddressSanitizer also reports signals that are not memory accesses: FPE is a division by zero.
    asan_kind = "signal" if error.kind == "FPE" else "invalid_access"
    return Access(
        tool="asan" if asan else "ubsan",
        kind=asan_kind if asan else "undefined",
        text=error.kind,
        kernel=bare_function(frame.function) if frame else "",
        file=frame.file if frame else "",
        line=frame.line if frame else None,
        direction=error.direction,
        size=error.size,
        address=error.address,
        count=error.count,
    )


# Functions in a package's library that are not kernels: C++ runtime code, the model class, our probes.
_NO_KERNEL = ("std::", "__gnu_cxx::", "torch::aot_inductor::", "aoti_debug::")


def from_backtrace(frames: tuple[NativeFrame, ...], signal: str) -> Access | None:
    """Convert the native stack of a crash. None when no frame belongs to a package."""
    frame = generated_frame(frames)
    if frame is None:
        return None
    return Access(
        tool="native",
        kind="invalid_access" if signal in ("SIGSEGV", "SIGBUS") else "signal",
        text=signal or "a native stack",
        kernel="" if frame.function.startswith(_NO_KERNEL) else bare_function(frame.function),
        file=frame.file,
        line=frame.line,
    )


def from_assertion(assertion: Assertion) -> Access:
    """Convert an index assertion printed by generated code."""
    return Access(
        tool="assert",
        kind="assert",
        text=f"index out of bounds: {assertion.condition}",
        kernel=assertion.kernel or "",
        file=assertion.file or "",
        line=assertion.line,
        condition=assertion.condition,
    )


def generated_frame(frames: tuple[NativeFrame, ...]) -> NativeFrame | None:
    """The innermost frame in the package's kernel.cpp, else in its wrapper.cpp."""
    kernel = next((frame for frame in frames if frame.file.endswith(".kernel.cpp")), None)
    return kernel or next((frame for frame in frames if frame.generated), None)


def bare_function(function: str) -> str:
    """`cpp_fused_add_0` of `cpp_fused_add_0._omp_fn.0` and of `cpp_fused_add_0(float*, long)`."""
    return _OUTLINED.sub("", function.split("(", 1)[0]).strip()
