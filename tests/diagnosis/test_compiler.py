"""A decision of the compiler as the cause of wrong numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes.compiler import (
    compiled_again,
    compiler_suspect,
    detect_decision,
    detect_relaxed_math,
    generated_suspect,
    options_key,
    relaxed_options,
    trial_of,
)
from mcp_server.diagnosis.diagnose import detect, diagnose
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.next_steps import command_for, next_steps
from mcp_server.diagnosis.observe.compiler import BisectCompiler, CompileCarefully, TrySwitches, keep
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.verdict import confidence, fix_of, is_bystander, ranked
from mcp_server.model import Artifact, Component, Cost, ModelLocation, ScriptWorkload
from mcp_server.tools.divergence import OtherConstant
from mcp_server.tools.reduce.failing import FailureShown
from mcp_server.tools.switches import Bisected, Decision, Workaround
from tests.conftest import ZooPackage, torch_environment
from tests.diagnosis.support import capture, diverged, package_case, phase
from tests.served import served
from tests.server.agent import parse
from tests.worker.support import context_in
from tests.zoo.names import thorough

LINE = ModelLocation(file="model.py", line=7, code="h.sinh()")
WORKAROUND = "aoti_compile_and_package(..., inductor_configs={'cpp.simdlen': 1})"


def bisected(**changed: Any) -> Bisected:
    """What a search gave that named the vector width."""
    found = {
        "outcome": "decision",
        "summary": "The failure (an output that differs from eager) comes from cpp.simdlen.",
        "failure": FailureShown(kind="departs"),
        "decisions": [Decision(kind="switch", name="cpp.simdlen", location=LINE)],
        "workaround": Workaround(code=WORKAROUND, reduced="gone", whole="gone", price=1.4),
        "compiles": 9,
        "log": Artifact(uri="u", path=Path("p"), bytes=0, what="log"),
        "cost": Cost(),
    }
    return Bisected.model_validate({**found, **changed})


def suspected(zoo: ZooPackage) -> DiagnosisState:
    """A script whose package gives other numbers than eager from launch 1 on."""
    case = diverged(zoo)
    case.workload = ScriptWorkload(script=Path("serve.py"))
    case.suspects = detect(case)
    return case


def decided(zoo: ZooPackage, found: Bisected) -> DiagnosisState:
    """The same after the search."""
    case = suspected(zoo)
    nameless = replace(case.suspects[0], guilty=Component(kind="package", name=""))
    suspect = compiler_suspect([nameless, *case.suspects], case)
    assert suspect is not None and suspect.guilty.kind == "kernel"
    case.bisected = suspect, found
    trial = trial_of(found) if found.decisions else None
    case.trials = {trial.intervention.key: trial} if trial is not None else {}
    return case


def test_a_decision_is_proven_with_the_workaround_that_ran(zoo: ZooPackage) -> None:
    """Switched off the failure was gone, and on again it was back: the fix is what was compiled with."""
    case = decided(zoo, bisected())
    best = ranked(detect(case), case)[0]
    assert (best.category, best.guilty.name, confidence(best, case)) == ("wrong_output", "k1", "proven")
    assert "comes from cpp.simdlen" in best.summary and best.guilty.model_locations == [LINE]
    fix = fix_of(best, case)
    assert fix is not None and fix.after == WORKAROUND and fix.ran is not None
    assert "1.4 times" in fix.text


def test_a_workaround_for_the_small_program_alone_is_not_offered(zoo: ZooPackage) -> None:
    """What did not help the whole program is no fix, and nothing says that it ran there."""
    found = bisected(workaround=Workaround(code=WORKAROUND, reduced="gone", whole="same"))
    case = decided(zoo, found)
    best = ranked(detect(case), case)[0]
    assert confidence(best, case) != "proven"
    fix = fix_of(best, case)
    assert fix is not None and fix.after is None and fix.ran is None


def test_rounding_accuses_nobody(zoo: ZooPackage) -> None:
    """Where the outputs agree with intermediate results rounded as in eager, the launch is not at fault."""
    case = decided(zoo, bisected(outcome="rounding", decisions=[], workaround=None))
    (found,) = detect_decision(case)
    assert found.weak and not found.harmful


@pytest.mark.parametrize("kind", ["tf32", "nondeterministic", "uninitialised"])
def test_other_explanations_leave_the_compiler_alone(zoo: ZooPackage, kind: Any) -> None:
    """TF32, chance and unset memory are no decisions of the compiler."""
    case = diverged(zoo, kind)
    assert compiler_suspect(detect(case), case) is None


def test_other_weights_leave_the_compiler_alone(zoo: ZooPackage) -> None:
    """A package of another model gives other numbers whatever the compiler decides."""
    case = suspected(zoo)
    assert case.with_eager is not None
    other = OtherConstant(name="inp.weight", launch=0, elements=64, different=3)
    case.with_eager = case.with_eager.model_copy(update={"other_constants": [other]})
    assert compiler_suspect(detect(case), case) is None


def test_it_is_searched_for_where_the_budget_has_room(zoo: ZooPackage) -> None:
    """The search is worth its time for a program; a short budget gets the command instead."""
    case = suspected(zoo)
    search = BisectCompiler()
    assert search.gain(case, case.suspects) > 0 and search.seconds >= case.seconds_left and search.extra
    case.with_eager = None
    assert search.gain(case, detect(case)) == 0


def test_the_next_step_is_the_search(zoo: ZooPackage) -> None:
    """A verdict that the compiler may be at fault says how to find out."""
    case = suspected(zoo)
    best = ranked(case.suspects, case)[0]
    assert "bisect" in [step.tool for step in next_steps(best, case)]
    parse(command_for("bisect", case))
    case.bisected = best, bisected()
    assert "bisect" not in [step.tool for step in next_steps(best, case)]


def relaxed(zoo: ZooPackage, value: object) -> DiagnosisState:
    """A script that compiled with an option which allows other numbers, and found its numbers wrong."""
    case = suspected(zoo)
    package = {"package": "m.pt2"}
    made = phase(
        1, how="aoti_compile_and_package", configs={"cpp.enable_unsafe_math_opt_flag": value}, **package
    )
    load = phase(2, loader="AOTIModelPackageLoader", **package)
    case.capture = capture(
        compiles=[made], loads=[load], calls=[phase(3, load=1, thread=1, file="inputs.pt")]
    )
    return case


def test_an_option_that_allows_other_numbers_is_tried_and_proven(zoo: ZooPackage) -> None:
    """Compiled without it the program gives eager's numbers; before that trial it is only possible."""
    case = relaxed(zoo, True)
    (found,) = detect_relaxed_math(case)
    assert confidence(found, case) == "possible" and CompileCarefully().gain(case, []) > 0
    key, code = options_key(relaxed_options(case)), "inductor_configs={...}"
    trial = compiled_again(key, "without it", FailureShown(kind="departs"), Effect.GONE, code)
    case.trials[trial.intervention.key] = trial
    best = ranked(detect(case), case)[0]
    assert best.guilty.name.endswith("cpp.enable_unsafe_math_opt_flag")
    fix = fix_of(best, case)
    assert confidence(best, case) == "proven" and fix is not None and fix.after == code


