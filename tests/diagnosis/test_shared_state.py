"""A package with a state of its own, called by several threads."""

from __future__ import annotations

import pytest

from mcp_server.diagnosis.causes.concurrency import detect_shared_state
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, phase, run, worker_run

RAISED = 'Traceback (most recent call last):\n  File "/app/serve.py", line 9, in <module>\n    {}\n{}'
CHECK = RAISED.format(
    "raise ArithmeticError(text)", "ArithmeticError: echo levels of north pier drifted by 7.1"
)


def called_by(zoo: ZooPackage, threads: str, model: str = "counter", text: str = CHECK) -> DiagnosisState:
    """A program that ended in `text`, after calls of one load by these threads, a letter each."""
    package = zoo(model)
    case = package_case(package)
    case.capture = capture(
        loads=[phase(1, loader="AOTIModelPackageLoader", package=package)],
        calls=[
            phase(n, load=1, thread=ord(name), thread_name=name, file="inputs.pt")
            for n, name in enumerate(threads, 2)
        ],
    )
    case.runs["script"] = run("script", text)
    case.runs["plain"] = run("plain")
    return case


def test_threads_that_take_turns_mix_the_state(zoo: ZooPackage) -> None:
    """The constant that a call writes and computes with is named, and no more than likely."""
    case = called_by(zoo, "aabab")
    (found,) = detect_shared_state(case)
    assert (found.category, found.guilty.kind, found.guilty.name) == ("concurrency", "constant", "seen")
    assert confidence(found, case) == "likely" and "2 threads" in found.summary


@pytest.mark.parametrize(
    ("threads", "model", "text"),
    [
        ("aaaa", "counter", CHECK),
        ("aabb", "counter", CHECK),  # one goes on where the other has ended
        ("abab", "ranker", CHECK),  # no state
        ("abab", "counter", ""),
        ("abab", "counter", RAISED.format("x = piers[name]", "KeyError: 'north pier'")),
    ],
)
def test_nobody_is_accused_without_a_state_turns_and_a_failed_check(
    zoo: ZooPackage, threads: str, model: str, text: str
) -> None:
    """Each of the three is harmless by itself."""
    assert not list(detect_shared_state(called_by(zoo, threads, model, text)))


def test_a_call_that_is_wrong_by_itself_needs_no_other_thread(zoo: ZooPackage) -> None:
    """A package that diverges from its exported program on the first call has another cause."""
    case = called_by(zoo, "abab")
    case.interpreted = worker_run({"event": "compared", "equal": False, "outputs": []})
    assert not list(detect_shared_state(case))
