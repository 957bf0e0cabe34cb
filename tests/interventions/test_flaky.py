"""Failures that come and go, and calls that do not end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Where
from tests.conftest import ZooPackage
from tests.interventions.support import the_call, tried
from tests.worker.support import saved
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

# Fails for NaN in every second call that has any; hangs for two rows of it.
OPERATOR = """
import itertools, time, torch
turn = itertools.count()

@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    rows = int(x.isnan().any(1).sum())
    if rows > 1:
        time.sleep(600)
    if rows and next(turn) % 3:
        raise ValueError("not this time")
    n = x.shape[0] // 2
    y = x.nan_to_num() if rows else x
    return y[: n * 2].reshape(n, 2, *x.shape[1:]).sum(1).contiguous()
"""


@pytest.fixture
def bad(zoo: ZooPackage, tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """The package, inputs with one row of NaN, and the operator."""
    operators = tmp_path / "operators.py"
    operators.write_text(OPERATOR)
    package = zoo("plugin")
    values = [leaf.clone() for leaf in torch.load(package.with_name("plugin.inputs.pt"), weights_only=True)]
    values[0][3] = float("nan")
    return package, saved(tmp_path, "bad.pt", values), [str(operators)]


@thorough
def test_a_flaky_failure_is_made_as_often_as_chance_needs(
    bad: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    """Without the cause there are so many calls without a failure that chance is below 1 %."""
    package, given, imports = bad
    call = the_call(package, given, extra_imports=imports)
    first = inputs.Leaf(0, "args[0]")
    right, wrong = tried(
        tmp_path, call, [inputs.replace_where(first, Where(nan=True), 0.5), inputs.contiguous(first)]
    )
    assert right.effect is Effect.GONE and right.proves and 0 < right.chance < 0.01
    assert 0 < right.failed < right.calls and f"failed {right.failed} times of {right.calls}" in right.reason
    assert wrong.effect is Effect.SAME and not wrong.proves


def test_a_change_that_hangs_is_ended_and_the_rest_goes_on(
    bad: tuple[Path, Path, list[str]], tmp_path: Path
) -> None:
    """The call that does not end is a result of its own."""
    package, given, imports = bad
    always = Path(imports[0])
    always.write_text(OPERATOR.replace("rows and next(turn) % 3", "rows"))
    call = the_call(package, given, extra_imports=imports, timeout_s=8)
    first = inputs.Leaf(0, "args[0]")
    worse = inputs.replace_element(first, (0, 0), "nan")
    good = inputs.replace_where(first, Where(nan=True), 0.5)
    hung, gone = tried(tmp_path, call, [worse, good])
    assert hung.before.ended == "raised" and hung.after.ended == "timeout"
    assert hung.effect is Effect.CHANGED and gone.effect is Effect.GONE
