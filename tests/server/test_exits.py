"""Exit codes say what a script that calls `aoti-debug` wants to know: docs/cli.md has the table.

The same calls show that the event loop never reads a package: it answers all other requests meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import sys
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_server.cli import main
from mcp_server.cli.main import Exit, exit_code
from mcp_server.model import Outcome, Record, Verdict
from mcp_server.operations.table import OPERATIONS, command_name
from mcp_server.package import dataflow, kernels, wrapper
from tests.conftest import ZooPackage
from tests.server.clients import ROOT
from tests.zoo.names import THOROUGH, thorough


class Step(Record):
    """What results of steps have in common, as far as the exit code looks at it."""

    outcome: str = ""
    failure: str | None = None
    fault: str | None = None
    pattern: str = "clean"
    undecided: str = ""


@pytest.mark.parametrize(("outcome", "code"), [("no_fault", 0), ("fault", 1), ("inconclusive", 3)])
def test_a_verdict_by_its_outcome(outcome: Outcome, code: int) -> None:
    """A verdict that does not know is not a pass."""
    assert exit_code(Verdict(outcome=outcome, summary="")) == code


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (Step(), Exit.OK),
        (Step(failure="SIGSEGV"), Exit.FAULT),
        (Step(fault="read"), Exit.FAULT),
        (Step(pattern="flaky"), Exit.FAULT),
        (Step(undecided="no torch"), Exit.INCONCLUSIVE),
        # compare-with-eager
        (Step(outcome="agrees"), Exit.OK),
        (Step(outcome="differs"), Exit.FAULT),
        (Step(outcome="inconclusive"), Exit.INCONCLUSIVE),
        (Step(outcome="inconclusive", failure="eager fails"), Exit.FAULT),
        # try-fix
        (Step(outcome="fixed"), Exit.OK),
        (Step(outcome="passes"), Exit.OK),
        (Step(outcome="harmful"), Exit.FAULT),
        (Step(outcome="same"), Exit.FAULT),
        (Step(outcome="changed"), Exit.FAULT),
        (Step(outcome="no_failure"), Exit.INCONCLUSIVE),
        (Step(outcome="not_applicable"), Exit.INCONCLUSIVE),
        # reduce and bisect have the failure of the program
        (Step(outcome="reduced", failure="crash"), Exit.FAULT),
        (Step(outcome="replayed"), Exit.OK),
        (Step(outcome="not_reduced", failure="crash"), Exit.FAULT),
        (Step(outcome="decision", failure="crash"), Exit.FAULT),
        (Step(outcome="not_found", failure="crash"), Exit.FAULT),
        (Step(outcome="rounding", failure="differs"), Exit.OK),
    ],
)
def test_a_step_by_what_it_saw(result: Step, code: Exit) -> None:
    """Failing runs, faults that a checker saw, repeats that do not all pass, and outcomes that decide."""
    assert exit_code(result) == code


CALLS = {
    "diagnose": ["PACKAGE"],
    "check-devices": ["--package", "PACKAGE"],
    "run-deterministic": ["PACKAGE", "--repeats", "1"],
    "dump-kernel-io": ["--package", "PACKAGE"],
    "locate-fault": ["PACKAGE", "--plain-runs", "0"],
    "trace-launches": ["PACKAGE"],
    "try-fix": ["PACKAGE", "--change", "0: clamp 0 31"],
    "compare-with-eager": ["--package", "PACKAGE", "--exported", "EXPORTED"],
    "compile-with-flags": ["EXPORTED"],
    "reduce": ["--exported", "EXPORTED"],
    "bisect": ["--exported", "EXPORTED"],
}
"""How each command that runs something is called, without inputs."""
OTHERS = ("explain-error", "inspect-package", "repair", "report", "bundle", "doctor", "sweep")

ASSERTION = "index out of bounds: 0 <= tmp4 < ks1"
GOOD, BAD, PICKLED = "ranker.inputs.pt", "ranker.bad-index.pt", "pickled.pt"
NO_TORCH = dict.fromkeys(CALLS, 2) | {"diagnose": 3, "check-devices": 3}
UNREADABLE = dict.fromkeys(CALLS, 2) | {"diagnose": 1, "check-devices": 1, "run-deterministic": 1}
# What reads inputs in ways of its own; the others read them as run-deterministic does.
REFUSING = (
    set(CALLS) - {"compile-with-flags"}
    if THOROUGH
    else {"diagnose", "check-devices", "run-deterministic", "try-fix"}
)
BY_INPUTS = {
    GOOD: {
        "diagnose": 0,
        "check-devices": 0,
        "run-deterministic": 0,
        "dump-kernel-io": 0,
        "locate-fault": 0,
        "trace-launches": 0,
        "try-fix": 3,  # no failure to mend
        "compare-with-eager": 0,
        **({"reduce": 2, "bisect": 2} if THOROUGH else {}),  # no failure to keep; each compiles
    },
    BAD: {
        "diagnose": 1,
        "check-devices": 0,  # compares no values
        "run-deterministic": 1,
        "dump-kernel-io": 1,
        "locate-fault": 1,
        "trace-launches": 1,
        "try-fix": 0,  # the change mends it
        "compare-with-eager": 1,
    },
    PICKLED: {name: code for name, code in NO_TORCH.items() if name in REFUSING},
}


def test_the_tables_have_every_command() -> None:
    """The one above has all that run something, and docs/cli.md has one row for each command."""
    steps = {command_name(operation.name) for operation in OPERATIONS}
    assert steps == {*CALLS, "explain-error", "inspect-package"}
    text = (ROOT / "docs" / "cli.md").read_text()
    table = text.split("What that means for each command:")[1].split("Every command ends")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)} == {*CALLS, *OTHERS}


@pytest.fixture
def files(zoo: ZooPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The words of `CALLS` as paths; relative ones are of the zoo."""
    monkeypatch.chdir(zoo("ranker").parent)
    monkeypatch.setenv("AOTI_DEBUG_STATE", str(tmp_path / "state"))
    return {"PACKAGE": "ranker.pt2", "EXPORTED": "ranker.exported.pt2"}


