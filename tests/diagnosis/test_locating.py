"""When a checker is put around a call, and when around the whole program."""

from __future__ import annotations

from pathlib import Path

from mcp_server.diagnosis.observe.calls import suspect_call
from mcp_server.diagnosis.observe.launches import LocateFault
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import ScriptWorkload
from mcp_server.tools.capture import Capture
from tests.conftest import ZooPackage
from tests.diagnosis.support import called, capture, failing, package_case, phase, run

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
LOAD = phase(1, loader="AOTIModelPackageLoader", package="m.pt2")
KEPT = phase(2, load=1, thread=1, file="inputs.pt")
IN_GRAPH = phase(3, load=1, thread=1, notice="a CUDA graph was being captured")


def script_case(seen: Capture, text: str) -> DiagnosisState:
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    case.capture, case.call = seen, suspect_call(seen)
    case.runs["script"] = run("script", text)
    return case


def gain(case: DiagnosisState) -> float:
    return LocateFault().gain(case, [])


def test_a_program_whose_call_was_not_kept_is_run_itself() -> None:
    """An illegal access and no inputs: worth it; a failure that cannot be one of memory: not."""
    lost = {**KEPT, "file": None, "notice": "TooLarge", "outcome": "unfinished"}
    assert gain(script_case(capture(loads=[LOAD], calls=[lost]), ILLEGAL)) > 0
    assert gain(script_case(capture(loads=[LOAD], calls=[lost]), "ValueError: mine")) == 0
    assert gain(script_case(capture(), ILLEGAL)) == 0


def test_the_replay_of_a_graph_is_in_no_call() -> None:
    """A healthy call that was kept cannot show what a replayed graph did; without one it is asked."""
    with_graph = script_case(capture(loads=[LOAD], calls=[KEPT, IN_GRAPH]), ILLEGAL)
    without = script_case(capture(loads=[LOAD], calls=[KEPT]), ILLEGAL)
    assert with_graph.call is not None and gain(with_graph) > 0
    assert gain(without) == 0


def test_indices_that_no_kernel_checks_are_watched(zoo: ZooPackage) -> None:
    """A good call of a package alone is put under the checker where its code was compiled without checks."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called())
    assert case.package is not None and gain(case) == 0
    vars(case.package)["kernel_text"] = case.package.kernel_text.replace("index out of bounds: ", "")
    assert gain(case) > 0


def test_an_assertion_whose_text_was_lost_is_looked_for(zoo: ZooPackage) -> None:
    """Only the status of a device assertion: memcheck prints what failed. With its text, nothing is asked."""
    status = "CUDA error: device-side assert triggered"
    place = "/c/k.py:40: unknown: block: [1,0,0], thread: [2,0,0]"
    text = place + " Assertion `index out of bounds: 0 <= tmp4 < 9` failed."
    assert gain(failing(package_case(zoo("ranker")), status)) == 1.0
    assert gain(failing(package_case(zoo("ranker")), f"{text}\n{status}")) == 0.0