def test_an_option_that_changes_nothing_is_cleared(zoo: ZooPackage) -> None:
    """The call fails in the same way without it; a careful value is no option to suspect."""
    case = relaxed(zoo, True)
    key = options_key(relaxed_options(case))
    trial = compiled_again(key, "without it", FailureShown(kind="departs"), Effect.SAME, "")
    case.trials[trial.intervention.key] = trial
    (found,) = detect_relaxed_math(case)
    assert is_bystander(found, case)
    assert not list(detect_relaxed_math(relaxed(zoo, False)))


def test_a_compile_that_fails_is_tried_with_careful_options() -> None:
    """A compile failure of torch's own making; not one of the user's operator, and not a call's failure."""
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    made = phase(1, how="aoti_compile_and_package", outcome="failed")
    case.capture = capture(compiles=[made])
    party = Component(kind="script", name="serve.py:8")
    failed = Suspect("compile_failure", party, "Inductor itself failed", CausalLevel.BUILD)
    assert generated_suspect([failed], case) is failed and TrySwitches().gain(case, [failed]) > 0
    own = replace(failed, guilty=Component(kind="op", name="mine::scale"))
    assert generated_suspect([own], case) is None
    case.capture = capture(compiles=[phase(1, how="aoti_compile_and_package")])
    assert generated_suspect([failed], case) is None


def test_a_bad_access_of_a_generated_kernel_is_tried(zoo: ZooPackage) -> None:
    """The kernel that the compiler wrote, with inputs that fit; a weak suspicion is not worth compiles."""
    case = package_case(zoo("ranker"))
    case.workload = ScriptWorkload(script=Path("serve.py"))
    party = Component(kind="kernel", name="cpp_fused_embedding_0", launch_index=0)
    bad = Suspect("illegal_memory_access", party, "launch 0 reads beyond", CausalLevel.FAULT_SITE)
    assert generated_suspect([bad], case) is bad
    assert generated_suspect([replace(bad, weak=True)], case) is None


def test_what_the_options_did_not_explain_is_said(zoo: ZooPackage) -> None:
    """Nothing is accused, the options are cleared in one sentence, and the whole search stays possible."""
    case = suspected(zoo)
    suspect = compiler_suspect(case.suspects, case)
    assert suspect is not None
    summary = "No option of the compiler was found behind the failure (it): it stays."
    keep(case, suspect, bisected(outcome="not_found", decisions=[], workaround=None, summary=summary))
    assert summary in case.notes and not list(detect_decision(case)) and not case.trials
    case.budget_s = 900
    assert BisectCompiler().gain(case, case.suspects) > 0


PROD = """
import tempfile
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return (x > 2).prod(0, dtype=torch.bool)

if __name__ == "__main__":
    program = torch.export.export(Model(), (torch.rand(33, 40) * 9,))
    torch._inductor.aoti_compile_and_package(program, package_path=tempfile.mkdtemp() + "/model.pt2")
"""


@pytest.mark.slow
@thorough
def test_a_failed_compile_is_proven_by_a_real_one(tmp_path: Path) -> None:
    """Inductor's vectorised product of bools fails on torch 2.13: the option that compiles it is printed."""
    script = tmp_path / "serve.py"
    script.write_text(PROD)
    workload = ScriptWorkload(script=script, env=torch_environment())
    found = served(diagnose, context_in(tmp_path / "job"), workload, budget_s=240)
    assert (found.category, found.confidence) == ("compile_failure", "proven"), found.summary
    assert found.fix is not None and found.fix.after == WORKAROUND and found.cost.compiles <= 5
