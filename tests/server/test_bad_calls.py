"""One table of wrong calls: what is typed, and what is said about it. Never a stack, never exit code 1."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_server.cli import main
from mcp_server.jobs.manager import JOBS_VARIABLE
from mcp_server.jobs.store import Store
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.work import CARD, remember
from mcp_server.operations.workload import LAUNCHER_VARIABLE

LONG = "a" * 300
SPECS = ("run-deterministic", "model.pt2", "-i")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with a pipe, a text, a package that is none, and jobs of all kinds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AOTI_DEBUG_STATE", str(tmp_path / "state"))
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "plain.txt").write_text("text\n")
    (tmp_path / "x.py").write_text("")
    (tmp_path / "model.pt2").write_text("no archive")
    (tmp_path / "bomb.yaml").write_text(
        "a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
        + "cases: *a8\n"
    )
    (tmp_path / "deep.yaml").write_text("cases: " + "[" * 100_000)
    store = Store(tmp_path / "state")
    jobs = {name: store.create(kind) for name, kind in (("run", "run_deterministic"), ("bad", "diagnose"))}
    remember(jobs["run"].path, "run_deterministic", DiagnoseArguments(script="x.py"))
    (jobs["bad"].path / CARD).write_text('{"operation": "diagnose", "base": "/", "arguments": {"script": 3}}')
    running = store.create("diagnose")
    remember(running.path, "diagnose", DiagnoseArguments(script="x.py"))
    deep = store.create("diagnose")
    (deep.path / CARD).write_text("[" * 100_000)
    (deep.path / "job.json").write_text("[" * 100_000)
    for job in (*jobs.values(), deep):
        job.release()
    (tmp_path / "ids.json").write_text(
        json.dumps({**{name: job.id for name, job in jobs.items()}, "running": running.id, "deep": deep.id})
    )
    yield tmp_path
    running.release()


CALLS: list[tuple[list[str], dict[str, str], str]] = [
    # jobs
    (["diagnose", "--resume", "job_1a2b3c4d"], {}, "no such job"),
    (["diagnose", "--resume", "../../../etc"], {}, "not a job handle"),
    (["diagnose", "--resume", "RUN"], {}, "not a diagnosis that can be taken up again"),
    (["diagnose", "--resume", "BAD"], {}, "damaged, or of another version"),
    (["diagnose", "--resume", "DEEP"], {}, "not a diagnosis that can be taken up again"),
    (["diagnose", "--resume", "RUNNING"], {}, "the job still runs"),
    (["report", "job_1a2b3c4d", "--out", "out"], {}, "no such job"),
    # what is named is no file, no program, no place
    (["explain-error", "--log", "pipe.log"], {}, "log is a pipe, not a file"),
    (["explain-error", "--log", "/dev/zero"], {}, "log is a device, not a file"),
    (["explain-error", "--log", "/proc/kmsg"], {}, "the log is a file of the kernel"),
    (["diagnose", "--log", "/proc/self/environ"], {}, "the log is a file of the kernel"),
    (["explain-error", "--log", f"{LONG}.log"], {}, "log cannot be reached: the path is too long"),
    (["explain-error", "--log", "x.py/y"], {}, "log cannot be reached"),
    (["diagnose", "~nosuchuser/x.py"], {}, "no such home directory"),
    (["run-deterministic", "x.py", "--python", "~nosuchuser/x"], {}, "no such home directory"),
    (["run-deterministic", "x.py", "--cwd", LONG], {}, "cwd cannot be reached"),
    (["diagnose", "."], {}, "command is a directory"),
    (["diagnose", "no-such-program"], {}, "no such program"),
    (["diagnose", "./plain.txt"], {}, "command is not executable"),
    # values that nothing can have
    ([*SPECS, '[{"shape": [2], "dtype": "flot32"}]'], {}, "inputs[0]: unknown dtype"),
    ([*SPECS, '[{"shape": [2], "low": 3, "high": 2}]'], {}, "low is greater than high"),
    ([*SPECS, '[{"shape": [2], "low": 3}]'], {}, "low is greater than high"),
    ([*SPECS, '[{"shape": [2], "dtype": "int64", "low": 0, "high": 1e100}]'], {}, "has no such values"),
    ([*SPECS, '[{"shape": [2], "dtype": "uint8", "low": -1}]'], {}, "allowed: 0 to 255"),
    ([*SPECS, "[" * 100_000], {}, "is not JSON"),
    (["sweep", "bomb.yaml", "--out", "out"], {}, "stands for more than"),
    (["sweep", "deep.yaml", "--out", "out"], {}, "the cases cannot be read"),
    (["serve", "--http", "--port", "0", "--allow-host", "*"], {}, "no host name"),
    (["serve", "--http", "--port", "0", "--allow-host", "box:8765"], {}, "no host name"),
    (["serve", "--share-jobs"], {}, "these options are for HTTP"),
    # settings
    (["doctor"], {LAUNCHER_VARIABLE: "nolauncher --x"}, "the program in AOTI_DEBUG_LAUNCHER is not there"),
    (["doctor"], {LAUNCHER_VARIABLE: "no 'end"}, "AOTI_DEBUG_LAUNCHER is no command line"),
    (["doctor"], {JOBS_VARIABLE: "many"}, "AOTI_DEBUG_JOBS is no number of jobs"),
]


@pytest.mark.parametrize(("typed", "variables", "said"), CALLS, ids=[" ".join(c[0])[:60] for c in CALLS])
def test_a_wrong_call_is_told_in_a_line(
    folder: Path,
    typed: list[str],
    variables: dict[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, nothing on standard output, on standard error what is wrong and no stack."""
    ids = json.loads((folder / "ids.json").read_text())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code = main.run([ids.get(word.lower(), word) if word.isupper() else word for word in typed])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and said in err
    assert "Traceback" not in err and len(err) < 2_000
