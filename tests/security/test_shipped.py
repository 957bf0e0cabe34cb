"""What is shipped obeys the documented rules of NVIDIA's SkillSpector, and what the other scanner may find.

SkillSpector is in no package index, only in a repository, so it does not run here: its rules are checked as
far as reading can. It objects to every child process (AST4), but a debugger needs them, so a list names the
files that may start one. The other scanner runs with `make scan`; here its acceptances are checked.
"""

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.security.scanner.__main__ import (
    ACCEPTED,
    ROOT,
    UNSHIPPED,
    Accepted,
    Finding,
    installed,
    judge,
    read_accepted,
    read_report,
)
from tools.tracked import tracked

RUNS_TEXT = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
COMPILED_BY_THE_WORKER = {
    # a function of the user's own model, from its syntax tree with one construct rewritten
    ("mcp_server/worker/capture/changes.py", "compile"),
    # lines of the user's own model, as the body of a custom operator
    ("mcp_server/worker/capture/changes.py", "exec"),
    # the workload's own file with one line changed
    ("mcp_server/worker/capture/hook_site.py", "compile"),
    # the printed fake function of a custom operator: names of the operator's schema, and numbers
    ("mcp_server/worker/capture/shapes.py", "exec"),
    # the printed code that leaves an operator to eager mode: the name of an ATen operator
    ("mcp_server/worker/capture/attempts.py", "exec"),
    # one launch of the program that `decompile` wrote, in the process that loads the package
    ("mcp_server/worker/decompiled.py", "eval"),
}
STARTS = ("subprocess.", "os.exec", "os.spawn", "os.posix_spawn", "runpy.")
STARTERS = {
    "examples/demo.py",
    "mcp_server/cli/app.py",  # the host that `record` runs
    "mcp_server/probes/commands.py",  # asks a compiler where its libraries are
    "mcp_server/interpreter.py",  # asks a Python whether it has torch
    "mcp_server/jobs/child.py",  # every child of a job
    "mcp_server/jobs/supervisor.py",  # becomes the child
    "mcp_server/worker/run.py",  # the command that judges the outputs, an argument list
    "mcp_server/worker/fork_server.py",  # itself anew, with torch alone
    "mcp_server/worker/reduction/attempt.py",  # a smaller program, in a process of its own
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
    """(file, name of what is called, call) for each call in the shipped Python."""
    return tuple(_calls())


def _calls() -> Iterator[tuple[str, str, ast.Call]]:
    for name in (name for name in SHIPPED if name.endswith(".py")):
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Call):
                yield name, dotted(node.func), node


def dotted(called: ast.expr) -> str:
    """The dotted name as written, with nothing for a part that is no name."""
    if isinstance(called, ast.Attribute):
        return f"{dotted(called.value)}.{called.attr}"
    return called.id if isinstance(called, ast.Name) else ""


def test_no_text_is_run() -> None:
    """AST1-3, 5, 6, TM1: no eval, exec, compile or shell, and no pickle except torch's with weights only."""
    for file, called, call in calls():
        options = {option.arg: option.value for option in call.keywords}
        assert called not in RUNS_TEXT or (file, called) in COMPILED_BY_THE_WORKER, (file, called)
        assert "shell" not in options, file
        assert not called.startswith(("pickle.", "marshal.")), (file, called)
        assert called != "torch.load" or (
            "weights_only" in options and ast.unparse(options["weights_only"]) == "True"
        ), file


def test_children_start_in_few_places() -> None:
    """AST4: only these files start programs."""
    assert {file for file, called, _ in calls() if called.startswith(STARTS)} == STARTERS


def test_files_are_text() -> None:
    """SC8, SC9: the folder has no bytecode, library, archive or other binary file."""
    assert not [name for name in TRACKED if b"\0" in (ROOT / name).read_bytes()]


def test_nothing_is_hidden() -> None:
    """P2, TP1, TP2: guides and code have no character without width and none that reorders text."""
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


EVAL = Accepted(
    "COMMAND_INJECTION_EVAL", "cases/*.py", "torch's own", r"^(?!.*(?<![\w.)])eval\().*[\w)]\.eval\(\)"
)


def found(text: str, file: str = "cases/a.py", severity: str = "CRITICAL") -> Finding:
    return Finding(severity, EVAL.rule, file, 3, text)


@pytest.mark.parametrize(
    ("finding", "passes"),
    [
        (found("model = Model().eval()"), True),
        (found("model = eval(text)"), False),
        (found("model = eval(text).eval()"), False),
        (found("model = Model().eval()", "server.py"), False),
    ],
)
def test_a_finding_needs_an_acceptance(finding: Finding, passes: bool) -> None:
    """A finding in another file, or on a line that does not match, is not covered."""
    assert judge([finding, found("Model().eval()")], [EVAL]).passes == passes


def test_an_acceptance_needs_a_finding() -> None:
    """An acceptance that covers no finding fails; low findings need none."""
    judged = judge([found("Model().eval()", severity="LOW")], [EVAL])
    assert not judged.findings and judged.unused == [EVAL] and not judged.passes


def test_absolute_paths_become_relative(tmp_path: Path) -> None:
    """The behavioural analyser gives the absolute path of a file in the scanned folder."""
    entry = {"severity": "HIGH", "rule_id": "R", "line_number": None, "snippet": None}
    entries = [{**entry, "file_path": str(tmp_path / "a/b.py")}, {**entry, "file_path": "a/b.py"}]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"findings": entries}))
    assert read_report(report, tmp_path) == [Finding("HIGH", "R", "a/b.py")] * 2


def test_what_is_shipped_needs_few_acceptances() -> None:
    """Only these files, of those that run or are read on a user's machine, have an acceptance."""
    found = read_accepted(ACCEPTED)
    shipped = [each for each in found if not each.of_tests and not each.files.startswith(UNSHIPPED)]
    assert {entry.files for entry in shipped} == {
        ".ci/run",
        "mcp_server/diagnosis/causes/*.py",
        ".claude-plugin/marketplace.json",
        ".claude-plugin/plugin.json",
        ".cursor-plugin/*.json",
        ".pre-commit-config.yaml",
        "examples/cpp_host/CMakeLists.txt",
        "tools/constraints.txt",
        *(file for file, _ in COMPILED_BY_THE_WORKER),
    }


def test_the_copy_is_what_is_tracked(tmp_path: Path) -> None:
    """The scanned folder has the server, its guides and hidden manifests, and nothing untracked."""
    copy = installed(tmp_path, UNSHIPPED)
    names = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    assert {
        "SKILL.md",
        ".claude-plugin/plugin.json",
        "mcp_server/server/app.py",
        "tools/aoti_debug.py",
    } <= names
    assert not any(name.startswith((*UNSHIPPED, ".venv", ".cache", ".git/")) for name in names)
