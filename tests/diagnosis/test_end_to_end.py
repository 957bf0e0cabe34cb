"""Whole diagnoses on the CPU: real packages and programs, run to a verdict."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.plant.faults.models import replace_bytes
from mcp_server.model import PackageWorkload, ScriptWorkload, Verdict
from mcp_server.package.archive import open_package
from mcp_server.package.pytorch.text import read_constants
from tests.conftest import ZooPackage, torch_environment
from tests.support.tools import of_package, verdict
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow


INDICES = [
    ("jagged", 1, "9 at [3] (allowed: -6..5)", 0, "values[starts]"),
    pytest.param("scatter", 1, "300 at [7] (allowed: -12..11)", 2, "index_put", marks=thorough),
]


@pytest.mark.parametrize(("name", "place", "value", "launch", "code"), INDICES, ids=lambda value: str(value))
def test_a_bad_index_is_put_on_the_input(
    zoo: ZooPackage, tmp_path: Path, name: str, place: int, value: str, launch: int, code: str
) -> None:
    """The element, its value and bound (of `jagged`, a size of the call), the launch, the model line."""
    found = of_package(zoo, tmp_path, name, "bad-index")
    assert (found.category, found.confidence) == ("index_out_of_bounds", "proven"), found.summary
    assert found.guilty is not None and found.crashing is not None
    assert (found.guilty.kind, found.guilty.input_index, found.guilty.value) == ("input", place, value)
    assert found.crashing.launch_index == launch
    assert code in found.guilty.model_locations[0].code


def test_a_weight_that_is_nan_is_proven_from_the_package_alone(zoo: ZooPackage, tmp_path: Path) -> None:
    """Its bytes are read from the file; with 0 in its place the call returns finite outputs."""
    package, source = tmp_path / "changed.pt2", zoo("logarithm")
    read = {each.constant.fqn: each for each in read_constants(open_package(source), tmp_path / "c", 1 << 20)}
    old = read["inp.weight"].file.read_bytes()
    at = 4 * (3 * 16 + 5)
    new = old[:at] + struct.pack("<f", math.nan) + old[at + 4 :]
    assert replace_bytes(source, package, old, new)
    inputs = source.with_name("logarithm.inputs.pt")
    found = verdict(tmp_path, PackageWorkload(package=package, inputs=inputs))
    assert (found.category, found.confidence) == ("constants", "proven"), found.summary
    assert found.guilty is not None
    assert (found.guilty.name, found.guilty.value) == ("inp.weight", "nan at [3, 5]")


def test_an_infinite_element_is_proven_although_masks_hold_infinities(
    zoo: ZooPackage, tmp_path: Path
) -> None:
    """A call with a finite number in its place returns finite outputs, and the element is named."""
    inputs = tmp_path / "inputs.pt"
    x, scale = torch.load(zoo("logarithm").with_name("logarithm.inputs.pt"), weights_only=True)
    scale[2, 5] = -math.inf
    torch.save((x, scale), inputs)
    found = verdict(tmp_path, PackageWorkload(package=zoo("logarithm"), inputs=inputs))
    assert (found.category, found.confidence) == ("nan_or_inf", "proven"), found.summary
    assert found.guilty is not None and found.guilty.elements == ["args[1][2, 5] = -inf"]


def test_a_call_with_too_many_tensors_is_refused_by_the_package(zoo: ZooPackage, tmp_path: Path) -> None:
    """The refusal names both numbers, so nothing else can be at fault."""
    inputs = tmp_path / "inputs.pt"
    given = torch.load(zoo("logarithm").with_name("logarithm.inputs.pt"), weights_only=True)
    torch.save((*given, given[0]), inputs)
    found = verdict(tmp_path, PackageWorkload(package=zoo("logarithm"), inputs=inputs))
    assert (found.category, found.confidence) == ("input_mismatch", "proven"), found.summary


def test_a_program_that_dies_after_its_call_is_told_where(zoo: ZooPackage, tmp_path: Path) -> None:
    """The line at which it died, and that the package's call had returned, are known without a cause."""
    script, package = tmp_path / "serve.py", zoo("ranker")
    inputs = package.with_name("ranker.inputs.pt")
    script.write_text(
        "import os, signal, torch\n"
        f"model = torch._inductor.aoti_load_package({str(package)!r})\n"
        f"model(*torch.load({str(inputs)!r}))\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    found = verdict(tmp_path, ScriptWorkload(script=script, env=torch_environment()))
    assert (found.outcome, found.guilty) == ("inconclusive", None), found.summary
    assert "serve.py:4: 1 call had returned. The call returns when it is repeated alone." in found.summary
    assert "error in the script" in found.summary and "compiler" not in found.summary


def test_a_log_alone_starts_nothing_and_proves_nothing(tmp_path: Path) -> None:
    """An index assertion in a log: the category as a candidate, no run, and the call that would settle it."""
    log = tmp_path / "crash.log"
    log.write_text("Error: index out of bounds: 0 <= tmp2 < 32L\n")
    found = verdict(tmp_path, None, log)
    assert found.confidence != "proven" and found.cost.runs == 0
    assert "index_out_of_bounds" in (found.category or found.summary)
    assert [step.tool for step in found.next_steps] == ["diagnose"]


SWAPPED = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, features):
        return features["user"] * 2 - features["item"]

