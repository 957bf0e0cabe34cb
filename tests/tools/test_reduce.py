"""Failing programs cut down to scripts that fail alike under a plain interpreter, here and on an H200."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Finished
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.kernels import Kernel, read_triton_kernels
from mcp_server.package.terms.blocks import LineCounter
from mcp_server.tools.reduce.failing import Reduced, of_script
from mcp_server.tools.reduce.launch import Recorded, Replay, files, triton_source
from mcp_server.tools.reduce.reduce import reduce
from tests.conftest import CACHE, ZooPackage
from tests.recorded import RECORDINGS
from tests.worker.support import context_in
from tests.zoo.names import thorough

CACHED = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}
SMALL = 1 << 20  # bytes
# The operator returns another layout than its fake function says: generated code reads it in the wrong order.
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

# The compiler has no form for the operator's second result (2.13, ir.FallbackKernel).
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
# The generated C++ calls a C shim that the options declare under another name.
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


def reduced(tmp_path: Path, workload: Any, **options: Any) -> Reduced:
    return anyio.run(partial(reduce, context_in(tmp_path / "job"), workload, **options))


def program(zoo: ZooPackage, name: str, inputs: str) -> ExportedWorkload:
    package = zoo(name)
    return ExportedWorkload(
        exported=package.with_name(f"{name}.exported.pt2"),
        inputs=package.with_name(f"{name}.{inputs}.pt"),
        env=CACHED,
    )


def run_alone(result: Reduced, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Copy the files elsewhere and run the script with nothing of ours in reach."""
    for file in result.files:
        target = tmp_path / "alone" / file.path.relative_to(script_of(result).parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.path.read_bytes())
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TORCHINDUCTOR_VEC_ISA_OK": "1", **CACHED}
    argv = [sys.executable, "repro.py"]
    return subprocess.run(
        argv, cwd=tmp_path / "alone", env=env, capture_output=True, text=True, check=False, timeout=300
    )


def script_of(result: Reduced) -> Path:
    return next(file.path for file in result.files if file.path.name == "repro.py")


@pytest.mark.slow
@thorough
def test_a_nan_is_reduced_to_the_operator_that_makes_it(zoo: ZooPackage, tmp_path: Path) -> None:
    """Of five operators the logarithm is left, with the model's line, in a small script that gives NaN."""
    result = reduced(tmp_path, program(zoo, "logarithm", "bad-nan"))
    assert (result.outcome, result.exit_status, result.complete) == ("reduced", 3, True)
    assert [node.operator for node in result.nodes] == ["aten.log.default"]
    assert "torch.log(scale)" in result.nodes[0].locations[0].code
    assert (result.nodes_before, result.real) == (5, ["scale"])
    assert sum(file.bytes for file in result.files) < SMALL


@thorough
@pytest.mark.slow
def test_a_launch_is_replayed_alone(zoo: ZooPackage, tmp_path: Path) -> None:
    """The launch that first wrote NaN does so from its recorded inputs, with no package and no model."""
    package = zoo("logarithm")
    workload = PackageWorkload(package=package, inputs=package.with_name("logarithm.bad-nan.pt"))
    result = reduced(tmp_path, workload, scope="launch")
    assert (result.outcome, result.exit_status) == ("reduced", 3)
    assert "log" in (script_of(result).parent / "kernel.cpp").read_text()
    done = run_alone(result, tmp_path)
    assert (done.returncode, "not finite: in_out_ptr0" in done.stdout) == (3, True), done.stderr


@pytest.mark.slow
@thorough
def test_a_healthy_program_is_refused(zoo: ZooPackage, tmp_path: Path) -> None:
    """Without a failure there is nothing to cut down, and the error says so."""
    with pytest.raises(ProblemError, match="does not fail"):
        reduced(tmp_path, program(zoo, "logarithm", "inputs"))


@pytest.mark.slow
@thorough
def test_a_healthy_launch_writes_the_same_again(zoo: ZooPackage, tmp_path: Path) -> None:
    """A chosen launch without a fault is replayed, and no fault is claimed."""
    package = zoo("logarithm")
    workload = PackageWorkload(package=package, inputs=package.with_name("logarithm.inputs.pt"))
    result = reduced(tmp_path, workload, scope="launch", launch=1)
    assert (result.outcome, result.failure, result.exit_status) == ("replayed", None, 0)
    with pytest.raises(ProblemError, match="no launch of this call fails"):
        reduced(tmp_path, workload, scope="launch")


