"""What is at fault at an origin in the terms of the model: layer, operation, and what would correct it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from mcp_server.diagnosis.origin import Correction, Operation
from mcp_server.diagnosis.origin.condition import applied_text, culprit_at, exactly
from mcp_server.diagnosis.origin.expression import Closing, Expression, label_of
from mcp_server.diagnosis.origin.lines import guarded_code
from mcp_server.diagnosis.origin.walk import Computed, Walker, argument_of, leaves, value_of
from mcp_server.package.launches import Launch
from mcp_server.package.terms.accesses import indexed_by
from mcp_server.package.terms.dtypes import is_float
from mcp_server.package.terms.evaluate import Domain, Evaluator, outside
from mcp_server.package.terms.interval import Bounds, Interval
from mcp_server.package.terms.parts import key, parts, uncast, understood, unwrapped
from mcp_server.package.terms.program import Check, read_program
from mcp_server.package.terms.term import Apply, Element, Scalar, Term
from mcp_server.package.view import PackageView

_LAYER = re.compile(r"^(.*\.\d+)(?:\.|$)")
_NEAR = 3


def layer_of(view: PackageView, launch: Launch, tables: Sequence[str] = ()) -> str:
    """The launch's layer: from the weights of `tables`, else those it reads, else its neighbours' weights."""
    names = {constant.name: constant.fqn for constant in view.package.constants if constant.fqn}
    own = [names[name] for name in (*tables, *launch.reads) if name in names]
    if own:
        return _owner(own[0])
    places = [launch.index + sign * distance for distance in range(1, _NEAR + 1) for sign in (-1, 1)]
    launches = [view.wrapper.launches[n] for n in places if 0 <= n < len(view.wrapper.launches)]
    near = (names[name] for each in launches for name in each.reads if name in names)
    return next((_owner(fqn) for fqn in near), "")


def _owner(fqn: str) -> str:
    """`layers.7` of `layers.7.bias.weight`; the module of the weight where nothing is numbered."""
    match = _LAYER.match(fqn)
    return match[1] if match else fqn.rpartition(".")[0] or fqn


def tables_of(view: PackageView, launch: Launch, check: Check) -> list[str]:
    """The variables that a checked index addresses."""
    program = read_program(view.wrapper.kernels[launch.kernel])
    if program.check_at(check.line) is None:
        return []
    tensors = {argument.name: argument.target or "" for argument in launch.tensors}
    return list(dict.fromkeys(tensors[name] for _, name in indexed_by(program, check, tensors)))


_HOPS = 8
_LEAVES, _DEEPEST = 64, 3  # of what an operand is computed from


@dataclass(frozen=True)
class Outside:
    """An operation of a launch, at a point of its loops where an operand lies outside of its domain."""

    launch: Launch
    applied: Apply
    evaluator: Evaluator
    domain: Domain

    @property
    def operand(self) -> Term:
        """The operand that decides."""
        return self.applied.args[self.domain.operand]


def outside_of(walker: Walker, computed: Computed) -> Outside | None:
    """The operation whose operands outside of its domain made NaN, or the infinity behind the NaN."""
    at = computed
    for _ in range(_HOPS):
        made = culprit_at(at.term, at.evaluator)
        if made is not None:
            found, evaluator = made
            values = [evaluator.value(argument) for argument in found.args]
            domain = outside(found.op, values)
            if domain is not None:
                return Outside(at.launch, found, evaluator, domain)
            operands = [(term, evaluator) for term in found.args]
        else:  # arithmetic with an infinity that was stored before
            operands = list(islice(leaves(at.term, at.evaluator), _LEAVES))
        stored = ((term, place) for term, place in operands if math.isinf(place.value(term)))
        infinite, evaluator = next(stored, (None, at.evaluator))
        if infinite is None:
            return None
        source = walker.back(Computed(at.launch, infinite, evaluator)).source
        if not isinstance(source, Computed):
            return None
        at = source
    return None


def read_by(walker: Walker, start: Computed) -> Expression:
    """What a value is computed from, as leaves: the elements of a reduction one by one."""
    closing = Closing(walker)
    queue = [(start, 0)]
    for computed, depth in queue:  # grows in the loop
        for element, at in islice(leaves(computed.term, computed.evaluator), _LEAVES):
            source = walker.back(Computed(computed.launch, element, at)).source
            if not isinstance(source, Computed):
                closing.leaf(source, element.dtype, value_of(element, at))
            elif depth < _DEEPEST and len(queue) < _LEAVES:
                queue.append((source, depth + 1))
    names = dict.fromkeys(closing.leaves, "what it reads")
    return Expression(start.term, closing.leaves, (), walker, names)


def operation_of(walker: Walker, found: Outside) -> Operation:
    """The operation in the terms of a model: with its values, and with its operand kept in the domain."""
    term, domain, op = uncast(found.operand), found.domain, found.applied.op
    label = ""
    if isinstance(term, Element):  # of an input or constant, which has a name
        target = argument_of(found.launch, term.parameter).target or ""
        label = label_of(target, walker) if label_of(target, walker) != target else ""
    code, guarded, action = guarded_code(op, label)
    return Operation(
        launch_index=found.launch.index,
        op=op,
        family=domain.family,
        text=applied_text(found.applied, found.evaluator),
        code=code,
        guarded_code=guarded,
        action=action,
        value=exactly(found.evaluator.value(term), term.dtype),
    )


_BOUNDING = frozenset({"minimum", "mod", "remainder", "sigmoid", "tanh", "sin", "cos", "erf"})
_LARGEST = 1 << 31  # an end beyond it is the type's, not the expression's


def why_of_model(term: Term, value: Scalar, allowed: Interval, made_here: str) -> str:
    """Why an index out of its bound is the fault of its expression; empty where its operands may be at fault.

    `made_here` is the tensor that is indexed, if the model computes it.
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
    view: PackageView, source: Computed, expression: Expression, value: Scalar, allowed: Interval
) -> Correction | None:
    """The edit of a C++ kernel: the value kept at the end of the range that was missed."""
    kernel = view.wrapper.kernels.get(source.launch.kernel)
    if kernel is None or kernel.kind != "cpp":
        return None
    wanted = key(source.term)
    defined = read_program(kernel).definitions
    lines = [each.line for each in defined if understood(each.value) and key(each.value) == wanted]
    if not lines:
        return None
    if value > allowed.high:
        high = int(allowed.high)
        return Correction(text=f"({expression.text()}).clamp(max={high})", lines=lines, high=high)
    low = int(allowed.low)
    return Correction(text=f"({expression.text()}).clamp(min={low})", lines=lines, low=low)