def batch():
    return {"user": torch.ones(4, 8), "item": torch.full((4, 8), 5.0)}

model = Model()
exported = torch.export.export(model, (batch(),))
package = torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2")
compiled = torch._inductor.aoti_load_package(package)
torch.testing.assert_close(compiled(batch()), model(batch()))
swapped = dict(reversed(batch().items()))
torch.testing.assert_close(compiled(swapped), model(swapped))
"""


@thorough
def test_a_script_that_passes_keys_in_another_order(tmp_path: Path) -> None:
    """The captured call is compared with the package, and made again in the exported order to prove it."""
    script = tmp_path / "serve.py"
    script.write_text(SWAPPED)
    env = {"TORCHINDUCTOR_VEC_ISA_OK": "1"}
    found = verdict(tmp_path, ScriptWorkload(script=script, cwd=tmp_path, env=env))
    assert (found.category, found.confidence) == ("input_mismatch", "proven"), found.model_dump_json(indent=1)
    assert found.guilty is not None
    assert any("compiled(swapped)" in place.code for place in found.guilty.model_locations)


OPERATORS = """
import torch

@torch.library.custom_op("aotisilent::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).{layout}

@op.register_fake
def _(x):
    return torch.empty_like(x)
"""
COMPILE = """
import torch
import kept

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.ops.aotisilent.op(x * 2)) - x

x = torch.randn(6, 8)
torch.save((x,), "inputs.pt")
exported = torch.export.export(Model(), (x,))
torch._inductor.aoti_compile_and_package(exported, package_path="model.pt2")
"""


def with_operators(directory: Path, layout: str) -> Verdict:
    """The package of `directory`, with an operator that returns its result in this layout."""
    operators = directory / f"{layout[:4]}.py"
    operators.write_text(OPERATORS.format(layout=layout))
    package, inputs = directory / "model.pt2", directory / "inputs.pt"
    workload = PackageWorkload(package=package, inputs=inputs, extra_imports=[str(operators)])
    (directory / layout[:4]).mkdir()
    return verdict(directory / layout[:4], workload)


@thorough
def test_a_silent_fake_function_is_found_from_the_package_alone(tmp_path: Path) -> None:
    """Other strides than promised raise nothing; keeping the promise changes the result, which proves it.

    An operator that keeps its promise is not accused, and the verdict says that nothing was compared.
    """
    (tmp_path / "kept.py").write_text(OPERATORS.format(layout="clone()"))
    environment = {**torch_environment(), "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILE], cwd=tmp_path, env=environment, check=True)
    found = with_operators(tmp_path, "t().contiguous().t()")
    assert (found.category, found.confidence) == ("custom_op", "proven"), found.summary
    assert found.guilty is not None and found.guilty.name == "torch.ops.aotisilent.op.default"
    assert any("returns different values" in evidence.fact for evidence in found.evidence)
    found = with_operators(tmp_path, "clone()")
    assert found.outcome == "no_fault" and "To check the numbers" in found.summary
