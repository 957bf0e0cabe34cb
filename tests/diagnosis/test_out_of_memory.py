"""Memory that did not suffice: smaller inputs, and the program's own limit."""

from __future__ import annotations

from pathlib import Path

from mcp_server.diagnosis.causes import out_of_memory
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, is_bystander
from mcp_server.logs.captured import CapturedCall
from mcp_server.package.mismatch import GivenTensor
from mcp_server.tools.requests import _step
from tests.conftest import ZooPackage
from tests.diagnosis.support import package_case, phase, run, trial

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


def test_only_a_failed_call_is_made_again_under_its_limit(tmp_path: Path) -> None:
    """A process of ours needs more than the call: one that passed must not fail for them."""
    call = CapturedCall.model_validate(
        phase(1, load=0, thread=1, file=tmp_path, headroom=4096, outcome="failed")
    )
    assert _step(call)["headroom"] == 4096
    assert "headroom" not in _step(call.model_copy(update={"outcome": "ok"}))
    assert "headroom" not in _step(call.model_copy(update={"headroom": None}))
