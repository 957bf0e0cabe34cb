"""What a comparison with eager holds in memory: one load of the package, and one operator's wide weights."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mcp_server.worker import compare_launches
from mcp_server.worker.compare_launches import Bench, _differing
from mcp_server.worker.eager_values import ExactRecorder
from mcp_server.worker.report import Report
from tests.conftest import ZooPackage


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


def test_constants_are_counted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements that differ are counted alike in parts and at once, and NaN is the same as NaN."""
    monkeypatch.setattr(compare_launches, "PART", 8)
    own = torch.arange(40.0).reshape(10, 4)
    own[3, 3] = torch.nan
    held = own.clone()
    held[[0, 5, 9], [1, 2, 3]] = -1
    assert (_differing(held, own), _differing(own, own.clone())) == (3, 0)
    assert _differing(held.t(), own.t()) == 3
    assert _differing(torch.tensor(1), torch.tensor(2)) == 1
