"""What the worker reports: one class for each event, which both sides use, and the facts in them.

Standard library only and Python 3.9, as in `protocol`. An event is one JSON object per line of the report:
`event` (its name, that of the class), `t` (seconds since the worker began) and the fields of the class but
for those that are None. A field with a default may be missing, in reports of other versions for example.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar, Optional, Union

from .protocol import InputSlice
from .report import Frame, Number, OddElement, Overrun, TensorFacts


class Event:
    """`event` is its name in a report, by default that of the class: `node_raised` of `NodeRaised`.

    `t`: seconds since the worker began, in an event that was read.
    """

    event: str
    t: float = 0.0
    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls, event: str = "") -> None:
        cls.event = event or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        Event.kinds[cls.event] = cls


@dataclass
class Phase(Event):
    """The worker began the phase with this name, for the given file, call or similar subject."""

    event: str
    about: str = ""


# Results of operators


@dataclass
class Layout:
    """A layout that a fake function gives; sizes that depend on data are None. `device` is its type."""

    shape: list[Optional[int]]
    stride: list[Optional[int]]
    dtype: str
    device: str


@dataclass
class Broken:
    """The layout of a result that the fake function promised, and the one that the operator returned."""

    promised: Layout
    returned: Layout


# The process


@dataclass
class Torch(Event):
    version: str = ""
    cuda: Optional[str] = None


@dataclass
class OperatorsTaken(Event):
    """The `lines` of a script that register operators; empty if there are none; `refused` says why."""

    file: str = ""
    lines: list[int] = field(default_factory=list)
    refused: str = ""


@dataclass
class Refused(Event):
    """The request itself is wrong. Nothing of the workload ran."""

    what: str
    value: object = None
    allowed: str = ""


@dataclass
class Failed(Event):
    """The exception that ended the operation; `during` is the phase begun by the last event."""

    text: str = ""
    during: str = ""
    type: str = ""


@dataclass
class Python(Event):
    version: Optional[str] = None
    triton: Optional[str] = None


@dataclass
class Cuda(Event):
    """`why` it is not `available`, and the newest that the `driver` runs, as 1000 * major + 10 * minor."""

    available: Optional[bool] = None
    why: str = ""
    driver: Optional[int] = None


@dataclass
class Gpu(Event):
    """A device, with its `capability` as digits such as 90, or the error with which it answers."""

    index: int
    name: str = ""
    capability: str = ""
    error: Optional[str] = None


# Loads


@dataclass
class NotApplied(Event):
    """A constant of an update that the program cannot take, and why."""

    name: str = ""
    what: str = ""


# Inputs


@dataclass
class Given(Event):
    """The layouts of the inputs of a call."""

    leaves: list[TensorFacts] = field(default_factory=list)


@dataclass
class Inputs(Event):
    """The leaves of the inputs, with the device from which each was saved."""

    leaves: list[TensorFacts]


@dataclass
class ChangedInput:
    """Whether a call changed the values of an input, and whether its address is misaligned."""

    input: int
    changed: bool
    misaligned: bool


@dataclass
class ChangedInputs(Event):
    inputs: list[ChangedInput] = field(default_factory=list)


@dataclass
class IndexValues(Event):
    """Elements of a part, and of those `outside` its range the `first` few as (index, value)."""

    part: InputSlice
    elements: int = 0
    min: Union[int, float, None] = None
    max: Union[int, float, None] = None
    outside: int = 0
    first: list[tuple[list[int], Union[int, float]]] = field(default_factory=list)

    @property
    def index(self) -> list[int]:
        return self.first[0][0]

    @property
    def value(self) -> Union[int, float]:
        return self.first[0][1]


# Calls and their outputs

FIRST_ELEMENTS = 8  # elements that a comparison lists
MOST_ROWS = 32  # rows of dimension 0 that a comparison lists


@dataclass
class Called(Event):
    """A call returned, after `seconds` including the device's work."""

    call: int = 0
    seconds: float = 0.0
    outputs: list[TensorFacts] = field(default_factory=list)


@dataclass(frozen=True)
class ElementChange:
    """One element that differs: its logical index, and both values as text."""

    index: tuple[int, ...]
    before: str
    after: str


@dataclass
class Repeated(Event):
    """Whether the call `run`, `second` or `filled`, gave the same outputs as the first call."""

    run: str
    equal: bool


# Interventions


