"""From a fault to its origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mcp_server.diagnosis.origin.carriers import called, is_carrier
from mcp_server.diagnosis.origin.condition import Allowed
from mcp_server.diagnosis.origin.expression import Closing, Expression, label_of, offending, operands, shown
from mcp_server.diagnosis.origin.judge import (
    check_ends,
    condition_of,
    culprit_of,
    dormant_in,
    explained,
    fails,
    finite,
    points_alike,
    points_of,
    value_of,
)
from mcp_server.diagnosis.origin.layers import difference, layer_of, siblings, tables_of
from mcp_server.diagnosis.origin.records import OffendingElement, Origin
from mcp_server.diagnosis.origin.values import NoValues, Tensor, Values
from mcp_server.diagnosis.origin.walk import Computed, Given, Place, Produced, Walked, Walker
from mcp_server.package.assertion import Candidate
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.interval import limits
from mcp_server.package.terms.program import Check
from mcp_server.package.terms.term import Scalar, Term, understood
from mcp_server.package.view import PackageView
from mcp_server.tools.kernel_io import FirstBad

_SHOWN = 16
_SCANNED = 1 << 16
_OFFENDING = 256
_MASKED = 64


@dataclass(frozen=True)
class Fault:
    """What went wrong in a call.

    `check`: the index check on line `line` (1-based in the kernel's source) of launch `launch` failed.
    `value`: launch `launch` has a bad value in `buffer` at `element`, before or after it ran; `low` and
    `high` are the ends of what was allowed, `high` exclusive (None: it is bad for not being finite).
    """

    launch: int
    kind: Literal["check", "value"] = "check"
    line: int = 0
    buffer: str = ""
    element: tuple[int, ...] = ()
    when: Literal["before", "after"] = "before"
    low: int | None = None
    high: int | None = None

    @staticmethod
    def of_candidate(candidate: Candidate) -> Fault:
        """An index assertion, traced to a launch (`PackageView.tracer.trace`)."""
        return Fault(candidate.launch.index, "check", candidate.check.line)

    @staticmethod
    def of_first_bad(found: FirstBad, low: int | None = None, high: int | None = None) -> Fault | None:
        """The first bad value of `dump_kernel_io`; None where the launch or the element is not known.

        `low` and `high` (exclusive) are the bound of an index that is outside of it.
        """
        if found.launch is None or not found.element.index:
            return None
        when: Literal["before", "after"] = "after" if found.kind == "kernel" else "before"
        place = tuple(found.element.index)
        return Fault(
            found.launch, "value", buffer=found.argument, element=place, when=when, low=low, high=high
        )


def find_origin(view: PackageView, fault: Fault, values: Values | None = None) -> Origin | None:
    """Where the bad value of a fault was computed; None when it cannot be told.

    `view` is the package, `values` what launch probes saw of the failing call: `ProbedValues(launches)` over
    the launches of `dump_kernel_io(..., save=True)`. Nothing runs.
    """
    if not 0 <= fault.launch < len(view.wrapper.launches):
        return None
    finder = _Finder(view, fault, values or NoValues())
    try:
        return finder.of_check() if fault.kind == "check" else finder.of_value()
    except (UnknownValue, RecursionError, StopIteration):
        return None


class _Finder:
    def __init__(self, view: PackageView, fault: Fault, values: Values) -> None:
        self.view, self.fault = view, fault
        self.walker = Walker(view, values)
        self.launch = view.wrapper.launches[fault.launch]

    def of_check(self) -> Origin | None:
        program = self.walker.program(self.launch)
        check = program.check_at(self.fault.line) if program else None
        if check is None or not understood(check.value):
            return None
        points = points_of(self.walker, self.launch, check, _SCANNED)
        failing = self._failing(check, points)
        if not failing:
            return None
        seen = not isinstance(self.walker.values, NoValues)
        behind = [self._elements(Computed(self.launch, check.value, p)) if seen else [] for p in failing]
        blamed = Counter(element_key(each) for elements in behind for each in elements)
        most = [max((blamed[element_key(each)] for each in elements), default=0) for elements in behind]
        first = failing[most.index(max(most))]
        bound = _Bound(*check_ends(check, first), tables_of(self.view, self.launch, check))
        alike = points_alike(self.walker, self.launch, check, first)
        origin = self._origin(Computed(self.launch, check.value, first), bound, check, alike, blamed)
        return _with_elements(origin, behind, blamed)

    def _failing(self, check: Check, points: list[Evaluator]) -> list[Evaluator]:
        """The points of the loops at which the check fails; the first point where nothing was seen."""
        if isinstance(self.walker.values, NoValues):
            return points[:1]
        return list(islice((point for point in points if fails(check, point)), _OFFENDING))

    def of_value(self) -> Origin | None:
        argument = next((a for a in self.launch.tensors if a.target == self.fault.buffer), None)
        if argument is None:
            return None
        tensor = self.walker.values.tensor(self.launch.index, argument, self.fault.when)
        if tensor is None or len(self.fault.element) != len(tensor.shape):
            return None
        start = self._start(argument, tensor.offset(self.fault.element))
        if start is None:
            return None
        bound = _Bound(self.fault.low, None if self.fault.high is None else self.fault.high - 1, [])
        origin = self._origin(start, bound, None)
        return _with_elements(origin, self._likewise(argument, tensor), Counter())

    def _start(self, argument: Argument, offset: int) -> Computed | Place | Produced | None:
        """The faulty value as the launch reads it, or as it computes it."""
        if self.fault.when == "before":
            return Place(self.launch, argument, offset)
        if self.walker.program(self.launch) is None:
            return Produced(self.launch, argument, offset)
        return self.walker.stored(self.launch, argument.name, offset, None)

    def _likewise(self, argument: Argument, tensor: Tensor) -> list[list[OffendingElement]]:
        """The elements of masks behind the other values that are not finite."""
        found = []
        if self.fault.high is None and tensor.count <= _SCANNED:
            bad = (i for i in range(tensor.count) if not finite(tensor.at(i)))
            for place in islice(bad, 1, _MASKED):
                start = self._start(argument, tensor.offset(tensor.unraveled(place)))
                if isinstance(start, Computed):
                    found.append([each for each in self._elements(start) if each.value == "False"])
        return found

    def _origin(
        self,
        start: Computed | Place | Produced,
        bound: _Bound,
        check: Check | None,
        alike: Sequence[Evaluator] = (),
        blamed: Counter[tuple[str, tuple[int, ...]]] | None = None,
    ) -> Origin:
        following = self.walker.through(start) if isinstance(start, Produced) else start
        if isinstance(start, Produced) and following is None:
            walked = Walked(start)
        else:
            assert not isinstance(following, Produced | None), "a start that is no operator's goes on"
            walked = self.walker.back(following)
        source = walked.source
        if isinstance(source, Produced) and is_carrier(source.launch):
            raise UnknownValue("the values that the operator moved were not seen")
        closing = Closing(self.walker)
        if isinstance(source, Computed):
            expression = closing.close(source)
            value = value_of(source.term, source.evaluator)
        else:
            value = self._loaded(source)
            expression = self._bare(closing, source, value)
        launch = None if isinstance(source, Given) else source.launch
        origin = self._record(expression, launch, value, bound, walked.carriers)
        expressions = [expression]
        if isinstance(source, Computed) and check is not None and source.term is check.value:
            expressions += [
                Closing(self.walker).close(Computed(source.launch, source.term, point)) for point in alike
            ]
        found = condition_of(expressions, bound.allowed(expression.term), blamed or Counter())
        origin = origin.model_copy(update={"condition": found})
        if isinstance(source, Computed):
            return self._compared(origin, source, check)
        return origin

    def _compared(self, origin: Origin, source: Computed, check: Check | None) -> Origin:
        """The origin with what the other layers have."""
        checked = check is not None and source.term is check.value
        term: Term = source.term
        others = siblings(self.view, source.launch, term, checked)
        made = None if others or check else culprit_of(source.term, source.evaluator)
        if made is not None:
            term, others = made, siblings(self.view, source.launch, made, checked, inside=True)
        atens = (*source.launch.kernel.split("_"), *self.view.provenance(source.launch).pre_grad)
        condition = origin.condition
        dormant = []
        if checked and condition is not None:
            found = (dormant_in(self.walker, self.view, each, condition) for each in others)
            dormant = [each for each in found if each is not None]
        return origin.model_copy(
            update={"sibling_difference": difference(term, others, atens), "dormant": dormant}
        )

    def _record(
        self,
        expression: Expression,
        launch: Launch | None,
        value: Scalar | None,
        bound: _Bound,
        carriers: tuple[int, ...],
    ) -> Origin:
        found = list(offending(expression)) if not isinstance(self.walker.values, NoValues) else []
        at = launch or self.launch
        return Origin(
            launch_index=launch.index if launch else None,
            kernel=launch.kernel if launch else "",
            fault_launch=self.launch.index,
            expression=expression.text(),
            result="value" if bound.low is None and bound.high is None else "index",
            bad_value="" if value is None else shown(value),
            allowed=bound.text(self.walker),
            operands=operands(expression, seen=not isinstance(self.walker.values, NoValues)),
            elements=found[:_OFFENDING],
            element_count=len(found),
            explanation=explained(expression),
            layer=layer_of(self.view, at, bound.tables),
            source_lines=_source_lines(self.view, at),
            carriers=[
                n for n in carriers if n != self.launch.index and (launch is None or n != launch.index)
            ],
        )

    def _elements(self, computed: Computed) -> list[OffendingElement]:
        source = self.walker.back(computed).source
        if isinstance(source, Computed):
            return list(offending(Closing(self.walker).close(source)))
        return []

    def _bare(self, closing: Closing, source: Given | Produced, value: Scalar | None) -> Expression:
        """A value that no kernel computed: an element as it is given, or the call of an operator."""
        leaf = closing.leaf(source, "float32" if isinstance(value, float) else "int64", value)
        name = "x"
        if isinstance(source, Produced):
            name = called(source.launch, lambda each: label_of(each, self.walker))
        return Expression(leaf, closing.leaves, (), self.walker, dict.fromkeys(closing.leaves, name))

    def _loaded(self, source: Given | Produced) -> Scalar | None:
        if isinstance(source, Produced):
            return self.walker.produced_value(source)
        tensor = self.walker.tensor(source.place)
        return tensor.value_at(source.place.offset) if tensor else None


@dataclass(frozen=True)
class _Bound:
    """What the value may be, both ends included (None: no end), and the variables that it indexes."""

    low: Scalar | None
    high: Scalar | None
    tables: list[str]

    def text(self, walker: Walker) -> str:
        if self.high is None:
            return "" if self.low is None else f"from {self.low}"
        ends = f"up to {self.high}" if self.low is None else f"{self.low} to {self.high}"
        rows = ", ".join(label_of(name, walker) for name in self.tables[:2])
        return f"{ends}{f' (the rows of {rows})' if rows else ''}"

    def allowed(self, term: Term) -> Allowed:
        limit = limits(term.dtype)
        low = limit.low if self.low is None else self.low
        return Allowed(low, limit.high if self.high is None else self.high)


def _source_lines(view: PackageView, launch: Launch) -> list[str]:
    return [f"{each.file}:{each.line}: {each.code}" for each in view.provenance(launch).locations[:3]]


def element_key(element: OffendingElement) -> tuple[str, tuple[int, ...]]:
    """The tensor and the index of an element."""
    return element.label, tuple(element.index)


def _with_elements(
    origin: Origin, more: list[list[OffendingElement]], blamed: Counter[tuple[str, tuple[int, ...]]]
) -> Origin:
    """The origin with the elements of the inputs behind all failing points, those behind most first."""
    seen = {element_key(each): each for each in origin.elements}
    for elements in more:
        for each in elements:
            seen.setdefault(element_key(each), each)
    count = max(len(seen), origin.element_count)
    ordered = sorted(
        seen.values(),
        key=lambda each: (each.kind != "input", -blamed[element_key(each)], each.label, each.index),
    )
    return origin.model_copy(update={"elements": ordered[:_SHOWN], "element_count": count})
