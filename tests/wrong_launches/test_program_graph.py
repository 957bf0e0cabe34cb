"""Values of nodes from what a launch reads, so that nothing before it is replaced."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from mcp_server.worker.launch_nodes import ProgramGraph
from mcp_server.worker.report import Report
from tests.wrong_launches.models import SCALE, Scaled


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(Scaled(4), (torch.randn(2, 4),))


def graph_of(exported: torch.export.ExportedProgram) -> ProgramGraph:
    """Layer 2 as a GPU has it: launch 4 stores the product alone, launch 5 adds the bias."""
    return ProgramGraph(exported.module(), {4: ["linear_2"], 5: ["linear_2", "tanh_2", "mul_2"]})


def test_to_a_known_product_only_its_bias_is_added(
    exported: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    """The input is NaN: any value that came from it would be NaN, too."""
    graph, product = graph_of(exported), torch.randn(2, 4)
    known = {("linear_2", 0, True): product}
    nothing = torch.full((2, 4), math.nan)
    with torch.no_grad():
        (value,) = graph.values([("mul_2", 0, False)], known, [nothing], Report(str(tmp_path / "report")))
    torch.testing.assert_close(value, torch.tanh(product + exported.state_dict["lins.2.bias"]) * SCALE)


def test_without_it_what_comes_before_is_evaluated(exported: torch.export.ExportedProgram) -> None:
    """Which then hides a wrong launch among it, so that it has to be asked for."""
    graph = graph_of(exported)
    known = {("linear_2", 0, True): torch.randn(2, 4)}
    assert "mul_1" in {node.name for node in graph.needed(["mul_2"], {})}
    assert "mul_1" not in {node.name for node in graph.needed(["mul_2"], known)}
    assert {"tanh_2", "mul_2", "linear_2"} <= {node.name for node in graph.needed(["mul_2"], known)}


def test_a_whole_value_needs_nothing_before_it(exported: torch.export.ExportedProgram) -> None:
    """The known node itself is not evaluated."""
    names = {
        node.name for node in graph_of(exported).needed(["mul_2"], {("tanh_2", 0, False): torch.ones(1)})
    }
    assert names == {"mul_2"}
