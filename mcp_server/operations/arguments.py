"""The declaration of an operation: its name, texts and arguments. Validates arguments."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mcp_server.errors import ProblemError, argument, on_command_line, option_of
from mcp_server.plurals import listed

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.runtime.context import Context as Context

HANDLE = re.compile(r"(?:aoti-debug://jobs/)?(job_[0-9a-f]{8})/?")  # a job, as given in `log`

InputsArgument = str | list[dict[str, Any]]  # checked by `inputs_of`

PackagePath = Annotated[str, Field(description="A package (.pt2).")]
ExportedPath = Annotated[str, Field(description="An exported program (.pt2).")]
ModelName = Annotated[str, Field(description="Model in the package. Default: model.")]
RelativeTolerance = Annotated[
    float, Field(ge=0, le=1, description="Relative tolerance, 0-1. By default, by dtype.")
]
AbsoluteTolerance = Annotated[
    float, Field(ge=0, le=1, description="Absolute tolerance, 0-1. By default, by dtype.")
]
DeviceIndex = Annotated[int, Field(ge=-1, description="GPU to use. By default, as compiled.")]
Inputs = Annotated[
    InputsArgument,
    Field(
        description="Inputs of the call: a file of torch.save, or specs "
        '[{"shape":[8,64],"dtype":"int64","device":"cuda:0","low":0,"high":9}].'
    ),
]
Checker = Literal[
    "auto", "memcheck", "initcheck", "racecheck", "synccheck", "core_dump", "sync", "asan", "ubsan", "native"
]
ChangeOfLaunch = Literal[
    "guard", "finite-mask", "guard-div", "guard-log", "guard-sqrt", "guard-acos", "guard-pow", "eager"
]
SameInputs = Annotated[InputsArgument, Field(description="Inputs of the call: see diagnose.")]
Script = Annotated[str, Field(description="Python file to run.")]
ScriptArguments = Annotated[list[str], Field(description="Arguments of the script.")]
JobId = Annotated[str, Field(min_length=1, description="The job's handle.")]


ACTIONS = {
    "clamp LOW HIGH": "limit elements; - stands for no limit",
    "set VALUE": "replace elements",
    "cast DTYPE": "convert to this dtype",
    "reread DTYPE": "read the same bytes as this dtype",
    "move DEVICE": "copy to this device",
    "contiguous": "make the strides contiguous",
    "own-memory": "copy to memory of its own",
    "reshape S,S": "the same elements in this shape",
    "reorder D,D": "the dimensions in this order",
    "flip DIM": "reverse a dimension",
    "divide NUMBER": "divide all elements",
    "resize DIM SIZE": "cut or repeat a dimension",
    "pad DIM SIZE VALUE": "lengthen a dimension with this value",
    "drop-rows DIM N,N": "leave out rows of a dimension",
}
"""The changes of an input that `try_fix` makes; `interventions/input.py` reads them."""
OF_INPUT = "'INPUT: ACTION', where INPUT is args[1], a name or a number"
OF_ELEMENTS = "at I,J, flat N,N, rows N,N, where < X or > X, where == X, where nan or where non-finite"
FORMS = (
    f"{OF_INPUT}, and ACTION is one of {', '.join(ACTIONS)}; or 'order N,N' for all inputs. "
    f"clamp and set may end with {OF_ELEMENTS}"
)


class Arguments(BaseModel):
    """Strict arguments: unknown names and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


WORKLOADS = ("script", "package", "exported", "command")
SUBJECTS = ("script", "script_args", "package", "inputs", "exported", "command", "log", "symptom", "expect")


