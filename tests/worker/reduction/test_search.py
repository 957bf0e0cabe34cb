"""Delta debugging: what a failure needs, which candidates count as failing alike, and their clock."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from math import log2
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.logs.families import BY_ID
from mcp_server.runtime.context import read_events, stream_events
from mcp_server.tools.reduce.failing import STATUS, FailureShown, Kind
from mcp_server.worker.events import Kept
from mcp_server.worker.protocol import FailureClass
from mcp_server.worker.reduction import script, trials
from mcp_server.worker.reduction.minimise import minimise, split
from mcp_server.worker.reduction.program import Cut, Plan, Program, Uncuttable
from mcp_server.worker.reduction.script import Setting
from mcp_server.worker.reduction.trials import Limits, OutOfTime, Trials, is_gone, shown_by
from mcp_server.worker.report import Report


class Oracle:
    """Fails when all that is needed is there; counts the rounds."""

    def __init__(self, needed: frozenset[int]) -> None:
        self.needed = needed
        self.rounds = 0

    def first_failing(self, options: Sequence[Sequence[int]]) -> int | None:
        self.rounds += 1
        return next((n for n, option in enumerate(options) if self.needed <= set(option)), None)


sizes = st.integers(1, 60)
needs = sizes.flatmap(lambda size: st.tuples(st.just(size), st.frozensets(st.integers(0, size - 1))))


@given(needs)
def test_exactly_what_is_needed_is_left(case: tuple[int, frozenset[int]]) -> None:
    """When the failure needs certain elements and no others, these are found, in their order."""
    size, needed = case
    left = minimise(range(size), Oracle(needed).first_failing)
    assert list(left) == sorted(needed) if needed else len(left) == 1


@given(st.integers(2, 2000), st.data())
def test_one_element_is_found_by_halving(size: int, data: st.DataObject) -> None:
    """A failure of one element takes a logarithmic number of rounds."""
    oracle = Oracle(frozenset([data.draw(st.integers(0, size - 1))]))
    assert minimise(range(size), oracle.first_failing) == tuple(oracle.needed)
    assert oracle.rounds <= log2(size) + 2


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1), min_size=1, max_size=6))
def test_nothing_can_be_left_out_of_the_result(ways: list[frozenset[int]]) -> None:
    """A failure that comes about in several ways is cut down to one of which every element is needed."""

    def fails(kept: Sequence[int]) -> bool:
        return any(way <= set(kept) for way in ways)

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        return next((n for n, option in enumerate(options) if fails(option)), None)

    left = minimise(range(12), first_failing)
    assert fails(left)
    assert len(left) == 1 or not any(fails([x for x in left if x != out]) for out in left)


@given(st.lists(st.integers()), st.integers(1, 8))
def test_parts_are_the_whole(items: list[int], pieces: int) -> None:
    """Parts are consecutive and lose nothing."""
    assert [item for part in split(items, pieces) for item in part] == items


def scripts(monkeypatch: pytest.MonkeyPatch, by_node: dict[str, str]) -> None:
    """Plans stand for small scripts by their first node: what is tried here is the trying."""

    def write(found: Cut, _made: Any, _setting: Any, directory: str) -> None:
        (Path(directory) / "repro.py").write_text(by_node[next(iter(found.arguments))])

    monkeypatch.setattr(trials, "write", write)


def made(plan: Plan) -> Cut:
    if "uncuttable" in plan.keep:
        raise Uncuttable("no value was recorded")
    return Cut(torch.fx.Graph(), {plan.keep[0]: torch.ones(2)})


def trials_in(tmp_path: Path, seconds: float = 60) -> Trials:
    limits = Limits(time.monotonic() + seconds, 60, 2)
    failure = FailureClass("error", phase="calling", essence="no such size")
    report = Report(str(tmp_path / "report.jsonl"))
    setting = Setting("title", {}, {}, ())
    empty = Program(torch.fx.GraphModule({}, torch.fx.Graph()), (), {}, frozenset(), {})
    return Trials(empty, made, failure, setting, limits, True, str(tmp_path), report)


FAILS = "print('phase: calling', flush=True); raise ValueError('no such size')"
OTHER = "print('phase: calling', flush=True); raise KeyError('another')"


def test_the_first_that_fails_alike_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several that fail the first in order counts, though a later one ended earlier; it is kept."""
    slow = "import time; time.sleep(0.5); " + FAILS
    scripts(monkeypatch, {"healthy": "", "other": OTHER, "slow": slow, "quick": FAILS})
    tried = trials_in(tmp_path)
    plans = [Plan((name,)) for name in ("uncuttable", "other", "healthy", "slow", "quick")]
    assert tried.first_failing(plans) == 3
    (*_, kept) = stream_events(tmp_path / "report.jsonl", Kept)
    assert (kept.real, kept.bytes) == (["slow"], 8)
    assert slow == (tmp_path / "best" / "repro.py").read_text()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "best",
        Path(kept.directory).name,
    }


