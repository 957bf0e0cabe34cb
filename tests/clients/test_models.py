"""Claude Code and Codex with a model on loopback: what a model is shown of a diagnosis, and how a call ends.

Skipped unless `make test-clients` installed them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from tests.clients.conftest import Clients, checkout_server
from tests.clients.model import Model, served
from tests.conftest import ZooPackage
from tests.faces import sample
from tests.faces.clients import drive, real_server
from tests.faces.test_shutdown import left, wait_for

pytestmark = [pytest.mark.clients, pytest.mark.slow]

BAD = [{"shape": [4, 6], "dtype": "int64", "low": 90, "high": 99}]
SHORT_LIMIT_S = 4
KNOWN = "RuntimeError: CUDA error: an illegal memory access was encountered"


@dataclass(frozen=True)
class Agent:
    """How to start a client that asks `model`, its calls limited to `limit_s` seconds."""

    argv: Callable[[Clients, Model, int], list[str]]
    env: Callable[[Model, int], dict[str, str]]


def claude_argv(clients: Clients, _model: Model, _limit_s: int) -> list[str]:
    command, *args = checkout_server()
    config = {"mcpServers": {"aoti-debug": {"command": command, "args": args}}}
    (clients.work / "mcp.json").write_text(json.dumps(config))
    options = ["--mcp-config", "mcp.json", "--strict-mcp-config", "--allowedTools", "mcp__aoti-debug"]
    return ["claude", "-p", "what is wrong?", *options]


def claude_env(model: Model, limit_s: int) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "none",
        "ENABLE_TOOL_SEARCH": "false",  # else the model would first have to search for the tools
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "MCP_TOOL_TIMEOUT": str(limit_s * 1000),
    }


def codex_argv(clients: Clients, model: Model, limit_s: int) -> list[str]:
    command, *args = checkout_server()
    state = clients.environment()["AOTI_DEBUG_STATE"]
    config = clients.home / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text(
        f"""
model = "fake"
model_provider = "fake"
[model_providers.fake]
name = "fake"
base_url = "{model.url}/v1"
wire_api = "responses"
[mcp_servers.aoti-debug]
command = "{command}"
args = {json.dumps(args)}
required = true
tool_timeout_sec = {limit_s}
default_tools_approval_mode = "approve"
[mcp_servers.aoti-debug.env]
AOTI_DEBUG_STATE = "{state}"
"""
    )
    return ["codex", "exec", "--skip-git-repo-check", "what is wrong?"]


AGENTS = {
    "claude": Agent(claude_argv, claude_env),
    "codex": Agent(codex_argv, lambda _model, _limit_s: {}),
}


@contextmanager
def started(name: str, clients: Clients, model: Model, limit_s: int = 300) -> Iterator[subprocess.Popen[str]]:
    """The client at work on its task."""
    agent = AGENTS[name]
    with (
        served(model),
        subprocess.Popen(
            agent.argv(clients, model, limit_s),
            cwd=clients.work,
            env=clients.environment(**agent.env(model, limit_s)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def finish(process: subprocess.Popen[str]) -> str:
    """What the client said until its end."""
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return said


def saved(clients: Clients, job_id: str) -> dict[str, Any]:
    """The state of a job as it lies on disk."""
    path = Path(clients.environment()["AOTI_DEBUG_STATE"]) / "jobs" / job_id / "result.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def jobs(clients: Clients) -> dict[str, str]:
    """The jobs that ended: their tool and how."""
    root = Path(clients.environment()["AOTI_DEBUG_STATE"]) / "jobs"
    states = [json.loads(path.read_text()) for path in root.glob("*/result.json")]
    return {state["kind"]: state["state"] for state in states}


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
    clients.run("skills", "add", str(clone), "-y", "-a", "claude-code" if name == "claude" else "codex")
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
        pids = [int(pid) for pid in wait_for(ids)]
        process.send_signal(number)
        process.wait(timeout=10)
        assert gone(pids)
    assert jobs(clients)["explain_error"] == "finished"


@pytest.mark.parametrize("name", AGENTS)
def test_a_call_over_the_clients_limit_is_stopped(name: str, clients: Clients, tmp_path: Path) -> None:
    """A client that cuts a call cancels it: its processes end at once, while the client goes on."""
    ids = tmp_path / "ids"
    model = Model(sleeper(ids), ("explain_error", {"text": KNOWN}))
    with started(name, clients, model, SHORT_LIMIT_S) as process:
        pids = [int(pid) for pid in wait_for(ids)]
        assert gone(pids, SHORT_LIMIT_S + 5)
        finish(process)
    assert jobs(clients) == {"run_deterministic": "stopped", "explain_error": "finished"}


def gone(pids: list[int], within_s: float = 5) -> bool:
    limit = time.monotonic() + within_s
    while (running := left(pids)) and time.monotonic() < limit:
        pass
    return not running
