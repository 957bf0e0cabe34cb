"""Memory that the program still holds: outputs of earlier calls, packages, and constants that are gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_server.diagnosis.causes.out_of_memory import detect_lost_constants, detect_retained
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.model import ScriptWorkload
from tests.diagnosis.support import capture, phase, run

REQUEST = "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate {} bytes."
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


def test_outputs_that_hold_less_are_not() -> None:
    """Releasing them would not have helped."""
    assert not list(detect_retained(ran_out(REQUEST.format(6000), calls=[failed_call(kept(14, 5000))])))
    assert not list(detect_retained(ran_out(REQUEST.format(4000), calls=[failed_call(kept(1, 5000))])))


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


def test_the_first_load_may_lie_on_a_mount_without_execution() -> None:
    """Nothing was mapped before: the text alone does not say which it is."""
    assert not list(detect_retained(ran_out(NO_MAPPING, loads=loads_of("tenant.pt2", 0))))


def test_constants_that_cannot_be_read_are_named_with_their_file() -> None:
    """The process ends in a signal when the package reads them."""
    lost = {"inp.weight": "/data/map.weights", "out.weight": "/data/map.weights"}
    case = ran_out("Bus error", calls=[phase(9, load=1, thread=1, outcome="unfinished", lost=lost)])
    (found,) = detect_lost_constants(case)
    assert (found.category, found.guilty.name) == ("constants", "inp.weight")
    assert "/data/map.weights is shorter" in found.summary and "1 other" in found.summary
