"""The commands: one for each operation, and `report`, `bundle`, `doctor`, `serve` and `sweep`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from mcp_server import __version__
from mcp_server.cli.main import OF_OUTCOME, Exit, exit_code
from mcp_server.cli.parameters import Sectioned, arguments_of, parameter, parameters_of
from mcp_server.cli.terminal import carried_out, print_result, say
from mcp_server.errors import ProblemError, here
from mcp_server.jobs.store import write_whole
from mcp_server.model import Verdict
from mcp_server.operations.arguments import HANDLE, READS, CheckArguments, DiagnoseArguments, Operation
from mcp_server.operations.table import DIAGNOSE, OPERATIONS, command_name, in_shell_words
from mcp_server.operations.work import open_store
from mcp_server.operations.workload import check_program
from mcp_server.report import bundle as reports
from mcp_server.runtime.context import Context
from mcp_server.tools.check_devices import check_devices
from mcp_server.tools.machine import Checkup, checkup

if TYPE_CHECKING:
    from mcp_server.sweep import CaseRecord, Sweep

HELP = """Find out why an AOTInductor model (.pt2) fails, by running it.

\b
Examples:
  aoti-debug diagnose serve.py -- --batch 8
  aoti-debug diagnose model.pt2 --inputs batch.pt
  aoti-debug explain-error --log crash.log
  aoti-debug doctor

\b
Exit codes:
  0 nothing wrong, or the question is answered    1 fault found
  2 usage error, or the tool could not run    3 inconclusive    130 interrupted
"""

GROUPS = {
    "Start here": ("diagnose", "explain-error", "doctor"),
    "Look closer": (
        *("inspect-package", "decompile", "dump-kernel-io", "trace-launches", "locate-fault"),
        *("run-deterministic", "compare-with-eager", "check-devices"),
    ),
    "Fix and report": ("try-fix", "bisect", "reduce", "compile-with-flags", "report", "bundle"),
    "Record, repeat, serve": ("record", "recordings", "post-mortem", "sweep", "serve"),
}


class Grouped(TyperGroup):
    """Lists the commands grouped by purpose, without typer's `<str>`, `{FOLDER}` and `[x>=0]`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found: Any = super().get_command(ctx, cmd_name)
        for each in found.params if found is not None else ():
            vars(each)["_get_number_range_help_str"] = lambda: None  # the help says the range in words
            if each.param_type_name == "argument":
                vars(each)["display_type_rich"] = lambda **_: ""
                if each.required:
                    vars(each)["_usage_display_name"] = each._rich_display_name
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.short_help or "") for name, command in commands if command is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


