"""The server as clients see it: behaviour in both protocol eras, descriptions, and results."""

import inspect
import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp_types import TextResourceContents

from mcp_server.cli.parameters import parameters_of
from mcp_server.logs.families import FAMILIES, Family
from mcp_server.operations.arguments import RUNS_USER_CODE, validated
from mcp_server.operations.table import CORE, OPERATIONS, command_line
from mcp_server.runtime.context import Context
from mcp_server.server.app import INSTRUCTIONS
from mcp_server.server.running import steps_in
from mcp_server.server.tools import compact, shorten
from mcp_server.tools.explain_error import explain_error
from tests.conftest import Zoo
from tests.server.clients import Era, data_of, drive, real_server, sample_server, text_of
from tests.server.snapshot import GOLD, tools
from tests.server.snapshot import text_of as snapshot_text
from tests.support.servers import left, wait_for
from tests.zoo.names import THOROUGH, few, nightly

# Calls of sample operations over stdio, in both protocol eras.

both_eras = pytest.mark.parametrize("era", ["auto", *nightly("legacy")])


@both_eras
def test_errors(tmp_path: Path, era: Era) -> None:
    """A problem has its remedy in both channels, a defect is called a defect, an unknown tool is named."""

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
        needs = "Path for the ids. All arguments: file, wait_s"
        for call, said in (("ecko", "did you mean 'echo'"), ("run_child", needs)):
            unlisted = await client.call_tool("run_tool", {"tool": call})
            assert unlisted.is_error and said in text_of(unlisted)
        called = {"tool": "echo", "arguments": {"text": "by name"}}
        assert data_of(await client.call_tool("run_tool", called))["text"] == "by name"
        assert data_of(await client.call_tool("echo", {"text": "alive"}))["text"] == "alive"

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_a_long_result_names_the_file_that_has_all(tmp_path: Path, era: Era) -> None:
    """A result of 60,000 characters is shortened, and can be read completely by URI, in pages."""

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


def test_artifact_paths_are_checked(tmp_path: Path) -> None:
    """A path or link out of the job's directory, a missing file and an invalid range are refused."""
    (tmp_path / "state" / "jobs").mkdir(parents=True, mode=0o700)
    (tmp_path / "state").chmod(0o700)
    (tmp_path / "state" / "secret").write_text("secret")

    async def talk(client: Client) -> None:
        data = data_of(await client.call_tool("talk", {}))
        uri = data["shortened"]["full"]["uri"]
        job = tmp_path / "state" / "jobs" / uri.split("/")[-2]
        (job / "link").symlink_to(tmp_path / "state" / "secret")
        (job / "inside").symlink_to(tmp_path / "state")
        outside = ("../../secret", "%2e%2e/%2e%2e/secret", "link", "inside/secret", "/etc/passwd")
        for path in (*outside, "", ".", "a%00b", "none.log", "output.log?offset=-1", "output.log?limit=0"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(uri.replace("result.json", path))
            assert "secret" not in str(refused.value).replace("secret'", "").replace("/secret", "")

    drive(sample_server(tmp_path / "state"), talk)


@both_eras
def test_a_handle_outlives_its_call(tmp_path: Path, era: Era) -> None:
    """A call longer than wait_s returns a handle. wait_job returns the state, stop_job kills the tree."""

    async def talk(client: Client) -> None:
        ids = tmp_path / "ids"
        begun = data_of(await client.call_tool("run_child", {"file": str(ids), "wait_s": 0.5}))
        assert (begun["state"], begun["tool"]) == ("running", "run_child")
        assert begun["progress"] == ["step 1: child"]
        step = begun["next_steps"][0]
        assert step["tool"] == "wait_job"
        looked = data_of(await client.call_tool("wait_job", {**step["arguments"], "wait_s": 0}))
        assert looked["state"] == "running"
        await anyio.to_thread.run_sync(wait_for, ids)
        stopped = data_of(await client.call_tool("stop_job", {"job_id": begun["job_id"]}))
        assert stopped["state"] == "stopped"
        assert not await anyio.to_thread.run_sync(left, [int(pid) for pid in wait_for(ids)])
        again = data_of(await client.call_tool("wait_job", {"job_id": begun["job_id"]}))
        assert again["state"] == "stopped"

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_a_cancelled_call_leaves_no_process(tmp_path: Path, era: Era) -> None:
    """Cancelling a call before it answered stops its job, because nobody has the handle."""

    async def talk(client: Client) -> None:
        ids = tmp_path / "ids"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "run_child", {"file": str(ids), "wait_s": 30})
            await anyio.to_thread.run_sync(wait_for, ids)
            tasks.cancel_scope.cancel()
        assert not await anyio.to_thread.run_sync(left, [int(pid) for pid in wait_for(ids)])

    drive(sample_server(tmp_path / "state"), talk, era)


