"""What the worker reports: one class for each event, which worker and server share, and the facts in them.

Standard library only and Python 3.9, as in `protocol.py`. Each line of the report is an event as a JSON
object: `event` (its name), `t` (seconds since the worker began) and the fields of its class that are not
None. A field with a default may be missing, for example in reports of other versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Optional, Union

from .protocol import InputSlice
from .report import Frame, Number, OddElement, Overrun, TensorFacts

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # typing has it from Python 3.11 on

    def dataclass_transform() -> Callable[[Any], Any]:
        return lambda kind: kind


@dataclass_transform()
class Event:
    """`event` is the name in a report, by default made from the class name: `node_raised` for `NodeRaised`.

    Each subclass becomes a dataclass. `t` is set only when an event is read from a report.
    """

    event: str
    t: float = 0.0
    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls, event: str = "", frozen: bool = False) -> None:
        cls.event = event or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        Event.kinds[cls.event] = cls
        dataclass(frozen=frozen)(cls)


class Phase(Event):
    """The worker began the phase with the name `event`. `about` is its file, call or other subject."""

    event: str
    about: str = ""


# Results of operators


@dataclass
class Layout:
    """The layout of a tensor. Sizes that depend on data are None. `device` is a device type."""

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
    """The `lines` of a script that register operators. `refused`: why they could not be run."""

    file: str = ""
    lines: list[int] = field(default_factory=list)
    refused: str = ""


class Refused(Event):
    """The request itself is wrong. Nothing of the workload ran."""

    what: str
    value: object = None
    allowed: str = ""


class Failed(Event):
    """The exception that ended the operation. `during` is the name of the last event before it."""

    text: str = ""
    during: str = ""
    type: str = ""


class Python(Event):
    version: Optional[str] = None
    triton: Optional[str] = None


class Cuda(Event):
    """Whether CUDA is `available`, or `why` not. `driver`: the newest CUDA it supports, such as 12040."""

    available: Optional[bool] = None
    why: str = ""
    driver: Optional[int] = None


class Gpu(Event):
    """A GPU: its compute `capability` in digits, such as 90, or the error that the query raised."""

    index: int
    name: str = ""
    capability: str = ""
    error: Optional[str] = None


# Loads


class NotApplied(Event):
    """A constant of an update that does not fit the program, and the reason (`what`)."""

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
    """Values of a part of an input. `outside` counts those out of range; `first` has some (index, value).

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
    """A call returned. `seconds` include the wait for the device."""

    call: int = 0
    seconds: float = 0.0
    outputs: list[TensorFacts] = field(default_factory=list)


@dataclass(frozen=True)
class ElementChange:
    """An element that differs: its index, and both values as text."""

    index: tuple[int, ...]
    before: str
    after: str


class Repeated(Event):
    """Whether the call named `run` (`second` or `filled`) gave the outputs of the first call."""

    run: str
    equal: bool


# Interventions


@dataclass(frozen=True)
class OutputChange:
    """An output, compared with the same output of another call.

    `layout` says how shape or dtype differ; the other fields are then unknown. `changed` counts elements that
    differ by more than the tolerance, `innocent` the changed ones that were not at fault before. `rows` are
    indices in dimension 0: rows with a changed element, at most `MOST_ROWS`. `innocent_rows` have an
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

    `by` is the largest difference of finite elements, `reach` the largest magnitude of expected ones.
    """

    same_shape: bool = True
    by: Optional[float] = None
    reach: Optional[float] = None


class Compared(Event):
    """The outputs of the package compared with expected ones. `counts`: outputs expected, returned."""

    equal: bool
    counts: list[int] = field(default_factory=list)
    outputs: list[ExpectedOutput] = field(default_factory=list)


class ComparedExpected(Compared):
    """The outputs compared with those that the user (`given`) or the program expects."""

    given: bool = False
    layout: str = ""


@dataclass(frozen=True)
class Comparison:
    """All outputs of one call compared with those of the call or expectation `against`.

    An element is at fault if it is not finite or differs from an expected value. `cured` counts elements at
    fault only in `against`, `new` only in this call, `left` in both. If this call returns the first or last
    part of the outputs of `against`, `part` counts the faults of `against` in that part.
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
        """The number of elements that differ although they were not at fault."""
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
    """An element of an input that must change to cure the call."""

    input: int


@dataclass(frozen=True)
class Smallest:
    """How many of the `changed` elements the cure `needed`, and how many `calls` the search made."""

    needed: int
    changed: int
    calls: int
    first: tuple[NeededElement, ...] = ()


class CheckFacts(Event, event="checked_outputs", frozen=True):
    """How the user's check command ended: its exit status, and the end of its output."""

    status: int
    text: str = ""


