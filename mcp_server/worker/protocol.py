"""Requests of the server to the worker, which answers with the events of `events.py`.

Standard library only and Python 3.9, so that both sides can import it. A request is one JSON object:
`operation`, and the keys of its class in this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union

from .report import ErrorFacts, Number

if TYPE_CHECKING:
    from .events import LaunchJudged

Configs = dict[str, object]  # options of torch._inductor.config


class Request(TypedDict, total=False):
    """The fields that all requests share. `extra_imports` are modules, .py files and .so libraries.

    Temporary files and unpacked packages go into the folder `temporary`.
    """

    operation: str
    temporary: str
    extra_imports: list[str]


class TensorSpec(TypedDict, total=False):
    """A tensor to create: uniform values in [low, high], by default 0 to 1. `stride` is in elements."""

    shape: list[int]
    dtype: Optional[str]
    device: Optional[str]
    low: Optional[float]
    high: Optional[float]
    stride: Optional[list[int]]


@dataclass(frozen=True)
class Where:
    """A condition on an element. It holds if the element's value satisfies any of these fields."""

    below: Optional[Number] = None
    above: Optional[Number] = None
    equals: Optional[Number] = None
    non_finite: bool = False
    nan: bool = False


@dataclass(frozen=True)
class Change:
    """One change of the inputs. `change` is `permute` or a key of `inputs.CHANGES`.

    `input` is the number of the tensor, from 0. `inputs.py` says how `flat` to `end` choose elements.
    """

    change: str
    input: Optional[int] = None
    dtype: Optional[str] = None
    device: Optional[str] = None
    dim: Optional[int] = None
    size: Optional[int] = None
    value: Optional[Number] = None
    low: Optional[Number] = None
    high: Optional[Number] = None
    flat: Optional[tuple[int, ...]] = None
    index: Optional[tuple[int, ...]] = None
    rows: Optional[tuple[int, ...]] = None
    where: Optional[Where] = None
    offset: Optional[int] = None
    stride: Union[int, tuple[int, ...], None] = None
    end: Optional[int] = None
    shape: Optional[tuple[int, ...]] = None
    order: Optional[tuple[int, ...]] = None
    file: Optional[str] = None

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Change:
        """The change in a request. Raises TypeError for an unknown field."""
        where = facts.get("where")
        return cls(**{**facts, "where": Where(**where) if where is not None else None})


class OwnConstant(TypedDict):
    """A constant of the package, whose bytes are in a file, and how to change its value.

    It is multiplied by `factor`; if it has only zeros, it first gets values from 1 to 2. If `factor` is None,
    NaN and +infinity become 0.
    """

    name: str
    device: str
    dtype: str
    shape: list[int]
    stride: list[int]
    factor: Optional[float]


class Step(TypedDict, total=False):
    """A step of a captured program. `do` is `constants` (an update) or `call`.

    A call may have `headroom` (bytes that it may map) and `stack` (bytes of its thread's stack). An update
    with `only_known` omits constants that the package does not have; one with `names` has only these. Its
    `file` was saved by torch.save, or has the bytes of `own`, or is an exported program (`program`).
    """

    do: str
    file: str
    how: str  # name of the loader's method
    arguments: list[Any]
    only_known: bool
    names: list[str]
    own: OwnConstant
    program: bool
    threads: int
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
    """`inputs` is a file of torch.save, or specs. Without inputs, the package is only loaded.

    `calls` is the number of calls. `changes` (fields of `Change`) alter the inputs, which are then saved to
    `keep_inputs`. `operators`: `watch` or `repair` custom operators. `tell_changes` ({input: alignment}) asks
    for event `changed_inputs`. `expect` (a file), `rtol` and `atol` (None: the dtype's), and `check` (words
    of a command) say what the outputs should be.
    """

    inputs: Union[str, list[TensorSpec], None]
    calls: int
    changes: list[dict[str, Any]]
    keep_inputs: str
    operators: str
    tell_changes: dict[str, int]
    expect: Optional[str]
    rtol: Optional[float]
    atol: Optional[float]
    check: list[str]


class ReplayRequest(RunRequest, total=False):
    """A captured load of `package`, or of the bare .so `library` on `device`, and its `steps`.

    `changes`, `tell_changes` and `stack_bytes` (in place of the step's `stack`) act on the last call.
    `current_device`: the CUDA device to make current. `cast` ({constant: dtype}), `copied`, `omitted` and
    `exchanged` ({constant: the one whose value it gets}) change the constants of an update. `alternatives`: a
    trial uses the first of these options that makes the call right. `actual`: a file with both sides of the
    program's failed comparison, for use without `expect` and `check`.
    """

    library: str
    device: str
    steps: list[Step]
    current_device: Optional[int]
    cast: dict[str, str]
    copied: list[str]
    omitted: list[str]
    exchanged: dict[str, str]
    alternatives: list[ReplayRequest]
    stack_bytes: int
    actual: str