@dataclass(frozen=True)
class OutputChange:
    """One output compared with that of another call.

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


@dataclass(frozen=True)
class ExpectedOutput(OutputChange):
    """An output compared with what is expected.

    `by`: how far apart finite elements are at most, and `reach` the largest that is expected.
    """

    same_shape: bool = True
    by: Optional[float] = None
    reach: Optional[float] = None


@dataclass
class Compared(Event):
    """The outputs of the package, compared with others of the same call; `counts` of both."""

    equal: bool
    counts: list[int] = field(default_factory=list)
    outputs: list[ExpectedOutput] = field(default_factory=list)


@dataclass
class ComparedExpected(Compared):
    """The outputs compared with those that the user gave (`given`), or that the program expected."""

    given: bool = False
    layout: str = ""


@dataclass(frozen=True)
class Comparison:
    """All outputs of one call compared with those of another, `against`.

    `cured`, `left` and `new` count elements at fault there and not here, at both, and here alone. At fault is
    what is not finite, or what differs from the expectation where there is one. `part`: where the outputs
    are the first or the last part of those, how many elements of that part are at fault.
    """

    against: str
    outputs: tuple[OutputChange, ...]
    cured: int = 0
    left: int = 0
    new: int = 0
    part: Optional[int] = None

    @property
    def layout(self) -> str:
        """How the first output with a different layout differs; empty if all layouts agree."""
        return next((output.layout for output in self.outputs if output.layout), "")

    @property
    def equal(self) -> bool:
        return not any(output.layout or output.changed for output in self.outputs)

    @property
    def innocent(self) -> int:
        """The number of elements that differ though they were not at fault."""
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
class NeededElement(ElementChange):
    """An element of an input that has to change for the call to return."""

    input: int


@dataclass(frozen=True)
class Smallest:
    """The fewest changed elements with which the call returns, and the number of `calls` to find them."""

    needed: int
    changed: int
    calls: int
    first: tuple[NeededElement, ...] = ()


@dataclass(frozen=True)
class CheckFacts(Event, event="checked_outputs"):
    """How the user's check command ended: its exit status, and the last part of its output."""

    status: int
    text: str = ""


@dataclass(frozen=True)
class CallFacts(Event, event="intervened"):
    """One call of a plan. `label` is its place in the plan, `key` the intervention, if any.

    `ended` is `ok`, `raised` or `refused`; a call that ended the process leaves no facts. `poisoned` marks a
    CUDA context that is of no use after it. `mutated` are inputs that the call changed in place. `constants`
    are the fewest that cure the call if given, or if an update omits them; `bad_places` has for each of them
    the index of its first element that is not finite, which is empty if there is none.
    """

    label: str
    key: str
    ended: str
    seconds: float = 0.0
    error_type: str = ""
    error_text: str = ""
    during: str = ""
    poisoned: bool = False
    outputs: tuple[TensorFacts, ...] = ()
    inputs: tuple[InputChange, ...] = ()
    mutated: tuple[int, ...] = ()
    compared: Optional[Comparison] = None
    expected: Optional[Comparison] = None
    smallest: Optional[Smallest] = None
    constants: tuple[str, ...] = ()
    bad_places: tuple[tuple[int, ...], ...] = ()
    check: Optional[CheckFacts] = None


# Launches


@dataclass
class OfLaunch(Event):
    """A tensor of a launch: the launch's number, its place in the call, its kernel and the tensor's name."""

    launch: int = -1
    sequence: int = 0
    kernel: str = ""
    name: str = ""


@dataclass
class Argument(OfLaunch, TensorFacts):
    """An argument before or after a launch (`phase`): a tensor, or a number, which is its `value`.

    `saved` is the tensor's file. `outside` is an element beyond the bound that was asked for.
    """

    phase: str = ""
    run: int = 0
    runner: Optional[int] = None
    parameter: str = ""
    role: str = ""
    pointer: int = 0
    non_finite: Optional[OddElement] = None
    outside: Optional[OddElement] = None
    saved: Optional[str] = None


@dataclass
class LeftOut(Event):
    """There are too many events, so these arguments have none."""

    arguments: int


@dataclass
class NotSaved(Event):
    """Tensors beyond the cap in bytes, or of a dtype or layout that cannot be saved."""

    tensors: int
    cap: int


# Eager mode


@dataclass
class Interpreted(Event):
    nodes: int = 0
    outputs: list[TensorFacts] = field(default_factory=list)


@dataclass
class ComparedForm(Event):
    """Whether the program gives what is expected: as it is, with operators in another form, and again.

    `form`: `int64`, those that do not fit in 64 bits; `evaluation`, of those in training mode; or `weights`,
    the whole program with the weights that changed after its export.
    """

    form: str
    equal: tuple[bool, bool, bool]


