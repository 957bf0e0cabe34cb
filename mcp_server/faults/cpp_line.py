"""Memory accesses on a line of a C++ kernel (torch/_inductor/codegen/cpp.py, 2.8-2.15)."""

from __future__ import annotations

import ast
import re
from fractions import Fraction

from mcp_server.faults.linear import Reader, Sum, Term, plus
from mcp_server.faults.use import KernelUse, LineAccess
from mcp_server.package.kernel_code import Trace, accesses_at, trace_value

_REWRITES = (
    (re.compile(r"(?<=\d)(?:UL|L|U)+\b"), ""),
    (re.compile(r"static_cast<[\w: ]+>"), ""),
    (re.compile(r"c10::convert<[\w: ]+>"), ""),
    (re.compile(r"c10::div_floor_integer"), "floordiv"),
    (re.compile(r"\b(?:std|at|c10)::"), ""),
)


# `*` of a product, not of a pointer's type; shifts and divisions.
_ARITHMETIC = re.compile(r"\w\)* ?\* ?\(*[\w]|<<|>>|[/%]")


def accesses_on(use: KernelUse, line: int) -> tuple[LineAccess, ...]:
    """The accesses on a line of kernel.cpp (1-based in the file)."""
    kernel = use.kernel
    at = line - kernel.first_line + 1
    lines = kernel.source.split("\n")
    if not 1 <= at <= len(lines):
        return ()
    text = lines[at - 1].strip()
    return tuple(
        LineAccess(
            direction=_direction(text, load.parameter),
            code=text[:500],
            line=line,
            parameters=(load.parameter,),
            address=plus(Sum({Term("pointer", load.parameter): Fraction(1)}), _index(use, load.index, at)),
            masked=False,
        )
        for load in accesses_at(kernel.source, at, use.tensors)
    )


def _direction(text: str, parameter: str) -> str:
    name = re.escape(parameter)
    if re.search(rf"atomic_add\w*(?:<[^()]*>)?\(&?{name}\b", text):
        return "atomic"
    stored = re.match(rf"{name}\[.*\] = ", text) or re.search(rf"\.store\({name}\b", text)
    return "write" if stored else "read"


def _index(use: KernelUse, index: str, line: int) -> Sum:
    for pattern, replacement in _REWRITES:
        index = pattern.sub(replacement, index)
    try:
        tree = ast.parse(index.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return Sum({Term("other", index[:80]): None}, None)

    def resolve(name: str, _line: int, _depth: int) -> Sum | None:
        return _resolved(use, name, line)

    return Reader(resolve, use.values).read(tree.body)


def _resolved(use: KernelUse, name: str, line: int) -> Sum | None:
    if name in use.scalars:
        return Sum({Term("scalar", name): Fraction(1)})
    if not name.startswith("tmp"):
        return None
    trace = trace_value(use.kernel.source, name, line, use.tensors, use.scalars)
    if not trace.loads:
        return None
    first = use.kernel.first_line - 1
    factor = _factor(trace)
    loads = {Term("load", load.parameter, load.line + first): factor for load in trace.loads}
    return Sum(loads, Fraction(0) if factor is not None else None, trace.wraps)


def _factor(trace: Trace) -> Fraction | None:
    """A load that is copied, converted or moved up by its bound keeps its weight; arithmetic may not."""
    loads = {load.line for load in trace.loads}
    computed = [d.value for d in trace.definitions if d.line not in loads]
    plain = len(trace.loads) == 1 and not any(_ARITHMETIC.search(value) for value in computed)
    return Fraction(1) if plain else None