class PlannedCall(TypedDict, total=False):
    """One call of a plan. `key` names its intervention; the unchanged call has none.

    `changes` alter its inputs. `options` replace parts of the request; the package is then loaded again for
    this call. `save` names a file for its outputs. `reference` marks a call that changes only what is at
    fault. `smallest` asks for the fewest changed elements that cure the call.
    """

    label: str
    key: str
    changes: list[dict[str, Any]]
    options: ReplayRequest
    save: Optional[str]
    reference: bool
    smallest: bool


class EagerLaunches(TypedDict):
    """Launches to run in eager mode. `plan` is a file with an `EagerPlan`."""

    plan: str
    launches: list[int]


class LaunchAlone(TypedDict):
    """A launch as an expression of the program (see `package/pytorch/calls.py`).

    `takes` maps its names to places, each (variable, turn). `assumed` pairs places with the sizes, strides
    and dtype for `decompiled.as_read`, as text.
    """

    launch: int
    expression: str
    takes: dict[str, tuple[str, int]]
    gives: list[str]
    assumed: list[tuple[tuple[str, int], str]]


class EditedProgram(TypedDict):
    """A model.py that replaces the whole package in the call, or, if there are `launches`, only these."""

    program: str
    weights: str
    launches: list[LaunchAlone]


class InterveneRequest(ReplayRequest, total=False):
    """A call of `run` or `replay` (the last of `steps`), and the `plan` of calls to make.

    `against`: a file that `save` wrote for the unchanged call in another process. `updates` of constants
    follow the load. `call_limit_s`: a longer call ends the process. `infinities`: infinite outputs are
    faults. `fresh`: load the package again for every call. `eager`: launches to run in eager mode. `edit`: a
    program to run instead.
    """

    plan: list[PlannedCall]
    against: str
    updates: list[Step]
    call_limit_s: float
    infinities: bool
    fresh: bool
    eager: EagerLaunches
    edit: EditedProgram


class Bound(TypedDict):
    """The allowed range [low, high) of an index tensor of a launch. `name` is a variable or parameter."""

    name: str
    launch: int
    low: int
    high: int


class ObserveRequest(RunRequest, total=False):
    """What to observe. A field that is missing restricts nothing.

    `kernels` and `names` (variables or parameters) are exact names. `phases` are before and after.
    `skip_before`: {launch: names of arguments that have no value before the launch}. `save` is a directory
    for the tensors, `save_bytes` the cap for all together. `stop_at_first_bad` ends the run at the first bad
    value, except minus infinity, which may be a mask.
    """

    launches: list[int]
    kernels: list[str]
    names: list[str]
    phases: list[str]
    skip_before: dict[str, list[str]]
    bounds: list[Bound]
    save: Optional[str]
    save_bytes: int
    stop_at_first_bad: bool


class MadeBy(TypedDict, total=False):
    """A script that exports a program, and the number of its `compile`, counted from 0."""

    script: str
    args: list[str]
    compile: int


class ExportedRequest(LoadRequest, total=False):
    """An exported program, from its file or its script, with inputs and expected outputs.

    `weights` is a file of the model's weights, by name, that changed after the export. `changes` alter the
    inputs.
    """

    exported: Optional[str]
    changes: list[dict[str, Any]]
    expect: Optional[str]
    made_by: Optional[MadeBy]
    inputs: Union[str, list[TensorSpec], None]
    operators: str
    weights: str


class CompileRequest(ExportedRequest, total=False):
    """`inductor_configs` are options of torch._inductor.config."""

    package_path: str
    inductor_configs: Configs


class ChangedRequest(CompileRequest, total=False):
    """`change` names a change of the program's graph; `weights_file` is where to write the weights."""

    change: str
    weights_file: str


class SizesRequest(CompileRequest, total=False):
    """`before` is the package as first compiled; `code` is Python to run before it is compiled again.

    `shapes`: for each size to try, the shapes of all inputs.
    """

    before: str
    code: str
    shapes: list[list[list[int]]]


class Workaround(TypedDict, total=False):
    """What to set before a compile: options, operators to run in eager mode, operators not to decompose."""

    configs: Configs
    fallbacks: list[str]
    decompositions: list[str]


class AttemptRequest(CompileRequest, total=False):
    """`values` is a directory for the values of the program's nodes.

    The program is compiled with `workaround`, and with those options of `switches` that this torch has. The
    call is then repeated `timed_calls` times.
    """

    values: str
    workaround: Workaround
    switches: dict[str, object]
    timed_calls: int


@dataclass(frozen=True)
class Plan:
    """What a reduced program keeps: the nodes `keep`.

    `seeded` tensors get random values. `dynamic`: symbolic sizes stay symbolic; otherwise all sizes are those
    of the call.
    """

    keep: tuple[str, ...]
    dynamic: bool = False
    seeded: tuple[str, ...] = ()


class CutRequest(CompileRequest):
    """`plans` (fields of `Plan`): each script is written to the folder of `directory` with its number.

    `bad` are the nodes whose recorded `values` are wrong. `title`, `environment` and `repro_imports` go into
    the scripts.
    """

    plans: list[dict[str, Any]]
    directory: str
    values: str
    bad: list[str]
    title: str
    environment: dict[str, str]
    repro_imports: list[str]