@dataclass
class OfNode(Event):
    """A node of the program with its operator and the model's lines, innermost first."""

    node: str
    op: str
    stack: list[Frame]


@dataclass
class NodeRaised(OfNode):
    """An operator raised; `behind` are the non-finite nodes that its integer inputs are computed from."""

    text: str
    type: str = ""
    behind: list[str] = field(default_factory=list)


@dataclass
class GuardFailed(OfNode):
    """A guard of the program rejects the inputs."""

    text: str
    type: str = ""


@dataclass
class NodeNonFinite(OfNode):
    """A result with NaN (`nan`), infinities, or minus infinity alone (`masked`); `bad_inputs` had one."""

    bad_inputs: list[str]
    nan: bool
    masked: bool
    dtype: str = ""


@dataclass
class NodeOverflow(OfNode):
    """Integers that do not fit their dtype: `count` elements, and the first with its `exact` value.

    The dtype is a narrower one of integers, or one of floats to which they are converted. `modular`: what
    reads the result may well mean it so, as in a hash.
    """

    modular: bool
    dtype: str
    count: int
    index: list[int]
    value: int
    exact: int


@dataclass
class NodeTraining(OfNode):
    """An operator that runs in training mode: a batch norm with the statistics of the batch, a dropout."""


@dataclass
class FakeMismatch(OfNode):
    """The result of a node differs from what its fake function promised."""

    promised: Optional[Layout] = None
    returned: Optional[Layout] = None


@dataclass
class Operator(Event):
    """A call of an operator that breaks its schema (`mutated` and `aliases`: arguments) or fake function."""

    op: str
    call: int
    layouts: list[Broken] = field(default_factory=list)
    mutated: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    overrun: list[Overrun] = field(default_factory=list)


@dataclass
class EagerRan(Event):
    """Whether eager mode gives the same outputs twice; `left_out` of its values were too large to be kept."""

    same: bool
    left_out: int


# Launch by launch against eager mode


@dataclass
class Closeness:
    """How close a tensor is to what it should be, that of a `node` of the program (`compare.measure`).

    `error` is the largest difference from the float64 reference, `eager_error` eager's own, `allowed` the
    largest tolerance; `first` is the first element beyond it, with `values` of eager and of the package.
    """

    node: str = ""
    elements: int = 0
    beyond: int = 0
    first: list[int] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    error: Optional[Number] = None
    eager_error: Optional[Number] = None
    allowed: Optional[Number] = None
    excess: Optional[Number] = None
    within: bool = False
    within_tf32: bool = False
    equal: bool = False
    non_finite: int = 0

    @property
    def example(self) -> str:
        """The package's value, eager's, where, and how many are so; empty where all are within."""
        if not self.values:
            return ""
        eager, package = self.values
        return "{} instead of {} at {} ({} of {} elements)".format(
            package, eager, self.first, self.beyond, self.elements
        )


@dataclass
class Rounding(Event):
    """Whether rounding explains each output: it is `within` then.

    `reference` says whether each output that the user's own check may have compared has a tensor there that
    is explained as well; None if there are none. `narrow`: there are outputs of half precision.
    """

    outputs: list[Closeness]
    reference: Optional[bool] = None
    narrow: bool = False


@dataclass
class OutputCompared(Event):
    """An output of the package beside eager's: equal, rounding, differs or layout.

    `layouts`: other shapes or dtypes than eager's.
    """

    index: int
    agreement: str
    compared: Closeness = field(default_factory=Closeness)
    layouts: list[str] = field(default_factory=list)


@dataclass
class CountedOutputs(Event):
    package: int
    eager: int


@dataclass
class Outputs(Event):
    run: str
    checksums: list[str]


@dataclass
class Rerun(OfLaunch):
    """A tensor that a launch wrote in the call `run`."""

    run: str = ""
    checksum: str = ""


@dataclass
class ConstantDiffers(Event):
    """A constant of the package has other values than the program's: `different` of its `elements`.

    `launch` is the first to read it.
    """

    name: str
    launch: int
    elements: int
    different: int

    @property
    def sentence(self) -> str:
        counts = "{} of {}".format(self.different, self.elements)
        return "constant {} of the package is not the program's own: {} elements differ".format(
            self.name, counts
        )


