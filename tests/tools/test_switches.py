"""One wave of careful options on the whole program, and failures that no option is to blame for.

The faults are reports of PyTorch's tracker that fail on torch 2.13 for the CPU, where eager is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.model import ExportedWorkload
from mcp_server.tools.bisect import bisect, of_eager
from mcp_server.tools.reduce.failing import FailureShown
from mcp_server.tools.reduce.reduce import Failing, Target, failing_program
from mcp_server.tools.switches import TIMED, Bisected, fewest, switches_of, try_options
from tests.conftest import CACHE
from tests.diagnosis.support import worker_run
from tests.worker.support import context_in
from tests.zoo.names import thorough

CACHED = {"TORCHINDUCTOR_CACHE_DIR": str(CACHE / "inductor"), "TORCHINDUCTOR_VEC_ISA_OK": "1"}


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
    return ExportedWorkload(exported=directory / "program.pt2", inputs=directory / "inputs.pt", env=CACHED)


@thorough
@pytest.mark.slow
def test_an_option_is_named_in_a_few_compiles(tmp_path: Path) -> None:
    """Gone with the option, back without it, on the whole program; the line that ran is printed."""
    x = torch.tensor([89.0, 89.3, -89.2] * 8)
    context = context_in(tmp_path / "job")

    async def searched() -> Bisected:
        failing = await failing_program(context, exported(tmp_path, Sinh(), x, x))
        return await try_options(context, failing, await switches_of(failing))

    found = anyio.run(searched)
    assert (found.outcome, [one.name for one in found.decisions]) == ("decision", ["cpp.simdlen"])
    assert found.workaround is not None and found.workaround.whole == "gone"
    assert found.workaround.code == "aoti_compile_and_package(..., inductor_configs={'cpp.simdlen': 1})"
    assert found.compiles == 5 and {"gone", "same"} == {each.result for each in found.experiments}


@pytest.mark.slow
@thorough
def test_nan_that_eager_has_too_is_refused_after_one_compile(tmp_path: Path) -> None:
    """The logarithm of a negative number is not the compiler's doing."""
    x = torch.tensor([-1.0, 2.0, 3.0])
    context = context_in(tmp_path / "job")
    with pytest.raises(ProblemError, match=r"not the compiler.s.*1 NaN"):
        anyio.run(partial(bisect, context, exported(tmp_path, Logarithm(), x, x)))
    assert context.cost.compiles == 1


NAMES = ("a", "b", "c", "d", "e", "f", "cpp.simdlen", "g")


def searched(parallel: int, *guilty: set[str], clash: bool = False) -> tuple[set[str], int]:
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


@pytest.mark.parametrize("parallel", [1, 2, 4, 8])
@pytest.mark.parametrize("name", NAMES)
def test_every_single_option_is_found(name: str, parallel: int) -> None:
    """Whichever it is, in at most ten compiles of eight options."""
    found, compiles = searched(parallel, {name})
    assert found == {name} and compiles <= 10


def test_options_that_help_only_together_are_named_together() -> None:
    """The smallest group that was seen to help, and none where nothing helps."""
    found, _ = searched(2, {"a", "g"})
    assert {"a", "g"} <= found
    assert searched(2, {"a", "b"})[0] == {"a", "b"}
    assert searched(2) == (set(), 2)


def test_options_that_clash_hide_no_single_one() -> None:
    """Where all at once fail in another way, parts are tried all the same."""
    assert searched(2, {"f"}, clash=True)[0] == {"f"}
    assert searched(2, clash=True)[0] == set()


SHOWN = FailureShown(kind="crash", phase="calling", signal="SIGSEGV")
GUARD = {"event": "guard_failed", "text": "Guard failed: x.size()[0] <= 8"}
RAISED = {"event": "node_raised", "node": "n", "op": "aten.index.Tensor", "stack": [], "text": "no"}
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
        return await try_options(context, failing, await switches_of(failing))

    found = anyio.run(searched_for)
    assert (found.outcome, found.decisions, found.workaround) == ("not_found", [], None)
