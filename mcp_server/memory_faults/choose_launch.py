"""Finds the launch of the wrapper that a fault belongs to, by kernel name, journal, call site or grid.

Call sites: a host backtrace prints return addresses, the offset of the instruction after the call. Generated
code launches in textual order, through `launchKernel` inlined into `run_impl`, or through `call_<kernel>`
(torch 2.11). So the n-th launching call in the disassembly is the n-th Triton launch of the wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcp_server.logs.journal import Ending, JournalLaunch
from mcp_server.memory_faults.access import Access
from mcp_server.memory_faults.situation import Evidence
from mcp_server.package.arithmetic import evaluate
from mcp_server.package.assertion import Assertion
from mcp_server.package.kernel_code import read_condition
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView

FOREIGN = ("proxy_executor", "fallback_shim", "extern")
_ENDED_THERE = ("fault", "died", "threw")


@dataclass(frozen=True)
class Choice:
    """The launch, the reason for choosing it, and all candidates when it is not certain."""

    launch: Launch | None
    how: str
    certain: bool = False
    candidates: tuple[int, ...] = ()
    seen: JournalLaunch | None = None


def choose_launch(view: PackageView, access: Access, evidence: Evidence) -> Choice:
    """Choose by kernel and file name, by the launch at which the journal ends, by host frame, by grid."""
    named = named_launches(view, access)
    ending = evidence.journal.ending if evidence.journal is not None else None
    if ending is not None and ending.launch is not None and ending.how in _ENDED_THERE:
        return _with_journal(view, named, ending, access, evidence)
    if named:
        return _without_journal(view, named, access, evidence, "the kernel that the tool names")
    # Library code is suspected only inside a call. racecheck prints no stack; kernels that Python code
    # launches have Python frames only.
    in_call = access.launch_offset is not None or evidence.journal is not None
    has_stack = bool(access.kernel) or access.tool == "native"
    foreign = foreign_launches(view) if in_call and has_stack else []
    if foreign:
        return _without_journal(view, foreign, access, evidence, "code that the package only calls")
    how = f"the package has no kernel {access.kernel}" if access.kernel else "no kernel is named"
    return Choice(None, how)


def named_launches(view: PackageView, access: Access) -> list[int]:
    """Launch numbers of the kernel that the tool named, narrowed by the generated file's name."""
    if access.condition:
        condition = read_condition(access.condition)
        if condition is None:
            return []
        lower, variable, upper = condition
        place = access.file or None, access.line, access.kernel or None
        assertion = Assertion(access.condition, variable, lower, upper, *place)
        return list(dict.fromkeys(c.launch.index for c in view.tracer.trace(assertion)))
    if not access.kernel:
        return []
    launches = [n for n in view.wrapper.launches if access.kernel in (n.symbol, n.kernel)]
    if access.file.endswith(".py") and len({n.kernel for n in launches}) > 1:
        kernels = view.kernels_of_file(access.file)
        launches = [n for n in launches if n.kernel in kernels] or launches
    return [n.index for n in launches]


def foreign_launches(view: PackageView) -> list[int]:
    """Numbers of launches that run code outside the package: ATen, a library, a custom operator."""
    return [n.index for n in view.wrapper.launches if n.kind in FOREIGN]


def _with_journal(
    view: PackageView, named: Sequence[int], ending: Ending, access: Access, evidence: Evidence
) -> Choice:
    launches, seen = view.wrapper.launches, ending.launch
    assert seen is not None
    if seen.launch >= len(launches):
        return Choice(None, "the journal ends in constant folding, before the call", seen=seen)
    if not named or seen.launch in named:
        waited = "each launch was waited for" if evidence.synchronous else "launches were not waited for"
        agrees = ", and the tool names its kernel" if named else ""
        how = f"the journal ends there ({ending.how}; {waited}){agrees}"
        return Choice(launches[seen.launch], how, evidence.synchronous or len(named) == 1, (), seen)
    chosen = ([n for n in named if n <= seen.launch] or list(named))[-1]
    how = f"the tool names {access.kernel}, but the journal ends at launch {seen.launch} ({seen.kernel})"
    return Choice(launches[chosen], how, False, tuple(named), _last_seen(evidence, chosen, seen.run))


def _without_journal(
    view: PackageView, named: Sequence[int], access: Access, evidence: Evidence, what: str
) -> Choice:
    """Choose among `named` by host frame, then by grid. `what` describes the launches in `named`."""
    launches = view.wrapper.launches
    site = evidence.sites.get(access.launch_offset) if access.launch_offset is not None else None
    if site is not None and site in named:
        how = "the host frame's offset is that of this launch's call"
        return Choice(launches[site], how, True, (), _last_seen(evidence, site))
    fitting = [n for n in named if _block_fits(view, launches[n], access)] or list(named)
    seen = _last_seen(evidence, fitting[0])
    if len(fitting) == 1:
        how = f"the only launch of {what}" + (" with so many blocks" if len(named) > 1 else "")
        return Choice(launches[fitting[0]], how, True, (), seen)
    how = f"{len(fitting)} launches are of {what}, and nothing tells which"
    return Choice(launches[fitting[0]], how, False, tuple(fitting), seen)


def _block_fits(view: PackageView, launch: Launch, access: Access) -> bool:
    """Whether the faulting block lies in the launch's grid; True where the grid size is symbolic."""
    sizes = [evaluate(part, {}) for part in view.wrapper.grid(launch)]
    return all(size is None or at < size for size, at in zip(sizes, access.block or (), strict=False))


def _last_seen(
    evidence: Evidence, number: int, run: tuple[int, int, int] | None = None
) -> JournalLaunch | None:
    """The newest journal entry of launch `number`, in call `run` if there is one."""
    launches = evidence.journal.launches if evidence.journal else ()
    fitting = [n for n in launches if n.launch == number and (run is None or n.run == run)]
    return fitting[-1] if fitting else None


_FUNCTION = re.compile(r"^[0-9a-f]+ <(?P<name>.*)>:$")
_INSTRUCTION = re.compile(r"^\s*(?P<offset>[0-9a-f]+):\s(?P<text>.*)$")
_CALL = re.compile(r"call\w*\s+[0-9a-f]+ <(?P<target>.*)>")
_LAUNCHING = re.compile(r"^(?:void )?(?:\S*::)?(?:launchKernel\(|call_(?P<kernel>\w+?)(?:<|\())")
_TRITON = ("triton", "user_triton")


def read_call_sites(lines: Iterable[str]) -> dict[int, str]:
    """Map return offsets to kernel names, from `objdump -d -C` output.

    The name is empty where `launchKernel` was called directly.
    """
    found: dict[int, str] = {}
    waiting: str | None = None
    inside = False  # only `run_impl` counts
    for line in lines:
        function = _FUNCTION.match(line.strip())
        if function is not None:
            name = function["name"]
            inside = "AOTInductorModel::run_impl(" in name and not name.endswith("@plt")
            continue
        instruction = _INSTRUCTION.match(line) if inside else None
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


def match_sites(sites: dict[int, str], launches: Sequence[Launch]) -> dict[int, int]:
    """Map return offsets to launch numbers; empty when calls and launches do not match one to one."""
    wanted = [launch for launch in launches if launch.kind in _TRITON]
    pairs = list(zip(sorted(sites), wanted, strict=False))
    if len(sites) != len(wanted) or any(sites[at] not in ("", one.kernel) for at, one in pairs):
        return {}
    return {at: one.index for at, one in pairs}