@dataclass
class LaunchJudged(OfLaunch):
    """A tensor that a launch wrote from correct inputs, and that others read.

    `status`: right, wrong or unjudged (`why`). It holds tensor number `place` of `node`, with `product`
    without its bias, of `shape` and `dtype`, at `sizes`, `strides` and `offset` of its memory; `compared`
    with that value. `tf32`: no more than TF32 products explain.
    """

    status: str = "unjudged"
    why: str = ""
    node: str = ""
    place: int = 0
    product: bool = False
    shape: list[int] = field(default_factory=list)
    dtype: str = ""
    sizes: list[int] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    offset: int = 0
    compared: Optional[Closeness] = None
    tf32: bool = False


@dataclass
class JudgedOutputs(Event):
    """Whether the call is right with all wrong values replaced by right ones."""

    right: bool


@dataclass
class Timed(Event):
    """The median time of a call; `steady`: every call gave the outputs of the first."""

    seconds: float
    steady: bool = True


# Compiles, and the search for what makes them fail


@dataclass
class Compiled(Event):
    package: str
    seconds: float = 0.0
    bytes: int = 0


@dataclass
class Switched(Event):
    """The requested options that this torch has."""

    names: list[str]


@dataclass
class Judged(Event):
    """Whether an output is not finite, has NaN, or differs from eager's."""

    not_finite: bool
    nan: bool
    departs: bool


@dataclass
class Node(Event):
    node: str
    op: str = ""


@dataclass
class Value(Event):
    node: str
    nan: bool = False
    inf: bool = False


@dataclass
class Units(Event):
    """The nodes that compute tensors, in their order, each with those that read it.

    `dynamic`: sizes of the program are symbolic.
    """

    readers: dict[str, list[str]]
    dynamic: bool = False


@dataclass
class Cut(Event):
    """The `script` of plan `number`, with its `nodes` and the bytes of each of its `tensors`.

    `sizes` of tensors may be made smaller. `users`: it calls operators that are not torch's.
    """

    number: int
    script: str
    operators: int
    nodes: list[OfNode]
    tensors: dict[str, int]
    sizes: list[int]
    users: bool = False


@dataclass
class Uncuttable(Event):
    number: int
    reason: str


@dataclass
class Decision(Event):
    """A decision of the compiler (`reduction.attempt`): its operator, or what a pass rewrote."""

    kind: str
    key: str
    op: str = ""
    rewrites: list[str] = field(default_factory=list)
    change: list[str] = field(default_factory=list)


@dataclass
class ScriptEnded(Event):
    """The exit status of a script that ran in the worker."""

    status: int


# Times


@dataclass
class PairsTimed(Event):
    """Alternating unchanged and changed calls: medians in seconds, and quartiles of the ratio of pairs.

    `same`: the changed call gave the same outputs. `others`: the part of all processors that other processes
    used meanwhile.
    """

    name: str
    plain: float
    changed: float
    ratio: float
    low: float
    high: float
    pairs: int
    same: bool
    others: float = 0.0


@dataclass
class LaunchTime(Event):
    """What one kernel or operator takes of a call of `whole` seconds, and how often a call calls it."""

    name: str
    seconds: float
    calls: float
    whole: float


@dataclass
class LoadedIn(Event):
    """How long the usual loading function took, in seconds."""

    seconds: float


@dataclass(frozen=True)
class TracedLine:
    """A line of the model in the graph: how often the trace came by, and its part of all nodes."""

    file: str
    line: int
    code: str
    times: int
    share: float


@dataclass
class LinesTraced(Event):
    """The lines of the model with most nodes, known before the build begins."""

    lines: list[TracedLine]


@dataclass
class BuildTimed(Event):
    """What a build took, in seconds; `testing` vector instructions and `tuning` are no part of `parts`."""

    seconds: float
    testing: float
    tuning: float
    parts: dict[str, float]


# A package read as PyTorch


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an operator; `default` is text of Python, None without one."""

    name: str
    type: str
    is_out: bool = False
    keyword: bool = False
    default: Optional[str] = None


@dataclass
class Schema(Event):
    """The operator behind a shim, as the program calls it, and its arguments."""

    shim: str
    operator: str
    arguments: list[SchemaArgument] = field(default_factory=list)


@dataclass
class ProgramRan(Event):
    """The program was run; `error` is what it raised."""

    error: str = ""
    outputs: int = 0


@dataclass
class Verified:
    """Something of the package beside the program's: equal (bits), rounding, different or not_run."""

    agreement: str = "not_run"
    largest_difference: Optional[float] = None
    why: str = ""


@dataclass
class OutputVerified(Verified, Event):
    output: int = 0
    shape: list[int] = field(default_factory=list)


@dataclass
class LaunchVerified(Verified, Event):
    """One launch, on its own inputs; `tensor` is what differs most."""

    launch: int = 0
    kernel: str = ""
    tensor: str = ""
