"""What the worker reports: one class for each event, which both sides use, and the facts in them.

Standard library only and Python 3.9, as in `protocol`. An event is one JSON object per line of the report:
`event` (its name), `t` (seconds since the worker began) and the fields of its class that are not None. A
field with a default may be missing, for example in reports of other versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Optional, Union

from .protocol import InputSlice
from .report import Frame, Number, OddElement, Overrun, TensorFacts

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # of Python 3.11

    def dataclass_transform() -> Callable[[Any], Any]:
        return lambda kind: kind


@dataclass_transform()
class Event:
    """`event` is the name in a report, by default made from the class's: `node_raised` of `NodeRaised`.

    Each event is a dataclass. `t` is in seconds since the worker began. Only events read from a report have
    it.
    """

    event: str
    t: float = 0.0
    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls, event: str = "", frozen: bool = False) -> None:
        cls.event = event or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        Event.kinds[cls.event] = cls
        dataclass(frozen=frozen)(cls)


class Phase(Event):
    """The worker began the phase with this name, for the given file, call or similar subject."""

    event: str
    about: str = ""


# Results of operators


@dataclass
class Layout:
    """A layout that a fake function promises. Sizes that depend on data are None. `device` is its type."""

    shape: list[Optional[int]]
    stride: list[Optional[int]]
    dtype: str
    device: str


@dataclass
class Broken:
    """The layout that the fake function promised for a result, and the layout that the operator returned."""

    promised: Layout
    returned: Layout


# The process


class Torch(Event):
    version: str = ""
    cuda: Optional[str] = None


class OperatorsTaken(Event):
    """The `lines` of a script that register operators, empty if there are none. `refused` says why not."""

    file: str = ""
    lines: list[int] = field(default_factory=list)
    refused: str = ""


class Refused(Event):
    """The request itself is wrong. Nothing of the workload ran."""

    what: str
    value: object = None
    allowed: str = ""


class Failed(Event):
    """The exception that ended the operation. `during` is the phase that the last event began."""

    text: str = ""
    during: str = ""
    type: str = ""


class Python(Event):
    version: Optional[str] = None
    triton: Optional[str] = None


class Cuda(Event):
    """Why CUDA is not `available`, and the newest that the `driver` supports: 1000 * major + 10 * minor."""

    available: Optional[bool] = None
    why: str = ""
    driver: Optional[int] = None


class Gpu(Event):
    """A GPU with its `capability` as digits, such as 90, or the error that querying it raised."""

    index: int
    name: str = ""
    capability: str = ""
    error: Optional[str] = None


# Loads


class NotApplied(Event):
    """A constant of an update that the program cannot take, and the reason."""

    name: str = ""
    what: str = ""


# Inputs


class Given(Event):
    """The layouts of the inputs of a call."""

    leaves: list[TensorFacts] = field(default_factory=list)


class Inputs(Event):
    """The leaves of the inputs, with the device of each when it was saved."""

    leaves: list[TensorFacts]


@dataclass
class ChangedInput:
    """Whether a call changed the values of an input, and whether its address is misaligned."""

    input: int
    changed: bool
    misaligned: bool


class ChangedInputs(Event):
    inputs: list[ChangedInput] = field(default_factory=list)


class IndexValues(Event):
    """Values of a part of an input. `first` lists some elements `outside` its range, as (index, value).

    `as_int32`: the values are in range only if the memory of the int64 tensor is read as int32.
    """

    part: InputSlice
    elements: int = 0
    min: Union[int, float, None] = None
    max: Union[int, float, None] = None
    outside: int = 0
    first: list[tuple[list[int], Union[int, float]]] = field(default_factory=list)
    as_int32: bool = False

    @property
    def index(self) -> list[int]:
        return self.first[0][0]

    @property
    def value(self) -> Union[int, float]:
        return self.first[0][1]


# Calls and their outputs

FIRST_ELEMENTS = 8  # elements that a comparison lists
MOST_ROWS = 32  # rows of dimension 0 that a comparison lists


class Called(Event):
    """A call returned. `seconds` include the work of the device."""

    call: int = 0
    seconds: float = 0.0
    outputs: list[TensorFacts] = field(default_factory=list)


@dataclass(frozen=True)
class ElementChange:
    """One element that differs: its logical index, and both values as text."""

    index: tuple[int, ...]
    before: str
    after: str


class Repeated(Event):
    """Whether the run (`second` or `filled`) gave the same outputs as the first."""

    run: str
    equal: bool


# Interventions


@dataclass(frozen=True)
class OutputChange:
    """One output compared with that of another call.

    `layout` says how shape or dtype differ; the other fields are then unknown. `changed` counts elements that
    differ by more than rounding, and `innocent` those of them that were not at fault before. `rows` are the
    indices of dimension 0 with a changed element, at most `MOST_ROWS`; `innocent_rows` are the rows with an
    `innocent` element and none that was at fault before.
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
    """An output compared with the expected one.

    `by` is the largest difference between finite elements, and `reach` the largest expected value.
    """

    same_shape: bool = True
    by: Optional[float] = None
    reach: Optional[float] = None


