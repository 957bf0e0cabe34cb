"""An exported program as one flat graph with real values, and a record of what every node gives."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Optional

import torch
from torch.export.graph_signature import InputKind
from torch.utils import _pytree

from ..calling import call, synchronize, take_if_used
from ..encode import decode
from ..exported import arguments, load_exported
from ..imports import import_all
from ..interpret import bind, difference
from ..loading import load
from ..report import Refused, Report
from .show import departs, not_finite

WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
CAP = 4 << 30  # bytes of all files


@dataclass(frozen=True)
class Program:
    """`values` and `weights` are by the names of placeholders; `ranges` bound the size symbols by name.

    `inputs` are the leaves of the call.
    """

    module: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    values: dict[str, Any]
    weights: frozenset[str]
    ranges: dict[str, tuple[Optional[int], Optional[int]]]

    @property
    def nodes(self) -> list[torch.fx.Node]:
        return list(self.module.graph.nodes)

    @property
    def units(self) -> list[str]:
        """The nodes that compute tensors: what a reduction keeps or leaves out."""
        return [node.name for node in self.nodes if is_unit(node)]


def load_program(request: dict[str, Any], report: Report) -> Program:
    """The program of `request["exported"]` with the asked inputs; raises `Refused` as `flatten_program`."""
    exported = load_exported(request, report)
    report.event("reading_inputs")
    return flatten_program(exported, *arguments(exported, request))


def flatten_program(exported: Any, args: Any, kwargs: Any) -> Program:
    """A program with arguments, without operators that change a tensor in place.

    Raises `Refused` for a program that takes objects other than tensors and plain values.
    """
    from torch.export._tree_utils import reorder_kwargs

    flat = list(_pytree.tree_leaves((args, reorder_kwargs(kwargs, exported.call_spec.in_spec))))
    schemas = [getattr(node.target, "_schema", None) for node in exported.graph.nodes]
    if any(schema is not None and schema.is_mutable for schema in schemas):
        exported = exported.run_decompositions({})  # keeps the operators, makes them functional
    inputs = iter(flat)
    values: dict[str, Any] = {}
    weights = set()
    state = {**exported.constants, **exported.state_dict}
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            values[spec.arg.name] = next(inputs, None)
        elif spec.kind in WEIGHTS:
            values[spec.arg.name] = state[spec.target].detach()
            weights.add(spec.arg.name)
        else:
            raise Refused("the program takes what a reproduction cannot hold", str(spec.kind), "tensors")
    ranges = {str(s): (_int(r.lower), _int(r.upper)) for s, r in exported.range_constraints.items()}
    return Program(exported.graph_module, tuple(flat), values, frozenset(weights), ranges)


def _int(bound: Any) -> Optional[int]:
    """A bound of a range; None for infinity."""
    try:
        return int(bound)
    except (TypeError, ValueError, OverflowError):
        return None


def is_unit(node: torch.fx.Node) -> bool:
    """Whether the node computes a tensor, or several; one that picks one of several is no unit."""
    computes = node.op == "call_function" and bool(_tensors(node.meta.get("val")))
    return computes and picks_from(node) is None


def picks_from(node: torch.fx.Node) -> Optional[torch.fx.Node]:
    """The node with several results of which this one picks one; None for any other node."""
    picks = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"
    source = node.args[0] if picks else None
    several = isinstance(source, torch.fx.Node) and isinstance(source.meta.get("val"), (list, tuple))
    return source if several else None


def operate_record(request: dict[str, Any], report: Report) -> None:
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

        And `fake_mismatch`, for a user's operator that returns another layout than its fake function.
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
            pairs = zip(_tensors(n.meta.get("val")), _tensors(result))
            if any(difference(wanted, got, self.symbols) for wanted, got in pairs):
                self.report.event("fake_mismatch", node=n.name)
        self._keep(n.name, result)
        return result

    def _keep(self, name: str, result: Any) -> None:
        """Save one value; of several results each is saved by the node that picks it."""
        facts: dict[str, bool] = {}
        if isinstance(result, torch.Tensor):
            self.room -= result.numel() * result.element_size()
            if self.room < 0:
                return
            result = compact(result)
            if result.is_floating_point() or result.is_complex():
                wide = result.float() if result.element_size() == 1 else result
                # Minus infinity is what masks are made of.
                high = torch.isinf(wide) if wide.is_complex() else torch.isposinf(wide)
                facts = {"nan": bool(torch.isnan(wide).any()), "inf": bool(high.any())}
        elif not isinstance(result, (int, float, bool)):
            return
        torch.save(result, os.path.join(self.directory, name + ".pt"))
        self.report.event("value", node=name, **facts)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def compact(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, without the rest of a larger storage; strides kept where no memory is shared or skipped."""
    return tensor.detach().cpu().clone(memory_format=torch.preserve_format)


def operate_attempt(request: dict[str, Any], report: Report) -> None:
    """Events `compiling`, `loading`, `calling`, `judged` (`not_finite`, `nan`, `departs`), `recorded`.

    `values` is the directory for the nodes' values, `package_path` the place of the package. A failure ends
    the work where it happens; the operation `record` then does the rest in a process that is not damaged.
    """
    import_all(list(request.get("extra_imports", ())), report)
    exported = load_exported(request, report)
    report.event("reading_inputs")
    args, kwargs = arguments(exported, request)
    program = flatten_program(exported, args, kwargs)
    report.event("importing_inductor")
    from torch._inductor import aoti_compile_and_package

    configs = decode(request.get("inductor_configs") or {})
    report.event("compiling")
    with torch.no_grad():
        package = aoti_compile_and_package(
            exported, package_path=str(request["package_path"]), inductor_configs=configs
        )
    loader = load({"package": package}, report)
    inputs = [leaf for leaf in program.inputs if isinstance(leaf, torch.Tensor)]
    outputs = call(lambda: loader.run([leaf.clone() for leaf in inputs]), 0, report)
    bad = [not_finite(place, output) for place, output in enumerate(outputs)]
    nan = any(o.is_floating_point() and bool(torch.isnan(o.float()).any()) for o in outputs)
    report.event("evaluating")
    expected = Recorder(program, str(request["values"]), report).record()[-len(outputs) :]
    wanted = [value for value in expected if isinstance(value, torch.Tensor)]
    away = [departs(place, *pair) for place, pair in enumerate(zip(outputs, wanted))]
    report.event("judged", not_finite=any(bad), nan=nan, departs=any(away))
    report.event("recorded", units=program.units)