@both_eras
def test_progress_reaches_the_client(tmp_path: Path, era: Era) -> None:
    """Progress of a job arrives as notifications while a call waits; a handle has a line for each step."""
    assert steps_in(["a", "a: 8 s so far", "a: 16 s so far, it compiles"]) == ["a: 16 s so far, it compiles"]
    messages: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message or "")

    async def talk(client: Client) -> None:
        call = {"file": str(tmp_path / "ids"), "wait_s": 1}
        await client.call_tool("run_child", call, progress_callback=heard)
        assert messages == ["step 1: child"]

    drive(sample_server(tmp_path / "state"), talk, era)


# What a client puts into the context of every session: names, schemas and descriptions.

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results.json"
MOST = {"tools_core": 3500, "tools_all": 7000, "server_instructions": 500, "skill": 1600}


@pytest.fixture(scope="module")
def listed() -> list[dict[str, Any]]:
    return tools()


def test_the_list_by_default_is_pinned() -> None:
    """A change of any schema shows in review: `python -m tests.server.snapshot` accepts it.

    Descriptions and other tools are reviewed in `operations/`.
    """
    assert snapshot_text(tools("core")) == GOLD.read_text()


def test_what_each_session_reads_is_small(listed: list[dict[str, Any]]) -> None:
    """The tools, the instructions and SKILL.md are within their limits, and have the size in the results."""
    core, held = tools("core"), json.loads(RESULTS.read_text())["tokens"]
    assert {tool["name"] for tool in core} == {*CORE, "wait_job", "stop_job", "run_tool"}
    assert all(tool in listed for tool in core)
    skill = RESULTS.parents[1].joinpath("SKILL.md").read_text()
    texts = (compact(core), compact(listed), INSTRUCTIONS, skill)
    for (name, most), text in zip(MOST.items(), texts, strict=True):
        assert held[name]["tokens"] <= most and len(text.encode()) < 1.01 * held[name]["bytes"], name


def test_every_property_is_described(listed: list[dict[str, Any]]) -> None:
    """Each description gives the range, and the default unless it means "not given"."""
    for tool in listed:
        assert tool["inputSchema"]["additionalProperties"] is False
        assert all(schema["description"] for schema in tool["inputSchema"]["properties"].values())
    for operation in OPERATIONS:
        for name, schema in operation.arguments.model_json_schema()["properties"].items():
            said, default = schema["description"], schema.get("default")
            unset = default in (None, "", [], {}, 0, -1)
            assert unset or str(default).lower() in said.lower(), name
            assert "maximum" not in schema or str(schema["maximum"]) in said, name


def test_every_tool_is_annotated(listed: list[dict[str, Any]]) -> None:
    """All four hints are set. A tool that runs the user's program is not marked as read-only."""
    runs = {operation.name for operation in OPERATIONS if operation.hints is RUNS_USER_CODE}
    for tool in listed:
        hints = tool["annotations"]
        assert len(hints) == 4
        assert (tool["name"] in runs) <= (not hints["readOnlyHint"] and hints["destructiveHint"])


