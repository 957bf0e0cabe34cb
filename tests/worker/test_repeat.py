"""A call made again: as it is, and with other bytes in new memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ZooPackage
from tests.worker.support import work

pytestmark = pytest.mark.slow

OPERATOR = """
import torch
from torch.library import custom_op

@custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    y = torch.{made}(x[: x.shape[0] // 2])
    y[1:] = x[1 : x.shape[0] // 2]
    return y
"""


@pytest.mark.parametrize(("made", "same"), [("zeros_like", True), ("empty_like", False)])
def test_only_memory_that_nothing_wrote_changes_with_what_it_holds(
    zoo: ZooPackage, tmp_path: Path, made: str, same: bool
) -> None:
    """A result that is written in full is the same in all calls; else the one with other bytes differs."""
    operators = tmp_path / "operators.py"
    operators.write_text(OPERATOR.format(made=made))
    package = zoo("plugin")
    done = work(
        tmp_path,
        "repeat",
        {
            "package": package,
            "inputs": package.with_name("plugin.inputs.pt"),
            "extra_imports": [str(operators)],
        },
    )
    told = {event["run"]: event["equal"] for event in done.all("repeated")}
    assert told == {"second": True, "filled": same}
