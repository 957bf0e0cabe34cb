"""Constants whose memory the package shares with the program, or copies from a view of a larger block.

With `user_managed=True` the package reads the program's own memory (torch 2.8-2.15): what is written there
later, through whatever view of it, the package computes with. A call that is made again gets the values as
they were given, so that it shows what it would have been without the writes.

`update_constant_buffer` copies `aoti_torch_get_storage_size` bytes from the address of a view, and reads the
copy with the offset that the view had in its block (torch/csrc/inductor/aoti_runtime/model_container.h,
2.8-2.15): it reads and writes beyond the constant, and computes with what lies further on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.causes.common import component, seen, written_storages
from mcp_server.diagnosis.causes.constants import OfUpdate, updated_constant
from mcp_server.diagnosis.interventions.input import constant_own_memory
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.logs.captured import CapturedAssertion, CapturedCall, CapturedEnd, CapturedUpdate
from mcp_server.model import Fix
from mcp_server.tools.context import Event

MOST_NAMED = 4

AS_LOADED = "with the constants as originally loaded"


@dataclass(frozen=True)
class _Changed:
    """Constants with other values than those of `update`; `fact` says how that was seen."""

    names: list[str]
    update: CapturedUpdate
    fact: str


@dataclass(frozen=True)
class _Again:
    """What the call made again shows, in words. `expected`: that it is right so; `weak`: too little."""

    what: str
    expected: bool = False
    weak: bool = False


def detect_altered_constants(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the call with the values as given is what the program expected."""
    call = case.capture.suspect if case.capture is not None else None
    changed = _changed(call, case) if call is not None else None
    again = _as_given(call, changed, case) if call is not None and changed is not None else None
    if call is None or changed is None or again is None:
        return
    shown = ", ".join(changed.names[:MOST_NAMED])
    yield OfUpdate(
        guilty=component(
            "constant",
            changed.names[0],
            [*changed.update.stack[:1], *call.stack[:1]],
            value="written by the program after the update",
        ),
        summary="The program changed constants that it shares with the package (user_managed=True), so that "
        f"the call computes with other values: {shown}.",
        evidence=(seen("capture", changed.fact), seen("run", again.what)),
        fix=Fix(
            action="give the package memory of its own, into which nothing else is written: clones of the "
            "weights (with user_managed=False, too, whole storages are copied: no views of one block)",
            after="{name: value.clone() for name, value in weights.items()}",
        ),
        harmful=case.failed,
        weak=again.weak,
        observed=again.expected,
    )


def _changed(call: CapturedCall, case: DiagnosisState) -> _Changed | None:
    """By the values at the call; where nobody read them by the count of writes, else when a check failed."""
    own = written_by_calls(case)
    check = _check(call, case)
    if call.refilled is not None:
        names = [name for name in call.refilled if name not in own]
        fact = "{} had other values at the call than {} gave"
    elif call.altered:
        names, fact = call.altered, "{} were written in place between {} and the call"
    else:
        later = check.refilled.get(call.load, []) if check is not None else []
        names = [name for name in later if name not in own]
        fact = "{} had other values when the check failed than {} gave"
    updates = case.capture.updates if case.capture is not None else []
    same = [u for u in updates if (u.pid, u.load) == (call.pid, call.load) and u.n < call.n]
    update = next((u for u in reversed(same) if names and names[0] in u.constants), None)
    if update is None:
        return None
    counted = f"{len(names)} constants" if len(names) > 1 else "1 constant"
    return _Changed(names, update, f"{fact.format(counted, update.how)}: {', '.join(names[:MOST_NAMED])}")


def written_by_calls(case: DiagnosisState) -> set[str]:
    """Constants that the calls themselves change, as buffers of the model; all where that is not known."""
    if case.view is None or case.package is None:
        updates = case.capture.updates if case.capture is not None else []
        return {name for update in updates for name in update.constants}
    storages, buffers = written_storages(case), case.view.wrapper.buffers
    names = {c.name for c in buffers.values() if c.kind == "constant" and c.storage in storages}
    return {constant.fqn for constant in case.package.constants if constant.name in names}


