"""What an intervention is, and what a trial of it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Literal

from mcp_server.logs.text import kernel_message, short_message
from mcp_server.plurals import share
from mcp_server.worker.protocol import CallFacts, ElementChange

Failure = Literal["none", "exception", "signal", "timeout", "out_of_memory", "nonfinite", "differs"]
Number = int | float | str  # as text: nan, inf and -inf, for which JSON has no words


class Kind(Enum):
    """What about the call is changed."""

    INPUT = "input"
    SCALAR = "scalar"
    CALL = "call"
    CONSTANT = "constant"
    KERNEL = "kernel"
    OPERATOR = "operator"
    COMPILE = "compile"
    ENVIRONMENT = "environment"


class Effect(Enum):
    """What became of the failure.

    `CHANGED`: this was one cause, and another is left. `NOT_APPLICABLE`: the trial says nothing, and its
    reason says why.
    """

    GONE = "gone"
    CHANGED = "changed"
    SAME = "same"
    NOT_APPLICABLE = "not_applicable"


LEAVING_OUT = frozenset({"resize", "pad", "drop_rows"})
KEEPING = frozenset({"cast", "move", "contiguous", "restride", "align"})


@dataclass(frozen=True)
class Where:
    """Elements by value: those that fulfil any of these."""

    below: Number | None = None
    above: Number | None = None
    equals: Number | None = None
    non_finite: bool = False
    nan: bool = False

    def request(self) -> dict[str, object]:
        return _given(self)


@dataclass(frozen=True)
class Change:
    """One change of the inputs, as the worker's `transforms` make it; None is what it does not need.

    `input` counts the tensors of the call. `flat`, `index`, `rows` along `dim`, `where`, and `stride` with
    `offset` choose elements.
    """

    change: str
    input: int | None = None
    dtype: str | None = None
    device: str | None = None
    dim: int | None = None
    size: int | None = None
    value: Number | None = None
    low: Number | None = None
    high: Number | None = None
    old: Number | None = None
    new: Number | None = None
    flat: tuple[int, ...] | None = None
    index: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None
    where: Where | None = None
    offset: int | None = None
    stride: int | tuple[int, ...] | None = None
    order: tuple[int, ...] | None = None

    def request(self) -> dict[str, object]:
        """For the worker."""
        found = _given(self)
        if self.where is not None:
            found["where"] = self.where.request()
        return found


@dataclass(frozen=True)
class Options:
    """What else about the request is changed; the package is then loaded anew for the call.

    `steps` replaces those of a captured call (updates of constants, earlier calls). `updates` are updates of
    constants after the load. `env` needs a process of its own.
    """

    package: Path | None = None
    steps: tuple[Mapping[str, object], ...] | None = None
    updates: tuple[Mapping[str, object], ...] | None = None
    cast: Mapping[str, str] | None = None
    copied: tuple[str, ...] | None = None
    operators: Literal["repair"] | None = None
    twice: bool | None = None
    stack_bytes: int | None = None
    run_single_threaded: bool | None = None
    num_runners: int | None = None
    device_index: int | None = None
    inputs: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def request(self) -> dict[str, object]:
        """The parts of the worker's request that differ."""
        return {name: value for name, value in _given(self).items() if name != "env"}


@dataclass(frozen=True)
class Intervention:
    """Exactly one thing to change about a failing call.

    `key` identifies it; `what` says it in words ("the call with ..."); `before_code` and `after_code` are
    what a user would write. `minimal` are changes of nothing but what is at fault, in two ways: where the
    call as it is does not come back, they show which elements of the outputs the fault decides.
    `smallest` has the fewest of the changed elements searched for that are enough, which does the same.
    `spelling` are the arguments of the command that tries it again; `unavailable` says why none can.
    """

    key: str
    kind: Kind
    what: str
    changes: tuple[Change, ...] = ()
    options: Options = field(default_factory=Options)
    before_code: str = ""
    after_code: str = ""
    minimal: tuple[tuple[Change, ...], ...] = ()
    smallest: bool = False
    spelling: tuple[str, ...] = ()
    unavailable: str = ""
    hides: bool = False

    @property
    def leaves_out(self) -> bool:
        """Whether parts of the call are not made any more: what is left out may have been at fault."""
        return any(change.change in LEAVING_OUT for change in self.changes)

    @property
    def keeps_values(self) -> bool:
        """Whether only dtype, layout or place of inputs change: a right call returns the same then."""
        return bool(self.changes) and all(change.change in KEEPING for change in self.changes)


