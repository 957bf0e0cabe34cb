"""Flat arguments to a `Workload`, or to a question about a package: the one place that checks the choice."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mcp_server.errors import ProblemError
from mcp_server.jobs.environment import check_variable
from mcp_server.model import CommandWorkload, ExportedWorkload, PackageWorkload, ScriptWorkload, Workload
from mcp_server.operations.arguments import (
    BisectArguments,
    CallArguments,
    CheckArguments,
    CompareArguments,
    CompileArguments,
    DiagnoseArguments,
    DumpArguments,
    InspectArguments,
    LocateArguments,
    PairArguments,
    ProgramArguments,
    ReduceArguments,
    RunArguments,
    WorkloadArguments,
)
from mcp_server.operations.paths import (
    check_model,
    directory,
    exported_file,
    file,
    inputs_of,
    interpreter,
    package_file,
    program,
)
from mcp_server.operations.work import launcher
from mcp_server.tools.inspect_package import Question

HasPackage = ProgramArguments | CheckArguments | CallArguments | DumpArguments

# Which kinds of workload an optional argument means something for.
APPLIES_TO = {
    "script_args": ("script",),
    "inputs": ("package", "exported"),
    "model_name": ("package",),
    "device_index": ("package",),
    "extra_imports": ("package", "exported"),
}


def workload_of(arguments: ProgramArguments, base: Path) -> Workload:
    """The workload that `arguments` name; relative paths start at `cwd`, and that at `base`.

    Raises ProblemError: no workload or more than one, an argument that does not apply, a path that is
    missing or of the wrong kind, unreadable specs.
    """
    kind = _chosen_kind(arguments)
    _check_applicable(arguments, kind)
    return _BUILDERS[kind](arguments, directory("cwd", arguments.cwd, base))


def located_workload(
    arguments: LocateArguments, base: Path
) -> tuple[PackageWorkload | ScriptWorkload | CommandWorkload, Path | None]:
    """What to put under a checker, and the package that a command's host loads. Raises ProblemError."""
    host = bool(arguments.command and arguments.package)
    alone = arguments.model_copy(update={"package": ""}) if host else arguments
    workload = workload_of(alone, base)
    assert not isinstance(workload, ExportedWorkload)
    package = package_file(arguments.package, directory("cwd", arguments.cwd, base)) if host else None
    return workload, package


def checked_package(arguments: CheckArguments, base: Path) -> PackageWorkload | None:
    """The package to check with its inputs; None when none is given. Raises ProblemError."""
    if not arguments.package:
        if arguments.inputs:
            raise ProblemError("inputs are checked against a package, and none is given")
        return None
    return _package(arguments, directory("cwd", arguments.cwd, base))


def called_package(arguments: CallArguments, base: Path) -> PackageWorkload:
    """The package to call, with its inputs. Raises ProblemError."""
    return _package(arguments, directory("cwd", arguments.cwd, base))


def dumped_model(arguments: DumpArguments, base: Path) -> PackageWorkload | ExportedWorkload:
    """The package or exported program to look into. Raises ProblemError."""
    if bool(arguments.package) == bool(arguments.exported):
        raise ProblemError("give one model", allowed="either package or exported")
    cwd = directory("cwd", arguments.cwd, base)
    return _package(arguments, cwd) if arguments.package else _exported(arguments, cwd)


def exported_program(arguments: CompileArguments, base: Path) -> ExportedWorkload:
    """The exported program to compile. Raises ProblemError."""
    cwd = directory("cwd", arguments.cwd, base)
    return ExportedWorkload(
        exported=exported_file(arguments.exported, cwd),
        extra_imports=arguments.extra_imports,
        **_surroundings(arguments, cwd),
    )


def compared_model(
    arguments: CompareArguments, base: Path
) -> tuple[PackageWorkload | ExportedWorkload | ScriptWorkload, Path | None]:
    """What to compare, and the exported program of a package. Raises ProblemError."""
    if not (arguments.script or arguments.exported):
        raise ProblemError("nothing to compare with", allowed="exported, package and exported, or script")
    model = _pair_model(arguments, base)
    if isinstance(model, PackageWorkload):
        return model, exported_file(arguments.exported, directory("cwd", arguments.cwd, base))
    return model, None


def reduced_model(
    arguments: ReduceArguments, base: Path
) -> PackageWorkload | ExportedWorkload | ScriptWorkload:
    """What to cut down: of a package with its program the one that the scope needs. Raises ProblemError."""
    if arguments.scope == "graph" and arguments.exported:
        arguments = arguments.model_copy(update={"package": ""})
    return _pair_model(arguments, base)


def bisected_program(arguments: BisectArguments, base: Path) -> ExportedWorkload | ScriptWorkload:
    """The program to compile again and again. Raises ProblemError for a package without it."""
    alone = arguments.model_copy(update={"package": ""}) if arguments.exported else arguments
    model = _pair_model(alone, base)
    if isinstance(model, PackageWorkload):
        raise ProblemError(
            "a package cannot be compiled again: it does not hold the program that it was compiled from",
            value=str(model.package),
            allowed="exported=that program (torch.export.save), or script",
        )
    return model


