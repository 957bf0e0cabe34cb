"""Whether the expression of an index is at fault or the values that it got, and what would correct it."""

from __future__ import annotations

import math
from dataclasses import replace

from mcp_server.diagnosis.origin.condition import Allowed
from mcp_server.diagnosis.origin.expression import Expression
from mcp_server.diagnosis.origin.layers import Difference
from mcp_server.diagnosis.origin.records import Correction
from mcp_server.diagnosis.origin.walk import Computed
from mcp_server.package.literals import places_of
from mcp_server.package.terms.cpp import definitions
from mcp_server.package.terms.interval import Bounds
from mcp_server.package.terms.term import (
    Apply,
    Number,
    Scalar,
    Term,
    is_float,
    key,
    parts,
    rebuilt,
    unwrapped,
)
from mcp_server.package.view import PackageView

_BOUNDING = frozenset({"minimum", "mod", "remainder", "sigmoid", "tanh", "sin", "cos", "erf"})
_LARGEST = 1 << 31  # an end beyond it is the type's, not the expression's


def why_of_model(term: Term, value: Scalar, allowed: Allowed, made_here: str) -> str:
    """Why an index out of its bound is the fault of its expression; empty where its operands may be at fault.

    `made_here` is the tensor that is indexed, if the model computes it: its size is the model's as well.
    """
    above = value > allowed.high
    applied = [each for each in parts(unwrapped(term)) if isinstance(each, Apply)]
    if not any(each.op != "cast" for each in applied):
        return ""  # an element of an input as it is
    if any(each.op in _BOUNDING for each in applied):
        span = Bounds({}).of(term)
        end = span.high if above else span.low
        beyond = end > allowed.high if above else end < allowed.low
        if beyond and math.isfinite(end) and abs(end) < _LARGEST:
            return f"it goes {'up' if above else 'down'} to {int(end)} by its own limits"
    if value not in (allowed.high + 1, allowed.low - 1):
        return ""
    if made_here:
        return f"it is one past the end of {made_here}, whose size the model computes as well"
    cuts = any(each.op == "cast" and is_float(each.args[0].dtype) != is_float(each.dtype) for each in applied)
    if cuts and not is_float(term.dtype):
        return "it is one past the end, where a range that is cut into whole numbers is not closed"
    return ""


def correction_of(
    view: PackageView,
    source: Computed,
    expression: Expression,
    value: Scalar,
    allowed: Allowed,
    usual: Difference,
) -> Correction | None:
    """The edit of a C++ kernel: the siblings' constant, else the end of the range that was missed."""
    kernel = view.wrapper.kernels.get(source.launch.kernel)
    if kernel is None or kernel.kind != "cpp":
        return None
    wanted = key(source.term)
    lines = [line for line, term in definitions(kernel) if key(term) == wanted]
    if not lines:
        return None
    alone = sum(launch.kernel == kernel.name for launch in view.wrapper.launches) == 1
    if alone and usual.old is not None and usual.new is not None:
        with_usual = _with_constant(expression, usual.old, usual.new)
        if with_usual and places_of(kernel, float(usual.old)) == len(lines):
            return Correction(text=with_usual, lines=lines, old=usual.old, new=usual.new)
    if value > allowed.high:
        high = int(allowed.high)
        return Correction(text=f"({expression.text()}).clamp(max={high})", lines=lines, high=high)
    low = int(allowed.low)
    return Correction(text=f"({expression.text()}).clamp(min={low})", lines=lines, low=low)


def _with_constant(expression: Expression, old: Scalar, new: Scalar) -> str:
    """The expression with another constant; empty where that occurs more than once in it."""
    places = [e for e in parts(expression.term) if isinstance(e, Number) and e.value == old]
    if len(places) != 1:
        return ""
    term = rebuilt(expression.term, lambda e: replace(places[0], value=new) if e is places[0] else None)
    return replace(expression, term=term).text()
