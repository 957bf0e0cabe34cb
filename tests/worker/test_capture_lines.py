"""The lines of a model that `torch.export` writes down under the hook."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx.proxy import TracerBase

from mcp_server.package.provenance import read_stack
from mcp_server.worker.capture.compiles import keep_lines


def gap(x: torch.Tensor) -> torch.Tensor:
    """A function beside the model."""
    return x - x.mean()


class Layer(nn.Module):  # type: ignore[misc]
    """A module whose `forward` calls a method."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.root(gap(x))

    def root(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch with its filter replaced, for one test."""
    monkeypatch.setattr(TracerBase, "_filter_traceback_frames", TracerBase._filter_traceback_frames)
    keep_lines()
    keep_lines()  # a module that is loaded twice replaces it once
    yield


@pytest.mark.usefixtures("kept")
def test_lines_of_methods_and_functions_that_forward_calls_are_kept() -> None:
    """A node's stack goes from the first `forward` to the line with the operator."""
    program = torch.export.export(nn.Sequential(Layer()), (torch.ones(3),))
    stacks = {n.name: read_stack(n.meta.get("stack_trace") or "") for n in program.graph.nodes}
    own = {name: [(f.function, f.code) for f in stack if not f.library] for name, stack in stacks.items()}
    called = ("forward", "return self.root(gap(x))")
    assert own["mean"] == [called, ("gap", "return x - x.mean()")]
    assert own["sqrt"] == [called, ("root", "return torch.sqrt(x)")]


def test_a_release_without_the_filter_is_left_alone() -> None:
    """Nothing is added to a tracer that has no such method."""
    tracer = SimpleNamespace()
    keep_lines(tracer)
    assert not vars(tracer)
