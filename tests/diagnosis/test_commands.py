"""The command of each piece of evidence can be run."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import mcp_server.diagnosis
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.next_steps import ON_THE_CALL, call_arguments, command_for
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.logs.log import read_log
from mcp_server.model import PackageWorkload
from mcp_server.worker.protocol import ReplayRequest
from tests.conftest import ZooPackage
from tests.diagnosis.support import (
    capture,
    intervention,
    package_case,
    trial,
    worker_run,
)
from tests.server.agent import parse

SOURCES = Path(mcp_server.diagnosis.__file__).parent
STEP = r'(?:\bstep=|\bseen\(\s*)"(\w+)"'
STEPS = sorted({s for f in SOURCES.rglob("*.py") for s in re.findall(STEP, f.read_text())})
# Said by us; brings its own command; read from a file that no command of ours shows.
ASKED_AGAIN = ("interpret", "watch_operators")
OTHERWISE = {
    "bisect",
    "capture",
    "compare_with_eager",
    "run_alone",
    *ASKED_AGAIN,
}  # have tests of their own
WITHOUT = {"note", "intervention", "read_exported", "read_source"}


def full_case(zoo: ZooPackage) -> DiagnosisState:
    """A case in which every kind of evidence can have come up."""
    case = package_case(zoo("ranker"))
    case.log, case.log_source = read_log(["Segmentation fault"]), "a log.txt"
    case.interpreted = case.operators = case.repeated = worker_run()
    case.trials["key"] = replace(trial(intervention(), Effect.GONE), command="aoti-debug try-fix first")
    case.capture = capture()
    return case


def test_the_detectors_name_steps() -> None:
    """The list that is checked below is that of the sources, and the table of commands has no idle row."""
    assert set(ON_THE_CALL) <= set(STEPS)


@pytest.mark.parametrize("step", [s for s in STEPS if s not in WITHOUT | OTHERWISE])
def test_evidence_brings_a_command_of_ours(zoo: ZooPackage, step: str) -> None:
    """Command, options and arguments are those that the command line takes."""
    parse(command_for(step, full_case(zoo)))


@pytest.mark.parametrize("step", STEPS)
def test_no_command_is_made_up(step: str) -> None:
    """Where there is no package, no inputs, no run and no log, there is nothing to run."""
    assert command_for(step, DiagnosisState(None)) == ""


def test_a_command_brings_what_the_call_needs(zoo: ZooPackage) -> None:
    """Model name, device, imports and variables are part of the command, and of the next call."""
    case = full_case(zoo)
    assert case.call is not None and isinstance(case.workload, PackageWorkload)
    request: ReplayRequest = {
        "model_name": "small",
        "device_index": 1,
        "extra_imports": ["ops.py"],
        "inputs": "inputs.pt",
    }
    case.call = replace(case.call, request=request)
    case.workload = case.workload.model_copy(update={"env": {"OMP_NUM_THREADS": "1"}})
    command = command_for("run", case)
    parse(command)
    for wanted in (
        "--model-name small",
        "--device-index 1",
        "--extra-imports ops.py",
        "--env OMP_NUM_THREADS=1",
    ):
        assert wanted in command
    assert shlex.split(command_for("interpret", case))[:2] == ["env", "OMP_NUM_THREADS=1"]
    assert call_arguments(case)["model_name"] == "small" and call_arguments(case)["env"] == case.workload.env