class CallFacts(Event, event="intervened", frozen=True):
    """One call of a plan. `label` is its name in the plan, `key` the intervention, "" if there is none.

    `ended` is `ok`, `raised` or `refused`; a call that ended the process leaves no facts. `poisoned`: the
    call left the CUDA context unusable. `mutated` are inputs that the call changed in place. `constants` are
    the fewest that cure the call if an update gives or omits them, or those exchanged. `bad_places` has the
    index of the first non-finite element of each, empty if there is none. The package lacks `unknown` names.
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
    unknown: tuple[str, ...] = ()
    bad_places: tuple[tuple[int, ...], ...] = ()
    check: Optional[CheckFacts] = None


# Launches


class OfLaunch(Event):
    """A tensor of a launch. `sequence` counts all launches of the call; `name` is the tensor's variable."""

    launch: int = -1
    sequence: int = 0
    kernel: str = ""
    name: str = ""


class Argument(OfLaunch, TensorFacts):
    """An argument `before` or `after` (`phase`) a launch: a tensor, or a number with its `value`.

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
    """How many `arguments` were not reported, because there would be too many events."""

    arguments: int


class NotSaved(Event):
    """How many `tensors` were not saved: beyond the `cap` of bytes, or in an unsupported dtype or layout."""

    tensors: int
    cap: int


# Eager mode


class Interpreted(Event):
    nodes: int = 0
    outputs: list[TensorFacts] = field(default_factory=list)


class ComparedForm(Event):
    """Whether the program gives the expected values: unchanged, in another form, and unchanged again.

    `form` is `int64` (results that overflowed are computed in 64 bits), `evaluation` (no operator is in
    training mode), `contiguous` (the user's operators get contiguous arguments) or `weights` (the program
    gets the weights that changed after its export).
    """

    form: str
    equal: tuple[bool, bool, bool]


class OfNode(Event):
    """A node of the program. `stack` has the model's lines that created it, innermost first."""

    node: str
    op: str
    stack: list[Frame]


class NodeRaised(OfNode):
    """An operator raised. `overflowed` are nodes behind its integer inputs whose integers do not fit their
    dtype.
    """

    text: str
    type: str = ""
    overflowed: list[str] = field(default_factory=list)


class GuardFailed(OfNode):
    """A guard of the program rejects the inputs."""

    text: str
    type: str = ""


class NodeNonFinite(OfNode):
    """A result with NaN (`nan`), infinities, or only -inf (`masked`). `bad_inputs`: inputs that had some."""

    bad_inputs: list[str]
    nan: bool
    masked: bool
    dtype: str = ""


class NodeOverflow(OfNode):
    """`count` integers do not fit their dtype, which may be a float. The first is `value` and not `exact`.

    `modular`: the program may intend the overflow, as in a hash. `undefined`: floats were converted, and C++
    leaves open what a float gives that does not fit.
    """

    modular: bool
    dtype: str
    count: int
    index: list[int]
    value: int
    exact: int
    undefined: bool = False


class NodeStrided(OfNode):
    """A user's operator that gives other values for contiguous copies of its arguments."""


class NodeFromEnd(OfNode):
    """An indexing with a negative index, which counts from the end: `value`, at `index` of node `of`."""

    of: str
    index: list[int]
    value: int


class NodeRepeated(OfNode):
    """A write by the index `of` that loses a value: its elements at `index` and `other` name one `place`."""

    of: str
    index: list[int]
    other: list[int]
    place: list[int]


class NodeTraining(OfNode):
    """An operator in training mode: a dropout, or a batch norm that uses the statistics of the batch."""


class FakeMismatch(OfNode):
    """The layout of a result differs from the one that the fake function promised."""

    promised: Optional[Layout] = None
    returned: Optional[Layout] = None


class Operator(Event):
    """A call in which an operator breaks its schema (`mutated`, `aliases`: arguments) or fake function.

    `kept`: it returned the memory of an earlier result; `stack` then has its `return` lines, if in Python.
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
    """Whether eager mode gives the same outputs twice. `left_out` counts values too large to keep."""

    same: bool
    left_out: int


# Launch by launch against eager mode


@dataclass
class Closeness:
    """How close a tensor is to the value of `node` in the program (see `compare.measure`).

    `error`, `eager_error` (differences from float64), `allowed` (tolerance) and `excess` (error / tolerance)
    are the largest of all elements. `beyond` counts elements beyond their tolerance; `first` is the index of
    the first, with `values` of eager and of the package.
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
        """Describe the first element beyond the tolerance, and count such elements. Empty if none is."""
        if not self.values:
            return ""
        eager, package = self.values
        return "{} instead of {} at {} ({} of {} elements)".format(
            package, eager, self.first, self.beyond, self.elements
        )


