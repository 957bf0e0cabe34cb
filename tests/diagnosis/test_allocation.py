"""Memory that did not suffice: the call with smaller inputs, and the limit that the program set itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.case import Case, CounterResult
from mcp_server.diagnosis.detectors import allocation, data_size
from mcp_server.diagnosis.judge import confidence, refuted
from mcp_server.evidence.captured import CapturedCall
from mcp_server.package.buffers import Buffer
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.symbols import Symbol
from mcp_server.steps.replay_plan import _step
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, phase, run

REQUEST = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."
ROWS = 1_000_000


def too_large(zoo: ZooPackage) -> Case:
    """A call whose hidden layer has no room."""
    case = package_case(zoo("ranker"), GivenTensor("int64", (ROWS, 6)))
    case.runs["plain"] = run("plain", REQUEST.format(ROWS * 6 * 32 * 4))
    return case


def test_a_smaller_call_that_passes_proves_it(zoo: ZooPackage) -> None:
    """The dimension that the buffer grows with is cut; a smaller call that fails too refutes nothing."""
    case = too_large(zoo)
    (found,) = allocation.detect(case)
    assert found.counter is not None and confidence(found, case) == "likely"
    changes = [{k: c[k] for k in ("change", "input", "dim")} for c in found.counter.changes]
    assert changes == [{"change": "resize", "input": 0, "dim": 0}]
    assert 2 <= found.counter.changes[0]["size"] < ROWS // 8
    case.counters[found.counter.key] = CounterResult(True, "passes")
    assert confidence(found, case) == "proven"
    case.counters[found.counter.key] = CounterResult(False, "fails")
    (again,) = allocation.detect(case)
    assert not refuted(again, case) and confidence(again, case) == "likely"


def test_the_limit_of_the_program_is_told(zoo: ZooPackage) -> None:
    """What RLIMIT_AS left for the failing call is evidence."""
    case = too_large(zoo)
    call = phase(1, load=0, thread=1, outcome="failed", headroom=4096)
    case.capture = capture(calls=[call])
    (found,) = allocation.detect(case)
    assert any("left 4096 bytes" in evidence.fact for evidence in found.evidence)


def sized_by_data(zoo: ZooPackage, asked: int) -> Case:
    """A request that failed in a package with a buffer of u0 rows of 32 floats, where input 0 holds u0."""
    case = package_case(zoo("unbacked"), GivenTensor("float32", (8, 8)))
    case.runs["plain"] = run("plain", REQUEST.format(asked))
    assert case.view is not None and case.package is not None
    buffers: Any = case.view.wrapper.buffers
    symbols: Any = case.view.wrapper.symbols
    buffers["big"] = Buffer("big", "allocated", 999, 1, sizes=("u0", "32L"), dtype="float32")
    symbols["u0"] = Symbol("u0", "value", "x.item<int64>()", 1, case.package.inputs[0].name)
    return case


@pytest.mark.parametrize(("asked", "value"), [(4 * 32 * 10**9, 10**9), (4 * 32 * 10**9 + 2, None)])
def test_a_size_that_the_data_gives_is_put_on_the_input(
    zoo: ZooPackage, asked: int, value: int | None
) -> None:
    """The value follows from the request; one that is no multiple of a row explains nothing."""
    found = [(h.guilty.input_index, h.guilty.value) for h in data_size.detect(sized_by_data(zoo, asked))]
    assert found == ([(0, f"makes u0 {value}")] if value is not None else [])


def test_only_a_failed_call_is_made_again_under_its_limit(tmp_path: Path) -> None:
    """A process of ours has other needs beside the call: one that passed must not fail for them."""
    call = CapturedCall.model_validate(
        phase(1, load=0, thread=1, file=tmp_path, headroom=4096, outcome="failed")
    )
    assert _step(call)["headroom"] == 4096
    assert "headroom" not in _step(call.model_copy(update={"outcome": "ok"}))
    assert "headroom" not in _step(call.model_copy(update={"headroom": None}))
