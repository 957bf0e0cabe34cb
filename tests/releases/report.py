"""Keeps what held under each release, and makes the table of docs/releases.md of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELD = ROOT / "benchmarks" / "releases.json"
PAGE = ROOT / "docs" / "releases.md"
MARKED = re.compile(r"(?<=<!-- releases:begin -->\n).*?(?=<!-- releases:end -->)", re.DOTALL)
AREAS = {
    "packages": "15 models: compiled, read, run as read, the same bits with probes, launches in order",
    "steps": "each kind of step on packages, and the diagnosis of three bad calls",
    "scripts": "diagnosis of failing programs: category and root cause",
    "texts": "errors that were provoked, and what they were read as",
    "flags": "flags that exist from the release on that docs/flags.md names",
}


@dataclass(frozen=True)
class Tried:
    """One release: each area's trials, with "" for one that held or the reason for one that did not."""

    torch: str
    python: str
    areas: Mapping[str, Mapping[str, str]]

    @property
    def release(self) -> str:
        return ".".join(self.torch.split(".")[:2])

    def cell(self, area: str) -> str:
        trials = self.areas.get(area)
        if trials is None:
            return "not run"
        return f"{sum(not why for why in trials.values())} of {len(trials)}"


def keep(tried: Tried, path: Path = HELD) -> Path:
    """Write the release into the file, with areas that were not tried this time as they were."""
    releases = {one.release: one for one in kept(path)}
    before = releases[tried.release].areas if tried.release in releases else {}
    areas = {area: {**before, **tried.areas}[area] for area in AREAS if area in {**before, **tried.areas}}
    releases[tried.release] = replace(tried, areas=areas)
    lines = (f"{json.dumps(one.release)}: {json.dumps(asdict(one))}" for one in _sorted(releases))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")  # a line for each release
    return path


def kept(path: Path = HELD) -> list[Tried]:
    """Every release that was tried, the oldest first."""
    if not path.exists():
        return []
    return _sorted({name: Tried(**one) for name, one in json.loads(path.read_text()).items()})


def table(tried: list[Tried]) -> str:
    """One column for each release, and below it what does not hold."""
    head = ["held, of what was tried on a CPU", *(one.torch for one in tried)]
    rows = [["Python", *(one.python for one in tried)]]
    rows += [[words, *(one.cell(area) for one in tried)] for area, words in AREAS.items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def section(path: Path = HELD) -> str:
    """What the page says between its marks: the table, then what did not hold."""
    tried = kept(path)
    wrong = [f"- torch {line}" for line in failures(tried)]
    return "\n".join(["", table(tried), "", *wrong, *([""] if wrong else [])])


def failures(tried: list[Tried]) -> list[str]:
    """What did not hold, a line for each."""
    return [
        f"{one.release}, {area}: {name}: {why}"
        for one in tried
        for area, trials in one.areas.items()
        for name, why in trials.items()
        if why
    ]


def _sorted(releases: Mapping[str, Tried]) -> list[Tried]:
    return sorted(releases.values(), key=lambda tried: [int(part) for part in tried.release.split(".")])
