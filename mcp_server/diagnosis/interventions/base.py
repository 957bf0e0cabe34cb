"""Interventions, their trials, and the sentences that report the results."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Literal

from mcp_server.logs.text import kernel_message, short_message
from mcp_server.model import InterventionRun
from mcp_server.plurals import capitalized, counted, ended_again, share
from mcp_server.worker.events import CallFacts, ElementChange
from mcp_server.worker.protocol import Change, EagerLaunches, EditedProgram, Step

Failure = Literal["none", "exception", "signal", "timeout", "out_of_memory", "nonfinite", "differs"]
MOST_CHANCE = 0.01  # probability that an intermittent failure stayed away by coincidence


class Kind(Enum):
    """The aspect of the call that is changed."""

    INPUT = "input"
    CALL = "call"
    CONSTANT = "constant"
    KERNEL = "kernel"
    OPERATOR = "operator"
    COMPILER = "compiler"
    ENVIRONMENT = "environment"
    SOURCE = "source"


class Effect(Enum):
    """What the change did to the failure. `CHANGED`: one cause was removed, and another remains."""

    GONE = "gone"
    CHANGED = "changed"
    SAME = "same"
    NOT_APPLICABLE = "not_applicable"


LEAVING_OUT = frozenset({"resize", "pad", "drop_rows"})
KEEPING = frozenset({"cast", "move", "contiguous", "restride", "align", "reshape", "reorder"})
SHIPPED = KEEPING | {"permute", "flip", "sort", "divide", "reread"}  # changes that may be the fix


def known_only(source: str, key: str = "", package: str = "package") -> str:
    """Code that takes from a dict the tensors that a package has. `key` is code for their names there."""
    name, found = ("key", f"(key := {key})") if key else ("name", "name")
    known = f"{found} in {package}.get_constant_fqns()"
    return f"{{{name}: value for name, value in {source}.items() if {known}}}"


def update_from(file: Path) -> Step:
    """The replay step that gives the package the constants of a torch.save file (`{name: tensor}`).

    Names of a state_dict that the graph does not read are omitted.
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
    """Changes of the request other than to the inputs. The package is loaded again for the call.

    `cast`, `copied` and `omitted` change the updates of constants before a captured call. `updates` are made
    after the load. `alternatives` are further options: the first that makes the call right is used. `eager`
    are launches that run in eager mode. `edit` is an edited program that replaces launches or the package.
    `env` needs a separate process.
    """

    package: Path | None = None
    updates: tuple[Step, ...] | None = None
    cast: Mapping[str, str] | None = None
    copied: tuple[str, ...] | None = None
    omitted: tuple[str, ...] | None = None
    alternatives: tuple[Mapping[str, object], ...] | None = None
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

    `key` identifies it; `what` describes it ("the call with ..."); `before_code` and `after_code` are what a
    user would write. `minimal` are two ways to change only what is at fault, if the unchanged call does not
    return: output elements that differ between the two depend on the fault. `smallest` asks for the fewest
    elements whose change suffices. `parts` are the keys of changes made at once. `action` is the fix in
    words, if it changes the model. `spelling` are the arguments of the command that repeats the change;
    `unavailable` says why it cannot be made. `hides` marks a change that may hide the failure without
    removing its cause: it proves nothing. `not_for_shipping` says what would go wrong if a user shipped a
    change that only confirms.
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
        """Whether the change can only confirm: it invents or omits values, or edits generated code."""
        weights = bool(self.options.omitted or self.options.updates) and bool(self.not_for_shipping)
        narrows = self.kind is Kind.SOURCE and bool(self.not_for_shipping)
        edits = weights or narrows or self.kind in (Kind.KERNEL, Kind.OPERATOR)
        return edits or any(change.change not in SHIPPED for change in self.changes)

    @property
    def leaves_out(self) -> bool:
        """Whether the change omits parts of the call, where the fault may be."""
        return any(change.change in LEAVING_OUT for change in self.changes)

    @property
    def keeps_values(self) -> bool:
        """Whether only the storage of inputs changes (dtype, shape, layout, device), so that a correct call
        still returns equal values.
        """
        return bool(self.changes) and all(change.change in KEEPING for change in self.changes)


