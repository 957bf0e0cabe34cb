"""The coding agents, each with a model on loopback and the server of this checkout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.conftest import Clients, checkout_server
from tests.clients.model import Model, served
from tests.server.test_shutdown import left


@dataclass(frozen=True)
class Agent:
    """How to start a client that asks `model`, its calls limited to `limit_s` seconds.

    `several` processes get a signal as a group, as from a terminal: Gemini CLI starts itself again below. A
    `patient` one begins its limit anew at each report of progress, so that it never cuts a call of ours.
    """

    argv: Callable[[Clients, Model, int], list[str]]
    env: Callable[[Model, int], dict[str, str]]
    several: bool = False
    patient: bool = False


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
    config.parent.mkdir(exist_ok=True)
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


def opencode_argv(clients: Clients, model: Model, limit_s: int) -> list[str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "fake",
        "options": {"baseURL": f"{model.url}/v1", "apiKey": "none"},
        "models": {"fake": {"name": "fake", "tool_call": True}},
    }
    limits = {"startup": 90_000, "request": limit_s * 1000}
    server = {"type": "local", "command": checkout_server(), "enabled": True, "timeout": limits}
    config = {
        "model": "fake/fake",
        "small_model": "fake/fake",
        "provider": {"fake": provider},
        "mcp": {"aoti-debug": server},
    }
    (clients.work / "opencode.json").write_text(json.dumps(config))
    return ["opencode", "run", "what is wrong?"]


def gemini_argv(clients: Clients, _model: Model, limit_s: int) -> list[str]:
    command, *args = checkout_server()
    server = {"command": command, "args": args, "timeout": limit_s * 1000, "trust": True}
    settings = clients.home / ".gemini" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    auth = {"auth": {"selectedType": "gemini-api-key"}}
    settings.write_text(json.dumps({"security": auth, "mcpServers": {"aoti-debug": server}}))
    return ["gemini", "-m", "gemini-2.5-flash", "--approval-mode", "yolo", "-p", "what is wrong?"]


def gemini_env(model: Model, _limit_s: int) -> dict[str, str]:
    return {
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": model.url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


AGENTS = {
    "claude": Agent(claude_argv, claude_env),
    "codex": Agent(codex_argv, lambda _model, _limit_s: {}),
    "opencode": Agent(opencode_argv, lambda _model, _limit_s: {}, patient=True),
    "gemini": Agent(gemini_argv, gemini_env, several=True),
}
CUTTING = [name for name, agent in AGENTS.items() if not agent.patient]


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
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def stop(name: str, process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send the client a signal, and wait for its end."""
    if AGENTS[name].several:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.wait(timeout=20)


def written(ids: Path) -> list[int]:
    """The ids of two processes in a file that a job is about to write; clients take their time to start."""
    limit = time.monotonic() + 100
    while not ids.exists() or len(ids.read_text().split()) < 2:
        assert time.monotonic() < limit, "the job never started"
        time.sleep(0.05)
    return [int(pid) for pid in ids.read_text().split()]


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


def gone(pids: list[int], within_s: float = 5) -> bool:
    """Whether the processes end within that time."""
    limit = time.monotonic() + within_s
    while (running := left(pids)) and time.monotonic() < limit:
        pass
    return not running