class Rounding(Event):
    """Whether rounding explains each output (`within`).

    `reference`: whether it also explains the values with which the user's check may have compared them. None
    if there are none. `narrow`: some outputs have half precision.
    """

    outputs: list[Closeness]
    reference: Optional[bool] = None
    narrow: bool = False


class OutputCompared(Event):
    """An output of the package compared with eager mode: `equal`, `rounding`, `differs` or `layout`.

    `layouts` are dtype and shape of both, if they differ.
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

    `launch` is the first launch that reads the constant.
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
    """A tensor that a launch wrote from correct inputs, and that other launches read.

    `status` is right, wrong or unjudged (`why`). It should hold result `place` of `node` (with `product`:
    without its bias), which has this `shape` and `dtype`. `sizes`, `strides` and `offset` say how it lies in
    memory. `tf32`: TF32 products explain the difference.
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
    """Whether the outputs are `right` if each wrong value in between is replaced with the correct one."""

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
    """The `names` of the requested options that this torch has."""

    names: list[str]


class Judged(Event):
    """Whether an output is not finite, contains NaN, or differs from eager mode."""

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
    """`readers`: for each node that computes tensors, in order, the nodes that read it.

    `dynamic`: some sizes of the program are symbolic.
    """

    readers: dict[str, list[str]]
    dynamic: bool = False


class Cut(Event):
    """The `script` of plan `number`, with its `nodes` and the bytes of each of its `tensors`."""

    number: int
    script: str
    operators: int
    nodes: list[OfNode]
    tensors: dict[str, int]


class Uncuttable(Event):
    number: int
    reason: str


class Decision(Event):
    """A compiler decision (see `reduction/attempt.py`): its operator, or what a pass rewrote."""

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
    """Median seconds of alternating `plain` and `changed` calls.

    `low`, `ratio` and `high` are the quartiles of plain / changed. `same`: the outputs are the same. `others`
    is the share of all processors that other processes used. `by_cpu`: the seconds are processor time,
    because the clock is unreliable on a busy machine.
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
    """The `seconds` that a kernel or operator takes in a call of `whole` seconds, and its `calls` in it."""

    name: str
    seconds: float
    calls: float
    whole: float


class SizeCompared(Event):
    """Whether the outputs for inputs of this shape equal eager mode, before or after (`when`) the change."""

    when: str
    shape: list[list[int]]
    equal: bool


class ProgramChanged(Event):
    """The nodes of a program that a change replaced, and their lines. Empty if it found nothing to change."""

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
        """Whether the line is in an unrolled loop that makes up much of the graph."""
        return self.times >= 16 and self.share >= 0.4


class LinesTraced(Event):
    """The lines of the model with the most nodes. They are known before the build begins."""

    lines: list[TracedLine]


class BuildTimed(Event):
    """The seconds that a build took. `parts` excludes `testing` of vector instructions and `tuning`.

    `cpu` is processor time, including the compilers: other processes do not lengthen it.
    """

    seconds: float
    cpu: float
    testing: float
    tuning: float
    parts: dict[str, float]


# A package read as PyTorch


@dataclass(frozen=True)
class SchemaArgument:
    """One argument of an operator. `default` is Python text, or None if there is no default."""

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
    """A tensor of the package compared with the program: equal, rounding, different or not_run."""

    agreement: str = "not_run"
    largest_difference: Optional[float] = None
    why: str = ""


class OutputVerified(Verified, Event):
    output: int = 0
    shape: list[int] = field(default_factory=list)


class LaunchVerified(Verified, Event):
    """One launch compared on its own inputs. `tensor` is the output that differs most."""

    launch: int = 0
    kernel: str = ""
    tensor: str = ""


class CaptureJudged(LaunchVerified):
    """A launch, run from its source on the arguments in a file of torch's kernel capture.

    `fault` is `out_of_bounds`, or `non_finite` if finite inputs gave a value that is not finite. `values`
    describes the tensors that it reads and those that it makes.
    """

    file: str = ""
    fault: str = ""
    values: list[str] = field(default_factory=list)
