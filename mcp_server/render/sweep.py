"""A sweep as one table: for the terminal, and as Markdown for the report."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from mcp_server.render.text import plain
from mcp_server.sweep.plan import CaseRecord, Sweep

COLUMNS = ("case", "result", "confidence", "guilty", "summary", "tries", "s")


def sweep_table(sweep: Sweep) -> Table:
    """One row per case."""
    table = Table(*COLUMNS)
    for case in sweep.cases:
        table.add_row(*(plain(cell) for cell in row(case)))
    return table


def totals(sweep: Sweep) -> str:
    """How many cases ended how."""
    counts = Counter(case.result for case in sweep.cases)
    parts = [f"{count} {result}" for result, count in counts.most_common()]
    return f"{len(sweep.cases)} cases: {', '.join(parts)}; {sweep.reused} known from before"


def as_markdown(sweep: Sweep) -> str:
    """The table, then why cases were lost or refused."""
    lines = ["# Sweep", "", totals(sweep), "", _line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line(row(case)) for case in sweep.cases]
    for case in sweep.cases:
        lines += [
            f"\n- {case.name}: {try_.ended} on {try_.where}: {try_.why}" for try_ in case.attempts if try_.why
        ]
    return "\n".join(lines) + "\n"


def row(case: CaseRecord) -> tuple[str, ...]:
    """The cells of a case."""
    verdict, seconds = case.verdict, sum(attempt.wall_s for attempt in case.attempts)
    found = "", "", case.attempts[-1].why[:120]
    if verdict is not None:
        guilty = f"{verdict.guilty.kind} {verdict.guilty.name}" if verdict.guilty else ""
        found = verdict.confidence, guilty[:60], verdict.summary[:120]
    return (case.name, case.result, *found, str(len(case.attempts)), f"{seconds:.0f}")


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
