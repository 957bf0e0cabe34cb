"""The operation that left its domain behind a value that is not finite, in the terms of a model."""

from __future__ import annotations

import math

from mcp_server.diagnosis.origin.condition import applied_text, culprit_at
from mcp_server.diagnosis.origin.expression import label_of
from mcp_server.diagnosis.origin.records import Operation
from mcp_server.diagnosis.origin.walk import Computed, Walker, argument_of, value_of
from mcp_server.package.terms.domain import Domain, outside
from mcp_server.package.terms.term import Apply, Element, Term

_HOPS = 8
_SIGNS = {"div": "/", "reciprocal": "/", "remainder": "%", "mod": "%"}


def operation_of(walker: Walker, computed: Computed) -> Operation | None:
    """The operation that made NaN or an infinity of operands outside of its domain.

    A NaN that is made of an infinity is followed to what made that. None where a mask or an overflow did.
    """
    at = computed
    for _ in range(_HOPS):
        made = culprit_at(at.term, at.evaluator)
        if made is None:
            return None
        found, evaluator = made
        values = [evaluator.value(argument) for argument in found.args]
        domain = outside(found.op, values)
        if domain is not None:
            operand = _name(found.args[domain.operand], at, walker)
            return _operation(at.launch.index, found, applied_text(found, evaluator), domain, operand)
        operand_of = zip(found.args, values, strict=True)
        infinite = next((term for term, value in operand_of if math.isinf(value)), None)
        if infinite is None:
            return None
        source = walker.back(Computed(at.launch, infinite, evaluator)).source
        if not isinstance(source, Computed) or value_of(source.term, source.evaluator) is None:
            return None
        at = source
    return None


def _name(term: Term, at: Computed, walker: Walker) -> str:
    """The input or constant that an operand is an element of; empty for what is computed."""
    while isinstance(term, Apply) and term.op == "cast":
        term = term.args[0]
    if not isinstance(term, Element):
        return ""
    target = argument_of(at.launch, term.parameter).target or ""
    label = label_of(target, walker)
    return label if label != target else ""


def _operation(launch: int, found: Apply, text: str, domain: Domain, operand: str) -> Operation:
    op, x = found.op, operand or ("n" if domain.nonzero else "x")
    code, action = f"torch.{op}({x})", f"clamp the argument of {op} to {domain.words()}"
    kept = f"torch.where({x} == 0, 1, {x})" if domain.nonzero else _clamped(x, domain)
    if domain.nonzero:
        code = f"{'1' if op == 'reciprocal' else 'a'} {_SIGNS[op]} {x}"
        action = "divide by 1 where the divisor is 0"
    elif op == "pow":
        code, action = f"torch.pow({x}, y)", "clamp the base of the power to 0 or above"
    before, _, after = code.rpartition(x)
    return Operation(
        launch_index=launch,
        family=domain.family,
        text=text,
        code=code,
        guarded_code=f"{before}{kept}{after}",
        action=action,
    )


def _clamped(x: str, domain: Domain) -> str:
    """`x.clamp(-1, 1)`; an open end is the next number inside."""
    low, high = f"{domain.low:g}", f"{domain.high:g}"
    if domain.is_open:
        half = f"torch.finfo({x}.dtype).eps / 2"
        low = f"{low} + {half}" if domain.low else f"torch.finfo({x}.dtype).tiny"
        high = f"{high} - {half}"
    return f"{x}.clamp(min={low})" if math.isinf(domain.high) else f"{x}.clamp({low}, {high})"
