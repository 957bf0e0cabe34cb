"""`aoti-debug sweep`: many cases in one go, resumable, with one table and one report at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcp_server.cli.main import OF_OUTCOME, Exit
from mcp_server.errors import ProblemError

if TYPE_CHECKING:
    from mcp_server.sweep.plan import CaseRecord, Sweep
    from mcp_server.sweep.run import Executor

MARK = "sweep.json"
REPORT_WIDTH = 200  # columns in a pipe


def sweep(
    cases: Annotated[Path, typer.Argument(help="YAML file: cases: [{package: …, inputs: …}, …].")],
    out: Annotated[
        Path, typer.Option(help="Directory for results and report; one of an earlier sweep resumes it.")
    ],
    jobs: Annotated[int, typer.Option(min=0, help="Cases side by side here; 0 (default): one per GPU.")] = 0,
    ray: Annotated[
        str, typer.Option(help="Ray cluster to run on: auto, or HOST:PORT.", metavar="ADDRESS")
    ] = "",
    retries: Annotated[
        int, typer.Option(min=0, max=9, help="More tries for a case whose process or node died.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Diagnose many packages, inputs or scripts in one go; run it again to go on where it ended.

    \b
    Exit codes:
      0 nothing wrong    1 a fault in some case    2 a case was lost or refused
      3 some case inconclusive, none faulty
    """
    import anyio
    from rich.console import Console
    from rich.progress import Progress

    from mcp_server.render.sweep import row
    from mcp_server.render.text import plain
    from mcp_server.sweep.plan import Results, read_plan
    from mcp_server.sweep.run import Local
    from mcp_server.sweep.run import sweep as run

    def executor() -> Executor:
        if ray:
            from mcp_server.sweep.cluster import Cluster

            return Cluster(ray)
        return Local(jobs)

    plan = read_plan(cases)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).exists())):
        allowed = "a new directory, or an earlier sweep's"
        raise ProblemError("out holds other files", value=str(out), allowed=allowed)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    results = Results(out)
    # A bar on a terminal's stderr, one line per case in a pipe.
    console = Console(stderr=True, highlight=False)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("cases", total=len(plan))

        def report(record: CaseRecord) -> None:
            bar.advance(task)
            bar.console.print(plain("  ".join(filter(None, row(record)[:4]))), soft_wrap=True)

        found = anyio.run(lambda: run(plan, results, executor, retries=retries, on_record=report))
    _finish(found.model_copy(update={"report": out / "sweep.md"}), out, as_json)


def _finish(found: Sweep, out: Path, as_json: bool) -> None:
    """Write the report, print the table, end with the exit code."""
    from rich.console import Console

    from mcp_server.render.sweep import as_markdown, sweep_table, totals

    (out / MARK).write_text(found.model_dump_json(indent=1))
    (out / "sweep.md").write_text(as_markdown(found))
    if as_json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
    else:
        console = Console(highlight=False)
        console.print(sweep_table(found), width=None if console.is_terminal else REPORT_WIDTH)
        console.print(f"{totals(found)}; report: {out / 'sweep.md'}", markup=False, soft_wrap=True)
    raise typer.Exit(exit_of(found))


def exit_of(found: Sweep) -> Exit:
    """The code of the worst case: lost or refused, then a fault, then an open question."""
    codes = {OF_OUTCOME[case.verdict.outcome] if case.verdict else Exit.PROBLEM for case in found.cases}
    return next((code for code in (Exit.PROBLEM, Exit.FAULT, Exit.INCONCLUSIVE) if code in codes), Exit.OK)
