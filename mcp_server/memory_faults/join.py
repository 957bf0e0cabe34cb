"""Joins a reported access with the package: launch, argument, index expression, producer, model line.

The launch in the wrapper is found by kernel name, journal or grid.
"""

from __future__ import annotations

from dataclasses import dataclass

from mcp_server.logs.crash_reports import Access
from mcp_server.logs.journal import JournalLaunch
from mcp_server.memory_faults import Fault, FaultLaunch, MissedArgument, summarise
from mcp_server.memory_faults.blame import BlameRules
from mcp_server.memory_faults.situation import FOREIGN, Evidence, Situation, SourceAccess, locate
from mcp_server.package.assertion import Assertion
from mcp_server.package.launches import Launch
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.view import PackageView

_SHOWN = 16
_NO_ADDRESS = ("race", "barrier")  # these concern several threads, not one address
_ENDED_THERE = ("fault", "died", "threw")


def bare_fault(access: Access) -> Fault:
    """Describe the fault as the tool reported it, without a package."""
    nearest = access.nearest
    near = ""
    if nearest is not None:
        block = f"an allocation of {nearest.size} bytes at {nearest.address:#x}"
        near = f"{nearest.distance} bytes {nearest.side} {block}"
    fault = Fault(
        tool=access.tool,
        kind=access.kind,
        text=access.text,
        direction=access.direction,
        access_bytes=access.size,
        address=f"{access.address:#x}" if access.address is not None else "",
        thread=list(access.thread) if access.thread else None,
        block=list(access.block) if access.block else None,
        count=access.count,
        kernel=access.kernel,
        # The C++ source is a member of the package, so its build directory is noise.
        generated_file=access.file.rpartition("/")[2] if access.file.endswith(".cpp") else access.file,
        generated_line=access.line,
        nearest=near,
    )
    return fault.model_copy(update={"summary": summarise(fault)})


def join_fault(view: PackageView, access: Access, evidence: Evidence) -> Fault:
    """Join one access with the package and the run's evidence. Open questions are listed in `unknown`."""
    fault = bare_fault(access)
    choice = choose_launch(view, access, evidence)
    if choice.launch is None:
        return fault.model_copy(update={"unknown": [f"the launch: {choice.how}"]})
    situation = Situation(view, access, choice.launch, evidence, choice.seen)
    missed, used, parts = locate(situation) if access.kind not in _NO_ADDRESS else (None, None, [])
    location = code = ""
    if (kernel := situation.kernel) is not None and access.line is not None:
        # The tool counts lines in kernel.cpp, or in the embedded Triton text.
        at = access.line - (kernel.first_line if kernel.kind == "cpp" else 1)
        lines = kernel.source.split("\n")
        code = lines[at].strip()[:500] if 0 <= at < len(lines) else ""
        location = f"{kernel.file}:{kernel.first_line + at}"
    found = fault.model_copy(
        update={
            "kernel": access.kernel or choice.launch.symbol,
            "access": used.code if used is not None else "",
            "masked": used.access.masked if used is not None else None,
            "location": location,
            "code": code,
            "launch": _launch(view, choice.launch, choice),
            "missed": missed,
            "parts": parts,
            "blame": BlameRules(situation, missed, parts).blame(),
            "unknown": _unknown(situation, choice, missed, used),
        }
    )
    return found.model_copy(update={"summary": summarise(found)})


def _launch(view: PackageView, launch: Launch, choice: Choice) -> FaultLaunch:
    """Describe the launch with its recorded arguments or, without a journal, the wrapper's expressions."""
    seen, arguments = choice.seen, []
    for argument in seen.arguments[:_SHOWN] if seen is not None else ():
        text = f"{argument.parameter} = {argument.value}"
        if tensor := argument.tensor:
            where = f"{tensor.device} at {tensor.pointer:#x}"
            shape = f"{tensor.dtype} {list(tensor.shape)} stride {list(tensor.stride)}"
            text = f"{argument.parameter}: {view.label(argument.name)} [{argument.role}] {shape} {where}"
        arguments.append(text)
    if seen is None:
        shown = [a for a in launch.arguments if a.kind != "context"][:_SHOWN]
        arguments = [f"{a.name}: {view.label(a.target) if a.is_tensor else a.expression}" for a in shown]
    return FaultLaunch(
        index=launch.index,
        kernel=launch.kernel,
        kind=launch.kind,
        line=launch.line,
        sequence=seen.sequence if seen else None,
        how=choice.how,
        certain=choice.certain,
        candidates=list(choice.candidates),
        arguments=arguments,
        model=list(view.provenance(launch).locations),
    )


