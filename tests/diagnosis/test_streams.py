"""Inputs that another stream still writes, and CUDA graphs that read inputs which are gone."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from mcp_server.diagnosis.causes import concurrency
from mcp_server.diagnosis.observe.calls import RunAlone
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.model import ScriptWorkload
from mcp_server.tools.context import Context
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, phase, run


def call(n: int, **more: object) -> dict[str, object]:
    """A captured call at a line of its own."""
    return phase(n, load=1, thread=1, stack=[{"file": "a.py", "line": n, "code": f"step{n}(x)"}], **more)


def seen(**records: object) -> DiagnosisState:
    """A case in which the program ran under the hook and failed."""
    case = DiagnosisState(None)
    case.capture = capture(**records)  # type: ignore[arg-type]
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    return case


def test_an_input_that_is_still_written_is_a_race() -> None:
    """The first call whose input changed under it is named, with its line."""
    (found,) = concurrency.detect_streams(seen(calls=[call(3), call(5, raced=[1]), call(7, raced=[0])]))
    assert found.category == "concurrency" and found.harmful
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 1)
    assert found.guilty.model_locations[0].line == 5


def test_an_input_that_the_package_writes_is_no_race(zoo: ZooPackage) -> None:
    """`counter` adds to its input in place: it may hold other values after the call."""
    case = package_case(zoo("counter"))
    case.capture = capture(calls=[call(3, raced=[0])])
    assert list(concurrency.detect_streams(case)) == []


def test_a_replay_without_its_input_is_named_at_both_lines() -> None:
    """The line of the replay comes first, then the call in the captured graph."""
    replay = phase(9, call=1, input=0, stack=[{"file": "a.py", "line": 40, "code": "graph.replay()"}])
    (found,) = concurrency.detect_streams(seen(calls=[call(3)], replays=[replay]))
    assert [place.line for place in found.guilty.model_locations] == [40, 3]
    assert found.guilty.input_index == 0


def test_calls_in_order_are_no_fault() -> None:
    """Without a race or a lost input nothing is said."""
    assert list(concurrency.detect_streams(seen(calls=[call(3), call(5)]))) == []


def let_go(*, fails: bool) -> DiagnosisState:
    """A program that let an input go too early, and that failed under the hook or not."""
    case = seen(calls=[call(3)], cross_stream_frees=[phase(9, call=1, input=1)])
    if not fails:
        case.runs["script"] = run("script")
    return case


def test_an_input_that_is_let_go_is_no_fault_by_itself() -> None:
    """The program ended well under the hook, and nobody ran it alone yet."""
    case = let_go(fails=False)
    (found,) = concurrency.detect_streams(case)
    assert not found.harmful and RunAlone().gain(case, [found]) > 0
    assert RunAlone().gain(seen(calls=[call(3)]), []) == 0


def test_a_program_that_fails_only_alone_lost_its_input(tmp_path: Path) -> None:
    """It is run without the hook; that it fails there, and not where calls are waited for, is the proof."""
    script = tmp_path / "serve.py"
    script.write_text("import os, sys\nsys.exit('AOTI_DEBUG_CAPTURE' not in os.environ)\n")
    case = let_go(fails=False)
    case.workload = ScriptWorkload(script=script, cwd=tmp_path)
    anyio.run(RunAlone().act, case, Context(tmp_path / "job", Path(sys.executable)))
    assert case.fails_only_alone and case.failed and not case.ended_well
    (found,) = concurrency.detect_streams(case)
    assert found.harmful and confidence(found, case) == "likely"
    assert (found.category, found.guilty.input_index) == ("concurrency", 1)
    assert found.guilty.model_locations[0].line == 3


def test_a_program_that_fails_under_the_hook_too_may_have_another_fault() -> None:
    """Waiting for each call would have hidden the race: it is only possible."""
    (found,) = concurrency.detect_streams(let_go(fails=True))
    assert confidence(found, let_go(fails=True)) == "possible"
