"""The commands that the README shows exist, with the options that it gives them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from mcp_server import cli
from mcp_server.operations.table import OPERATIONS
from tests.faces.clients import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"^\$ (aoti-debug .+)$", README, re.MULTILINE)))


def options_of(words: list[str]) -> set[str]:
    """Options before `--`: what follows belongs to the workload."""
    ours = words[: words.index("--")] if "--" in words else words
    return {word for word in ours if word.startswith("-")}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_shown_command_exists(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and each of its options are in the command's own help."""
    _, name, *rest = shlex.split(line)
    assert cli.run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"(^|[ ,]){re.escape(option)}\b", shown, re.MULTILINE) for option in options_of(rest)
    )


def test_every_operation_is_in_the_table() -> None:
    """The README's table has a row for each operation and none for what is not there."""
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", README.partition("## Flags")[0], re.MULTILINE))
    assert rows == {operation.name for operation in OPERATIONS}


def test_make_targets_exist() -> None:
    """Every `make` target that is shown is one of the Makefile."""
    shown = set(re.findall(r"^\$ make (\S+)$", README, re.MULTILINE))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert shown and shown <= targets


def test_the_table_of_flags_is_current() -> None:
    """`python tools/flag_table.py` would change nothing."""
    argv = [sys.executable, str(ROOT / "tools" / "flag_table.py"), "--check"]
    assert subprocess.run(argv, cwd=ROOT, check=False).returncode == 0