class Compared(Event):
    """The outputs of the package compared with others of the same call. `counts`: how many each had."""

    equal: bool
    counts: list[int] = field(default_factory=list)
    outputs: list[ExpectedOutput] = field(default_factory=list)


class ComparedExpected(Compared):
    """The outputs compared with those that the user gave (`given`), or that the program expected."""

    given: bool = False
    layout: str = ""


@dataclass(frozen=True)
class Comparison:
    """All outputs of one call compared with those of another, `against`.

    `cured`, `left` and `new` count elements at fault only there, in both, and only here. An element is at
    fault if it is not finite or, where there is an expectation, if it differs from it. If the outputs are the
    first or last part of the others, `part` counts the faulty elements of that part.
    """

    against: str
    outputs: tuple[OutputChange, ...]
    cured: int = 0
    left: int = 0
    new: int = 0
    part: Optional[int] = None

    @property
    def layout(self) -> str:
        """Describe how the first output with a different layout differs. Empty if all layouts agree."""
        return next((output.layout for output in self.outputs if output.layout), "")

    @property
    def equal(self) -> bool:
        return not any(output.layout or output.changed for output in self.outputs)

    @property
    def innocent(self) -> int:
        """Return the number of elements that differ although they were not at fault."""
        return sum(output.innocent for output in self.outputs)


@dataclass(frozen=True)
class InputChange:
    """What the intervention did to one input: how many elements it `changed`, or its new `layout`."""

    input: int
    elements: int
    changed: int
    layout: str = ""
    first: tuple[ElementChange, ...] = ()


@dataclass(frozen=True)
class NeededElement(ElementChange):
    """An element of an input that must change for the call to return."""

    input: int


@dataclass(frozen=True)
class Smallest:
    """The fewest changes of elements with which the call returns, and the number of `calls` to find them."""

    needed: int
    changed: int
    calls: int
    first: tuple[NeededElement, ...] = ()


class CheckFacts(Event, event="checked_outputs", frozen=True):
    """How the user's check command ended: its exit status, and the end of its output."""

    status: int
    text: str = ""


class CallFacts(Event, event="intervened", frozen=True):
    """One call of a plan. `label` is its place in the plan, `key` the intervention, if any.

    `ended` is `ok`, `raised` or `refused`; a call that ended the process leaves no facts. `poisoned` marks a
    CUDA context that is of no use after it. `mutated` are inputs that the call changed in place. `constants`
    are the fewest that cure the call when they are given, or omitted from an update; `bad_places` has the
    index of the first non-finite element of each, empty if there is none.
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


class OfLaunch(Event):
    """A tensor of a launch: the launch's number, its place in the call, its kernel and the tensor's name."""

    launch: int = -1
    sequence: int = 0
    kernel: str = ""
    name: str = ""


class Argument(OfLaunch, TensorFacts):
    """An argument before or after a launch (`phase`): a tensor, or a number with its `value`.

    `saved` is the tensor's file. `outside` is the first element beyond the requested bound.
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


class LeftOut(Event):
    """The number of arguments without events, because there would be too many."""

    arguments: int


class NotSaved(Event):
    """The number of tensors that were not saved: too many bytes, or an unsupported dtype or layout."""

    tensors: int
    cap: int


# Eager mode


class Interpreted(Event):
    nodes: int = 0
    outputs: list[TensorFacts] = field(default_factory=list)


class ComparedForm(Event):
    """Whether the program gives the expected values: unchanged, in another form, and unchanged again.

    `form` is `int64` (operators whose result does not fit in 64 bits), `evaluation` (those in training mode),
    `contiguous` (the user's own, with contiguous arguments) or `weights` (the whole program, with the weights
    that changed after its export).
    """

    form: str
    equal: tuple[bool, bool, bool]


