"""The server as clients start it: what it imports, and a real package diagnosed through it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client

from tests.conftest import ZooPackage
from tests.server.clients import ROOT, data_of, drive, real_server, text_of

BAD = [{"shape": [4, 6], "dtype": "int64", "low": 90, "high": 99}]


def test_the_server_never_imports_torch() -> None:
    """Importing the server loads neither torch nor the command line's libraries."""
    heavy = "{'torch', 'triton', 'typer', 'rich'}"
    probe = f"import mcp_server.server.app, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_unusable_state_directory_is_replaced(tmp_path: Path) -> None:
    """When the state directory cannot be made, jobs go to the temporary directory, and stderr says so."""
    (tmp_path / "file").write_text("not a directory")
    probe = "from mcp_server.operations.work import open_store; print(open_store().root)"
    env = {**os.environ, "AOTI_DEBUG_STATE": str(tmp_path / "file" / "state"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"{tmp_path}/aoti-debug-")
    assert "cannot store a job" in done.stderr


@pytest.mark.slow
def test_a_package_is_diagnosed(zoo: ZooPackage, tmp_path: Path) -> None:
    """The verdict on a bad index comes back in both channels, within the limit, with readable artifacts."""
    package = str(zoo("ranker"))

    async def talk(client: Client) -> None:
        call = {"package": package, "inputs": BAD, "python": sys.executable, "wait_s": 0}
        answer = data_of(await client.call_tool("diagnose", call))
        while answer.get("state") == "running":
            result = await client.call_tool("wait_job", {"job_id": answer["job_id"], "wait_s": 45})
            assert len(text_of(result)) <= 10_000
            answer = data_of(result)
        assert answer["outcome"] == "fault"
        assert answer["category"] == "index_out_of_bounds"
        for artifact in answer["artifacts"]:
            await client.read_resource(artifact["uri"])

    drive(real_server(tmp_path / "state"), talk)


@pytest.mark.slow
def test_a_later_call_gives_the_same_verdict(zoo: ZooPackage, tmp_path: Path) -> None:
    """With torch imported before the call the verdict is the same, with the same evidence and runs."""
    package = str(zoo("ranker"))
    verdicts = []

    async def talk(client: Client) -> None:
        for _ in range(2):
            call = {"package": package, "inputs": BAD, "python": sys.executable, "wait_s": 45}
            verdicts.append(data_of(await client.call_tool("diagnose", call)))

    drive(real_server(tmp_path / "state"), talk)
    first, later = ([v["category"], v["confidence"], v["summary"], v["fix"], v["guilty"]] for v in verdicts)
    assert first == later and first[:2] == ["index_out_of_bounds", "proven"]
    facts = [[item["fact"] for item in v["evidence"]] for v in verdicts]
    assert facts[0] == facts[1]
    assert verdicts[0]["cost"]["runs"] == verdicts[1]["cost"]["runs"]


@pytest.mark.slow
def test_two_calls_at_once(zoo: ZooPackage, tmp_path: Path) -> None:
    """A quick question is answered while a run goes on."""
    package = str(zoo("ranker"))

    async def talk(client: Client) -> None:
        call = {"package": package, "inputs": BAD, "repeats": 2, "python": sys.executable, "wait_s": 0}
        job = data_of(await client.call_tool("run_deterministic", call))
        overview = data_of(await client.call_tool("inspect_package", {"package": package}))
        assert overview["overview"]["launches"] > 0
        assert data_of(await client.call_tool("stop_job", {"job_id": job["job_id"]}))["state"] == "stopped"

    drive(real_server(tmp_path / "state"), talk)