def test_nothing_is_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was seen to be healthy, or to fail, is not run again."""
    scripts(monkeypatch, {"healthy": "", "fails": FAILS})
    tried = trials_in(tmp_path)
    for _ in range(2):
        assert tried.first_failing([Plan(("healthy",)), Plan(("fails",))]) == 1
        assert tried.first_failing([Plan(("healthy",))]) is None
    events = read_events(tmp_path / "report.jsonl")
    assert [event.event for event in events].count("candidate") == 2


def test_the_end_of_the_search_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that the search's own clock ended is neither healthy nor failing."""
    scripts(monkeypatch, {"slow": "import time; time.sleep(60)"})
    tried = trials_in(tmp_path, seconds=0.5)
    with pytest.raises(OutOfTime):
        tried.first_failing([Plan(("slow",))])
    assert tried.tried == {}


INDEX = "what():  index out of bounds: 0 <= tmp7 < 1000L"
SMALLER = "noise\n  what():  index out of bounds: 0 <= tmp2 < 8L\nmore"
ABORT = FailureShown(kind="crash", signal="SIGABRT", family="cpu_index_assert", text=INDEX)
UNKNOWN = FailureShown(kind="error", phase="compiling", text="ValueError: 7 is no size of /tmp/a1.py")
LOWERING = FailureShown(
    kind="error",
    phase="compiling",
    family="lowering",
    text="torch._inductor.exc.InductorError: LoweringException: AssertionError: cpp_fused_a_1 has no dtype",
)


def class_of(shown: FailureShown) -> FailureClass:
    return shown.request()


@pytest.mark.parametrize(
    ("shown", "status", "phase", "text", "same"),
    [
        (ABORT, -signal.SIGABRT, "calling", SMALLER, True),
        (ABORT, -signal.SIGSEGV, "calling", SMALLER, False),
        (ABORT, -signal.SIGABRT, "calling", "free(): invalid pointer", False),
        (ABORT, 1, "calling", SMALLER, False),
        (ABORT, None, "calling", SMALLER, False),
        (UNKNOWN, 1, "compiling", "ValueError: 12 is no size of /tmp/b7.py", True),
        (UNKNOWN, 1, "loading", "ValueError: 12 is no size of /tmp/b7.py", False),
        (UNKNOWN, 1, "compiling", "KeyError: 12", False),
        (LOWERING, 1, "compiling", LOWERING.text.replace("a_1", "b_2"), True),
        (LOWERING, 1, "compiling", LOWERING.text.replace("has no dtype", "has no size"), False),
        (
            FailureShown(kind="not_finite", nan=True),
            3,
            "",
            "not finite: output 0 holds 2 nan and 0 inf",
            True,
        ),
        (
            FailureShown(kind="not_finite", nan=True),
            3,
            "",
            "not finite: output 0 holds 0 nan and 2 inf",
            False,
        ),
        (FailureShown(kind="not_finite"), 3, "", "not finite: output 0 holds 0 nan and 2 inf", True),
        (FailureShown(kind="not_finite"), 0, "", "", False),
        (FailureShown(kind="departs"), 4, "", "departs: output 0", True),
        (FailureShown(kind="departs"), 5, "exporting", "", False),
    ],
)
def test_only_the_same_failure_counts(
    shown: FailureShown, status: int | None, phase: str, text: str, same: bool
) -> None:
    """Signal, phase and family of text must agree; what changes from run to run does not matter."""
    assert shown_by(class_of(shown), status, phase, text) is same


@pytest.mark.parametrize(
    ("kind", "status", "text", "absent"),
    [
        ("departs", 0, "", True),
        ("departs", 3, "not finite: output 0 holds 0 nan and 3 inf of 3", True),
        ("departs", 3, "not finite: output 0 holds 0 nan and 3 inf of 3\ndeparts: output 0 in 3", False),
        ("departs", 4, "departs: output 0 in 3 of 3 elements", False),
        ("not_finite", 3, "not finite: output 0 holds 0 nan and 3 inf of 3", False),
    ],
)
def test_an_infinity_of_eager_mode_is_no_difference(kind: Kind, status: int, text: str, absent: bool) -> None:
    """A package that gives eager's infinity has nothing left of a failure that was another number."""
    assert is_gone(class_of(FailureShown(kind=kind)), status, text) is absent


def test_the_family_is_what_the_log_reader_knows() -> None:
    """The patterns that a candidate is held against are those of the error family."""
    assert list(ABORT.request().patterns) == [p.pattern for p in BY_ID["cpu_index_assert"].patterns]


def test_both_sides_agree_on_the_exit_status() -> None:
    """What the script exits with is what the server takes it for."""
    assert (STATUS["not_finite"], STATUS["departs"]) == (script.NOT_FINITE, script.DEPARTS)
