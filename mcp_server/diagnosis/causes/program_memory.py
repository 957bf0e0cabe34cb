"""The program's own memory: what it still uses when a request fails, and constants that it took away.

A request that fails names the launch that asked last. What fills the memory is seen by the capture hook: the
outputs whose memory is still in use, and the packages that nothing has released.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.causes.common import reported, seen
from mcp_server.diagnosis.causes.out_of_memory import asked_for
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedLoad, Phase, RetainedOutputs
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Component, Evidence, Fix
from mcp_server.plurals import counted

LEAST_OUTPUTS = 2  # the outputs of one call are in use anywhere
LEAST_LOADS = 2
_NOT_MAPPED = "executable_stack_or_mount"  # the family of: failed to map segment from shared object


def detect_retained(case: DiagnosisState) -> Iterator[Suspect]:
    """What the program uses, where releasing it would have left enough for the request that failed."""
    capture = case.capture
    roots = [(facts.root, source) for source, facts in case.own_logs if facts.root is not None]
    if capture is None or not roots:
        return
    failed_loads = [load for load in capture.loads if load.outcome == "failed"]
    phase = capture.failing or (failed_loads[-1] if failed_loads else None)
    error, source = roots[0]
    if phase is None or phase.retained is None or not _of_memory(error, phase, capture):
        return
    asked = asked_for(error) or 0.0
    fact = reported(error, source)
    outputs = phase.retained.outputs.get("cuda" if "CUDA" in error.text else "cpu")
    if outputs is not None and outputs.calls >= LEAST_OUTPUTS and outputs.bytes >= asked > 0:
        yield _by_outputs(outputs, fact, case)
    numbers = phase.retained.loads
    alive = [load for load in capture.loads if load.pid == phase.pid and load.number in numbers]
    again = [load for load in alive if load.package == alive[0].package]
    if len(again) >= LEAST_LOADS and sum(load.bytes for load in again) >= asked:
        yield _by_loads(again, phase, fact)


def _of_memory(error: ErrorFact, phase: Phase, capture: Captured) -> bool:
    """Whether memory was what was missing.

    A library that cannot be mapped lies on a mount without execution, or has no address space left. The first
    is excluded where the same package was loaded before.
    """
    if "out_of_memory" in error.candidates:
        return True
    return (
        error.family.id == _NOT_MAPPED
        and isinstance(phase, CapturedLoad)
        and any(load.outcome == "ok" and load.package == phase.package for load in capture.loads)
    )


def _by_outputs(outputs: RetainedOutputs, fact: Evidence, case: DiagnosisState) -> Suspect:
    line = case.call_locations[0] if case.call_locations else None
    what = f"{outputs.bytes} bytes of outputs of {counted(outputs.calls, 'earlier call')}"
    return Suspect(
        category="out_of_memory",
        guilty=Component(
            kind="script",
            name=f"{line.file}:{line.line}" if line is not None else "the program",
            value=what,
            model_locations=case.call_locations,
        ),
        summary=f"There is no memory left: the program still holds {what}.",
        level=CausalLevel.BUILD,
        evidence=(fact, seen("capture", f"the memory of {counted(outputs.calls, 'output')} is still in use")),
        fix=Fix(
            action="release outputs that were used. A view keeps the memory of the whole output: clone() the "
            "part that is kept",
            before="kept.append(y[0])",
            after="kept.append(y[0].clone())",
        ),
        intervention=_released(outputs.bytes, case),
    )


def _released(freed: int, case: DiagnosisState) -> Intervention | None:
    """The same call with as much more memory as the outputs use; None where its memory was not limited."""
    steps = list(case.call.steps) if case.call is not None else []
    if not steps or "headroom" not in steps[-1]:
        return None
    steps[-1] = {**steps[-1], "headroom": steps[-1]["headroom"] + freed}
    return Intervention(
        key="call:released",
        kind=Kind.CALL,
        what="the call with the memory of the earlier outputs released",
        options=Options(steps=tuple(steps)),
    )


def _by_loads(loads: list[CapturedLoad], phase: Phase, fact: Evidence) -> Suspect:
    where = phase.stack or [line for load in loads for line in load.stack[:1]]
    name = loads[0].package.name
    return Suspect(
        category="out_of_memory",
        guilty=Component(
            kind="call",
            name=f"aoti_load_package({name})",
            value=f"{len(loads)} loads alive",
            model_locations=where[:4],
        ),
        summary=f"There is no memory left: {name} is loaded {len(loads)} times at once, and each load maps "
        f"its own constants and code ({loads[0].bytes} bytes in the package).",
        level=CausalLevel.BUILD,
        evidence=(fact, seen("capture", f"{counted(len(loads), 'load')} of {name} were never released")),
        fix=Fix(
            action="load a package once and share its runner, or drop every reference to a runner before the "
            "next is loaded"
        ),
    )


def detect_lost_constants(case: DiagnosisState) -> Iterator[Suspect]:
    """Constants whose memory cannot be read any more, while the package reads it in place."""
    call = case.capture.failing if case.capture is not None else None
    if call is None or not call.lost:
        return
    name, file = next(iter(call.lost.items()))
    others = f" and {counted(len(call.lost) - 1, 'other')}" if len(call.lost) > 1 else ""
    why = f"its file {file} is shorter than what was mapped" if file else "the memory was freed or unmapped"
    yield Suspect(
        category="constants",
        guilty=Component(
            kind="constant", name=name, value="unreadable memory", model_locations=case.call_locations
        ),
        summary=f"The memory of constant {name}{others} cannot be read: {why}. The package reads it in place "
        "(user_managed=True), so the call ends in a signal.",
        level=CausalLevel.STATE,
        evidence=(
            seen("capture", f"before the call {counted(len(call.lost), 'constant')} could not be read"),
        ),
        fix=Fix(
            action="keep the file of mapped weights as it is while the package is in use (replace it by a "
            "rename), or give the package its own copy",
            before="user_managed=True",
            after="user_managed=False",
        ),
    )
