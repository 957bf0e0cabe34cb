"""The command line as users meet it: real processes, help, and the README's commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_server import __version__
from mcp_server.cli import main
from mcp_server.jobs.store import Store
from mcp_server.operations.table import OPERATIONS
from mcp_server.tools.machine import Compiler, Machine, checkup
from tests.conftest import ROOT, example
from tests.support.command import CLI, output_of, ran
from tests.zoo.names import thorough
from tools import demo_picture
from tools.made import MADE

# Commands in real processes.


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A function that runs a command line in a pipe, with its own state directory."""

    return lambda *arguments, **variables: ran([*CLI, *arguments], tmp_path, **variables)


def test_a_command_removes_the_oldest_jobs(run: Run, tmp_path: Path) -> None:
    """The command ends with its job, and still removes jobs beyond the limit."""
    (tmp_path / "run.log").write_text("RuntimeError: index out of bounds: 0 <= tmp4 < ks1\n")
    run("diagnose", "--log", "run.log")
    (first,) = (tmp_path / "state" / "jobs").iterdir()
    record = json.loads((first / "job.json").read_text())
    for number in range(Store.cap_jobs):
        older = first.with_name(f"job_{number:08x}")
        older.mkdir(mode=0o700)
        (older / "job.json").write_text(json.dumps({**record, "id": older.name, "number": -number}))
    run("diagnose", "--log", "run.log")
    left = list(first.parent.iterdir())
    assert len(left) == Store.cap_jobs and first in left


def test_version(run: Run) -> None:
    """--version prints the version and nothing else."""
    assert run("--version").stdout == f"{__version__}\n"


def test_json_is_the_result(run: Run) -> None:
    """--json prints only one JSON object, without control characters of the log."""
    done = run("explain_error", "--text", "index out of bounds: 0 <= tmp4 < ks1\x1b[31m", "--json")
    result = json.loads(done.stdout)
    assert result["known"] and "index_out_of_bounds" in result["candidates"]
    assert "\x1b" not in done.stdout


def test_an_explanation_has_the_fix_of_a_text_that_decides(run: Run) -> None:
    for text, fix in (("ld: cannot find -lcuda: No such file", "stubs"), ("CUDA error: unknown error", "")):
        found = json.loads(run("explain_error", "--text", text, "--json").stdout)
        assert found["known"] and (fix in found.get("fix", "") if fix else not found.get("fix")), found


def test_doctor(run: Run) -> None:
    """doctor names each need with its purpose, and how to get what is missing.

    The first line says that this machine can compile, even without a GPU.
    """
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    needs = {need["name"]: need for need in found["needs"]}
    assert done.returncode == 0, done.stdout
    assert found["summary"].startswith(("nothing essential is missing", "everything is there"))
    assert needs["torch"]["standing"] == "ok"
    assert all(need["how"] for need in needs.values() if need["standing"] != "ok")


def test_doctor_without_torch(run: Run) -> None:
    """An interpreter without torch gives exit status 1, and the way out."""
    done = run("doctor", "--python", "/usr/bin/python3")
    if "none for" not in done.stdout:
        pytest.skip("the system's python has torch")
    assert done.returncode == 1
    assert "AOTI_DEBUG_PYTHON" in done.stdout


def test_a_launcher_comes_from_the_configuration(run: Run, tmp_path: Path) -> None:
    """AOTI_DEBUG_LAUNCHER is put before every child's argument list."""
    (tmp_path / "seen.py").write_text("import os; print('launched with', os.environ['MARK'])")
    call = ("run-deterministic", "seen.py", "--repeats", "1", "--json")
    done = run(*call, AOTI_DEBUG_LAUNCHER="/usr/bin/env MARK=it")
    assert done.returncode == 0, done.stderr
    log = json.loads(done.stdout)["runs"][0]["log"]["path"]
    assert "launched with it" in Path(log).read_text()


