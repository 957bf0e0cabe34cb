"""Which operators the compiler was at when it failed."""

from __future__ import annotations

from typing import Any

import torch

from mcp_server.worker.capture.compiles import stopped_at

STACK = '  File "/app/model.py", line 9, in forward\n    return codec(x)'


def graph() -> torch.fx.Graph:
    """Two operators, of which the second knows the line of its model."""
    made = torch.fx.Graph()
    first = made.call_function(torch.ops.aten.relu.default, (made.placeholder("x"),))
    made.call_function(torch.ops.aten.neg.default, (first,)).meta["stack_trace"] = STACK
    return made


class Lowering:
    """Works on one node after the other, and refuses the second."""

    def run_node(self, n: torch.fx.Node) -> None:
        if n.target is torch.ops.aten.neg.default:
            raise RuntimeError("Unsupported return type")

    def run(self, of: torch.fx.Graph) -> None:
        for n in of.nodes:
            self.run_node(n)


class Kernel:
    """As Inductor's IR, which knows the nodes that it was made of."""

    __module__ = "torch._inductor.ir"

    def __init__(self, origins: list[torch.fx.Node]) -> None:
        self.origins = origins

    def codegen(self) -> None:
        raise RuntimeError("Unsupported return type")


def told(work: Any, *args: Any) -> list[dict[str, str]]:
    try:
        work(*args)
    except RuntimeError as error:
        return stopped_at(error)
    raise AssertionError("it did not fail")


def test_the_node_that_was_being_lowered() -> None:
    """It is told with the lines of the model that made it, and those that went well are not."""
    assert told(Lowering().run, graph()) == [{"operator": "aten.neg.default", "stack": STACK}]


def test_the_nodes_behind_a_kernel_that_was_being_written() -> None:
    """Inputs are no operators; an error elsewhere was at none."""
    found = told(Kernel(list(graph().nodes)).codegen)
    assert [each["operator"] for each in found] == ["aten.relu.default", "aten.neg.default"]

    def link() -> None:
        raise RuntimeError("ld returned 1 exit status")

    assert told(link) == []
