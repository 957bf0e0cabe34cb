"""Turns arguments into a workload, its inputs and its symptom. Checks everything before anything runs.

Functions raise ProblemError if something is missing, of the wrong kind, contradictory or unreadable.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import stat
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from mcp_server.errors import ProblemError, argument, here
from mcp_server.jobs.child import check_variable
from mcp_server.jobs.store import cause
from mcp_server.model import (
    CommandWorkload,
    CostSymptom,
    ExportedWorkload,
    PackageWorkload,
    ScriptWorkload,
    TensorSpec,
    Workload,
)
from mcp_server.operations import arguments as args
from mcp_server.package.problems import COMPILED, PackageError

if TYPE_CHECKING:
    from mcp_server.diagnosis.program_seen import Symptom

# The kinds of workload: what each is called, and what file is expected.
_FILES = {
    "script": ("script", "a Python file"),
    "package": ("package", COMPILED),
    "exported": ("exported program", "a .pt2 of torch.export.save"),
    "command": ("program", "an executable file"),
}

# The kinds of workload to which an optional argument applies.
APPLIES_TO = {
    "script_args": ("script",),
    "inputs": ("package", "exported"),
    "model_name": ("package",),
    "device_index": ("package",),
    "extra_imports": ("package", "exported"),
}


def workload_of(given: args.ProgramArguments) -> Workload:
    """The one workload that the arguments name; relative paths start at `cwd`."""
    kinds = chosen_kinds(given)
    if isinstance(given, args.DiagnoseArguments) and kinds == ["package", "exported"]:
        kinds = ["package"]  # the program is only the reference (see `symptom_of`)
    if kinds == ["package", "command"]:
        allowed = (
            "the program with the package among its arguments, or package with inputs of the failing call"
        )
        raise ProblemError("a program and a package are two workloads", value=given.package, allowed=allowed)
    if kinds == ["script", "exported"]:
        allowed = "the script alone, or `package` with `inputs` of the failing call and `exported`"
        what = f"{argument('exported')} is the reference of a package, and a script exports its own"
        raise ProblemError(what, value=given.script, allowed=allowed)
    if len(kinds) != 1:
        allowed = "exactly one of " + ", ".join(kind for kind in args.WORKLOADS if hasattr(given, kind))
        what = "more than one workload given" if kinds else "no workload given"
        raise ProblemError(what, value=", ".join(kinds) if kinds else None, allowed=allowed)
    for name, fitting in APPLIES_TO.items():
        default = type(given).model_fields[name].default
        if kinds[0] not in fitting and getattr(given, name) != default:
            own, others = _FILES[kinds[0]][0], " or ".join(_FILES[kind][0] for kind in fitting)
            allowed = f"the {own} alone, which brings its own, or {argument(name)} with a {others}"
            raise ProblemError(f"{argument(name)} does not apply to this {own}", allowed=allowed)
    if kinds[0] == "script":
        return script_workload(given)
    if kinds[0] == "package":
        return package_workload(given)
    if isinstance(given, args.WorkloadArguments) and given.exported:
        return exported_workload(given)
    around = _surroundings(given)
    if not launcher():  # under a launcher the program may be on another machine
        check_program(given.command, given.env, folder_of(given))
    return CommandWorkload(argv=given.command, **around)


def chosen_kinds(given: args.ProgramArguments) -> list[str]:
    return [kind for kind in args.WORKLOADS if getattr(given, kind, None)]


def paired_model(given: args.PairArguments) -> PackageWorkload | ExportedWorkload | ScriptWorkload:
    """The script, or else the package, or else the exported program."""
    if given.script:
        if given.package or given.exported or given.inputs or given.extra_imports:
            raise ProblemError("a script brings its own model and inputs", allowed="the script alone")
        return script_workload(given)
    if given.script_args:
        raise ProblemError("arguments are given without a script", allowed="with `script`")
    if given.package:
        return package_workload(given)
    if given.exported:
        return exported_workload(given)
    raise ProblemError("no model given", allowed="a script, a package or an exported program")


def script_workload(given: args.ProgramArguments | args.PairArguments) -> ScriptWorkload:
    around = _surroundings(given)
    script = file("script", given.script, around["cwd"])
    return ScriptWorkload(script=script, args=given.script_args, **around)


def package_workload(given: args.CheckArguments | args.PairArguments) -> PackageWorkload:
    around = _surroundings(given)
    model = {name: getattr(given, name) for name in ("model_name", "device_index") if hasattr(given, name)}
    if isinstance(given, args.DiagnoseArguments):
        # A file that is not a package is diagnosed, unless its name is that of another argument's file.
        package = file("package", given.package, around["cwd"])
        other = args.ENDINGS.get(package.suffix, "package")
        if _why_no_package(package, given.model_name) is not None and other != "package":
            what = f"this is no package: give it as {argument(other)}"
            raise ProblemError(what, value=given.package, allowed=COMPILED)
    else:
        package = package_file(given.package, around["cwd"], model.get("model_name"))
    inputs = inputs_of(given.inputs, around["cwd"])
    if isinstance(inputs, Path):
        _check_tensors(inputs, package, model.get("model_name"))
    return PackageWorkload(
        package=package, inputs=inputs, extra_imports=given.extra_imports, **model, **around
    )


def exported_workload(
    given: args.WorkloadArguments | args.PairArguments | args.CompileArguments,
) -> ExportedWorkload:
    around = _surroundings(given)
    exported = exported_file(given.exported, around["cwd"])
    inputs = None if isinstance(given, args.CompileArguments) else inputs_of(given.inputs, around["cwd"])
    return ExportedWorkload(exported=exported, inputs=inputs, extra_imports=given.extra_imports, **around)


def _surroundings(given: args.RunArguments) -> dict[str, Any]:
    """The fields of `WorkloadBase`."""
    for name, value in given.env.items():
        check_variable(name, value)
    cwd = folder_of(given)
    python = python_of(given.python, cwd) if given.python else None
    return {"cwd": cwd, "env": given.env, "python": python, "timeout_s": given.timeout_s}


PYTHON = "the path of a Python that has torch, such as my-env/bin/python, or its name on PATH"


def python_of(name: str, cwd: Path) -> Path:
    """The path of an interpreter. A name without a folder is also looked up on PATH."""
    found = name if "/" in name or (cwd / name).exists() else shutil.which(name)
    if not found:
        raise ProblemError(f"no such program for {argument('python')}", value=name, allowed=PYTHON)
    python = file("python", found, cwd)
    if not os.access(python, os.X_OK):
        raise ProblemError("python is not executable", value=str(python), allowed=PYTHON)
    return python


def folder_of(given: args.RunArguments) -> Path:
    """The absolute path of the working directory; the default is this process's directory."""
    path = absolute(given.cwd, here())
    if not stat.S_ISDIR(_mode("cwd", path, "an existing folder")):
        raise ProblemError(f"{argument('cwd')} is a file", value=str(path), allowed="an existing folder")
    return path


