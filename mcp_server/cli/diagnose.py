"""`diagnose` as a command, and the commands that hand its verdict on: `report` and `bundle`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_server.cli.main import exit_code
from mcp_server.cli.parameters import JSON_OPTION, arguments_of, examples, parameters_of
from mcp_server.cli.terminal import carried_out, print_result, say
from mcp_server.errors import ProblemError
from mcp_server.jobs.store import cause
from mcp_server.model import Verdict
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.table import DIAGNOSE
from mcp_server.operations.work import HANDLE, open_store
from mcp_server.report.bundle import DEFAULT_LIMIT_BYTES, write_bundle
from mcp_server.report.page import FILE, page
from mcp_server.report.source import Source, of_verdict, read_source, report_of

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


RESUME = Annotated[
    str, typer.Option("--resume", help="Continue this job; finished checks are not repeated.", metavar="JOB")
]
REPORT = Annotated[
    str, typer.Option("--report", help="Also write an HTML report to this directory.", metavar="DIR")
]
BUNDLE = Annotated[
    str,
    typer.Option(
        "--bundle", help="Also pack the verdict and all that it rests on into this file.", metavar="FILE.zip"
    ),
]
VERBOSE = inspect.Parameter(
    "verbose",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--verbose", "-v", help="Also print why each check was chosen.")],
)


def add_diagnose(app: typer.Typer) -> None:
    """The command, made from the operation's table as the others are."""
    app.command("diagnose", help=DIAGNOSE.description, short_help=DIAGNOSE.title, epilog=examples(DIAGNOSE))(
        _command()
    )


def _command() -> Callable[..., None]:
    def diagnose(**given: Any) -> None:
        raise typer.Exit(run_diagnose(given))

    extra = {"resume": RESUME, "report": REPORT, "bundle": BUNDLE}
    parameters = [
        *parameters_of(DiagnoseArguments),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=annotation)
            for name, annotation in extra.items()
        ),
        VERBOSE,
        JSON_OPTION,
    ]
    diagnose.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    diagnose.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return diagnose


def run_diagnose(given: dict[str, Any]) -> int:
    """Diagnose, print the verdict, write what was asked for; the exit code. Raises ProblemError."""
    report, bundle, resume = (given.pop(name) for name in ("report", "bundle", "resume"))
    as_json, verbose = given.pop("as_json"), given.pop("verbose")
    if bundle:
        new_bundle(Path(bundle))
    data, verdict = carried_out(DIAGNOSE, _arguments(given, resume))
    print_result(data, verdict, as_json, verbose)
    assert isinstance(verdict, Verdict)
    if report:
        make_report(of_verdict(verdict), Path(report))
    if bundle:
        make_bundle(of_verdict(verdict), Path(bundle))
    return exit_code(verdict)


def _arguments(given: dict[str, Any], resume: str) -> DiagnoseArguments:
    """A job to go on with takes the place of the log, as it does in the tool's arguments."""
    if resume and (given.get("target") or given.get("log")):
        raise ProblemError(
            "--resume cannot be combined with another target", value=resume, allowed="--resume alone"
        )
    if resume and not HANDLE.fullmatch(resume):
        raise ProblemError("not a job handle", value=resume, allowed="job_ and 8 hexadecimal digits")
    arguments = arguments_of(DiagnoseArguments, {**given, **({"log": resume} if resume else {})})
    assert isinstance(arguments, DiagnoseArguments)
    return arguments