@pytest.mark.slow
@thorough
def test_an_index_out_of_bounds_is_reduced(zoo: ZooPackage, tmp_path: Path) -> None:
    """An index assertion needs the lookup alone; the script meets the same assertion by itself."""
    result = reduced(tmp_path, program(zoo, "ranker", "bad-index"))
    assert result.failure is not None
    assert (result.outcome, result.failure.family) == ("reduced", "cpu_index_assert")
    assert [node.operator for node in result.nodes] == ["aten.embedding.default"]
    done = run_alone(result, tmp_path)
    assert done.returncode != 0
    assert "index out of bounds" in done.stderr


@pytest.mark.slow
@thorough
def test_wrong_numbers_of_a_script_are_reduced(tmp_path: Path) -> None:
    """A script whose operator breaks its fake function's promise: the operator and what sums over rows."""
    script = tmp_path / "turned.py"
    script.write_text(TURNED)
    result = reduced(tmp_path, ScriptWorkload(script=script, env=CACHED), budget_s=400)
    assert result.failure is not None
    assert (result.outcome, result.failure.kind, result.exit_status) == ("reduced", "departs", 4)
    assert len(result.nodes) <= 4 < result.nodes_before
    assert {"turned.turn.default", "aten.softmax.int"} <= {node.operator for node in result.nodes}
    assert run_alone(result, tmp_path).returncode == 4


