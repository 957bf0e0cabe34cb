"""The lines of a compute-sanitizer text report, one kind at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

MARK = "========="
BODY_MARK = MARK + "     "
FRAME_MARK = MARK + "         "
NOT_RECORDS = (
    "COMPUTE-SANITIZER",
    "Error: process didn't terminate",
    "Target application returned an error",
    "ERROR SUMMARY",
    "LEAK SUMMARY",
    "RACECHECK SUMMARY",
)
TARGET_FAILED = ("Target application returned an error", "Error: process didn't terminate")

_NUMBER = r"[\d,]+"
SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (?P<count>[\d,]+) errors?|RACECHECK SUMMARY: (?P<hazards>[\d,]+) hazards? displayed)"
    r"(?P<rest>.*)"
)
ACCESS = re.compile(
    rf"(?:Invalid|Uninitialized|Misaligned|Out-of-range) (?P<space>__\w+__|\w+)?(?: memory)? ?"
    rf"(?P<direction>read|write|atomic|reduction)?(?: access)?(?: \w+)*? of size (?P<size>{_NUMBER})"
)
_PLACES = (
    re.compile(
        r"at (?P<kernel>.+?)\+(?P<offset>0x[0-9a-fA-F]+)(?: in (?P<file>.+?):(?P<line>\d+)(?::.*)?)?$"
    ),
    re.compile(r"at (?P<offset>0x[0-9a-fA-F]+) in (?P<file>[^:]+):(?P<line>\d+)(?::(?P<kernel>.+))?$"),
    re.compile(r"at (?P<offset>0x[0-9a-fA-F]+) in (?P<kernel>.+)$"),
)
_THREAD = re.compile(r"by threads? \((\d+),(\d+),(\d+)\).*? in block \((\d+),(\d+),(\d+)\)")
_ADDRESS = re.compile(r"(?:Address|Access (?:to|at)) (?P<address>0x[0-9a-fA-F]+)(?: (?P<problem>.+))?")
_NEAREST = re.compile(
    rf"and is (?:(?P<distance>{_NUMBER}) bytes? (?P<side>before|after)|(?P<inside>inside)) "
    rf"the nearest allocation at (?P<address>0x[0-9a-fA-F]+) of size (?P<size>{_NUMBER})"
)
_HOST_NATIVE = re.compile(
    r"Host Frame:\s*(?P<function>.*?)\s*\[(?P<offset>0x[0-9a-fA-F]+)\](?: in (?P<module>\S+))?\s*$"
)
_HOST_PYTHON = re.compile(r"Host Frame:\s*(?P<function>.+?) in (?P<file>\S+):(?P<line>\d+)\s*$")
_DEVICE = re.compile(r"Device Frame:\s*(?P<text>.+)$")
_DEVICE_NAME = re.compile(r"(?P<kernel>.+?)(?:\+0x[0-9a-fA-F]+| \[0x[0-9a-fA-F]+\])")
_ASSERT_FUNCTION = "__assertfail"
_KNOWN = ("at ", "by thread", "Address ", "Access ", "and is ", "Saved host backtrace")


class Place(NamedTuple):
    kernel: str = ""
    offset: int | None = None
    file: str = ""
    line: int | None = None


class Nearest(NamedTuple):
    """The allocation nearest to a bad address; `distance` in bytes. It may not be the one meant."""

    address: int
    size: int
    distance: int
    side: Literal["before", "after", "inside"]


class HostFrame(NamedTuple):
    """A host frame at the launch: native with `offset` and `module`, Python with `file` and `line`."""

    function: str
    offset: int | None = None
    module: str = ""
    file: str = ""
    line: int | None = None


def number(text: str) -> int:
    """An integer with or without thousands commas; 0 for what is none."""
    digits = text.replace(",", "")
    return int(digits[:20]) if digits else 0


def is_record(head: str) -> bool:
    """Whether a header line without a body is a record all the same."""
    return head.startswith(("Invalid ", "Leaked ", "Program hit ", "Warp ", "Error: Race", "Uninitialized "))


def is_known(text: str) -> bool:
    """Whether a body line is one that the other functions read."""
    return text.startswith(_KNOWN)


def place_of(texts: Iterable[str]) -> Place:
    """Kernel, offset, file and line of the faulting instruction."""
    for text in texts:
        for pattern in _PLACES:
            found = pattern.match(text)
            if found:
                return _place(found.groupdict())
    return Place()


def places_in_head(head: str) -> list[str]:
    """The places that a racecheck record names in its first line."""
    _, found, place = head.partition(" access at ")
    return [f"at {place}"] if found else []


def _place(fields: dict[str, str | None]) -> Place:
    line = fields.get("line")
    kernel = fields.get("kernel") or ""
    return Place(
        kernel="" if kernel == _ASSERT_FUNCTION else kernel[:500],
        offset=int(fields["offset"] or "0", 16),
        file=fields.get("file") or "",
        line=int(line[:9]) if line else None,
    )


def thread_of(texts: Iterable[str]) -> tuple[tuple[int, int, int] | None, tuple[int, int, int] | None]:
    """Thread and block of the record."""
    for text in texts:
        found = _THREAD.match(text)
        if found:
            a, b, c, x, y, z = (int(value[:9]) for value in found.groups())
            return (a, b, c), (x, y, z)
    return None, None


def address_in(body: Iterable[str]) -> int | None:
    """The bad address, from whole lines."""
    for line in body:
        if "ddress 0x" in line or "ccess to 0x" in line or "ccess at 0x" in line:
            found = _ADDRESS.search(line)
            if found:
                return int(found["address"], 16)
    return None


def problem_of(texts: Iterable[str]) -> str:
    """What is wrong with the address: `is out of bounds`, `is misaligned`, …"""
    found = next((match for match in map(_ADDRESS.match, texts) if match), None)
    return (found["problem"] or "")[:100] if found else ""


def nearest_of(texts: Iterable[str]) -> Nearest | None:
    """The allocation nearest to the address."""
    for text in texts:
        found = _NEAREST.match(text)
        if found:
            return _nearest(found)
    return None


def _nearest(found: re.Match[str]) -> Nearest:
    side: Literal["before", "after", "inside"] = "inside"
    if found["side"]:
        side = "before" if found["side"] == "before" else "after"
    distance = number(found["distance"] or "")
    return Nearest(int(found["address"], 16), number(found["size"]), distance, side)


def host_frame(line: str) -> HostFrame | None:
    """A host frame; None for other lines."""
    python = _HOST_PYTHON.search(line)
    if python and "[0x" not in line:
        return HostFrame(python["function"], file=python["file"], line=int(python["line"][:9]))
    native = _HOST_NATIVE.search(line)
    if native is None:
        return None
    return HostFrame(native["function"][:500], int(native["offset"], 16), native["module"] or "")


def device_frames(lines: Iterable[str]) -> Iterator[str]:
    """The texts of the device frames."""
    for line in lines:
        found = _DEVICE.search(line)
        if found:
            yield found["text"].strip()[:300]


def device_kernel(lines: Iterable[str]) -> str:
    """The kernel named by the outermost device frame; empty for the assert function itself."""
    names = [found["kernel"] for text in device_frames(lines) if (found := _DEVICE_NAME.match(text))]
    return next((name for name in reversed(names) if name != _ASSERT_FUNCTION), "")
