"""The MCP face over stdio, in both protocol eras, on operations that show one behaviour each."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import TextResourceContents

from tests.server.clients import ERAS, Era, data_of, drive, sample_server, text_of

both_eras = pytest.mark.parametrize("era", ERAS)


@both_eras
def test_strict_arguments(tmp_path: Path, era: Era) -> None:
    """An unknown name, a wrong type and a value out of range are errors that say what to send."""

    async def talk(client: Client) -> None:
        unknown = await client.call_tool("echo", {"stepz": 2})
        assert unknown.is_error
        assert text_of(unknown) == "unknown argument 'stepz' (did you mean 'steps'?); allowed: text, steps"
        wrong = await client.call_tool("echo", {"steps": "2"})
        assert wrong.is_error and "argument 'steps'" in text_of(wrong) and "1-9, default 3" in text_of(wrong)
        assert (await client.call_tool("echo", {"steps": 10})).is_error
        fine = await client.call_tool("echo", {"steps": 9, "text": '{"k": [1]}'})
        assert data_of(fine) == {"text": '{"k": [1]}', "steps": 9}

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_errors(tmp_path: Path, era: Era) -> None:
    """A problem carries its remedy in both channels; a defect is called one; an unknown tool is named."""

    async def talk(client: Client) -> None:
        refused = await client.call_tool("refuse", {})
        assert refused.is_error
        assert text_of(refused) == "device 3 does not exist: '3'; allowed: 0-1; next: call check_devices"
        assert refused.structured_content == {
            "error": {
                "what": "device 3 does not exist",
                "value": "3",
                "allowed": "0-1",
                "next": "call check_devices",
            }
        }
        crashed = await client.call_tool("crash", {})
        assert crashed.is_error and "defect in this tool: RuntimeError" in text_of(crashed)
        left = await client.call_tool("leave", {})
        assert left.is_error and "defect in this tool: SystemExit" in text_of(left)
        unknown = await client.call_tool("ecko", {})
        assert unknown.is_error and "did you mean 'echo'" in text_of(unknown)
        assert data_of(await client.call_tool("echo", {"text": "alive"}))["text"] == "alive"

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_a_long_result_names_the_file_that_has_all(tmp_path: Path, era: Era) -> None:
    """60,000 characters come back below the limit, and the whole of them can be read by URI, in pages."""

    async def talk(client: Client) -> None:
        result = await client.call_tool("talk", {})
        data = data_of(result)
        assert len(text_of(result)) <= 10_000
        uri = data["shortened"]["full"]["uri"]
        first = await client.read_resource(uri)
        assert isinstance(first.contents[0], TextResourceContents)
        assert f"next: {uri}?offset=20000" in first.contents[0].text
        log = uri.replace("result.json", "output.log")
        part = await client.read_resource(f"{log}?offset=5&limit=10")
        assert isinstance(part.contents[0], TextResourceContents)
        assert part.contents[0].text.startswith("line\nline\n\n[up to byte 15 of 60000")

    drive(sample_server(tmp_path / "state"), talk, era)


@pytest.mark.parametrize(
    "path",
    [
        "../../secret",
        "%2e%2e/%2e%2e/secret",
        "link",
        "nothing.log",
        "output.log?offset=-1",
        "output.log?limit=0",
    ],
)
def test_artifact_paths_are_checked(tmp_path: Path, path: str) -> None:
    """A path out of the job's directory, a link out of it, a missing file and a bad range are refused."""
    (tmp_path / "state" / "jobs").mkdir(parents=True, mode=0o700)
    (tmp_path / "state").chmod(0o700)
    (tmp_path / "state" / "secret").write_text("secret")

    async def talk(client: Client) -> None:
        data = data_of(await client.call_tool("talk", {}))
        uri = data["shortened"]["full"]["uri"]
        job = tmp_path / "state" / "jobs" / uri.split("/")[-2]
        (job / "link").symlink_to(tmp_path / "state" / "secret")
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri.replace("result.json", path))
        assert "secret" not in str(refused.value).replace("secret'", "").replace("/secret", "")

    drive(sample_server(tmp_path / "state"), talk)


@both_eras
def test_a_handle_outlives_its_call(tmp_path: Path, era: Era) -> None:
    """A call that takes longer than wait_s answers with a handle; wait_job looks, stop_job kills the tree."""

    async def talk(client: Client) -> None:
        ids = tmp_path / "ids"
        begun = data_of(await client.call_tool("run_child", {"file": str(ids), "wait_s": 0.5}))
        assert begun["state"] == "running" and begun["tool"] == "run_child" and begun["progress"] == ["child"]
        step = begun["next_steps"][0]
        assert step["tool"] == "wait_job"
        looked = data_of(await client.call_tool("wait_job", {**step["arguments"], "wait_s": 0}))
        assert looked["state"] == "running"
        await written(ids)
        stopped = data_of(await client.call_tool("stop_job", {"job_id": begun["job_id"]}))
        assert stopped["state"] == "stopped"
        assert not await alive(ids)
        again = data_of(await client.call_tool("wait_job", {"job_id": begun["job_id"]}))
        assert again["state"] == "stopped"

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_a_cancelled_call_leaves_no_process(tmp_path: Path, era: Era) -> None:
    """Cancelling a call before it answered stops its job: nobody else has the handle."""

    async def talk(client: Client) -> None:
        ids = tmp_path / "ids"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "run_child", {"file": str(ids), "wait_s": 30})
            await written(ids)
            tasks.cancel_scope.cancel()
        assert not await alive(ids)

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_progress_reaches_the_client(tmp_path: Path, era: Era) -> None:
    """What a job says while a call waits for it arrives as progress notifications."""
    messages: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message or "")

    async def talk(client: Client) -> None:
        call = {"file": str(tmp_path / "ids"), "wait_s": 1}
        await client.call_tool("run_child", call, progress_callback=heard)
        assert messages == ["child"]

    drive(sample_server(tmp_path / "state"), talk, era)


def test_bad_handles(tmp_path: Path) -> None:
    """A malformed or unknown handle is an error that says what a handle looks like."""

    async def talk(client: Client) -> None:
        for handle in ("../x", "job_zzzzzzzz", "job_00000000", "x" * 5000):
            result = await client.call_tool("wait_job", {"job_id": handle})
            assert result.is_error and "job" in text_of(result) and len(text_of(result)) <= 10_000

    drive(sample_server(tmp_path / "state"), talk)


async def written(ids: Path) -> None:
    with anyio.fail_after(20):
        while not ids.exists() or len(ids.read_text().split()) < 2:
            await anyio.sleep(0.02)


async def alive(ids: Path) -> list[str]:
    """The processes of the file that still run a second later."""
    with anyio.move_on_after(1):
        while any(Path("/proc", pid).exists() for pid in ids.read_text().split()):
            await anyio.sleep(0.02)
    return [pid for pid in ids.read_text().split() if Path("/proc", pid).exists()]
