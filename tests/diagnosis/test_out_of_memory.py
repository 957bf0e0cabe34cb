"""Memory that did not suffice: smaller inputs, the program's own limit, and what it still holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import out_of_memory
from mcp_server.diagnosis.causes.out_of_memory import detect_lost_constants, detect_retained
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, is_bystander
from mcp_server.logs.captured import CapturedCall
from mcp_server.model import ScriptWorkload
from mcp_server.package.launches import Buffer
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.symbols import Symbol
from mcp_server.tools.requests import _step
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, phase, run, trial
from tests.zoo.names import thorough

REQUEST = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."
ROWS = 1_000_000


def too_large(zoo: ZooPackage) -> DiagnosisState:
    """A call whose hidden layer has no room."""
    case = package_case(zoo("ranker"), GivenTensor("int64", (ROWS, 6)))
    case.runs["plain"] = run("plain", REQUEST.format(ROWS * 6 * 32 * 4))
    return case


def test_a_smaller_call_that_passes_proves_it(zoo: ZooPackage) -> None:
    """The dimension that the buffer grows with is cut; a smaller call that fails too refutes nothing."""
    case = too_large(zoo)
    (found,) = out_of_memory.detect_allocation(case)
    assert found.intervention is not None and confidence(found, case) == "likely"
    changes = [{"change": c.change, "input": c.input, "dim": c.dim} for c in found.intervention.changes]
    assert changes == [{"change": "resize", "input": 0, "dim": 0}]
    assert 2 <= (found.intervention.changes[0].size or 0) < ROWS // 8
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    (again,) = out_of_memory.detect_allocation(case)
    assert not is_bystander(again, case) and confidence(again, case) == "likely"


def sized_by_data(zoo: ZooPackage, asked: int, *widths: int) -> DiagnosisState:
    """A request that failed in a package with buffers of u0 rows so wide, where input 0 holds u0."""
    case = package_case(zoo("unbacked"), GivenTensor("float32", (8, 8)))
    case.runs["plain"] = run("plain", REQUEST.format(asked))
    assert case.view is not None and case.package is not None
    buffers: Any = case.view.wrapper.buffers
    symbols: Any = case.view.wrapper.symbols
    buffers.clear()
    for place, width in enumerate(widths):
        name = f"big{place}"
        buffers[name] = Buffer(name, "allocated", 999 + place, 1, sizes=("u0", f"{width}L"), dtype="float32")
    symbols["u0"] = Symbol("u0", "value", "x.item<int64>()", 1, case.package.inputs[0].name)
    return case


@thorough
@pytest.mark.parametrize(
    ("asked", "widths", "value"),
    [
        (128 * 10**9, (32,), 10**9),
        (128 * 10**9, (32, 32), 10**9),
        (128 * 10**9 + 2, (32,), None),
        (128 * 10**9, (32, 8), None),
    ],
    ids=["one", "two alike", "no multiple of a row", "either of two"],
)
def test_a_size_that_the_data_gives_is_put_on_the_input(
    zoo: ZooPackage, asked: int, widths: tuple[int, ...], value: int | None
) -> None:
    """The value follows from the request, where only one would explain it."""
    case = sized_by_data(zoo, asked, *widths)
    found = [(h.guilty.input_index, h.guilty.value) for h in out_of_memory.detect_data_size(case)]
    assert found == ([(0, f"makes u0 {value}")] if value is not None else [])


def test_only_a_failed_call_is_made_again_under_its_limit(tmp_path: Path) -> None:
    """A process of ours needs more than the call: one that passed must not fail for them."""
    call = CapturedCall.model_validate(
        phase(1, load=0, thread=1, file=tmp_path, headroom=4096, outcome="failed")
    )
    assert _step(call)["headroom"] == 4096
    assert "headroom" not in _step(call.model_copy(update={"outcome": "ok"}))
    assert "headroom" not in _step(call.model_copy(update={"headroom": None}))


NO_MAPPING = "RuntimeError: Error in dlopen: /tmp/x/m.so: failed to map segment from shared object"
STACK = [{"file": "serve.py", "line": 41}]


def ran_out(text: str, *, calls: Any = (), loads: Any = (), steps: Any = ()) -> DiagnosisState:
    """A program that ended with this text, and what the hook had seen of it."""
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    case.capture = capture(calls=list(calls), loads=list(loads))
    case.runs["script"] = run("script", text)
    case.call = CallSpec("replay", {"steps": list(steps)}, Path("m.pt2"), Path("inputs.pt"))
    return case


def kept(of_calls: int, size: int) -> dict[str, Any]:
    return {"outputs": {"cpu": {"calls": of_calls, "bytes": size}}}


def failed_call(retained: Any, **more: Any) -> dict[str, Any]:
    return phase(9, load=1, thread=1, outcome="failed", headroom=100, retained=retained, stack=STACK, **more)


def test_outputs_that_hold_more_than_was_asked_for_are_the_cause() -> None:
    """With them released the request fits: the same call is tried with as much more memory."""
    case = ran_out(
        REQUEST.format(4000), calls=[failed_call(kept(14, 5000))], steps=[{"do": "call", "headroom": 100}]
    )
    (found,) = detect_retained(case)
    assert found.category == "out_of_memory" and "5000 bytes of outputs of 14 earlier calls" in found.summary
    assert found.intervention is not None and found.intervention.options.steps is not None
    assert found.intervention.options.steps[-1]["headroom"] == 5100


def loads_of(package: str, count: int, failed: bool = True) -> list[dict[str, Any]]:
    """`count` loads that went well, and one that did not."""
    known = {"loader": "AOTIModelPackageLoader", "package": package, "bytes": 1000, "stack": STACK}
    well = [phase(n, **{**known, "number": n}) for n in range(count)]
    last = phase(
        count, **{**known, "number": count, "outcome": "failed", "retained": {"loads": list(range(count))}}
    )
    return [*well, last] if failed else well


def test_a_package_that_is_loaded_again_and_again_fills_the_address_space() -> None:
    """A library that cannot be mapped is no noexec mount where it was mapped before."""
    (found,) = detect_retained(ran_out(NO_MAPPING, loads=loads_of("tenant.pt2", 12)))
    assert (found.category, found.guilty.name) == ("out_of_memory", "aoti_load_package(tenant.pt2)")
    assert "12 times at once" in found.summary


def test_constants_that_cannot_be_read_are_named_with_their_file() -> None:
    """The process ends in a signal when the package reads them."""
    lost = {"inp.weight": "/data/map.weights", "out.weight": "/data/map.weights"}
    case = ran_out("Bus error", calls=[phase(9, load=1, thread=1, outcome="unfinished", lost=lost)])
    (found,) = detect_lost_constants(case)
    assert (found.category, found.guilty.name) == ("constants", "inp.weight")
    assert "/data/map.weights is shorter" in found.summary and "1 other" in found.summary


def test_outputs_that_hold_less_are_not() -> None:
    """Releasing them would not have helped."""
    assert not list(detect_retained(ran_out(REQUEST.format(6000), calls=[failed_call(kept(14, 5000))])))
    assert not list(detect_retained(ran_out(REQUEST.format(4000), calls=[failed_call(kept(1, 5000))])))


def test_the_first_load_may_lie_on_a_mount_without_execution() -> None:
    """Nothing was mapped before: the text alone does not say which it is."""
    assert not list(detect_retained(ran_out(NO_MAPPING, loads=loads_of("tenant.pt2", 0))))
