"""Shapes that a compile has to know: missing fake functions, and sizes that the compile fixed silently.

A custom operator without a fake function gets one that fits its results in eager mode. A lowering or
decomposition may read the example's sizes as numbers (`adaptive_max_pool2d`, `diagonal`): the compile then
adds a guard to the program's shape environment, and the package never checks it (torch 2.13).
"""

from __future__ import annotations

import contextlib
import importlib
import linecache
import re
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..encode import TORCH
from ..report import Attempt

# Messages of torch 2.8-2.15 for an operator of `torch.library.custom_op`, and for one of a `Library`.
NO_FAKE = re.compile(
    r"no fake impl registered for <CustomOpDef\((?P<made>[\w.]+::\w+)|"
    r"(?P<defined>[\w.]+::\w+)(?:\.\w+)?: attempted to run this operator with Meta tensors"
)


@dataclass
class Call:
    """One call of the operator in eager mode: its arguments by name, and its result."""

    arguments: dict[str, Any]
    result: Any


class _Watch(TorchDispatchMode):
    """Keeps the first call of an operator."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.call: Call | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.call is None and func._schema.name == self.name:
            names = [each.name for each in func._schema.arguments]
            self.call = Call({**dict(zip(names, args)), **(kwargs or {})}, result)
        return result


def call_of(name: str, run: Callable[[], Any]) -> Call | None:
    """The first call of the operator in `run`. None if there is none, or if `run` fails."""
    with contextlib.suppress(Exception), torch.no_grad(), _Watch(name) as watch:
        run()
        return watch.call
    return None


def written(name: str, calls: list[Call]) -> str:
    """The code of a fake function that fits all calls. Empty if no simple one does."""
    space, _, operator = name.partition("::")
    packet = getattr(getattr(torch.ops, space), operator, None)
    schema = getattr(getattr(packet, "default", None), "_schema", None)
    first = calls[0].result if calls else None
    several = isinstance(first, (tuple, list))
    if schema is None or schema.is_mutable or not calls:
        return ""
    results = [list(each.result) if several else [each.result] for each in calls]
    made = [_output(calls, [each[place] for each in results]) for place in range(len(results[0]))]
    if not made or not all(made):
        return ""
    body = ", ".join(made)
    body = f"[{body}]" if isinstance(first, list) else f"({body},)" if several else body
    names = ", ".join(each.name for each in schema.arguments)
    return f'@torch.library.register_fake("{name}")\ndef _({names}):\n    return {body}'


def _output(calls: list[Call], outputs: list[Any]) -> str:
    """An expression for one output of the calls. Empty if none fits."""
    if not all(isinstance(each, torch.Tensor) for each in outputs):
        return ""
    tensors = [n for n, value in calls[0].arguments.items() if isinstance(value, torch.Tensor)]
    given = {n: [each.arguments[n] for each in calls] for n in tensors}
    like = next((n for n in tensors if all(map(_alike, given[n], outputs))), "")
    if like:
        return f"torch.empty_like({like})"
    of_kind = next((n for n in tensors if all(map(_same_kind, given[n], outputs))), "")
    if not tensors or not all(each.is_contiguous() for each in outputs):
        return ""
    dtype = "" if of_kind else f", dtype={outputs[0].dtype}"
    shaped = next((n for n in tensors if all(a.shape == b.shape for a, b in zip(given[n], outputs))), "")
    if shaped:
        return f"{of_kind or shaped}.new_empty({shaped}.shape{dtype})"
    sizes = [_size(given, [each.shape[dim] for each in outputs], dim) for dim in range(outputs[0].dim())]
    return f"{of_kind or tensors[0]}.new_empty([{', '.join(sizes)}]{dtype})" if all(sizes) else ""


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.stride() == other.stride()
    return same and _same_kind(one, other)


def _same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.device == other.device


def _size(given: dict[str, list[torch.Tensor]], wanted: list[int], at: int) -> str:
    """An expression for a size of an output, which is `wanted` in each call. Empty if none fits.

    It is the size of an argument, if possible in the same dimension `at`, or a number. If it varies between
    calls with equal shapes, it depends on values, and is a new dynamic size.
    """
    sizes = [(name, dim) for name, each in given.items() for dim in range(min(one.dim() for one in each))]
    for name, dim in sorted(sizes, key=lambda place: place[1] != at):
        if [each.shape[dim] for each in given[name]] == wanted:
            return f"{name}.shape[{dim}]"
    if len(set(wanted)) == 1:
        return str(wanted[0])
    shapes = [tuple(each[call].shape for each in given.values()) for call in range(len(wanted))]
    by_values = len(set(zip(shapes, wanted))) > len(set(shapes))
    return "torch.library.get_ctx().new_dynamic_size()" if by_values else ""


@contextlib.contextmanager
def registered(name: str, code: str) -> Iterator[None]:
    """Register a fake function during the body."""
    library = torch.library.Library(name.partition("::")[0], "FRAGMENT")
    custom_ops: Any = torch._library.custom_ops
    operator = custom_ops._maybe_get_opdef(name)
    before = getattr(operator, "_abstract_fn", None)
    names: dict[str, Any] = {"torch": torch}
    try:
        exec(code.partition("\n")[2], names)
        torch.library.register_fake(name, names["_"], lib=library)
        yield
    finally:
        library._destroy()
        if operator is not None:
            operator._abstract_fn = before


Shape = tuple[tuple[int, ...], ...]  # shape of each tensor of a call
NOTE = "these tables are private to torch; the operator then runs as it does in eager mode, and is not fused"
CODE = """import torch._decomp, torch._inductor.decomposition, torch._inductor.lowering
tables = torch._inductor.lowering.lowerings, torch._inductor.decomposition.decompositions
[t.pop(op) for t in (*tables, torch._decomp.decomposition_table) for op in list(t) if {name!r} in str(op)]"""


@dataclass(frozen=True)
class Restriction:
    """An equation of sizes that the compile added as a guard, and the operators that may have added it."""

    expression: Any
    nodes: list[Any]


def restrictions_of(program: Any, guards: list[Any]) -> list[Restriction]:
    """The guards that are equations, with the operators named like the function that added each."""
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    found = []
    for guard in guards:
        name = str(getattr(guard.sloc.framework_loc, "name", "")).strip("_")
        if type(guard.expr).__name__ == "Equality":
            found.append(Restriction(guard.expr, [node for node in calls if name and _name(node) == name]))
    return found


def _name(node: Any) -> str:
    return str(getattr(node.target, "_opname", "")).strip("_")


def symbols_of(program: Any) -> dict[tuple[str, int, int], Any]:
    """The symbol of each dynamic dimension, by input, number among the tensors, and dimension."""
    inputs = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in inputs]
    tensors = [node for node in nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    found = {}
    for number, node in enumerate(tensors):
        for dim, size in enumerate(node.meta["val"].shape):
            # `node.expr` would be a number after a compile that fixed the size.
            symbol = size.node._expr if isinstance(size, torch.SymInt) else None
            if getattr(symbol, "is_Symbol", False):
                found[node.name, number, dim] = symbol
    return found


def places(program: Any) -> dict[Any, tuple[str, int, int]]:
    """The first dynamic dimension of each symbol, as in `symbols_of`."""
    return {symbol: place for place, symbol in reversed(list(symbols_of(program).items()))}


def broken(restrictions: list[Restriction], known: dict[Any, Any], shape: Shape) -> list[Restriction]:
    """The restrictions that the sizes of a call violate."""
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
    program: Any, guards: list[Any], shapes: list[Shape]
) -> Iterator[tuple[Attempt, list[dict[str, Any]]]]:
    """If only the last call breaks a guard, yield code that leaves the guard's operator to eager mode.

    Also yield the operator's line. `attempts.operate_sizes` runs the code in a new process, since this one
    keeps decompositions that it used (2.13).
    """
    known, restrictions = places(program), restrictions_of(program, guards)
    against = broken(restrictions, known, shapes[-1]) if shapes else []
    # A fixed size also breaks guards of later operators: the first operator fixed it.
    nodes = [node for each in (*against, *restrictions) for node in each.nodes]
    if against and nodes and not any(broken(restrictions, known, shape) for shape in shapes[:-1]):
        name = _name(nodes[0])
        told = Attempt("fixed size", f"leave {name} to eager mode: run this before the export", NOTE)
        sympy: Any = importlib.import_module("sympy")  # sympy has no types
        names = {symbol: sympy.Symbol(f"{name}.shape[{dim}]") for symbol, (name, _, dim) in known.items()}
        found = [each.expression.subs(names) for each in against]
        texts = [f"{e.lhs} == {e.rhs}" if isinstance(e, sympy.Eq) else str(e) for e in found]
        told.after, told.reached_code = CODE.format(name=name), " and ".join(dict.fromkeys(texts))
        told.outcome = "untried"
        yield told, _lines(nodes[0])


def _lines(node: Any) -> list[dict[str, Any]]:
    """The innermost line outside torch that created a node."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', str(node.meta.get("stack_trace") or ""))
    found = [each for each in lines if not each[0].startswith(TORCH)][-1:]
    return [
        {"file": file, "line": int(line), "code": linecache.getline(file, int(line)).strip()}
        for file, line in found
    ]
