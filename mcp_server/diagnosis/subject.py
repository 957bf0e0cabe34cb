"""What was diagnosed and where, as a file beside the evidence: for reports, so that no verdict repeats it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from mcp_server import __version__
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.surroundings import machine_facts, variables
from mcp_server.jobs.private import storing
from mcp_server.model import Artifact, Record
from mcp_server.steps.context import Context

FILE = "subject.json"


class Subject(Record):
    """`journal` are the files of the capture hook, `log` what the user's own run printed.

    `environment` names facts of machine, interpreter, package and variables in words.
    """

    package: Path | None = None
    model_name: str = "model"
    inputs: Path | None = None
    extra_imports: list[str] = Field(default_factory=list)
    script: Path | None = None
    log: Path | None = None
    environment: dict[str, str] = Field(default_factory=dict)


def leave_subject(case: Case, context: Context) -> Artifact:
    """Write the subject of the case into the job's directory. Raises ProblemError when the disk refuses."""
    path = context.directory / FILE
    with storing(context.directory):
        path.write_text(subject_of(case, context).model_dump_json(indent=1))
    return context.artifact(path, "what was diagnosed, and where: `aoti-debug report` reads it")


def subject_of(case: Case, context: Context) -> Subject:
    """The suspect call and its surroundings, as far as they are known."""
    call, plain = case.call, case.plain
    request = call.request if call is not None else {}
    return Subject(
        package=call.package if call is not None else None,
        model_name=str(request.get("model_name", "model")),
        inputs=call.inputs if call is not None else None,
        extra_imports=[str(name) for name in request.get("extra_imports", ())],
        script=getattr(case.workload, "script", None),
        log=plain.finished.output if plain is not None else None,
        environment=_environment(case, context),
    )


def _environment(case: Case, context: Context) -> dict[str, str]:
    python = case.workload.python if case.workload and case.workload.python else context.python
    facts = {"aoti-debug": __version__, "torch": _torch(case), "interpreter": str(python), **machine_facts()}
    if case.package is not None:
        facts["package"] = f"compiled for {case.package.device_type}"
    asked = case.workload.env if case.workload else {}
    return {name: value for name, value in {**facts, **variables(asked)}.items() if value}


def _torch(case: Case) -> str:
    """The version that a worker reported; empty when none ran."""
    workers = [run.worker for run in case.runs.values()] + [case.interpreted, case.operators]
    told = [worker.last("torch") for worker in workers if worker is not None]
    found = next((event for event in told if event is not None), None)
    if found is None:
        return ""
    return f"{found['version']}, CUDA {found['cuda']}" if found.get("cuda") else str(found["version"])
