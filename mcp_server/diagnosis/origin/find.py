"""From a fault to its origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mcp_server.diagnosis.origin.expression import (
    Closing,
    Expression,
    culprit,
    offending,
    operands,
    shown,
)
from mcp_server.diagnosis.origin.records import OffendingElement, Origin
from mcp_server.diagnosis.origin.values import NoValues, Values
from mcp_server.diagnosis.origin.walk import Computed, Given, Place, Produced, Walker
from mcp_server.package.assertion import Candidate
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.program import Check, places, used
from mcp_server.package.terms.term import Scalar, Term, understood
from mcp_server.package.view import PackageView
from mcp_server.steps.kernel_io import FirstBad

_SHOWN = 16
_SCANNED = 1 << 16
_OFFENDING = 256


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
    def of_first_bad(found: FirstBad, when: Literal["before", "after"] = "after") -> Fault | None:
        """The first bad value of `dump_kernel_io`; None where the launch or the element is not known."""
        if found.launch is None or not found.element.index:
            return None
        return Fault(
            found.launch, "value", buffer=found.argument, element=tuple(found.element.index), when=when
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
        failing = self._failing(check)
        if not failing:
            return None
        origin = self._origin(Computed(self.launch, check.value, failing[0]), _allowed(check, failing[0]))
        more = [self._elements(Computed(self.launch, check.value, place)) for place in failing[1:]]
        return _with_elements(origin, more)

    def _failing(self, check: Check) -> list[Evaluator]:
        """The points of the loops at which the check fails."""
        terms = [each for each in (check.value, check.lower, check.upper, check.test) if each is not None]
        names = {each.name for term in terms for each in used(term, check.ranges)}
        ranges = [each for each in check.ranges if each.name in names]
        every, _ = places(ranges, self.walker.values.scalars(self.launch), _SCANNED)
        found = []
        for place in every:
            evaluator = self.walker.evaluator(self.launch, place)
            if _fails(check, evaluator):
                found.append(evaluator)
                if len(found) == _OFFENDING:
                    break
        return found

    def of_value(self) -> Origin | None:
        argument = next((a for a in self.launch.tensors if a.target == self.fault.buffer), None)
        if argument is None:
            return None
        tensor = self.walker.values.tensor(self.launch.index, argument, self.fault.when)
        if tensor is None or len(self.fault.element) != len(tensor.shape):
            return None
        offset = tensor.offset(self.fault.element)
        start = self.start(argument, offset)
        if start is None:
            return None
        allowed = f"{self.fault.low} to {self.fault.high - 1}" if self.fault.high is not None else ""
        return self._origin(start, allowed)

    def start(self, argument: Argument, offset: int) -> Computed | Place | None:
        """The faulty value as the launch reads it, or as it computes it."""
        if self.fault.when == "before":
            return Place(self.launch, argument, offset)
        return self.walker.stored(self.launch, argument.name, offset, None)

    def _origin(self, start: Computed | Place, allowed: str) -> Origin:
        walked = self.walker.back(start)
        source = walked.source
        closing = Closing(self.walker)
        if isinstance(source, Computed):
            expression = closing.close(source)
            value = _value_of(source.term, source.evaluator)
        else:
            place = start if isinstance(start, Place) else self._read(start)
            value = self._place_value(place, source)
            expression = Expression(
                closing.of_place(place, "int64", 0, value), closing.leaves, (), self.walker
            )
            expression.names = dict.fromkeys(closing.leaves, "x")
        launch = None if isinstance(source, Given) else source.launch
        return self._record(expression, launch, value, allowed, walked.carriers)

    def _record(
        self,
        expression: Expression,
        launch: Launch | None,
        value: Scalar | None,
        allowed: str,
        carriers: tuple[int, ...],
    ) -> Origin:
        found = list(offending(expression))
        return Origin(
            launch_index=launch.index if launch else None,
            kernel=launch.kernel if launch else "",
            fault_launch=self.launch.index,
            expression=expression.text(),
            result="index" if self.fault.kind == "check" or self.fault.high is not None else "value",
            bad_value="" if value is None else shown(value),
            allowed=allowed,
            operands=operands(expression),
            elements=found[:_SHOWN],
            element_count=len(found),
            explanation=_explained(expression),
            carriers=[
                n for n in carriers if n != self.launch.index and (launch is None or n != launch.index)
            ],
        )

    def _elements(self, computed: Computed) -> list[OffendingElement]:
        source = self.walker.back(computed).source
        if isinstance(source, Computed):
            return list(offending(Closing(self.walker).close(source)))
        return []

    def _read(self, start: Computed) -> Place:
        following = self.walker.next(start)
        while isinstance(following, Computed):
            following = self.walker.next(following)
        if following is None:
            raise UnknownValue("nothing is read")
        return following

    def _place_value(self, place: Place, source: Given | Produced) -> Scalar | None:
        at = source.place if isinstance(source, Given) else place
        tensor = self.walker.tensor(at)
        return tensor.value_at(at.offset) if tensor else None


def _fails(check: Check, evaluator: Evaluator) -> bool:
    """Whether a check fails at one point. Raises `UnknownValue` where that cannot be told."""
    if check.test is not None and not evaluator.value(check.test):
        return False
    value = evaluator.value(check.value)
    low = evaluator.value(check.lower) if check.lower is not None else None
    high = evaluator.value(check.upper) if check.upper is not None else None
    return (low is not None and value < low) or (high is not None and value >= high)


def _allowed(check: Check, evaluator: Evaluator) -> str:
    low = evaluator.value(check.lower) if check.lower is not None else None
    high = evaluator.value(check.upper) if check.upper is not None else None
    if high is None:
        return f"from {low}"
    return f"below {high}" if low is None else f"{low} to {int(high) - 1}"


def _value_of(term: Term, evaluator: Evaluator) -> Scalar | None:
    try:
        return evaluator.value(term)
    except UnknownValue:
        return None


def _with_elements(origin: Origin, more: list[list[OffendingElement]]) -> Origin:
    """The origin with the elements of the inputs behind all failing points."""
    seen = {(each.label, tuple(each.index)): each for each in origin.elements}
    for elements in more:
        for each in elements:
            seen.setdefault((each.label, tuple(each.index)), each)
    return origin.model_copy(update={"elements": list(seen.values())[:_SHOWN], "element_count": len(seen)})


def _explained(expression: Expression) -> str:
    """Which operation first gave no finite value; empty where all are finite."""
    found = culprit(expression)
    if found is None:
        return ""
    evaluator = expression.evaluator()
    given = ", ".join(shown(evaluator.value(argument)) for argument in found.args)
    return f"{found.op}({given}) is {shown(evaluator.value(found))}"
