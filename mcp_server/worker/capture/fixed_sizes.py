"""Sizes that the compile of a program fixed silently, and a build in which they stay dynamic.

A lowering or decomposition may read the example's sizes as numbers (`adaptive_max_pool2d`, `diagonal`). The
compile then adds a guard to the program's shape environment, and the package never checks it (torch 2.13).
"""

from __future__ import annotations

import importlib
import linecache
import os
import re
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from ..compare import compare_all
from ..report import Attempt
from ..tensors import only_tensors
from .attempts import exported, silent, with_sizes
from .changes import Failing

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


def without_fixed_sizes(
    failing: Failing, program: Any, guards: List[Any], shapes: List[Shape], tell: Callable[[str], None]
) -> Iterator[Tuple[Attempt, List[Dict[str, Any]]]]:
    """Build with the operator left to eager mode, and call it with sizes that the package does not take.

    Yields what was tried, with the operator's line, if a call had such sizes. `tell` gets a line before it.
    """
    known, restrictions = places(program), restrictions_of(program, guards)
    for shape in reversed(shapes):
        against = broken(restrictions, known, shape)
        # What follows from a fixed size in later operators breaks, too: the first operator fixed it.
        nodes = [node for each in (*against, *restrictions) for node in each.nodes]
        if against and nodes:
            node = nodes[0]
            name = _name(node)
            tell(f"building the package with {name} left to eager mode")
            told = Attempt("fixed size", f"leave {name} to eager mode, before the compile", NOTE)
            told.after, told.reached_code = CODE.format(name=name), _in_words(against, known)
            told.again = str(failing.error)[:300]
            told.error = _difference(failing, told.after, shape)
            told.outcome = "fails" if told.error else "passes"
            yield told, _lines(node)
            return


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


def _difference(failing: Failing, code: str, shape: Shape) -> str:
    """Return how the build with the change differs from eager mode at these sizes; empty if it agrees."""
    from torch._decomp import decomposition_table
    from torch._inductor import config, decomposition, lowering
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    tensors = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    sizes = {(n, dim): size for n, each in zip(tensors, shape) for dim, size in enumerate(each)}
    changed = {key: size for key, size in sizes.items() if leaves[key[0]].shape[key[1]] != size}
    given = with_sizes(failing, changed)
    if given is None:
        return "the example inputs cannot have these sizes"
    tables: List[Any] = [lowering.lowerings, decomposition.decompositions, decomposition_table]
    before = [dict(table) for table in tables]
    try:
        # The caches do not know these tables.
        with silent(), torch.no_grad(), config.patch(force_disable_caches=True):
            exec(code, {})
            got = _built_and_called(failing, given)
            equal = compare_all(only_tensors(failing.module(*given[0], **given[1])), got).equal
        return "" if equal else "the outputs differ from those of eager mode"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"[:300]
    finally:
        for table, old in zip(tables, before):
            table.update(old)


def _built_and_called(failing: Failing, given: Any) -> List[torch.Tensor]:
    """Export and compile again, load the package and call it; none of this is journaled."""
    from torch.utils import _pytree as pytree

    kind: Any = torch._C._aoti.AOTIModelPackageLoader
    made: Any = kind.__new__(kind)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.pt2")
        assert failing.compile is not None
        failing.compile(exported(failing, failing.options), path)
        getattr(kind.__init__, "__wrapped__", kind.__init__)(made, path, "model", False, 1, -1)
        run = getattr(kind.run, "__wrapped__", kind.run)
        return list(run(made, [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]))
