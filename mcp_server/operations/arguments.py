"""What an operation declares: its name and texts, its arguments, and how strictly they are checked."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from mcp_server.errors import ProblemError

if TYPE_CHECKING:
    from mcp_server.model import Record
    from mcp_server.tools.context import Context


InputsArgument = str | list[dict[str, Any]]  # specs as the caller wrote them: `inputs_of` checks them

PackagePath = Annotated[str, Field(description="Use this package.")]
ExportedPath = Annotated[str, Field(description="Use this exported program.")]
ModelName = Annotated[str, Field(description="Name the model, default model.")]
DeviceIndex = Annotated[int, Field(ge=-1, description="Use this GPU; default -1: as compiled.")]
Inputs = Annotated[
    InputsArgument,
    Field(
        description="Pass a file of torch.save, or specs: "
        '[{"shape":[8,64],"dtype":"int64","device":"cuda:0","low":0,"high":9}].'
    ),
]
Checker = Literal[
    "auto", "memcheck", "initcheck", "racecheck", "synccheck", "core_dump", "sync", "asan", "ubsan", "native"
]
ChangeOfLaunch = Literal[
    "guard", "finite-mask", "guard-div", "guard-log", "guard-sqrt", "guard-acos", "guard-pow", "skip", "eager"
]
SameInputs = Annotated[InputsArgument, Field(description="Pass a file or specs: see diagnose.")]
Script = Annotated[str, Field(description="Run this Python file.")]
ScriptArguments = Annotated[list[str], Field(description="Pass these to the script.")]
JobId = Annotated[str, Field(min_length=1, description="Name the job by its handle.")]


class Arguments(BaseModel):
    """Strict: an unknown name or a wrong type is an error, never dropped or coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def fields_of(model: type[Arguments]) -> Iterator[tuple[str, FieldInfo]]:
    """The fields, a class's own before those of its bases: what matters comes first."""
    declared = (name for owner in model.__mro__ for name in vars(owner).get("__annotations__", {}))
    for name in dict.fromkeys(declared):
        if name in model.model_fields:
            yield name, model.model_fields[name]


class WaitArguments(Arguments):
    """How long a call may block before it hands out a job handle."""

    wait_s: float = Field(default=30, ge=0, le=45, description="Wait 0-45 s, default 30.")


class RunArguments(WaitArguments):
    """The surroundings in which something is run."""

    cwd: str = Field(default="", description="Run in this folder.")
    env: dict[str, str] = Field(default={}, description="Set variables.")
    python: str = Field(default="", description="Use this Python with torch.")
    timeout_s: float = Field(
        default=300, ge=1, le=86_400, description="End runs after 1-86400 s, default 300."
    )


class ModelArguments(RunArguments):
    """A package or an exported program needs its custom ops registered."""

    extra_imports: list[str] = Field(default=[], description="Import these modules or files.")


class CheckArguments(ModelArguments):
    """A package and its inputs, or nothing but the machine."""

    package: PackagePath = ""
    inputs: SameInputs = ""
    model_name: ModelName = "model"
    device_index: DeviceIndex = -1


class ProgramArguments(ModelArguments):
    """A program of the user's, or a package with the inputs of one call."""

    script: Script = ""
    script_args: ScriptArguments = []
    package: PackagePath = ""
    command: list[str] = Field(default=[], description="Run this program with arguments.")
    inputs: SameInputs = ""
    model_name: ModelName = "model"
    device_index: DeviceIndex = -1


class WorkloadArguments(ProgramArguments):
    """Exactly one of `script`, `package`, `exported`, `command` names the workload."""

    exported: ExportedPath = ""


class DiagnoseArguments(WorkloadArguments):
    """A workload, or the log of one, and the time for the whole procedure."""

    exported: str = Field(default="", description="Use this exported .pt2; with package: as reference.")
    inputs: Inputs = ""
    log: str = Field(default="", description="Read this log of a failing run, or go on with this job.")

    budget_s: float = Field(default=300, ge=1, le=86_400, description="Stop after 1-86400 s, default 300.")
    symptom: Literal["", "wrong-output", "nan", "crash", "hang", "memory"] = Field(
        default="", description="Say what you see: wrong-output, nan, crash, hang or memory."
    )
    expect: str = Field(
        default="", description="Compare the outputs of the call, or of a program's last one, with this file."
    )
    rtol: float = Field(
        default=0, ge=0, le=1, description="Allow this relative difference, 0-1; default 0: by dtype."
    )
    atol: float = Field(
        default=0, ge=0, le=1, description="Allow this absolute difference, 0-1; default 0: by dtype."
    )
    check: list[str] = Field(
        default=[], description="Run this command on a file of outputs; status 0 is good."
    )