# Help texts. tests/cli/test_exits.py has the answers to wrong calls.


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.run([*command.split(), "--help"]) == 0
    return capsys.readouterr().out


def test_the_root_help_groups_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is in a group, with a complete sentence that does not only repeat its name."""
    said = help_of("", capsys)
    assert re.findall(r"^(\S[^:\n]*):$", said, re.MULTILINE) == [
        *("Options", "Start here", "Look closer", "Fix and report", "Record, repeat, serve")
    ]
    rows = dict(re.findall(r"^  ([a-z-]+)  +(\S.*)$", said.partition("Start here:")[2], re.MULTILINE))
    assert set(rows) >= {operation.name.replace("_", "-") for operation in OPERATIONS}
    for name, text in rows.items():
        assert not text.endswith("...") and text.lower() != name.replace("-", " ")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_help_speaks_as_a_shell_does(operation: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Help ends with examples, and names no tool with underscores or address for MCP clients."""
    name = getattr(operation, "name", "")
    said = help_of(name.replace("_", "-"), capsys)
    assert f"aoti-debug {name.replace('_', '-')}" in said.split("Examples:")[1]
    assert "aoti-debug://" not in said and "x>=" not in said
    assert "{" not in said.partition("\n")[0]
    tools = [each.name for each in OPERATIONS if "_" in each.name]
    assert not [tool for tool in tools if re.search(rf"\b{tool}\b", said)]


def test_doctor_says_first_what_to_do_without_torch() -> None:
    """One line says it, and torch is not also reported as unknown."""
    compiler = Compiler(path="/usr/bin/g++", works=True, links_cxx_runtime="libstdc++.so.6")
    machine = Machine(
        platform="linux",
        machine="x86_64",
        cpu_flags=[],
        temp_directory="/tmp",
        temp_free_bytes=None,
        compiler=compiler,
        tools={},
        python="/usr/bin/python3",
        unknown=["torch, triton, CUDA and GPUs: torch cannot be imported"],
    )
    found = checkup(machine)
    assert found.summary == "no torch: activate the environment that has your torch, then run this again"
    assert not found.healthy and not found.unknown


# The README's tables agree with the code, and its commands run as written after `make demo`.

README = (ROOT / "README.md").read_text()
TEXTS = [README, *(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))]
SHOWN = sorted({line for text in TEXTS for line in re.findall(r"^ *\$ (aoti-debug .+)$", text, re.MULTILINE)})


def options_of(words: list[str]) -> set[str]:
    """The options before `--`. Words after it belong to the workload."""
    ours = words[: words.index("--")] if "--" in words else words
    return {word for word in ours if word.startswith("-")}


