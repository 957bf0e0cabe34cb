"""A package that keeps a state in its own constants, which several threads call in turn."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from mcp_server.diagnosis.causes.common import check_failed, component, launch_lines, seen, written_storages
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall
from mcp_server.model import Fix
from mcp_server.package.launches import Buffer
from mcp_server.plurals import counted


def detect_shared_state(case: DiagnosisState) -> Iterator[Suspect]:
    """The state that threads share, where only a check of the program failed and the call itself is right."""
    capture, load = case.capture, case.suspect_load
    wrong_alone = case.failure_of("plain") not in (None, "none", "differs")
    if capture is None or load is None or wrong_alone or case.equals_eager is False or not check_failed(case):
        return
    mixed = [call for call in capture.calls if (call.pid, call.load) == (load.pid, load.number)]
    threads = in_turn(mixed)
    for state in states(case) if threads else ():
        yield _suspect(state, threads, mixed, case)
        return


def states(case: DiagnosisState) -> list[Buffer]:
    """The constants that a call writes and on which its outputs depend."""
    if case.view is None:
        return []
    written, flow = written_storages(case), case.view.flow
    found = [b for b in case.view.wrapper.buffers.values() if b.kind == "constant" and b.storage in written]
    return [buffer for buffer in found if flow.forward([buffer.name]).outputs]


def in_turn(calls: list[CapturedCall]) -> list[str]:
    """The names of the threads, if one called again after another had; else none.

    One thread that goes on where another has ended may well continue its state.
    """
    order = sorted(calls, key=lambda call: call.t)
    turns = [key for key, _ in groupby(order, key=lambda call: (call.thread, call.thread_name))]
    first = next((n for n, turn in enumerate(turns) if turn in turns[n + 1 :]), len(turns))
    return [name for _, name in dict.fromkeys(turns[first:])]


def _suspect(state: Buffer, threads: list[str], calls: list[CapturedCall], case: DiagnosisState) -> Suspect:
    assert case.view is not None and case.package is not None
    fqn = next((c.fqn for c in case.package.constants if c.name == state.name), state.name)
    writers = case.view.writers.get(state.storage, [])
    own = case.exported.in_place if case.exported is not None else []
    behind = next((found for number in writers if (found := launch_lines(number, case))), [])
    lines = [*calls[-1].stack[:1], *(own[:2] or behind)]
    shown = ", ".join(threads[:3])
    return Suspect(
        category="concurrency",
        guilty=component("constant", fqn, lines, value=f"one state for {len(threads)} threads"),
        summary=f"Every call of the package updates its constant {fqn} and computes with it, and "
        f"{len(threads)} threads call one loaded package in turn ({shown}): each goes on from the state that "
        "another left.",
        level=CausalLevel.STATE,
        evidence=(
            seen("inspect_package", f"a call writes constant {fqn}, and its outputs depend on it"),
            seen("capture", f"{shown} took turns in {counted(len(calls), 'call')} of one load"),
        ),
        fix=Fix(
            action="load the package once for each stream of calls, or make the state an input and an output "
            "of the model",
        ),
        harmful=case.failed,
        only_in_program=True,
    )
