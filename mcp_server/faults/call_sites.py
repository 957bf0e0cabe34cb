"""Launching calls of a package's library, by the offset that a host backtrace prints for them.

A backtrace holds return addresses: the offset of the instruction behind the call. The generated code launches
in textual order, through `launchKernel` inlined into `run_impl`, or through `call_<kernel>` (torch 2.11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from mcp_server.package.launches import Launch

_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>.*)>:$")
_INSTRUCTION = re.compile(r"^\s*(?P<offset>[0-9a-f]+):\s(?P<text>.*)$")
_CALL = re.compile(r"call\w*\s+[0-9a-f]+ <(?P<target>.*)>")
_LAUNCHING = re.compile(r"^(?:void )?(?:\S*::)?(?:launchKernel\(|call_(?P<kernel>\w+?)(?:<|\())")
_TRITON = ("triton", "user_triton")


def read_call_sites(lines: Iterable[str]) -> dict[int, str]:
    """Kernel by return offset, from `objdump -d -C`; empty where `launchKernel` itself is called."""
    found: dict[int, str] = {}
    waiting: str | None = None
    for line in _run_impl(lines):
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        if waiting is not None:
            found[int(instruction["offset"], 16)] = waiting
            waiting = None
        call = _CALL.search(instruction["text"])
        launching = _LAUNCHING.match(call["target"]) if call else None
        if launching is not None:
            waiting = launching["kernel"] or ""
    return found


def _run_impl(lines: Iterable[str]) -> Iterator[str]:
    """The lines of `AOTInductorModel::run_impl` alone."""
    inside = False
    for line in lines:
        function = _FUNCTION.match(line.strip())
        if function is not None:
            inside = "AOTInductorModel::run_impl(" in function["name"] and not function["name"].endswith(
                "@plt"
            )
        elif inside:
            yield line


def match_sites(sites: dict[int, str], launches: Sequence[Launch]) -> dict[int, int]:
    """Launch number by return offset; empty when calls and launches do not pair off."""
    wanted = [launch for launch in launches if launch.kind in _TRITON]
    pairs = list(zip(sorted(sites), wanted, strict=False))
    if len(sites) != len(wanted) or any(sites[at] not in ("", one.kernel) for at, one in pairs):
        return {}
    return {at: one.index for at, one in pairs}
