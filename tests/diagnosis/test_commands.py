"""The command of each piece of evidence can be run."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mcp_server.diagnosis
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.next_steps import ON_THE_CALL, call_arguments, command_for, next_steps
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude
from mcp_server.logs.log import read_log
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.operations.arguments import TryArguments
from mcp_server.runtime.context import WORKER_MAIN, Context
from mcp_server.worker.protocol import ReplayRequest
from tests.conftest import ZooPackage
from tests.diagnosis.support import (
    capture,
    failing,
    intervention,
    package_case,
    suspect,
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
    "run_program_with_input_checks",
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


def test_a_program_is_run_alone_as_its_user_does(tmp_path: Path) -> None:
    """The script in its directory, with its variables and without the hook's."""
    script = tmp_path / "serve.py"
    line = command_for(
        "run_alone", DiagnosisState(ScriptWorkload(script=script, cwd=tmp_path, env={"A": "1"}))
    )
    assert str(script) in line and "A=1" in line and "AOTI_DEBUG" not in line
    checked = command_for("run_program_with_input_checks", DiagnosisState(ScriptWorkload(script=script)))
    assert str(script) in checked and "AOTI_RUNTIME_CHECK_INPUTS=1" in checked


def test_a_comparison_names_package_and_program(zoo: ZooPackage) -> None:
    """The program is that of the workload; without one there is nothing to compare with."""
    case = full_case(zoo)
    assert command_for("compare_with_eager", case) == ""
    program = zoo("ranker").with_name("ranker.exported.pt2")
    case.workload = ExportedWorkload(exported=program)
    command = command_for("compare_with_eager", case)
    parse(command)
    assert str(program) in shlex.split(command) and str(zoo("ranker")) in shlex.split(command)
    assert command_for("interpret", case) == command


AGAIN = ["-u", str(WORKER_MAIN), str(Path("job/request.json")), "/dev/stdout"]


@pytest.mark.parametrize("step", ASKED_AGAIN)
def test_the_worker_is_asked_again(zoo: ZooPackage, step: str) -> None:
    """What only the worker shows is the same request to it again, printed on the terminal."""
    assert shlex.split(command_for(step, full_case(zoo)))[1:] == AGAIN


def test_a_counter_test_is_repeated_as_it_was(zoo: ZooPackage) -> None:
    """The command is that of the verdict's own test, not of the last one that was tried."""
    case = full_case(zoo)
    case.trials["later"] = replace(
        trial(intervention("later"), Effect.SAME), command="aoti-debug try-fix later"
    )
    best = suspect("a", "nan_or_inf", "x", intervention=intervention())
    found = conclude([best], failing(case), Context(Path("job"), Path(sys.executable)))
    assert [e.command for e in found.evidence if e.step == "intervention"] == ["aoti-debug try-fix first"]


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


def test_a_program_is_run_as_it_was(zoo: ZooPackage) -> None:
    """A script's command holds its directory, variables and arguments; files are printed."""
    workload = ScriptWorkload(script=Path("a b.py"), args=["-v"], cwd=Path("w d"), env={"A": "1 2"})
    case = DiagnosisState(workload)
    assert command_for("script", case) == "cd 'w d' && env 'A=1 2' python 'a b.py' -v"
    assert command_for("capture", full_case(zoo)) == "cat job/capture-*.jsonl"


def test_weights_in_question_are_settled_by_those_that_were_meant(zoo: ZooPackage) -> None:
    """The call with them is the next step, in words that try_fix takes."""
    (step,) = next_steps(suspect("a", "constants", "weight"), full_case(zoo))
    assert step.tool == "try_fix" and TryArguments.model_validate(step.arguments).constants


def test_a_comparison_that_was_made_is_no_next_step(zoo: ZooPackage) -> None:
    """What check_devices shows is in the verdict as soon as the inputs were compared."""
    case, best = full_case(zoo), suspect("a", "input_mismatch", "args[0]")
    assert [step.tool for step in next_steps(best, case)] == ["check_devices"]
    case.done.append("compare_inputs")
    assert not next_steps(best, case)
