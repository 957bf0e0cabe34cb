"""Argument models of the operations. Descriptions repeat range and default: some clients show no more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

InputsArgument = str | list[dict[str, Any]]

PackagePath = Annotated[str, Field(description="AOTInductor .pt2 package.")]
ExportedPath = Annotated[str, Field(description="torch.export.save'd .pt2 program.")]
ModelName = Annotated[str, Field(description="Model in the package, default 'model'.")]
DeviceIndex = Annotated[int, Field(ge=-1, description="GPU to load on; -1 (default): as compiled.")]
Inputs = Annotated[
    InputsArgument,
    Field(
        description="For package and exported: path of a torch.save'd list of tensors, or specs: "
        '[{"shape": [8, 64], "dtype": "int64", "device": "cuda:0", "low": 0, "high": 9}].'
    ),
]
JobId = Annotated[str, Field(min_length=1, description="Handle that a running tool returned.")]


class Arguments(BaseModel):
    """Strict: an unknown name or a wrong type is an error, never dropped or coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def fields_of(model: type[Arguments]) -> Iterator[tuple[str, FieldInfo]]:
    """The fields, a class's own before those of its bases: what matters comes first."""
    for owner in model.__mro__:
        for name in vars(owner).get("__annotations__", {}):
            if name in model.model_fields:
                yield name, model.model_fields[name]


class WaitArguments(Arguments):
    """How long a call may block before it hands out a job handle."""

    wait_s: Annotated[
        float, Field(ge=0, le=45, description="Seconds to wait, 0-45, default 30; then a job_id comes back.")
    ] = 30


class RunArguments(WaitArguments):
    """The surroundings in which something is run."""

    cwd: Annotated[str, Field(description="Working directory; relative paths start here.")] = ""
    env: Annotated[
        dict[str, str], Field(description="Variables for the child; others pass an allowlist.")
    ] = {}
    python: Annotated[str, Field(description="Interpreter with torch.")] = ""
    timeout_s: Annotated[
        float, Field(gt=0, le=86_400, description="Seconds for one run, up to 86400, default 300.")
    ] = 300


class ModelArguments(RunArguments):
    """A package or an exported program needs its custom ops registered."""

    extra_imports: Annotated[
        list[str], Field(description="Modules or files to import first (custom ops).")
    ] = []


class CheckArguments(ModelArguments):
    """A package and its inputs, or nothing but the machine."""

    package: PackagePath = ""
    inputs: Inputs = ""
    model_name: ModelName = "model"
    device_index: DeviceIndex = -1


class WorkloadArguments(ModelArguments):
    """Exactly one of `script`, `package`, `exported`, `command` names the workload."""

    script: Annotated[
        str, Field(description="Python file. Give one of script, package, exported, command.")
    ] = ""
    script_args: Annotated[list[str], Field(description="Arguments of the script.")] = []
    package: PackagePath = ""
    exported: ExportedPath = ""
    command: Annotated[
        list[str], Field(description="Program and arguments (a C++ host, say); no shell.")
    ] = []
    inputs: Inputs = ""
    model_name: ModelName = "model"
    device_index: DeviceIndex = -1


class DiagnoseArguments(WorkloadArguments):
    """A workload and the time for the whole procedure."""

    budget_s: Annotated[
        float, Field(gt=0, le=86_400, description="Seconds for the whole procedure, default 300.")
    ] = 300


class CompileArguments(ModelArguments):
    """An exported program and the flags to compile it with."""

    exported: ExportedPath
    flags: Annotated[
        dict[str, str | int | bool],
        Field(
            description='Flags and values, such as {"TORCHINDUCTOR_NAN_ASSERTS": "1"}; all: aoti-debug://flags.'
        ),
    ] = {}


class ExplainArguments(Arguments):
    """Text of an error, or a file that holds it."""

    text: Annotated[str, Field(description="Error text or log excerpt.")] = ""
    log: Annotated[str, Field(description="Path of a log file, instead of text.")] = ""


class PackageArguments(Arguments):
    """A package file, read without loading it."""

    package: PackagePath
    model_name: ModelName = "model"


class JobArguments(Arguments):
    """A job by its handle."""

    job_id: JobId


class WaitJobArguments(WaitArguments):
    """A job by its handle, and how long to wait for it."""

    job_id: JobId
