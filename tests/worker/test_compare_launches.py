"""Launches beside nodes of the exported program: which stores which, what a comparison holds in memory."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mcp_server.worker.compare_launches import Bench
from mcp_server.worker.eager_values import ExactRecorder, Expected
from mcp_server.worker.launch_nodes import RETURNED, ProgramGraph, Stored
from mcp_server.worker.report import Report
from tests.conftest import ZooPackage


class Mutating(nn.Module):  # type: ignore[misc]
    """A result that is mutated before others take it, and one that is taken through a view."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made = x.sin()
        made.relu_()
        return (made.t() + y.exp()).tanh()


@pytest.fixture
def graph() -> ProgramGraph:
    """Launch 0 makes `sin` and mutates it, launch 1 makes `exp`, launch 2 the rest."""
    program = torch.export.export(Mutating(), (torch.ones(2, 3), torch.ones(3, 2)))
    return ProgramGraph(program.module(), {0: ["sin", "relu_"], 1: ["exp"], 2: ["add", "tanh"]})


def stored(node: str) -> Stored:
    return Stored(node, 0, Expected(node, torch.ones(1), None, 1.0))


@pytest.mark.parametrize(
    ("node", "readers", "taken"),
    [
        ("relu_", [2], True),
        ("sin", [2], False),
        ("exp", [2], True),
        ("exp", [1, 2], False),
        ("tanh", [RETURNED], True),
        ("add", [RETURNED], False),
    ],
)
def test_readers_tell_what_a_tensor_holds(
    graph: ProgramGraph, node: str, readers: list[int], taken: bool
) -> None:
    """Views pass a value on, a mutated one stands for what the mutating operator made, and all must agree."""
    assert graph.taken(stored(node), readers) is taken
    # Parts of a reduction look like a node that its reader carries out too; a library's call makes the whole.
    split = ProgramGraph(graph.module, {1: ["exp"], 2: ["exp", "add", "tanh"]})
    assert [split.whole(stored("exp"), 1, [2], library=library) for library in (False, True)] == [False, True]


def test_to_a_known_product_only_its_bias_is_added(tmp_path: Path) -> None:
    """As a GPU has it: one launch stores the product, the next one adds the bias. The input is NaN."""
    program = torch.export.export(
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Tanh()), (torch.ones(2, 4),)
    )
    graph = ProgramGraph(program.module(), {0: ["linear"], 1: ["linear_1"], 2: ["linear_1", "tanh"]})
    product, nothing = torch.randn(2, 4), torch.full((2, 4), math.nan)
    known = {("linear_1", 0, True): product}
    with torch.no_grad():
        report = Report(str(tmp_path / "report"))
        (value,) = graph.values([("tanh", 0, False)], known, [nothing], report)
    torch.testing.assert_close(value, torch.tanh(product + program.state_dict["1.bias"]))
    assert "linear" not in {node.name for node in graph.needed(["tanh"], known)}
    assert "linear" in {node.name for node in graph.needed(["tanh"], {})}


class Layers(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.slow
def test_one_load_is_in_memory_at_a_time(zoo: ZooPackage, tmp_path: Path) -> None:
    """Each run lets the load before it go, and gives the same outputs."""
    package = zoo("logarithm")
    leaves = list(torch.load(package.with_name("logarithm.inputs.pt"), weights_only=True))
    report = Report(str(tmp_path / "report.jsonl"))
    bench = Bench({"package": str(package), "probes": False}, leaves, report)
    first = [tensor.clone() for tensor in bench.run("first", lambda _: False)]
    loaded = weakref.ref(bench.loader)
    second = bench.run("second", lambda _: False)
    assert loaded() is None and bench.loader is not None
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_weights_are_widened_where_they_are_used(tmp_path: Path) -> None:
    """Of three layers no parameter stays in float64, and the result is that of a model in float64."""
    torch.manual_seed(4)
    model, x = Layers().eval(), torch.randn(2, 6)
    module = torch.export.export(model, (x,)).module()
    wide: list[int] = []

    class Watched(ExactRecorder):
        def evaluate(self, node: torch.fx.Node) -> Any:
            result = super().evaluate(node)
            held = [value for value in self.env.values() if isinstance(value, torch.Tensor)]
            wide.append(sum(value.dtype is torch.float64 and value.shape == (6, 6) for value in held))
            return result

    report = Report(str(tmp_path / "report.jsonl"))
    with torch.no_grad():
        found = Watched(module, None, 1 << 20, report).run(x.double(), enable_io_processing=False)
        wanted = model.double()(x.double())
    assert set(wide) == {0}
    torch.testing.assert_close(torch.utils._pytree.tree_leaves(found)[0], wanted)