def test_every_text_names_only_tools_that_exist(listed: list[dict[str, Any]]) -> None:
    """Tools that are named in texts for the agent exist."""
    known = {tool["name"] for tool in listed}
    texts = " ".join([INSTRUCTIONS, *(tool["description"] for tool in listed)])
    verbs = {name.split("_")[0] for name in [*known, "locate_fault", "compare_with_eager"]}
    named = {word for word in re.findall(r"[a-z]+(?:_[a-z]+)+", texts) if word.split("_")[0] in verbs}
    arguments = {name for tool in listed for name in tool["inputSchema"]["properties"]}
    assert named <= known | arguments
    core = tools("core")
    said, rest = ([t["description"] for t in core if (t["name"] == "run_tool") is o] for o in (False, True))
    unlisted = [rf"\b{name}\b" for name in known - {tool["name"] for tool in core}]
    assert all(re.search(name, *rest) and not re.search(name, " ".join(said)) for name in unlisted)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.id)
def test_the_next_call_of_an_explanation_is_valid(family: Family, tmp_path: Path) -> None:
    """The call that an error family suggests fits the tool's schema, and so does the shell line."""
    context = Context(directory=tmp_path, python=Path(sys.executable))
    explanation = anyio.run(partial(explain_error, context, text=family.example))
    by_name = {operation.name: operation for operation in OPERATIONS}
    step = explanation.next
    model = by_name[step.tool].arguments
    validated(model, step.arguments)
    options = {name for parameter in parameters_of(model) for name in spelled(parameter)}
    words = shlex.split(command_line(step))
    assert {word for word in words if word.startswith("--")} <= options


def spelled(parameter: inspect.Parameter) -> list[str]:
    """The option names of a command's parameter. In an annotation, `default` is the first of them."""
    info = parameter.annotation.__metadata__[0]
    declared = [info.default, *(info.param_decls or ())]
    return [name for names in declared if isinstance(names, str) for name in names.split("/")]


# The size of results.

JSON_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=8), inner, max_size=40),
    max_leaves=200,
)


@settings(max_examples=few(40), deadline=None)
@given(st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=6))
def test_every_result_is_shortened_to_the_limit(result: dict[str, Any]) -> None:
    """The limit holds for any shape (as far as the note itself fits), and the input is not changed."""
    before = compact(result)
    limit = 1500
    short = shorten(result, limit=limit)
    assert compact(result) == before
    assert short is result or "shortened" in short
    assert len(compact(short)) <= max(limit, _smallest(short))


def _smallest(short: dict[str, Any]) -> int:
    """The size that no rule can reduce: fixed keys, short strings and numbers."""
    return 6_000 if short.get("shortened") else 0


# The server as clients start it.

BAD = [{"shape": [4, 6], "dtype": "int64", "low": 90, "high": 99}]


@pytest.mark.slow
def test_a_package_is_diagnosed(zoo: Zoo, tmp_path: Path) -> None:
    """The verdict on a bad index comes in both channels, within the limit, with readable artifacts.

    A later call, with torch imported already, gives the same verdict, evidence and number of runs.
    """
    verdicts = []

    async def talk(client: Client) -> None:
        call = {"package": str(zoo("ranker")), "inputs": BAD, "python": sys.executable, "wait_s": 0}
        for _ in range(2 if THOROUGH else 1):
            answer = data_of(await client.call_tool("diagnose", call))
            while answer.get("state") == "running":
                result = await client.call_tool("wait_job", {"job_id": answer["job_id"], "wait_s": 45})
                assert len(text_of(result)) <= 10_000
                answer = data_of(result)
            verdicts.append(answer)
        for uri in (answer["full"], *(artifact["uri"] for artifact in answer.get("artifacts", ()))):
            await client.read_resource(uri)

    drive(real_server(tmp_path / "state"), talk)
    told = [[v[name] for name in ("category", "confidence", "summary", "fix", "guilty")] for v in verdicts]
    assert told[0][:2] == ["index_out_of_bounds", "proven"] and told[0] == told[-1]
    seen = [([item["fact"] for item in v["evidence"]], v["cost"]["runs"]) for v in verdicts]
    assert seen[0] == seen[-1]