def cost_symptom(given: args.DiagnoseArguments) -> CostSymptom | None:
    """The symptom if it concerns time and nothing fails. None for other symptoms."""
    seen = given.symptom
    return seen if seen == "slow" or seen == "slow-load" or seen == "slow-build" else None


def symptom_of(given: args.DiagnoseArguments, workload: Workload | None) -> Symptom:
    """What the user sees, and what the outputs should be."""
    from mcp_server.diagnosis.program_seen import Symptom

    if (given.rtol or given.atol) and not given.expect:
        raise ProblemError("tolerances are given without correct outputs", allowed="with `expect`")
    if given.expect or given.check:  # expected outputs of a package with inputs, or of a program's last call
        name = "expect" if given.expect else "check"
        if not isinstance(workload, PackageWorkload | ScriptWorkload | CommandWorkload):
            what = "an exported program" if workload is not None else "a log"
            raise ProblemError(
                f"{argument(name)} does not apply to {what}, which calls no package",
                allowed="with a package, a script or a program to run",
            )
        if isinstance(workload, PackageWorkload) and workload.inputs is None:
            what = f"{argument(name)} is given without the inputs of the call"
            line = ["aoti-debug", "diagnose", given.package, "--inputs", "INPUTS.pt", f"--{name}"]
            line += given.check if given.check else [given.expect]
            raise ProblemError(what, allowed="with `inputs`", next_call=shlex.join(line))
    cwd = workload.cwd if workload is not None and workload.cwd is not None else here()
    if given.check:
        try:
            check_program(given.check, given.env, cwd)
        except ProblemError as problem:
            raise ProblemError(
                f"the check command cannot be started: {problem.what}",
                value=problem.value,
                allowed="a program that ends with status 0 for good outputs",
            ) from None
    seen = given.symptom
    return Symptom(
        seen=None if seen == "" or seen == "slow" or seen == "slow-load" or seen == "slow-build" else seen,
        expect=optional_file("expect", given.expect, cwd),
        rtol=given.rtol or None,
        atol=given.atol or None,
        check=tuple(given.check),
        program=exported_file(given.exported, cwd) if given.package and given.exported else None,
    )


