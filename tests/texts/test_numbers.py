"""Numbers in texts: each measured one is in its file of results. Supported releases of torch."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from benchmarks import kept
from benchmarks.releases.report import MARKED, PAGE, Area, Tried, failures, keep, section, table
from benchmarks.releases.report import kept as kept_releases
from mcp_server import FIRST, LAST, is_supported, release_text
from tests.conftest import ROOT
from tests.support.guides import PAGES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CORPUS = "benchmarks/corpus/README.md"
FIRST_SIGHT = "benchmarks/first_sight.md"
MEASURED = "benchmarks/README.md"


@dataclass(frozen=True)
class Claim:
    """`words` are in `text`, and each pattern of `found` matches in `source`."""

    text: str
    words: str
    source: str
    found: tuple[str, ...]


TABLE: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("README.md", FIRST_SIGHT): {
        # Summed over the page's rows by tests/test_plant.py.
        "[147 of 171](benchmarks/first_sight.md)": ("All batches",),
        "[77 of 80](benchmarks/first_sight.md)": ("All batches",),
    },
    ("README.md", "benchmarks/README.md"): {
        # Compared with the results by tests/test_plant.py.
        "[79 of 80](benchmarks/README.md#planted-faults)": (r"right category \| 79 of 80",),
        "Right when `proven`: 70 of 70. Healthy programs accused: 0 of 18.": (
            r"`proven` \| 70 of 70",
            r"accused \| 0 of 18",
        ),
        "for 70 of 80 planted faults": (r"`proven` \| 70 of 70", r"right category \| 79 of 80"),
    },
    ("benchmarks/README.md", "benchmarks/results.json"): {
        # Counted by a test below.
        "13 of 16 reports, in at most 10 compiles; 5 healthy programs": ('"compiles":10',)
    },
    ("guides/production.md", "benchmarks/results.json"): {
        "added 2.0 µs to a call of 0.24 ms": ('"call_us":241', '"added_us":2.0'),
        "added 14.4 µs to a call of 0.33 ms": ('"call_us":330', '"added_us":14.4'),
    },
    ("benchmarks/README.md", FIRST_SIGHT): {
        # Summed over the page's rows by tests/test_plant.py.
        "147 of 171 scripts; right cause in 77 of 80 `proven` verdicts": ("All batches",)
    },
    ("benchmarks/README.md", CORPUS): {
        "39 of 40 on the CPU, 19 of 19 on CUDA": (r"\| category right \| 39 of 40 .* 19 of 19 \|",),
        "31 of 31 on the CPU, 18 of 18 on CUDA": (r"`proven` \| 20 of 20 \| 11 of 11 \| 11 of 11 \| 7 of 7",),
    },
    ("guides/nan-and-wrong-output.md", MEASURED): {
        # 3.1 s on two cores, 4.0 to 4.6 s on the machine with the GPU.
        "g++, 3 to 5 s in our runs": (r"3\.1 s, .* on T 4\.0 to 4\.6 s",),
        "stayed within 8 % of the tolerance": ("8 % of the tolerance",),
        "one weight changed by 0.01 was 5,400": (r"0\.01 \| 5,400 times",),
    },
    ("triton-index-out-of-bounds.md", MEASURED): {
        "108 KB in one measured case": (r"\| 108 KB \|",),
        "inside the cubin (14 of 14)": ("cubins .* 14 of 14",),
        "blank and counts (3 of 3)": (r"embedded source \| 3 of 3",),
    },
    ("guides/memory-faults.md", MEASURED): {
        "in 7 of 7 crashes it was the faulting": ("7 of 7 crashes",),
        "148,640 and 194,016 records": ("148,640 in one run, 194,016",),
        "a small call took 0.24 s against 0.12 s, the process 9.5-10.9 s against 9-10 s": (
            r"0\.12 s and 0\.24 s",
            r"9-10 s and 9\.5-10\.9 s",
        ),
        "number of hazards (2,048 in one record)": (r"racecheck \| 2,048",),
        "launch 9 of 15 in one measured case": ("launch 9 of 15",),
        "a read 372,737 bytes past an allocation and one 1,152 bytes before": (
            "372,737 bytes after, 1,152 bytes before",
        ),
    },
    ("guides/pytorch-documents.md", MEASURED): {
        "in 7 of 7 crashes; 4 silent": ("7 of 7 crashes; .* 4 silent",)
    },
    ("guides/api.md", MEASURED): {"took 32 to 46 s on one H200": ("32 to 46 s",)},
    ("guides/building-and-loading.md", MEASURED): {"A load that takes 32 to 46 s": ("32 to 46 s",)},
    ("guides/hangs-and-concurrency.md", MEASURED): {"takes 42 to 81 s": ("42 to 81 s",)},
    ("guides/slow-or-large.md", MEASURED): {"took 32 to 46 s of a load": ("32 to 46 s",)},
}
"""By a text and the source of its numbers: words of the text, and patterns that match in the source."""
CLAIMS = tuple(
    Claim(text, words, source, found)
    for (text, source), rows in TABLE.items()
    for words, found in rows.items()
)
# Every share must be claimed. In guides, `row 64 of 64 rows` and the like are not results.
SHARES = r"\b\d+ of \d+\b(?! rows)"
CLAIMED = {
    "README.md": SHARES,
    "guides/memory-faults.md": SHARES + r"|\b(?:of 27 faults \d+|on 27 small)\b",
    **{page.relative_to(ROOT).as_posix(): SHARES for page in PAGES if page.name != "memory-faults.md"},
}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.text}: {claim.words[:40]}")
def test_a_number_is_in_its_file(claim: Claim) -> None:
    """The text has the words, and the source has the same numbers."""
    assert claim.words in " ".join((ROOT / claim.text).read_text().split())
    source = (ROOT / claim.source).read_text()
    assert [pattern for pattern in claim.found if not re.search(pattern, source)] == []


@pytest.mark.parametrize("text", CLAIMED)
def test_every_number_is_claimed(text: str) -> None:
    """A share without a row above has no source."""
    words = " ".join((ROOT / text).read_text().split())
    for claim in CLAIMS:
        if claim.text == text:
            words = words.replace(claim.words, "")
    assert re.findall(CLAIMED[text], words, re.IGNORECASE) == []


@pytest.mark.parametrize(
    ("text", "words", "name"),
    [
        ("SKILL.md", "adds {} tokens of tools", "tools_core"),
        ("SKILL.md", "is about {} tokens there", "proven_verdict_of_the_demo"),
        ("docs/install.md", "lists ten of them: about {} tokens", "tools_core"),
        ("docs/install.md", "instead of {}.", "tools_all"),
    ],
)
def test_tokens_are_those_that_were_counted(text: str, words: str, name: str) -> None:
    """Texts round the counts of benchmarks/results.json to hundreds."""
    held = kept("tokens")[name]["tokens"]
    assert words.format(f"{round(held, -2):,}") in (ROOT / text).read_text()


@pytest.mark.parametrize("source", sorted({claim.source for claim in CLAIMS if claim.text == "README.md"}))
def test_the_readme_links_its_sources(source: str) -> None:
    """The README links the file behind each number."""
    assert f"]({source})" in (ROOT / "README.md").read_text()


def test_the_compiler_faults_of_the_table_are_those_of_the_file() -> None:
    """The table has the reports that were named, in how many compiles, and no accused healthy program."""
    held = kept("compiler_faults")
    programs = held["programs"]
    faulty = [program for program in programs.values() if program["report"]]
    named = [p for p in faulty if p["outcome"] == "decision" and p["whole"] == "gone"]
    healthy = [program for program in programs.values() if not program["report"]]
    assert all(program["outcome"] == "no failure" for program in healthy)
    reports, left = ({p["report"] for p in some} for some in (faulty, [p for p in faulty if p not in named]))
    told = f"{len(reports - left)} of {len(reports)} reports"
    words = f"{told}, in at most {max(p['compiles'] for p in named)} compiles"
    text = (ROOT / "benchmarks" / "README.md").read_text()
    assert f"{words}; {len(healthy)} healthy programs that round differently: none accused" in text
    on_cuda = [p for p in held["cuda"]["programs"].values() if p["outcome"] != "no failure"]
    compiler = [p for p in on_cuda if "not the compiler's" not in p["outcome"]]
    gone = [p for p in compiler if p["outcome"] == "decision" and p["whole"] == "gone" and p["report"]]
    most = max(p["compiles"] for p in gone)
    asked = sum(bool(program["report"]) for program in held["cuda"]["programs"].values())
    there = f"H200, asked {asked} of the {len(faulty)} programs: {len(gone)} of the {len(compiler)}"
    assert f"{there} that are wrong there, in at most {most} |" in text


def test_the_reports_that_a_release_has_right_are_counted() -> None:
    """docs/releases.md has a column for each tested torch, in the order of releases."""
    held = kept("compiler_faults")
    faulty, releases = [p["report"] for p in held["programs"].values() if p["report"]], held["releases"]
    names = sorted(releases, key=lambda name: [int(part) for part in name.partition("+")[0].split(".")])
    cells = [f"{sum(releases[name].values())} of {len(releases[name])}" for name in names]
    table = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n| {' | '.join(cells)} |"
    page = (ROOT / "docs" / "releases.md").read_text()
    assert table in page
    assert f"The {len(faulty)} programs of {len(set(faulty))} public reports" in page


AGENTS = (ROOT / "benchmarks" / "agents.md").read_text()


def tasks_of(head: str) -> list[list[list[int]]]:
    """The numbers in the cells of a table of tasks, column by column."""
    rows = AGENTS.partition(head)[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[[int(n) for n in re.findall(r"\d+", cell)] for cell in row.split("|")[2:-1]] for row in rows]
    return [list(column) for column in zip(*cells, strict=True)]


@pytest.mark.parametrize(
    ("head", "gained"),
    [
        (
            "| package | with the pack: calls, seconds | without: calls, seconds |",
            "{} calls and {} minutes with it, {} and {} without",
        ),
        (
            "| task | with: calls, seconds | corrected | without |",
            "{} calls and {} minutes, {} and {} without",
        ),
    ],
    ids=["first", "second"],
)
def test_what_agents_took_is_the_sum_of_their_tasks(head: str, gained: str) -> None:
    """A set's calls and minutes are the same on its page and where they are quoted.

    The second set has tasks that were asked twice: at first sight, and after improvements.
    """
    columns = [list(zip(*column, strict=True)) for column in tasks_of(head)]
    for title, cells in {
        "calls, all and median": [f"{sum(calls)}, {median(calls):.0f}" for calls, _ in columns],
        "minutes, all": [f"{sum(seconds) / 60:.1f}" for _, seconds in columns],
        "seconds a package, median": [f"{median(seconds):.0f}" for _, seconds in columns],
    }.items():
        assert f"| {title} | {' | '.join(cells)} |" in AGENTS
    totals = [told for calls, seconds in columns[-2:] for told in (sum(calls), f"{sum(seconds) / 60:.1f}")]
    assert gained.format(*totals) in (ROOT / "benchmarks" / "README.md").read_text()


def test_calls_of_the_third_set_are_the_sum_of_their_tasks() -> None:
    """The sums of each run's calls are quoted. A cell ends with the median of seconds."""
    columns = tasks_of("| task | with: calls of three runs; median seconds | without |")
    runs = [[sum(calls) for calls in zip(*column, strict=True)][:3] for column in columns]
    told = " | ".join(", ".join(map(str, each)) for each in runs)
    assert f"| calls in each run | {told} |" in AGENTS
    with_it, without = map(sum, runs)
    assert f"{with_it} calls, {without} without |" in (ROOT / "benchmarks" / "README.md").read_text()