@pytest.mark.slow
@thorough
@pytest.mark.parametrize(
    ("text", "family", "said"),
    [
        (NO_LOWERING, "lowering", "output type <class 'float'> is not supported"),
        (NO_SHIM, "cpp_undeclared", "was not declared in this scope"),
    ],
)
def test_a_failed_compile_is_reduced(tmp_path: Path, text: str, family: str, said: str) -> None:
    """The operator that the compiler refuses is left, in one file, without the user's values and code."""
    script = tmp_path / "tally.py"
    script.write_text(text)
    result = reduced(tmp_path, ScriptWorkload(script=script, env=CACHED))
    assert result.failure is not None
    assert (result.outcome, result.failure.phase, result.failure.family) == ("reduced", "compiling", family)
    assert [node.operator for node in result.nodes] == ["tally.centre.default"]
    assert [file.path.name for file in result.files] == ["repro.py"]
    assert (result.real, result.exit_status, result.complete) == ([], 1, True)
    done = run_alone(result, tmp_path)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"launch": 2}, "a launch is chosen"),
        ({}, "does not hold the graph"),
        ({"scope": "launch", "launch": 99}, "no such launch"),
        ({"scope": "launch", "launch": 0}, "no source in the package"),
    ],
)
def test_what_cannot_be_reduced_is_refused(
    zoo: ZooPackage, tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    """A package without its program, and a launch that is not there or no generated kernel."""
    package = zoo("logarithm")
    workload = PackageWorkload(package=package, inputs=package.with_name("logarithm.inputs.pt"))
    with pytest.raises(ProblemError, match=what):
        reduced(tmp_path, workload, **options)


RECORDED = RECORDINGS / "gpu_tools"

# How the recorded script ended: exit status, or the signal that killed it.
ENDED: dict[str, int | str] = {
    "ranker": "SIGABRT",
    "logarithm": 3,
    "ranker-launch": "SIGABRT",
    "logarithm-launch": 3,
    "user_lookup": "SIGABRT",
}


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
    """Run alone it printed the same family of error, or the same kind of bad value, as the result says."""
    result = Reduced.model_validate_json((RECORDED / f"reduce-{name}.json").read_text())
    assert result.outcome == "reduced"
    assert result.failure is not None
    shown = of_script(finished(RECORDED / f"reduce-{name}.run.txt", ENDED[name]))
    assert result.failure.same_cause_as(shown)


# Scripts that replay one launch, from the source that a package's wrapper embeds.


# Shortened from a wrapper.cpp of torch 2.11 (H200).
WRAPPER = """
static inline void call_{name}(
    const in_ptr0_type_& in_ptr0,
    const out_ptr0_type_& out_ptr0,
    int64_t {size},
    int32_t device_idx_,
    cudaStream_t stream_,
    kernels_type_& kernels_,
    const std::optional<std::string>& cubin_dir_ = std::nullopt
){{
    /*
    async_compile.triton('{symbol}', '''
    import triton
    import triton.language as tl

    @triton_heuristics.{heuristic}(
        size_hints={{'x': 2048}},
        triton_meta={{'constants': {constants}}},
        filename=__file__,
    )
    @triton.jit
    def {symbol}(in_ptr0, out_ptr0, {parameters}):
        at = tl.program_id(0)
        tl.store(out_ptr0 + at, tl.load(in_ptr0 + at))
    ''', device_str='cuda')
    */
    uint32_t grid_0 = {grid};
    uint32_t grid_1 = 1;
    uint32_t grid_2 = 1;
    kernels_.{name} = loadKernel("/cache/c1.cubin", "{symbol}", 0, cubin_dir_);
    launchKernel(kernels_.{name}, grid_0, grid_1, grid_2, 4, 0, kernel_args_, stream_);
}}
"""
USER = WRAPPER.format(
    name="lookup_0",
    symbol="lookup",
    size="_grid_0",
    heuristic="user_autotune",
    constants="{'width': 16}",
    parameters="width: tl.constexpr",
    grid="_grid_0",
)
POINTWISE = WRAPPER.format(
    name="triton_poi_fused_0",
    symbol="triton_poi_fused_0",
    size="xnumel",
    heuristic="pointwise",
    constants="{}",
    parameters="xnumel, XBLOCK : tl.constexpr",
    grid="((xnumel + (128 - 1)) / (128))",
)
REDUCTION = POINTWISE.replace("XBLOCK : tl.constexpr", "XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr")
TENSORS = (
    Recorded("in_ptr0", "", (8, 16), (16, 1), "cuda:0"),
    Recorded("out_ptr0", "", (8, 16), (16, 1), "cuda:0"),
)


def kernel_of(text: str) -> Kernel:
    (kernel,) = read_triton_kernels(text, LineCounter(text)).values()
    return kernel


def written_for(text: str, *numbers: Recorded) -> tuple[dict[str, str], list[str]]:
    recorded = (*TENSORS, *numbers)
    return files(Replay("title", "2.11.0", kernel_of(text), recorded, ("out_ptr0",), (), ""))


def call_in(script: str) -> str:
    return next(
        line.strip() for line in script.splitlines() if line.strip().startswith(("lookup[", "triton_"))
    )


def test_the_source_is_a_plain_triton_kernel() -> None:
    """Inductor's launcher is taken off, and what is left is a module."""
    source = triton_source(kernel_of(POINTWISE))
    assert "triton_heuristics" not in source
    assert source.index("@triton.jit") < source.index("def triton_poi_fused_0(")
    ast.parse(source)


def test_a_users_kernel_is_called_with_its_own_constants() -> None:
    """Compile-time arguments come from the record, the grid from the launch."""
    written, notes = written_for(USER, Recorded("_grid_0", "8"))
    assert set(written) == {"repro.py", "kernel.py"}
    tensors = 'in_ptr0=arguments["in_ptr0"], out_ptr0=arguments["out_ptr0"]'
    assert call_in(written["repro.py"]) == f"lookup[(8, 1, 1)]({tensors}, width=16, num_warps=4)"
    assert notes == []
    ast.parse(written["repro.py"])


def test_block_sizes_come_from_the_grid() -> None:
    """How many elements a block of a generated kernel has is what its grid divides by."""
    written, notes = written_for(POINTWISE, Recorded("xnumel", "300"))
    call = call_in(written["repro.py"])
    assert call.startswith("triton_poi_fused_0[(3, 1, 1)](")
    assert "xnumel=300, XBLOCK=128, num_warps=4" in call
    assert notes == []


def test_an_assumption_is_said() -> None:
    """A block size that the package does not hold is assumed, and the result says so."""
    written, notes = written_for(REDUCTION, Recorded("xnumel", "300"))
    assert "R0_BLOCK=1024" in call_in(written["repro.py"])
    assert notes == ["R0_BLOCK = 1024 is assumed: the package does not say it"]


def test_what_is_missing_is_refused() -> None:
    """No script is written from half of the arguments, without a source, or without a grid."""
    with pytest.raises(ProblemError, match="grid of the launch"):
        written_for(POINTWISE.replace("xnumel + (128", "s7 + (128"), Recorded("xnumel", "300"))
    with pytest.raises(ProblemError, match="was not recorded: 'xnumel'"):
        written_for(POINTWISE)
    bare = Replay("title", "2.11.0", replace(kernel_of(USER), source=""), TENSORS, (), (), "")
    with pytest.raises(ProblemError, match="no source"):
        files(bare)
