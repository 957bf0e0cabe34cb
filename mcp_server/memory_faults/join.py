"""Joins a reported access with the package: launch, argument, index expression, producer, model line."""

from __future__ import annotations

from mcp_server.memory_faults.access import Access
from mcp_server.memory_faults.blame import BlameRules
from mcp_server.memory_faults.choose_launch import Choice, choose_launch
from mcp_server.memory_faults.kernel_lines import LineAccess
from mcp_server.memory_faults.records import AddressPart, Fault, FaultLaunch, MissedArgument, summarise
from mcp_server.memory_faults.situation import (
    Evidence,
    Situation,
    describe_missed,
    find_missed,
    find_parts,
)
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.view import PackageView

_SHOWN = 16
_NO_ADDRESS = ("race", "barrier")  # these concern several threads, not one address outside an argument


def bare_fault(access: Access) -> Fault:
    """The fault as the tool reported it, without a package."""
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
        found = fault.model_copy(update={"unknown": [f"the launch: {choice.how}"]})
        return found.model_copy(update={"summary": summarise(found)})
    situation = Situation(view, access, choice.launch, evidence, choice.seen)
    located = find_missed(situation) if access.kind not in _NO_ADDRESS else None
    missed, used = located if located is not None else (None, situation.indirect)
    parts: list[AddressPart] = []
    if situation.indirect is not None:
        parts = find_parts(situation, situation.indirect, None)
    elif missed is not None and used is not None:
        parts = find_parts(situation, used, situation.tensor(missed.parameter))
    if access.address is None and missed is not None and missed.side not in ("empty", "host"):
        missed, used, parts = _beyond(situation) or (missed, used, parts)
    found = fault.model_copy(
        update={
            "kernel": access.kernel or choice.launch.symbol,
            **({"access": used.code, "masked": used.masked} if used is not None else {}),
            **_source_line(situation.kernel, access.line),
            "launch": _launch(view, choice.launch, choice),
            "missed": missed,
            "parts": parts,
            "blame": BlameRules(situation, missed, parts).blame(),
            "unknown": _unknown(situation, choice, missed, used),
        }
    )
    return found.model_copy(update={"summary": summarise(found)})


def _beyond(situation: Situation) -> tuple[MissedArgument, LineAccess, list[AddressPart]] | None:
    """Without an address: the argument whose index or scalar values lie outside it."""
    for access in situation.accesses:
        for parameter in access.parameters:
            tensor = situation.tensor(parameter)
            found = find_parts(situation, access, tensor)
            if tensor is not None and any(part.beyond for part in found):
                return describe_missed(situation, parameter, certain=False), access, found
    return None


def _source_line(kernel: Kernel | None, line: int | None) -> dict[str, str]:
    """Location in the package and source line, as fields of `Fault`; `line` is 1-based in the tool's file."""
    if kernel is None or line is None:
        return {}
    cpp = kernel.kind == "cpp"
    at = line - kernel.first_line if cpp else line - 1
    lines = kernel.source.split("\n")
    code = lines[at].strip() if 0 <= at < len(lines) else ""
    location = f"kernel.cpp:{line}" if cpp else f"wrapper.cpp:{kernel.first_line + at}"
    return {"location": location, "code": code[:500]}


def _launch(view: PackageView, launch: Launch, choice: Choice) -> FaultLaunch:
    """The arguments are those recorded; without a journal, the wrapper's expressions."""
    seen, arguments = choice.seen, []
    for argument in seen.arguments[:_SHOWN] if seen is not None else ():
        tensor = argument.tensor
        if tensor is None:
            arguments.append(f"{argument.parameter} = {argument.value}")
            continue
        where = f"{tensor.device} at {tensor.pointer:#x}"
        shape = f"{tensor.dtype} {list(tensor.shape)} stride {list(tensor.stride)}"
        label = view.label(argument.name)
        arguments.append(f"{argument.parameter}: {label} [{argument.role}] {shape} {where}")
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
    situation: Situation, choice: Choice, missed: MissedArgument | None, used: LineAccess | None
) -> list[str]:
    """What the evidence leaves open, one sentence each."""
    found = []
    if not choice.certain:
        found.append(f"which launch for sure: {choice.how}")
    if situation.seen is None:
        found.append("shapes and addresses of the launch: no journal of it")
    if situation.access.address is None:
        found.append("the address, and with it the side and distance")
    if missed is not None and not missed.certain:
        found.append("which pointer of the launch for sure")
    if used is None:
        found.append("the expression: the source of the line was not found or has no access that fits")
    return found
