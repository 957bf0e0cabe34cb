"""Walks back from a fault to its origin, and describes the expression there."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mcp_server.diagnosis.origin import Condition, Correction, OffendingElement, Operand, Origin, Overflow
from mcp_server.diagnosis.origin.condition import (
    ElementKey,
    between,
    condition_of,
    explained,
    finite,
    operator_of,
)
from mcp_server.diagnosis.origin.elements import (
    POINTWISE,
    PRODUCTS,
    RUNNING,
    offending,
    overflow_of,
    selecting,
    zeros_behind,
)
from mcp_server.diagnosis.origin.expression import Closing, Expression, Leaf, label_of, operands, shown
from mcp_server.diagnosis.origin.of_model import (
    Outside,
    correction_of,
    layer_of,
    looked_up,
    operation_of,
    outlier_of,
    outside_of,
    own_end,
    read_by,
    sums_nothing,
    tables_of,
    too_short,
    undecided,
    why_of_model,
    wrapped,
    written,
)
from mcp_server.diagnosis.origin.values import Phase, ProbedValues, Tensor
from mcp_server.diagnosis.origin.walk import (
    Computed,
    Given,
    Place,
    Produced,
    Source,
    Walked,
    Walker,
    argument_of,
    is_carrier,
    operator_label,
    operator_name,
    value_of,
)
from mcp_server.package.assertion import Candidate
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.terms.accesses import index_checks, places, used
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.interval import Interval
from mcp_server.package.terms.parts import elements, parts, understood
from mcp_server.package.terms.program import Check, Program, read_program
from mcp_server.package.terms.term import Element, Range, Scalar
from mcp_server.package.view import PackageView
from mcp_server.tools.kernel_io import FirstBad

_SHOWN = 16
_SCANNED = 1 << 16
_OFFENDING = 256
_MASKED = 64
_POINTS = 512
ONE_ELEMENT = "use correction=0 where a deviation (std, var) is taken of one element, or pass at least two"


@dataclass(frozen=True)
class Fault:
    """What went wrong in a launch, by `kind`.

    `check`: the index check on line `line` (1-based in the kernel's source) failed. `access`: the launch
    accessed memory outside the tensor `parameter` (`shape` and `stride` in elements), and no check caught it.
    `value`: there is a bad value in `buffer` at `element`, before or after the launch ran. `low` and `high`
    are the ends of the allowed values, `high` exclusive (None: the value is bad because it is not finite).
    """

    launch: int
    kind: Literal["check", "access", "value"] = "check"
    line: int = 0
    parameter: str = ""
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    buffer: str = ""
    element: tuple[int, ...] = ()
    when: Phase = "before"
    low: int | None = None
    high: int | None = None

    @staticmethod
    def of_candidate(candidate: Candidate) -> Fault:
        """The fault of an index assertion that was traced to a launch (`PackageView.tracer.trace`)."""
        return Fault(candidate.launch.index, "check", candidate.check.line)

    @staticmethod
    def of_first_bad(found: FirstBad) -> Fault | None:
        """The first bad value of `dump_kernel_io`. None if its launch is unknown."""
        if found.launch is None:
            return None
        when: Phase = "after" if found.kind == "kernel" else "before"
        element = tuple(found.element.index)
        return Fault(found.launch, "value", buffer=found.argument, element=element, when=when)

    def checks(self, program: Program) -> tuple[Check, ...]:
        """The check that failed or, for an access, checks that would have caught it."""
        if self.kind == "access":
            return index_checks(program, self.parameter, self.shape, self.stride)
        found = program.check_at(self.line) if self.kind == "check" else None
        return (found,) if found is not None else ()


def behind(view: PackageView, fault: Fault) -> list[int]:
    """The launch with the fault, and the launches that the walk back may go through.

    The walk ends at an operator that computes, such as a matrix product, unless the launch read the bad
    value, or it is known on which elements the results of the operator depend (`POINTWISE`, `RUNNING`).
    """
    launch = view.wrapper.launches[fault.launch]
    through_all = fault.kind == "value" and fault.when == "before"
    names = [fault.buffer] if through_all else []
    if fault.kind != "value":
        # The variables from which the checked index is computed.
        checks = fault.checks(read_program(view.wrapper.kernels[launch.kernel]))
        terms = (each for check in checks for each in parts(check.value, inside_indices=True))
        loaded = {each.parameter for each in terms if isinstance(each, Element)}
        names = [a.target for a in launch.tensors if a.name in loaded and a.target]
    queue = [(name, launch) for name in names or launch.reads]
    found = {launch.index}
    while queue:
        name, reader = queue.pop()
        for step in view.flow_of(reader).last_writers(name, reader.index):
            node = step.node
            if not isinstance(node, Launch) or node.index in found:
                continue
            known = is_carrier(node) or operator_name(node) in {*POINTWISE, *RUNNING}
            through = through_all or known or node.kernel in view.wrapper.kernels
            if through or operator_name(node) in PRODUCTS:
                found.add(node.index)
                queue += [(read, node) for read in node.reads if through]
    return sorted(found)


def find_origin(view: PackageView, fault: Fault, values: ProbedValues) -> Origin | None:
    """Find where the bad value of a fault was computed. None if unknown.

    `values` were saved in the failing call: `ProbedValues(launches)` with the launches of
    `dump_kernel_io(..., save=True)`. Nothing runs.
    """
    if not 0 <= fault.launch < len(view.wrapper.launches):
        return None
    finder = _Finder(view, fault, values)
    try:
        if fault.kind == "value":
            return finder.of_value()
        program = finder.walker.program(finder.launch)
        checks = fault.checks(program) if program else ()
        return next((found for each in checks if (found := finder.of_check(each)) is not None), None)
    except (UnknownValue, RecursionError, StopIteration):
        return None


@dataclass(frozen=True)
class _Bound:
    """The allowed range of a value, both ends included (None: no end), and the variables that it indexes."""

    low: Scalar | None
    high: Scalar | None
    tables: list[str]

    def text(self, walker: Walker) -> str:
        if self.high is None:
            return "" if self.low is None else f"from {self.low}"
        ends = f"up to {self.high}" if self.low is None else f"{self.low} to {self.high}"
        rows = ", ".join(label_of(name, walker) for name in self.tables[:2])
        return f"{ends}{f' (the rows of {rows})' if rows else ''}"


@dataclass
class _Told:
    """What is known of a bad value; each step of `_Finder._origin` adds to it.

    `expressions` are the value's, and those of other points that read the same elements. `found` are the
    elements at fault, `read` the operands with their values. `left` is an operand outside its domain.
    """

    walked: Walked
    bound: _Bound
    expressions: list[Expression]
    value: Scalar | None
    found: list[OffendingElement]
    read: list[Operand]
    explanation: str = ""
    overflow: Overflow | None = None
    operator: str = ""
    narrow: str = ""
    of_model: str = ""
    advice: str = ""
    left: Outside | None = None
    correction: Correction | None = None
    condition: Condition | None = None

    @property
    def source(self) -> Source:
        return self.walked.source

    @property
    def launch(self) -> Launch | None:
        return None if isinstance(self.source, Given) else self.source.launch

    @property
    def expression(self) -> Expression:
        return self.expressions[0]

    @property
    def is_index(self) -> bool:
        return self.bound.low is not None or self.bound.high is not None

    @property
    def allowed(self) -> Interval:
        return between(self.bound.low, self.bound.high, self.expression.term.dtype)


class _Finder:
    def __init__(self, view: PackageView, fault: Fault, values: ProbedValues) -> None:
        self.view, self.fault = view, fault
        self.walker = Walker(view, values)
        self.launch = view.wrapper.launches[fault.launch]
        self.recorded: Scalar | None = None  # value as the probe saw it

    def of_check(self, check: Check) -> Origin | None:
        if not understood(check.value):
            return None
        # The loop points at which the check fails.
        every, _ = places(_relevant(check), self.walker.scalars(self.launch), _SCANNED)
        points = [self.walker.evaluator(self.launch, place) for place in every]
        failing = list(islice((point for point in points if _fails(check, point)), _OFFENDING))
        if not failing:
            return None
        computed = [Computed(self.launch, check.value, point) for point in failing]
        elements = [self._elements(each) for each in computed]
        blamed = Counter(_element_key(each) for found in elements for each in found)
        most = [max((blamed[_element_key(each)] for each in found), default=0) for found in elements]
        first = failing[most.index(max(most))]
        tables = tables_of(self.view, self.launch, check)
        if self.fault.kind == "access":
            tables = [argument_of(self.launch, self.fault.parameter).target or ""]
        bound = _Bound(*_ends(check, first), tables)
        origin = self._origin(Computed(self.launch, check.value, first), bound, check, first, blamed)
        return _with_elements(origin, elements, blamed)

    def of_value(self) -> Origin | None:
        argument = next((a for a in self.launch.tensors if a.target == self.fault.buffer), None)
        if argument is None:
            return None
        tensor = self.walker.values.tensor(self.launch.index, argument, self.fault.when)
        if tensor is None or len(self.fault.element) != len(tensor.shape):
            return None
        self.recorded = tensor.value(self.fault.element)
        start = self._start(argument, tensor.offset(self.fault.element))
        if start is None:
            return None
        bound = _Bound(self.fault.low, None if self.fault.high is None else self.fault.high - 1, [])
        origin = self._origin(start, bound, None, None, Counter())
        return _with_elements(origin, self._masks(argument, tensor), Counter())

    def _start(self, argument: Argument, offset: int) -> Computed | Place | Produced | None:
        """The faulty value, which the launch read or computed."""
        if self.fault.when == "before":
            return Place(self.launch, argument, offset)
        if self.walker.program(self.launch) is None:
            return Produced(self.launch, argument, offset)
        return self.walker.stored(self.launch, argument.name, offset, None)

    def _masks(self, argument: Argument, tensor: Tensor) -> list[list[OffendingElement]]:
        """The False elements (of masks) that each further non-finite value depends on."""
        if self.fault.high is not None or tensor.count > _SCANNED:
            return []
        bad = (i for i in range(tensor.count) if not finite(tensor.at(i)))
        offsets = (tensor.offset(tensor.unraveled(place)) for place in islice(bad, 1, _MASKED))
        starts = (self._start(argument, offset) for offset in offsets)
        made = [self._elements(start) for start in starts if isinstance(start, Computed)]
        return [[each for each in elements if each.value == "False"] for elements in made]

    def _elements(self, computed: Computed) -> list[OffendingElement]:
        walked = self.walker.back(computed)
        expressions, _ = self._expressed(walked.source, None, None)
        return self._behind(expressions[0], walked)

    def _behind(self, expression: Expression, walked: Walked) -> list[OffendingElement]:
        """Return the elements that a value depends on. Without inputs, add those that select constants."""
        found = list(offending(expression))
        if walked.chosen is not None and not any(each.kind == "input" for each in found):
            found += selecting(self.walker, walked.chosen)
        return found

    def _walked(self, start: Computed | Place | Produced) -> Walked:
        """Walk back to where the value was computed. May raise `UnknownValue`."""
        if isinstance(start, Produced):
            place = self.walker.through(start)
            walked = self.walker.back(place) if place is not None else Walked(start)
        else:
            walked = self.walker.back(start)
        if isinstance(walked.source, Produced) and is_carrier(walked.source.launch):
            raise UnknownValue("the values that the operator moved were not seen")
        return walked

    def _expressed(
        self, source: Source, check: Check | None, point: Evaluator | None
    ) -> tuple[list[Expression], Scalar | None]:
        """A value's expression, those of other points that read the same elements, and the value."""
        if not isinstance(source, Computed):
            expression, value = self._not_computed(source)
            return [expression], value
        points = [source.evaluator]
        if check is not None and point is not None and source.term is check.value:
            points += _points_alike(self.walker, self.launch, check, point)
        computed = (Computed(source.launch, source.term, each) for each in points)
        return [Closing(self.walker).close(each) for each in computed], value_of(source.term, points[0])

    def _origin(
        self,
        start: Computed | Place | Produced,
        bound: _Bound,
        check: Check | None,
        point: Evaluator | None,
        blamed: Counter[ElementKey],
    ) -> Origin:
        """The origin. `point` is the loop point at which `check` fails."""
        walked = self._walked(start)
        expressions, value = self._expressed(walked.source, check, point)
        found = self._behind(expressions[0], walked)
        told = _Told(walked, bound, expressions, value, found, operands(expressions[0]))
        self._explain(told)
        if isinstance(walked.source, Computed):
            if check is None:
                told.left = outside_of(self.walker, walked.source)
            if told.is_index:
                self._ask_the_model(told, walked.source)
        self._look_up(told)
        if isinstance(walked.source, Computed) and self.fault.high is None and check is None:
            self._ask_rounding(told, walked.source, start)
        self._name_operands(told)
        self._find_condition(told, blamed)
        return self._as_origin(told)

    def _explain(self, told: _Told) -> None:
        """Say in words how the expression gives the bad value, and name an overflow or the operator."""
        expression, bad = told.expression, not finite(told.value)
        told.explanation = explained(expression)
        if bad and not told.explanation:
            told.overflow = overflow_of(self.walker, told.source)
        if told.overflow is not None:
            told.explanation = told.overflow.text
        if bad and not told.explanation and not told.is_index:
            told.explanation = written(expression, told.value)
        if bad and not told.is_index:
            told.operator = operator_of(expression)

    def _ask_the_model(self, told: _Told, source: Computed) -> None:
        """Say why the model computes an index outside the limit: a narrow type, or its own arithmetic."""
        if told.explanation:
            return
        too_narrow = wrapped(told.expression)
        if too_narrow is not None:
            told.operator, told.narrow, told.of_model = too_narrow[0].op, too_narrow[0].dtype, too_narrow[1]
        elif told.value is not None:
            term, made_here = told.expression.term, self._made_here(told.bound)
            told.of_model = why_of_model(term, told.value, told.allowed, made_here)
            if told.of_model:
                told.correction = correction_of(self.view, source, told.expression, told.value, told.allowed)

    def _look_up(self, told: _Told) -> None:
        """Advise a larger table if the model itself makes the index, alone or from another table."""
        produced = told.source if isinstance(told.source, Produced) and told.is_index else None
        looked = looked_up(self.walker, produced, told.allowed) if produced is not None else None
        tables = told.bound.tables
        table = label_of(tables[0], self.walker) if tables else ""
        if looked is not None:
            told.condition = looked[2]
        if looked is not None and looked[0] not in tables:  # otherwise, more rows would raise the index
            # A small table of constants may be written into the code, where it has no name.
            told.advice = too_short(0, looked[1], told.allowed, table or "the table that it indexes")
        elif told.of_model and not told.narrow and not self._made_here(told.bound):
            lowest, highest = (own_end(told.expression.term, above=above) for above in (False, True))
            told.advice = too_short(lowest, highest, told.allowed, table)

    def _ask_rounding(self, told: _Told, source: Computed, start: Computed | Place | Produced) -> None:
        """Explain a bad value that is finite when computed again, by the kernel's other order of rounding."""
        if not finite(told.value):
            return
        by_rounding = undecided(self.walker, source)
        told.value = self.recorded if isinstance(start, Computed) else None
        if by_rounding is not None:
            told.left, told.explanation, told.advice = by_rounding

    def _name_operands(self, told: _Told) -> None:
        """Name the elements that the operand outside its domain depends on, or those of an overflow."""
        left = told.left
        if left is not None and left.domain.nonzero and not elements(left.operand):
            told.left = left = None
            told.advice = ONE_ELEMENT  # the divisor is the number of elements minus 1
        if left is not None:
            if left.domain.nonzero and sums_nothing(self.walker, left):
                told.explanation += ": the divisor is a sum of no elements"
            operand = Computed(left.launch, left.operand, left.evaluator)
            behind = read_by(self.walker, operand)
            zeros: list[Leaf] = []
            with contextlib.suppress(UnknownValue):  # then the elements are unknown
                zeros = zeros_behind(self.walker, operand) if self.walker.value_at(operand) == 0 else []
            known = Expression(left.operand, {str(n): leaf for n, leaf in enumerate(zeros)}, (), self.walker)
            told.found = list(offending(known)) or list(offending(behind)) or told.found
            told.read = told.read or operands(behind)
        if told.overflow is not None and not told.found and isinstance(told.source, Computed):
            told.found = list(offending(read_by(self.walker, told.source)))

    def _find_condition(self, told: _Told, blamed: Counter[ElementKey]) -> None:
        """Find which values of an element are bad, or the element that is far from the others."""
        told.condition = condition_of(told.expressions, told.allowed, blamed) or told.condition
        if told.condition is not None or told.is_index or finite(told.value):
            return
        outlier = outlier_of(self.walker, told.source) if isinstance(told.source, Computed) else None
        if outlier is not None:
            told.condition, told.found = outlier.condition, [outlier.element]

    def _as_origin(self, told: _Told) -> Origin:
        launch, left = told.launch, told.left
        own = (self.launch.index, launch.index if launch else None)
        operation = operation_of(self.walker, left, seen=not told.advice) if left is not None else None
        return Origin(
            launch_index=launch.index if launch else None,
            kernel=launch.kernel if launch else "",
            fault_launch=self.launch.index,
            expression=told.expression.text(),
            result="index" if told.is_index else "value",
            bad_value="" if told.value is None else shown(told.value),
            allowed=told.bound.text(self.walker),
            operands=told.read,
            elements=told.found[:_OFFENDING],
            element_count=len(told.found),
            explanation=told.explanation,
            condition=told.condition,
            layer=layer_of(self.view, launch or self.launch, told.bound.tables),
            carriers=[number for number in told.walked.carriers if number not in own],
            operation=operation,
            operator=told.operator,
            narrow=told.narrow,
            overflow=told.overflow,
            of_model=told.of_model,
            advice=told.advice,
            correction=told.correction,
        )

    def _made_here(self, bound: _Bound) -> str:
        """The indexed tensor if the call computed it. Empty for an input or a constant."""
        package = self.view.package
        known = {each.name for each in package.inputs} | {each.name for each in package.constants}
        return bound.tables[0] if bound.tables and known.isdisjoint(bound.tables) else ""

    def _not_computed(self, source: Given | Produced) -> tuple[Expression, Scalar | None]:
        """Expression and value of an element that was given, or made by an operator."""
        value = self.walker.value_at(source if isinstance(source, Produced) else source.place)
        closing = Closing(self.walker)
        leaf = closing.leaf(source, "float32" if isinstance(value, float) else "int64", value)
        name = "x"
        if isinstance(source, Produced):
            read = (a.target for a in source.launch.tensors if a.role != "written" and a.target)
            labels = ", ".join(label_of(each, self.walker) for each in dict.fromkeys(read))
            name = f"{operator_label(source.launch, self.view)}({labels})"
        return Expression(leaf, closing.leaves, (), self.walker, dict.fromkeys(closing.leaves, name)), value


def _fails(check: Check, evaluator: Evaluator) -> bool:
    """Whether a check fails at one point. Raise `UnknownValue` if this cannot be determined."""
    if check.test is not None and not evaluator.value(check.test):
        return False
    value = evaluator.value(check.value)
    low, high = _ends(check, evaluator)
    return (low is not None and value < low) or (high is not None and value > high)


def _ends(check: Check, evaluator: Evaluator) -> tuple[Scalar | None, Scalar | None]:
    """The least and greatest value that pass. None for an end that the check does not limit."""
    low = evaluator.value(check.lower) if check.lower is not None else None
    high = evaluator.value(check.upper) if check.upper is not None else None
    return low, None if high is None else int(high) - 1


def _points_alike(walker: Walker, launch: Launch, check: Check, point: Evaluator) -> list[Evaluator]:
    """The other points that read the same elements, by varying the loops that no index uses."""
    indices = [each.index for each in parts(check.value) if isinstance(each, Element)]
    fixed = {each.name for index in indices for each in used(index, check.ranges)}
    free = [each for each in _relevant(check) if each.name not in fixed]
    every, _ = places(free, walker.scalars(launch), _POINTS) if free else ([], True)
    whole = ({**point.positions, **place} for place in every)
    return [walker.evaluator(launch, place) for place in whole if place != point.positions]


def _relevant(check: Check) -> list[Range]:
    terms = [each for each in (check.value, check.lower, check.upper, check.test) if each is not None]
    names = {each.name for term in terms for each in used(term, check.ranges)}
    return [each for each in check.ranges if each.name in names]


def _element_key(element: OffendingElement) -> ElementKey:
    return element.label, tuple(element.index)


def _with_elements(origin: Origin, more: list[list[OffendingElement]], blamed: Counter[ElementKey]) -> Origin:
    """Add the elements of all failing points to the origin: inputs first, then by the number of points."""
    found = {_element_key(each): each for elements in (origin.elements, *more) for each in elements}
    count = max(len(found), origin.element_count)
    ordered = sorted(
        found.values(), key=lambda each: (each.kind != "input", -blamed[_element_key(each)], each.label)
    )
    return origin.model_copy(update={"elements": ordered[:_SHOWN], "element_count": count})
