"""Faults of the compiler that PyTorch's tracker knows, named to the decision that makes them.

Their programs give a wrong dtype or wrong numbers on torch 2.13 for the CPU, where eager is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.tools.bisect import Search, of_eager
from mcp_server.tools.failing import Failing, FailureShown, Target, failing_program, try_script
from mcp_server.tools.switches import TIMED, Bisected, fewest, switches_of, try_options
from tests.conftest import CACHE, ZooPackage
from tests.diagnosis.support import worker_run
from tests.support.tools import tool
from tests.worker.support import context_in
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


def searched(tmp_path: Path, expression: str, operators: set[str]) -> tuple[Search, str]:
    """The search over a script that exits with 4 where the package differs from eager, and why it failed;
    where it named something, `gone` or not, as the workaround does.
    """
    script = tmp_path / "repro.py"
    script.write_text(SCRIPT.format(expression=expression))
    target = Target(ExportedWorkload(exported=script, env=CACHED), {})
    failing = Failing(target, worker_run(), FailureShown(kind="departs"))

    async def search() -> tuple[Search, str]:
        context = context_in(tmp_path / "job")
        async with context.sharing_imports():
            found = Search(context, failing, script, operators)
            reason = await found.run()
            if found.workaround is not None:
                reason, _ = await try_script(context, failing, script, {"workaround": found.workaround})
        return found, reason

    return anyio.run(search)


@thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "operators", "kind", "named", "switched"),
    [
        (SUMMED, {"aten.ones.default", "aten.cumsum.default"}, "pass", "", "configs"),
        (ANY, {"aten.any.default"}, "lowering", "aten.any.default", "fallbacks"),
        (DEVIATION, {"aten.std.correction"}, "decomposition", "aten.std.correction", "decompositions"),
    ],
    ids=["pass", "lowering", "decomposition"],
)
def test_what_the_compiler_decided_is_named(
    tmp_path: Path, expression: str, operators: set[str], kind: str, named: str, switched: str
) -> None:
    """A pass with what it changes, a lowering or decomposition with its operator, and what avoids it."""
    found, result = searched(tmp_path, expression, operators)
    (decision,) = found.named
    assert (decision.kind, result) == (kind, "gone") and found.workaround is not None
    if kind == "pass":
        assert decision.rewrites == ["pointless_cumsum_replacement"] and len(found.experiments) <= 14
        assert any(line.startswith("-") and "cumsum" in line for line in decision.change)
        assert set(found.workaround["configs"]) == {"disabled_passes"}
    else:
        assert decision.op == named and found.workaround.get(switched) == [named]


@thorough
@pytest.mark.slow
def test_a_failure_that_the_program_makes_itself_has_no_decision(tmp_path: Path) -> None:
    """An operation that is wrong in the model too stays whatever is switched off: nothing is named."""
    found, reason = searched(tmp_path, "x + (0 if torch.compiler.is_exporting() else 1)", {"aten.add.Tensor"})
    assert found.named == [] and "the failure stays" in reason


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
    result = tool("bisect", tmp_path / "job", workload)
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


def test_a_package_without_its_program_is_refused(zoo: ZooPackage, tmp_path: Path) -> None:
    """A package cannot be compiled again; the error says what can."""
    with pytest.raises(ProblemError, match="cannot be compiled again") as refused:
        tool("bisect", tmp_path / "job", package=zoo("logarithm"))
    assert "torch.export.save" in refused.value.allowed


# One wave of careful options on the whole program, and failures that no option is to blame for.


VECTORS = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"), "TORCHINDUCTOR_VEC_ISA_OK": "1"}


class Sinh(torch.nn.Module):  # type: ignore[misc]
    """pytorch/pytorch#183763: the vectorised code overflows before sinh does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sinh(x) * 0.5


class Logarithm(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x) + 1


def exported(directory: Path, model: torch.nn.Module, example: Any, inputs: Any) -> ExportedWorkload:
    torch.export.save(torch.export.export(model, (example,)), directory / "program.pt2")
    torch.save([inputs], directory / "inputs.pt")
    return ExportedWorkload(exported=directory / "program.pt2", inputs=directory / "inputs.pt", env=VECTORS)


