"""Whole diagnoses on the CPU: real packages and programs, run to a verdict."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
import torch

from benchmarks.plant.faults.models import replace_bytes
from mcp_server.model import PackageWorkload, ScriptWorkload
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
