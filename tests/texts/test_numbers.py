"""Measured numbers in texts: each is in the file that it was measured into."""

from __future__ import annotations

import json
import re
from statistics import median

import pytest

from tests.conftest import ROOT
from tests.support.guides import PAGES

CORPUS = "benchmarks/corpus/README.md"
FAULTS = "benchmarks/memory_faults/README.md"
SUMMARY = "benchmarks/README.md"
SOURCES = {path: " ".join(path.read_text().split()) for path in (ROOT / "benchmarks").rglob("*.md")}
# What was measured: shares, ranges of seconds, and large numbers. `row 64 of 64 rows` and the like are no
# results, and tests below count tokens.
SHARE = r"\b\d+ of \d+\b(?! rows)"
MEASURED = SHARE + r"|\b\d+ to \d+ s\b|\b\d{1,3}(?:,\d{3})+\b(?! tokens)"
OTHERS = {
    "README.md": (),
    "guides/memory-faults.md": (
        *("140,648,334,229,376", "33,554,432"),  # of a report that is shown
        "2,147,483,647",  # of int32
    ),
    "guides/building-and-loading.md": ("65,535",),  # a limit of CUDA
    "guides/nan-and-wrong-output.md": ("3 to 5 s",),  # 3.1 s, and on the machine with the GPU 4.0 to 4.6 s
    SUMMARY: ("8 of 14", "4 of 7", "52 of 55", "36 of 40"),  # measured for that page itself
}
"""Numbers of a text that no other page of benchmarks/ has to have."""
NUMBERED = {*OTHERS, *(page.relative_to(ROOT).as_posix() for page in PAGES)}


@pytest.mark.parametrize("text", sorted(NUMBERED))
def test_every_number_has_a_source(text: str) -> None:
    """What was measured stands in a page of benchmarks/ that says how."""
    words = " ".join((ROOT / text).read_text().split())
    sources = " ".join(source for path, source in SOURCES.items() if path != ROOT / text)
    found = set(re.findall(SHARE if text == SUMMARY else MEASURED, words, re.IGNORECASE))
    assert found >= set(OTHERS.get(text, ()))
    wanted = found - set(OTHERS.get(text, ()))
    assert [one for one in wanted if not re.search(rf"(?<![\d,]){one}(?![\d,])", sources)] == []


def test_the_readme_has_the_measured_cost() -> None:
    """How much longer `diagnose` takes than a plain run, as benchmarks/diagnose_cost.json has it."""
    medians = json.loads((ROOT / "benchmarks/diagnose_cost.json").read_text())["cpu"]["medians"]
    words = (
        f"[{medians['package']} times](benchmarks/diagnose_cost.json) as long as one plain run of a package"
    )
    assert f"{words}, {medians['script']} times for a" in " ".join((ROOT / "README.md").read_text().split())


@pytest.mark.parametrize(
    ("text", "words", "name"),
    [
        ("SKILL.md", "list of tools, about {} tokens", "tools_core"),
        ("SKILL.md", "is about {} tokens in both", "proven_verdict_of_the_demo"),
        ("docs/install.md", "lists nine of them: about {} tokens", "tools_core"),
        ("docs/install.md", "instead of {}.", "tools_all"),
    ],
)
def test_tokens_are_those_that_were_counted(text: str, words: str, name: str) -> None:
    """Texts round to hundreds what benchmarks/tokens.json has."""
    kept = json.loads((ROOT / "benchmarks" / "tokens.json").read_text())[name]["tokens"]
    assert words.format(f"{round(kept, -2):,}") in (ROOT / text).read_text()


def test_the_cpu_faults_are_counted() -> None:
    """The CPU page counts the rows of the table of CPU faults by how the plain run ends."""
    table = (ROOT / FAULTS).read_text().partition("## CPU")[2].partition("## CUDA")[0]
    ends = [row.split("|")[3].strip() for row in table.splitlines() if re.match(r"\| \w+ \|", row)]
    faults = [end for end in ends[1:] if end != "clean"]
    segfaults, silent = faults.count("SIGSEGV"), faults.count("**clean**")
    counted = rf"Of {len(faults)} CPU faults in .*, {segfaults} ended in SIGSEGV and {silent} ended cleanly"
    assert re.search(counted, (ROOT / "guides/cpu-packages.md").read_text())


def test_the_compiler_faults_of_the_table_are_those_of_the_file() -> None:
    """How many public reports were named, in how many compiles, and that no healthy program was accused."""
    kept = json.loads((ROOT / "benchmarks" / "compiler_faults.json").read_text(encoding="utf-8"))
    programs = kept["programs"]
    faulty = [program for program in programs.values() if program["report"]]
    named = [p for p in faulty if p["outcome"] == "decision" and p["whole"] == "gone"]
    healthy = [program for program in programs.values() if not program["report"]]
    assert all(program["outcome"] == "no failure" for program in healthy)
    reports, left = ({p["report"] for p in some} for some in (faulty, [p for p in faulty if p not in named]))
    told = f"{len(reports - left)} of {len(reports)} reports"
    words = f"{told}, in at most {max(p['compiles'] for p in named)} compiles"
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert f"{words}; {len(healthy)} healthy programs that round differently: none accused" in text
    on_cuda = [p for p in kept["cuda"]["programs"].values() if p["outcome"] != "no failure"]
    compiler = [p for p in on_cuda if "not the compiler's" not in p["outcome"]]
    gone = [p for p in compiler if p["outcome"] == "decision" and p["whole"] == "gone" and p["report"]]
    most = max(p["compiles"] for p in gone)
    asked = sum(bool(program["report"]) for program in kept["cuda"]["programs"].values())
    there = f"H200, asked {asked} of the {len(faulty)} programs: {len(gone)} of the {len(compiler)}"
    assert f"{there} that are wrong there, in at most {most} |" in text


