"""The comparison of a scanner's findings with those that were accepted. The scanner itself: `make scan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.security.scanner.__main__ import ACCEPTED, UNSHIPPED, installed
from tests.security.scanner.findings import Accepted, Finding, judge, read_accepted, read_report

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
    """One of another file, or on a line of another kind, is not covered."""
    assert judge([finding, found("Model().eval()")], [EVAL]).passes == passes


def test_an_acceptance_needs_a_finding() -> None:
    """What is not found any more has to go from the list; low findings need none."""
    judged = judge([found("Model().eval()", severity="LOW")], [EVAL])
    assert not judged.findings and judged.unused == [EVAL] and not judged.passes


def test_absolute_paths_become_relative(tmp_path: Path) -> None:
    """The behavioural analyser names the file where the scanner found it."""
    entry = {"severity": "HIGH", "rule_id": "R", "line_number": None, "snippet": None}
    entries = [{**entry, "file_path": str(tmp_path / "a/b.py")}, {**entry, "file_path": "a/b.py"}]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"findings": entries}))
    assert read_report(report, tmp_path) == [Finding("HIGH", "R", "a/b.py")] * 2


def test_what_is_shipped_needs_few_acceptances() -> None:
    """What runs or is read on a user's machine holds nothing to accept but names that clients look for."""
    found = read_accepted(ACCEPTED)
    shipped = [each for each in found if not each.of_tests and not each.files.startswith(UNSHIPPED)]
    assert {entry.files for entry in shipped} == {
        ".ci/run",
        ".claude-plugin/marketplace.json",
        ".claude-plugin/plugin.json",
        ".cursor-plugin/*.json",
        ".pre-commit-config.yaml",
        "constraints.txt",
        "docs/llms.txt",
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