def test_the_package_requires_the_supported_releases() -> None:
    """`pip install 'aoti-debug[torch]'` installs only supported releases of torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, (major, minor) = release_text(FIRST), LAST
    assert project["optional-dependencies"]["torch"] == [f"torch>={first},<{major}.{minor + 1}"]


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("2.8.0", True),
        ("2.15.0a0+git1234", True),
        ("2.13.0+cpu", True),
        ("2.7.1", False),
        ("2.16.0", False),
        ("3.0", False),
        ("unknown", False),
    ],
)
def test_which_versions_are_supported(version: str, supported: bool) -> None:
    """Both ends are in the range. Local and pre-release parts do not matter."""
    assert is_supported(version) is supported


def test_the_readme_says_what_was_kept() -> None:
    """`python -m benchmarks.releases --table` would change nothing."""
    found = MARKED.search(PAGE.read_text())
    assert found is not None and found[0] == section()


def test_areas_are_tried_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later run replaces only its own areas. Failures are counted and listed."""
    file = tmp_path / "results.json"
    file.write_text("{}")
    monkeypatch.setattr("benchmarks.RESULTS", file)
    keep(Tried("2.9.0", "3.10.1", {"steps": Area.of({"a": "", "b": ""})}))
    keep(Tried("2.9.1", "3.10.1", {"texts": Area.of({"c": "", "d": "read as none"})}))
    keep(Tried("2.10.0", "3.10.1", {}))
    old, new = kept_releases()
    assert (old.torch, old.cell("steps"), old.cell("texts")) == ("2.9.1", "2 of 2", "1 of 2")
    assert (new.torch, new.cell("steps")) == ("2.10.0", "not run")
    assert failures([old, new]) == ["2.9, texts: d: read as none"]
    assert table([old, new]).splitlines()[0].endswith("| 2.9.1 | 2.10.0 |")


def test_programs_of_packages_are_counted_as_they_were_kept() -> None:
    """The page has the benchmark's packages, launches and outcomes."""
    held, page = kept("decompiled"), (ROOT / "benchmarks" / "README.md").read_text()
    ran, run = held["launches_on_their_own_inputs"], held["run"]
    assert "different" not in ran and sum(held["outcomes"].values()) == held["packages"]
    for told in (
        f"We used {held['packages']} packages",
        f"Of {run['kernels']} kernel launches {run['kernels_read']} are read",
        f"and all {run['other_launches']} others",
        f"takes {run['lines_median']} lines in the median",
        f"{ran['equal']} are equal bit",
        f"{ran['rounding']} up to rounding, and none is different. {ran['not_run']} did not run",
        f"{held['outcomes']['agrees']} packages agree with their programs",
        f"Of the {held['packages'] - held['outcomes']['agrees']} others",
    ):
        assert told in page
