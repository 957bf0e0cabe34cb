"""Scans what `npx skills add` installs: `python -m tests.security.scanner SKILL_SCANNER [--shipped]`.

Cisco's skill-scanner runs with its strict policy, without network or model. A finding above low that
`accepted.yaml` does not cover fails, and so does an acceptance that covers none. `--shipped` leaves out
tests and benchmarks, and takes a third of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

from tools.tracked import tracked

ROOT = Path(__file__).resolve().parents[3]
ACCEPTED = Path(__file__).with_name("accepted.yaml")
UNSHIPPED = ("tests/", "benchmarks/", "evals/")
OPTIONS = ("--policy", "strict", "--use-behavioral", "--use-trigger", "--format", "json")
NOWHERE = "http://127.0.0.1:9"
"""A proxy that is not there: whatever asks for the network fails."""


def installed(target: Path, without: tuple[str, ...]) -> Path:
    """Copy the tracked files, which the skills CLI (1.5.18 to 1.7.4) takes from a clone."""
    for name in tracked():
        if not name.startswith(without):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def scan(scanner: Path, skill: Path, report: Path) -> list[Finding]:
    """What the scanner finds. Raises CalledProcessError when it fails."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(report.parent), "HTTPS_PROXY": NOWHERE}
    argv = [str(scanner), "scan", str(skill), *OPTIONS, "--output", str(report)]
    subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=True)
    return read_report(report, skill)


def table(judged: Judged) -> Iterable[str]:
    for finding, entry in judged.findings:
        place = finding.file if finding.line is None else f"{finding.file}:{finding.line}"
        yield f"{finding.severity:<8}  {finding.rule}  {place}  {entry.why if entry else 'NOT ACCEPTED'}"
    for entry in judged.unused:
        yield f"accepted, but not found: {entry.rule} in {entry.files}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scanner", type=Path)
    parser.add_argument("--shipped", action="store_true")
    given = parser.parse_args()
    without = UNSHIPPED if given.shipped else ()
    accepted = [
        entry
        for entry in read_accepted(ACCEPTED)
        if not (given.shipped and entry.of_tests) and not entry.files.startswith(without)
    ]
    return report(given.scanner.absolute(), without, accepted)


def report(scanner: Path, without: tuple[str, ...], accepted: list[Accepted]) -> int:
    """Print what was found, and return the exit status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory).resolve()
        findings = scan(scanner, installed(place / "aoti-debug", without), place / "report.json")
    judged = judge(findings, accepted)
    print("\n".join(table(judged)))
    low = len(findings) - len(judged.findings)
    new = sum(entry is None for _, entry in judged.findings)
    print(f"{new} not accepted, {len(judged.findings) - new} accepted, {low} low or less", end="; ")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if judged.passes else 1


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
    """Findings of one rule, in files of a pattern, on lines that match `line`, that are no fault.

    `of_tests`: the rule names a file that is not the cause; what it found is in tests.
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
    """Findings above low with their acceptance, and acceptances that cover nothing."""

    findings: Sequence[tuple[Finding, Accepted | None]]
    unused: Sequence[Accepted]

    @property
    def passes(self) -> bool:
        return not self.unused and all(accepted for _, accepted in self.findings)


def read_accepted(path: Path) -> list[Accepted]:
    return [Accepted(**entry) for entry in yaml.safe_load(path.read_text())]


def read_report(path: Path, skill: Path) -> list[Finding]:
    """The findings in a report of skill-scanner 2.3.2; its behavioural analyser gives absolute paths."""
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


if __name__ == "__main__":
    sys.exit(main())
