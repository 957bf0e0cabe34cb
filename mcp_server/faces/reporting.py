"""The commands that hand a diagnosis on: `report` and `bundle`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcp_server.errors import ProblemError
from mcp_server.faces.terminal import say
from mcp_server.jobs.private import cause
from mcp_server.operations.work import open_store
from mcp_server.report.bundle import DEFAULT_LIMIT_BYTES, write_bundle
from mcp_server.report.page import FILE, page
from mcp_server.report.source import Source, read_source, report_of

SOURCE = Annotated[
    str, typer.Argument(help="A job, the file of a verdict, or a bundle.", metavar="JOB_OR_VERDICT")
]
OUT = Annotated[Path, typer.Option("--out", help="Directory for report.html.", metavar="DIR")]
ZIP = Annotated[Path, typer.Option("--out", help="The zip to write; it must be new.", metavar="FILE.zip")]
LIMIT = Annotated[
    float, typer.Option("--max-mb", min=0, help="Largest package or inputs file to pack, in MB.")
]
REDACT = Annotated[
    bool, typer.Option("--redact", help="Leave paths, hosts, users and addresses out of texts.")
]


def report(source: SOURCE, out: OUT) -> None:
    """Write a diagnosis as one HTML file that needs no network."""
    make_report(read_source(source, open_store(writing=False)), out)


def bundle(
    source: SOURCE, out: ZIP, max_mb: LIMIT = DEFAULT_LIMIT_BYTES / 1e6, redact: REDACT = False
) -> None:
    """Pack a diagnosis for another engineer: verdict, report, logs, requests, package and inputs."""
    make_bundle(read_source(source, open_store(writing=False)), out, int(max_mb * 1e6), redact)


def make_report(source: Source, directory: Path) -> None:
    """Write `report.html` into `directory`. Raises ProblemError when it is there or cannot be written."""
    path = directory / FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(page(report_of(source)))
    except FileExistsError:
        raise ProblemError(
            "the report is there already", value=str(path), allowed="a new directory"
        ) from None
    except OSError as error:
        raise ProblemError(f"the report cannot be written: {cause(error)}", value=str(path)) from error
    say(f"wrote {path}")


def new_bundle(path: Path) -> None:
    """Raise ProblemError before the work when the bundle could not be written after it."""
    if path.exists():
        raise ProblemError("the bundle is there already", value=str(path), allowed="a new file")


def make_bundle(
    source: Source, path: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES, redacted: bool = False
) -> None:
    """Pack the source, and say what was too large. Raises ProblemError."""
    done = write_bundle(source, path, limit_bytes=limit_bytes, redacted=redacted)
    say(f"wrote {path} ({done.bundle.bytes} bytes)")
    for line in done.left_out:
        say(f"left out {line}")
    if redacted and done.as_they_are:
        say(f"not redacted: {', '.join(done.as_they_are)}")
