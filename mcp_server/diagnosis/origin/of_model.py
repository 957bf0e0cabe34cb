"""Describes the fault at an origin: layer, operation, the element that stands out, and its correction."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median_low

from mcp_server.diagnosis.origin import WRITTEN, Condition, Correction, OffendingElement, Operation
from mcp_server.diagnosis.origin.condition import OTHERS_STAY, applied_text, culprit_at, exactly, finite
from mcp_server.diagnosis.origin.elements import POINTWISE
from mcp_server.diagnosis.origin.expression import (
    Closing,
    Expression,
    Leaf,
    by_tensor,
    index_text,
    label_of,
    shown,
)
from mcp_server.diagnosis.origin.lines import BY_ROOT, OF_ROOT, UNDER_ROOT, guarded_code
from mcp_server.diagnosis.origin.walk import (
    Computed,
    Given,
    Place,
    Produced,
    Walker,
    argument_of,
    is_infinite,
    leaves,
    operator_name,
    value_of,
)
from mcp_server.package.launches import Launch
from mcp_server.package.terms.accesses import indexed_by
from mcp_server.package.terms.evaluate import (
    DOMAINS,
    FUNCTIONS,
    Domain,
    Evaluator,
    UnknownValue,
    outside,
    rounded,
)
from mcp_server.package.terms.interval import Bounds, Interval, from_ordinal, ordinal
from mcp_server.package.terms.parts import key, parts, say, uncast, understood, unwrapped
from mcp_server.package.terms.program import Check, read_program
from mcp_server.package.terms.term import EPSILON, Apply, Element, Fold, Number, Scalar, Term, is_float
from mcp_server.package.view import PackageView

_LAYER = re.compile(r"^(.*\.\d+)(?:\.|$)")


def layer_of(view: PackageView, launch: Launch, tables: Sequence[str] = ()) -> str:
    """The layer that owns all weights in `tables`, or all that the launch reads. Empty if unknown."""
    names = {constant.name: constant.fqn for constant in view.package.constants if constant.fqn}
    for read in (tables, launch.reads):
        owners = {_owner(names[name]) for name in read if name in names}
        if owners:
            return owners.pop() if len(owners) == 1 else ""
    return ""


def _owner(fqn: str) -> str:
    """`layers.7` for `layers.7.bias.weight`; the weight's module if nothing is numbered."""
    match = _LAYER.match(fqn)
    return match[1] if match else fqn.rpartition(".")[0] or fqn


def tables_of(view: PackageView, launch: Launch, check: Check) -> list[str]:
    """The variables that are indexed with a checked index."""
    program = read_program(view.wrapper.kernels[launch.kernel])
    if program.check_at(check.line) is None:
        return []
    tensors = {argument.name: argument.target or "" for argument in launch.tensors}
    return list(dict.fromkeys(tensors[name] for _, name in indexed_by(program, check, tensors)))


_HOPS = 8
_LEAVES, _DEEPEST = 64, 3  # limits of the search for values that an operand depends on


@dataclass(frozen=True)
class Outside:
    """An operation of a launch, at a loop point where an operand is outside its domain."""

    launch: Launch
    applied: Apply
    evaluator: Evaluator
    domain: Domain

    @property
    def operand(self) -> Term:
        """The operand that decides whether the operation is defined."""
        return self.applied.args[self.domain.operand]


def outside_of(walker: Walker, computed: Computed) -> Outside | None:
    """The operation outside its domain that made the NaN, or the infinity that led to it."""
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
        else:  # an operand is an infinity that was stored earlier
            operands = list(islice(leaves(at.term, at.evaluator), _LEAVES))
        stored = ((term, place) for term, place in operands if is_infinite(value_of(term, place)))
        infinite, evaluator = next(stored, (None, at.evaluator))
        if infinite is None:
            return None
        source = walker.back(Computed(at.launch, infinite, evaluator)).source
        if not isinstance(source, Computed):
            return None
        at = source
    return None


def read_by(walker: Walker, start: Computed, most: int = _LEAVES) -> Expression:
    """The leaves from which a value is computed; `most` is the limit for elements of a reduction."""
    closing = Closing(walker)
    queue = [(start, 0)]
    for computed, depth in queue:  # the queue grows in the loop
        for element, at in islice(leaves(computed.term, computed.evaluator), most):
            source = walker.back(Computed(computed.launch, element, at)).source
            if isinstance(source, Computed) and depth < _DEEPEST and len(queue) < _LEAVES:
                queue.append((source, depth + 1))
            else:
                closing.leaf(source, element.dtype, value_of(element, at))
    names = dict.fromkeys(closing.leaves, "what it reads")
    return Expression(start.term, closing.leaves, (), walker, names)


