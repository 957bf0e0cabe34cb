"""Faults of the compiler that PyTorch's tracker knows, named to the decision that makes them.

Their programs give a wrong dtype or wrong numbers on torch 2.13 for the CPU, where eager is right.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.operations.arguments import BisectArguments
from mcp_server.operations.table import bisect as asked
from mcp_server.runtime.context import WorkerRun
from mcp_server.tools.bisect import bisect
from mcp_server.tools.switches import Bisected
from mcp_server.worker import events
from tests.conftest import CACHE, ZooPackage
from tests.worker.support import context_in, work
from tests.zoo.names import thorough

CACHED = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor")}
# pytorch/pytorch#189518: a pattern replaces a cumulative sum of ones, and drops the dtype asked for.
SUMMED = "torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16) * x.shape[0]"
# pytorch/pytorch#198081: the lowering of `any` gives bool where eager gives uint8.
ANY = "torch.any(x.to(torch.uint8)) * 200 + 100"
# pytorch/pytorch#197089: the decomposition of `std` overflows in the variance.
DEVIATION = "torch.std(x.cumsum(0) * 1e30) * 0.5"
SCRIPT = """
import sys, tempfile
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return {expression}

if __name__ == "__main__":
    x = torch.ones(3)
    print("phase: compiling")
    program = torch.export.export(Model(), (x,))
    path = tempfile.mkdtemp() + "/model.pt2"
    package = torch._inductor.aoti_compile_and_package(program, package_path=path)
    print("phase: calling", flush=True)
    got, want = torch._inductor.aoti_load_package(package)(x), Model()(x)
    sys.exit(0 if got.dtype == want.dtype and torch.equal(got, want) else 4)
"""


def searched(tmp_path: Path, expression: str, operators: list[str]) -> WorkerRun:
    """The worker's search over a script that exits with 4 where the package differs from eager."""
    script = tmp_path / "repro.py"
    script.write_text(SCRIPT.format(expression=expression))
    request = {
        "script": str(script),
        "directory": str(tmp_path / "experiments"),
        "failure": {"kind": "departs"},
        "operators": operators,
        "budget_s": 300,
        "each_s": 120,
        "parallel": 2,
        "fork": True,
    }
    (tmp_path / "experiments").mkdir()
    return work(tmp_path, "bisect", request, env=CACHED, timeout_s=400)


@thorough
@pytest.mark.slow
def test_a_pass_is_named_with_what_it_changes(tmp_path: Path) -> None:
    """The pass that rewrites the sum, the function that does it, and the option that switches it off."""
    done = searched(tmp_path, SUMMED, ["aten.ones.default", "aten.cumsum.default"])
    found = done.last(events.Decision)
    assert found is not None
    assert (found.kind, len(found.details)) == ("pass", 1)
    assert found.details[0].rewrites == ["pointless_cumsum_replacement"]
    assert any(line.startswith("-") and "cumsum" in line for line in found.details[0].change)
    workaround = done.last(events.Workaround)
    assert workaround is not None
    assert workaround.outcome == "gone"
    assert set(workaround.configs) == {"disabled_passes"}
    bisected = done.last(events.Bisected)
    assert bisected is not None
    assert bisected.reason == ""
    assert bisected.compiles <= 12


@thorough
@pytest.mark.slow
def test_a_lowering_is_named_with_its_operator(tmp_path: Path) -> None:
    """Where no pass and no option is behind it: the operator whose generated code is wrong."""
    done = searched(tmp_path, ANY, ["aten.any.default"])
    found = done.last(events.Decision)
    assert found is not None
    assert (found.kind, [detail.op for detail in found.details]) == (
        "lowering",
        ["aten.any.default"],
    )
    workaround = done.last(events.Workaround)
    assert workaround is not None
    assert (workaround.outcome, workaround.fallbacks) == ("gone", ["aten.any.default"])


@thorough
@pytest.mark.slow
def test_a_decomposition_of_an_operator_without_generated_code_is_named(tmp_path: Path) -> None:
    """The compiler calls the operator itself once its decomposition is off; then the numbers are right."""
    done = searched(tmp_path, DEVIATION, ["aten.std.correction"])
    found = done.last(events.Decision)
    assert found is not None
    assert (found.kind, [detail.op for detail in found.details]) == ("decomposition", ["aten.std.correction"])
    workaround = done.last(events.Workaround)
    assert workaround is not None
    assert (workaround.outcome, workaround.decompositions) == ("gone", ["aten.std.correction"])


@thorough
@pytest.mark.slow
def test_a_failure_that_the_program_makes_itself_has_no_decision(tmp_path: Path) -> None:
    """An operation that is wrong in the model too stays whatever is switched off: nothing is named."""
    done = searched(tmp_path, "x + (0 if torch.compiler.is_exporting() else 1)", ["aten.add.Tensor"])
    bisected = done.last(events.Bisected)
    assert bisected is not None
    assert done.last(events.Decision) is None
    assert "the failure stays" in bisected.reason


class Summed(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16)
        return torch.relu(x).sum() + steps


@thorough
@pytest.mark.slow
def test_a_whole_program_is_bisected(tmp_path: Path) -> None:
    """Reduced, named, worked around in the whole program, priced, and written up for the tracker."""
    inputs = (torch.ones(3),)
    torch.export.save(torch.export.export(Summed(), inputs), tmp_path / "summed.pt2")
    torch.save(list(inputs), tmp_path / "inputs.pt")
    workload = ExportedWorkload(exported=tmp_path / "summed.pt2", inputs=tmp_path / "inputs.pt", env=CACHED)
    result: Bisected = anyio.run(partial(bisect, context_in(tmp_path / "job"), workload))
    assert (result.outcome, [one.kind for one in result.decisions]) == ("decision", ["pass"])
    assert result.workaround is not None
    assert (result.workaround.reduced, result.workaround.whole) == ("gone", "gone")
    assert "disabled_passes" in result.workaround.code
    assert result.report is not None
    text = result.report.path.read_text()
    assert all(
        part in text
        for part in ("pointless_cumsum_replacement", "class Model", "### Versions", "disabled_passes")
    )


@thorough
@pytest.mark.slow
def test_a_program_without_a_failure_is_refused(zoo: ZooPackage, tmp_path: Path) -> None:
    """Nothing is searched for in a program that agrees with eager."""
    package = zoo("logarithm")
    workload = ExportedWorkload(
        exported=package.with_name("logarithm.exported.pt2"),
        inputs=package.with_name("logarithm.inputs.pt"),
        env=CACHED,
    )
    with pytest.raises(ProblemError, match="does not fail"):
        anyio.run(partial(bisect, context_in(tmp_path / "job"), workload))


def test_a_package_without_its_program_is_refused(zoo: ZooPackage, tmp_path: Path) -> None:
    """A package cannot be compiled again; the error says what can."""
    arguments = BisectArguments(package=str(zoo("logarithm")))
    with pytest.raises(ProblemError, match="cannot be compiled again") as refused:
        anyio.run(asked, context_in(tmp_path / "job"), arguments)
    assert "torch.export.save" in refused.value.allowed