LAUNCHER_VARIABLE = "AOTI_DEBUG_LAUNCHER"


def launcher() -> tuple[str, ...]:
    """Split AOTI_DEBUG_LAUNCHER into words, which are run unchanged. Empty if it is not set."""
    text = os.environ.get(LAUNCHER_VARIABLE, "")
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ProblemError(
            f"{LAUNCHER_VARIABLE} is not a valid command line: {error}", value=text[:300]
        ) from None
    if words and not shutil.which(words[0]):
        raise ProblemError(
            f"the program in {LAUNCHER_VARIABLE} is not there",
            value=words[0],
            allowed="a program on PATH and its options, such as srun --gpus=1",
        )
    return words


MOST_NAMES = 1000  # names in a folder to compare with a misspelt name

_KINDS_OF_FILE = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


def absolute(text: str, base: Path) -> Path:
    """Make a path absolute without resolving links: a virtual environment's python must stay a link."""
    if "\0" in text:
        raise ProblemError("a path holds a NUL byte", value=text[:80])
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ProblemError("no such home directory", value=text[:300], allowed="~ or ~USER") from None
    return Path(os.path.abspath(base / path))  # noqa: PTH100 - resolve() would follow links


def file(name: str, text: str, base: Path) -> Path:
    """The absolute path of an existing, readable file."""
    path = absolute(text, base)
    kind = stat.S_IFMT(_mode(name, path, _existing(text, base)))
    if kind != stat.S_IFREG:
        what = f"the {_said(name)} is {_KINDS_OF_FILE.get(kind, 'something else')}, not a file"
        raise ProblemError(what, value=str(path), allowed=_FILES.get(name, ("", "a file"))[1])
    if not os.access(path, os.R_OK):
        what = f"this user may not read the {_said(name)}"
        line = shlex.join(["ls", "-l", str(path)])
        raise ProblemError(what, value=str(path), allowed="a file with read permission", next_call=line)
    return path


def _existing(text: str, base: Path) -> str:
    return "an existing file" + ("" if Path(text).is_absolute() else f"; relative paths start at {base}")


def _said(name: str) -> str:
    """What error texts call a file: its kind, such as `package`, or `file for` and its argument."""
    kind = "folder" if name == "cwd" else "file"
    return _FILES[name][0] if name in _FILES else f"{kind} for {argument(name)}"


def optional_file(name: str, text: str, base: Path | None = None) -> Path | None:
    """Like `file`, but None for empty text; `base` defaults to this process's directory."""
    return file(name, text, base or here()) if text else None


