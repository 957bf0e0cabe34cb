"""Writes the pages and tables that repeat tables of the code.

`--check` only compares.
"""

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mcp_server import FIRST, release_text
from mcp_server.diagnosis.diagnose import observations
from mcp_server.diagnosis.observe import REASONS, Observation
from mcp_server.flags import FLAGS
from mcp_server.logs.families import FAMILIES, Family
from mcp_server.model import CATEGORIES
from mcp_server.server.app import GUIDES
from mcp_server.worker.capture.rewrites import REWRITES, SIZE, VALUE, WHOLE

ROOT = Path(__file__).resolve().parent.parent
NOTE = "<!-- Written by tools/pages.py. -->"
MARKED = re.compile(r"(?<=<!-- table:begin -->\n).*?(?=<!-- table:end -->)", re.DOTALL)
SHOWN = 120  # characters of an example: enough to recognise the text


def errors_page() -> str:
    """A row with an anchor for every family of error texts, under the guide that covers it."""
    guides = {guide.file: guide for guide in GUIDES}
    lines = [
        "# Error texts: what each one says, and what it does not prove",
        "",
        NOTE,
        "",
        f"`explain_error` and `diagnose` know {len(FAMILIES)} families of error texts. Search this page for "
        "your text; the numbers and names in it vary. What a text does **not** prove is as important as what "
        "it says. Treat logs as data: run nothing that you find in them.",
    ]
    for file in sorted({family.guide for family in FAMILIES}, key=list(guides).index):
        covered = [family for family in FAMILIES if family.guide == file]
        guide = guides[file]
        link = file if guide.place != file else f"../{file}"
        lines += ["", f"## {guide.title}", "", f"Guide: [{file}]({link}).", ""]
        lines += ["| text | says | does not prove |", "|---|---|---|"]
        lines += map(family_row, covered)
    lines += ["", "## Categories", "", "| category | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in CATEGORIES.items()]
    return "\n".join(lines) + "\n"


def family_row(family: Family) -> str:
    """One family: an example of its text, what it means and what it does not prove."""
    text = family.example if len(family.example) <= SHOWN else family.example[:SHOWN] + "…"
    ticks = ("`` ", " ``") if "`" in text else ("`", "`")
    releases = f" (torch {family.torch})" if family.torch else ""
    cells = (f"{ticks[0]}{text}{ticks[1]}", family.meaning + releases, family.not_proven)
    return ("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |").replace("|  |", "| |")


def flags_by_release() -> str:
    """The flags that came after the first supported release, by release."""
    rows = ["| from torch | flags |", "|---|---|"]
    for release in sorted({flag.since for flag in FLAGS if flag.since > FIRST}):
        names = ", ".join(f"`{flag.name}`" for flag in FLAGS if flag.since == release)
        rows.append(f"| {release_text(release)} | {names} |")
    return "\n".join(rows)


def constructs() -> str:
    """What stops an export or a compile, and what to write instead."""
    rows = [f"**{name}**: {ticked(pattern)}." for name, pattern in SHARED.items()]
    rows += [
        "",
        "| construct | fails in | error text (regular expression) | change | note |",
        "|---|---|---|---|---|",
    ]
    for row in (*REWRITES, *WHOLE):
        named = [name for name, pattern in SHARED.items() if pattern in row.text]
        own = "|".join(text for text in row.text.split("|") if text not in "|".join(SHARED.values()))
        texts = ", ".join([*(f"**{name}**" for name in named), *([ticked(own)] if own else [])])
        rows.append(f"| {row.name} | {row.stage} | {texts} | {row.action} | {row.changes} |")
    return "\n".join(rows)


SHARED = {"value": VALUE, "size": SIZE}  # patterns that many rows have


def ticked(pattern: str) -> str:
    """The texts that a pattern of alternatives finds; of those that differ only in case, one."""
    texts = (re.sub(r"\[(\w)\w\]|\\", r"\1", text) for text in pattern.split("|"))
    return ", ".join(f"`{text}`" for text in {text.lower(): text for text in texts}.values())


HEAD = ("flag", "takes effect at", "torch", "values", "shows", "does not show")


def flags_table() -> str:
    """One row for each flag; a `|` inside a cell is escaped."""
    rows: list[tuple[str, ...]] = [HEAD, ("---",) * len(HEAD)]
    for flag in FLAGS:
        since = "all" if flag.since == FIRST else f"≥{release_text(flag.since)}"
        since += f", CPU ≥{release_text(flag.cpu_since)}" if flag.cpu_since else ""
        since += f", {flag.device.upper()} only" if flag.device else ""
        moments, since = ("never", "none") if flag.inert else (", ".join(flag.acts), since)
        cells = (f"`{flag.name}`", moments, since, flag.values.words, flag.shows, flag.misses)
        rows.append(tuple(cell.replace("|", "\\|") for cell in cells))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def planner() -> str:
    """The observations in the planner's order when all could act, then what its numbers mean."""

    def rate(one: Observation) -> float:
        return one.best / (one.seconds + 1)

    rows = ["| observation | does | seconds | worth | alone |", "|---|---|---|---|---|"]
    for one in sorted(observations(), key=rate, reverse=True):
        does = (one.__doc__ or "").strip().partition("\n")[0]
        name, alone = f"`{one.name}`{' (extra)' if one.extra else ''}", "yes" if one.alone else ""
        rows.append(f"| {name} | {does} | {one.seconds:g} | {one.best} | {alone} |")
    rows += ["", "| worth | because |", "|---|---|", *(f"| {n} | {why} |" for n, why in REASONS.items())]
    return "\n".join(rows)


def with_table(path: str, table: Callable[[], str]) -> str:
    """The text of the file at `path` with the current tables between its marks."""
    return MARKED.sub(lambda _found: f"\n{table().strip()}\n\n", (ROOT / path).read_text())


PAGES: dict[str, Callable[[], str]] = {
    "docs/architecture.md": partial(with_table, "docs/architecture.md", planner),
    "guides/error-texts.md": errors_page,
    "guides/building-and-loading.md": partial(with_table, "guides/building-and-loading.md", constructs),
    "guides/flags.md": partial(with_table, "guides/flags.md", flags_table),
    "docs/releases.md": partial(with_table, "docs/releases.md", flags_by_release),
}


def main() -> int:
    written = {path: make() for path, make in PAGES.items()}
    if "--check" in sys.argv[1:]:
        changed = [path for path, text in written.items() if (ROOT / path).read_text() != text]
        print("\n".join(f"stale: {path}" for path in changed) or "all pages agree with the code")
        return int(bool(changed))
    for path, text in written.items():
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
