"""Coding agents with a model on loopback: what a model is shown of a diagnosis, and how a call ends.

Skipped unless `make test-clients` installed them.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.clients.agents import AGENTS, CUTTING, finish, gone, jobs, saved, started, stop, written
from tests.clients.conftest import Clients
from tests.clients.model import Model
from tests.conftest import ZooPackage
from tests.server import sample
from tests.server.clients import drive, real_server

pytestmark = [pytest.mark.clients, pytest.mark.slow]

BAD = [{"shape": [4, 6], "dtype": "int64", "low": 90, "high": 99}]
SHORT_LIMIT_S = 4
SKILL_AGENT = {"claude": "claude-code", "gemini": "gemini-cli"}  # as the skills CLI calls them
KNOWN = "RuntimeError: CUDA error: an illegal memory access was encountered"


def sleeper(ids: Path) -> tuple[str, dict[str, Any]]:
    """A call whose workload leaves a daemon behind and sleeps."""
    script = ids.with_suffix(".py")
    script.write_text(sample.PARENT)
    arguments = {"script": str(script), "script_args": [str(ids)], "python": sys.executable, "wait_s": 45}
    return "run_deterministic", arguments


@pytest.mark.parametrize("name", AGENTS)
def test_the_model_sees_the_whole_verdict(name: str, clients: Clients, zoo: ZooPackage) -> None:
    """First a handle that says how to go on, then the whole verdict; its artifacts are read by URI."""
    package = {"package": str(zoo("ranker")), "inputs": BAD, "python": sys.executable, "wait_s": 0}
    model = Model(("diagnose", package))
    with started(name, clients, model) as process:
        assert "done" in finish(process)
    handle, *_, verdict = model.data()
    assert handle["state"] == "running" and handle["next_steps"][0]["tool"] == "wait_job"
    assert verdict == saved(clients, handle["job_id"])["result"]
    assert (verdict["outcome"], verdict["category"]) == ("fault", "index_out_of_bounds")
    assert verdict["guilty"]["model_locations"] and verdict["evidence"] and verdict["fix"] and verdict["cost"]
    check_artifacts(clients, [artifact["uri"] for artifact in verdict["artifacts"]])


def check_artifacts(clients: Clients, uris: list[str]) -> None:
    """Another server on the same state directory reads them."""

    async def talk(client: Client) -> None:
        for uri in uris:
            assert (await client.read_resource(uri)).contents

    assert uris
    drive(real_server(Path(clients.environment()["AOTI_DEBUG_STATE"])), talk)


@pytest.mark.parametrize("name", AGENTS)
def test_the_model_is_told_of_the_skill(name: str, clients: Clients, clone: Path) -> None:
    """An installed skill is listed to the model, with the errors that it is for; so are the tools."""
    clients.run("skills", "add", str(clone), "-y", "-a", SKILL_AGENT.get(name, name))
    model = Model(("explain_error", {"text": KNOWN}))
    with started(name, clients, model) as process:
        finish(process)
    assert "illegal_memory_access" in model.data()[0]["candidates"]
    assert "Finds the cause of a failing AOTInductor model" in model.told


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_client_leaves_nothing_running(
    name: str, number: signal.Signals, clients: Clients, tmp_path: Path
) -> None:
    """Stopped in the middle of a call, the client takes the workload along; what had finished is kept."""
    ids = tmp_path / "ids"
    model = Model(("explain_error", {"text": KNOWN}), sleeper(ids))
    with started(name, clients, model) as process:
        pids = written(ids)
        stop(name, process, number)
        assert gone(pids)
    assert jobs(clients)["explain_error"] == "finished"


@pytest.mark.parametrize("name", CUTTING)
def test_a_call_over_the_clients_limit_is_stopped(name: str, clients: Clients, tmp_path: Path) -> None:
    """A client that cuts a call cancels it: its processes end at once, while the client goes on."""
    ids = tmp_path / "ids"
    model = Model(sleeper(ids), ("explain_error", {"text": KNOWN}))
    with started(name, clients, model, SHORT_LIMIT_S) as process:
        pids = written(ids)
        assert gone(pids, SHORT_LIMIT_S + 5)
        finish(process)
    assert jobs(clients) == {"run_deterministic": "stopped", "explain_error": "finished"}