class CompileArguments(ModelArguments):
    exported: ExportedPath
    flags: dict[str, str | int | bool] = Field(
        default={},
        description='Set these flags, such as {"TORCHINDUCTOR_NAN_ASSERTS": "1"}; all: aoti-debug://flags.',
    )


class ExplainArguments(Arguments):
    text: str = Field(default="", description="Explain this error text.")
    log: str = Field(default="", description="Read the error text from this file.")
    package: PackagePath = ""
    model_name: ModelName = "model"


class RepeatArguments(WorkloadArguments):
    repeats: int = Field(default=3, ge=1, le=20, description="Make 1-20 runs, default 3.")
    caching_off: bool = Field(default=True, description="Disable the caching allocator, default true.")
    blocking: bool = Field(default=True, description="Wait after each launch, default true.")
    check_inputs: bool = Field(default=True, description="Check inputs, default true.")


class InspectArguments(Arguments):
    """A package and at most one question about it."""

    package: PackagePath
    model_name: ModelName = "model"
    launch: int = Field(default=-1, ge=-1, description="Pick the launch of this number; default -1: none.")
    kernel: str = Field(default="", description="Name a kernel.")
    buffer: str = Field(default="", description="Name a buffer, such as buf3.")
    symbol: str = Field(default="", description="Name a size symbol, such as ks0.")
    input: str = Field(default="", description="Name an input, or give its number.")
    constant: str = Field(default="", description="Name a constant.")
    location: str = Field(default="", description="Name a model line, FILE.py:LINE.")
    assertion: str = Field(
        default="", description="Quote the assertion, `index out of bounds: 0 <= tmp4 < ks1`."
    )
    generated_line: int = Field(default=-1, ge=-1, description="Give the assertion's line; default -1: any.")
    offset: int = Field(default=0, ge=0, description="Skip this many results, default 0.")
    graph: bool = Field(default=False, description="Draw the dataflow, default false.")


class CallArguments(CheckArguments):
    package: PackagePath


class TraceArguments(CallArguments):
    sync: bool = Field(default=True, description="Wait after each launch, default true.")
    stop_at: int = Field(default=-1, ge=-1, description="Stop before this launch; default -1: none.")
    calls: int = Field(default=1, ge=1, le=1000, description="Make 1-1000 calls, default 1.")


class TryArguments(CallArguments):
    changes: list[str] = Field(
        default=[], description="Change inputs: 'args[1]: clamp 0 9', '0: set 0 where nan', '0: set 5 at 3'."
    )
    kernel: str = Field(default="", description="Name a kernel.")
    replace: list[str] = Field(default=[], max_length=2, description="Replace OLD by NEW, a pair of texts.")
    launch: int = Field(default=-1, ge=-1, description="Pick the launch of this number; default -1: none.")
    how: ChangeOfLaunch = Field(
        default="guard", description="Change the launch so, default guard: keep indices in bounds."
    )
    exported: ExportedPath = ""
    output: str = Field(default="", description="Write a repaired package here.")
    constants: str = Field(default="", description="Set constants from a file of {name: tensor}.")
    set_env: dict[str, str] = Field(default={}, description="Set variables in the changed call.")
    expect: str = Field(default="", description="Compare with this file of outputs.")
    tolerance: float = Field(
        default=0, ge=0, le=1, description="Allow this difference, 0-1; default 0: by dtype."
    )


class RepairArguments(CallArguments):
    """Of the command alone; the tool `try_fix` takes one launch."""

    exported: ExportedPath = ""
    launch: list[int] = Field(
        default=[], description="Run this launch in eager mode; default: all that are wrong."
    )
    output: str = Field(default="", description="Write the new package to this file.")


class LocateArguments(ProgramArguments):
    """What to put under which checker. With a `command`, `package` is what that host loads."""

    tool: Checker = Field(default="auto", description="Use this checker, default auto.")
    plain_runs: int = Field(
        default=1, ge=0, le=20, description="Make 0-20 runs without a checker, default 1."
    )


class DumpArguments(ModelArguments):
    """A package or an exported program with inputs, and which launches to look at."""

    package: PackagePath = ""
    exported: ExportedPath = ""
    inputs: SameInputs = ""
    model_name: ModelName = "model"
    device_index: DeviceIndex = -1
    launches: list[int] = Field(default=[], description="Look at these launches; default all.")
    kernels: list[str] = Field(default=[], description="Look at these kernels, or lines FILE.py:LINE.")
    buffers: list[str] = Field(default=[], description="Look at these buffers.")
    backend: Literal["auto", "probes", "printer"] = Field(
        default="auto", description="Choose how to look; default auto: probes, else printer."
    )
    level: Literal["1", "2", "3"] = Field(default="2", description="Set the printer's level, default 2.")
    save: bool = Field(default=False, description="Save the tensors, default false.")
    stop_at_first_bad: bool = Field(default=False, description="End at the first bad value, default false.")


