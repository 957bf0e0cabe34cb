"""A package compared with its exported program: where it diverges, and what is only rounding or chance."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload, TensorSpec
from mcp_server.package.archive import open_package
from tests.conftest import CACHE, Zoo
from tests.package.archives import changed, without
from tests.support.tools import tool
from tests.zoo.names import nightly, thorough

pytestmark = pytest.mark.slow

CACHED = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}
RANDOM_OP = """
import torch

@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    return x[::2].contiguous() + torch.rand(1)

@halve_rows.register_fake
def _(x):
    return x.new_empty(x.shape[0] // 2, *x.shape[1:])
"""
PARTIAL_OP = """
import torch

@torch.library.custom_op("aotizoo_unset::even_rows", mutates_args={"out"})
def even_rows(x: torch.Tensor, out: torch.Tensor) -> None:
    out[::2] = x[::2]
"""
SCRIPT = """
import sys, torch
exported, inputs, package = sys.argv[1:]
torch._inductor.aoti_compile_and_package(torch.export.load(exported), package_path=package)
runner = torch._inductor.aoti_load_package(package)
weights = torch.export.load(exported).state_dict
new = {name: value * 2 for name, value in weights.items() if value.numel() > 8}  # smaller ones are folded
runner.load_constants(new, check_full_update=False)
print(runner(*torch.load(inputs)))
"""


def compared(
    directory: Path,
    workload: PackageWorkload | ExportedWorkload | ScriptWorkload,
    exported: Path | None = None,
    **options: Any,
) -> Any:
    if exported is not None:
        options["exported"] = exported
    return tool("compare_with_eager", directory / "job", workload, **options)


def compared_zoo(zoo: Zoo, directory: Path, name: str, **more: Any) -> Any:
    """Compare a zoo model with its program. `more` replaces fields of the workload, or the program."""
    package = zoo(name)
    exported = more.pop("exported", package.with_name(f"{name}.exported.pt2"))
    fields = {"package": package, "inputs": package.with_name(f"{name}.inputs.pt"), **more}
    return compared(directory, PackageWorkload.model_validate(fields), exported)


@pytest.fixture(scope="module")
def other_weights(zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of `norms` with one weight of its fourth linear layer changed, as for a stale package."""
    program = torch.export.load(zoo("norms").with_name("norms.exported.pt2"))
    with torch.no_grad():
        program.state_dict["lins.3.weight"][2, 5] += 0.001
    path = tmp_path_factory.mktemp("other") / "norms.exported.pt2"
    torch.export.save(program, path)
    return path


HEALTHY = ("norms", "conv", "ranker", "jagged", "bags", "attention")


@pytest.mark.parametrize("name", ["counter", *nightly(*HEALTHY)])
def test_no_launch_of_a_healthy_package_is_wrong(zoo: Zoo, tmp_path: Path, name: str) -> None:
    """Fusion, changed buffers, reused memory, copied weights and views are not faults."""
    result = compared_zoo(zoo, tmp_path, name)
    assert (result.outcome, result.kind, result.other_constants) == ("agrees", None, []), result.summary
    assert (result.deterministic, result.reads_unset, result.failure) == (True, False, None)
    judged = result.every_launch
    assert (judged.wrong, judged.unjudged, judged.outputs_right) == ([], [], True), judged.summary
    assert judged.judged == len(open_package(zoo(name)).wrapper.launches)


@thorough
def test_launches_of_branches_are_named_as_not_judged(zoo: Zoo, tmp_path: Path) -> None:
    """Their nodes represent the whole branch, so launches are not judged, but outputs are compared."""
    result = compared_zoo(zoo, tmp_path, "branch")
    assert result.outcome == "agrees" and "5 not judged" in result.summary
    assert {each.why for each in result.every_launch.unjudged} == {"it is in a branch or a loop"}


def test_the_wrong_launch_is_named_with_its_weight(zoo: Zoo, tmp_path: Path, other_weights: Path) -> None:
    """A weight of layer 3 differs: its product is wrong, and later launches only get bad inputs."""
    result = compared_zoo(zoo, tmp_path, "norms", exported=other_weights)
    assert (result.outcome, result.kind) == ("differs", "error")
    (wrong,) = result.every_launch.wrong
    assert (wrong.launch, wrong.difference.node, wrong.constant) == (7, "linear_3", "lins.3.weight")
    assert (wrong.suspects, wrong.difference.beyond, wrong.difference.first) == ([], 8, [0, 2])
    assert float(wrong.difference.error or 0) > 100 * float(wrong.difference.allowed or 0) > 0
    assert [place.code for place in wrong.locations] == ["x = x + F.gelu(self.lins[i](norm(x)))"]
    assert "not the program's" in wrong.summary
    (other,) = result.other_constants
    assert (other.name, other.launch, other.different) == ("lins.3.weight", 7, 1)


@thorough
def test_without_provenance_only_outputs_are_judged(zoo: Zoo, tmp_path: Path, other_weights: Path) -> None:
    """No launch is accused, and the result says how to get provenance."""
    package = changed(zoo("norms"), tmp_path / "p.pt2", without("kernel_information.json"))
    result = compared_zoo(zoo, tmp_path, "norms", package=package, exported=other_weights)
    assert result.outcome == "differs" and "INDUCTOR_PROVENANCE=1" in result.summary
    assert (result.every_launch.judged, result.every_launch.wrong) == (0, [])
    assert result.other_constants[0].name == "lins.3.weight"


@thorough
def test_without_probes_outputs_are_compared(zoo: Zoo, tmp_path: Path, other_weights: Path) -> None:
    """A package without its wrapper cannot be rebuilt, but its outputs are compared with eager's."""
    package = changed(zoo("norms"), tmp_path / "p.pt2", without(".wrapper.cpp"))
    result = compared_zoo(zoo, tmp_path, "norms", package=package, exported=other_weights)
    assert result.outcome == "differs" and result.every_launch.judged == 0 and result.reads_unset is None
    assert result.outputs[0].compared.beyond > 100 and "only outputs" in result.notes[0]


@thorough
def test_an_eager_program_that_varies_is_no_oracle(zoo: Zoo, tmp_path: Path) -> None:
    """With a random operator nothing can be compared. The result says that runs of the package differ."""
    module = tmp_path / "ops.py"
    module.write_text(RANDOM_OP)
    result = compared_zoo(zoo, tmp_path, "plugin", extra_imports=[str(module)])
    assert result.outcome == "inconclusive" and "eager itself differs" in result.summary
    assert result.deterministic is False and result.kind is None
    assert result.every_launch.wrong == [] and "eager mode has no values to compare with" in result.summary
    assert result.varies_from is not None and "halve_rows" in result.varies_from.kernel


def test_a_guard_that_the_package_dropped_is_told(zoo: Zoo, tmp_path: Path) -> None:
    """70 rows violate the program's guard of at most 64. The package computes them, and agrees."""
    ids = [TensorSpec(shape=[70, 6], dtype="int64", low=0, high=31)]
    result = compared_zoo(zoo, tmp_path, "ranker", inputs=ids)
    assert result.outcome == "agrees" and "guard" in result.notes[0] and "64" in result.notes[0]


@thorough
def test_eager_that_fails_too_is_told(zoo: Zoo, tmp_path: Path) -> None:
    """A bad index fails in eager as well, so the inputs are at fault and not the package."""
    inputs = zoo("ranker").with_name("ranker.bad-index.pt")
    result = compared_zoo(zoo, tmp_path, "ranker", inputs=inputs)
    assert result.outcome == "inconclusive" and "eager itself fails" in result.summary
    assert "index out of range" in result.summary and result.failure is not None


@thorough
def test_a_missing_operator_is_told(zoo: Zoo, tmp_path: Path) -> None:
    """A program that cannot be loaded is not called failing."""
    result = compared_zoo(zoo, tmp_path, "plugin")
    assert result.outcome == "inconclusive" and "extra_imports" in result.summary


class Unset(nn.Module):  # type: ignore[misc]
    """The operator leaves half of its output unwritten."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        torch.ops.aotizoo_unset.even_rows(x, out)
        return torch.where(out.isnan(), 1.0, x.sin())


@thorough
def test_reads_of_unset_memory_show(tmp_path: Path) -> None:
    """Filling memory that nothing wrote changes the output of a package compiled here.

    Eager and the runs may agree or not, because they find random contents in that memory.
    """
    module = tmp_path / "ops.py"
    module.write_text(PARTIAL_OP)
    runpy.run_path(str(module))
    x = torch.randn(8, 8)
    torch.export.save(torch.export.export(Unset(), (x,)), tmp_path / "unset.pt2")
    torch.save([x], tmp_path / "x.pt")
    workload = ExportedWorkload(
        exported=tmp_path / "unset.pt2", inputs=tmp_path / "x.pt", env=CACHED, extra_imports=[str(module)]
    )
    result = compared(tmp_path, workload)
    assert result.reads_unset, result.summary
    assert result.unset_from is not None and "even_rows" in result.unset_from.kernel
    assert (result.outcome == "agrees") <= ("memory that nothing wrote" in result.summary)


@thorough
def test_a_script_brings_package_program_and_inputs(zoo: Zoo, tmp_path: Path) -> None:
    """The script runs once. Its call is compared, with the weights at that time."""
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    given = [zoo("logarithm").with_name(f"logarithm.{kind}") for kind in ("exported.pt2", "inputs.pt")]
    arguments = [*map(str, given), str(tmp_path / "made.pt2")]
    env = {**CACHED, "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    result = compared(tmp_path, ScriptWorkload(script=script, args=arguments, env=env, cwd=tmp_path))
    assert result.outcome == "agrees" and result.every_launch.judged >= 3, result.summary
    assert "1 captured updates of constants were applied to both sides" in result.notes


def test_what_cannot_be_compared_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    """A package alone, and a package in place of the program, are rejected, with what is allowed."""
    package = zoo("ranker")
    workload = PackageWorkload(package=package, inputs=package.with_name("ranker.inputs.pt"))
    with pytest.raises(ProblemError, match="nothing to compare with"):
        compared(tmp_path, workload)
    with pytest.raises(ProblemError, match="a compiled AOTInductor package"):
        compared(tmp_path, workload, package)
    script = tmp_path / "nothing.py"
    script.write_text("print('no model here')")
    with pytest.raises(ProblemError, match="makes no call"):
        compared(tmp_path, ScriptWorkload(script=script, cwd=tmp_path))