def operation_of(walker: Walker, found: Outside, *, seen: bool = True) -> Operation:
    """The operation as a model has it: with its values, and with its operand kept in the domain."""
    term, domain, op = uncast(found.operand), found.domain, found.applied.op
    label = ""
    if isinstance(term, Element):  # only an element of an input or constant has a name
        target = argument_of(found.launch, term.parameter).target or ""
        label = label_of(target, walker) if label_of(target, walker) != target else ""
    code, guarded, action = guarded_code(op, label)
    of_root = op == "div" and isinstance(term, Apply) and term.op == "sqrt"
    if of_root:
        (code, guarded), action = OF_ROOT, UNDER_ROOT
    return Operation(
        launch_index=found.launch.index,
        op=op,
        family=domain.family,
        text=applied_text(found.applied, found.evaluator),
        code=code,
        guarded_code=guarded,
        action=action,
        value=exactly(found.evaluator.value(term), term.dtype) if seen else "",
        shipped=BY_ROOT if of_root else "",
    )


_BOUNDING = frozenset({"minimum", "mod", "remainder", "bitand", "sigmoid", "tanh", "sin", "cos", "erf"})
_LARGEST = 1 << 31  # a larger limit comes from the type, not from the expression


OPEN_END = "it is one past the end, and nothing limits it"  # a float at its limit was cast to an index


def why_of_model(term: Term, value: Scalar, allowed: Interval, made_here: str) -> str:
    """Why the expression is at fault for an index out of bounds. Empty if it may be right.

    `made_here` is the indexed tensor, if the model computes it.
    """
    above = value > allowed.high
    applied = [each for each in parts(unwrapped(term)) if isinstance(each, Apply)]
    if not any(each.op != "cast" for each in applied):
        return ""  # an unchanged element of an input is at fault
    end = own_end(term, above=above)
    if end is not None and (end > allowed.high if above else end < allowed.low):
        return f"it goes {'up' if above else 'down'} to {end} by its own limits"
    if value not in (allowed.high + 1, allowed.low - 1):
        return ""
    if made_here:
        return f"it is one past the end of {made_here}, whose size the model computes as well"
    cuts = any(each.op == "cast" and is_float(each.args[0].dtype) != is_float(each.dtype) for each in applied)
    if cuts and not is_float(term.dtype):
        return OPEN_END
    return ""


def own_end(term: Term, *, above: bool) -> int | None:
    """The highest or lowest value that the expression can have. None if the operands decide it."""
    if not any(isinstance(each, Apply) and each.op in _BOUNDING for each in parts(unwrapped(term))):
        return None
    span = Bounds({}).of(term)
    end = span.high if above else span.low
    return int(end) if math.isfinite(end) and abs(end) < _LARGEST else None


Lookup = tuple[str, int, Condition | None]


def looked_up(walker: Walker, source: Produced, allowed: Interval) -> Lookup | None:
    """The boundaries of a lookup, its highest index, and the values that make the index too high."""
    places, launch = POINTWISE.get(operator_name(source.launch)), source.launch
    if places is None or len(launch.arguments) < 4:
        return None
    values, boundaries = (launch.tensors[place] for place in places)
    seen, name = walker.values.tensor(launch.index, boundaries, "before"), boundaries.target or ""
    if seen is None or len(seen.shape) != 1:
        return None
    limit = seen.at(int(allowed.high)) if 0 <= allowed.high < seen.count else None
    if limit is None:
        return name, seen.count, None
    right, label = launch.arguments[3].expression in ("1", "true"), label_of(values.target or "", walker)
    text = f"the index is {allowed.high + 1} or more for {label} {'>=' if right else '>'} {shown(limit)}"
    good = math.nextafter(limit, -math.inf) if right else int(limit) if limit == int(limit) else limit
    return name, seen.count, Condition(text=text, variable="x", label=label, low=limit, good=good)