class OfNode(Event):
    """A node of the program: its operator, and the model's lines, innermost first."""

    node: str
    op: str
    stack: list[Frame]


class NodeRaised(OfNode):
    """An operator raised. `behind` are the non-finite nodes from which its integer inputs are computed,
    `overflowed` those whose integers do not fit their dtype.
    """

    text: str
    type: str = ""
    behind: list[str] = field(default_factory=list)
    overflowed: list[str] = field(default_factory=list)


class GuardFailed(OfNode):
    """A guard of the program rejects the inputs."""

    text: str
    type: str = ""


class NodeNonFinite(OfNode):
    """A result with NaN (`nan`), infinities, or only -inf (`masked`). `bad_inputs`: an input had one."""

    bad_inputs: list[str]
    nan: bool
    masked: bool
    dtype: str = ""


class NodeOverflow(OfNode):
    """Integers that do not fit their dtype: `count` elements, and the first with its `exact` value.

    The dtype is a narrower integer type, or a float type to which they are converted. `modular`: the readers
    of the result may intend the overflow, as in a hash.
    """

    modular: bool
    dtype: str
    count: int
    index: list[int]
    value: int
    exact: int


class NodeStrided(OfNode):
    """A user's operator that gives other values for contiguous copies of its arguments."""


class NodeTraining(OfNode):
    """An operator in training mode: a dropout, or a batch norm that uses the statistics of the batch."""


class FakeMismatch(OfNode):
    """The result of a node differs from what its fake function promised."""

    promised: Optional[Layout] = None
    returned: Optional[Layout] = None


class Operator(Event):
    """A call in which an operator breaks its schema (`mutated`, `aliases`: arguments) or fake function.

    `kept`: it returned the memory of an earlier result. `stack` has its lines, if it is in Python.
    """

    op: str
    call: int
    layouts: list[Broken] = field(default_factory=list)
    mutated: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    overrun: list[Overrun] = field(default_factory=list)
    kept: bool = False
    stack: list[Frame] = field(default_factory=list)


class EagerRan(Event):
    """Whether eager mode gives the same outputs twice. `left_out` counts values that are too large."""

    same: bool
    left_out: int


# Launch by launch against eager mode


@dataclass
class Closeness:
    """How close a tensor is to its correct value, that of `node` in the program (`compare.measure`).

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
        """Describe the first element beyond the tolerance, and count them. Empty if there are none."""
        if not self.values:
            return ""
        eager, package = self.values
        return "{} instead of {} at {} ({} of {} elements)".format(
            package, eager, self.first, self.beyond, self.elements
        )


class Rounding(Event):
    """Whether rounding explains each output (`within`).

    `reference` says whether rounding also explains the reference of each output that the user's check may
    have compared. None if there are none. `narrow`: some outputs have half precision.
    """

    outputs: list[Closeness]
    reference: Optional[bool] = None
    narrow: bool = False


class OutputCompared(Event):
    """An output of the package compared with eager mode's: equal, rounding, differs or layout.

    `layouts` are the two shapes or dtypes if they differ.
    """

    index: int
    agreement: str
    compared: Closeness = field(default_factory=Closeness)
    layouts: list[str] = field(default_factory=list)


class CountedOutputs(Event):
    package: int
    eager: int


class Outputs(Event):
    run: str
    checksums: list[str]


class Rerun(OfLaunch):
    """A tensor that a launch wrote in the call `run`."""

    run: str = ""
    checksum: str = ""


class ConstantDiffers(Event):
    """`different` of the `elements` of a constant differ between the package and the program.

    `launch` is the first that reads the constant.
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


class LaunchJudged(OfLaunch):
    """A tensor that a launch wrote from correct inputs, and that others read.

    `status` is right, wrong or unjudged (`why`). The tensor is number `place` of `node`, of `shape` and
    `dtype`, at `sizes`, `strides` and `offset` of its memory; with `product`, without its bias. `compared`
    refers to that value. `tf32`: TF32 products explain the difference.
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


class JudgedOutputs(Event):
    """Whether the call returns correct outputs if correct values replace all wrong ones."""

    right: bool


class Timed(Event):
    """The median time of a call. `steady`: every call gave the outputs of the first one."""

    seconds: float
    steady: bool = True


# Compiles, and the search for what makes them fail


class Compiled(Event):
    package: str
    seconds: float = 0.0
    bytes: int = 0


class Switched(Event):
    """The requested options that this torch has."""

    names: list[str]


class Judged(Event):
    """Whether an output is not finite, contains NaN, or differs from eager mode's."""

    not_finite: bool
    nan: bool
    departs: bool


