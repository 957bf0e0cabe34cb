"""Two tables of wrong calls, typed and sent by a client: what is said about them. Never a stack."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.cli import main
from mcp_server.jobs.manager import JOBS_VARIABLE
from mcp_server.jobs.store import Store
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.work import CARD, remember
from mcp_server.operations.workload import LAUNCHER_VARIABLE
from tests.server.test_stdio import Speaker, serving

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
    (["compare-with-eager", "x.pt2", "--ray", "auto"], {}, "--ray is for judging every launch"),
    (["compare-with-eager", "x.pt2", "--every-launch", "--shards", "2"], {}, "--shards is for a cluster"),
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


RESULT = 0
"""Not an error of the protocol: the tool's result says what is wrong, with `isError`."""
INVALID = -32602
UNKNOWN_METHOD = -32601

SPEC = {"shape": [2]}


def tool(name: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": name, "arguments": arguments}


def resource(uri: str) -> tuple[str, dict[str, Any]]:
    return "resources/read", {"uri": uri}


def package(**arguments: Any) -> tuple[str, dict[str, Any]]:
    return tool("run_deterministic", package="broken.pt2", **arguments)


BAD: list[tuple[tuple[str, dict[str, Any]], int, str]] = [
    # names and types
    (tool("diagnos"), RESULT, "unknown tool 'diagnos' (did you mean 'diagnose'?)"),
    (tool("diagnose", scrpt="x.py"), RESULT, "unknown argument 'scrpt' (did you mean 'script'?)"),
    (tool("diagnose", script=3), RESULT, "argument 'script'"),
    (tool("diagnose", script=["x.py"]), RESULT, "argument 'script'"),
    (tool("diagnose", script="x.py", budget_s="60"), RESULT, "argument 'budget_s'"),
    (tool("diagnose", script="x.py", budget_s=1e12), RESULT, "allowed: Stop after 1-86400 s"),
    (tool("diagnose", script="x.py", wait_s=-1), RESULT, "argument 'wait_s'"),
    (tool("diagnose", script="x.py", symptom="odd"), RESULT, "argument 'symptom'"),
    (tool("inspect_package"), RESULT, "missing argument 'package'"),
    (tool("inspect_package", package="x.py", offset=-1), RESULT, "argument 'offset'"),
    (tool("compile_with_flags", exported="x.py", flags={"A": None}), RESULT, "argument 'flags"),
    # what does not go together
    (tool("diagnose"), RESULT, "no workload given"),
    (tool("diagnose", script="x.py", package="broken.pt2"), RESULT, "more than one workload given"),
    (tool("diagnose", script="x.py", inputs="x.py"), RESULT, "inputs does not apply to a script"),
    (tool("check_devices", inputs=[SPEC]), RESULT, "inputs are checked against a package"),
    (tool("dump_kernel_io"), RESULT, "give one model"),
    (tool("compare_with_eager", package="broken.pt2"), RESULT, "nothing to compare with"),
    (tool("reduce"), RESULT, "no model given"),
    (tool("explain_error"), RESULT, "either as text or as a log file"),
    (tool("inspect_package", package="broken.pt2", launch=1, kernel="k"), RESULT, "more than one question"),
    # paths
    (tool("diagnose", script="none.py"), RESULT, "script does not exist"),
    (tool("diagnose", script="."), RESULT, "script is a directory, not a file"),
    (tool("diagnose", script="a\0b"), RESULT, "a path holds a NUL byte"),
    (tool("diagnose", script=LONG), RESULT, "the path is too long"),
    (tool("diagnose", script="~nosuchuser/x.py"), RESULT, "no such home directory"),
    (tool("diagnose", script="x.py", cwd="none"), RESULT, "cwd does not exist"),
    (tool("diagnose", script="x.py", python="x.py"), RESULT, "python is not executable"),
    (tool("diagnose", command=["no-such-program"]), RESULT, "no such program"),
    (tool("explain_error", log="pipe.log"), RESULT, "log is a pipe, not a file"),
    (tool("explain_error", log="/dev/zero"), RESULT, "log is a device, not a file"),
    (tool("diagnose", log="/proc/self/environ"), RESULT, "the log is a file of the kernel"),
    (tool("inspect_package", package="broken.pt2"), RESULT, "broken.pt2"),
    # values that nothing can have
    (
        tool("run_deterministic", script="x.py", env={"": "1"}),
        RESULT,
        "not a name of an environment variable",
    ),
    (tool("run_deterministic", script="x.py", env={"A": "\0"}), RESULT, "NUL character"),
    (package(inputs=[{"shape": [-1]}]), RESULT, "inputs[0].shape[0]"),
    (package(inputs=[{**SPEC, "dtype": "flot32"}]), RESULT, "inputs[0]: unknown dtype"),
    (package(inputs=[{**SPEC, "low": 3, "high": 2}]), RESULT, "low is greater than high"),
    (package(inputs=[{**SPEC, "dtype": "int64", "high": 1e100}]), RESULT, "has no such values"),
    (package(inputs="[" * 100_000), RESULT, "is not JSON"),
    # jobs
    (tool("wait_job", job_id="../../etc"), RESULT, "not a job handle"),
    (tool("wait_job", job_id="job_00000000"), RESULT, "no such job"),
    (tool("stop_job", job_id="job_00000000"), RESULT, "no such job"),
    (tool("diagnose", log="job_00000000"), RESULT, "no such job"),
    # resources and prompts
    (resource("aoti-debug://jobs/job_00000000/output.log"), INVALID, "no such job"),
    (resource("aoti-debug://jobs/..%2f..%2fetc/passwd"), INVALID, ""),
    (resource("aoti-debug://jobs/job_00000000/x?offset=abc"), INVALID, "offset is no number of bytes"),
    (resource("aoti-debug://kernels/k?package=none.pt2"), INVALID, "package does not exist"),
    (resource("aoti-debug://nothing"), INVALID, ""),
    (("prompts/get", {"name": "none"}), INVALID, "unknown prompt 'none'"),
    (("prompts/get", {"name": "debug_weights"}), INVALID, "missing argument 'workload'"),
    (("no/such/method", {}), UNKNOWN_METHOD, ""),
]


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Speaker]:
    """A server in a directory with a script, a pipe, and a file that is no package."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "x.py").write_text("")
    (folder / "broken.pt2").write_bytes(b"PK\3\4 cut")
    os.mkfifo(folder / "pipe.log")
    with serving(folder, project=folder) as speaker:
        yield speaker


@pytest.mark.parametrize(("asked", "code", "words"), BAD)
def test_a_bad_input_is_answered(
    speaker: Speaker, asked: tuple[str, dict[str, Any]], code: int, words: str
) -> None:
    """At once, with its code and what is wrong, in a few lines without a stack; then the server goes on."""
    number = speaker.ask(*asked)
    while (heard := speaker.hear()).get("id") != number:
        pass
    if code == RESULT:
        assert heard["result"]["isError"], heard
        said = heard["result"]["content"][0]["text"]
    else:
        assert heard["error"]["code"] == code, heard
        said = heard["error"]["message"]
    assert words in said
    assert "Traceback" not in said and "defect" not in said and len(said) < 2_000
    assert speaker.ping() < 2


def test_a_thousand_requests_at_once(tmp_path: Path) -> None:
    """Sent without waiting, as an agent with many threads may: each has its own answer, and none is lost."""
    with serving(tmp_path) as speaker:
        asked = [speaker.ask(("ping", "tools/list", "prompts/list")[n % 3]) for n in range(1_000)]
        answers = [speaker.hear() for _ in asked]
        assert sorted(answer["id"] for answer in answers) == asked
        assert all("result" in answer for answer in answers)
