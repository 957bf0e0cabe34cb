"""What is at fault at an origin in the terms of the model: its layer, its operation, what would correct it.

Layers are compared by their expressions, not by the text of their kernels: each fused kernel holds other
code around the same expression.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from mcp_server.diagnosis.origin import Correction, Operation
from mcp_server.diagnosis.origin.condition import applied_text, culprit_at, culprit_of, exactly
from mcp_server.diagnosis.origin.expression import Closing, Expression, label_of
from mcp_server.diagnosis.origin.lines import guarded_code
from mcp_server.diagnosis.origin.walk import Computed, Walker, argument_of, leaves, value_of
from mcp_server.package.kernels import Kernel, places_of
from mcp_server.package.launches import Launch
from mcp_server.package.terms.accesses import indexed_by
from mcp_server.package.terms.evaluate import Domain, Evaluator, outside
from mcp_server.package.terms.interval import Bounds, Interval
from mcp_server.package.terms.parts import SIGNS, key, number, parts, rebuilt, uncast, understood, unwrapped
from mcp_server.package.terms.program import Check, Store, read_program
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Scalar, Term, is_float
from mcp_server.package.view import PackageView

_LAYER = re.compile(r"^(.*\.\d+)(?:\.|$)")
_NEAR = 3
_FEW = 2  # layers that say what is usual
_MOST = 256
# Functions that stand by name in the text of every kernel that computes them: the others need not be read.
_NAMED_IN_TEXT = frozenset({"sqrt", "exp", "log", "log1p", "floor", "ceil", "tanh", "sin", "cos", "erf"})


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


@dataclass(frozen=True, eq=False)
class Sibling:
    """A launch that computes a term of the same shape; `check` is set where that is what it checks."""

    launch: Launch
    term: Term
    constants: tuple[Scalar, ...]
    check: Check | None = None


def siblings(
    view: PackageView, launch: Launch, term: Term, checked: bool, *, inside: bool = False
) -> list[Sibling]:
    """The other launches that compute (`checked`: check) a term of the same shape, or have it `inside`."""
    shape, _ = key(term)
    words = {each.op for each in parts(term) if isinstance(each, Apply) and each.op in _NAMED_IN_TEXT}
    found: list[Sibling] = []
    for other in view.wrapper.launches:
        kernel = view.wrapper.kernels.get(other.kernel)
        if other.index == launch.index or kernel is None or len(found) >= _MOST:
            continue
        if not all(word in kernel.source for word in words):
            continue
        for candidate, check in _terms(kernel, term, checked, inside):
            here, constants = key(candidate)
            if here == shape:
                found.append(Sibling(other, candidate, constants, check))
                break
    return found


def _terms(kernel: Kernel, term: Term, checked: bool, inside: bool) -> Iterator[tuple[Term, Check | None]]:
    """The terms a kernel computes or checks; with `inside`, their parts with the operator of `term`."""
    program = read_program(kernel) if kernel.source else None
    found: Sequence[Check | Store] = ()
    if program is not None:
        found = program.checks if checked else program.stores
    for each in found:
        check = each if isinstance(each, Check) else None
        if not inside:
            yield each.value, check
            continue
        for part in parts(each.value):
            if isinstance(part, Apply) and isinstance(term, Apply) and part.op == term.op:
                yield part, check


@dataclass(frozen=True)
class Difference:
    """How a term differs from its siblings, in words; `old` is set if it has one constant that none has.

    `new` is the most common constant among the `others`; `alike` of them have it.
    """

    text: str = ""
    old: Scalar | None = None
    new: Scalar | None = None
    others: int = 0
    alike: int = 0

    @property
    def unanimous(self) -> bool:
        """Whether all siblings have the same constant there."""
        return self.old is not None and self.alike == self.others

    @property
    def odd(self) -> bool:
        """Whether there are enough siblings, and a majority with the same constant, to say what is usual."""
        return self.old is not None and self.others >= _FEW and 2 * self.alike > self.others


def of_bound(others: Sequence[Sibling], check: Check) -> list[Sibling]:
    """The siblings whose check has the same upper bound."""

    def bound(of: Check | None) -> Scalar | None:
        return of.upper.value if of is not None and isinstance(of.upper, Number) else None

    own = bound(check)
    return [each for each in others if own is not None and bound(each.check) == own]


def difference(term: Term, others: Sequence[Sibling], atens: Sequence[str], which: str = "") -> Difference:
    """The constants that no sibling has; empty if there are none. `which` describes the siblings in words."""
    own = key(term)[1] if others else ()
    theirs = [Counter(sibling.constants[place] for sibling in others) for place in range(len(own))]
    found = [place for place in range(len(own)) if own[place] not in theirs[place]]
    if not found:
        return Difference()
    place, *more = found
    usual = theirs[place].most_common(8)
    sign, dtype = _context(term, place)
    operators = {each.rpartition(".")[2].rstrip("_0123456789") for each in atens}
    there = ", ".join(number(each, dtype, operators) for each in sorted(value for value, _ in usual))
    who = "the other layer{} has" if len(others) == 1 else f"the {len(others)} other layers{{}} have"
    who = who.format(f" {which}" if which else "")
    text = f"{sign}{number(own[place], dtype, operators)} where {who} {there}"
    if more:
        return Difference(f"{text} (and {len(more)} more constants)")
    (new, alike), *_ = usual
    return Difference(text, own[place], new, len(others), alike)


def compared(view: PackageView, source: Computed, check: Check | None) -> Difference:
    """How the expression of a launch differs from the other layers'; `check` is what fails."""
    term: Term = source.term
    checked = check is not None and term is check.value
    others = siblings(view, source.launch, term, checked)
    made = None if others or check else culprit_of(term, source.evaluator)
    if made is not None:
        term, others = made, siblings(view, source.launch, made, checked, inside=True)
    atens = (*source.launch.kernel.split("_"), *view.provenance(source.launch).pre_grad)
    found = difference(term, others, atens)
    if checked and check is not None and not found.text:
        rows = number(check.upper.value, "int64") if isinstance(check.upper, Number) else ""
        found = difference(term, of_bound(others, check), atens, f"with {rows} rows")
    return found


