"""Finds where a bad value was computed: expression, input elements, and when the expression goes wrong.

`find.find_origin` works on the values saved by a run with launch probes (`ProbedValues`). It returns an
`Origin`.
"""

from typing import Literal

from pydantic import Field

from mcp_server.model import Record


class Operand(Record):
    """A tensor that the expression reads. `name` is its letter, `label` its name for a person."""

    name: str
    label: str
    made_by: str = ""


class OffendingElement(Record):
    """An element from which the bad value was computed. `index` is empty for a scalar.

    A `selector` is an input element that chooses the element of a constant.
    """

    kind: Literal["input", "constant", "selector"]
    label: str
    index: list[int]
    value: str = ""
    input_index: int | None = None

    def text(self) -> str:
        where = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.label}{where}{f' = {self.value}' if self.value else ''}"


class Condition(Record):
    """When the value is bad, checked by evaluating the expression on both sides.

    `variable` is the operand's letter, `label` its tensor. `low` and `high` bound the bad values of the
    element (inclusive, None: no bound). `good` is the good value nearest to the offending one, and `usual`
    the median of the other values, if known.
    """

    text: str
    variable: str
    label: str = ""
    low: float | int | None = None
    high: float | int | None = None
    good: float | int
    usual: float | None = None


class Operation(Record):
    """The operation that left its domain, with the values of its operands (`text`).

    `family` names its domain, `value` is the operand outside that domain. `code` is the operation as a model
    has it, and `guarded_code` the same with its operand kept in the domain. `action` is the change in words.
    `shipped` is the code for the model if it is not the guard.
    """

    launch_index: int
    op: str
    family: str
    text: str
    code: str
    guarded_code: str
    action: str
    value: str = ""
    shipped: str = ""


class Overflow(Record):
    """A number that is too large for its type, in words.

    If no element of input `input_index` exceeds `bound`, nothing overflows. Its `rows` are at fault.
    """

    text: str
    bound: float | None = None
    input_index: int = -1
    rows: list[int] = Field(default_factory=list)


class Correction(Record):
    """An edit that turns the expression into `text`. `lines` of the kernel's source (1-based) compute it.

    The value is kept at `low` or above, or at `high` or below.
    """

    text: str
    lines: list[int]
    low: int | None = None
    high: int | None = None


WRITTEN = "the model itself writes"  # beginning of an explanation without arithmetic


class Origin(Record):
    """Where a bad value was computed.

    `launch_index` is None and `kernel` "" if an input had the value. `bad_value` is the expression's value at
    the offending element. `carriers` are the launches between origin and fault, the last one first.
    `elements` are at most 16 of `element_count`. `of_model` says why the expression, not the elements, is at
    fault; `correction` would correct it, if the kernel's source shows how. `operator` computed a non-finite
    value from finite ones, or a result that does not fit in the type `narrow`. `advice` says what to write
    instead.
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
    operation: Operation | None = None
    operator: str = ""
    narrow: str = ""
    overflow: Overflow | None = None
    of_model: str = ""
    advice: str = ""
    correction: Correction | None = None
    carriers: list[int] = Field(default_factory=list)

    @property
    def written(self) -> bool:
        """Whether the model itself writes the bad value, without arithmetic."""
        return self.explanation.startswith(WRITTEN)