class TrialRequest(Request, total=False):
    """A script to run. The compiler decisions in `off` ({kind: keys}) are switched off."""

    script: str
    off: dict[str, list[str]]
    workaround: Workaround


class LaunchFlow(TypedDict):
    """`readers`: for each tensor that the launch writes, the launches that read it (-1: it is returned).

    `maybe`: launches that overwrite its memory, and may read it first. `library`: this launch is a library
    call. `sources`: for each tensor that it reads, the launch that wrote it, and the tensor's name there.
    """

    readers: dict[str, list[int]]
    maybe: dict[str, list[int]]
    library: bool
    sources: dict[str, tuple[int, str]]


class CompareLaunchesRequest(ExportedRequest, total=False):
    """`package` has probes, unless `probes` is false.

    `nodes`: {launch: names of nodes that it carries out}. `unset`: {launch: names of tensors that nothing
    writes before it}. `steps`: captured updates of constants, for the package and the program. `constants`:
    {name in the package: name in the program}. The launches in `flow`, which are outside branches and loops,
    are judged on correct inputs. `eager_outputs` is a file for the outputs of eager mode.
    """

    probes: bool
    nodes: dict[str, list[str]]
    unset: dict[str, list[str]]
    steps: list[Step]
    constants: dict[str, str]
    flow: dict[str, LaunchFlow]
    eager_outputs: str


class EagerPlan(CompareLaunchesRequest, total=False):
    """The request to run launches in eager mode. `stored`: {launch: {tensor: the value that it holds}}."""

    stored: dict[str, dict[str, LaunchJudged]]


class RecompileRequest(Request, total=False):
    """`original` is the kernel's source in the package, `changed` its new one; `kernel` is its name in both.

    `binary` is the cubin in the package, `target` a file for the new one. The wrapper launches it with
    `num_warps` and `shared` (bytes). `blocks` are the sizes by which it divides the grid (`XBLOCK`).
    """

    kernel: str
    original: str
    changed: str
    binary: str
    target: str
    num_warps: Optional[int]
    shared: Optional[int]
    blocks: dict[str, int]


@dataclass(frozen=True)
class InputSlice:
    """The elements offset, offset + stride, ... below `end` of a flat input. They must lie in [low, high].

    If `end` is None, they go on to the end. With `unlike`, every number but this is allowed.
    """

    input: int
    offset: int
    stride: int
    low: int
    high: int
    unlike: Optional[int] = None
    end: Optional[int] = None


class InputsRequest(TypedDict, total=False):
    """`parts` (fields of `InputSlice`) are for `index_values`."""

    inputs: Union[str, list[TensorSpec], None]
    parts: list[dict[str, Any]]


class RecordedTensor(TypedDict):
    """A tensor of a recording: `length` bytes at `offset` of `file`. `strides` are in elements."""

    file: str
    offset: int
    length: int
    dtype: str
    device: str
    sizes: list[int]
    strides: list[int]


class RebuildRequest(Request):
    """The inputs of a recorded call, or weights with these `names`, to write to the file `out`."""

    tensors: list[RecordedTensor]
    names: list[str]
    out: str


class CallRecord(TypedDict):
    """The file of a captured call. `spec` is its pytree as text, "" if only the leaves are known."""

    format: str
    leaves: list[Any]
    spec: str


class CapturedFailure(ErrorFacts):
    """An exception in the user's program, and the process limits that were reached."""

    no_files: Optional[int]
    file_bytes: Optional[int]


class KeptPackage(TypedDict):
    """A package as it was loaded. If `copy` is missing, `notice` says why."""

    bytes: int
    sha256: str
    copy: Optional[str]
    notice: str


class SchemasRequest(Request, total=False):
    """The shims (such as `addmm_out`) whose operators are requested."""

    shims: list[str]


class VerifyRequest(RunRequest, EditedProgram, total=False):
    """A program that was written from the package. `save` is a file for its outputs, or "".

    With `launches`, the package has probes, and each of these launches is compared with the program's.
    """

    save: str


class CapturedLaunch(TypedDict):
    """A launch, and the `file` of torch's kernel capture with its arguments.

    `tensors` (each variable and turn) and `numbers` are in the order of the arguments. `sizes`: {symbol:
    (tensor, dimension) of which it is the size}. `later`: tensors that the launch writes, each with the file
    of a later launch that has it, and its number there.
    """

    launch: LaunchAlone
    file: str
    tensors: list[tuple[str, int]]
    numbers: list[str]
    sizes: dict[str, tuple[int, int]]
    later: list[tuple[tuple[str, int], str, int]]


class CapturesRequest(EditedProgram):
    """A program that was written from a package, and captured launches of the package."""

    captures: list[CapturedLaunch]


class TimingRequest(RunRequest, total=False):
    """`seconds` limits the time for all pairs of calls. `others` has more builds by name.

    `forwarders` is a library that times kernels. `threads`: as many as the program used, 0 if unknown.
    `weights` is a file of weights that the package lacks.
    """

    seconds: float
    threads: int
    weights: str
    others: dict[str, str]
    forwarders: str
