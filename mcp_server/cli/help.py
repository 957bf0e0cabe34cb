"""What `--help` lists, in groups, and what a wrong command line is told."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from mcp_server.errors import ProblemError
from mcp_server.operations.table import in_shell_words

GROUPS = {
    "Start here": ("diagnose", "explain-error", "doctor"),
    "Look closer": (
        *("inspect-package", "decompile", "dump-kernel-io", "trace-launches", "locate-fault"),
        *("run-deterministic", "compare-with-eager", "check-devices"),
    ),
    "Fix and report": ("try-fix", "bisect", "reduce", "compile-with-flags", "report", "bundle"),
    "Record, repeat, serve": ("record", "recordings", "post-mortem", "sweep", "serve"),
}

# Arguments whose text for agents names what only they have; all others say the same to people.
OPTIONS = {
    "flags": "Set this flag, such as TORCHINDUCTOR_NAN_ASSERTS=1; repeat it for more.",
    "log": "Read this log of a failing run.",
}


def option_help(name: str, for_agents: str) -> str:
    """The help of the argument `name`, which agents get as `for_agents`."""
    return OPTIONS.get(name) or in_shell_words(for_agents)


class Grouped(TyperGroup):
    """Lists the commands by what one wants to do."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        listed = [name for names in GROUPS.values() for name in names]
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        for title, names in {**GROUPS, "Other": others}.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name, command.short_help or "") for name, command in commands if command is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


# Typer has click in itself or beside it, by its version.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
ClickException: type[Exception] = UsageError.__bases__[0]
LIKE = 0.75  # of difflib: --symptm is --symptom, --batch is nothing of ours


def explained(error: Any, words: Sequence[str]) -> ProblemError:
    """The problem that click found in the command line `words`."""
    context = getattr(error, "ctx", None)
    help_of = f"{context.command_path} --help" if context is not None else "aoti-debug --help"
    option = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and context is not None:
        return _no_such_option(str(option), context, words, help_of)
    said = error.format_message().strip().rstrip(".")
    return ProblemError(f"{said[:1].lower()}{said[1:]}", next_call=help_of)


def _no_such_option(option: str, context: Any, words: Sequence[str], help_of: str) -> ProblemError:
    """Most often an option of the script: then what is missing is the `--` before it."""
    what = f"no such option: {option}"
    parameters = context.command.params
    known = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    close = difflib.get_close_matches(option, [name for name in known if name.startswith("-")], 1, LIKE)
    if close:
        return ProblemError(f"{what} (did you mean {close[0]}?)", next_call=help_of)
    takes_words = any(parameter.name == "rest" for parameter in parameters)
    at = next((number for number, word in enumerate(words) if word.split("=")[0] == option), 0)
    if takes_words and at > 1 and not words[1].startswith("-") and not words[1].endswith(".pt2"):
        line = shlex.join(["aoti-debug", *words[:at], "--", *words[at:]])
        return ProblemError(what, allowed="-- before the options of the script", next_call=line)
    return ProblemError(what, next_call=help_of)
