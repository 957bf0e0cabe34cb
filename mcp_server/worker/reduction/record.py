"""Records what every node of a program gives, one file a node, so that any part can be cut out of it."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils import _pytree

from ..calling import synchronize, take_if_used
from ..imports import import_all
from ..interpret import bind
from ..promises import difference
from ..report import Report
from .program import Program, load_program

CAP = 4 << 30  # bytes of all files


def operate(request: dict[str, Any], report: Report) -> None:
    """Run `exported` on `inputs`; the values go into the directory `values`. Event `recorded` at the end."""
    import_all(list(request.get("extra_imports", ())), report)
    program = load_program(request, report)
    Recorder(program, str(request["values"]), report).record()
    report.event("recorded", units=program.units)


class Recorder(torch.fx.Interpreter):
    """Runs the graph node by node. Files stay when a node kills the process: that is how it is found."""

    def __init__(self, program: Program, directory: str, report: Report) -> None:
        super().__init__(program.module)
        self.program = program
        self.directory = directory
        self.report = report
        self.room = CAP
        self.symbols = bind(program.module, list(program.values.values()))

    def record(self) -> list[Any]:
        """The outputs of the graph. Events `node` before each node that computes, `value` after it.

        And `broken_promise`, for a user's operator that returns another layout than its fake function.
        """
        take_if_used()
        os.makedirs(self.directory, exist_ok=True)
        self.extra_traceback = False
        with torch.no_grad():
            found = self.run(*self.program.values.values(), enable_io_processing=False)
        return list(found)

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op != "call_function":
            return super().run_node(n)
        self.report.event("node", node=n.name, op=str(n.target))
        result = super().run_node(n)
        synchronize()
        if not str(n.target).startswith("aten."):
            self._hold_to_promise(n, result)
        self._keep(n.name, result)
        return result

    def _hold_to_promise(self, node: torch.fx.Node, result: Any) -> None:
        promised = [
            leaf for leaf in _pytree.tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)
        ]
        real = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if any(difference(want, got, self.symbols) for want, got in zip(promised, real)):
            self.report.event("broken_promise", node=node.name)

    def _keep(self, name: str, result: Any) -> None:
        kept: Any = result
        if isinstance(result, torch.Tensor):
            self.room -= result.numel() * result.element_size()
            if self.room < 0:
                return
            kept = compact(result)
        elif not isinstance(result, (int, float, bool)):
            return  # several results: each is kept by the node that picks it
        torch.save(kept, os.path.join(self.directory, name + ".pt"))
        self.report.event("value", node=name, **_badness(kept))


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, without the rest of a larger storage; strides kept where no memory is shared or skipped."""
    return tensor.detach().cpu().clone(memory_format=torch.preserve_format)


def _badness(value: Any) -> dict[str, bool]:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return {}
    wide = value.float() if value.element_size() == 1 else value
    high = torch.isinf(wide) if wide.is_complex() else torch.isposinf(wide)  # minus infinity: masks hold it
    return {"nan": bool(torch.isnan(wide).any()), "inf": bool(high.any())}
