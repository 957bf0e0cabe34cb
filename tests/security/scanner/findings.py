"""What the scanner found, and which of it was looked at and accepted."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

LOW = ("LOW", "INFO", "SAFE")


@dataclass(frozen=True)
class Finding:
    """One objection. `file` is relative to the skill; `text` is the line objected to, if it is one line."""

    severity: str
    rule: str
    file: str
    line: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Accepted:
    """Objections that are none: of one rule, in files of a pattern, on lines that match `line`.

    `of_tests`: the rule names another file than the one that it objects to, and what it found is in tests.
    """

    rule: str
    files: str
    why: str
    line: str = ""
    of_tests: bool = False

    def covers(self, finding: Finding) -> bool:
        return (
            self.rule == finding.rule
            and fnmatch(finding.file, self.files)
            and re.search(self.line, finding.text) is not None
        )


@dataclass(frozen=True)
class Judged:
    """Findings above low with their acceptance, and acceptances that cover nothing any more."""

    findings: Sequence[tuple[Finding, Accepted | None]]
    unused: Sequence[Accepted]

    @property
    def passes(self) -> bool:
        return not self.unused and all(accepted for _, accepted in self.findings)


def read_accepted(path: Path) -> list[Accepted]:
    return [Accepted(**entry) for entry in yaml.safe_load(path.read_text())]


def read_report(path: Path, skill: Path) -> list[Finding]:
    """The findings in a report of skill-scanner 2.3.2, whose behavioural analyser gives absolute paths."""
    return [_finding(entry, skill) for entry in json.loads(path.read_text())["findings"]]


def _finding(entry: Mapping[str, Any], skill: Path) -> Finding:
    file = Path(entry["file_path"] or ".")
    name = file.relative_to(skill) if file.is_absolute() else file
    text = entry.get("snippet") or ""
    return Finding(entry["severity"], entry["rule_id"], name.as_posix(), entry["line_number"], text)


def judge(findings: Iterable[Finding], accepted: Collection[Accepted]) -> Judged:
    above = [finding for finding in findings if finding.severity not in LOW]
    judged = [(finding, _acceptance(finding, accepted)) for finding in above]
    used = {entry for _, entry in judged}
    return Judged(judged, [entry for entry in accepted if entry not in used])


def _acceptance(finding: Finding, accepted: Iterable[Accepted]) -> Accepted | None:
    return next((entry for entry in accepted if entry.covers(finding)), None)
