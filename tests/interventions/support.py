"""Trials on real packages."""

from collections.abc import Sequence
from pathlib import Path

from mcp_server.diagnosis.interventions.base import Effect, Intervention, Trial
from mcp_server.diagnosis.interventions.run import TriedCall, call_of_package, try_interventions
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.model import PackageWorkload
from tests.served import served
from tests.worker.support import context_in


def the_call(package: Path, inputs: Path, **more: object) -> TriedCall:
    """The call of a package with the inputs of a file."""
    expect = more.pop("expect", None)
    assert expect is None or isinstance(expect, Path)
    workload = PackageWorkload(package=package, inputs=inputs, **more)  # type: ignore[arg-type]
    return call_of_package(workload, Symptom(expect=expect))


def offered(trial: Trial) -> bool:
    """Whether the failure disappeared with the change and nothing else was harmed: then it is the fix."""
    return trial.effect is Effect.GONE and trial.proves and not trial.side_effects


def tried(directory: Path, call: TriedCall, interventions: Sequence[Intervention]) -> list[Trial]:
    """Try each intervention on the call."""
    return served(try_interventions, context_in(directory), call, interventions)