def fields_of(model: type[Arguments]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields: first what is examined, then those of the class itself, then those of its bases."""
    declared = (name for owner in model.__mro__ for name in vars(owner).get("__annotations__", {}))
    for name in dict.fromkeys((*SUBJECTS, *declared)):
        if name in model.model_fields:
            yield name, model.model_fields[name]


class WaitArguments(Arguments):
    """How long a tool call may block before it returns a job handle."""

    wait_s: float = Field(default=45, ge=0, le=45, description="How long to wait, 0-45 s. Default: 45.")


class RunArguments(WaitArguments):
    """The environment in which something is run."""

    cwd: str = Field(default="", description="Folder to run in.")
    env: dict[str, str] = Field(default={}, description="Environment variables.")
    python: str = Field(default="", description="Python that has torch.")
    timeout_s: float = Field(
        default=300, ge=1, le=86_400, description="Limit of each run, 1-86400 s. Default: 300."
    )


class ModelArguments(RunArguments):
    """The modules that register custom operators of a package or exported program."""

    extra_imports: list[str] = Field(default=[], description="Modules or files with custom operators.")


class CheckArguments(ModelArguments):
    """A package and its inputs. If both are empty, only the machine is checked."""

    package: PackagePath = ""
    inputs: SameInputs = ""
    model_name: ModelName = "model"
    device_index: DeviceIndex = -1


class ProgramArguments(CheckArguments):
    """A script or command of the user, or a package with the inputs of one call."""

    script: Script = ""
    script_args: ScriptArguments = []
    command: list[str] = Field(default=[], description="A program and its arguments.")


class WorkloadArguments(ProgramArguments):
    """A workload, named by exactly one of `script`, `package`, `exported` and `command`."""

    exported: ExportedPath = ""


class DiagnoseArguments(WorkloadArguments):
    """A workload or the log of a run, what the user sees, and the time limit."""

    inputs: Inputs = ""
    exported: str = Field(
        default="", description="Exported program (.pt2), alone or as the reference of a package."
    )
    log: str = Field(default="", description="Log of a failing run, or a job to continue.")
    recording: str = Field(
        default="", description="Folder that `record` or torch's kernel capture wrote, or a core file."
    )
    pid: int = Field(default=0, ge=0, description="Id of a process to look at; it keeps running.")
    budget_s: float = Field(
        default=300, ge=1, le=86_400, description="Limit of all runs together, 1-86400 s. Default: 300."
    )
    symptom: Literal[
        "", "wrong-output", "nan", "crash", "hang", "memory", "slow", "slow-load", "slow-build"
    ] = Field(default="", description="What you see.")
    expect: str = Field(
        default="", description="File of the correct outputs of the call, or of a program's last call."
    )
    rtol: RelativeTolerance = 0
    atol: AbsoluteTolerance = 0
    check: list[str] = Field(
        default=[], description="Command that gets a file of outputs, and exits with 0 if they are correct."
    )
    in_place: bool = Field(
        default=False, description="Keep what the script overwrites; by default its packages are restored."
    )


class CompileArguments(ModelArguments):
    exported: ExportedPath
    flags: dict[str, str | int | bool] = Field(
        default={},
        description='Flags, such as {"TORCHINDUCTOR_NAN_ASSERTS": "1"}. The guide flags.md has all.',
    )


class ExplainArguments(Arguments):
    text: str = Field(default="", description="The error text.")
    log: str = Field(default="", description="File with the error text.")
    package: PackagePath = ""
    model_name: ModelName = "model"


class RepeatArguments(WorkloadArguments):
    repeats: int = Field(default=3, ge=1, le=20, description="Number of runs, 1-20. Default: 3.")


class InspectArguments(Arguments):
    """A package and at most one question about it."""

    package: PackagePath
    model_name: ModelName = "model"
    launch: int = Field(default=-1, ge=-1, description="Number of the launch.")
    kernel: str = Field(default="", description="Name of the kernel.")
    buffer: str = Field(default="", description="Name of a buffer, such as buf3.")
    input: str = Field(default="", description="Name or number of an input.")
    constant: str = Field(default="", description="Name of a constant.")
    location: str = Field(default="", description="A model line, FILE.py:LINE.")
    assertion: str = Field(
        default="", description="Text of an assertion, `index out of bounds: 0 <= tmp4 < ks1`."
    )
    offset: int = Field(default=0, ge=0, description="Number of results to skip.")


class CallArguments(CheckArguments):
    package: PackagePath


class TraceArguments(CallArguments):
    calls: int = Field(default=1, ge=1, le=1000, description="Number of calls, 1-1000. Default: 1.")


class TryArguments(CallArguments):
    changes: list[str] = Field(
        default=[], description="Changes of inputs, as 'args[1]: clamp 0 9', '0: set 0 where nan'."
    )
    kernel: str = Field(default="", description="Name of the kernel.")
    replace: list[str] = Field(
        default=[], max_length=2, description="Text of the kernel to replace, and its replacement."
    )
    launch: int = Field(default=-1, ge=-1, description="Number of the launch.")
    how: ChangeOfLaunch = Field(
        default="guard",
        description="How to change the launch. Default: guard, which keeps indices in bounds.",
    )
    edit: str = Field(default="", description="Edited model.py of decompile; with launch, only that launch.")
    exported: ExportedPath = ""
    constants: str = Field(default="", description="File with constants, {name: tensor}.")
    set_env: dict[str, str] = Field(default={}, description="Environment variables of the changed call.")
    expect: str = Field(default="", description="File of the correct outputs.")
    rtol: RelativeTolerance = 0
    atol: AbsoluteTolerance = 0


class LocateArguments(ProgramArguments):
    """What to run, and the checker. If there is a `command`, `package` is what this program loads."""

    tool: Checker = Field(default="auto", description="Checker. Default: auto.")


class DumpArguments(CheckArguments):
    """A package with inputs, and the launches to look at."""

    launches: list[int] = Field(default=[], description="Launches to look at. Default: all.")
    kernels: list[str] = Field(default=[], description="Kernels, or lines FILE.py:LINE, to look at.")
    buffers: list[str] = Field(default=[], description="Buffers to look at.")
    save: bool = Field(default=False, description="Also save the tensors.")
    stop_at_first_bad: bool = Field(default=False, description="Stop at the first bad value.")


class DecompileArguments(CallArguments):
    """A package. With inputs, the written program is compared with the package."""

    out: str = Field(default="", description="New folder for the program. Default: in the job.")
    launches: list[int] = Field(default=[], description="Launches to write. Default: all.")


class PairArguments(ModelArguments):
    """A package with the program from which it was compiled, the program alone, or a script."""

    exported: ExportedPath = ""
    package: PackagePath = ""
    script: Script = ""
    script_args: ScriptArguments = []
    inputs: SameInputs = ""


class ReduceArguments(PairArguments):
    budget_s: float = Field(
        default=300, ge=1, le=86_400, description="Limit of all runs together, 1-86400 s. Default: 300."
    )


class BisectArguments(PairArguments):
    budget_s: float = Field(
        default=600, ge=1, le=86_400, description="Limit of all runs together, 1-86400 s. Default: 600."
    )


class RecordArguments(Arguments):
    package: str = Field(default="", description="Package to put the recorder into. By default, preload it.")
    out: str = Field(default="", description="New file to write.")
    remove: bool = Field(default=False, description="Remove the recorder instead.")
    mode: Literal["adaptive", "ints", "full", "redact"] = Field(
        default="adaptive",
        description="Values to record: adaptive (those that cost under 1 %), ints, full, or redact (none).",
    )
    directory: str = Field(default="", description="Folder for recordings. Default: in /dev/shm.")
    ring_mb: int = Field(
        default=64, ge=4, le=65_536, description="Size of each ring file, 4-65536 MB. Default: 64."
    )
    budget_mb: int = Field(
        default=1024, ge=8, le=1_048_576, description="Limit of all files, 8-1048576 MB. Default: 1024."
    )


class RecordingsArguments(Arguments):
    folder: str = Field(description="Folder with recordings.")


class PostMortemArguments(Arguments):
    core: str = Field(description="A core file, or a folder of them.")
    package: str = Field(default="", description="Package that the process had loaded (.pt2). Required.")


class JobArguments(Arguments):
    job_id: JobId


class WaitJobArguments(WaitArguments):
    job_id: JobId


class RunToolArguments(Arguments):
    tool: str = Field(description="Name of the tool.")
    arguments: dict[str, Any] = Field(default={}, description="Arguments of the tool.")


COMMANDS = frozenset({"check"})  # options that take a whole command line
PAIRS = frozenset({"replace"})  # options that take two words at once


def option_words(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Format arguments as words of a command; an option is repeated for each item of a mapping or list."""
    for name, value in arguments.items():
        option = option_of(name)
        if isinstance(value, bool):
            if value:
                yield option
        elif name in PAIRS:
            yield from (option, *value)
        elif name in COMMANDS:
            yield from (option, shlex.join(value))
        elif isinstance(value, Mapping):
            yield from (word for key, item in value.items() for word in (option, f"{key}={item}"))
        elif isinstance(value, list | tuple) and not any(isinstance(item, Mapping) for item in value):
            yield from (word for item in value for word in (option, str(item)))
        elif isinstance(value, float):
            yield from (option, str(value).removesuffix(".0"))
        else:  # specs of tensors are JSON
            yield from (option, json.dumps(value) if isinstance(value, list | tuple) else str(value))


Call = Callable[["Context", Any], Awaitable["Record"]]


Hints = Mapping[str, bool]  # MCP's four tool annotations

# The workload is a program of the caller's choice: it may write, delete and use the network.
RUNS_USER_CODE: Hints = {
    "read_only_hint": False, "destructive_hint": True, "idempotent_hint": False, "open_world_hint": True
}  # fmt: skip
READS: Hints = {
    "read_only_hint": True, "destructive_hint": False, "idempotent_hint": True, "open_world_hint": False
}  # fmt: skip
CONTROLS: Hints = {**READS, "read_only_hint": False, "destructive_hint": True}


@dataclass(frozen=True)
class Declaration:
    """What a client learns about a tool."""

    name: str
    title: str
    description: str
    arguments: type[Arguments]
    hints: Hints


@dataclass(frozen=True)
class Operation(Declaration):
    """A tool and a command; both are built from this declaration."""

    call: Call
    examples: tuple[str, ...] = ()


Model = TypeVar("Model", bound=Arguments)
OUT_OF_RANGE = frozenset({"greater_than_equal", "greater_than", "less_than_equal", "less_than"})
ENDINGS = {".py": "script", ".pt2": "package", ".pt": "inputs", ".log": "log"}
BOUNDS = {"gt": "more than", "ge": "at least", "le": "at most"}  # names of constraints in annotated_types


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Validate the arguments. Raise ProblemError: unknown or missing name, wrong type, out of range.

    Values are validated as JSON, where a strict model accepts 3 for a float, but not "3" for an int.
    """
    fields = model.model_fields
    for name in values:
        if name not in fields:
            known = [each for each, _ in fields_of(model)]
            by_ending = ENDINGS.get(Path(str(values[name])).suffix)
            meant = closest(by_ending if by_ending in fields else name, known)
            raise ProblemError(f"unknown argument {name!r}{meant}", allowed=", ".join(known))
    try:
        return model.model_validate_json(json.dumps(dict(values)), strict=True)
    except ValidationError as error:
        raise _problem(model, error.errors(include_url=False)) from error


def closest(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing if no name is similar or has `name` as one of its words."""
    known = list(names)
    words = [each for each in known if name in each.split("_")]
    matches = words or difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _problem(model: type[Arguments], errors: list[ErrorDetails]) -> ProblemError:
    """Describe the first error. A union has an error for each member, so errors of one field are joined."""
    name = str(errors[0]["loc"][0]) if errors[0]["loc"] else "arguments"
    here = [error for error in errors if error["loc"][:1] == (name,)]
    where = ".".join(str(part) for part in errors[0]["loc"]) if len(here) == 1 else name
    spelled = argument(where) if on_command_line.get() else f"argument {where!r}"
    field = model.model_fields.get(name)
    allowed = (field.description if field else "") or ""
    if errors[0]["type"] == "missing":
        more = f" All arguments: {', '.join(each for each, _ in fields_of(model))}"
        return ProblemError(f"missing {spelled}", allowed=f"{allowed}{'' if on_command_line.get() else more}")
    value = errors[0]["input"]
    if field and errors[0]["type"] in OUT_OF_RANGE:
        return ProblemError(f"{spelled} is out of range", value=value, allowed=range_of(field) or allowed)
    if field and get_origin(field.annotation) is Literal:
        choices = [str(choice) for choice in get_args(field.annotation) if choice != ""]
        what = f"no such choice for {spelled}{closest(str(value), choices)}"
        return ProblemError(what, value=value, allowed=listed(choices, "or"))
    messages = [error["msg"].replace("valid array", "list") for error in here or errors]
    message = " or ".join(dict.fromkeys(text[:1].lower() + text[1:] for text in messages))
    words = value.split() if errors[0]["type"] == "list_type" and isinstance(value, str) else []
    as_list = f"`{name}` {json.dumps(words)}" if words else ""
    return ProblemError(f"{spelled}: {message}", value=value, allowed=allowed, next_call=as_list)


def range_of(field: FieldInfo) -> str:
    """Describe a field's range: `1 to 86400`, `more than 0, at most 1000`. Empty if it has no bounds."""
    bounds = {
        name: getattr(bound, name) for bound in field.metadata for name in BOUNDS if hasattr(bound, name)
    }
    if "ge" in bounds and "le" in bounds:
        return f"{bounds['ge']:g} to {bounds['le']}"
    return ", ".join(f"{BOUNDS[name]} {bound:g}" for name, bound in bounds.items())
