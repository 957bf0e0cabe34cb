"""Compiler faults from PyTorch's tracker, bisected to the decision that makes them.

The programs give a wrong dtype or wrong numbers on torch 2.13 for the CPU, where eager is right.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from tests.conftest import CACHE, Zoo
from tests.support.tools import tool
from tests.worker.support import Of
from tests.zoo.names import thorough

AROUND = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"), "TORCHINDUCTOR_VEC_ISA_OK": "1"}


def summed(x: torch.Tensor) -> torch.Tensor:
    """pytorch/pytorch#189518: a pattern replaces a cumulative sum of ones, and drops the requested dtype."""
    steps = torch.ones((2, 4), dtype=torch.bool).cumsum(1, dtype=torch.bfloat16)
    return torch.relu(x).sum() + steps


def any_of(x: torch.Tensor) -> torch.Tensor:
    """pytorch/pytorch#198081: the lowering of `any` gives bool where eager gives uint8."""
    return torch.any(x.to(torch.uint8)) * 200 + 100


def deviation(x: torch.Tensor) -> torch.Tensor:
    """pytorch/pytorch#197089: the decomposition of `std` overflows in the variance."""
    return torch.std(x.cumsum(0) * 1e30) * 0.5


def sinh(x: torch.Tensor) -> torch.Tensor:
    """pytorch/pytorch#183763: the vectorised code overflows before sinh does."""
    return torch.sinh(x) * 0.5


def exported(directory: Path, function: Callable[[torch.Tensor], torch.Tensor], x: Any) -> ExportedWorkload:
    torch.export.save(torch.export.export(Of(function), (x,)), directory / "program.pt2")
    torch.save([x], directory / "inputs.pt")
    return ExportedWorkload(exported=directory / "program.pt2", inputs=directory / "inputs.pt", env=AROUND)


@thorough
@pytest.mark.parametrize(
    ("function", "kind", "operator", "code"),
    [
        (summed, "pass", "", "disabled_passes"),
        (any_of, "lowering", "aten.any.default", "make_fallback(torch.ops.aten.any.default"),
        (deviation, "decomposition", "aten.std.correction", "pop(torch.ops.aten.std.correction, None)"),
    ],
)
def test_a_whole_program_is_bisected(
    tmp_path: Path, function: Callable[[torch.Tensor], torch.Tensor], kind: str, operator: str, code: str
) -> None:
    """The program is reduced, the decision named; the workaround is tested on the whole program and given."""
    result = tool("bisect", tmp_path / "job", exported(tmp_path, function, torch.ones(3)))
    (decision,) = result.decisions
    assert (result.outcome, decision.kind, decision.operator) == ("decision", kind, operator)
    assert (result.workaround.reduced, result.workaround.whole) == ("gone", "gone")
    text = result.report.path.read_text()
    assert (
        all(part in text for part in ("class Model", "### Versions", code)) and code in result.workaround.code
    )
    if kind == "pass":
        assert decision.rewrites == ["pointless_cumsum_replacement"] and decision.rewrites[0] in text
        assert any(line.startswith("-") and "cumsum" in line for line in decision.change)


@thorough
def test_an_option_is_named_in_a_few_compiles(tmp_path: Path) -> None:
    """The failure disappears with the option, and returns without it. The line that ran is printed."""
    x = torch.tensor([89.0, 89.3, -89.2] * 8)
    found = tool("bisect", tmp_path / "job", exported(tmp_path, sinh, x))
    assert (found.outcome, [one.name for one in found.decisions]) == ("decision", ["cpp.simdlen"])
    assert found.workaround.whole == "gone"
    assert found.workaround.code == "aoti_compile_and_package(..., inductor_configs={'cpp.simdlen': 1})"
    assert found.compiles == 4 and {"gone", "same"} == {each.result for each in found.experiments}


@thorough
def test_nan_that_eager_has_too_is_refused_after_one_compile(tmp_path: Path) -> None:
    """The compiler is not to blame for the logarithm of a negative number."""
    x = torch.tensor([-1.0, 2.0, 3.0])
    with pytest.raises(ProblemError, match=r"not the compiler.s.*1 NaN"):
        tool("bisect", tmp_path / "job", exported(tmp_path, lambda x: torch.log(x) + 1, x))


@thorough
def test_inputs_that_the_program_was_not_exported_for_are_refused(zoo: Zoo, tmp_path: Path) -> None:
    """A guard of the program rejects the inputs in eager mode as well."""
    with pytest.raises(ProblemError, match="the compiler's") as refused:
        workload = exported(tmp_path, lambda x: x + 1, torch.ones(3))
        torch.save([torch.ones(4)], tmp_path / "inputs.pt")
        tool("bisect", tmp_path / "job", workload)
    assert "exported for" in str(refused.value)


@thorough
def test_a_failure_that_comes_and_goes_is_not_put_on_an_option(tmp_path: Path) -> None:
    """Random numbers differ from eager and between calls, so no option is named."""
    drawing = exported(tmp_path, lambda x: x + torch.rand_like(x), torch.ones(8))
    found = tool("bisect", tmp_path / "job", drawing)
    assert (found.outcome, found.decisions, found.workaround) == ("not_found", [], None)


def test_a_package_without_its_program_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    """A package cannot be compiled again, and the error says what can."""
    with pytest.raises(ProblemError, match="cannot be compiled again") as refused:
        tool("bisect", tmp_path / "job", package=zoo("logarithm"))
    assert "torch.export.save" in refused.value.allowed
