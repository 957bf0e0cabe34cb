"""What the server asks of the worker. `events` has the worker's answers.

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

    `temporary` is the folder for temporary files and unpacked packages.
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
    """A condition on the value of an element. It holds if any of these fields holds."""

    below: Optional[Number] = None
    above: Optional[Number] = None
    equals: Optional[Number] = None
    non_finite: bool = False
    nan: bool = False


@dataclass(frozen=True)
class Change:
    """One change of the inputs. `change` is a key of `inputs.CHANGES`; fields that it does not need are None.

    `input` counts the tensors of the call. `flat` to `end` choose elements, as `inputs` says.
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
        """Return the change in a request. Raise TypeError for an unknown field."""
        where = facts.get("where")
        return cls(**{**facts, "where": Where(**where) if where is not None else None})


class OwnConstant(TypedDict):
    """A constant of the package whose bytes are in a file, its change, and its device in the package.

    Without a `factor`, NaN and infinity become 0.
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
    with `only_known` omits constants that the package does not have; one with `names` omits all others. The
    `file` of an update is from torch.save, has the bytes of `own`, or is the exported `program`.
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
    """`inputs` is a file of torch.save, or specs. Without them the package is only loaded.

    `calls`: how often to call. `changes` (fields of `Change`) alter the inputs; `keep_inputs` is a file
    for them. `operators` (`watch` or `repair`) acts on custom operators. `tell_changes` ({index: alignment})
    asks for event `changed_inputs`. `expect` (a file), `rtol` and `atol` (None: those of the dtype), and
    `check` (words of a command) say what the outputs should be.
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
    `current_device`: the CUDA device to make current. `cast` ({constant: dtype}) and `copied` act on
    constants before an update; an update does not give the `omitted` ones, and gives a constant the value of
    the one that `exchanged` names. `alternatives` are options: a trial uses the first with which the call is
    right. `actual`: a file with both sides of the program's failed comparison. The outputs are compared with
    it unless `expect` or `check` is given.
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
    """One call of a plan. Without a `key` it is the original call.

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
    """A launch as an expression of the program (`Alone`). `takes` maps names to places (variable and turn).

    `assumed` pairs such places with arguments of `as_read`.
    """

    launch: int
    expression: str
    takes: dict[str, tuple[str, int]]
    gives: list[str]
    assumed: list[tuple[tuple[str, int], str]]


class EditedProgram(TypedDict):
    """A model.py that replaces the package in the call, or only these `launches`."""

    program: str
    weights: str
    launches: list[LaunchAlone]


class InterveneRequest(ReplayRequest, total=False):
    """A call of `run` or `replay` (the last of `steps`), and the `plan` of calls to make.

    `against`: a file that `save` wrote for the original call in another process. `updates` of constants
    follow the load. `call_limit_s`: a longer call ends the process. `infinities`: whether they count as
    faults in outputs. `fresh`: load the package again for every call. `eager`: launches to run in eager mode.
    `edit`: a program that runs instead.
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
    """What to observe. Omitted fields do not restrict anything.

    `launches` are numbers, `kernels` and `names` exact names (`names` of variables or parameters), `phases`
    before or after. `skip_before` lists, by launch, arguments without a value before it. `save` is a
    directory for the tensors, `save_bytes` the cap for all. `stop_at_first_bad` ends the run at the first bad
    value except minus infinity.
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

    `weights` is a file of the model's weights, by name, that changed after the export. `changes` are made to
    the inputs.
    """

    exported: Optional[str]
    changes: list[dict[str, Any]]
    expect: Optional[str]
    made_by: Optional[MadeBy]
    inputs: Union[str, list[TensorSpec], None]
    operators: str
    weights: str


class CompileRequest(ExportedRequest, total=False):
    """`inductor_configs` are names of torch._inductor.config."""

    package_path: str
    inductor_configs: Configs


class ChangedRequest(CompileRequest, total=False):
    """`change` names a change of the program's graph; `weights_file` is where to write the weights."""

    change: str
    weights_file: str


class SizesRequest(CompileRequest, total=False):
    """`before` is the package as it was compiled, `code` runs before the next compile.

    `shapes` are those of the inputs at each size.
    """

    before: str
    code: str
    shapes: list[list[list[int]]]


