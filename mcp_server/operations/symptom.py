"""The flat arguments of a symptom, checked before anything runs."""

from __future__ import annotations

import os
from pathlib import Path

from mcp_server.diagnosis.symptom import Symptom
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload, Workload
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.paths import file, program


def symptom_of(given: DiagnoseArguments, workload: Workload | None) -> Symptom:
    """What the user sees, and what the outputs are to be.

    Raises ProblemError: an expectation or a check of what is no call of a package, a file that is missing, a
    command that cannot be started, tolerances without an expectation.
    """
    if (given.rtol or given.atol) and not given.expect:
        raise ProblemError("tolerances are given without an expectation", allowed="with expect")
    if given.expect or given.check:
        _check_call(given, workload)
    cwd = workload.cwd if workload is not None and workload.cwd is not None else Path.cwd()
    if given.check:
        _check_command(given, cwd)
    return Symptom(
        seen=given.symptom or None,
        expect=file("expect", given.expect, cwd) if given.expect else None,
        rtol=given.rtol or None,
        atol=given.atol or None,
        check=tuple(given.check),
    )


def _check_call(given: DiagnoseArguments, workload: Workload | None) -> None:
    """Outputs are those of one call: of a package with its inputs."""
    name = "expect" if given.expect else "check"
    if not isinstance(workload, PackageWorkload):
        kind = workload.kind if workload is not None else "log"
        raise ProblemError(
            f"{name} does not apply to a {kind}, whose outputs are in no file",
            allowed="with package; a program may check its outputs itself and end with another status than 0",
        )
    if workload.inputs is None:
        raise ProblemError(f"{name} is given without inputs", allowed="with package and inputs")


def _check_command(given: DiagnoseArguments, cwd: Path) -> None:
    path = given.env.get("PATH") or os.environ.get("PATH", os.defpath)
    try:
        program(given.check, path, cwd)
    except ProblemError as problem:
        raise ProblemError(
            f"the check command cannot be started: {problem.what}",
            value=problem.value,
            allowed="a program that ends with status 0 for good outputs",
        ) from None
