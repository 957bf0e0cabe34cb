"""Failing programs reduced to scripts that fail in the same way in a plain interpreter."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import Finished
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.tools.failing import FailureShown, result_of_script
from mcp_server.tools.reduce import Reduced
from tests.conftest import CACHE, Zoo
from tests.recorded import RECORDINGS
from tests.support.command import output_of
from tests.support.tools import tool
from tests.zoo.names import thorough

CACHED = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}
SMALL = 1 << 20  # bytes
# The operator returns another layout than its fake function, so generated code reads a wrong order.
TURNED = """
import sys
import torch

@torch.library.custom_op("turned::turn", mutates_args=())
def turn(x: torch.Tensor) -> torch.Tensor:
    return x.clone().transpose(0, 1)

@turn.register_fake
def _(x):
    return torch.empty_like(x)

class Model(torch.nn.Module):
    def forward(self, x):
        h = torch.nn.functional.gelu(x * 1.5) + 1
        return (turn(h).sin() * 2).softmax(-1)

if __name__ == "__main__":
    x = torch.rand(8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exported = torch.export.export(Model(), (x,))
        package = torch._inductor.aoti_compile_and_package(exported, package_path=sys.path[0] + "/turned.pt2")
        print(torch._inductor.aoti_load_package(package)(x)[0])
"""

# The compiler cannot handle the operator's second result (2.13, ir.FallbackKernel).
NO_LOWERING = """
import sys
import torch

@torch.library.custom_op("tally::centre", mutates_args=())
def centre(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    return x - x.mean(), float(x.mean())

@centre.register_fake
def _(x):
    return torch.empty_like(x), 0.0

class Model(torch.nn.Module):
    def forward(self, x):
        h, _ = centre(torch.nn.functional.gelu(x) + 1)
        return (h * 3).softmax(-1)

if __name__ == "__main__":
    with torch.no_grad():
        exported = torch.export.export(Model(), (torch.ones(4, 8),))
        torch._inductor.aoti_compile_and_package(exported, package_path=sys.path[0] + "/tally.pt2")
"""
# The generated C++ calls a C shim that the options declare with another name.
NO_SHIM = (
    NO_LOWERING.replace("tuple[torch.Tensor, float]", "torch.Tensor")
    .replace("x - x.mean(), float(x.mean())", "x - x.mean()")
    .replace("(x), 0.0", "(x)")
    .replace("h, _", "h")
    .replace(
        'sys.path[0] + "/tally.pt2"',
        'sys.path[0] + "/tally.pt2", inductor_configs={"aot_inductor.custom_ops_to_c_shims": '
        '{torch.ops.tally.centre.default: ["AOTITorchError aoti_torch_cpu_tally_centre('
        'AtenTensorHandle x, AtenTensorHandle* ret0)"]}}',
    )
)


def reduced(tmp_path: Path, workload: Any, **options: Any) -> Any:
    return tool("reduce", tmp_path / "job", workload, **options)


def program(zoo: Zoo, name: str, inputs: str) -> ExportedWorkload:
    package = zoo(name)
    exported, given = (package.with_name(f"{name}.{file}") for file in ("exported.pt2", f"{inputs}.pt"))
    return ExportedWorkload(exported=exported, inputs=given, env=CACHED)


def run_alone(result: Any, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Copy the files elsewhere, and run the script without our code."""
    for file in result.files:
        target = tmp_path / "alone" / file.path.relative_to(script_of(result).parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.path.read_bytes())
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TORCHINDUCTOR_VEC_ISA_OK": "1", **CACHED}
    argv = [sys.executable, "repro.py"]
    return output_of(argv, cwd=tmp_path / "alone", env=env, timeout=300)


def script_of(result: Any) -> Any:
    return next(file.path for file in result.files if file.path.name == "repro.py")


@thorough
def test_a_nan_is_reduced_to_the_operator_that_makes_it(zoo: Zoo, tmp_path: Path) -> None:
    """Of five operators, only the logarithm is left, with its line, in a small script that gives NaN."""
    result = reduced(tmp_path, program(zoo, "logarithm", "bad-nan"))
    assert (result.outcome, result.exit_status, result.complete) == ("reduced", 3, True)
    assert [node.operator for node in result.nodes] == ["aten.log.default"]
    assert "torch.log(scale)" in result.nodes[0].locations[0].code
    assert (result.nodes_before, result.real) == (5, ["scale"])
    assert sum(file.bytes for file in result.files) < SMALL


@thorough
def test_a_healthy_program_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    """Without a failure, nothing can be reduced, and the error says so."""
    with pytest.raises(ProblemError, match="does not fail"):
        reduced(tmp_path, program(zoo, "logarithm", "inputs"))


@thorough
def test_an_index_out_of_bounds_is_reduced(zoo: Zoo, tmp_path: Path) -> None:
    """Only the lookup is needed, and the script fails with the same assertion."""
    result = reduced(tmp_path, program(zoo, "ranker", "bad-index"))
    assert (result.outcome, result.failure.family) == ("reduced", "cpu_index_assert")
    assert [node.operator for node in result.nodes] == ["aten.embedding.default"]
    done = run_alone(result, tmp_path)
    assert done.returncode != 0
    assert "index out of bounds" in done.stderr


@thorough
def test_wrong_numbers_of_a_script_are_reduced(tmp_path: Path) -> None:
    """The operator breaks its fake function's promise. It is left with what sums over rows."""
    script = tmp_path / "turned.py"
    script.write_text(TURNED)
    result = reduced(tmp_path, ScriptWorkload(script=script, env=CACHED), budget_s=400)
    assert (result.outcome, result.failure.kind, result.exit_status) == ("reduced", "departs", 4)
    assert len(result.nodes) <= 4 < result.nodes_before
    assert {"turned.turn.default", "aten.softmax.int"} <= {node.operator for node in result.nodes}
    assert run_alone(result, tmp_path).returncode == 4


@thorough
@pytest.mark.parametrize(
    ("text", "family", "said"),
    [
        (NO_LOWERING, "lowering", "output type <class 'float'> is not supported"),
        (NO_SHIM, "cpp_undeclared", "was not declared in this scope"),
    ],
)
def test_a_failed_compile_is_reduced(tmp_path: Path, text: str, family: str, said: str) -> None:
    """The operator that the compiler rejects is left, with the file that registers it, and without values."""
    script = tmp_path / "tally.py"
    script.write_text(text)
    result = reduced(tmp_path, ScriptWorkload(script=script, env=CACHED))
    assert (result.outcome, result.failure.phase, result.failure.family) == ("reduced", "compiling", family)
    assert [node.operator for node in result.nodes] == ["tally.centre.default"]
    assert [file.path.name for file in result.files] == ["repro.py", "tally.py"]
    assert (result.real, result.exit_status, result.complete) == ([], 1, True)
    done = run_alone(result, tmp_path)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_a_package_without_its_program_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    """A package has no graph, and the error says what has one."""
    with pytest.raises(ProblemError, match="does not hold the graph") as refused:
        reduced(tmp_path, PackageWorkload(package=zoo("ranker")))
    assert "exported" in refused.value.allowed


RECORDED = RECORDINGS / "gpu_tools"

# How the recorded script ended: exit status or signal.
ENDED: dict[str, int | str] = {"ranker": "SIGABRT", "logarithm": 3}


def finished(output: Path, ended: int | str) -> Finished:
    killed = isinstance(ended, str)
    return Finished(
        ending="signal" if killed else "exit",
        returncode=None if isinstance(ended, str) else ended,
        signal=ended if isinstance(ended, str) else None,
        wall_s=1,
        output=output,
        stdout=output,
        stderr=output,
    )


@pytest.mark.parametrize("name", sorted(ENDED))
def test_the_script_fails_like_the_workload(name: str) -> None:
    """The script printed the same family of error or kind of bad value as the result."""
    result = Reduced.model_validate_json((RECORDED / f"reduce-{name}.json").read_text())
    assert result.outcome == "reduced"
    run = finished(RECORDED / f"reduce-{name}.run.txt", ENDED[name])
    assert result_of_script(run, result.failure) == "same"


INDEX = "what():  index out of bounds: 0 <= tmp7 < 1000L"
SMALLER = "phase: calling\nnoise\n  what():  index out of bounds: 0 <= tmp2 < 8L\nmore"
ABORT = FailureShown(kind="crash", signal="SIGABRT", family="cpu_index_assert", text=INDEX)
UNKNOWN = FailureShown(
    kind="error", phase="compiling", family="python_exception", text="ValueError: 7 is no size of /tmp/a1.py"
)
LOWERING = FailureShown(
    kind="error",
    phase="compiling",
    family="lowering",
    text="torch._inductor.exc.InductorError: LoweringException: AssertionError: cpp_fused_a_1 has no dtype",
)
RAISED = "phase: {}\nTraceback (most recent call last):\n{}"
NOT_FINITE = FailureShown(kind="not_finite", nan=True)
INFINITE = FailureShown(kind="not_finite")
DEPARTS = FailureShown(kind="departs")
INF = "not finite: output 0 holds 0 nan and 3 inf of 3"


@pytest.mark.parametrize(
    ("shown", "ended", "text", "result"),
    [
        (ABORT, "SIGABRT", SMALLER, "same"),
        (ABORT, "SIGSEGV", SMALLER, "other"),
        (ABORT, "SIGABRT", "free(): invalid pointer", "other"),
        (ABORT, 1, SMALLER, "other"),
        (UNKNOWN, 1, RAISED.format("compiling", "ValueError: 12 is no size of /tmp/b7.py"), "same"),
        (UNKNOWN, 1, RAISED.format("loading", "ValueError: 12 is no size of /tmp/b7.py"), "other"),
        (UNKNOWN, 1, RAISED.format("compiling", "KeyError: 12"), "other"),
        (LOWERING, 1, RAISED.format("compiling", LOWERING.text.replace("a_1", "b_2")), "same"),
        (LOWERING, 1, RAISED.format("compiling", LOWERING.text.replace("dtype", "size")), "other"),
        (NOT_FINITE, 3, INF.replace("0 nan", "2 nan"), "same"),
        (NOT_FINITE, 3, INF, "other"),
        (INFINITE, 3, INF, "same"),
        (INFINITE, 0, "", "gone"),
        (DEPARTS, 4, "departs: output 0", "same"),
        (DEPARTS, 5, "phase: exporting", "other"),
        (DEPARTS, 0, "", "gone"),
        (DEPARTS, 3, INF, "gone"),  # eager mode gives that infinity, too
        (DEPARTS, 3, f"{INF}\ndeparts: output 0 in 3", "other"),
    ],
)
def test_same_failures(tmp_path: Path, shown: FailureShown, ended: int | str, text: str, result: str) -> None:
    """Signal, phase and family must be equal. What changes from run to run does not matter."""
    output = tmp_path / "output.log"
    output.write_text(text + "\n")
    assert result_of_script(finished(output, ended), shown) == result