def test_the_reports_that_a_release_has_right_are_counted() -> None:
    """docs/releases.md has a column for each torch that was asked, in the order of the releases."""
    kept = json.loads((ROOT / "benchmarks" / "compiler_faults.json").read_text())
    faulty, releases = [p["report"] for p in kept["programs"].values() if p["report"]], kept["releases"]
    names = sorted(releases, key=lambda name: [int(part) for part in name.partition("+")[0].split(".")])
    cells = [f"{sum(releases[name].values())} of {len(releases[name])}" for name in names]
    table = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n| {' | '.join(cells)} |"
    page = (ROOT / "docs" / "releases.md").read_text()
    assert table in page
    assert f"The {len(faulty)} programs of {len(set(faulty))} public reports" in page


def test_proven_verdicts_on_two_defects_are_the_sum_of_their_table() -> None:
    """The row of `proven` adds up to what the texts quote."""
    (row,) = re.findall(r"\*\*right of `proven`\*\* \| (.+) \|", (ROOT / CORPUS).read_text())
    cells = [cell.split(" of ") for cell in row.split(" | ")]
    assert [sum(int(cell[side]) for cell in cells) for side in (0, 1)] == [32, 32]


@pytest.mark.parametrize(
    ("number", "sides", "words"),
    [
        (None, ("with", "without"), "{} calls and {} minutes with it, {} and {} without"),
        ("second", ("with", "corrected", "without"), "{} calls and {} minutes, {} and {} without"),
    ],
    ids=["first", "second"],
)
def test_readers_are_counted_from_their_packages(
    number: str | None, sides: tuple[str, ...], words: str
) -> None:
    """Calls and seconds of both pages in benchmarks/ are those that were kept."""
    kept = json.loads((ROOT / "benchmarks/readers.json").read_text())
    packages = (kept[number] if number else kept)["packages"]
    page = (ROOT / "benchmarks" / "agents.md").read_text()
    calls = [[package[side]["calls"] for package in packages] for side in sides]
    seconds = [[package[side]["seconds"] for package in packages] for side in sides]
    rows = {
        "calls, all and median": [f"{sum(each)}, {median(each):.0f}" for each in calls],
        "minutes, all": [f"{sum(each) / 60:.1f}" for each in seconds],
        "seconds a package, median": [f"{median(each):.0f}" for each in seconds],
    }
    rows |= {p["kind"]: [f"{p[side]['calls']}, {p[side]['seconds']}" for side in sides] for p in packages}
    assert [title for title, cells in rows.items() if f"| {title} | {' | '.join(cells)} |" not in page] == []
    assert all(package[side]["solved"] for package in packages for side in sides)
    totals = [(sum(calls[n]), f"{sum(seconds[n]) / 60:.1f}") for n in (-2, -1)]
    gained = words.format(*totals[0], *totals[1])
    assert gained in (ROOT / SUMMARY).read_text()


def test_runs_of_the_third_set_are_counted_from_their_packages() -> None:
    """Each run's calls, minutes and tasks that a blind reader found solved, or that it was not graded."""
    kept = json.loads((ROOT / "benchmarks/readers.json").read_text())["third"]["packages"]
    page = (ROOT / "benchmarks" / "agents.md").read_text()
    found: dict[str, list[str]] = {
        "solved, graded blind": [],
        "calls in each run": [],
        "minutes in each run": [],
    }
    totals = []
    for side in ("with", "without"):
        runs = [
            {name: [each[side][name][n] for each in kept] for name in ("calls", "seconds", "solved")}
            for n in range(3)
        ]
        graded = [[one for one in run["solved"] if one is not None] for run in runs]
        solved = [f"{sum(one)} of {len(one)}" if one else "not graded" for one in graded]
        found["solved, graded blind"].append(", ".join(solved))
        found["calls in each run"].append(", ".join(str(sum(run["calls"])) for run in runs))
        found["minutes in each run"].append(", ".join(f"{sum(run['seconds']) / 60:.1f}" for run in runs))
        totals.append(sum(sum(run["calls"]) for run in runs))
    for title, cells in found.items():
        assert f"| {title} | {cells[0]} | {cells[1]} |" in page
    for each in kept:
        pair = [
            f"{', '.join(map(str, s['calls']))}; {median(s['seconds'])}"
            for s in (each["with"], each["without"])
        ]
        assert f"| {each['kind']} | {pair[0]} | {pair[1]} |" in page
    assert f"{totals[0]} calls, {totals[1]} without |" in (ROOT / "benchmarks" / "README.md").read_text()
