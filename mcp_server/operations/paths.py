"""Paths and inputs of a call, resolved and checked before anything runs."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.jobs.store import cause
from mcp_server.model import TensorSpec
from mcp_server.operations.arguments import InputsArgument
from mcp_server.package.archive import open_package
from mcp_server.package.problems import PackageError

EXAMPLE = (
    'specs such as [{"shape": [8, 64], "dtype": "float32", "device": "cpu", "low": 0, "high": 1}], '
    "or the path of a torch.save'd list"
)
EXACT = 2.0**53
"""The worker draws in float64, which has each whole number up to this."""

# Names of torch.dtype, torch 2.8-2.15; the worker asks torch itself.
_DTYPE = re.compile(
    r"(?:torch\.)?(?:(?:float|u?int|complex|bits|q?u?int)\d\w*|float|double|half|bfloat16|complex\d+|cfloat|"
    r"cdouble|chalf|int|long|short|bool)"
)
_WHOLE = re.compile(r"(?:torch\.)?(?P<sign>u?)int(?P<bits>\d+)")
_OTHER_NAMES = {"short": "int16", "int": "int32", "long": "int64", "bool": "uint1"}
_SPECS = TypeAdapter(list[TensorSpec])


def specs_of(items: list[Any]) -> list[TensorSpec]:
    """The specs. Raises ProblemError for one that is not understood, or asks for what no tensor can hold."""
    try:
        specs = _SPECS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        value = str(first["input"])[:120]
        raise ProblemError(f"inputs{where}: {first['msg']}", value=value, allowed=EXAMPLE) from error
    for place, spec in enumerate(specs):
        _check_dtype(f"inputs[{place}]", spec)
        _check_range(f"inputs[{place}]", spec)
    return specs


def specs_from_text(text: str) -> list[TensorSpec]:
    """The specs in a JSON list. Raises ProblemError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"inputs looks like specs but is not JSON ({error})"
        raise ProblemError(what, value=text[:120], allowed=EXAMPLE) from error
    return specs_of(parsed)


def _check_dtype(where: str, spec: TensorSpec) -> None:
    if not _DTYPE.fullmatch(spec.dtype):
        allowed = "names of torch dtypes, such as float32 or int64"
        raise ProblemError(f"{where}: unknown dtype", value=spec.dtype[:80], allowed=allowed)


def _check_range(where: str, spec: TensorSpec) -> None:
    """Both ends as numbers that the dtype has; the worker takes 0 and 1 for what is not said."""
    low = 0.0 if spec.low is None else spec.low
    high = 1.0 if spec.high is None else spec.high
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ProblemError(f"{where}: low and high are finite numbers", value=f"low {low}, high {high}")
    if low > high:
        what = f"{where}: low is greater than high"
        raise ProblemError(what, value=f"low {low:g}, high {high:g}", allowed="low 0 and high 1 by default")
    first, last = _range_of(spec.dtype)
    if (spec.low is not None and not first <= low) or (spec.high is not None and not high <= last):
        raise ProblemError(
            f"{where}: {spec.dtype} has no such values",
            value=f"low {low:g}, high {high:g}",
            allowed=f"{first:.0f} to {last:.0f}",
        )


def _range_of(dtype: str) -> tuple[float, float]:
    """Smallest and largest value that can be drawn; without an end for numbers with a fraction."""
    plain = dtype.removeprefix("torch.")
    found = _WHOLE.fullmatch(_OTHER_NAMES.get(plain, plain))
    if found is None:
        return -math.inf, math.inf
    bits = int(found["bits"])
    first, last = (0.0, 2.0**bits - 1) if found["sign"] else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    return max(first, -EXACT), min(last, EXACT)


_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}


def file(name: str, text: str, base: Path) -> Path:
    """Absolute path of an existing, readable file. Raises ProblemError."""
    path = absolute(text, base)
    allowed = f"an existing file; relative paths start at {base}"
    kind = stat.S_IFMT(_mode(name, path, allowed))
    if kind != stat.S_IFREG:
        what = _KINDS.get(kind, "something else")
        raise ProblemError(f"{name} is {what}, not a file", value=str(path), allowed="path of a file")
    if not os.access(path, os.R_OK):
        raise ProblemError(f"{name} cannot be read", value=str(path), allowed="a file this user may read")
    return path


def directory(name: str, text: str, base: Path) -> Path:
    """Absolute path of an existing directory, `base` for no text. Raises ProblemError."""
    path = absolute(text, base)
    if not stat.S_ISDIR(_mode(name, path, "an existing directory")):
        raise ProblemError(f"{name} is not a directory", value=str(path), allowed="an existing directory")
    return path


def _mode(name: str, path: Path, allowed: str) -> int:
    """What is there. Raises ProblemError when nothing is, or nobody may look."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise ProblemError(f"{name} does not exist", value=str(path), allowed=allowed) from None
    except (OSError, ValueError) as error:  # too long a name, a part of the path that is a file
        why = cause(error) if isinstance(error, OSError) else str(error)
        raise ProblemError(
            f"{name} cannot be reached: {why}", value=str(path)[:300], allowed=allowed
        ) from None


def program(argv: list[str], path_variable: str, cwd: Path) -> None:
    """Raise ProblemError unless the first word of `argv` names a program that can be started."""
    name = argv[0] if argv else ""
    if "/" in name or name in (".", ".."):
        path = file("command", name, cwd)
        if not os.access(path, os.X_OK):
            allowed = "a program, a script (.py) or a package (.pt2)"
            raise ProblemError("command is not executable", value=str(path), allowed=allowed)
        return
    if not name or not shutil.which(name, path=path_variable):
        here = f", such as ./{name}" if name and (cwd / name).is_file() else ""
        allowed = f"a program on PATH, or the path of one{here}"
        raise ProblemError("no such program", value=name[:300], allowed=allowed)


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
        return specs_of(inputs)
    if inputs.lstrip().startswith("["):
        return specs_from_text(inputs)
    return file("inputs", inputs, base) if inputs else None


def absolute(text: str, base: Path) -> Path:
    """Absolute without resolving links: a virtual environment's python is a link that must stay one.

    Raises ProblemError for what is no path.
    """
    if "\0" in text:
        raise ProblemError("a path holds a NUL byte", value=text[:80])
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ProblemError("no such home directory", value=text[:300], allowed="~ or ~USER") from None
    return Path(os.path.abspath(base / path))  # noqa: PTH100 - resolve() would follow links
