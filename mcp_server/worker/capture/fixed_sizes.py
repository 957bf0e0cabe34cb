"""Sizes that the compile of a program fixed silently.

A lowering or decomposition may read the example's sizes as numbers (`adaptive_max_pool2d`, `diagonal`). The
compile then adds a guard to the program's shape environment, and the package never checks it (torch 2.13).
"""

from __future__ import annotations

import importlib
import linecache
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

import torch

from ..report import Attempt

Shape = Tuple[Tuple[int, ...], ...]  # of each tensor of a call
NOTE = "these tables are private to torch; the operator then runs as it does in eager mode, and is not fused"
CODE = """import torch._decomp, torch._inductor.decomposition, torch._inductor.lowering
tables = torch._inductor.lowering.lowerings, torch._inductor.decomposition.decompositions
[t.pop(op) for t in (*tables, torch._decomp.decomposition_table) for op in list(t) if {name!r} in str(op)]"""


@dataclass(frozen=True)
class Restriction:
    """An equation of sizes that the compile added as a guard, and the operators whose function added it."""

    expression: Any
    nodes: List[Any]


def restrictions_of(program: Any, guards: List[Any]) -> List[Restriction]:
    """Return the guards that are equations, with the operators that are named like the guard's function."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    found = []
    for guard in guards:
        name = str(getattr(guard.sloc.framework_loc, "name", "")).strip("_")
        if type(guard.expr).__name__ == "Equality":
            found.append(Restriction(guard.expr, [node for node in calls if name and _name(node) == name]))
    return found


def _name(node: Any) -> str:
    return str(getattr(node.target, "_opname", "")).strip("_")


def places(program: Any) -> Dict[Any, Tuple[str, int, int]]:
    """Return the dynamic dimension of each symbol: input, number among the tensors, dimension."""
    inputs = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    tensors = [node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    found: Dict[Any, Tuple[str, int, int]] = {}
    for number, node in enumerate(tensors):
        for dim, size in enumerate(node.meta["val"].shape):
            symbol = size.node.expr if isinstance(size, torch.SymInt) else None
            if getattr(symbol, "is_Symbol", False):
                found.setdefault(symbol, (node.name, number, dim))
    return found


def broken(restrictions: List[Restriction], known: Dict[Any, Any], shape: Shape) -> List[Restriction]:
    """Return the restrictions that the sizes of a call do not meet."""
    sizes = {
        symbol: shape[number][dim]
        for symbol, (_, number, dim) in known.items()
        if len(shape) > number and len(shape[number]) > dim
    }
    return [
        each
        for each in restrictions
        if each.expression.free_symbols <= sizes.keys() and not bool(each.expression.subs(sizes))
    ]


def fixed_sizes(
    program: Any, guards: List[Any], shapes: List[Shape]
) -> Iterator[Tuple[Attempt, List[Dict[str, Any]]]]:
    """Yield how to leave the operator to eager mode, with its line, if only the last sizes break a guard.

    It is not tried here: a process that has compiled the operator once keeps its decomposition (torch 2.13).
    """
    known, restrictions = places(program), restrictions_of(program, guards)
    against = broken(restrictions, known, shapes[-1]) if shapes else []
    # What follows from a fixed size in later operators breaks, too: the first operator fixed it.
    nodes = [node for each in (*against, *restrictions) for node in each.nodes]
    if against and nodes and not any(broken(restrictions, known, shape) for shape in shapes[:-1]):
        name = _name(nodes[0])
        told = Attempt("fixed size", f"leave {name} to eager mode: run this before the export", NOTE)
        told.after, told.reached_code = CODE.format(name=name), _in_words(against, known)
        told.outcome = "untried"
        yield told, _lines(nodes[0])


def _lines(node: Any) -> List[Dict[str, Any]]:
    """Return the innermost line of the model behind a node."""
    found = re.findall(r'File "([^"]+)", line (\d+)', str(node.meta.get("stack_trace") or ""))[-1:]
    return [
        {"file": file, "line": int(line), "code": linecache.getline(file, int(line)).strip()}
        for file, line in found
    ]


def _in_words(against: List[Restriction], known: Dict[Any, Any]) -> str:
    sympy: Any = importlib.import_module("sympy")  # it has no types
    names = {symbol: sympy.Symbol(f"{name}.shape[{dim}]") for symbol, (name, _, dim) in known.items()}
    found = [each.expression.subs(names) for each in against]
    texts = [f"{e.lhs} == {e.rhs}" if isinstance(e, sympy.Eq) else str(e) for e in found]
    return " and ".join(dict.fromkeys(texts))
