"""Completions, and the resources whose addresses they complete."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import PromptReference, ResourceTemplateReference, TextResourceContents

from mcp_server.jobs.store import Store
from mcp_server.server.app import make_server
from mcp_server.server.resources import GUIDES
from tests.conftest import ZooPackage
from tests.server import sample
from tests.server.clients import ERAS, Era, data_of

ARTIFACT = "aoti-debug://jobs/{job_id}/{+name}{?offset,limit}"
KERNEL = "aoti-debug://kernels/{kernel}{?package}"
BUFFER = "aoti-debug://buffers/{buffer}{?package}"


def talk_to(state: Path, talk: Callable[[Client], Awaitable[None]], era: Era = "auto") -> None:
    """Run `talk` with a client of a server in this process."""

    async def main() -> None:
        with anyio.fail_after(60):
            async with Client(make_server(Store(state), sample.OPERATIONS), mode=era) as client:
                await talk(client)

    anyio.run(main)


async def completed(client: Client, template: str, name: str, typed: str, **known: str) -> list[str]:
    ref = ResourceTemplateReference(uri=template)
    answer = await client.complete(ref, {"name": name, "value": typed}, known or None)
    return answer.completion.values


async def read(client: Client, uri: str) -> str:
    contents = (await client.read_resource(uri)).contents[0]
    assert isinstance(contents, TextResourceContents)
    return contents.text


@pytest.mark.parametrize("era", ERAS)
def test_jobs_and_their_files(tmp_path: Path, era: Era) -> None:
    """A lost handle is found again: jobs are listed and completed newest first, and so are their files."""

    async def talk(client: Client) -> None:
        for number in (1, 2):
            data_of(await client.call_tool("echo", {"steps": number}))
        jobs = json.loads(await read(client, "aoti-debug://jobs"))
        assert [job["tool"] for job in jobs] == ["echo", "echo"]
        assert {job["state"] for job in jobs} == {"finished"}
        handles = await completed(client, ARTIFACT, "job_id", "job_")
        assert handles == [job["job_id"] for job in jobs]
        assert "result.json" in await completed(client, ARTIFACT, "name", "res", job_id=handles[0])
        assert (
            json.loads(await read(client, f"aoti-debug://jobs/{handles[0]}/result.json"))["result"]["steps"]
            == 2
        )

    talk_to(tmp_path / "state", talk, era)


@pytest.mark.slow
def test_kernels_and_buffers_of_a_package(zoo: ZooPackage, tmp_path: Path) -> None:
    """Every completed kernel and buffer of a real package can be read, and names the other."""
    package = str(zoo("ranker"))

    async def talk(client: Client) -> None:
        kernels = await completed(client, KERNEL, "kernel", "", package=package)
        buffers = await completed(client, BUFFER, "buffer", "buf", package=package)
        assert any(name.startswith("cpp_fused") for name in kernels) and "buf0" in buffers
        for name in kernels:
            facts = json.loads(await read(client, f"aoti-debug://kernels/{name}?package={quote(package)}"))
            assert {fact.get("name", fact.get("kernel")) for fact in facts} == {name}
        for name in buffers:
            [fact] = json.loads(await read(client, f"aoti-debug://buffers/{name}?package={quote(package)}"))
            assert fact["name"] == name and fact["written_by"]

    talk_to(tmp_path / "state", talk)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages and scripts are completed in the directory that was typed, folders with a slash, no others."""
    work = tmp_path / "work"
    (work / "models").mkdir(parents=True)
    for name in ("serve.py", "notes.txt", ".hidden.py", "models/ranker.pt2", "models/rank_me.py"):
        (work / name).write_text("")
    monkeypatch.chdir(work)

    async def talk(client: Client) -> None:
        assert await completed(client, KERNEL, "package", "") == ["models/"]
        assert await completed(client, KERNEL, "package", "models/r") == ["models/ranker.pt2"]
        assert await completed(client, KERNEL, "package", f"{work}/models/") == [f"{work}/models/ranker.pt2"]
        answer = await client.complete(
            PromptReference(name=GUIDES[0].prompt), {"name": "workload", "value": "models/r"}
        )
        assert answer.completion.values == ["models/rank_me.py", "models/ranker.pt2"]

    talk_to(tmp_path / "state", talk)


def test_what_cannot_be_completed(tmp_path: Path) -> None:
    """An unknown argument, a missing package or directory and a bad handle complete to nothing."""
    (tmp_path / "broken.pt2").write_bytes(b"no archive")

    async def talk(client: Client) -> None:
        assert await completed(client, KERNEL, "colour", "re") == []
        assert await completed(client, KERNEL, "kernel", "") == []
        assert await completed(client, KERNEL, "kernel", "", package="/none.pt2") == []
        assert await completed(client, KERNEL, "kernel", "", package=str(tmp_path / "broken.pt2")) == []
        assert await completed(client, KERNEL, "package", "/no/such/folder/x") == []
        assert await completed(client, ARTIFACT, "name", "", job_id="../../etc") == []

    talk_to(tmp_path / "state", talk)


def test_no_more_than_the_protocol_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 150 packages the first hundred are answered, and that there are more."""
    for number in range(150):
        (tmp_path / f"m{number:03}.pt2").write_text("")
    monkeypatch.chdir(tmp_path)

    async def talk(client: Client) -> None:
        ref = ResourceTemplateReference(uri=KERNEL)
        found = (await client.complete(ref, {"name": "package", "value": "m"})).completion
        assert (len(found.values), found.total, found.has_more) == (100, 150, True)

    talk_to(tmp_path / "state", talk)


@pytest.mark.parametrize(
    "uri",
    [
        "aoti-debug://kernels/none?package=/none.pt2",
        "aoti-debug://kernels/none",
        "aoti-debug://buffers/buf0?package=%00",
    ],
)
def test_resources_that_are_not_there(tmp_path: Path, uri: str) -> None:
    """A kernel or buffer of no package is an error that names what is missing."""

    async def talk(client: Client) -> None:
        with pytest.raises(MCPError, match=r"package|path"):
            await client.read_resource(uri)

    talk_to(tmp_path / "state", talk)


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
