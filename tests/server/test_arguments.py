"""Arguments from agents become a workload, or an error that says what to pass."""

import json
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import TextResourceContents

from mcp_server.cli.parameters import arguments_of, targets_of
from mcp_server.errors import ProblemError
from mcp_server.jobs.store import Store
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload, TensorSpec
from mcp_server.operations.arguments import validated
from mcp_server.operations.table import question_of
from mcp_server.operations.workload import paired_model, symptom_of
from mcp_server.runtime.context import Context
from mcp_server.server.app import GUIDES, make_server
from tests.package.archives import write
from tests.server import sample
from tests.server.clients import ERAS, Era, data_of
from tests.support.tools import BY_NAME, asked

# From arguments to a workload.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script, an inputs file, an archive of torch.export and a broken package."""
    (tmp_path / "app.py").write_text("print('hello')")
    (tmp_path / "batch.pt").write_bytes(b"PK")
    (tmp_path / "broken.pt2").write_bytes(b"PK\3\4 cut")
    with zipfile.ZipFile(tmp_path / "program.pt2", "w") as archive:
        archive.writestr("program/models/model.json", "{}")
    return tmp_path


def given(name: str, **values: Any) -> Any:
    """The validated arguments of a tool."""
    return validated(BY_NAME[name].arguments, values)


def refused(context: Context, name: str, **values: Any) -> ProblemError:
    """The error of a tool that rejects its arguments."""
    with pytest.raises(ProblemError) as problem:
        anyio.run(lambda: asked(name, context, **values))
    return problem.value


def test_what_is_reduced_takes_what_other_tools_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`reduce` takes a script with arguments and variables, or a program with specs and imports."""
    monkeypatch.chdir(folder.parent)
    around = {"cwd": folder.name, "env": {"A": "1"}, "timeout_s": 9}
    script = {**around, "script": "app.py", "script_args": ["--fast"]}
    assert paired_model(given("reduce", **script)) == ScriptWorkload(
        script=folder / "app.py", args=["--fast"], cwd=folder, env={"A": "1"}, timeout_s=9
    )
    specs = [{"shape": [2, 3], "dtype": "float32"}]
    program = {**around, "exported": "program.pt2", "inputs": specs, "extra_imports": ["ops.py"]}
    assert paired_model(given("reduce", **program)) == ExportedWorkload(
        exported=folder / "program.pt2",
        inputs=[TensorSpec(shape=[2, 3], dtype="float32")],
        extra_imports=["ops.py"],
        cwd=folder,
        env={"A": "1"},
        timeout_s=9,
    )
    del script["script"]
    with pytest.raises(ProblemError, match="arguments are given without a script"):
        paired_model(given("reduce", **script, exported="program.pt2"))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"script": "app.py", "cwd": "/dev/null"}, "`cwd` is a file"),
        ({"command": ["x"], "extra_imports": ["ops"]}, "`extra_imports` does not apply to this program"),
        ({"package": "program.pt2"}, "next: pass it as `exported`, or compile it"),
        ({"package": "broken.pt2", "inputs": "[{"}, "`inputs` looks like specs but is not JSON"),
        ({"package": "broken.pt2", "inputs": [{"size": [1]}]}, "inputs[0].shape: Field required"),
        ({"package": "broken.pt2", "inputs": [{"shape": [1], "dtype": "int63"}]}, "unknown dtype: 'int63'"),
        ({"script": "app.py", "timeout_s": 0}, "argument 'timeout_s'"),
        ({"path": "app.py"}, "'path' (did you mean 'script'?); allowed: script, script_args,"),
        ({"script": "app.py", "script_args": "--batch 8"}, """next: `script_args` ["--batch", "8"]"""),
        ({"script": "app.py", "env": {"A": 1}}, "argument 'env.A'"),
    ],
)  # fmt: skip
def test_bad_arguments(context: Context, folder: Path, values: dict[str, Any], said: str) -> None:
    """The error says what is wrong and what is allowed. tests/cli/test_exits.py has the other errors."""
    assert said in str(refused(context, "run_deterministic", **{"cwd": str(folder), **values}))


def test_a_program_is_the_reference_of_its_package(context: Context, folder: Path) -> None:
    """diagnose takes a package with its program. A tool that makes one run takes only one workload."""
    pair = {"package": "broken.pt2", "exported": "program.pt2", "cwd": str(folder)}
    package = PackageWorkload(package=folder / "broken.pt2", cwd=folder)
    assert symptom_of(given("diagnose", **pair), package).program == folder / "program.pt2"
    assert "more than one workload given" in str(refused(context, "run_deterministic", **pair))


def test_a_compiled_package_as_exported(context: Context, zoo: Any, tmp_path: Path) -> None:
    """A compiled package as an exported program, and inputs without tensors, are refused with a way out."""
    empty = str(write(tmp_path / "ints.pt", {"ints/data.pkl": b""}))
    problem = refused(context, "diagnose", package=zoo("ranker"), inputs=empty)
    assert "holds no tensors" in problem.what and "args[0] int64" in problem.allowed
    problem = refused(context, "run_deterministic", exported=zoo("ranker"))
    assert problem.next_call.startswith("torch.export.save(")


def test_questions() -> None:
    """Only one question is allowed, except an assertion together with the kernel that printed it."""
    both = given("inspect_package", package="m.pt2", assertion="0 <= tmp4 < 10", kernel="k")
    assert question_of(both) == {"assertion": "0 <= tmp4 < 10", "kernel": "k"}
    assert question_of(given("inspect_package", package="m.pt2")) == {}
    with pytest.raises(ProblemError, match="more than one question"):
        question_of(given("inspect_package", package="m.pt2", launch=0, buffer="buf1"))


def test_a_command_that_runs_nothing_has_no_target() -> None:
    """`explain-error` takes its text or log only by name, and `try-fix` has its package already."""
    assert not any(targets_of(BY_NAME[name].arguments) for name in ("explain_error", "try_fix"))
    with pytest.raises(ProblemError):
        arguments_of(BY_NAME["check_devices"].arguments, {"target": str(Path("nothing.txt"))})


# Resources and prompts.


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
    """Jobs are listed newest first, so a lost handle is found, and their files can be read."""

    async def talk(client: Client) -> None:
        for number in (1, 2):
            data_of(await client.call_tool("echo", {"steps": number}))
        jobs = json.loads(await read(client, "aoti-debug://jobs"))
        assert [job["tool"] for job in jobs] == ["echo", "echo"]
        assert {job["state"] for job in jobs} == {"finished"}
        handles = [job["job_id"] for job in jobs]
        stored = json.loads(await read(client, f"aoti-debug://jobs/{handles[0]}/result.json"))
        assert stored["result"]["steps"] == 2

    talk_to(tmp_path / "state", talk, era)


def test_a_resource_for_every_guide(tmp_path: Path) -> None:
    """Each guide is a resource with the text of the file, and says which question it answers."""

    async def talk(client: Client) -> None:
        uris = {str(each.uri): str(each.description) for each in (await client.list_resources()).resources}
        for guide in GUIDES:
            assert "?" in uris[guide.uri] and len(set(uris.values())) == len(uris)
            assert (await read(client, guide.uri)) == guide.path.read_text()

    talk_to(tmp_path / "state", talk)
