"""Inputs that another stream still writes, and CUDA graphs that read inputs which are gone."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors import streams
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, phase, run


def call(n: int, **more: object) -> dict[str, object]:
    """A captured call at a line of its own."""
    return phase(n, load=1, thread=1, stack=[{"file": "a.py", "line": n, "code": f"step{n}(x)"}], **more)


def seen(**records: object) -> Case:
    """A case in which the program ran under the hook and failed."""
    case = Case(None)
    case.capture = capture(**records)  # type: ignore[arg-type]
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    return case


def test_an_input_that_is_still_written_is_a_race() -> None:
    """The first call whose input changed under it is named, with its line."""
    (found,) = streams.detect(seen(calls=[call(3), call(5, raced=[1]), call(7, raced=[0])]))
    assert found.category == "concurrency" and found.harmful
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 1)
    assert found.guilty.model_locations[0].line == 5


def test_an_input_that_the_package_writes_is_no_race(zoo: ZooPackage) -> None:
    """`counter` adds to its input in place: it may hold other values after the call."""
    case = package_case(zoo("counter"))
    case.capture = capture(calls=[call(3, raced=[0])])
    assert list(streams.detect(case)) == []


def test_a_replay_without_its_input_is_named_at_both_lines() -> None:
    """The line of the replay comes first, then the call in the captured graph."""
    replay = phase(9, call=1, input=0, stack=[{"file": "a.py", "line": 40, "code": "graph.replay()"}])
    (found,) = streams.detect(seen(calls=[call(3)], replays=[replay]))
    assert [place.line for place in found.guilty.model_locations] == [40, 3]
    assert found.guilty.input_index == 0


def test_calls_in_order_are_no_fault() -> None:
    """Without a race or a lost input nothing is said."""
    assert list(streams.detect(seen(calls=[call(3), call(5)]))) == []
