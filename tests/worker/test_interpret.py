"""What the exported program tells, node by node."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mcp_server.tools.context import read_events
from mcp_server.worker import interpret
from mcp_server.worker.report import Report


class Lookup(nn.Module):  # type: ignore[misc]
    """A row of a table, doubled."""

    def forward(self, table: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return table[row] * 2


def test_an_error_of_a_kernel_is_put_on_the_node_that_launched_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device tells of it when it is waited for, which is done after each node."""
    program = torch.export.export(Lookup(), (torch.ones(4, 3), torch.tensor([1, 2])))
    module = program.module()
    nodes = iter([str(node.target) for node in module.graph.nodes])

    def fail() -> None:
        if next(nodes) == "aten.index.Tensor":
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(interpret, "synchronize", fail)
    given = [torch.ones(4, 3), torch.tensor([1, 2])]
    watcher = interpret.Watcher(module, given, Report(str(tmp_path / "report.jsonl")))
    with pytest.raises(RuntimeError, match="device-side"):
        watcher.run(*given, enable_io_processing=False)
    (event,) = read_events(tmp_path / "report.jsonl")
    assert (event["event"], event["op"]) == ("node_raised", "aten.index.Tensor")
    assert "table[row]" in event["stack"][0]["code"]
