"""Argument models of the operations. Descriptions repeat range and default: some clients show no more."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SpecItem = dict[str, Any]
InputsArgument = str | list[SpecItem]


class Arguments(BaseModel):
    """Strict: an unknown name or a wrong type is an error, never dropped or coerced."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class WaitArguments(Arguments):
    """How long a call may block before it hands out a job handle."""

    wait_s: Annotated[
        float,
        Field(ge=0, le=45, description="Seconds to wait, 0-45, default 30; then a job_id for wait_job."),
    ] = 30


class PackageArguments(Arguments):
    """A package file, read without loading it."""

    package: Annotated[str, Field(min_length=1, description="Path of the .pt2 package.")]
    model_name: Annotated[str, Field(description="Model inside the package, default 'model'.")] = "model"


class WorkloadArguments(WaitArguments):
    """Exactly one of `script`, `package`, `exported`, `command` names the workload; the rest describes it."""

    script: Annotated[
        str, Field(description="Python file to run. One of script, package, exported, command.")
    ] = ""
    script_args: Annotated[list[str], Field(description="Arguments of the script.")] = []
    package: Annotated[str, Field(description="AOTInductor .pt2 package.")] = ""
    exported: Annotated[str, Field(description="torch.export.save'd .pt2 program.")] = ""
    command: Annotated[
        list[str], Field(description="Program and its arguments (a C++ host, say); no shell.")
    ] = []
    inputs: Annotated[
        InputsArgument,
        Field(
            description="For package and exported: path of a torch.save'd list of tensors, or specs such as "
            '[{"shape": [8, 64], "dtype": "int64", "device": "cuda:0", "low": 0, "high": 9}].'
        ),
    ] = ""
    model_name: Annotated[str, Field(description="Model inside the package, default 'model'.")] = "model"
    device_index: Annotated[int, Field(ge=-1, description="GPU to load on, -1 (default) = as compiled.")] = -1
    cwd: Annotated[str, Field(description="Working directory; relative paths start here.")] = ""
    env: Annotated[
        dict[str, str], Field(description="Variables for the child; others pass an allowlist.")
    ] = {}
    python: Annotated[str, Field(description="Interpreter that has torch.")] = ""
    extra_imports: Annotated[
        list[str], Field(description="Modules or files to import first (custom ops).")
    ] = []
    timeout_s: Annotated[
        float, Field(gt=0, le=86_400, description="Seconds for one run, 0-86400, default 300.")
    ] = 300


class ExplainArguments(Arguments):
    """Text of an error, or a file that holds it."""

    text: Annotated[str, Field(description="The error text or log excerpt.")] = ""
    log: Annotated[str, Field(description="Path of a log file instead of text.")] = ""


class JobArguments(Arguments):
    """A job by its handle."""

    job_id: Annotated[str, Field(min_length=1, description="Handle that a running tool returned.")]


class WaitJobArguments(WaitArguments):
    """A job by its handle, and how long to wait for it."""

    job_id: Annotated[str, Field(min_length=1, description="Handle that a running tool returned.")]


OutputFormat = Literal["text", "json"]