@dataclass(frozen=True)
class Seen:
    """How one call of a trial ended. `facts` is None when it ended the process, or was never made.

    `essence` is what failed, without what differs from run to run; `family` that of the error text.
    """

    ended: Literal["ok", "raised", "died", "timeout", "out_of_memory", "refused", "not_made"]
    facts: CallFacts | None = None
    signal: str = ""
    text: str = ""
    family: str = ""
    essence: str = ""
    infinities: bool = False

    @property
    def failure(self) -> Failure:
        """How the call failed, as far as its end, its outputs and the expectation tell."""
        if self.ended in ("timeout", "out_of_memory"):
            return "timeout" if self.ended == "timeout" else "out_of_memory"
        if self.ended != "ok":
            return "signal" if self.ended == "died" else "exception"
        assert self.facts is not None
        outputs = self.facts.outputs
        if any(output.nan or (self.infinities and output.inf) for output in outputs):
            return "nonfinite"
        expected, check = self.facts.expected, self.facts.check
        if check is not None and check.status:
            return "differs"
        return "differs" if expected is not None and not expected.equal else "none"

    def describe(self) -> str:
        """In a few words, for a table."""
        if self.ended == "raised" or self.ended == "refused":
            return f"raised: {short_message(self.text) or 'an exception'}"
        if self.ended == "died":
            said = kernel_message(self.text)
            return f"died with {self.signal or 'a signal'}{f': {said}' if said else ''}"
        if self.ended != "ok":
            return self.ended.replace("_", " ")
        if self.failure == "none":
            return "ended well"
        return _bad_outputs(self) if self.failure == "nonfinite" else _differing(self)


@dataclass(frozen=True)
class SideEffects:
    """Elements of the outputs that were not at fault and came out changed.

    `rows` are indices of dimension 0 in which nothing was at fault. `layout` says how an output's shape or
    dtype differs from before.
    """

    elements: int = 0
    rows: tuple[int, ...] = ()
    first: tuple[ElementChange, ...] = ()
    layout: str = ""
    known: bool = True

    def __bool__(self) -> bool:
        return bool(self.elements or self.layout)


@dataclass(frozen=True)
class Trial:
    """What came of one intervention: the call before, with it, and again without it.

    `effect` holds for what the first of `before` and `again` failed with. `chance` is the probability that a
    failure which comes and goes stayed away by itself; 0 where it came each time. `calls` and `failed` count
    the calls as they are. `side_effects` is true where elements changed that were not at fault: such a fix is
    not offered. `reason` explains an effect that says nothing, and a flaky failure.
    """

    intervention: Intervention
    effect: Effect
    before: Seen
    after: Seen
    again: Seen
    side_effects: SideEffects = field(default_factory=SideEffects)
    calls: int = 2
    failed: int = 2
    tries: int = 1
    chance: float = 0.0
    reason: str = ""
    command: str = ""

    @property
    def proves(self) -> bool:
        """Whether the failure came, went with the change, and came again without it."""
        return self.effect in (Effect.GONE, Effect.CHANGED) and self.chance < MOST_CHANCE

    @property
    def offered(self) -> bool:
        """Whether the change may be printed as the fix."""
        return self.effect is Effect.GONE and self.proves and not self.side_effects


MOST_CHANCE = 0.01


def _given(record: object) -> dict[str, object]:
    """Fields that are neither None nor false nor empty."""
    found: dict[str, object] = {}
    for each in fields(record):  # type: ignore[arg-type]
        value = getattr(record, each.name)
        if value is not None and value is not False and value != {}:
            found[each.name] = value
    return found


def _bad_outputs(seen: Seen) -> str:
    assert seen.facts is not None
    parts = []
    for place, output in enumerate(seen.facts.outputs):
        counts = [
            f"{count} {what}" for count, what in ((output.nan, "NaN"), (output.inf, "infinite")) if count
        ]
        if counts:
            parts.append(f"output {place}: {' and '.join(counts)}")
    return "; ".join(parts[:3])


def _differing(seen: Seen) -> str:
    assert seen.facts is not None
    if seen.facts.expected is None or seen.facts.expected.equal:
        return "outputs that the check command refuses"
    outputs = seen.facts.expected.outputs
    parts = [
        f"output {each.output}: {each.layout or share(each.changed, each.elements, 'element', 'differ')}"
        for each in outputs
        if each.layout or each.changed
    ]
    return "not as expected: " + "; ".join(parts[:3])
