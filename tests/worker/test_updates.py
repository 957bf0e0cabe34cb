"""Captured updates of constants, applied to the program that a package was compiled from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mcp_server.tools.context import read_events
from mcp_server.worker.loading import update_program
from mcp_server.worker.report import Report
from tests.worker.support import saved


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("weight", torch.ones(2, 3), None),
        ("running", torch.ones(2, 3), "no constant of that name"),
        ("weight", torch.ones(3, 2), "it is float32 [3, 2] and the program has float32 [2, 3]"),
        ("weight", torch.ones(2, 3).double(), "it is float64 [2, 3]"),
    ],
)
def test_an_update_fits_or_is_told(
    tmp_path: Path, name: str, value: torch.Tensor, refused: str | None
) -> None:
    """A value takes the place of the program's own only when name, shape and dtype are the same."""
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    report = tmp_path / "report.jsonl"
    update_program(module, {"file": str(saved(tmp_path, "c.pt", {name: value}))}, Report(str(report)))
    events = read_events(report)
    assert torch.equal(module.weight, value if refused is None else before)
    assert [event["name"] for event in events] == ([name] if refused else [])
    assert all(str(refused) in event["what"] for event in events)


def test_names_as_the_package_mangles_them_are_known(tmp_path: Path) -> None:
    """The older call names constants as C++ does: `0_weight` is `0.weight`."""
    module = nn.Sequential(nn.Linear(3, 2))
    file = saved(tmp_path, "c.pt", {"0_weight": torch.zeros(2, 3)})
    update_program(module, {"file": str(file)}, Report(str(tmp_path / "report.jsonl")))
    assert not module[0].weight.any()