def _pair_model(arguments: PairArguments, base: Path) -> PackageWorkload | ExportedWorkload | ScriptWorkload:
    """The script, the package, or the exported program, in this order."""
    cwd = directory("cwd", arguments.cwd, base)
    if arguments.script:
        if arguments.package or arguments.exported or arguments.inputs or arguments.extra_imports:
            raise ProblemError("a script brings its own model and inputs", allowed="script alone")
        return _script(arguments, cwd)
    if arguments.script_args:
        raise ProblemError("script_args are given without a script", allowed="with script")
    if arguments.package:
        return PackageWorkload(package=package_file(arguments.package, cwd), **_called(arguments, cwd))
    if arguments.exported:
        return _exported(arguments, cwd)
    raise ProblemError("no model given", allowed="exported, package or script")


def chosen_kinds(arguments: ProgramArguments) -> list[str]:
    """The kinds of workload that the arguments name."""
    return [kind for kind in _BUILDERS if getattr(arguments, kind, None)]


def _chosen_kind(arguments: ProgramArguments) -> str:
    kinds = chosen_kinds(arguments)
    if len(kinds) == 1:
        return kinds[0]
    allowed = "exactly one of " + ", ".join(k for k in _BUILDERS if hasattr(arguments, k))
    if not kinds:
        raise ProblemError("no workload given", allowed=allowed)
    raise ProblemError("more than one workload given", value=", ".join(kinds), allowed=allowed)


def _check_applicable(arguments: ProgramArguments, kind: str) -> None:
    for name, kinds in APPLIES_TO.items():
        default = type(arguments).model_fields[name].default
        if kind not in kinds and getattr(arguments, name) != default:
            raise ProblemError(f"{name} does not apply to a {kind}", allowed=f"with {' or '.join(kinds)}")


def _script(arguments: ProgramArguments | PairArguments, cwd: Path) -> ScriptWorkload:
    script = file("script", arguments.script, cwd)
    return ScriptWorkload(script=script, args=arguments.script_args, **_surroundings(arguments, cwd))


def _package(arguments: HasPackage, cwd: Path) -> PackageWorkload:
    # Another file in the place of the package may be the very fault that is to be diagnosed.
    if isinstance(arguments, DiagnoseArguments):
        package = file("package", arguments.package, cwd)
        check_model(package, arguments.model_name)
    else:
        package = package_file(arguments.package, cwd, arguments.model_name)
    return PackageWorkload(
        package=package,
        model_name=arguments.model_name,
        device_index=arguments.device_index,
        **_called(arguments, cwd),
    )


def _exported(arguments: WorkloadArguments | DumpArguments | PairArguments, cwd: Path) -> ExportedWorkload:
    return ExportedWorkload(exported=exported_file(arguments.exported, cwd), **_called(arguments, cwd))


def _called(arguments: HasPackage | PairArguments, cwd: Path) -> dict[str, Any]:
    """The inputs of a call and what must be there for it."""
    return {
        "inputs": inputs_of(arguments.inputs, cwd),
        "extra_imports": arguments.extra_imports,
        **_surroundings(arguments, cwd),
    }


def _command(arguments: ProgramArguments, cwd: Path) -> CommandWorkload:
    if not launcher():  # under a launcher it may be on another machine
        program(arguments.command, arguments.env.get("PATH") or os.environ.get("PATH", os.defpath), cwd)
    return CommandWorkload(argv=arguments.command, **_surroundings(arguments, cwd))


def _surroundings(arguments: RunArguments, cwd: Path) -> dict[str, Any]:
    for name, value in arguments.env.items():
        check_variable(name, value)
    return {
        "cwd": cwd,
        "env": arguments.env,
        "python": interpreter(arguments.python, cwd),
        "timeout_s": arguments.timeout_s,
    }


_BUILDERS: dict[str, Callable[[Any, Path], Workload]] = {
    "script": _script,
    "package": _package,
    "exported": _exported,
    "command": _command,
}


SUBJECTS = ("launch", "kernel", "buffer", "symbol", "input", "constant", "location", "assertion")


def question_of(given: InspectArguments) -> Question | None:
    """The question, None for the overview. Raises ProblemError for two at once.

    An assertion may come with the kernel that printed it.
    """
    asked = [name for name in SUBJECTS if getattr(given, name) not in ("", -1)]
    if len(asked) > 1 and set(asked) != {"assertion", "kernel"}:
        raise ProblemError(
            "more than one question", value=", ".join(asked), allowed="one of " + ", ".join(SUBJECTS)
        )
    if given.generated_line >= 0 and "assertion" not in asked:
        raise ProblemError("generated_line goes with an assertion")
    if not asked:
        return None
    values = {name: getattr(given, name) for name in asked}
    return Question(**values, generated_line=given.generated_line if given.generated_line >= 0 else None)