@pytest.mark.parametrize("line", SHOWN)
def test_a_shown_command_exists(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and each of its options are in its help."""
    _, name, *rest = shlex.split(line)
    assert main.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"(^|[ ,]){re.escape(option)}\b", shown, re.MULTILINE) for option in options_of(rest)
    )


def test_the_readme_is_short() -> None:
    """The first 20 of about 100 lines have a description, a picture and a command that works."""
    lines = README.splitlines()
    assert len(lines) <= 112 and "OWNER" not in README.replace("<!-- mcp-name: io.github.OWNER", "")
    first = "\n".join(lines[:20])
    assert "AOTInductor package" in first and "docs/demo.svg" in first and "$ make demo" in first


def test_make_targets_exist() -> None:
    """Every `make` target that a text names is in the Makefile."""
    texts = [*TEXTS, (ROOT / ".github" / "CONTRIBUTING.md").read_text()]
    shown = {name for text in texts for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert shown and shown <= targets


TEXT = README + (ROOT / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
IN_README = [line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ aoti-debug ")]
# A server, jobs in another state, and kernels, weights and recordings that the demo does not have.
ENDLESS_OR_AWAY = re.compile(r"aoti-debug serve\b|--ray\b|--resume|cpp_fused_0|scale\.pt|\"shape\"|record")
HANDLE = re.compile(r"\bjob_[0-9a-f]{8}\b")

SERVE = """
import argparse, torch
given = argparse.ArgumentParser()
given.add_argument("--batch", type=int, default=8)
rows = given.parse_args().batch
model = torch._inductor.aoti_load_package("model.pt2")
users, items = torch.load("batch.pt")
print(model(users[:rows], items[:rows]))
"""
LOG = "RuntimeError: index out of bounds: 0 <= tmp4 < ks1\n"


def said(line: str, directory: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the line in a shell, with only the environment's programs on its PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    surroundings = {"HOME": str(directory), "AOTI_DEBUG_STATE": str(directory / "state"), "PATH": path, **env}
    return output_of(["bash", "-c", line], cwd=directory, env=surroundings, timeout=600)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that a command below names, with the model of the demo."""
    example()
    made = said(f"cd {ROOT} && {sys.executable} -m examples.demo", ROOT, AOTI_DEBUG_MADE=str(MADE))
    assert made.returncode == 0, made.stderr
    go_on = re.search(r"To go on with these files: cd (\S+) && export PATH=(\S+):\$PATH", made.stderr)
    assert go_on and go_on[2] == str(Path(sys.executable).parent)
    folder = tmp_path_factory.mktemp("readme")
    demo = Path(go_on[1])
    for name, source in {"ranker.pt2": "ranker.pt2", "model.pt2": "ranker.pt2"}.items():
        shutil.copy(demo / source, folder / name)
    for name, source in {"bad.pt": "bad.pt", "batch.pt": "good.pt"}.items():
        shutil.copy(demo / source, folder / name)
    for name in ("nightly", "calls"):
        (folder / name).mkdir()
    shutil.copy(demo / "ranker.pt2", folder / "nightly" / "candidate.pt2")
    shutil.copy(demo / "bad.pt", folder / "calls")
    shutil.copy(demo / "good.pt", folder / "calls" / "one.pt")
    (folder / "serve.py").write_text(SERVE)
    (folder / "crash.log").write_text(LOG)
    (folder / "cpp_host").write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    (folder / "cpp_host").chmod(0o755)
    scenarios = (ROOT / "docs" / "scenarios.md").read_text()
    cases = re.search(r"```yaml\n(# cases.yaml.*?)```", scenarios, re.DOTALL)
    assert cases, "the page shows the file that the README's command names"
    (folder / "cases.yaml").write_text(cases[1])
    return folder


@pytest.fixture(scope="module")
def handle(directory: Path) -> str:
    """The job of a real diagnosis, which replaces the README's handle."""
    found = HANDLE.search(said("aoti-debug diagnose ranker.pt2 --inputs bad.pt", directory).stdout)
    assert found
    return found[0]


@thorough
def test_the_picture_is_what_the_demo_prints(directory: Path) -> None:
    """docs/demo.svg equals what is drawn again, except for line numbers, which differ between CPUs."""
    numbers = re.compile(r"(?<=kernel\.cpp:)\d+|(?<=tmp)\d+")
    assert (directory / "bad.pt").is_file()  # made by the demo
    drawn = numbers.sub("N", demo_picture.drawn(demo_picture.printed()))
    assert drawn == numbers.sub("N", demo_picture.TARGET.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=[] if re.search("explain-error", c) else thorough)
        for c in dict.fromkeys(IN_README)
        if not ENDLESS_OR_AWAY.search(c)
    ],
)
def test_a_command_works_as_shown(command: str, directory: Path, handle: str) -> None:
    """The command gives a result and a documented exit status, not 2 (wrong call), and no traceback."""
    for left in ("out", "results", "fault.zip"):
        path = directory / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    done = said(HANDLE.sub(handle, command), directory)
    assert done.returncode in (0, 1, 3), f"{done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout + done.stderr and "Traceback" not in done.stderr + done.stdout
