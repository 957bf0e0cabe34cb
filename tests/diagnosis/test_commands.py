"""The command beside each piece of evidence can be run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

import mcp_server.diagnosis
from mcp_server.diagnosis.case import Case, CounterResult
from mcp_server.diagnosis.commands import ON_THE_CALL, command_for
from mcp_server.evidence.log import read_log
from mcp_server.faces.app import app
from mcp_server.steps.context import WORKER_MAIN
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, run, worker_run

SOURCES = Path(mcp_server.diagnosis.__file__).parent
STEPS = sorted({s for f in SOURCES.rglob("*.py") for s in re.findall(r'step="(\w+)"', f.read_text())})
WORKER_STEPS = {"interpret", "counter_test"}
WITHOUT = {"note", "read_exported"}  # said by us; read from a file that no command of ours shows


def full_case(zoo: ZooPackage) -> Case:
    """A case in which every kind of evidence can have come up."""
    case = package_case(zoo("ranker"))
    case.log, case.log_source = read_log(["Segmentation fault"]), "a log.txt"
    case.interpreted = worker_run()
    case.counters["key"] = CounterResult(True, "passes", run("counter-1"))
    case.capture = capture()
    return case


def parse(command: str) -> None:
    """Let our own command line parse it; raises for an unknown command, option or missing argument."""
    program, name, *arguments = shlex.split(command)
    group = typer.main.get_command(app)
    assert program == "aoti-debug"
    context = group.make_context(program, ["--help"], resilient_parsing=True)
    subcommand = group.get_command(context, name)  # type: ignore[attr-defined]
    assert subcommand is not None, name
    subcommand.make_context(name, arguments, parent=context)


def test_the_detectors_name_steps() -> None:
    """The list that is checked below is that of the sources, and the table of commands has no idle row."""
    assert set(ON_THE_CALL) <= set(STEPS)


@pytest.mark.parametrize("step", [s for s in STEPS if s not in WORKER_STEPS | WITHOUT | {"capture"}])
def test_evidence_brings_a_command_of_ours(zoo: ZooPackage, step: str) -> None:
    """Command, options and arguments are those that the command line takes."""
    parse(command_for(step, full_case(zoo)))


@pytest.mark.parametrize("step", sorted(WORKER_STEPS))
def test_the_worker_is_asked_again(zoo: ZooPackage, step: str) -> None:
    """What only the worker shows is the same request to it again, printed on the terminal."""
    words = shlex.split(command_for(step, full_case(zoo)))
    assert words[1:] == ["-u", str(WORKER_MAIN), str(Path("job/request.json")), "/dev/stdout"]


def test_a_capture_is_read_from_its_journals(zoo: ZooPackage) -> None:
    """The journals of the run are shown as they are."""
    assert command_for("capture", full_case(zoo)) == "cat job/capture-*.jsonl"


@pytest.mark.parametrize("step", STEPS)
def test_no_command_is_made_up(step: str) -> None:
    """Where there is no package, no inputs, no run and no log, there is nothing to run."""
    assert command_for(step, Case(None)) == ""