def written(expression: Expression, value: Scalar | None) -> str:
    """Say where the model itself writes `value` (None: NaN) as a number. Empty if it computes it."""
    number = shown(math.nan if value is None else value)
    chosen = (each for each in parts(expression.term) if isinstance(each, Apply) and each.op == "where")
    for test, *both in (each.args for each in chosen):
        for holds, part in zip((True, False), map(uncast, both), strict=True):
            known = value_of(test, expression.evaluator())
            if isinstance(part, Number) and shown(part.value) == number and known in (None, holds):
                said = say(test, lambda of: expression.names.get(of.parameter, of.parameter))
                return f"{WRITTEN} {number} where {said} is {holds}"
    return ""


def too_short(lowest: int | None, highest: int | None, allowed: Interval, table: str) -> str:
    """The advice for a table with too few rows for an expression. Empty if it has enough."""
    if not table or lowest is None or highest is None or lowest < allowed.low or highest <= allowed.high:
        return ""
    keep = f"keep the index at {int(allowed.high)} or below where it is computed"
    return f"give {table} {highest + 1} rows, one for each index that the expression can give, or {keep}"


_WHOLE = frozenset({"add", "sub", "mul"})


def wrapped(expression: Expression) -> tuple[Apply, str] | None:
    """The sum or product of integers that does not fit its type, and the same in words. None if all fit."""
    evaluator = expression.evaluator()
    for each in parts(expression.term):
        if not isinstance(each, Apply) or each.op not in _WHOLE or not each.dtype.startswith("int"):
            continue
        values = [value_of(argument, evaluator) for argument in each.args]
        if any(not isinstance(value, int) for value in values):
            continue
        exact = FUNCTIONS[each.op](*values)
        if rounded(exact, each.dtype) != exact:
            return each, f"{applied_text(each, evaluator)} is {exact}, which does not fit in {each.dtype}"
    return None


def correction_of(
    view: PackageView, source: Computed, expression: Expression, value: Scalar, allowed: Interval
) -> Correction | None:
    """The edit of a C++ kernel that limits the value to the range. None for other kernels."""
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


# To find the one element that makes a value infinite, the largest element of each input is replaced by a
# usual one, and everything that launches compute from it is computed again.
_ELEMENTS = 4096  # most elements of a searched tensor
_FEWEST = 3  # no element of a smaller tensor stands out
_READS = 1 << 17  # most elements read by all computations


@dataclass(frozen=True)
class Outlier:
    """One input element that alone makes a reduction non-finite, and the values that do so."""

    element: OffendingElement
    condition: Condition


class _Changed(Walker):
    """The same call with another value for one element of an input."""

    def __init__(self, walker: Walker, leaf: Given, value: Scalar, left: list[int]) -> None:
        super().__init__(walker.view, walker.values)
        self.changed, self.value, self.left = leaf, value, left

    def value_at(self, place: Place | Produced | Computed) -> Scalar | None:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise UnknownValue("too many elements")
        source = self.source(place) if isinstance(place, Place) else place
        match source:
            case Given(name=self.changed.name, index=self.changed.index):
                return self.value
            case Computed(term=term, evaluator=evaluator):
                return value_of(term, evaluator)
            case Produced(launch=launch):
                behind = self.view.flow_of(launch).backward_from(launch.index).inputs
                if self.changed.name in behind:
                    raise UnknownValue("an operator computed it from the element")
        return super().value_at(place)


def outlier_of(walker: Walker, source: Computed) -> Outlier | None:
    """The element of an input that makes a reduction not finite. None if no single one does."""
    if not any(isinstance(each, Fold) for each in parts(source.term)):
        return None
    read, left = read_by(walker, source, _ELEMENTS), [_READS]
    inputs = {compiled.name: compiled for compiled in walker.view.package.inputs}
    for tensor, names in by_tensor(read.leaves, walker).items():
        largest, usual = _standing_out([read.leaves[name] for name in names])
        if largest is None or not isinstance(largest.source, Given) or largest.source.name not in inputs:
            continue
        compiled = inputs[largest.source.name]
        tried = _Tried(walker, source, largest.source, compiled.dtype or "float32", left)
        condition = tried.condition(f"x{index_text(largest)}", largest.value or 0.0, usual)
        if condition is not None:
            element = OffendingElement(
                kind="input",
                label=tensor,
                index=list(largest.index or ()),
                value=shown(largest.value),
                input_index=compiled.index,
            )
            return Outlier(element, condition.model_copy(update={"label": tensor}))
    return None


