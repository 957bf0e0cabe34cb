"""What `intervene` reports of each call: the same classes are written by the worker and read by the server.

Standard library only. A fact is one JSON object in the report; `read_call` makes the class of it again.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

FIRST_ELEMENTS = 8  # places that are told of a comparison
MOST_ROWS = 32  # rows of dimension 0 that are told of a comparison


@dataclass(frozen=True)
class OutputFacts:
    """One output tensor: shape in elements, counts of NaN and infinities, digest of the values."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    nan: int
    inf: int
    checksum: str


@dataclass(frozen=True)
class ElementChange:
    """One element that differs: its logical index, and both values as text."""

    index: tuple[int, ...]
    before: str
    after: str


@dataclass(frozen=True)
class OutputChange:
    """One output beside the one that it is compared with.

    `layout` says how shape or dtype differ, and nothing else is known then. `changed` counts elements that
    differ by more than rounding, `innocent` those of them that were not at fault in the first place. `rows`
    are indices of dimension 0 that hold such elements, at most `MOST_ROWS`; `innocent_rows` those of rows in
    which no element was at fault.
    """

    output: int
    elements: int
    layout: str = ""
    changed: int = 0
    innocent: int = 0
    first: tuple[ElementChange, ...] = ()
    first_innocent: tuple[ElementChange, ...] = ()
    rows: tuple[int, ...] = ()
    innocent_rows: tuple[int, ...] = ()
    row_count: int = 0


@dataclass(frozen=True)
class Comparison:
    """All outputs of one call beside those of another, `against`.

    `cured`, `left` and `new` count elements at fault there and not here, at both, and here alone. At fault is
    what is not finite, or what differs from the expectation where there is one.
    """

    against: str
    outputs: tuple[OutputChange, ...]
    cured: int = 0
    left: int = 0
    new: int = 0

    @property
    def layout(self) -> str:
        """How the first output of another layout differs; empty when all have the same."""
        return next((output.layout for output in self.outputs if output.layout), "")

    @property
    def equal(self) -> bool:
        return not any(output.layout or output.changed for output in self.outputs)

    @property
    def innocent(self) -> int:
        """Elements that differ though they were not at fault."""
        return sum(output.innocent for output in self.outputs)


@dataclass(frozen=True)
class InputChange:
    """What the intervention did to one input: `changed` of its elements, or its `layout`."""

    input: int
    elements: int
    changed: int
    layout: str = ""
    first: tuple[ElementChange, ...] = ()


@dataclass(frozen=True)
class NeededElement:
    """An element of an input that has to change for the call to come back."""

    input: int
    index: tuple[int, ...]
    before: str
    after: str


@dataclass(frozen=True)
class Smallest:
    """The fewest of the changed elements with which the call comes back: `needed` of `changed`.

    `calls` is how many calls it took to find them; `first` are at most `FIRST_ELEMENTS` of them.
    """

    needed: int
    changed: int
    calls: int
    first: tuple[NeededElement, ...] = ()


@dataclass(frozen=True)
class CheckFacts:
    """How the user's check command ended: its exit status, and the end of what it printed."""

    status: int
    text: str = ""


@dataclass(frozen=True)
class CallFacts:
    """One call. `label` is its place in the plan, `key` the intervention, empty for the call as it is.

    `ended` is `ok` or `raised`; a call that ended the process leaves no facts. `poisoned` marks a CUDA
    context that is of no use after it. `mutated` are inputs that the call changed in place.
    """

    label: str
    key: str
    ended: str
    seconds: float = 0.0
    error_type: str = ""
    error_text: str = ""
    during: str = ""
    poisoned: bool = False
    outputs: tuple[OutputFacts, ...] = ()
    inputs: tuple[InputChange, ...] = ()
    mutated: tuple[int, ...] = ()
    beside: "Comparison | None" = None
    expected: "Comparison | None" = None
    smallest: "Smallest | None" = None
    check: "CheckFacts | None" = None


_MEMBERS: dict[str, Any] = {
    "CallFacts.outputs": OutputFacts,
    "CallFacts.inputs": InputChange,
    "CallFacts.beside": Comparison,
    "CallFacts.expected": Comparison,
    "CallFacts.smallest": Smallest,
    "CallFacts.check": CheckFacts,
    "Smallest.first": NeededElement,
    "Comparison.outputs": OutputChange,
    "OutputChange.first": ElementChange,
    "OutputChange.first_innocent": ElementChange,
    "InputChange.first": ElementChange,
}


def read_call(event: Mapping[str, Any]) -> CallFacts:
    """The facts of an event `intervened`."""
    found: CallFacts = _read(CallFacts, event)
    return found


def _read(kind: Any, record: Mapping[str, Any]) -> Any:
    """An instance of `kind`; names that it does not have are passed over, lists become tuples."""
    values = {}
    for field in fields(kind):
        if field.name in record:
            member = _MEMBERS.get("{}.{}".format(kind.__name__, field.name))
            values[field.name] = _value(member, record[field.name])
    return kind(**values)


def _value(member: Any, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(member, item) for item in value)
    return _read(member, value) if member is not None and isinstance(value, dict) else value