class Node(Event):
    node: str
    op: str = ""


class Value(Event):
    node: str
    nan: bool = False
    inf: bool = False


class Units(Event):
    """The nodes that compute tensors, in order, each with the nodes that read it.

    `dynamic`: sizes of the program are symbolic.
    """

    readers: dict[str, list[str]]
    dynamic: bool = False


class Cut(Event):
    """The `script` of plan `number`, with its `nodes` and the bytes of each of its `tensors`.

    `sizes` are tensor sizes that can be reduced. `users`: the script calls operators that are not torch's.
    """

    number: int
    script: str
    operators: int
    nodes: list[OfNode]
    tensors: dict[str, int]
    sizes: list[int]
    users: bool = False


class Uncuttable(Event):
    number: int
    reason: str


class Decision(Event):
    """A compiler decision (`reduction.attempt`): its operator, or what a pass rewrote."""

    kind: str
    key: str
    op: str = ""
    rewrites: list[str] = field(default_factory=list)
    change: list[str] = field(default_factory=list)


class ScriptEnded(Event):
    """The exit status of a script that ran in the worker."""

    status: int


# Times


class PairsTimed(Event):
    """Alternating unchanged and changed calls: median seconds, and quartiles of the ratios of the pairs.

    `same`: the changed call gave the same outputs. `others` is the share of all processors that other
    processes used meanwhile. `by_cpu`: all seconds are processor time, because the clock is unreliable.
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
    by_cpu: bool = False


class LaunchTime(Event):
    """The time of one kernel or operator in a call of `whole` seconds, and how often a call runs it."""

    name: str
    seconds: float
    calls: float
    whole: float


class SizeCompared(Event):
    """Whether the outputs for inputs of a shape equal eager mode's, `before` or `after` a change."""

    when: str
    shape: list[list[int]]
    equal: bool


class ProgramChanged(Event):
    """The nodes of a program that a change replaced, and their lines. Empty if it does not apply."""

    nodes: list[str]
    lines: list[TracedLine]


class LoadedIn(Event):
    """How long the usual loading function took: by the clock, and in processor time with its children."""

    seconds: float
    cpu: float


@dataclass(frozen=True)
class TracedLine:
    """A line of the model in the graph: how often it was traced, and its share of all nodes."""

    file: str
    line: int
    code: str
    times: int
    share: float

    @property
    def unrolled(self) -> bool:
        """Whether it is the body of a loop that makes much of the graph."""
        return self.times >= 16 and self.share >= 0.4


class LinesTraced(Event):
    """The lines of the model with the most nodes. They are known before the build begins."""

    lines: list[TracedLine]


class BuildTimed(Event):
    """The seconds that a build took. `parts` excludes `testing` of vector instructions and `tuning`.

    `cpu` is its processor time, with that of the compilers, which other processes do not lengthen.
    """

    seconds: float
    cpu: float
    testing: float
    tuning: float
    parts: dict[str, float]


# A package read as PyTorch


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an operator. `default` is Python text, None if there is none."""

    name: str
    type: str
    is_out: bool = False
    keyword: bool = False
    default: Optional[str] = None


class Schema(Event):
    """The operator behind a shim, under its name in a program, and its arguments."""

    shim: str
    operator: str
    arguments: list[SchemaArgument] = field(default_factory=list)


class ProgramRan(Event):
    """The program was run. `error` is the exception that it raised."""

    error: str = ""
    outputs: int = 0


@dataclass
class Verified:
    """A tensor of the package compared with the program's: equal (bits), rounding, different or not_run."""

    agreement: str = "not_run"
    largest_difference: Optional[float] = None
    why: str = ""


class OutputVerified(Verified, Event):
    output: int = 0
    shape: list[int] = field(default_factory=list)


class LaunchVerified(Verified, Event):
    """One launch compared on its own inputs. `tensor` is the one that differs most."""

    launch: int = 0
    kernel: str = ""
    tensor: str = ""


class CaptureJudged(LaunchVerified):
    """A launch on the arguments that a file of torch's kernel capture holds.

    `fault` is what its source, run on them, does: `out_of_bounds`, or `non_finite` if finite inputs gave a
    value that is not finite. `values` are the tensors before it and those that it makes, in words.
    """

    file: str = ""
    fault: str = ""
    values: list[str] = field(default_factory=list)