def _standing_out(leaves: Sequence[Leaf]) -> tuple[Leaf | None, float]:
    """The largest element by magnitude, and the median of all. None for few or no numbers."""
    known = [leaf for leaf in leaves if isinstance(leaf.value, float) and finite(leaf.value)]
    if len(known) < _FEWEST:
        return None, 0.0
    largest = max(known, key=lambda leaf: abs(leaf.value or 0.0))
    return largest, median_low(leaf.value for leaf in known if isinstance(leaf.value, float))


@dataclass(frozen=True)
class _Tried:
    """A non-finite value that is recomputed while one input element varies."""

    walker: Walker
    source: Computed
    given: Given
    dtype: str
    left: list[int]

    def good(self, value: Scalar) -> bool:
        changed = _Changed(self.walker, self.given, value, self.left)
        at = changed.evaluator(self.source.launch, self.source.evaluator.positions)
        return finite(value_of(self.source.term, at))

    def condition(self, name: str, bad: Scalar, usual: float) -> Condition | None:
        """The bad values of the element, found by bisection from the usual one."""
        if usual == bad or self.good(bad) or not self.good(usual):
            return None
        inside, outside = ordinal(usual, self.dtype), ordinal(bad, self.dtype)
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            if self.good(from_ordinal(middle, self.dtype)):
                inside = middle
            else:
                outside = middle
        if self.left[0] < 0:
            return None
        end, above = from_ordinal(outside, self.dtype), bad > usual
        return Condition(
            text=f"the expression is not finite for {name} {'>=' if above else '<='} {shown(end)}"
            f"{OTHERS_STAY}",
            variable="x",
            low=end if above else None,
            high=None if above else end,
            good=from_ordinal(inside, self.dtype),
            usual=usual,
        )


UNCANCELLED = (
    "avoid subtracting numbers that are nearly equal: for a variance, use torch.var(x, correction=0) instead "
    "of mean(x²) - mean². A clamp or an epsilon only hides the lost digits"
)


def sums_nothing(walker: Walker, found: Outside) -> bool:
    """Whether the operand outside its domain is a sum of no elements, for example because of a mask."""
    try:
        source = walker.back(Computed(found.launch, found.operand, found.evaluator)).source
        term = uncast(source.term) if isinstance(source, Computed) else None
        if not isinstance(source, Computed) or not isinstance(term, Fold) or term.kind != "sum":
            return False
        return next(source.evaluator.places(term.ranges), None) is None
    except UnknownValue:
        return False


_STEPS = 256  # rounding steps in sums and products before the difference


def undecided(walker: Walker, computed: Computed) -> tuple[Outside, str, str] | None:
    """An operation whose operand leaves the domain by rounding, the reason in words, and any advice.

    The operand is at an end of the domain, or a difference whose sign rounding decides.
    """
    for each in parts(computed.term):
        domain = DOMAINS.get(each.op) if isinstance(each, Apply) else None
        if not isinstance(each, Apply) or domain is None or domain.operand >= len(each.args):
            continue
        left = Outside(computed.launch, each, computed.evaluator, domain)
        operand, value = left.operand, value_of(left.operand, computed.evaluator)
        ends = [end for end in (domain.low, domain.high) if value is not None and math.isfinite(end)]
        if any(_nearly_equal(value or 0, end, operand.dtype) for end in ends):
            why = f"rounding decides whether {shown(value)} is in the domain of {each.op}, {domain.words()}"
            return left, why, ""
        source = walker.back(Computed(computed.launch, operand, computed.evaluator)).source
        term = uncast(source.term) if isinstance(source, Computed) else None
        if not isinstance(source, Computed) or not isinstance(term, Apply) or term.op != "sub":
            continue
        first, second = (value_of(part, source.evaluator) for part in term.args)
        if first is None or second is None or not _nearly_equal(first, second, term.dtype):
            continue
        numbers = " and ".join(exactly(value, term.dtype) for value in (first, second))
        why = f"the argument of {each.op} is the difference of {numbers}: rounding decides its sign"
        return left, why, UNCANCELLED
    return None


def _nearly_equal(first: Scalar, second: Scalar, dtype: str) -> bool:
    largest = max(abs(first), abs(second))
    return largest > 0 and abs(first - second) <= _STEPS * EPSILON.get(dtype, EPSILON["float32"]) * largest