def _mode(name: str, path: Path, allowed: str) -> int:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise ProblemError(f"no such {_said(name)}{_like(path)}", value=str(path), allowed=allowed) from None
    except (OSError, ValueError) as error:  # the name is too long, or a part of the path is a file
        why = cause(error) if isinstance(error, OSError) else str(error)
        what = f"the {_said(name)} cannot be reached: {why}"
        raise ProblemError(what, value=str(path)[:300], allowed=allowed) from None


def _like(path: Path) -> str:
    """` (did you mean 'x'?)` for a file of the same suffix with a similar name, or ""."""
    try:
        names = [each.name for each in islice(path.parent.iterdir(), MOST_NAMES)]
        return args.closest(path.name, [each for each in names if path.suffix in ("", Path(each).suffix)])
    except OSError:
        return ""


def check_program(argv: list[str], env: Mapping[str, str], cwd: Path) -> None:
    """Raise ProblemError unless the first word of `argv` is a program that can be started."""
    name = argv[0] if argv else ""
    if "/" in name or name in (".", "..") or ((cwd / name).is_file() and not os.access(cwd / name, os.X_OK)):
        path = file("command", name, cwd)
        if not os.access(path, os.X_OK):
            allowed = "a program, a script (.py) or a package (.pt2); a log with --log"
            raise ProblemError("not executable, and no script or package", value=str(path), allowed=allowed)
        return
    search_path = env.get("PATH") or os.environ.get("PATH", os.defpath)
    if not name or not shutil.which(name, path=search_path):
        here = f", such as ./{name}" if name and (cwd / name).is_file() else ""
        allowed = f"a program on PATH, or the path of one{here}"
        raise ProblemError(f"no such program{_like(cwd / name)}", value=name[:300], allowed=allowed)


def package_file(text: str, base: Path, model_name: str | None = None) -> Path:
    """Return the path of the package. Reject an exported program, but no damaged package: it is diagnosed."""
    path = file("package", text, base)
    if is_exported_program(path, model_name):
        raise ProblemError(
            "this is an exported program, which is not compiled yet",
            value=str(path),
            allowed=COMPILED,
            next_call="pass it as `exported`, or compile it: "
            + shlex.join(["aoti-debug", "compile-with-flags", str(path)]),
        )
    return path


def exported_file(text: str, base: Path) -> Path:
    """The file of an exported program. Raises ProblemError if it is empty, cut off or compiled."""
    path = file("exported", text, base)
    error = _why_no_package(path)
    if error is None or error.slug in ("empty_file", "not_a_zip", "truncated_zip"):
        what = error.what if error else f"{path} is a compiled AOTInductor package, not an exported program"
        line = 'torch.export.save(program, "program.pt2") writes one in Python'
        raise ProblemError(what, allowed=_FILES["exported"][1], next_call=line)
    return path


def is_exported_program(path: Path, model_name: str | None = None) -> bool:
    """Whether the file is a `torch.export.save`d archive. False for anything unreadable."""
    error = _why_no_package(path, model_name)
    return error is not None and error.slug == "torch_export_archive"


def _why_no_package(path: Path, model_name: str | None = None) -> PackageError | None:
    """Return why the file is not an AOTInductor package. None if it is one.

    Raise `PackageError` for a package that has models, but none named `model_name`.
    """
    from mcp_server.package.archive import open_package  # late import, so that the server starts fast

    try:
        open_package(path, model_name)
    except PackageError as error:
        if error.slug == "unknown_model":
            raise
        return error
    return None


EXAMPLE = (
    'specs such as [{"shape": [8, 64], "dtype": "float32", "device": "cpu", "low": 0, "high": 1}], '
    "or the path of a torch.save'd list"
)
EXACT = 2.0**53  # the worker draws in float64, which represents every integer up to this one

