"""Flat arguments to a `Workload`: the one place where paths are resolved and choices checked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.model import (
    CommandWorkload,
    ExportedWorkload,
    PackageWorkload,
    ScriptWorkload,
    TensorSpec,
    Workload,
)
from mcp_server.operations.arguments import CompileArguments, InputsArgument, RunArguments, WorkloadArguments
from mcp_server.package.archive import open_package
from mcp_server.package.problems import PackageError

KINDS = ("script", "package", "exported", "command")

# Which kinds of workload an optional argument means something for.
APPLIES_TO = {
    "script_args": ("script",),
    "inputs": ("package", "exported"),
    "model_name": ("package",),
    "device_index": ("package",),
    "extra_imports": ("package", "exported"),
}

_SPECS = TypeAdapter(list[TensorSpec])


def workload_of(arguments: WorkloadArguments, base: Path) -> Workload:
    """The workload that `arguments` name; relative paths start at `cwd`, and that at `base`.

    Raises ProblemError: no workload or more than one, an argument that does not apply, a path that is
    missing or of the wrong kind, unreadable specs.
    """
    kind = _chosen_kind(arguments)
    _check_applicable(arguments, kind)
    cwd = directory("cwd", arguments.cwd, base) if arguments.cwd else base
    common = _common(arguments, cwd)
    if kind == "script":
        return ScriptWorkload(
            script=file("script", arguments.script, cwd), args=arguments.script_args, **common
        )
    if kind == "command":
        return CommandWorkload(argv=arguments.command, **common)
    inputs = inputs_of(arguments.inputs, cwd)
    if kind == "exported":
        return ExportedWorkload(
            exported=_exported(arguments.exported, cwd),
            inputs=inputs,
            extra_imports=arguments.extra_imports,
            **common,
        )
    return PackageWorkload(
        package=_package(arguments.package, cwd),
        inputs=inputs,
        model_name=arguments.model_name,
        device_index=arguments.device_index,
        extra_imports=arguments.extra_imports,
        **common,
    )


def exported_of(arguments: CompileArguments, base: Path) -> ExportedWorkload:
    """The exported program to compile. Raises ProblemError as `workload_of` does."""
    cwd = directory("cwd", arguments.cwd, base) if arguments.cwd else base
    return ExportedWorkload(
        exported=_exported(arguments.exported, cwd),
        extra_imports=arguments.extra_imports,
        **_common(arguments, cwd),
    )


def given(arguments: WorkloadArguments) -> list[str]:
    """The kinds of workload that the arguments name."""
    return [kind for kind in KINDS if getattr(arguments, kind)]


def file(name: str, text: str, base: Path) -> Path:
    """Absolute path of an existing, readable file."""
    path = _absolute(text, base)
    if path.is_dir():
        raise ProblemError(f"{name} is a directory, not a file", value=str(path), allowed="path of a file")
    if not path.is_file():
        raise ProblemError(
            f"{name} does not exist",
            value=str(path),
            allowed=f"an existing file; relative paths start at {base}",
        )
    if not os.access(path, os.R_OK):
        raise ProblemError(f"{name} cannot be read", value=str(path), allowed="a file this user may read")
    return path


def directory(name: str, text: str, base: Path) -> Path:
    """Absolute path of an existing directory."""
    path = _absolute(text, base)
    if not path.is_dir():
        raise ProblemError(f"{name} is not a directory", value=str(path), allowed="an existing directory")
    return path


def inputs_of(inputs: InputsArgument, base: Path) -> Path | list[TensorSpec] | None:
    """A file of tensors, specs (as a list or as JSON text), or None when nothing is given."""
    if isinstance(inputs, list):
        return _specs(inputs)
    if inputs.lstrip().startswith("["):
        return _specs(_json_list(inputs))
    return file("inputs", inputs, base) if inputs else None


def is_exported_program(path: Path) -> bool:
    """Whether the file is a `torch.export.save`d archive; anything unreadable is not."""
    return _package_slug(path) == "torch_export_archive"


def _package_slug(path: Path) -> str:
    """Why the file is no AOTInductor package; empty for one that is."""
    try:
        open_package(path)
    except PackageError as error:
        return error.slug
    return ""


def _package(text: str, cwd: Path) -> Path:
    """Only a mix-up of arguments is refused here: a damaged package is a finding, not a wrong call."""
    path = file("package", text, cwd)
    if is_exported_program(path):
        raise ProblemError(
            "package is an exported program that is not compiled yet",
            value=str(path),
            allowed="a .pt2 of aoti_compile_and_package",
            next_call="pass the same path as exported",
        )
    return path


def _exported(text: str, cwd: Path) -> Path:
    path = file("exported", text, cwd)
    if not _package_slug(path):
        raise ProblemError(
            "exported is a compiled AOTInductor package",
            value=str(path),
            allowed="a .pt2 of torch.export.save",
            next_call="pass the same path as package",
        )
    return path


def _chosen_kind(arguments: WorkloadArguments) -> str:
    kinds = given(arguments)
    if len(kinds) == 1:
        return kinds[0]
    if not kinds:
        raise ProblemError("no workload given", allowed="exactly one of " + ", ".join(KINDS))
    raise ProblemError(
        "more than one workload given", value=", ".join(kinds), allowed="exactly one of " + ", ".join(KINDS)
    )


def _check_applicable(arguments: WorkloadArguments, kind: str) -> None:
    for name, kinds in APPLIES_TO.items():
        default = type(arguments).model_fields[name].default
        if kind not in kinds and getattr(arguments, name) != default:
            raise ProblemError(f"{name} does not apply to a {kind}", allowed=f"with {' or '.join(kinds)}")


def _common(arguments: RunArguments, cwd: Path) -> dict[str, Any]:
    return {
        "cwd": cwd,
        "env": arguments.env,
        "python": _python(arguments.python, cwd),
        "timeout_s": arguments.timeout_s,
    }


def _python(text: str, base: Path) -> Path | None:
    if not text:
        return None
    path = file("python", text, base)
    if not os.access(path, os.X_OK):
        raise ProblemError(
            "python is not executable", value=str(path), allowed="a Python interpreter with torch"
        )
    return path


def _absolute(text: str, base: Path) -> Path:
    """Absolute without resolving links: a virtual environment's python is a link that must stay one."""
    if "\0" in text:
        raise ProblemError("a path holds a NUL byte", value=text[:80])
    return Path(os.path.abspath(base / Path(text).expanduser()))  # noqa: PTH100 - resolve() would follow links


def _json_list(text: str) -> list[Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"inputs looks like specs but is not JSON ({error})", value=text[:120], allowed=SPEC_EXAMPLE
        ) from error
    assert isinstance(parsed, list), "text that starts with [ parses to a list"
    return parsed


def _specs(items: list[Any]) -> list[TensorSpec]:
    try:
        return _SPECS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ProblemError(
            f"inputs[{where}]: {first['msg']}", value=first["input"], allowed=SPEC_EXAMPLE
        ) from error


SPEC_EXAMPLE = (
    'specs such as [{"shape": [8, 64], "dtype": "float32", "device": "cpu", "low": 0, "high": 1}], '
    "or the path of a torch.save'd list"
)
