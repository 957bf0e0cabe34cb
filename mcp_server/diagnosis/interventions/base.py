"""What an intervention is, what a trial of it says, and the sentences that tell users the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Literal

from mcp_server.logs.text import kernel_message, short_message
from mcp_server.model import InterventionRun
from mcp_server.plurals import share
from mcp_server.worker.events import CallFacts, ElementChange
from mcp_server.worker.protocol import Change, EagerLaunches, EditedProgram, Step

Failure = Literal["none", "exception", "signal", "timeout", "out_of_memory", "nonfinite", "differs"]
MOST_CHANCE = 0.01  # that a failure which comes and goes stayed away by itself


class Kind(Enum):
    """What about the call is changed."""

    INPUT = "input"
    CALL = "call"
    CONSTANT = "constant"
    KERNEL = "kernel"
    OPERATOR = "operator"
    COMPILER = "compiler"
    ENVIRONMENT = "environment"
    SOURCE = "source"


class Effect(Enum):
    """What became of the failure. `CHANGED`: this was one cause, and another is left."""

    GONE = "gone"
    CHANGED = "changed"
    SAME = "same"
    NOT_APPLICABLE = "not_applicable"


LEAVING_OUT = frozenset({"resize", "pad", "drop_rows"})
KEEPING = frozenset({"cast", "move", "contiguous", "restride", "align"})
SHIPPED = KEEPING | {"permute"}  # changes of a call that can be its fix


def update_from(file: Path) -> Step:
    """The step of a replay that gives the package the constants of a file (`{name: tensor}`, of torch.save).

    Names of a state_dict that the graph does not read are left out.
    """
    return {
        "do": "constants",
        "file": str(file),
        "how": "load_constants",
        "arguments": [False, False],
        "only_known": True,
    }


@dataclass(frozen=True)
class Options:
    """Changes of the request other than to the inputs; the package is then loaded anew for the call.

    `steps` replaces the steps of a captured call (updates of constants, earlier calls). `updates` are
    updates of constants after the load. `eager`: launches done in eager mode, `edit`: work that an edited
    program does. `env` needs a process of its own.
    """

    package: Path | None = None
    steps: tuple[Step, ...] | None = None
    updates: tuple[Step, ...] | None = None
    cast: Mapping[str, str] | None = None
    copied: tuple[str, ...] | None = None
    operators: Literal["repair"] | None = None
    eager: EagerLaunches | None = None
    edit: EditedProgram | None = None
    stack_bytes: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def request(self) -> dict[str, object]:
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "env"}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Intervention:
    """Exactly one thing to change about a failing call.

    `key` identifies it; `what` says it in words ("the call with ..."); `before_code` and `after_code` are
    what a user would write. `minimal` are changes of nothing but what is at fault, in two ways: where the
    call as it is does not come back, they show which elements of the outputs the fault decides.
    `parts` are the keys of the changes that it makes at once.
    `smallest` has the fewest of the changed elements searched for that are enough, which does the same.
    `action` is the fix in words, where the change is one of the model. `spelling` are the arguments of the
    command that tries it again; `unavailable` says why none can. `hides` marks one that may make the failure
    invisible in place of removing its cause: it proves nothing. `not_for_shipping` says what would be wrong
    if a user shipped a change that only confirms.
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
    action: str = ""
    parts: tuple[str, ...] = ()
    not_for_shipping: str = ""

    @property
    def is_experiment(self) -> bool:
        """Whether it only confirms: it makes up values, leaves some out, or edits generated code."""
        edits = self.kind in (Kind.KERNEL, Kind.OPERATOR)
        return edits or any(change.change not in SHIPPED for change in self.changes)

    @property
    def leaves_out(self) -> bool:
        """Whether the change leaves parts of the call out; those parts may have been at fault."""
        return any(change.change in LEAVING_OUT for change in self.changes)

    @property
    def keeps_values(self) -> bool:
        """Whether only dtype, layout or place of inputs change: a right call returns the same then."""
        return bool(self.changes) and all(change.change in KEEPING for change in self.changes)