def _unknown(
    situation: Situation, choice: Choice, missed: MissedArgument | None, used: SourceAccess | None
) -> list[str]:
    """List what the evidence leaves open, one phrase each."""
    found = []
    if not choice.certain:
        found.append(f"which launch it was: {choice.how}")
    if situation.seen is None:
        found.append("shapes and addresses of the launch: no journal of it")
    if situation.access.address is None:
        found.append("the address, and with it the side and distance")
    if missed is not None and not missed.certain:
        found.append("which pointer of the launch was meant")
    if used is None:
        found.append("the expression: the source of the line was not found or has no access that fits")
    return found


@dataclass(frozen=True)
class Choice:
    """The launch, the reason for choosing it, and all candidates if it is not certain."""

    launch: Launch | None
    how: str
    certain: bool = False
    candidates: tuple[int, ...] = ()
    seen: JournalLaunch | None = None


def choose_launch(view: PackageView, access: Access, evidence: Evidence) -> Choice:
    """Choose the launch by kernel and file name, by the end of the journal, or by grid."""
    named, launches = named_launches(view, access), view.wrapper.launches
    ending = evidence.journal.ending if evidence.journal is not None else None
    if ending is not None and ending.launch is not None and ending.how in _ENDED_THERE:
        return _at_the_end(view, access, evidence, named, ending.launch, ending.how)
    what = "the kernel that the tool names"
    if not named:
        # Library code (ATen, custom operators) is suspected only if the fault is known to be inside a call of
        # the package: racecheck prints no stack, and kernels launched by Python code have only Python frames.
        in_call = access.launch_offset is not None or evidence.journal is not None
        has_stack = bool(access.kernel) or access.tool == "native"
        foreign = [n.index for n in view.wrapper.launches if n.kind in FOREIGN]
        named = foreign if in_call and has_stack else []
        what = "code that the package only calls"
    if not named:
        how = f"the package has no kernel {access.kernel}" if access.kernel else "no kernel is named"
        return Choice(None, how)
    fitting = []
    for number in named:  # the faulting block must lie in the grid, if the grid is not symbolic
        sizes = [evaluate(part, {}) for part in view.wrapper.grid(launches[number])]
        places = zip(sizes, access.block or (), strict=False)
        if all(size is None or at < size for size, at in places):
            fitting.append(number)
    fitting = fitting or named
    certain = len(fitting) == 1
    how = f"{len(fitting)} launches run {what}, and nothing shows which one failed"
    if certain:
        how = f"the only launch of {what}" + (" with so many blocks" if len(named) > 1 else "")
    others = () if certain else tuple(fitting)
    return Choice(launches[fitting[0]], how, certain, others, _last_seen(evidence, fitting[0]))


def _at_the_end(
    view: PackageView, access: Access, evidence: Evidence, named: list[int], last: JournalLaunch, ended: str
) -> Choice:
    """Choose the launch at which the journal ends, unless the tool names the kernel of another one."""
    launches = view.wrapper.launches
    if last.launch >= len(launches):
        return Choice(None, "the journal ends in constant folding, before the call", seen=last)
    if not named or last.launch in named:
        waited = "each launch was waited for" if evidence.synchronous else "launches were not waited for"
        agrees = ", and the tool names its kernel" if named else ""
        how = f"the journal ends there ({ended}; {waited}){agrees}"
        return Choice(launches[last.launch], how, evidence.synchronous or len(named) == 1, (), last)
    chosen = ([number for number in named if number <= last.launch] or named)[-1]
    how = f"the tool names {access.kernel}, but the journal ends at launch {last.launch} ({last.kernel})"
    return Choice(launches[chosen], how, False, tuple(named), _last_seen(evidence, chosen, last.run))


def _last_seen(
    evidence: Evidence, number: int, run: tuple[int, int, int] | None = None
) -> JournalLaunch | None:
    """The newest journal entry of launch `number`, in call `run` if given; else None."""
    launches = evidence.journal.launches if evidence.journal else ()
    fitting = [n for n in launches if n.launch == number and (run is None or n.run == run)]
    return fitting[-1] if fitting else None


def named_launches(view: PackageView, access: Access) -> list[int]:
    """List the launches of the kernel that the tool named, narrowed by the generated file's name."""
    if access.condition:
        assertion = Assertion(access.condition, access.file or None, access.line, access.kernel or None)
        return list(dict.fromkeys(c.launch.index for c in view.tracer.trace(assertion)))
    if not access.kernel:
        return []
    launches = [n for n in view.wrapper.launches if access.kernel in (n.symbol, n.kernel)]
    if access.file.endswith(".py") and len({n.kernel for n in launches}) > 1:
        kernels = view.kernels_of_file(access.file)
        launches = [n for n in launches if n.kernel in kernels] or launches
    return [n.index for n in launches]
