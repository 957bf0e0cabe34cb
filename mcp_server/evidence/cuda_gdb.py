"""What cuda-gdb says about a GPU core dump (`target cudacore FILE`, `info cuda kernels`, `bt`, `info line`).

The line is taken from `$errorpc`: frame #0 has usually moved on. After a device assert there is no
`$errorpc`, so the line of frame #0 is only near the fault, and `exact` is False.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

Triple = tuple[int, int, int]

_FOCUS = re.compile(
    r"grid (?P<grid>\d+), block (?P<block>\([\d,]+\)), thread (?P<thread>\([\d,]+\)), device (?P<device>\d+)"
)
_EXCEPTION = re.compile(r"CUDA Exception: (?P<exception>.+)|^(?P<assert>Assertion failed\.)$")
_TRIGGERED = re.compile(
    r"The exception was triggered at PC (?P<pc>0x[0-9a-f]+)\s+(?P<kernel>\S.*?)\s*"
    r"(?:\((?P<file>[^()\s]+):(?P<line>\d+)\))?$"
)
_FRAME = re.compile(
    r"#0 +(?:0x[0-9a-f]+ in )?(?P<kernel>.+?) ?<<<(?P<grid>\([\d,]+\)),(?P<block>\([\d,]+\))>>> ?"
    r"\(.*?\)(?: at (?P<file>.+):(?P<line>\d+))?$"
)
_LINE = re.compile(
    r'Line (?P<line>\d+) of "(?P<file>[^"]+)" (?:starts at|is at) address (?P<address>0x[0-9a-f]+)'
    r"(?: <(?P<kernel>.+?)\+(?P<offset>\d+)>)?"
)
_KERNEL_ROW = re.compile(
    r"^\*?\s+\d+\s+\S+\s+\d+\s+\d+\s+(?P<status>\w+)\s+\S+\s+(?P<grid>\([\d,]+\))\s+(?P<block>\([\d,]+\))\s+(?P<kernel>\S.*?)\s*$"
)
_SOURCE = re.compile(r"^(?P<line>\d+)\t(?P<code>.+)$")


@dataclass(frozen=True)
class CoreDump:
    """A fault as a core dump shows it.

    `offset` is the faulting instruction's, in bytes from the kernel's start;
    `grid_dim` and `block_dim` are the launch's dimensions, `block` and `thread` the place of the fault.
    """

    exception: str = ""
    kernel: str = ""
    file: str = ""
    line: int | None = None
    exact: bool = False
    offset: int | None = None
    code: str = ""
    grid_dim: Triple | None = None
    block_dim: Triple | None = None
    block: Triple | None = None
    thread: Triple | None = None
    device: int | None = None
    kernels: tuple[str, ...] = ()

    @property
    def is_assert(self) -> bool:
        return "ssert" in self.exception


def read_cuda_gdb(lines: Iterable[str]) -> CoreDump:
    """Read a batch session's output; fields that it does not give stay empty."""
    dump = CoreDump()
    for raw in lines:
        dump = _read(dump, raw.rstrip("\r\n")[:4_000])
    return dump


def _read(dump: CoreDump, line: str) -> CoreDump:
    if focus := _FOCUS.search(line):
        return _with_focus(dump, focus)
    if exception := _EXCEPTION.search(line):
        return replace(dump, exception=(exception["exception"] or exception["assert"]).strip())
    if triggered := _TRIGGERED.search(line):
        return _with_trigger(dump, triggered)
    if exact := _LINE.search(line):
        return _with_line(dump, exact)
    if frame := _FRAME.match(line):
        return _with_frame(dump, frame)
    if row := _KERNEL_ROW.match(line):
        return replace(dump, kernels=(*dump.kernels, _bare(row["kernel"]))[:50])
    source = _SOURCE.match(line)
    if source and dump.line == int(source["line"][:9]) and not dump.code:
        return replace(dump, code=source["code"].strip()[:200])
    return dump


def _with_focus(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    if dump.block is not None:
        return dump
    return replace(
        dump, block=_triple(found["block"]), thread=_triple(found["thread"]), device=int(found["device"][:9])
    )


def _with_trigger(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    line = int(found["line"][:9]) if found["line"] else None
    return replace(
        dump, kernel=_bare(found["kernel"]), file=found["file"] or "", line=line, exact=line is not None
    )


def _with_line(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    return replace(
        dump,
        file=found["file"],
        line=int(found["line"][:9]),
        exact=True,
        kernel=dump.kernel or _bare(found["kernel"] or ""),
        offset=int(found["offset"][:18]) if found["offset"] else dump.offset,
    )


def _with_frame(dump: CoreDump, found: re.Match[str]) -> CoreDump:
    dump = replace(
        dump,
        kernel=dump.kernel or _bare(found["kernel"]),
        grid_dim=_triple(found["grid"]),
        block_dim=_triple(found["block"]),
    )
    if dump.exact or not found["file"]:
        if found["file"] and found["file"].endswith(dump.file):
            return replace(dump, file=found["file"])
        return dump
    return replace(dump, file=found["file"], line=int(found["line"][:9]))


def _triple(text: str) -> Triple | None:
    numbers = [int(part[:9]) for part in text.strip("()").split(",") if part.isdecimal()]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _bare(kernel: str) -> str:
    return kernel.strip().removesuffix("()")[:500]
