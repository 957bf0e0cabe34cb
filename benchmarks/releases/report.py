"""Keeps what held under each release, and makes the table of docs/releases.md from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import benchmarks

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "releases.md"
MARKED = re.compile(r"(?<=<!-- releases:begin -->\n).*?(?=<!-- releases:end -->)", re.DOTALL)
AREAS = {
    "packages": "15 models: compiled, read, run as read, the same bits with probes, launches in order",
    "steps": "each kind of step on packages, and the diagnosis of three bad calls",
    "scripts": "diagnosis of failing programs: category and root cause",
    "texts": "errors that were provoked and recognised",
    "flags": "flags that exist from the release that guides/flags.md names",
}


@dataclass(frozen=True)
class Area:
    """How many things were tried, and why some did not hold, by name."""

    tried: int
    failed: Mapping[str, str]

    @classmethod
    def of(cls, outcomes: Mapping[str, str]) -> Area:
        """From reasons by name, each empty if the thing held."""
        return cls(len(outcomes), {name: why for name, why in outcomes.items() if why})


@dataclass(frozen=True)
class Tried:
    """One release, by area."""

    torch: str
    python: str
    areas: Mapping[str, Area]

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> Tried:
        areas = {name: Area(**area) for name, area in kept["areas"].items()}
        return cls(kept["torch"], kept["python"], areas)

    @property
    def release(self) -> str:
        return ".".join(self.torch.split(".")[:2])

    def cell(self, area: str) -> str:
        found = self.areas.get(area)
        return f"{found.tried - len(found.failed)} of {found.tried}" if found else "not run"


def keep(tried: Tried) -> Path:
    """Write the release into the file; areas that were not tried stay as they were."""
    releases = {one.release: one for one in kept()}
    before = releases[tried.release].areas if tried.release in releases else {}
    areas = {area: {**before, **tried.areas}[area] for area in AREAS if area in {**before, **tried.areas}}
    releases[tried.release] = replace(tried, areas=areas)
    benchmarks.keep("releases", {one.release: asdict(one) for one in _sorted(releases)})
    return benchmarks.RESULTS


def kept() -> list[Tried]:
    """Every release that was tried, oldest first."""
    found = benchmarks.kept("releases")
    return _sorted({name: Tried.read(one) for name, one in found.items()})


def table(tried: list[Tried]) -> str:
    """One column for each release."""
    head = ["held, of what was tried on a CPU", *(one.torch for one in tried)]
    rows = [["Python", *(one.python for one in tried)]]
    rows += [[words, *(one.cell(area) for one in tried)] for area, words in AREAS.items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section() -> str:
    """What the page has between its marks: the table, then what did not hold."""
    tried = kept()
    wrong = [f"- torch {line}" for line in failures(tried)]
    return "\n".join(["", table(tried), "", *wrong, *([""] if wrong else [])])


def failures(tried: list[Tried]) -> list[str]:
    """A line for each thing that did not hold."""
    return [
        f"{one.release}, {area}: {name}: {why}"
        for one in tried
        for area, found in one.areas.items()
        for name, why in found.failed.items()
    ]


def _sorted(releases: Mapping[str, Tried]) -> list[Tried]:
    return sorted(releases.values(), key=lambda tried: [int(part) for part in tried.release.split(".")])