@dataclass(frozen=True)
class Seen:
    """How one call of a trial ended. `facts` is None when it ended the process, or was never made.

    `essence` is what failed, without what differs from run to run; `family` that of the error text. `differs`
    says how the outputs differ from those of eager mode, where these are the reference.
    """

    ended: Literal["ok", "raised", "died", "timeout", "out_of_memory", "refused", "not_made"]
    facts: CallFacts | None = None
    signal: str = ""
    text: str = ""
    family: str = ""
    essence: str = ""
    infinities: bool = False
    differs: str = ""

    @property
    def failure(self) -> Failure:
        """How the call failed, judged by its end, its outputs and the expectation."""
        if self.differs:
            return "differs"
        if self.ended == "timeout" or self.ended == "out_of_memory":
            return self.ended
        if self.ended != "ok":
            return "signal" if self.ended == "died" else "exception"
        assert self.facts is not None
        if any(output.nan or (self.infinities and output.inf) for output in self.facts.outputs):
            return "nonfinite"
        expected, check = self.facts.expected, self.facts.check
        refused = (check is not None and check.status) or (expected is not None and not expected.equal)
        return "differs" if refused else "none"

    def describe(self) -> str:
        """What the call did, as a verb and more: `returned`, `raised: ...`, `returned 4 NaN in output 0`."""
        if self.differs:
            return f"returned {self.differs}"
        if self.ended == "raised" or self.ended == "refused":
            return f"raised: {short_message(self.text) or 'an exception'}"
        if self.ended == "died":
            said = kernel_message(self.text)
            return f"died with {self.signal or 'a signal'}{f': {said}' if said else ''}"
        if self.ended != "ok":
            return ENDINGS[self.ended]
        assert self.facts is not None
        if self.failure in ("none", "nonfinite"):
            return f"returned {self.non_finite}".rstrip()
        if self.facts.expected is None or self.facts.expected.equal:
            return "returned outputs that the check command refuses"
        parts = []
        for each in self.facts.expected.outputs:
            if each.layout or each.changed:
                differ = each.layout or share(each.changed, each.elements, "element", "differ")
                parts.append(f"output {each.output}: {differ}")
        return f"returned other outputs than expected ({'; '.join(parts[:3])})"

    @property
    def non_finite(self) -> str:
        """The NaN and infinities in each output, even infinities that are no failure; empty without any."""
        parts = []
        for place, output in enumerate(self.facts.outputs if self.facts is not None else ()):
            counts = ((output.nan, "NaN"), (output.inf, "infinite"))
            shown = " and ".join(f"{count} {what}" for count, what in counts if count)
            parts += [f"{shown} in output {place}"] if shown else []
        return "; ".join(parts[:3])


ENDINGS = {
    "timeout": "did not return in time",
    "out_of_memory": "ran out of memory",
    "not_made": "was not made",
}
UNSEEN = "of outputs that depend on the changed elements there is nothing to compare with: the call fails"


@dataclass(frozen=True)
class SideEffects:
    """Elements of the outputs that were not at fault and came out changed.

    `rows` are indices of dimension 0 in which nothing was at fault. `layout` says how an output's shape or
    dtype differs from before. `unseen`: the call as it is returned nothing, so that elements which depend on
    what was changed had no value to compare with; only the others were compared.
    """

    elements: int = 0
    rows: tuple[int, ...] = ()
    first: tuple[ElementChange, ...] = ()
    layout: str = ""
    known: bool = True
    unseen: bool = False

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
    chance: float = 0.0
    reason: str = ""
    command: str = ""

    @property
    def proves(self) -> bool:
        """Whether the failure came, went with the change, and came again without it."""
        return self.effect in (Effect.GONE, Effect.CHANGED) and self.chance < MOST_CHANCE

    def record(self) -> InterventionRun:
        return InterventionRun(
            what=self.intervention.what,
            before=self.before.describe(),
            after=self.reason or self.after.describe(),
            result=self.effect.value,
        )


def judged_elsewhere(intervention: Intervention, effect: Effect, failing: Seen) -> Trial:
    """The trial of a change that was tried and judged elsewhere, not by calls of a trial."""
    after = Seen("ok", facts=CallFacts("without", "", "ok")) if effect is Effect.GONE else failing
    return Trial(intervention, effect, failing, after, failing, side_effects=SideEffects(known=False))


def change_in_words(what: str) -> str:
    """The change of an intervention, to put after "the call returned": `with args[1] clamped to 0..999`."""
    return what.removeprefix("the call ") if what.startswith("the call ") else f"with {what}"


def trial_in_words(trial: Trial) -> str:
    """The calls of a trial, a short sentence each: as it is, with the change, and without it again."""
    change = change_in_words(trial.intervention.what)
    change = f"{change[:1].upper()}{change[1:]}"
    before, after = trial.before.describe(), trial.after.describe()
    if trial.effect is Effect.NOT_APPLICABLE:
        return f"{change} the call says nothing about the cause: {trial.reason or after}."
    if _is_flaky(trial):
        return f"{change}, several times: {trial.reason}."
    start = f"As is, the call {before}. {change}"
    if trial.effect is Effect.SAME:
        return f"{start} it still {after}."
    if trial.effect is Effect.CHANGED:
        after = trial.reason.removeprefix("with the change it ") or after
    return f"{start} it {after}. Without this change, it {trial.again.describe()} again."


def fix_in_words(trial: Trial) -> str:
    """The result of the call with a change that removed the failure, in words."""
    change = change_in_words(trial.intervention.what)
    return f"the call {change}: {trial.reason}" if _is_flaky(trial) else f"the call returned {change}"


def unchanged_in_words(trial: Trial) -> str:
    """A sentence that the change left the failure as it was."""
    change = change_in_words(trial.intervention.what)
    if trial.reason:
        return f"the call was also made {change}: {trial.reason}"
    return f"{change} the call fails in the same way (it {trial.after.describe()})"


def _is_flaky(trial: Trial) -> bool:
    """Whether the verdict rests on counted repetitions. A failure that comes every time needs no count."""
    return bool(trial.reason) and trial.effect in (Effect.GONE, Effect.SAME)
