"""What is known of the origin of a bad value, for a program and for a person."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mcp_server.model import Record

OperandKind = Literal["input", "constant", "buffer", "unset"]


class Operand(Record):
    """A tensor that the expression reads, by a letter (`name`); `label` is its name for a person.

    `elements` are those that count at the offending element, with their values where they were seen.
    """

    name: str
    kind: OperandKind
    label: str
    made_by: str = ""
    elements: list[str] = Field(default_factory=list)
    count: int = 0


class OffendingElement(Record):
    """An element of an input or of a constant behind the bad value. `index` is empty for a scalar."""

    kind: OperandKind
    label: str
    index: list[int]
    value: str = ""
    input_index: int | None = None

    def text(self) -> str:
        where = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.label}{where}{f' = {self.value}' if self.value else ''}"


class Condition(Record):
    """When the value is bad, checked by evaluating the expression on both sides.

    `variable` is the operand's letter, `label` its tensor.

    `low` and `high` are the ends of what the element may not be (inclusive, None: no end); `good` is the
    value nearest to the offending one with which the expression is good.
    """

    text: str
    variable: str
    label: str = ""
    low: float | int | None = None
    high: float | int | None = None
    good: float | int | None = None


class SiblingDifference(Record):
    """How the kernel differs from those that compute the same with other constants."""

    text: str
    here: str
    others: list[str]
    siblings: int


class Dormant(Record):
    """A launch that makes the same check of the same input, and for what it passes.

    `fails_here`: the offending element would fail there as well.
    """

    launch_index: int
    layer: str
    passes: str
    fails_here: bool = False


class Origin(Record):
    """Where a bad value was computed.

    `launch_index` and `kernel` are None and "" for a value that is an input's as given. `bad_value` is what
    the expression gave at the offending element, `carriers` the launches between it and the fault, the last
    one first. `elements` are at most 16 of `element_count`.
    """

    launch_index: int | None
    kernel: str
    fault_launch: int
    expression: str
    result: str = "value"
    bad_value: str = ""
    allowed: str = ""
    operands: list[Operand] = Field(default_factory=list)
    elements: list[OffendingElement] = Field(default_factory=list)
    element_count: int = 0
    explanation: str = ""
    condition: Condition | None = None
    layer: str = ""
    source_lines: list[str] = Field(default_factory=list)
    sibling_difference: SiblingDifference | None = None
    dormant: list[Dormant] = Field(default_factory=list)
    carriers: list[int] = Field(default_factory=list)

    def text(self) -> str:
        """The origin for a person, one fact in a line."""
        return "\n".join(line for line in self._lines() if line)

    def _lines(self) -> list[str]:
        shown = ", ".join(each.text() for each in self.elements[:4])
        more = self.element_count - min(4, len(self.elements))
        return [
            f"{self._place()}{self._value()}",
            *(
                f"  {each.name} is {each.label}{f', {each.made_by}' if each.made_by else ''}"
                for each in self._named()
            ),
            f"  from {shown}{f' and {more} more' if more > 0 else ''}" if shown else "",
            f"  {self.explanation}" if self.explanation else "",
            f"  {self.condition.text}" if self.condition else "",
            f"  {self.sibling_difference.text}" if self.sibling_difference else "",
            *self._dormant(),
        ]

    def _dormant(self) -> list[str]:
        """Launches that pass for the same values in one line."""
        grouped: dict[str, list[str]] = {}
        for each in self.dormant:
            grouped.setdefault(each.passes, []).append(each.layer or f"launch {each.launch_index}")
        return [
            f"  the same check lies in {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}: {passes}"
            for passes, names in list(grouped.items())[:6]
        ]

    def _place(self) -> str:
        layer = f" (layer {self.layer})" if self.layer else ""
        if self.launch_index is None:
            return f"Launch {self.fault_launch}{layer} gets the value as it is given"
        via = f", carried by launch {', '.join(map(str, self.carriers))}" if self.carriers else ""
        return f"Launch {self.launch_index}, {self.kernel}{layer}, computes it{via}"

    def _value(self) -> str:
        value = f" = {self.bad_value}" if self.bad_value else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        return f": {self.result} = {self.expression}{value}{allowed}"

    def _named(self) -> list[Operand]:
        """The operands whose letters stand in the expression."""
        return [each for each in self.operands if each.name != each.label]
