"""What the server asks of the worker; `events` has what the worker answers.

Standard library only and Python 3.9, so that both sides import it. A request is one JSON object with
`operation` and the keys of its class here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union

from .capture.events import Number

if TYPE_CHECKING:
    from .events import LaunchJudged

Configs = dict[str, object]  # options of torch._inductor.config


class Request(TypedDict, total=False):
    """What every request may have; `extra_imports` are modules, .py files and .so libraries."""

    operation: str
    extra_imports: list[str]


class TensorSpec(TypedDict, total=False):
    """A tensor to make: uniform values in [low, high], by default 0 to 1; `stride` in elements."""

    shape: list[int]
    dtype: Optional[str]
    device: Optional[str]
    low: Optional[float]
    high: Optional[float]
    stride: Optional[list[int]]


class Change(TypedDict, total=False):
    """A change of the inputs, named `change` (a key of `changes.CHANGES`), with what that one needs."""

    change: str
    input: int
    dtype: str
    device: str
    dim: int
    size: int
    value: Number
    low: Number
    high: Number
    flat: list[int]
    index: list[int]
    rows: list[int]
    where: dict[str, Union[Number, bool]]
    offset: int
    stride: Any  # of `restride` a list, of chosen elements a number
    end: int
    order: list[int]


class Step(TypedDict, total=False):
    """A step of a captured program: `do` is `constants` (an update) or `call`.

    A call may have `headroom` (bytes that it may map) and `stack` (bytes of its thread's stack). An update
    with `only_known` leaves out constants that the package does not have, one with `names` all others.
    """

    do: str
    file: str
    how: str  # the method of the loader
    arguments: list[Any]
    only_known: bool
    names: list[str]
    threads: int
    settings: dict[str, str | bool]  # of `process.SETTINGS`
    headroom: int
    stack: int


class LoadRequest(Request, total=False):
    """How to load a package."""

    package: str
    model_name: str
    run_single_threaded: bool
    num_runners: int
    device_index: int


class RunRequest(LoadRequest, total=False):
    """`inputs`: a file of torch.save, or specs; without them the package is only loaded.

    `calls`: how often to call. `changes` alter the inputs. `operators` (`watch` or `repair`) acts on custom
    operators. `tell_changes` ({index: alignment}) asks for event `changed_inputs`. `expect` (a file), `rtol`
    and `atol` (None: the dtype's), and `check` (words of a command) say what the outputs are to be.
    """

    inputs: Union[str, list[TensorSpec], None]
    calls: int
    changes: list[Change]
    operators: str
    tell_changes: dict[str, int]
    expect: Optional[str]
    rtol: Optional[float]
    atol: Optional[float]
    check: list[str]


class ReplayRequest(RunRequest, total=False):
    """A captured load of `package` or of the bare .so `library` (on `device`), and its `steps`.

    `changes`, `tell_changes` and `stack_bytes` (in place of the step's `stack`) act on the last call; `twice`
    repeats it on the same tensors. `current_device`: the CUDA device to make current. `cast` ({constant:
    dtype}) and `copied` act on constants before an update.
    Files of the program that the outputs are compared with: `actual` (both sides of a failed comparison),
    `frame_tensors` (local ones when its own check failed), `returned` (the outputs that the call had there).
    With `expect` or `check` nothing is compared with `actual`.
    """

    library: str
    device: str
    steps: list[Step]
    current_device: Optional[int]
    cast: dict[str, str]
    copied: list[str]
    twice: bool
    stack_bytes: int
    actual: str
    frame_tensors: str
    returned: str


class PlannedCall(TypedDict, total=False):
    """One call of a plan. Without a `key` it is the original one.

    `changes` alter its inputs. `options` replace parts of the request, and the package is then loaded again
    for this call. `save` names a file for its outputs. `reference` marks a call that changes only what is at
    fault. `smallest` asks for the fewest changed elements that cure the call.
    """

    label: str
    key: str
    changes: list[Change]
    options: ReplayRequest
    save: Optional[str]
    reference: bool
    smallest: bool


class EagerPlan(TypedDict, total=False):
    """How launches of an instrumented package can be done in eager mode.

    `stored`: what each launch stores, by tensor; `sources` are those of `LaunchFlow`. The rest is that of
    `CompareLaunchesRequest`.
    """

    package: str
    exported: Optional[str]
    made_by: Optional[MadeBy]
    nodes: dict[str, list[str]]
    stored: dict[str, dict[str, LaunchJudged]]
    sources: dict[str, dict[str, tuple[int, str]]]
    constants: dict[str, str]
    steps: list[Step]


class Readable(TypedDict):
    """What a launch can get at, by its names in the wrapper.

    `reads`: the dtype of each buffer. `writes`: the sizes of each tensor that it stores, in C++; those
    `wanted` are read by others. `inputs` by number among the program's tensors; `constants` by name there,
    each as variable, dtype and shape.
    """

    reads: dict[str, str]
    writes: dict[str, list[str]]
    wanted: list[str]
    inputs: dict[str, str]
    constants: dict[str, tuple[str, str, list[int]]]


class RepairRequest(TypedDict):
    """`launches` of a `plan` (a file with an `EagerPlan`) to express as calls of operators.

    `sizes` are C++ variables by "INPUT.DIMENSION".
    """

    plan: str
    launches: list[int]
    readable: dict[str, Readable]
    sizes: dict[str, str]


class EagerLaunches(TypedDict):
    """Launches to do in eager mode; `plan` is a file with an `EagerPlan`."""

    plan: str
    launches: list[int]


class InterveneRequest(ReplayRequest, total=False):
    """A call of `run` or `replay` (the last of `steps`), and the `plan` of calls to make of it.

    `against`: a file that `save` wrote for the original call in another process. `updates`: of constants,
    after the load. `call_limit_s`: after so long a call ends the process. `infinities`: whether these are
    faults in outputs. `fresh`: load the package again for every call. `eager`: launches done in eager mode.
    """

    plan: list[PlannedCall]
    against: str
    updates: list[Step]
    call_limit_s: float
    infinities: bool
    fresh: bool
    eager: EagerLaunches


class Bound(TypedDict):
    """The range [low, high) of an index tensor of a launch, named by variable or parameter."""

    name: str
    launch: int
    low: int
    high: int


class ObserveRequest(RunRequest, total=False):
    """What to look at; what is left out is not restricted.

    `launches` are numbers, `kernels` and `names` exact names (`names` of variables or parameters), `phases`
    of before and after. `skip_before` lists arguments by launch that hold nothing yet before it; `unset_too`
    asks for those, and for what is only written, all the same: to make the launch again. `save` is a
    directory for the tensors, `save_bytes` the cap of all of them. `stop_at_first_bad` ends the run at the
    first bad value but minus infinity. `handoff` is a file that will name the package (`observe.received`);
    `warm` names a device to start meanwhile; without `probes` the package of the handoff is only run.
    """

    launches: list[int]
    kernels: list[str]
    names: list[str]
    phases: list[str]
    skip_before: dict[str, list[str]]
    unset_too: bool
    bounds: list[Bound]
    save: Optional[str]
    save_bytes: int
    stop_at_first_bad: bool
    handoff: str
    warm: str
    probes: bool


class MadeBy(TypedDict, total=False):
    """The script that gives an exported program to its compile number `compile`, counted from 0."""

    script: str
    args: list[str]
    compile: int


class ExportedRequest(LoadRequest, total=False):
    """An exported program, from its file or the script that makes it, with inputs and expected outputs.

    `frame_tensors` is a file of what the program had when its check of the outputs failed.
    """

    exported: Optional[str]
    expect: Optional[str]
    frame_tensors: Optional[str]
    made_by: Optional[MadeBy]
    inputs: Union[str, list[TensorSpec], None]
    operators: str


class PriceRequest(ExportedRequest):
    """The call of each of `packages`, with inputs as for the program."""

    packages: list[str]


class CompileRequest(ExportedRequest, total=False):
    """`inductor_configs` are names of torch._inductor.config."""

    package_path: str
    inductor_configs: Configs


class Failing(TypedDict, total=False):
    """What a reproduction has to show; see `reduction.trials.FailureClass`."""

    kind: str
    signal: int
    phase: str
    patterns: list[str]
    essence: str
    nan: bool


class Workaround(TypedDict, total=False):
    """What to do before a compile: options, and operators to fall back to eager or not to decompose."""

    configs: Configs
    fallbacks: list[str]
    decompositions: list[str]


class ReduceRequest(CompileRequest, total=False):
    """`values`: a directory for the values of the program's nodes; `bad`: names of nodes that are wrong.

    `guess` is the node to try first. `title`, `environment` and `repro_imports` go into the script that comes
    out. `budget_s` is for the whole search, `each_s` for one candidate, of which `parallel` run at once
    in `directory`. An attempt is made with `workaround` and `switches`, further options of which this torch
    may lack some, and its call repeated `timed_calls` times.
    """

    values: str
    bad: list[str]
    guess: Optional[str]
    title: str
    environment: dict[str, str]
    repro_imports: list[str]
    budget_s: float
    each_s: float
    parallel: int
    failure: Failing
    directory: str
    workaround: Workaround
    switches: dict[str, object]
    timed_calls: int


class BisectRequest(TypedDict):
    """`script` is a reproduction; `switches` are the options to try: name -> value that takes it back.

    `precision` are the options under which intermediate results are rounded as in eager, or None. `operators`
    are those of the reproduction. `fork`: children are forks of this process.
    """

    script: str
    directory: str
    failure: Failing
    switches: Configs
    precision: Optional[Configs]
    operators: list[str]
    budget_s: float
    each_s: float
    parallel: int
    fork: bool


class LaunchFlow(TypedDict):
    """`readers`: for each tensor that the launch writes, the launches that read it (-1: it is returned).

    `maybe`: those that write over its memory, and may read it first. `library`: a call of a library, no
    generated kernel. `sources`: for each tensor that it reads, the launch that wrote it, with its name there.
    """

    readers: dict[str, list[int]]
    maybe: dict[str, list[int]]
    library: bool
    sources: dict[str, tuple[int, str]]


class CompareLaunchesRequest(ExportedRequest, total=False):
    """`package` is instrumented, unless `probes` is false. `factor` is of the tolerance.

    `nodes`: {launch: names of nodes that it may compute}, by default every node is tried. `unset`: {launch:
    names of tensors that nothing writes before it}. `steps`: captured updates of constants, applied to both
    sides. `constants`: {name in the package: name in the program}. With `flow`, of launches outside branches
    and loops, every launch is judged on right inputs. `eager_outputs` is a file for what eager mode returns.
    `launches`: from which launch on, and up to which, they are measured (by default all). Only the shard with
    launch 0 repeats the call.
    """

    probes: bool
    factor: float
    nodes: dict[str, list[str]]
    unset: dict[str, list[str]]
    steps: list[Step]
    constants: dict[str, str]
    flow: dict[str, LaunchFlow]
    eager_outputs: str
    launches: tuple[int, int]


class PrecisionRequest(ExportedRequest, total=False):
    """`package` is instrumented, `plan` a file with an `EagerPlan`; `factor` is of the tolerance."""

    plan: str
    factor: float


class RecompileRequest(Request, total=False):
    """`kernel` is its name in the files `changed` and `original`, the package's source.

    `binary` is the package's cubin of it, `target` a file for the new one. `num_warps` and `shared` (bytes)
    are those with which the wrapper launches it, `blocks` the sizes by which it divides the grid (`XBLOCK`).
    """

    kernel: str
    original: str
    changed: str
    binary: str
    target: str
    num_warps: Optional[int]
    shared: Optional[int]
    blocks: dict[str, int]


class Part(TypedDict, total=False):
    """The elements offset, offset + stride, ... below `end` of a flat input. They must lie in [low, high], or
    with `unlike` be anything but that number."""

    input: int
    offset: int
    stride: int
    low: int
    high: int
    unlike: Optional[int]
    end: int


class InputsRequest(TypedDict, total=False):
    """`parts` are of `index_values`, `files` of `describe_files`."""

    inputs: Union[str, list[TensorSpec], None]
    parts: list[Part]
    files: list[str]


class CallRecord(TypedDict):
    """The file of a captured call. `spec` is the serialised tree; empty if the leaves are all there is."""

    format: str
    leaves: list[Any]
    spec: str


class CapturedFailure(TypedDict):
    """An exception in the user's program, with the limits of the process that were reached."""

    type: str
    text: str
    no_files: Optional[int]
    file_bytes: Optional[int]


class KeptPackage(TypedDict):
    """A package as it was loaded; without a `copy` the size of its `largest` member, and why (`notice`)."""

    bytes: int
    sha256: str
    copy: Optional[str]
    largest: Optional[int]
    notice: str


class NearModule(TypedDict):
    """A module near a failed check, with the constants of a compiled program; `named` in the statement."""

    name: str
    type: str
    named: bool
    digests: dict[str, str]
    attributes: dict[str, str]
    file: Optional[str]
