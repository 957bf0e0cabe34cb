"""Candidates that are tried: the first that fails counts, and the clock of the search is no verdict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.tools.context import read_events
from mcp_server.worker.reduction import trials
from mcp_server.worker.reduction.program import Cut, Plan, Program, Uncuttable
from mcp_server.worker.reduction.script import Setting
from mcp_server.worker.reduction.trials import FailureClass, Limits, OutOfTime, Trials
from mcp_server.worker.report import Report


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
    kept = read_events(tmp_path / "report.jsonl")[-1]
    assert (kept["event"], kept["real"], kept["bytes"]) == ("kept", ["slow"], 8)
    assert slow == (tmp_path / "best" / "repro.py").read_text()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "best",
        Path(kept["directory"]).name,
    }


def test_nothing_is_tried_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was seen to be healthy, or to fail, is not run again."""
    scripts(monkeypatch, {"healthy": "", "fails": FAILS})
    tried = trials_in(tmp_path)
    for _ in range(2):
        assert tried.first_failing([Plan(("healthy",)), Plan(("fails",))]) == 1
        assert tried.first_failing([Plan(("healthy",))]) is None
    events = read_events(tmp_path / "report.jsonl")
    assert [event["event"] for event in events].count("candidate") == 2


def test_the_end_of_the_search_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that the search's own clock ended is neither healthy nor failing."""
    scripts(monkeypatch, {"slow": "import time; time.sleep(60)"})
    tried = trials_in(tmp_path, seconds=0.5)
    with pytest.raises(OutOfTime):
        tried.first_failing([Plan(("slow",))])
    assert tried.tried == {}
