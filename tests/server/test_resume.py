"""A stopped diagnosis says what it knows, and is taken up again where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.jobs.manager import Job, Manager
from mcp_server.jobs.store import Store
from mcp_server.model import Verdict
from mcp_server.operations.arguments import DiagnoseArguments, validated
from mcp_server.operations.table import command_line
from mcp_server.operations.work import recorded_request, remember, resumed
from mcp_server.server.running import answered
from tests.conftest import ZooPackage

CLI = [sys.executable, "-c", "from mcp_server.cli.main import main; main()"]
UNKNOWN = "job_00000000"


def asked_before(store: Store, operation: str, arguments: DiagnoseArguments) -> str:
    """The handle of an ended job that was asked this."""
    job = store.create(operation)
    remember(job.path, operation, arguments)
    job.release()
    return job.id


def test_a_handle_as_the_log_brings_back_what_was_asked(tmp_path: Path) -> None:
    """The workload is that of the job, its paths as they were meant; the budget is the new one."""
    store = Store(tmp_path)
    before = DiagnoseArguments(script="serve.py", script_args=["-v"], env={"A": "1"}, budget_s=20)
    handle = asked_before(store, "diagnose", before)
    for text in (handle, f"aoti-debug://jobs/{handle}"):
        again, job = resumed(store, DiagnoseArguments(log=text, budget_s=90))
        assert isinstance(again, DiagnoseArguments) and job == handle
        assert (again.script, again.script_args, again.env) == ("serve.py", ["-v"], {"A": "1"})
        assert (again.budget_s, again.cwd) == (90, str(Path.cwd()))


def test_only_a_diagnosis_is_taken_up(tmp_path: Path) -> None:
    """A job of another kind, one whose card is gone, and an unknown one are refused; a file is a log."""
    store = Store(tmp_path)
    handle = asked_before(store, "trace_launches", DiagnoseArguments())
    bare = store.create("diagnose")
    bare.release()
    for text in (handle, bare.id, UNKNOWN):
        with pytest.raises(ProblemError):
            resumed(store, DiagnoseArguments(log=text))
    assert recorded_request(bare.path) is None
    plain = DiagnoseArguments(log="crash.log")
    assert resumed(store, plain) == (plain, "")


def test_a_running_job_is_not_taken_up(tmp_path: Path) -> None:
    """Two turns of one job at a time would mix their evidence."""
    store = Store(tmp_path)
    job = store.create("diagnose")
    with pytest.raises(ProblemError, match="still runs"):
        Store(tmp_path).reopen(job.id)
    job.release()
    again = Store(tmp_path).reopen(job.id)
    assert again.path == job.path and store.is_running(store.find(job.id))
    again.release()


def test_a_stopped_job_answers_with_what_it_knew(tmp_path: Path) -> None:
    """The result so far comes with the handle, now and from the disk, and with the call that goes on."""
    known = Verdict(outcome="inconclusive", summary="the run failed; its cause is not known yet")

    async def work(job: Job) -> Verdict:
        job.knows(known)
        await anyio.sleep_forever()
        raise AssertionError

    async def stopped() -> list[dict[str, Any]]:
        store = Store(tmp_path)
        async with Manager.open(store) as manager:
            job = manager.start("diagnose", work)
            await manager.wait(job.id, 0.05)
            now = await manager.stop(job.id)
        async with Manager.open(store) as manager:
            return [await answered(now), await answered(await manager.wait(job.id, 0))]

    now, later = anyio.run(stopped)
    assert now["state"] == "stopped" and now["result"]["summary"] == known.summary
    assert {**later, "wall_s": 0} == {**now, "wall_s": 0}
    (step,) = now["next_steps"]
    assert validated(DiagnoseArguments, step["arguments"]).log == now["job_id"]


@pytest.mark.slow
def test_ctrl_c_and_resume_on_the_command_line(zoo: ZooPackage, tmp_path: Path) -> None:
    """Ctrl-C prints what is known and how to go on; going on proves the fault.

    It comes while the call is made, which takes a second: later steps may be over before it arrives.
    """
    package = zoo("ranker")
    inputs = package.with_name("ranker.bad-index.pt")
    env = {**os.environ, "AOTI_DEBUG_STATE": str(tmp_path)}
    argv = [*CLI, "diagnose", str(package), "--inputs", str(inputs)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=env) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "plain" in line:
                child.send_signal(signal.SIGINT)
                break
        out, err = child.communicate(timeout=30)
    assert child.returncode == 130 and "stopped during" in out, (out, err)
    handle = err.rsplit("--resume ", 1)[1].split()[0]
    argv = [*CLI, "diagnose", "--resume", handle, "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)
    verdict = Verdict.model_validate(json.loads(done.stdout))
    assert (verdict.category, verdict.confidence) == ("index_out_of_bounds", "proven")
    refused = subprocess.run([*argv, "--log", "x"], capture_output=True, text=True, env=env, timeout=60)
    assert refused.returncode == 2 and "--resume" in refused.stderr


@pytest.mark.slow
def test_a_budget_that_ended_names_the_command_that_goes_on(tmp_path: Path) -> None:
    """The command that is printed, and the tool call beside it, take the job up where the budget ended."""
    script = tmp_path / "slow.py"
    script.write_text("import time\ntime.sleep(30)\n")
    env = {**os.environ, "AOTI_DEBUG_STATE": str(tmp_path / "state")}
    argv = [*CLI, "diagnose", "--script", str(script), "--budget-s", "4"]
    done = subprocess.run([*argv, "--json"], capture_output=True, text=True, env=env, timeout=60)
    verdict = Verdict.model_validate(json.loads(done.stdout))
    again = validated(DiagnoseArguments, dict(verdict.next_steps[0].arguments))
    assert isinstance(again, DiagnoseArguments)
    before, handle = resumed(Store(tmp_path / "state"), again)
    assert isinstance(before, DiagnoseArguments)
    assert (before.script, before.budget_s, handle) == (str(script), 120, again.log)
    assert verdict.summary.endswith(f"aoti-debug diagnose --resume {handle} --budget-s 120")
    assert command_line(verdict.next_steps[0]).startswith(f"aoti-debug diagnose --resume {handle} ")