# Names of torch.dtype, torch 2.8-2.15; the worker asks torch itself.
_DTYPE = re.compile(
    r"(?:torch\.)?(?:(?:float|complex|bits|quint)\d\w*|q?u?int(?:[1-8]|16|32|64)|float|double|half|bfloat16|complex\d+|cfloat|"
    r"cdouble|chalf|int|long|short|bool)"
)
_WHOLE = re.compile(r"(?P<sign>u?)int(?P<bits>\d+)")
_OTHER_NAMES = {"short": "int16", "int": "int32", "long": "int64", "bool": "uint1"}
_SPECS = TypeAdapter(list[TensorSpec])


def inputs_of(inputs: args.InputsArgument, base: Path) -> Path | list[TensorSpec] | None:
    """A file of tensors, or specs (from a list or JSON text). None if nothing is given."""
    if isinstance(inputs, str) and inputs.endswith(".pt2"):
        raise ProblemError("this is a package, not inputs", value=inputs, allowed=EXAMPLE)
    if isinstance(inputs, str) and not inputs.lstrip().startswith("["):
        return file("inputs", inputs, base) if inputs else None
    if isinstance(inputs, str):
        try:
            inputs = json.loads(inputs)
        except (ValueError, RecursionError) as error:
            what = f"{argument('inputs')} looks like specs but is not JSON ({error})"
            raise ProblemError(what, value=str(inputs)[:120], allowed=EXAMPLE) from error
    try:
        specs = _SPECS.validate_python(inputs)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        value = str(first["input"])[:120]
        raise ProblemError(f"inputs{where}: {first['msg']}", value=value, allowed=EXAMPLE) from error
    for place, spec in enumerate(specs):
        _check_spec(f"inputs[{place}]", spec)
    return specs


def _check_tensors(inputs: Path, package: Path, model_name: str | None) -> None:
    """Raise ProblemError for a file of torch.save without a tensor, if the package takes some."""
    from mcp_server.package.archive import open_package  # late import, so that the server starts fast
    from mcp_server.package.mismatch import taken

    with suppress(OSError, zipfile.BadZipFile, PackageError), zipfile.ZipFile(inputs) as saved:
        parts = {name.split("/")[1] for name in saved.namelist() if "/" in name}  # `data` has the storages
        takes = "" if "data" in parts else taken(open_package(package, model_name).inputs)
        if takes and "data.pkl" in parts:
            line = f'torch.save([x1, x2], "{inputs.name}") in your program, right before the failing call'
            what = f"the {_said('inputs')} holds no tensors"
            raise ProblemError(what, value=str(inputs), allowed=f"the tensors {takes}", next_call=line)


def _check_spec(where: str, spec: TensorSpec) -> None:
    """Check the dtype, and that it can represent `low` and `high` (0 and 1 by default)."""
    if not _DTYPE.fullmatch(spec.dtype):
        allowed = "names of torch dtypes, such as float32 or int64"
        raise ProblemError(f"{where}: unknown dtype", value=spec.dtype[:80], allowed=allowed)
    low = 0.0 if spec.low is None else spec.low
    high = 1.0 if spec.high is None else spec.high
    value = f"low {low:g}, high {high:g}"
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ProblemError(f"{where}: low and high are finite numbers", value=value)
    if low > high:
        allowed = "low 0 and high 1 by default"
        raise ProblemError(f"{where}: low is greater than high", value=value, allowed=allowed)
    plain = spec.dtype.removeprefix("torch.")
    whole = _WHOLE.fullmatch(_OTHER_NAMES.get(plain, plain))
    if whole is None:  # other dtypes round any value
        return
    bits = int(whole["bits"])
    first, last = (0.0, 2.0**bits - 1) if whole["sign"] else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    first, last = max(first, -EXACT), min(last, EXACT)
    if (spec.low is not None and not first <= low) or (spec.high is not None and not high <= last):
        allowed = f"{first:.0f} to {last:.0f}"
        raise ProblemError(f"{where}: {spec.dtype} has no such values", value=value, allowed=allowed)