def _check(call: CapturedCall, case: DiagnosisState) -> CapturedAssertion | CapturedEnd | None:
    """The first check that failed after the call."""
    assert case.capture is not None
    checks: list[CapturedAssertion | CapturedEnd] = [*case.capture.assertions, *case.capture.ends]
    later = [check for check in checks if check.pid == call.pid and check.n > call.n]
    return min(later, key=lambda check: check.n, default=None)


def _as_given(call: CapturedCall, changed: _Changed, case: DiagnosisState) -> _Again | None:
    """None where the call made again shows nothing of the writes, or that they do not matter."""
    plain = case.runs.get("plain")
    if plain is None or plain.failure != "none" or plain.worker is None:
        return None
    expected, gave = plain.worker.last("compared_expected"), plain.worker.last("compared_returned")
    if expected is not None and expected["equal"]:
        return _Again(f"{AS_LOADED}, the call returns what the program expected", True)
    if call.outcome == "failed":
        return _Again(f"{AS_LOADED}, the call returns", weak=True)
    if gave is not None:
        return _against_returned(call, changed, gave, case)
    if plain.held and not all(plain.held.values()):
        return _Again(f"{AS_LOADED}, the same call returns different outputs")
    return None


def _against_returned(
    call: CapturedCall, changed: _Changed, gave: Event, case: DiagnosisState
) -> _Again | None:
    """What the program got is known: right is what its check compared that with, if it has given values."""
    plain, check = case.runs["plain"], _check(call, case)
    if gave["equal"]:
        return None
    other = f"{AS_LOADED}, the same call returns different outputs"
    names = check.compared if isinstance(check, CapturedEnd) else []
    compared = {**plain.held, **plain.attributes_compared}
    now = {name: equal for name, equal in compared.items() if name in names}
    reached = [name for name, equal in now.items() if equal and not gave["held"].get(name)]
    if reached and all(equal or gave["held"].get(name) for name, equal in now.items()):
        return _Again(f"{other}, and what the check compared with, {reached[0]!r}", True)
    modules = [m for m in check.modules if m.name in names] if check is not None else []
    near = [m for m in modules if set(changed.names) <= m.digests.keys()]
    given = changed.update.digests
    if near and all(m.digests[name] == given.get(name) for m in near for name in changed.names):
        return _Again(f"{other}; {near[0].name}, which the check names, has the values as given", True)
    return _Again(other, weak=True)


COPIES = ("load_constants", "update_constant_buffer")  # by storage; what the program manages is not copied


def detect_viewed_constants(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, for the update that did not come back, else the last one before the suspect call.

    It was given views, and may belong to another package of that process: what is written beyond a constant
    is anyone's memory.
    """
    capture = case.capture
    call = capture.suspect if capture is not None else None
    updates = capture.updates if capture is not None else []
    given = [u for u in updates if u.views and u.how in COPIES and not u.user_managed]
    before = [u for u in given if call is None or (u.pid == call.pid and u.n <= call.n)]
    suspects = [u for u in given if u.outcome != "ok"] or before
    if not suspects:
        return
    update = suspects[-1]
    names, shown = update.views, ", ".join(update.views[:4])
    fact = f"{len(names)} constants given to {update.how} are parts of larger storages: {shown}"
    yield OfUpdate(
        guilty=updated_constant(names[0], update, "a view of a larger block of memory"),
        summary=f"{update.how} was given views of a larger block, and copies as many bytes as that has, from "
        f"where each view begins: {shown}.",
        evidence=(seen("capture", fact, str(update.file or "")),),
        fix=Fix(
            action="give each constant memory of its own",
            before=f"{names[0]!r}: view",
            after=f"{names[0]!r}: view.clone()",
        ),
        intervention=constant_own_memory(names),
        observed=False,
        harmful=case.failed,
    )
