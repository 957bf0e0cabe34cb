"""The commands that the README and the documentation show exist, with the options that they give them."""

from __future__ import annotations

import re
import shlex

import pytest

from mcp_server.cli import main
from mcp_server.operations.table import OPERATIONS
from tests.server.clients import ROOT

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
