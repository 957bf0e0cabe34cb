"""What the hook writes into its journal: one class for each event.

A field that is `Encoded` is JSON already: a model is called with the same layouts again and again, from the
same lines. The server reads a phase, from its begin and its end, as a record of `logs.captured`, which has
the fields under the same names. There, too, is what they mean.

Here, too, are the facts that the worker's events share with the journal: of tensors, stacks and exceptions.
The hook imports this file into every program, and so there is little here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Optional, TypedDict, Union

if TYPE_CHECKING:
    from ..protocol import Configs
    from ..report import Encoded

Number = Union[int, float, str]  # JSON has no NaN and no infinities: they are text


@dataclass
class Frame:
    """One line of a stack."""

    file: str
    line: Optional[int]
    function: str = ""
    code: str = ""


class ErrorFacts(TypedDict):
    """An exception with its frames, outermost first, and what caused it."""

    type: str
    text: str
    frames: list[Frame]
    cause: str


@dataclass
class OddElement:
    """The first element that is not finite or out of bounds, and how many such elements there are."""

    index: list[int]
    value: str
    count: int


@dataclass
class TensorFacts:
    """Facts of a tensor, as far as they are known, with its `path` in a tree.

    Stride and storage offset count elements. `layout` is set for a tensor without strides, whose shape is
    None if it is nested. `nan`, `inf` and `zero` are counts. Min, max and mean are of the finite values, and
    left out for a dtype without order; `skipped` says why no values were read. Of a leaf that is no tensor
    there is the `value` as text, and its class is the `kind`.
    """

    path: Optional[str] = None
    kind: Optional[str] = None
    value: Optional[Number] = None
    dtype: Optional[str] = None
    device: Optional[str] = None
    shape: Optional[list[int]] = None
    layout: Optional[str] = None
    stride: Optional[list[int]] = None
    storage_offset: Optional[int] = None
    contiguous: Optional[bool] = None
    alignment: Optional[int] = None
    bytes: Optional[int] = None
    nan: Optional[int] = None
    inf: Optional[int] = None
    zero: Optional[int] = None
    min: Union[int, float, None] = None
    max: Union[int, float, None] = None
    mean: Optional[float] = None
    checksum: Optional[str] = None
    skipped: Optional[str] = None

    @property
    def not_finite(self) -> bool:
        return bool(self.nan or self.inf)


@dataclass
class Overrun:
    """A tensor that an operator allocated, and the bytes `before` and `after` it that it wrote."""

    shape: list[int]
    dtype: str
    before: int
    after: int


Frames = Union["Encoded", List["Frame"]]
Refilled = Dict[int, List[str]]  # names of constants by load


class JournalEvent:
    """`event` is the name of the class in the journal: `LoadFailed` is `load_failed`."""

    event: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.event = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass
class Failed(JournalEvent):
    """The exception that the program received (`captured.CapturedError`)."""

    type: str
    text: str
    no_files: Optional[int]
    file_bytes: Optional[int]


@dataclass
class Kept(JournalEvent):
    """A package as it was then (`protocol.KeptPackage`)."""

    bytes: int
    sha256: str
    copy: Optional[str]
    largest: Optional[int]
    notice: str
    package: str
    frames: Frames


@dataclass
class Process(JournalEvent):
    rank: str
    parent: int
    argv: List[str]
    executable: str
    python: str
    cwd: str


@dataclass
class Exit(JournalEvent):
    """An orderly end of the process."""


@dataclass
class HookFailed(JournalEvent):
    where: str
    error: str


@dataclass
class Host(Kept):
    argv: List[str]


@dataclass
class Compiling(JournalEvent):
    compile: int
    digests: Dict[str, str]
    how: str
    exported: Optional[str]
    program: bool
    notice: str
    package_path: Optional[str]
    configs: Configs
    configs_exact: bool
    flags: Dict[str, str]
    torch: str
    libraries: List[str]
    processor_s: Optional[int]
    frames: Frames


@dataclass
class Compiled(JournalEvent):
    compile: int
    seconds: float
    package: Optional[str]


@dataclass
class CompileFailed(Failed):
    compile: int
    seconds: float
    stopped_at: Any


@dataclass
class Packaging(JournalEvent):
    package: str
    files: Dict[str, str]
    frames: Frames


@dataclass
class Overwriting(JournalEvent):
    """A package is about to be written to `path`; `kept` is a copy of what is there, `notice` why not."""

    path: str
    kept: Optional[str] = None
    notice: str = ""


@dataclass
class Attempt:
    """One change that was tried on an export or a compile that failed, and what came of it.

    `outcome`: passes, differs (from eager mode) or fails. `again` is the error that came back without it;
    `sizes` counts the sizes of inputs at which eager mode gave the same.
    """

    name: str
    action: str
    note: str = ""
    file: str = ""
    line: int = 0
    before: str = ""
    after: str = ""
    outcome: str = "fails"
    error: str = ""
    again: str = ""
    sizes: int = 0


@dataclass
class Mended(JournalEvent):
    """What was tried on the export or compile with which the program ended.

    `frames` are lines of the model that a draft of the export names, where the error names none.
    """

    stage: str
    attempts: List[Attempt]
    frames: Frames


@dataclass
class VariableSet(JournalEvent):
    variable: str
    before: Optional[str]
    after: Optional[str]
    frames: Frames


@dataclass
class Loading(Kept):
    load: int
    loader: str
    options: Configs
    libraries: List[str]
    processor_s: Optional[int]


@dataclass
class Loaded(JournalEvent):
    load: int
    seconds: float
    current_device: Optional[int]


@dataclass
class OutputsInUse:
    """Outputs on one kind of device whose memory is in use: of how many calls, and bytes in all."""

    calls: int
    bytes: int


@dataclass
class InUse:
    """What was in use when a load or call failed: numbers of loads, and outputs by `cpu` or `cuda`."""

    loads: List[int] = field(default_factory=list)
    outputs: Dict[str, OutputsInUse] = field(default_factory=dict)


@dataclass
class LoadFailed(Failed):
    load: int
    retained: InUse


@dataclass
class Updating(JournalEvent):
    update: int
    load: int
    how: str
    arguments: List[Any]
    file: Optional[str]
    notice: str
    compiled: List[str]
    constants: Encoded
    digests: Dict[str, str]
    views: List[str]
    frames: Frames


@dataclass
class Updated(JournalEvent):
    update: int


@dataclass
class UpdateFailed(Failed):
    update: int


@dataclass
class Calling(JournalEvent):
    call: int
    load: int
    thread: int
    thread_name: str
    threads: int
    leaves: Encoded
    sharing: List[List[int]]
    moved: List[str]
    altered: List[str]
    lost: Dict[str, str]
    refilled: Optional[List[str]]
    unmapped: List[int]
    overwritten: List[List[int]]
    streams: bool
    headroom: Optional[int]
    headroom_of: str
    processor_s: Optional[int]
    stack_bytes: Optional[int]
    current_device: Optional[int]
    settings: Dict[str, Any]
    again: List[int]
    plain: Dict[str, str]
    file: Optional[str]
    notice: str
    frames: Frames


@dataclass
class Called(JournalEvent):
    call: int
    seconds: float
    outputs: Encoded
    raced: List[int]
    rewritten: List[int]


@dataclass
class CallFailed(Failed):
    call: int
    seconds: float
    retained: InUse
    refilled: Optional[List[str]]


@dataclass
class InputLetGo(JournalEvent):
    call: int
    input: int
    frames: Frames


@dataclass
class GraphInputGone(InputLetGo):
    pass


@dataclass
class ProgramFailed(Failed):
    refilled: Refilled
    frames: Frames


@dataclass
class AssertionFailed(ProgramFailed):
    file: Optional[str]
    calls: List[int]
