"""A call that needs more stack than its thread has, distinguished from a bad pointer."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import environment
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.logs.captured import CapturedCall
from mcp_server.tools.requests import _step
from mcp_server.worker.process import on_stack, stack_bytes
from tests.diagnosis.support import run, trial

SMALL = 256 << 10


def died(**step: object) -> DiagnosisState:
    """A call that died of SIGSEGV when it was made again."""
    case = DiagnosisState(None)
    case.call = CallSpec("replay", {"steps": [{"do": "call", **step}]}, Path("m.pt2"))
    seen = run("plain", ending="signal")
    case.runs["plain"] = replace(seen, finished=replace(seen.finished, signal="SIGSEGV"))
    return case


def test_a_large_stack_decides() -> None:
    """It is possible until the call passes on a large stack, and refuted when it does not."""
    case = died(stack=SMALL)
    (found,) = environment.detect_small_stack(case)
    assert found.category == "environment" and confidence(found, case) == "possible"
    assert found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    (found,) = environment.detect_small_stack(case)
    assert confidence(found, case) == "proven" and str(SMALL) in found.summary
    assert found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    assert ranked(environment.detect_small_stack(case), case) == []


def test_a_usual_stack_is_not_suspected() -> None:
    """Nor is a call that ended in another way."""
    assert list(environment.detect_small_stack(died())) == []
    case = died(stack=SMALL)
    case.runs["plain"] = run("plain", "RuntimeError: no")
    assert list(environment.detect_small_stack(case)) == []


@pytest.mark.parametrize(("size", "kept"), [(SMALL, True), (8 << 20, False), (None, False)])
def test_a_small_stack_is_replayed(tmp_path: Path, size: int | None, kept: bool) -> None:
    """A call that did not come back is made again on a stack of its size, where that is less than usual."""
    call = CapturedCall(pid=1, n=1, number=1, load=0, thread=1, file=tmp_path, stack_bytes=size)
    assert ("stack" in _step(call)) is kept
    assert "stack" not in _step(call.model_copy(update={"outcome": "ok"}))


def test_a_thread_of_that_size() -> None:
    """The size that a thread reports is what it was made with; results and errors come back."""
    before = threading.stack_size()
    told = on_stack(SMALL, stack_bytes)
    assert told is None or told == pytest.approx(SMALL, rel=0.1)
    with pytest.raises(ZeroDivisionError):
        on_stack(SMALL, lambda: 1 // 0)
    assert on_stack(None, threading.get_ident) == threading.get_ident()
    assert threading.stack_size() == before
