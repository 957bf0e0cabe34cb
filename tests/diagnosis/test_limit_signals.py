"""A program that its own limit on processor time, or on the size of a file, ended."""

from __future__ import annotations

import resource

import pytest

from mcp_server.diagnosis.causes import environment
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.diagnosis.verdict import confidence
from mcp_server.jobs.types import Finished
from mcp_server.logs.log import read_log
from mcp_server.worker.process import processor_seconds
from tests.diagnosis.support import LOG, capture, phase, run

LINE = {"file": "serve.py", "line": 41, "code": "model(frames)"}


def ended(signal: str, wall_s: float = 9.0, **more: object) -> DiagnosisState:
    """A program that this signal ended within a call."""
    case = DiagnosisState(None)
    call = phase(3, load=1, thread=1, stack=[LINE]) | {"outcome": "unfinished"} | more
    case.capture = capture(calls=[call])
    case.runs["script"] = RunSeen(
        "script", Finished("signal", None, signal, wall_s, LOG, LOG, LOG), read_log([])
    )
    return case


def test_no_processor_time_was_left() -> None:
    """The signal names the limit, the hook its value: two sources, at the line of the call."""
    case = ended("SIGXCPU", processor_s=8)
    (found,) = environment.detect_limit_signals(case)
    assert (found.category, found.guilty.name, found.guilty.value) == (
        "environment",
        "processor time",
        "limit 8 s",
    )
    assert found.guilty.model_locations[0].line == 41 and confidence(found, case) == "likely"


@pytest.mark.parametrize(("limit", "wall_s", "expected"), [(8, 9.0, 1), (8, 5.0, 0), (None, 9.0, 0)])
def test_a_hard_limit_kills(limit: int | None, wall_s: float, expected: int) -> None:
    """SIGKILL has other causes, so it needs a limit that may be used up, and is never proven by that."""
    case = ended("SIGKILL", wall_s, processor_s=limit)
    found = list(environment.detect_limit_signals(case))
    assert len(found) == expected
    assert all(confidence(each, case) == "possible" for each in found)


def test_a_file_that_grew_too_large() -> None:
    """The hook need not have seen the limit; that the call goes well elsewhere confirms it."""
    case = ended("SIGXFSZ")
    case.runs["plain"] = run("plain")
    (found,) = environment.detect_limit_signals(case)
    assert (found.guilty.name, found.guilty.value) == ("file size", "RLIMIT_FSIZE")
    assert confidence(found, case) == "likely"


@pytest.mark.parametrize("signal", ["SIGSEGV", "SIGKILL"])
def test_other_signals_are_others(signal: str) -> None:
    """A crash, and a kill without such a limit, say nothing of one."""
    assert list(environment.detect_limit_signals(ended(signal))) == []


def test_the_limit_of_a_process_is_told() -> None:
    """Seconds where there is a limit, None where there is none."""
    soft = resource.getrlimit(resource.RLIMIT_CPU)[0]
    assert processor_seconds() == (None if soft == resource.RLIM_INFINITY else soft)
