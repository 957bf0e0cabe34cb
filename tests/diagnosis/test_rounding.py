"""Numbers that differ by rounding alone are no fault; a wrong kernel never is called rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.diagnose import detect, diagnose
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.compiler import EmulateCasts
from mcp_server.diagnosis.rounding import CODE, KEY, casts_trial, is_rounding
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude
from mcp_server.model import ScriptWorkload, Verdict
from mcp_server.tools.reduce.failing import FailureShown
from tests.conftest import ZooPackage, torch_environment
from tests.diagnosis.support import capture, package_case, phase, run, worker_run
from tests.served import served
from tests.worker.support import context_in
from tests.zoo.names import thorough

CHECKED = "AssertionError: Tensor-likes are not close!"


def compared(zoo: ZooPackage, *, reference: bool | None = True, unexplained: int = 0) -> DiagnosisState:
    """A script whose check refused outputs that are not eager's, judged against float64."""
    case = package_case(zoo("ranker"))
    case.workload = ScriptWorkload(script=Path("serve.py"))
    case.capture = capture(calls=[phase(3, load=1, thread=1, file="inputs.pt")])
    case.runs["script"] = run("script", CHECKED)
    shapes = [{"shape": [[4], [4]], "differing": 2, "max_abs": 0.06}]
    case.runs["plain"] = run("plain", "", {"event": "compared_expected", "equal": False, "outputs": shapes})
    outputs = [{"unexplained": unexplained, "error": 0.002, "eager_error": 0.06}]
    case.interpreted = worker_run(
        {"event": "compared", "equal": False, "outputs": shapes},
        {"event": "rounding", "outputs": outputs, "reference": reference, "narrow": True},
    )
    return case


def concluded(case: DiagnosisState, directory: Path) -> Verdict:
    return conclude(detect(case), case, context_in(directory / "job"))


def test_a_check_that_is_stricter_than_rounding_is_no_fault(zoo: ZooPackage, tmp_path: Path) -> None:
    """Neither package nor script is accused; the verdict says how much the check has to allow."""
    found = concluded(compared(zoo), tmp_path)
    assert (found.outcome, found.guilty, found.confidence) == ("no_fault", None, "likely")
    assert "rounding alone" in found.summary and found.fix is not None and "0.062" in found.fix.action


def test_it_is_proven_by_the_compile_that_rounds_as_eager(zoo: ZooPackage, tmp_path: Path) -> None:
    """With precision casts emulated the outputs are equal, without they differ: that line is printed."""
    case = compared(zoo)
    assert EmulateCasts().gain(case, []) > 0
    case.trials[KEY] = casts_trial(FailureShown(kind="departs"), Effect.GONE)
    found = concluded(case, tmp_path)
    assert (found.outcome, found.confidence) == ("no_fault", "proven")
    assert found.fix is not None and found.fix.after == CODE and found.fix.ran is not None
    assert found.intervention is not None and found.intervention.result == "gone"


def test_casts_that_change_nothing_prove_nothing(zoo: ZooPackage, tmp_path: Path) -> None:
    """Rounding of another kind, such as the order of a sum, stays what the float64 reference says it is."""
    case = compared(zoo)
    case.trials[KEY] = casts_trial(FailureShown(kind="departs"), Effect.SAME)
    found = concluded(case, tmp_path)
    assert (found.outcome, found.confidence) == ("no_fault", "likely")
    assert found.fix is not None and found.fix.after is None


@pytest.mark.parametrize("more", [{"unexplained": 1}, {"reference": False}, {"reference": None}])
def test_what_rounding_does_not_explain_stays_a_fault(
    zoo: ZooPackage, tmp_path: Path, more: dict[str, Any]
) -> None:
    """One wrong element, or a check that compares with something else than eager's outputs."""
    case = compared(zoo, **more)
    assert not is_rounding(case) and EmulateCasts().gain(case, []) == 0
    assert concluded(case, tmp_path).outcome != "no_fault"


SCRIPT = """
import tempfile
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = x * 3.7 - x * x * 3.7
        return x

if __name__ == "__main__":
    x = torch.rand(64, generator=torch.Generator().manual_seed(1)).to("DEVICE", torch.bfloat16)
    program = torch.export.export(Model(), (x,))
    path = tempfile.mkdtemp() + "/model.pt2"
    package = torch._inductor.aoti_compile_and_package(program, package_path=path)
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), Model()(x))
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.slow
@thorough
def test_a_bf16_script_is_cleared_by_a_real_compile(tmp_path: Path, device: str) -> None:
    """Its package is nearer to float64 than eager; compiled with eager's rounding it passes its own check."""
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT.replace("DEVICE", device))
    workload = ScriptWorkload(script=script, env=torch_environment())
    found = served(diagnose, context_in(tmp_path / "job"), workload, budget_s=240)
    assert (found.outcome, found.confidence) == ("no_fault", "proven"), found.summary
    assert found.fix is not None and found.fix.after == CODE