@dataclass(frozen=True)
class Seen:
    """How one call of a trial ended. `facts` is None if the call ended the process, or was never made.

    `essence` is the error text without details that vary by run; `family` is its error family. `differs` says
    how the outputs differ from those of eager mode, if eager mode is the reference.
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
        """How the call failed, judged by its ending, its outputs and the expectation."""
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
        """Describe the result with a verb: `returned`, `raised: ...`, `returned 4 NaN in output 0`."""
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
            return "returned outputs that the check command rejects"
        parts = []
        for each in self.facts.expected.outputs:
            if each.layout or each.changed:
                differ = each.layout or share(each.changed, each.elements, "element", "differ")
                parts.append(f"output {each.output}: {differ}")
        return f"returned unexpected outputs ({'; '.join(parts[:3])})"

    @property
    def non_finite(self) -> str:
        """Describe NaN and infinities in each output, even if it did not fail. Empty if there are none."""
        parts = []
        for place, output in enumerate(self.facts.outputs if self.facts is not None else ()):
            counts = ((output.nan, "NaN value"), (output.inf, "infinite value"))
            shown = " and ".join(counted(count, what) for count, what in counts if count)
            parts += [f"{shown} in output {place}"] if shown else []
        return "; ".join(parts[:3])


ENDINGS = {
    "timeout": "did not return in time",
    "out_of_memory": "ran out of memory",
    "not_made": "was not made",
}
COUNTED = 2  # unchanged calls of a trial in which nothing had to be repeated
UNSEEN = "the call fails, so outputs that depend on the changed elements cannot be compared with anything"


@dataclass(frozen=True)
class SideEffects:
    """Output elements that were not at fault but changed.

    `rows` are their indices in dimension 0. `layout` says how an output's shape or dtype changed. `unseen`:
    the unchanged call returned nothing, so only elements that do not depend on the changed values could be
    compared.
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
    """The result of one intervention: the call before, with it, and again without it.

    `effect` is what the change did to the failure of `before`. `chance` is the probability that an
    intermittent failure stayed away by chance; 0 if it occurred in each unchanged call. `calls` and `failed`
    count the unchanged calls. If `side_effects` is true, the change is not offered as a fix. `reason`
    explains an inconclusive effect or an intermittent failure.
    """

    intervention: Intervention
    effect: Effect
    before: Seen
    after: Seen
    again: Seen
    side_effects: SideEffects = field(default_factory=SideEffects)
    calls: int = COUNTED
    failed: int = COUNTED
    chance: float = 0.0
    reason: str = ""
    command: str = ""

    @property
    def gone(self) -> bool:
        return self.effect is Effect.GONE

    @property
    def proves(self) -> bool:
        """Whether the failure occurred, disappeared with the change, and returned without it."""
        return self.effect in (Effect.GONE, Effect.CHANGED) and self.chance < MOST_CHANCE

    def record(self) -> InterventionRun:
        return InterventionRun(
            what=self.intervention.what,
            before=self.before.describe(),
            after=self.reason or self.after.describe(),
            result=self.effect.value,
        )


def judged_elsewhere(intervention: Intervention, effect: Effect, failing: Seen, reason: str = "") -> Trial:
    """The trial of a change that was judged by something other than calls of the package."""
    after = Seen("ok", facts=CallFacts("without", "", "ok")) if effect is Effect.GONE else failing
    unknown = SideEffects(known=False)
    return Trial(intervention, effect, failing, after, failing, side_effects=unknown, reason=reason)


def change_in_words(what: str) -> str:
    """The change in words that follow "the call returned": `with args[1] clamped to 0..999`."""
    return what.removeprefix("the call ") if what.startswith("the call ") else f"with {what}"


def trial_in_words(trial: Trial) -> str:
    """Describe the calls of a trial, one short sentence each: unchanged, with the change, unchanged again."""
    change = change_in_words(trial.intervention.what)
    change = capitalized(change)
    before, after = trial.before.describe(), trial.after.describe()
    if trial.effect is Effect.NOT_APPLICABLE:
        return f"{change} the call says nothing about the cause: {trial.reason or after}."
    if _is_flaky(trial):
        times = ", several times" if trial.calls > COUNTED else ""
        return f"{change}{times}: {trial.reason}."
    start = f"As is, the call {before}. {change}"
    if trial.effect is Effect.SAME:
        return f"{start} it still {after}."
    if trial.effect is Effect.CHANGED:
        after = trial.reason.removeprefix("with the change it ") or after
    return f"{start} it {after}. Without this change, it {ended_again(trial.again.describe())}."


def fix_in_words(trial: Trial) -> str:
    """Describe the call after a change that removed the failure."""
    change = change_in_words(trial.intervention.what)
    if not _is_flaky(trial):
        return f"the call returned {change}"
    subject = "" if trial.intervention.kind is Kind.SOURCE else "the call "
    return f"{subject}{change}: {trial.reason}"


def unchanged_in_words(trial: Trial) -> str:
    """A sentence that the change left the failure as it was."""
    change = change_in_words(trial.intervention.what)
    if trial.reason:
        return f"the call was also made {change}: {trial.reason}"
    return f"{change} the call fails in the same way (it {trial.after.describe()})"


def _is_flaky(trial: Trial) -> bool:
    """Whether the result rests on counted repetitions, because the failure does not occur every time."""
    return bool(trial.reason) and trial.effect in (Effect.GONE, Effect.SAME)
