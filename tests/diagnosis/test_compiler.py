"""Decisions of the compiler as the cause of wrong numbers, and failed compiles."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.diagnosis.causes.compiler import compiler_suspect, trial_of
from mcp_server.diagnosis.diagnose import detect, diagnose
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.verdict import confidence, fix_of, ranked
from mcp_server.model import Artifact, Component, Cost, ModelLocation, ScriptWorkload
from mcp_server.runtime.context import Context, decode
from mcp_server.tools.failing import FailureShown
from mcp_server.tools.switches import Bisected
from tests.conftest import Zoo, torch_environment
from tests.diagnosis.support import OTHER_DATA, by, capture, diverged, look, package_case, phase, run
from tests.served import served
from tests.worker.support import context_in
from tests.zoo.names import thorough

LINE = ModelLocation(file="model.py", line=7, code="h.sinh()")
WORKAROUND = "aoti_compile_and_package(..., inductor_configs={'cpp.simdlen': 1})"


def bisected(**changed: Any) -> Bisected:
    """Make the result of a search that named the vector width."""
    found = {
        "outcome": "decision",
        "summary": "The failure (an output that differs from eager) comes from cpp.simdlen.",
        "failure": FailureShown(kind="departs"),
        "decisions": [{"kind": "switch", "name": "cpp.simdlen", "location": LINE}],
        "workaround": {"code": WORKAROUND, "reduced": "gone", "whole": "gone", "price": 1.4},
        "compiles": 9,
        "log": Artifact(uri="u", path=Path("p"), bytes=0, what="log"),
        "cost": Cost(),
    }
    return Bisected.model_validate({**found, **changed})


def suspected(zoo: Zoo) -> DiagnosisState:
    """Make a script whose package diverges from eager from launch 1 on."""
    case = diverged(zoo)
    case.workload = ScriptWorkload(script=Path("serve.py"))
    case.suspects = detect(case)
    return case


def decided(zoo: Zoo, found: Bisected) -> DiagnosisState:
    """Make the same case after the search."""
    case = suspected(zoo)
    nameless = replace(case.suspects[0], guilty=Component(kind="package", name=""))
    suspect = compiler_suspect([nameless, *case.suspects], case)
    assert suspect is not None and suspect.guilty.kind == "kernel"
    case.bisected = suspect, found
    trial = trial_of(found) if found.decisions else None
    case.trials = {trial.intervention.key: trial} if trial is not None else {}
    return case


def test_a_decision_is_proven_with_the_workaround_that_ran(zoo: Zoo) -> None:
    """The failure disappears without the decision, and returns with it. The fix is the option that ran."""
    case = decided(zoo, bisected())
    best = ranked(detect(case), case)[0]
    assert (best.category, best.guilty.name, confidence(best, case)) == ("wrong_output", "k1", "proven")
    assert "comes from cpp.simdlen" in best.summary and best.guilty.model_locations == [LINE]
    fix = fix_of(best, case)
    assert fix is not None and fix.after == WORKAROUND and fix.ran is not None
    assert "1.4 times" in fix.text


def test_a_workaround_for_the_small_program_alone_is_not_offered(zoo: Zoo) -> None:
    """A workaround that does not help the whole program is no fix, and is not said to have run there."""
    found = bisected(workaround={"code": WORKAROUND, "reduced": "gone", "whole": "same"})
    case = decided(zoo, found)
    best = ranked(detect(case), case)[0]
    assert confidence(best, case) != "proven"
    fix = fix_of(best, case)
    assert fix is not None and fix.after is None and fix.ran is None


def test_rounding_accuses_nobody(zoo: Zoo) -> None:
    """If intermediate results rounded as in eager explain the outputs, the launch is not at fault."""
    case = decided(zoo, bisected(outcome="rounding", decisions=[], workaround=None))
    (found,) = by("compiler.detect_decision", case)
    assert found.weak and not found.harmful


def test_other_explanations_leave_the_compiler_alone(zoo: Zoo) -> None:
    """TF32, chance, unset memory and other weights are not decisions of the compiler."""
    kinds = ("tf32", "nondeterministic", "uninitialised")
    cases = [diverged(zoo, kind) for kind in kinds] + [suspected(zoo)]
    differing = {"other_constants": [decode(OTHER_DATA)]}
    assert cases[-1].with_eager is not None
    cases[-1].with_eager = cases[-1].with_eager.model_copy(update=differing)
    assert [compiler_suspect(detect(case), case) for case in cases] == [None] * 4


def test_a_failure_of_the_compilers_own_is_tried_with_careful_options(zoo: Zoo) -> None:
    """A failed compile or a bad access of a generated kernel is tried; an operator or weak suspect is not."""
    case = DiagnosisState(ScriptWorkload(script=Path("serve.py")))
    made = phase(1, how="aoti_compile_and_package", outcome="failed")
    case.capture = capture(compiles=[made])
    party = Component(kind="script", name="serve.py:8")
    failed = Suspect("compile_failure", party, "Inductor itself failed", CausalLevel.BUILD)
    careful = look("try_switches")
    assert careful.gain(case, [failed]) > 0
    own = replace(failed, guilty=Component(kind="op", name="mine::scale"))
    assert careful.gain(case, [own]) == 0
    case.capture = capture(compiles=[phase(1, how="aoti_compile_and_package")])
    assert careful.gain(case, [failed]) == 0
    kernel = Component(kind="kernel", name="cpp_fused_embedding_0", launch_index=0)
    bad = Suspect("illegal_memory_access", kernel, "launch 0 reads beyond", CausalLevel.FAULT_SITE)
    case = package_case(zoo("ranker"))
    case.workload = ScriptWorkload(script=Path("serve.py"))
    assert careful.gain(case, [bad]) > 0
    assert careful.gain(case, [replace(bad, weak=True)]) == 0


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


@thorough
def test_a_failed_compile_is_proven_by_a_real_one(tmp_path: Path) -> None:
    """Inductor's vectorized product of bools fails on torch 2.13. The option that compiles it is printed."""
    script = tmp_path / "serve.py"
    script.write_text(PROD)
    workload = ScriptWorkload(script=script, env=torch_environment())
    found = served(diagnose, context_in(tmp_path / "job"), workload, budget_s=240)
    assert (found.category, found.confidence) == ("compile_failure", "proven"), found.summary
    assert found.fix is not None and found.fix.after == WORKAROUND and found.cost.compiles <= 5