class PairArguments(ModelArguments):
    """A package and the program that it was compiled from, the program alone, or a script."""

    exported: ExportedPath = ""
    package: PackagePath = ""
    script: Script = ""
    script_args: ScriptArguments = []
    inputs: SameInputs = ""


class CompareArguments(PairArguments):
    tolerance: float = Field(
        default=1, gt=0, le=1000, description="Multiply the tolerance by 0-1000, default 1."
    )
    every_launch: bool = Field(default=False, description="Judge every launch by itself, default false.")
    precision: bool = Field(default=False, description="Find what needs float32; default false.")


class ReduceArguments(PairArguments):
    scope: Literal["graph", "launch"] = Field(
        default="graph", description="Reduce the graph or one launch, default graph."
    )
    launch: int = Field(default=-1, ge=-1, description="Pick this launch; default -1: the bad one.")
    budget_s: float = Field(default=300, ge=1, le=86_400, description="Stop after 1-86400 s, default 300.")


class BisectArguments(PairArguments):
    budget_s: float = Field(
        default=600, ge=1, le=86_400, description="Stop after 1-86400 s in all, default 600."
    )
    torch: str = Field(default="", description="Find the first bad release of 2.10..2.13.")


class JobArguments(Arguments):
    job_id: JobId


class WaitJobArguments(WaitArguments):
    job_id: JobId


OPTION_NAMES = {
    "inputs": ("--inputs", "-i"),
    "env": ("--env", "-e"),
    "flags": ("--flag", "-f"),
    "changes": ("--change",),
    "how": ("--as",),
}
COMMANDS = frozenset({"check"})  # options that take a whole command line
PAIRS = frozenset({"replace"})  # options that take two words at once


def option_words(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Arguments as words of a command; an option is repeated for each item of a mapping or list."""
    for name, value in arguments.items():
        dashed = name.replace("_", "-")
        option = OPTION_NAMES.get(name, (f"--{dashed}",))[0]
        if isinstance(value, bool):
            yield option if value else f"--no-{dashed}"
        elif name in PAIRS:
            yield from (option, *value)
        elif name in COMMANDS:
            yield from (option, shlex.join(value))
        elif isinstance(value, Mapping):
            yield from (word for key, item in value.items() for word in (option, f"{key}={item}"))
        elif isinstance(value, list | tuple) and not any(isinstance(item, Mapping) for item in value):
            yield from (word for item in value for word in (option, str(item)))
        else:  # specs of tensors are JSON
            yield from (option, json.dumps(value) if isinstance(value, list | tuple) else str(value))


Call = Callable[["Context", Any], Awaitable["Record"]]


Hints = Mapping[str, bool]  # MCP's four tool annotations

# The workload is a program of the caller's choice: it may write, delete and talk to anybody.
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
    """A tool and a command: both are made from this."""

    call: Call
    examples: tuple[str, ...] = ()


Model = TypeVar("Model", bound=Arguments)


def validated(model: type[Model], values: Mapping[str, Any]) -> Model:
    """The arguments as a model. Raises ProblemError: unknown or missing name, wrong type, out of range.

    Validated as JSON: a strict model takes JSON's 3 for a float there, but not "3" for an int.
    """
    fields = model.model_fields
    for name in values:
        if name not in fields:
            raise ProblemError(f"unknown argument {name!r}{closest(name, fields)}", allowed=", ".join(fields))
    try:
        return model.model_validate_json(json.dumps(dict(values)), strict=True)
    except ValidationError as error:
        raise _problem(model, error.errors(include_url=False)) from error


def closest(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no name is similar."""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _problem(model: type[Arguments], errors: list[ErrorDetails]) -> ProblemError:
    """The first error; a union reports one per member, so all messages for the same field are joined."""
    name = str(errors[0]["loc"][0]) if errors[0]["loc"] else "arguments"
    here = [error for error in errors if error["loc"][:1] == (name,)]
    allowed = (model.model_fields[name].description if name in model.model_fields else "") or ""
    if errors[0]["type"] == "missing":
        return ProblemError(f"missing argument {name!r}", allowed=allowed)
    messages = [error["msg"] for error in here or errors]
    message = " or ".join(dict.fromkeys(text[:1].lower() + text[1:] for text in messages))
    where = ".".join(str(part) for part in errors[0]["loc"]) if len(here) == 1 else name
    return ProblemError(f"argument {where!r}: {message}", value=errors[0]["input"], allowed=allowed)