class Workaround(TypedDict, total=False):
    """What to set before a compile: options, and operators to fall back to eager or not to decompose."""

    configs: Configs
    fallbacks: list[str]
    decompositions: list[str]


class AttemptRequest(CompileRequest, total=False):
    """`values` is a directory for the values of the program's nodes.

    The program is compiled with `workaround` and `switches`. The latter are options that this torch may lack.
    The call is then repeated `timed_calls` times.
    """

    values: str
    workaround: Workaround
    switches: dict[str, object]
    timed_calls: int


@dataclass(frozen=True)
class Plan:
    """What to keep. `windows` map a size to the part that stays. `seeded` tensors are random.

    `stand_ins`: replace operators that are not torch's by ones without the user's code. `dynamic`: keep sizes
    symbolic where the program has them so; otherwise all sizes are those of the call.
    """

    keep: tuple[str, ...]
    dynamic: bool = False
    windows: tuple[tuple[int, tuple[int, int]], ...] = ()
    seeded: tuple[str, ...] = ()
    stand_ins: bool = False


class CutRequest(CompileRequest):
    """`plans` (fields of `Plan`) to write scripts for. Each goes into a folder of `directory`, by its number.

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
    """A script to run. The compiler passes in `off`, listed by kind, are disabled."""

    script: str
    off: dict[str, list[str]]
    workaround: Workaround


class LaunchFlow(TypedDict):
    """`readers`: for each tensor that the launch writes, the launches that read it (-1: it is returned).

    `maybe`: those that overwrite its memory, and may read it first. `library`: the launch is a library call.
    `sources`: for each tensor that it reads, the launch that wrote it, and its name there.
    """

    readers: dict[str, list[int]]
    maybe: dict[str, list[int]]
    library: bool
    sources: dict[str, tuple[int, str]]


class CompareLaunchesRequest(ExportedRequest, total=False):
    """`package` is instrumented, unless `probes` is false. `factor` multiplies the tolerance.

    `nodes`: {launch: names of nodes that it carries out}. `unset`: {launch: names of tensors that nothing
    writes before it}. `steps`: captured updates of constants, applied to both sides. `constants`: {name in
    the package: name in the program}. With `flow` (of launches outside branches and loops), every launch is
    judged on correct inputs. `eager_outputs` is a file for the outputs of eager mode.
    """

    probes: bool
    factor: float
    nodes: dict[str, list[str]]
    unset: dict[str, list[str]]
    steps: list[Step]
    constants: dict[str, str]
    flow: dict[str, LaunchFlow]
    eager_outputs: str


class EagerPlan(CompareLaunchesRequest, total=False):
    """The request to run launches in eager mode, and what each launch stores, by tensor."""

    stored: dict[str, dict[str, LaunchJudged]]


class RecompileRequest(Request, total=False):
    """`kernel` is its name in the files `changed` and `original`, the package's source.

    `binary` is the package's cubin of the kernel, `target` a file for the new one. The wrapper launches it
    with `num_warps` and `shared` (bytes). `blocks` are the sizes by which it divides the grid (`XBLOCK`).
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

    If `end` is None, it extends to the end. With `unlike`, any value except that number is allowed.
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
    """A tensor that a recording kept: `length` bytes of `file` from `offset` on; `strides` in elements."""

    file: str
    offset: int
    length: int
    dtype: str
    device: str
    sizes: list[int]
    strides: list[int]


class RebuildRequest(Request):
    """The inputs of a recorded call, or weights with these `names`, to be written to the file `out`."""

    tensors: list[RecordedTensor]
    names: list[str]
    out: str


class CallRecord(TypedDict):
    """The file of a captured call. `spec` is the serialised tree; empty if the call is a list of leaves."""

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

    With `launches`, the package has probes, and the program also makes each of these launches.
    """

    save: str


class CapturedLaunch(TypedDict):
    """A launch, and the file of torch's kernel capture with its arguments, as `Place` counts variables.

    `tensors` and `numbers` are its arguments in order; `sizes`: for each symbol that is a size of a tensor,
    its place in `tensors` and the dimension. `later`: tensors that it writes, as another file has them.
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
    """`seconds` is the time for all pairs, `others` has more builds by name, `forwarders` is a library.

    `threads` is the number of threads that the program used, 0 if unknown. `weights` is a file of weights
    that the package lacks.
    """

    seconds: float
    threads: int
    weights: str
    others: dict[str, str]
    forwarders: str