def _context(term: Term, place: int) -> tuple[str, str]:
    """The operator in front of a constant, by its number in `key`, and the constant's type."""
    numbers: list[tuple[str, str]] = []

    def visit(each: Term) -> None:
        if len(numbers) > place:
            return
        match each:
            case Apply(op=op, args=args):
                for position, argument in enumerate(args):
                    if isinstance(argument, Number):
                        sign = f"{SIGNS[op][0]} " if op in SIGNS and position else ""
                        numbers.append((sign, argument.dtype))
                    else:
                        visit(argument)
            case Number(dtype=dtype):
                numbers.append(("", dtype))
            case Fold(body=body):
                visit(body)

    visit(term)
    return numbers[place] if place < len(numbers) else ("", "float64")


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
    view: PackageView,
    source: Computed,
    expression: Expression,
    value: Scalar,
    allowed: Interval,
    usual: Difference,
) -> Correction | None:
    """The edit of a C++ kernel: the siblings' constant, else the end of the range that was missed."""
    kernel = view.wrapper.kernels.get(source.launch.kernel)
    if kernel is None or kernel.kind != "cpp":
        return None
    wanted = key(source.term)
    defined = read_program(kernel).definitions
    lines = [each.line for each in defined if understood(each.value) and key(each.value) == wanted]
    if not lines:
        return None
    alone = sum(launch.kernel == kernel.name for launch in view.wrapper.launches) == 1
    if alone and usual.unanimous and usual.old is not None and usual.new is not None:
        old = [e for e in parts(expression.term) if isinstance(e, Number) and e.value == usual.old]
        if len(old) == 1 and places_of(kernel, float(usual.old)) == len(lines):
            new = replace(old[0], value=usual.new)
            term = rebuilt(expression.term, lambda e: new if e is old[0] else None)
            text = replace(expression, term=term).text()
            return Correction(text=text, lines=lines, old=usual.old, new=usual.new)
    if value > allowed.high:
        high = int(allowed.high)
        return Correction(text=f"({expression.text()}).clamp(max={high})", lines=lines, high=high)
    low = int(allowed.low)
    return Correction(text=f"({expression.text()}).clamp(min={low})", lines=lines, low=low)
