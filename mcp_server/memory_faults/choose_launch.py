"""Finds the launch of the wrapper that a fault belongs to, by kernel name, journal, call site or grid.

Call sites: a host backtrace prints return addresses, the offset of the instruction after the call. Generated
code launches in textual order, through `launchKernel` inlined into `run_impl`, or through `call_<kernel>`
(torch 2.11). So the n-th launching call in the disassembly is the n-th Triton launch of the wrapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mcp_server.logs.journal import Ending, JournalLaunch
from mcp_server.memory_faults.access import Access
from mcp_server.memory_faults.situation import Evidence
from mcp_server.package.assertion import Assertion
from mcp_server.package.kernel_code import read_condition
from mcp_server.package.launches import Launch
from mcp_server.package.statements import evaluate
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
    ended = _journal_end(evidence)
    if ended is not None:
        return _with_journal(view, named, ended, access, evidence)
    if named:
        return _without_journal(view, named, access, evidence, "the kernel that the tool names")
    # Library code is suspected only inside a call. racecheck prints no stack; kernels that Python code
    # launches have Python frames only.
    in_call = access.launch_offset is not None or evidence.journal is not None
    has_stack = bool(access.kernel) or access.tool == "native"
    foreign = foreign_launches(view) if in_call and has_stack else []
    if foreign:
        return _without_journal(view, foreign, access, evidence, "code that the package only calls")
    return Choice(
        None, f"the package has no kernel {access.kernel}" if access.kernel else "no kernel is named"
    )


def named_launches(view: PackageView, access: Access) -> list[int]:
    """Launch numbers of the kernel that the tool named, narrowed by the generated file's name."""
    if access.condition:
        return _asserting_launches(view, access)
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


def _asserting_launches(view: PackageView, access: Access) -> list[int]:
    condition = read_condition(access.condition)
    if condition is None:
        return []
    lower, variable, upper = condition
    assertion = Assertion(
        access.condition, variable, lower, upper, access.file or None, access.line, access.kernel or None
    )
    return list(dict.fromkeys(c.launch.index for c in view.tracer.trace(assertion)))


def _journal_end(evidence: Evidence) -> Ending | None:
    """The end of the journal, if it is a launch that did not return."""
    if evidence.journal is None:
        return None
    ending = evidence.journal.ending
    return ending if ending.how in _ENDED_THERE and ending.launch is not None else None


def _with_journal(
    view: PackageView, named: Sequence[int], ending: Ending, access: Access, evidence: Evidence
) -> Choice:
    seen = ending.launch
    assert seen is not None
    launch = _launch(view, seen.launch)
    if launch is None:
        return Choice(None, "the journal ends in constant folding, before the call", seen=seen)
    waited = "each launch was waited for" if evidence.synchronous else "launches were not waited for"
    if not named or seen.launch in named:
        how = f"the journal ends there ({ending.how}; {waited})" + (
            ", and the tool names its kernel" if named else ""
        )
        return Choice(launch, how, evidence.synchronous or bool(named and len(named) == 1), (), seen)
    earlier = [n for n in named if n <= seen.launch] or list(named)
    chosen = earlier[-1]
    how = f"the tool names {access.kernel}, but the journal ends at launch {seen.launch} ({seen.kernel})"
    return Choice(_launch(view, chosen), how, False, tuple(named), _seen(evidence, seen, chosen))


def _without_journal(
    view: PackageView, named: Sequence[int], access: Access, evidence: Evidence, what: str
) -> Choice:
    """Choose among `named` by host frame, then by grid. `what` describes the launches in `named`."""
    site = evidence.sites.get(access.launch_offset) if access.launch_offset is not None else None
    if site in named:
        how = "the host frame's offset is that of this launch's call"
        return Choice(_launch(view, site), how, True, (), _last_seen(evidence, site))
    fitting = [n for n in named if _block_fits(view, view.wrapper.launches[n], access)] or list(named)
    if len(fitting) == 1:
        how = f"the only launch of {what}" + (" with so many blocks" if len(named) > 1 else "")
        return Choice(_launch(view, fitting[0]), how, True, (), _last_seen(evidence, fitting[0]))
    how = f"{len(fitting)} launches are of {what}, and nothing tells which"
    return Choice(_launch(view, fitting[0]), how, False, tuple(fitting), _last_seen(evidence, fitting[0]))


def _block_fits(view: PackageView, launch: Launch, access: Access) -> bool:
    """Whether the faulting block lies in the launch's grid; True where the grid size is symbolic."""
    if access.block is None:
        return True
    for part, at in zip(view.wrapper.grid(launch), access.block, strict=False):
        size = evaluate(part, {})
        if size is not None and at >= size:
            return False
    return True


def _launch(view: PackageView, number: int | None) -> Launch | None:
    launches = view.wrapper.launches
    return launches[number] if number is not None and number < len(launches) else None


def _seen(evidence: Evidence, last: JournalLaunch, number: int) -> JournalLaunch | None:
    """The newest journal entry of launch `number` in the call that `last` belongs to."""
    launches = evidence.journal.launches if evidence.journal else ()
    fitting = [one for one in launches if one.run == last.run and one.launch == number]
    return fitting[-1] if fitting else None


def _last_seen(evidence: Evidence, number: int | None) -> JournalLaunch | None:
    launches = evidence.journal.launches if evidence.journal else ()
    fitting = [one for one in launches if one.launch == number]
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
    """The disassembly lines of `AOTInductorModel::run_impl` only."""
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
    """Map return offsets to launch numbers; empty when calls and launches do not match one to one."""
    wanted = [launch for launch in launches if launch.kind in _TRITON]
    pairs = list(zip(sorted(sites), wanted, strict=False))
    if len(sites) != len(wanted) or any(sites[at] not in ("", one.kernel) for at, one in pairs):
        return {}
    return {at: one.index for at, one in pairs}
