"""Paths and inputs of a call, resolved and checked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.model import TensorSpec
from mcp_server.operations.arguments import InputsArgument
from mcp_server.package.archive import open_package
from mcp_server.package.problems import PackageError

SPEC_EXAMPLE = (
    'specs such as [{"shape": [8, 64], "dtype": "float32", "device": "cpu", "low": 0, "high": 1}], '
    "or the path of a torch.save'd list"
)

_SPECS = TypeAdapter(list[TensorSpec])


def file(name: str, text: str, base: Path) -> Path:
    """Absolute path of an existing, readable file. Raises ProblemError."""
    path = _absolute(text, base)
    if path.is_dir():
        raise ProblemError(f"{name} is a directory, not a file", value=str(path), allowed="path of a file")
    if not path.is_file():
        allowed = f"an existing file; relative paths start at {base}"
        raise ProblemError(f"{name} does not exist", value=str(path), allowed=allowed)
    if not os.access(path, os.R_OK):
        raise ProblemError(f"{name} cannot be read", value=str(path), allowed="a file this user may read")
    return path


def directory(name: str, text: str, base: Path) -> Path:
    """Absolute path of an existing directory, `base` for no text. Raises ProblemError."""
    path = _absolute(text, base)
    if not path.is_dir():
        raise ProblemError(f"{name} is not a directory", value=str(path), allowed="an existing directory")
    return path


def interpreter(text: str, base: Path) -> Path | None:
    """Absolute path of a program, None for no text. Raises ProblemError."""
    if not text:
        return None
    path = file("python", text, base)
    if not os.access(path, os.X_OK):
        raise ProblemError("python is not executable", value=str(path), allowed="an interpreter with torch")
    return path


def package_file(text: str, base: Path, model_name: str | None = None) -> Path:
    """Only a mix-up of arguments is refused here: a damaged package is a finding, not a wrong call."""
    path = file("package", text, base)
    check_model(path, model_name)
    if is_exported_program(path):
        raise ProblemError(
            "package is an exported program that is not compiled yet",
            value=str(path),
            allowed="a .pt2 of aoti_compile_and_package",
            next_call="pass the same path as exported",
        )
    return path


def check_model(path: Path, model_name: str | None) -> None:
    """Raise `PackageError` for a package that holds models, and none of this name."""
    try:
        open_package(path, model_name)
    except PackageError as error:
        if error.slug == "unknown_model":
            raise


def exported_file(text: str, base: Path) -> Path:
    """The file of an exported program. Raises ProblemError for a compiled package, too."""
    path = file("exported", text, base)
    if not _package_slug(path):
        raise ProblemError(
            "exported is a compiled AOTInductor package",
            value=str(path),
            allowed="a .pt2 of torch.export.save",
            next_call="pass the same path as package",
        )
    return path


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


def inputs_of(inputs: InputsArgument, base: Path) -> Path | list[TensorSpec] | None:
    """A file of tensors, specs (as a list or as JSON text), or None when nothing is given."""
    if isinstance(inputs, list):
        return _specs(inputs)
    if inputs.lstrip().startswith("["):
        return _specs(_json_list(inputs))
    return file("inputs", inputs, base) if inputs else None


def _absolute(text: str, base: Path) -> Path:
    """Absolute without resolving links: a virtual environment's python is a link that must stay one."""
    if "\0" in text:
        raise ProblemError("a path holds a NUL byte", value=text[:80])
    return Path(os.path.abspath(base / Path(text).expanduser()))  # noqa: PTH100 - resolve() would follow links


def _json_list(text: str) -> list[Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"inputs looks like specs but is not JSON ({error})"
        raise ProblemError(what, value=text[:120], allowed=SPEC_EXAMPLE) from error
    assert isinstance(parsed, list), "JSON that starts with [ is a list"
    return parsed


def _specs(items: list[Any]) -> list[TensorSpec]:
    try:
        return _SPECS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        value = str(first["input"])[:120]
        raise ProblemError(f"inputs{where}: {first['msg']}", value=value, allowed=SPEC_EXAMPLE) from error
