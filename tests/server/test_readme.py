"""The README's tables agree with the code, and its commands run literally after `make demo`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_server.cli import main
from mcp_server.operations.table import OPERATIONS
from tests.server.clients import ROOT
from tests.zoo.names import thorough
from tools.made import MADE

README = (ROOT / "README.md").read_text()
TEXTS = [README, *(path.read_text() for path in sorted((ROOT / "docs").rglob("*.md")))]
COMMANDS = sorted(
    {line for text in TEXTS for line in re.findall(r"^ *\$ (aoti-debug .+)$", text, re.MULTILINE)}
)


def options_of(words: list[str]) -> set[str]:
    """Options before `--`: what follows belongs to the workload."""
    ours = words[: words.index("--")] if "--" in words else words
    return {word for word in ours if word.startswith("-")}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_shown_command_exists(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and each of its options are in the command's own help."""
    _, name, *rest = shlex.split(line)
    assert main.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"(^|[ ,]){re.escape(option)}\b", shown, re.MULTILINE) for option in options_of(rest)
    )


def test_every_operation_has_a_section() -> None:
    """The page of tools has each operation, and what waits for and stops a job."""
    rows = set(re.findall(r"^## ([a-z_]+)$", (ROOT / "docs" / "tools.md").read_text(), re.MULTILINE))
    assert rows == {operation.name for operation in OPERATIONS} | {"wait_job", "stop_job"}


def test_the_readme_names_every_operation() -> None:
    """A reader of the first page meets each tool once."""
    named = set(re.findall(r"`([a-z_]+)`", README)) | {c.split()[1].replace("-", "_") for c in COMMANDS}
    assert named >= {operation.name for operation in OPERATIONS}


def test_the_readme_is_one_screen_and_a_reference() -> None:
    """About 150 lines; what it is, for whom and a real verdict are in the first 35."""
    lines = README.splitlines()
    assert len(lines) <= 170
    first = "\n".join(lines[:35])
    assert "AOTInductor package" in first and "FAULT  index_out_of_bounds" in first


def test_make_targets_exist() -> None:
    """Every `make` target that a text names is one of the Makefile."""
    texts = [*TEXTS, (ROOT / "CONTRIBUTING.md").read_text()]
    shown = {name for text in texts for name in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert shown and shown <= targets


TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
README_COMMANDS = [
    line[2:] for block in BLOCKS for line in block.splitlines() if line.startswith("$ aoti-debug ")
]
ENDLESS_OR_ELSEWHERE = re.compile(r"aoti-debug serve\b|--ray\b")  # a server; a Ray cluster
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
    """What a shell prints for the line, with the environment's programs on its PATH and nothing else set."""
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    surroundings = {"HOME": str(directory), "AOTI_DEBUG_STATE": str(directory / "state"), "PATH": path, **env}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that a command of the README names; the model is that of the demo."""
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
    sweep = (ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")
    cases = re.search(r"```yaml\n(.*?)```", sweep, re.DOTALL)
    assert cases, "the page shows the file that the README's command names"
    (folder / "cases.yaml").write_text(cases[1])
    return folder


@pytest.fixture(scope="module")
def handle(directory: Path) -> str:
    """The job of a diagnosis that was made: the README's handle stands for such a one."""
    found = HANDLE.search(said("aoti-debug diagnose ranker.pt2 --inputs bad.pt", directory).stdout)
    assert found
    return found[0]


@pytest.mark.slow
def test_the_readme_shows_commands() -> None:
    """The tests below have something to run."""
    assert len(README_COMMANDS) >= 10


@pytest.mark.slow
def test_the_first_block_is_what_the_demo_prints(directory: Path) -> None:
    """Each line up to the first gap, as it is shown."""
    command, *shown = next(block for block in BLOCKS if "aoti-debug diagnose" in block).splitlines()
    printed = said(command.removeprefix("$ "), directory, COLUMNS="200").stdout
    for line in shown[: shown.index("...")] if "..." in shown else shown:
        words = line.split("  ")[-1].strip()
        assert words in printed, f"README shows {line!r}; printed was\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(c, marks=thorough if " sweep " in c or "--bundle" in c else [])
        for c in README_COMMANDS
        if not ENDLESS_OR_ELSEWHERE.search(c)
    ],
)
def test_a_command_works_as_shown(command: str, directory: Path, handle: str) -> None:
    """A result and a documented exit code: not "wrong call" (2), and no traceback."""
    for left in ("out", "results", "fault.zip"):
        path = directory / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    done = said(HANDLE.sub(handle, command), directory)
    assert done.returncode in (0, 1, 3), f"{done.returncode}: {done.stderr[-2000:]}"
    assert done.stdout + done.stderr and "Traceback" not in done.stderr + done.stdout