# Failed compiles.


def read(case: DiagnosisState, directory: Path) -> float:
    action = look("read_users_kernel")
    anyio.run(action.act, case, Context(directory, Path("python")))
    return float(action.gain(case, ()))


REFUSED = """triton.compiler.errors.CompilationError: at 3:24:
def tile_kernel(x_ptr, TILE: tl.constexpr):
    row = tl.program_id(0)
    col = row * TILE + tl.arange(0, TILE)
                       ^
arange's range must be a power of 2
"""
PROGRAM = """import triton


@triton.jit
def tile_kernel(x_ptr, TILE: tl.constexpr):
    row = tl.program_id(0)
    col = row * TILE + tl.arange(0, TILE)
"""


def compile_case(script: Path, text: str, **compiled: object) -> DiagnosisState:
    """Make a program whose compile failed with this text."""
    case = DiagnosisState(ScriptWorkload(script=script))
    case.runs["script"] = run("script", text)
    case.capture = capture(compiles=[phase(1, how="aot_compile", outcome="failed", **compiled)])
    return case


@pytest.mark.parametrize("copies, line", [(1, 7), (2, None)])
def test_a_kernel_of_the_user_that_does_not_compile(tmp_path: Path, copies: int, line: int | None) -> None:
    """The line counts from the `def` in the program's file, if there is only one such kernel."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM * copies)
    case = compile_case(script, REFUSED)
    assert read(case, tmp_path) == 1.0
    (found,) = detect(case)
    assert (found.guilty.kind, found.guilty.name) == ("kernel", "tile_kernel")
    places = [(at.file, at.line, at.code) for at in found.guilty.model_locations if at.file == str(script)]
    assert places == ([(str(script), line, "col = row * TILE + tl.arange(0, TILE)")] if line else [])


TEXT = "RuntimeError: Unsupported return type <class 'torch.SymIntType'>"
STACK = '  File "/app/model.py", line 9, in forward\n    run = longest(tokens)\n'
AT = {"operator": "desk.longest.default", "stack": STACK}
COMPILED_AT = {"file": "/app/build.py", "line": 63, "code": "aoti_compile_and_package(program)"}
LOG = [
    "Traceback (most recent call last):",
    '  File "/app/build.py", line 63, in build',
    "    aoti_compile_and_package(program)",
    '  File "/v/site-packages/torch/_inductor/ir.py", line 9154, in handle_single_output',
    '    raise RuntimeError(f"Unsupported return type {type(return_type)}")',
    f"torch._inductor.exc.InductorError: {TEXT}",
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    "Traceback (most recent call last):",
    '  File "/app/build.py", line 65, in build',
    "    raise BuildError(variant) from why",
    "BuildError: variant 'counted' could not be built",
]


def stopped(*at: dict[str, str], text: str = TEXT) -> DiagnosisState:
    """Make a program whose compile failed at these operators, and which passed the error on."""
    case = DiagnosisState(None)
    error = {"type": "torch._inductor.exc.InductorError", "text": text, "stopped_at": list(at)}
    compiled = phase(5, how="aoti_compile_and_package", outcome="failed", error=error, stack=[COMPILED_AT])
    case.capture = capture(compiles=[compiled])
    case.runs["script"] = run("script", "\n".join(LOG))
    return case


@pytest.mark.parametrize(
    ("case", "kind", "lines"),
    [
        (stopped(AT), "op", [9, 63]),
        (stopped(), "script", [63]),
        (stopped(AT, {**AT, "operator": "aten.neg.default"}), "script", [63]),
        (stopped(AT, text="RuntimeError: another compile"), "script", [63]),
    ],
    ids=["one", "none seen", "several fused", "another error"],
)
def test_the_operator_at_which_a_compile_stopped(case: DiagnosisState, kind: str, lines: list[int]) -> None:
    """The operator's line comes before the line that compiles, unless several operators may be meant."""
    (found,) = detect(case)
    assert (found.category, found.guilty.kind) == ("compile_failure", kind)
    assert [line.line for line in found.guilty.model_locations][: len(lines)] == lines
    assert (found.guilty.name == "desk::longest") == (kind == "op")
    assert any("the compiler was at desk::longest" in each.fact for each in found.evidence) == (kind == "op")
