"""Resources: jobs and their files, guides and the prompts that begin with them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from mcp import Client
from mcp_types import TextResourceContents

from mcp_server.jobs.store import Store
from mcp_server.server.app import make_server
from mcp_server.server.resources import GUIDES
from tests.server import sample
from tests.server.clients import ERAS, Era, data_of


def talk_to(state: Path, talk: Callable[[Client], Awaitable[None]], era: Era = "auto") -> None:
    """Run `talk` with a client of a server in this process."""

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(make_server(Store(state), sample.OPERATIONS), mode=era) as client:
                await talk(client)

    anyio.run(main)


async def read(client: Client, uri: str) -> str:
    contents = (await client.read_resource(uri)).contents[0]
    assert isinstance(contents, TextResourceContents)
    return contents.text


@pytest.mark.parametrize("era", ERAS)
def test_jobs_and_their_files(tmp_path: Path, era: Era) -> None:
    """A lost handle is found again: jobs are listed newest first, and their files can be read."""

    async def talk(client: Client) -> None:
        for number in (1, 2):
            data_of(await client.call_tool("echo", {"steps": number}))
        jobs = json.loads(await read(client, "aoti-debug://jobs"))
        assert [job["tool"] for job in jobs] == ["echo", "echo"]
        assert {job["state"] for job in jobs} == {"finished"}
        newest = json.loads(await read(client, f"aoti-debug://jobs/{jobs[0]['job_id']}/result.json"))
        assert newest["result"]["steps"] == 2

    talk_to(tmp_path / "state", talk, era)


def test_a_prompt_and_a_resource_for_every_guide(tmp_path: Path) -> None:
    """Each routed family has its guide as a resource, and a prompt that names it and quotes the error."""

    async def talk(client: Client) -> None:
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
        for guide in GUIDES:
            assert guide.uri in uris and guide.prompt in prompts
            assert (await read(client, guide.uri)) == guide.path.read_text(encoding="utf-8")
            asked = {"workload": "serve.py", "error": "CUDA error"}
            message = (await client.get_prompt(guide.prompt, asked)).messages[0].content
            assert guide.uri in message.text and "<error>\nCUDA error\n</error>" in message.text  # type: ignore[union-attr]

    talk_to(tmp_path / "state", talk)
