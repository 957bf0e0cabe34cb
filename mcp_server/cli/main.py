"""Entry point of the command line, and its exit codes. Results go to stdout, everything else to stderr."""

import sys
from contextlib import suppress
from enum import IntEnum

from mcp_server.errors import ProblemError, on_command_line
from mcp_server.model import Record


class Exit(IntEnum):
    """0: nothing wrong; 1: a fault was found; 2: wrong usage, or the tool could not run; 3: inconclusive."""

    OK = 0
    FAULT = 1
    PROBLEM = 2
    INCONCLUSIVE = 3
    INTERRUPTED = 130


OF_OUTCOME = {
    # outcomes of a verdict
    "no_fault": Exit.OK,
    "fault": Exit.FAULT,
    "inconclusive": Exit.INCONCLUSIVE,
    # outcomes of compare-with-eager
    "agrees": Exit.OK,
    "differs": Exit.FAULT,
    # try-fix: how the call ends with the change
    "fixed": Exit.OK,
    "passes": Exit.OK,
    "harmful": Exit.FAULT,
    "changed": Exit.FAULT,
    "same": Exit.FAULT,
    "no_failure": Exit.INCONCLUSIVE,
    "not_applicable": Exit.INCONCLUSIVE,
    # outcomes of decompile
    "written": Exit.OK,
    "program_failed": Exit.FAULT,
    "package_failed": Exit.FAULT,
    # bisect: a difference that is only rounding is not a fault
    "rounding": Exit.OK,
}


def exit_code(result: Record) -> Exit:
    """The exit code of a result, from its `outcome` or from the faults in its other fields."""
    code = OF_OUTCOME.get(getattr(result, "outcome", ""))
    if code in (Exit.OK, Exit.FAULT):
        return code
    # Faults are: a failed run or what a checker found in it; repeated runs that did not all pass; a certain
    # problem of the machine or package; inputs that do not fit.
    saw_fault = (
        any(getattr(result, name, None) is not None for name in ("failure", "fault", "first_bad"))
        or getattr(result, "pattern", "clean") != "clean"
        or any(problem.certain for problem in getattr(result, "problems", []))
        or any(mismatch.severity == "fatal" for mismatch in getattr(result, "mismatches", []))
    )
    if saw_fault:
        return Exit.FAULT
    open_question = getattr(result, "undecided", "") or getattr(result, "known", True) is False
    return code or (Exit.INCONCLUSIVE if open_question else Exit.OK)


def main() -> None:
    """Run `aoti-debug`. A wrong command line ends in a few lines on stderr, never in a traceback."""
    from mcp_server.server.standard_streams import check_descriptors, open_missing

    try:
        open_missing()
        check_descriptors()
        # Reject arguments that are not UTF-8: results repeat arguments, and are written in UTF-8.
        odd = next((word for word in sys.argv if any("\ud800" <= letter <= "\udfff" for letter in word)), "")
        if odd:
            what = "an argument is not UTF-8"
            raise ProblemError(what, value=ascii(odd), next_call="rename the file, or link to it")
    except ProblemError as problem:
        sys.exit(_explained(problem))
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"] and arguments[1:] in ([], ["--tools", "all"], ["--tools", "core"]):
        # MCP clients wait for the start, so the imports of the other commands are skipped.
        from mcp_server.__main__ import main as serve

        serve(arguments[-1] if len(arguments) > 1 else "")
    else:
        sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Names of MCP tools, such as explain_error, also work."""
    from mcp_server.cli.app import app
    from mcp_server.cli.parameters import ClickException, corrected, example_like, explained, spelled_out
    from mcp_server.jobs.store import cause
    from mcp_server.server.standard_streams import printing

    words = [*(name.replace("_", "-") for name in arguments[:1]), *arguments[1:]]
    code: int = Exit.OK
    spelled = on_command_line.set(True)
    try:
        try:
            ended = app(words, prog_name="aoti-debug", standalone_mode=False)
            code = ended if isinstance(ended, int) else Exit.OK
        except ClickException as error:
            if not words:  # not an error: show the help
                error.show()  # type: ignore[attr-defined]
                return Exit.PROBLEM
            raise explained(error, words) from None
        except KeyboardInterrupt:
            code = Exit.INTERRUPTED
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else Exit.PROBLEM
        with printing():
            pass
    except ProblemError as problem:
        problem.next_call = spelled_out(problem.next_call, words) or corrected(problem.what, words)
        if problem.value is None and problem.allowed and not problem.next_call:  # something is missing
            epilogs = {each.name: each.epilog or "" for each in app.registered_commands}
            problem.next_call = example_like(words, epilogs.get(words[0], ""))
        return _explained(problem)
    except OSError as error:
        return _explained(ProblemError(f"it could not be done: {cause(error)}", value=error.filename))
    except Exception as error:
        return _explained(_defect(error))
    finally:
        on_command_line.reset(spelled)
    return code


def _explained(problem: ProblemError) -> Exit:
    from mcp_server.cli.terminal import print_problem

    print_problem(problem)
    return Exit.PROBLEM


def _defect(error: Exception) -> ProblemError:
    """Report an unexpected error in one line, with its stack in a file."""
    import tempfile
    import traceback

    what = f"aoti-debug failed with {type(error).__name__}: this is a defect of aoti-debug"
    problem = ProblemError(what, value=str(error)[:200])
    with (
        suppress(OSError),
        tempfile.NamedTemporaryFile(
            "w", prefix="aoti-debug-", suffix=".log", delete=False, errors="backslashreplace"
        ) as file,
    ):
        file.write("".join(traceback.format_exception(error)))
        problem.next_call = f"report it with {file.name}"
    return problem