def typed(command: str, names: dict[str, str], *more: str) -> int:
    return main.run([command, *(names.get(word, word) for word in CALLS[command]), *more])


@pytest.mark.parametrize("command", CALLS)
def test_a_wrong_argument(command: str, files: dict[str, str]) -> None:
    """An option that there is not, and a file that there is not: 2."""
    assert typed(command, files, "--nope") == 2
    assert typed(command, {"PACKAGE": "none.pt2", "EXPORTED": "none.pt2"}) == 2


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter that finds no torch."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S -E "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLS)
def test_no_torch(command: str, files: dict[str, str], bare_python: str) -> None:
    """A single step could not run; a diagnosis, and a check of inputs, are inconclusive."""
    inputs = () if command == "compile-with-flags" else ("-i", GOOD)
    assert typed(command, files, *inputs, "--python", bare_python) == NO_TORCH[command]


@pytest.mark.slow
@pytest.mark.parametrize("command", CALLS)
def test_an_unreadable_package(command: str, files: dict[str, str], tmp_path: Path) -> None:
    """A package that was cut: what diagnoses or loads it finds the fault, the others cannot do their work."""
    cut = tmp_path / "cut.pt2"
    cut.write_bytes(Path("ranker.pt2").read_bytes()[:5000])
    inputs = () if command == "compile-with-flags" else ("-i", GOOD)
    names = {"PACKAGE": str(cut), "EXPORTED": str(cut)}
    assert typed(command, names, *inputs, "--python", sys.executable) == UNREADABLE[command]


class Touch:
    """Runs a command where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def write_pickled(path: Path, touched: Path) -> None:
    """A file in the form of torch.save whose pickle runs a command."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pickled/data.pkl", pickle.dumps([Touch(touched)], protocol=2))
        archive.writestr("pickled/version", "3\n")
        archive.writestr("pickled/byteorder", "little")


@pytest.fixture
def on_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stacks of what opens an archive, parses a wrapper or builds a dataflow where an event loop runs."""
    found: list[str] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if asyncio._get_running_loop() is not None:
                frames = [f for f in traceback.extract_stack() if "mcp_server" in f.filename]
                found.append(
                    " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames[:-6:-1])
                )
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(zipfile.ZipFile, "__init__", watched(zipfile.ZipFile.__init__))
    monkeypatch.setattr(wrapper, "read_cpp_kernels", watched(kernels.read_cpp_kernels))
    monkeypatch.setattr(dataflow.Dataflow, "__init__", watched(dataflow.Dataflow.__init__))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "command", "code"),
    [
        pytest.param(
            inputs, command, code, marks=thorough if inputs == GOOD and command != "diagnose" else ()
        )
        for inputs, codes in BY_INPUTS.items()
        for command, code in codes.items()
    ],
)
def test_by_the_inputs(
    inputs: str, command: str, code: int, files: dict[str, str], tmp_path: Path, on_the_loop: list[str]
) -> None:
    """No fault, a fault, and pickled inputs, which are refused and never run.

    Whatever a command does with a package, it does in a thread.
    """
    path, touched = Path(inputs), tmp_path / "touched"
    if inputs == PICKLED:
        path = tmp_path / PICKLED
        write_pickled(path, touched)
    assert typed(command, files, "-i", str(path), "--python", sys.executable) == code
    assert not touched.exists()
    assert not on_the_loop, "\n".join(dict.fromkeys(on_the_loop))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code"),
    [
        pytest.param(["diagnose", "logarithm.pt2", "-i", "logarithm.bad-nan.pt"], 1, marks=thorough),
        pytest.param(["diagnose", "--exported", "ranker.exported.pt2", "-i", BAD], 1, marks=thorough),
        pytest.param(["compile-with-flags", "ranker.exported.pt2"], 0, marks=thorough),
        (["reduce", "--package", "ranker.pt2", "-i", GOOD, "--scope", "launch", "--launch", "0"], 0),
    ],
)
def test_other_forms(
    words: list[str], code: int, files: dict[str, str], zoo: ZooPackage, on_the_loop: list[str]
) -> None:
    """The same of NaN, of a program that is compiled first, and of one launch."""
    zoo("logarithm")
    assert main.run([*words, "--python", sys.executable]) == code
    assert not on_the_loop, "\n".join(dict.fromkeys(on_the_loop))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["explain-error", "--text", "index out of bounds: 0 <= tmp4 < ks1"], 0),
        (["explain-error", "--text", "all is well"], 0),
        (["explain-error", "--text", ASSERTION, "--package", "ranker.pt2"], 0),
        (["inspect-package", "ranker.pt2", "--assertion", ASSERTION], 0),
        (["inspect-package", "ranker.pt2", "--kernel", "none"], 2),
        (["report", "job_00000000", "--out", "out"], 2),
        (["bundle", "job_00000000", "--out", "out.zip"], 2),
        (["sweep", "none.yaml", "--out", "out"], 2),
    ],
)
def test_commands_that_run_nothing(
    arguments: list[str], code: int, files: dict[str, str], on_the_loop: list[str]
) -> None:
    """They answer, or cannot."""
    assert main.run(arguments) == code
    assert not on_the_loop, "\n".join(dict.fromkeys(on_the_loop))
