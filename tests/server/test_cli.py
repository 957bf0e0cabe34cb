"""The command line as a user meets it: a real process, its exit code, its two streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server import __version__
from mcp_server.cli import main
from mcp_server.operations.arguments import Operation
from mcp_server.operations.table import OPERATIONS
from tests.conftest import ZooPackage
from tests.server.clients import ROOT

CLI = [sys.executable, "-c", "from mcp_server.cli.main import main; main()"]
GOOD = '[{"shape": [4, 6], "dtype": "int64", "low": 0, "high": 9}]'

Run = Callable[..., subprocess.CompletedProcess[str]]
Typed = Callable[..., tuple[int, str, str]]


def environment(tmp_path: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    return {**inherited, "AOTI_DEBUG_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command line in a pipe, with a state directory of its own."""
    env = {**os.environ, "AOTI_DEBUG_STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    env.pop("FORCE_COLOR", None)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**environment(tmp_path), **variables}
        argv = [*CLI, *arguments]
        return subprocess.run(
            argv, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=300
        )

    return run


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typed:
    """Runs a command line inside this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTI_DEBUG_STATE", str(tmp_path / "state"))

    def typed(*arguments: str) -> tuple[int, str, str]:
        code = main.run(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return typed


def test_help_lists_every_operation(typed: Typed) -> None:
    """The help names each command of the table and the exit codes."""
    code, out, _ = typed("--help")
    assert code == 0
    assert all(operation.name.replace("_", "-") in out for operation in OPERATIONS)
    assert "3 inconclusive" in out


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_each_help_has_examples(typed: Typed, operation: Operation) -> None:
    """Every command's help describes its options and ends in examples that begin with the command."""
    code, out, _ = typed(operation.name, "-h")
    assert code == 0
    assert f"aoti-debug {operation.name.replace('_', '-')}" in out.split("Examples:")[1]


def test_version(run: Run) -> None:
    """--version prints the version and nothing else."""
    assert run("--version").stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["diagnose"], "no workload given"),
        (["diagnose", "no.pt2"], "package does not exist"),
        (["diagnose", "no.py", "--env", "A"], "--env wants NAME=VALUE"),
        (["diagnose", "no.pt2", "--timeout-s", "0"], "argument 'timeout_s'"),
        (["diagnose", "m.pt2", "extra"], "a .pt2 takes no arguments"),
        (["run_deterministic", "no.py", "--repeats", "0"], "argument 'repeats'"),
        (["explain-error"], "either as text or as a log file"),
        (["compile-with-flags"], "Missing argument"),
        (["diagnos"], "No such command"),
        (["wait_job"], "No such command"),
    ],
)
def test_wrong_calls(typed: Typed, arguments: list[str], said: str) -> None:
    """A wrong call says what is wrong on stderr, prints nothing on stdout and exits with 2."""
    code, out, err = typed(*arguments)
    assert code == 2
    assert said in err
    assert out == ""
    assert "Traceback" not in err


def test_a_wrong_call_of_the_process(run: Run) -> None:
    """The process exits with the same code, and without a traceback."""
    done = run("diagnose", "no.pt2")
    assert done.returncode == 2
    assert done.stderr.startswith("error: package does not exist")


def test_text_is_plain_in_a_pipe(run: Run) -> None:
    """Without a terminal there is no colour and nothing is folded; progress stays out of stdout."""
    done = run("explain-error", "--text", "index out of bounds: 0 <= tmp4 < ks1" + " x" * 200)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "index" in done.stdout


def test_json_is_the_result(run: Run) -> None:
    """--json prints one JSON object and nothing else, with control characters of the log gone."""
    done = run(
        "explain_error", "--text", "RuntimeError: index out of bounds: 0 <= tmp4 < ks1\x1b[31m", "--json"
    )
    result = json.loads(done.stdout)
    assert result["known"] and "index_out_of_bounds" in result["candidates"]
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_exit_codes_of_a_run(run: Run, zoo: ZooPackage) -> None:
    """0 for a workload that runs, 1 for one that fails; the same data as JSON."""
    package = str(zoo("ranker"))
    fine = run("run-deterministic", package, "-i", GOOD, "--repeats", "1", "--json")
    assert fine.returncode == 0, fine.stderr
    assert json.loads(fine.stdout)["pattern"] == "clean"
    failing = run(
        "run-deterministic",
        package,
        "-i",
        GOOD.replace('"low": 0, "high": 9', '"low": 90, "high": 99'),
        "--repeats",
        "1",
    )
    assert failing.returncode == 1, failing.stderr
    assert "index out of bounds" in failing.stdout


def test_an_interrupt_ends_the_child(run: Run, tmp_path: Path) -> None:
    """Ctrl-C during a run exits with 130, without a traceback, and leaves no process."""
    (tmp_path / "slow.py").write_text(
        "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(300)"
    )
    argv = [*CLI, "run-deterministic", "slow.py"]
    with subprocess.Popen(
        argv,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        limit = time.monotonic() + 60
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < limit and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_doctor(run: Run) -> None:
    """doctor names each need with its purpose, and how to get what is missing; this machine can compile.

    The first line says so, also where there is no GPU.
    """
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    needs = {need["name"]: need for need in found["needs"]}
    assert done.returncode == 0, done.stdout
    assert found["summary"].startswith(("what is essential is there", "everything is there"))
    assert needs["torch"]["standing"] == "ok"
    assert all(need["how"] for need in needs.values() if need["standing"] != "ok")


def test_doctor_without_torch(run: Run) -> None:
    """An interpreter without torch is the essential thing that is missing: exit 1 and the way out."""
    done = run("doctor", "--python", "/usr/bin/python3")
    if "none in" not in done.stdout:
        pytest.skip("the system's python has torch")
    assert done.returncode == 1
    assert "AOTI_DEBUG_PYTHON" in done.stdout


def test_a_launcher_comes_from_the_configuration(run: Run, tmp_path: Path) -> None:
    """AOTI_DEBUG_LAUNCHER is put before every child's argument list."""
    (tmp_path / "seen.py").write_text("import os; print('launched with', os.environ['MARK'])")
    call = ("run-deterministic", "seen.py", "--repeats", "1", "--json")
    done = run(*call, AOTI_DEBUG_LAUNCHER="/usr/bin/env MARK=it")
    assert done.returncode == 0, done.stderr
    log = json.loads(done.stdout)["runs"][0]["log"]["path"]
    assert "launched with it" in Path(log).read_text()
