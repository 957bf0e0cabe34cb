"""What was diagnosed and on which machine, kept as a file for reports."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from mcp_server import __version__
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.jobs.command import child_environment, looks_secret
from mcp_server.jobs.store import storing
from mcp_server.model import SUBJECT_FILE, Artifact, Record
from mcp_server.runtime.context import Context
from mcp_server.worker.events import Torch

# Variables that change how a package is built or run; the rest of the environment is nobody's business.
TELLING = re.compile(
    r"(?!AOTI_DEBUG_)(TORCH|PYTORCH_|AOT_|AOTI_|INDUCTOR_|CUDA_|TRITON_|OMP_|MKL_)\w*|LD_PRELOAD|CC|CXX"
)
NVIDIA = Path("/proc/driver/nvidia")


def machine_facts() -> dict[str, str]:
    """System, processor, GPUs and driver in words; what is not known is left out."""
    gpus = [_line(path, r"^Model:\s*(.+)$") for path in sorted(NVIDIA.glob("gpus/*/information"))]
    processor = _line(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.+)$")
    facts = {
        "system": platform.platform(),
        "processor": f"{processor}, {os.cpu_count()} cores",
        "GPU": ", ".join(filter(None, gpus)),
        "driver": _line(NVIDIA / "version", r"\A(?:NVRM version: )?(.*)"),
    }
    return {name: value for name, value in facts.items() if value}


def variables(asked: Mapping[str, str]) -> dict[str, str]:
    """The telling variables that a child gets, those that look like secrets left out."""
    found = child_environment(asked)
    return {
        name: value
        for name, value in sorted(found.items())
        if TELLING.fullmatch(name) and not looks_secret(name, value)
    }


def _line(path: Path, pattern: str) -> str:
    """What the first line of that form in a file says; empty for a file that cannot be read."""
    try:
        found = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return found[1].strip() if found else ""


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


def leave_subject(case: DiagnosisState, context: Context) -> Artifact:
    """Write the suspect call and its surroundings, as far as they are known, into the job's directory.

    Raises ProblemError when the disk refuses.
    """
    workload, call = case.workload, case.package_call if case.call is not None else None
    python = workload.python if workload and workload.python else context.python
    # The version that a worker reported; none where none ran.
    workers = [run.worker for run in case.runs.values()] + [case.interpreted, case.operators]
    events = [event for worker in workers if worker is not None and (event := worker.last(Torch))]
    torch = events[0].version if events else ""
    if events and events[0].cuda:
        torch = f"{torch}, CUDA {events[0].cuda}"
    facts = {"aoti-debug": __version__, "torch": torch, "interpreter": str(python), **machine_facts()}
    if case.package is not None:
        facts["package"] = f"compiled for {case.package.device_type}"
    asked = workload.env if workload else {}
    subject = Subject(
        package=call.package if call else None,
        model_name=call.model_name if call else "model",
        inputs=call.inputs if call and isinstance(call.inputs, Path) else None,
        extra_imports=call.extra_imports if call else [],
        script=getattr(case.workload, "script", None),
        log=case.own_run.finished.output if case.own_run is not None else None,
        environment={name: value for name, value in {**facts, **variables(asked)}.items() if value},
    )
    path = context.directory / SUBJECT_FILE
    with storing(context.directory):
        path.write_text(subject.model_dump_json(indent=1))
    return context.artifact(path, "what was diagnosed, and where: `aoti-debug report` reads it")