@thorough
@pytest.mark.slow
def test_an_option_is_named_in_a_few_compiles(tmp_path: Path) -> None:
    """Gone with the option, back without it, on the whole program; the line that ran is printed."""
    x = torch.tensor([89.0, 89.3, -89.2] * 8)
    context = context_in(tmp_path / "job")

    async def named() -> Bisected:
        failing = await failing_program(context, exported(tmp_path, Sinh(), x, x))
        return await try_options(context, failing, switches_of(failing))

    found = anyio.run(named)
    assert (found.outcome, [one.name for one in found.decisions]) == ("decision", ["cpp.simdlen"])
    assert found.workaround is not None and found.workaround.whole == "gone"
    assert found.workaround.code == "aoti_compile_and_package(..., inductor_configs={'cpp.simdlen': 1})"
    assert found.compiles == 4 and {"gone", "same"} == {each.result for each in found.experiments}


@pytest.mark.slow
@thorough
def test_nan_that_eager_has_too_is_refused_after_one_compile(tmp_path: Path) -> None:
    """The logarithm of a negative number is not the compiler's doing."""
    x = torch.tensor([-1.0, 2.0, 3.0])
    with pytest.raises(ProblemError, match=r"not the compiler.s.*1 NaN"):
        tool("bisect", tmp_path / "job", exported(tmp_path, Logarithm(), x, x))


NAMES = ("a", "b", "c", "d", "e", "f", "cpp.simdlen", "g")


def named(parallel: int, *guilty: set[str], clash: bool = False) -> tuple[set[str], int]:
    """What is named where each of `guilty` is a set of options that help together, and how many compiles.

    With `clash` all options at once fail in another way.
    """
    compiles = 0

    async def run(groups: Sequence[tuple[str, ...]]) -> list[Any]:
        nonlocal compiles
        compiles += len(groups)
        helps = ["gone" if any(one <= set(names) for one in guilty) else "same" for names in groups]
        return [
            "other" if clash and names == NAMES else one for names, one in zip(groups, helps, strict=True)
        ]

    found = anyio.run(fewest, NAMES, ("cpp.simdlen",), parallel, run)
    return set(found), compiles


SHOWN = FailureShown(kind="crash", phase="calling", signal="SIGSEGV")
NODE = {"node": "n", "op": "aten.index.Tensor", "stack": []}
GUARD = {"event": "guard_failed", **NODE, "text": "Guard failed: x.size()[0] <= 8"}
RAISED = {"event": "node_raised", **NODE, "text": "no"}
CALLED = {"event": "called", "outputs": [{"nan": 1, "inf": 0}]}
INTERPRETED = {"event": "interpreted", "outputs": [{"nan": 1, "inf": 0}]}
FINITE = {"event": "interpreted", "outputs": [{"nan": 0, "inf": 0}]}
COMPILING = FailureShown(kind="error", phase="compiling")


@pytest.mark.parametrize(
    ("failure", "eager", "reason"),
    [
        (SHOWN, GUARD, "not what the program was exported for"),
        (FailureShown(kind="not_finite", phase="calling", nan=True), INTERPRETED, "output 0: 1 NaN"),
        (FailureShown(kind="not_finite", phase="calling", nan=True), FINITE, ""),
        (SHOWN, FINITE, ""),
        (COMPILING, RAISED, ""),
    ],
)
def test_eager_mode_clears_the_compiler(failure: FailureShown, eager: Any, reason: str) -> None:
    """Bad inputs and values that eager gives as well are not the compiler's; what eager does well may be."""
    target = Target(ExportedWorkload(exported=Path("p.pt2")), {})
    found = of_eager(Failing(target, worker_run(CALLED), failure), worker_run(eager))
    assert reason in found and bool(found) == bool(reason)


class Drawing(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


@pytest.mark.slow
@thorough
def test_a_failure_that_comes_and_goes_is_not_put_on_an_option(tmp_path: Path) -> None:
    """Numbers that are drawn differ from eager and from call to call: no option is named."""
    x = torch.ones(8)
    context = context_in(tmp_path / "job")

    async def searched_for() -> Bisected:
        failing = await failing_program(context, exported(tmp_path, Drawing(), x, x), TIMED)
        return await try_options(context, failing, switches_of(failing))

    found = anyio.run(searched_for)
    assert (found.outcome, found.decisions, found.workaround) == ("not_found", [], None)
