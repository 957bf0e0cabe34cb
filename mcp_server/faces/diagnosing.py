"""`diagnose` as a command: what a person may want beyond the verdict, and how to go on with a job."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_server.errors import ProblemError
from mcp_server.faces.commands import JSON_OPTION, examples
from mcp_server.faces.exits import exit_code
from mcp_server.faces.parameters import arguments_of, parameters_of
from mcp_server.faces.reporting import make_bundle, make_report, new_bundle
from mcp_server.faces.terminal import carried_out, print_result
from mcp_server.model import Verdict
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.resumed import HANDLE
from mcp_server.operations.table import DIAGNOSE
from mcp_server.report.source import of_verdict

RESUME = Annotated[
    str, typer.Option("--resume", help="Go on with this job: nothing is gathered twice.", metavar="JOB")
]
REPORT = Annotated[str, typer.Option("--report", help="Also write an HTML report into it.", metavar="DIR")]
BUNDLE = Annotated[str, typer.Option("--bundle", help="Also pack everything into it.", metavar="FILE.zip")]


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
        JSON_OPTION,
    ]
    diagnose.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    diagnose.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return diagnose


def run_diagnose(given: dict[str, Any]) -> int:
    """Diagnose, print the verdict, write what was asked for; the exit code. Raises ProblemError."""
    report, bundle, resume = (given.pop(name) for name in ("report", "bundle", "resume"))
    as_json = given.pop("as_json")
    if bundle:
        new_bundle(Path(bundle))
    data, verdict = carried_out(DIAGNOSE, _arguments(given, resume))
    print_result(data, verdict, as_json)
    assert isinstance(verdict, Verdict)
    if report:
        make_report(of_verdict(verdict), Path(report))
    if bundle:
        make_bundle(of_verdict(verdict), Path(bundle))
    return exit_code(verdict)


def _arguments(given: dict[str, Any], resume: str) -> DiagnoseArguments:
    """A job to go on with takes the place of the log, as it does in the tool's arguments."""
    if resume and (given.get("target") or given.get("log")):
        raise ProblemError("--resume brings its own workload", value=resume, allowed="--resume alone")
    if resume and not HANDLE.fullmatch(resume):
        raise ProblemError("not a job handle", value=resume, allowed="job_ and 8 hexadecimal digits")
    arguments = arguments_of(DiagnoseArguments, {**given, **({"log": resume} if resume else {})})
    assert isinstance(arguments, DiagnoseArguments)
    return arguments