app = typer.Typer(
    name="aoti-debug",
    cls=Grouped,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

option = partial(typer.Option, show_default=False)
JSON_OPTION = typer.Option("--json", help="Print the complete result as JSON.")
AS_JSON = parameter("as_json", Annotated[bool, JSON_OPTION], False)
Given = dict[str, Any]  # options as typer gives them; `arguments_of` turns them into typed arguments


def examples(*lines: str) -> str:
    """Format examples for the end of a help; \\b keeps click from joining their lines."""
    return "\b\nExamples:\n" + "\n".join(f"  aoti-debug {line}" for line in lines)


def add_command(
    operation: Operation, run: Callable[[Given], int], more: Sequence[inspect.Parameter] = ()
) -> None:
    """Add a command with the operation's parameters; those in `more` replace parameters of the same name."""
    replaced = {parameter.name for parameter in more}
    own = [parameter for parameter in parameters_of(operation.arguments) if parameter.name not in replaced]
    parameters = [*own, *more, AS_JSON]

    def command(**given: Any) -> None:
        raise typer.Exit(run(given))

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(
        command_name(operation.name),
        help=in_shell_words(operation.description),
        short_help=operation.title,
        epilog=examples(*(line.removeprefix("aoti-debug ") for line in operation.examples)),
        cls=Sectioned,
    )(command)


def run_operation(operation: Operation, given: Given) -> int:
    """Run an operation to its end, print the result, return the exit code."""
    record = carried_out(operation, arguments_of(operation.arguments, given))
    print_result(record, given["as_json"])
    return exit_code(record)


def naming(name: str, about: str, metavar: str) -> inspect.Parameter:
    """Declare an option of the command line that names a job, a folder or a file."""
    return parameter(name, Annotated[str, typer.Option(f"--{name}", help=about, metavar=metavar)], "")


VERBOSE = typer.Option("--verbose", "-v", help="Print everything: evidence, commands, checks, full names.")
OF_DIAGNOSE = (
    naming("resume", "Continue this job; finished checks are not repeated.", "JOB"),
    naming("report", "Also write an HTML report into this folder.", "FOLDER"),
    naming("bundle", "Also pack the verdict and its evidence into this file.", "FILE.zip"),
    parameter("verbose", Annotated[bool, VERBOSE], False),
)


def run_diagnose(given: Given) -> int:
    """Diagnose, print a verdict, write the requested files, return the exit code."""
    report, bundle, resume = given["report"], given["bundle"], given["resume"]
    if bundle and Path(bundle).exists():  # fail before the work starts
        raise ProblemError("the bundle is there already", value=bundle, allowed="a new file")
    if resume:
        if given.get("target") or given.get("log"):
            what = "--resume cannot be combined with another target"
            raise ProblemError(what, value=resume, allowed="--resume alone")
        if not HANDLE.fullmatch(resume):
            allowed = "the handle that a stopped diagnosis printed, such as job_1a2b3c4d"
            raise ProblemError("not a job handle", value=resume, allowed=allowed)
        given["log"] = resume  # `log` also takes a job to continue
    arguments = arguments_of(DiagnoseArguments, given)
    assert isinstance(arguments, DiagnoseArguments)
    called = arguments.inputs or arguments.recording or arguments.pid
    if Path(arguments.package).is_file() and not called:
        say("No inputs: only reading and loading can be checked.")
    verdict = carried_out(DIAGNOSE, arguments)
    assert isinstance(verdict, Verdict)
    print_result(verdict, given["as_json"], given["verbose"])
    if report:
        make_report(reports.of_verdict(verdict), Path(report))
    if bundle:
        make_bundle(reports.of_verdict(verdict), Path(bundle))
    return exit_code(verdict)


TARGET = typer.Argument(help="The package (.pt2); with --preload: the host to run.", metavar="PACKAGE")
PRELOAD = typer.Option("--preload", help="Record whatever package a host loads, and run the host if given.")
OF_RECORD = (
    parameter("package", Annotated[list[str], TARGET], []),
    parameter("preload", Annotated[bool, PRELOAD], False),
)


def run_record(given: Given) -> int:
    """Write the recording package, or with --preload run the host to record in this process."""
    words, operation = given["package"], next(one for one in OPERATIONS if one.name == "record")
    if not given["preload"]:
        if len(words) != 1:
            allowed = "aoti-debug record model.pt2, or aoti-debug record --preload -- ./host model.pt2"
            raise ProblemError("give one package", value=" ".join(words) or None, allowed=allowed)
        return run_operation(operation, {**given, "package": words[0]})
    if words:
        check_program(words, {}, here())  # before the recorder is compiled
    made = carried_out(operation, arguments_of(operation.arguments, {**given, "package": ""}))
    if not words:
        print_result(made, given["as_json"])
        return exit_code(made)
    say(f"recording into {getattr(made, 'recordings', '')}")
    return become(words, getattr(made, "environment", {}))


def become(argv: Sequence[str], more: Mapping[str, str]) -> NoReturn:
    """Replace this process with the program, in the user's own environment plus `more`."""
    try:
        os.execvpe(argv[0], list(argv), {**os.environ, **more})
    except OSError as error:
        raise ProblemError(f"the host cannot be started: {error.strerror}", value=argv[0]) from error


OWN = {"record": (run_record, OF_RECORD), DIAGNOSE.name: (run_diagnose, OF_DIAGNOSE)}
for _operation in OPERATIONS:
    add_command(_operation, *OWN.get(_operation.name, (partial(run_operation, _operation), ())))

SOURCE = Annotated[
    str, typer.Argument(help="A job, the file of a verdict, or a bundle.", metavar="JOB_OR_VERDICT")
]


@app.command(
    "report", short_help="Write a diagnosis as an HTML page", epilog=examples("report job_1a2b3c4d --out out")
)
def report(
    source: SOURCE,
    out: Annotated[Path, typer.Option("--out", help="Folder for report.html.", metavar="FOLDER")],
) -> None:
    """Write a diagnosis as one HTML file that needs no network."""
    make_report(reports.read_source(source, open_store(writing=False)), out)


@app.command(
    "bundle",
    short_help="Pack a diagnosis for another engineer",
    epilog=examples("bundle job_1a2b3c4d --out fault.zip --redact"),
)
def bundle(
    source: SOURCE,
    out: Annotated[Path, typer.Option("--out", help="The zip to write; it must be new.", metavar="FILE.zip")],
    max_mb: Annotated[
        float,
        option("--max-mb", metavar="NUMBER", help="Largest package or inputs file to pack. Default: 67 MB."),
    ] = reports.DEFAULT_LIMIT_BYTES / 1e6,
    redact: Annotated[
        bool, typer.Option("--redact", help="Leave paths, hosts, users and addresses out of texts.")
    ] = False,
) -> None:
    """Pack a diagnosis for another engineer: verdict, report, logs, requests, package and inputs."""
    make_bundle(reports.read_source(source, open_store(writing=False)), out, int(max_mb * 1e6), redact)


def make_report(source: reports.Source, directory: Path) -> None:
    """Write `report.html` into `directory`. Raise ProblemError if it exists or cannot be written."""
    path = directory / reports.PAGE_FILE
    with reports.new_file(path, "report", "a new directory"):
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(reports.page(source))
    say(f"wrote {path}")


def make_bundle(
    source: reports.Source, path: Path, limit_bytes: int = reports.DEFAULT_LIMIT_BYTES, redacted: bool = False
) -> None:
    """Pack the source, and report what was too large. Raise ProblemError on failure."""
    left_out, copied = reports.write_bundle(source, path, limit_bytes=limit_bytes, redacted=redacted)
    say(f"wrote {path} ({path.stat().st_size} bytes)")
    for line in left_out:
        say(f"left out {line}")
    if redacted and copied:
        say(f"not redacted: {', '.join(copied)}")


async def _examine(context: Context, _arguments: Any) -> Checkup:
    return checkup((await check_devices(context)).machine)


@app.command("doctor", short_help="Say what is missing on this machine", epilog=examples("doctor"))
def doctor(
    python: Annotated[str, option(help="The Python that has your torch.", metavar="FILE")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say what is missing on this machine, for which purpose, and how to get it."""
    operation = Operation("doctor", "Check this machine", "", CheckArguments, READS, _examine)
    found = carried_out(operation, CheckArguments(python=python))
    assert isinstance(found, Checkup)
    print_result(found, as_json)
    raise typer.Exit(Exit.OK if found.healthy else Exit.FAULT)


@app.command(
    "serve",
    short_help="Serve the tools to a coding agent, over MCP",
    epilog=examples("serve", "serve --tools all"),
)
def serve(
    tools: Annotated[
        str, option(help="Tools to offer: core or all. Default: AOTI_DEBUG_TOOLS, or core.", metavar="SET")
    ] = "",
) -> None:
    """Serve the same operations over MCP on stdio, for an agent.

    Whoever can call the tools can run code as you.
    """
    from mcp_server.server import app as server

    server.serve(tools)


MARK = "sweep.json"
REPORT_WIDTH = 200  # columns, if printed to a pipe


def is_sweep(mark: Path) -> bool:
    """Whether `mark` was written by a sweep: it is empty while the sweep runs, then has the results."""
    from mcp_server.sweep import Sweep

    try:
        content = mark.read_bytes()
        return not content or bool(Sweep.model_validate_json(content))
    except (OSError, ValueError):
        return False


@app.command(
    "sweep",
    short_help="Diagnose many packages or inputs together",
    epilog=examples("sweep cases.yaml --out results", "sweep cases.yaml --out results --ray auto"),
)
def sweep(
    cases: Annotated[
        Path, typer.Argument(help="YAML file: cases: [{package: …, inputs: …}, …].", metavar="CASES")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for results and report. The folder of an earlier sweep continues that sweep.",
            metavar="FOLDER",
        ),
    ],
    jobs: Annotated[
        int,
        option(min=0, metavar="NUMBER", help="Cases at the same time on this machine. Default: one per GPU."),
    ] = 0,
    ray: Annotated[
        str, typer.Option(help="Ray cluster to run on: auto, or HOST:PORT.", metavar="ADDRESS")
    ] = "",
    retries: Annotated[
        int,
        option(
            min=0,
            max=9,
            metavar="NUMBER",
            help="Further tries, 0 to 9, for a case whose process or node died. Default: 1.",
        ),
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Diagnose many packages, inputs or scripts together. Run it again to continue where it stopped.

    \b
    Exit codes:
      0 nothing wrong    1 a fault in some case    2 a case was lost or rejected
      3 some case inconclusive, none faulty
    """
    import anyio
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from mcp_server.render import plain
    from mcp_server.sweep import COLUMNS, Cluster, Local, Results, as_markdown, read_plan, row, totals
    from mcp_server.sweep import sweep as run

    executor = partial(Cluster, ray) if ray else partial(Local, jobs)
    plan = read_plan(cases)
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not is_sweep(out / MARK))):
        allowed = "a new directory, or an earlier sweep's"
        raise ProblemError("out holds other files", value=str(out), allowed=allowed)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    results = Results(out)
    # A progress bar if stderr is a terminal, otherwise one line per case.
    console = Console(stderr=True, highlight=False)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("cases", total=len(plan))

        def report(record: CaseRecord) -> None:
            bar.advance(task)
            bar.console.print(plain("  ".join(filter(None, row(record)[:4]))), soft_wrap=True)

        found = anyio.run(lambda: run(plan, results, executor, retries=retries, on_record=report))
    found = found.model_copy(update={"report": out / "sweep.md"})
    write_whole(out / MARK, found.model_dump_json(indent=1))
    write_whole(out / "sweep.md", as_markdown(found))
    if as_json:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
    else:
        console = Console(highlight=False, width=None if sys.stdout.isatty() else REPORT_WIDTH)
        table = Table(*COLUMNS)
        for case in found.cases:
            table.add_row(*map(plain, row(case)))
        console.print(table)
        console.print(f"{totals(found)}; report: {out / 'sweep.md'}", markup=False, soft_wrap=True)
    raise typer.Exit(exit_of(found))


def exit_of(found: Sweep) -> Exit:
    """2 if any case gave no verdict, else 1 if any has a fault, else 3 if any is open, else 0."""
    codes = {OF_OUTCOME[case.verdict.outcome] if case.verdict else Exit.PROBLEM for case in found.cases}
    return next((code for code in (Exit.PROBLEM, Exit.FAULT, Exit.INCONCLUSIVE) if code in codes), Exit.OK)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options before the command."""
