"""What is shipped keeps to the documented rules of NVIDIA's SkillSpector, as far as reading decides them.

SkillSpector itself is in no package index, only in a repository, so it does not run here. It objects to every
child process (AST4), which a debugger needs: that rule is held as a list of the files that may start one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

from tests.security.scanner.__main__ import ROOT, UNSHIPPED
from tools.tracked import tracked

RUNS_TEXT = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
STARTS = ("subprocess.", "os.exec", "os.spawn", "os.posix_spawn", "runpy.")
STARTERS = {
    "examples/demo.py",
    "mcp_server/probes/commands.py",  # asks a compiler where its libraries are
    "mcp_server/interpreter.py",  # asks a Python whether it has torch
    "mcp_server/jobs/child.py",  # every child of a job
    "mcp_server/jobs/gpus.py",  # asks the driver for the UUIDs of the GPUs
    "mcp_server/jobs/supervisor.py",  # becomes the child
    "mcp_server/worker/run.py",  # the command that judges the outputs, an argument list
    "mcp_server/worker/fork_server.py",  # itself anew, with torch alone
    "mcp_server/worker/reduction/trials.py",  # a candidate in a fork of the worker
    "mcp_server/worker/loading.py",  # the script whose program is taken
    "tools/demo_picture.py",  # the demo's command
    "tools/tracked.py",
}
HIDDEN = re.compile(
    "[" + "".join(map(chr, (0x200B, 0x2D, 0x200F, 0x202A, 0x2D, 0x202E, 0x2060, 0xFEFF))) + "]"
)
FETCHES = re.compile(r"(curl|wget)[^\n]*\|\s*(ba)?sh|git\+https?:|@latest\b|\bsudo\b|npx --?y", re.IGNORECASE)


TRACKED = tracked()
SHIPPED = [name for name in TRACKED if not name.startswith((*UNSHIPPED, "docs/"))]


@cache
def calls() -> tuple[tuple[str, str, ast.Call], ...]:
    """(file, name of what is called, call) in the shipped Python."""
    return tuple(_calls())


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    for name in (name for name in SHIPPED if name.endswith(".py")):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Call):
                yield name, ast.unparse(node.func), node


def test_no_text_is_run() -> None:
    """AST1-3, 5, 6, TM1: no eval, exec or compile, no shell, and no pickle but torch's with weights only."""
    for file, called, call in calls():
        options = {option.arg: ast.unparse(option.value) for option in call.keywords}
        assert called not in RUNS_TEXT and "shell" not in options, (file, called)
        assert not called.startswith(("pickle.", "marshal.")), (file, called)
        assert called != "torch.load" or options.get("weights_only") == "True", file


def test_children_start_in_few_places() -> None:
    """AST4: whatever starts a program is one of these files."""
    assert {file for file, called, _ in calls() if called.startswith(STARTS)} == STARTERS


def test_files_are_text() -> None:
    """SC8, SC9: no bytecode, library, archive or other binary file is in the folder."""
    assert not [name for name in TRACKED if b"\0" in (ROOT / name).read_bytes()]


def test_nothing_is_hidden() -> None:
    """P2, TP1, TP2: no character without width and none that reorders text, in guides and code."""
    assert not [name for name in SHIPPED if HIDDEN.search((ROOT / name).read_text())]


def test_nothing_is_fetched_and_run() -> None:
    """SC2, PE2: no installer in a pipe, no unpinned program from the network, no sudo."""
    assert not [name for name in SHIPPED if FETCHES.search((ROOT / name).read_text())]


def test_the_rules_bite() -> None:
    """The patterns find what they are for."""
    assert all(
        map(FETCHES.search, ("curl -L https://a | sh", "pip install git+https://a", "x@latest", "sudo x"))
    )
    assert all(map(HIDDEN.search, "\u200b\u200e\u202e\ufeff")) and not HIDDEN.search("plain - text")
