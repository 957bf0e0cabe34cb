"""What `--help` says for people, in groups and whole sentences, and what a wrong command line is told.

An agent gets the shorter texts of `operations`, which cost tokens in each of its sessions.
"""

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

COMMANDS = {
    "diagnose": "Runs what fails, finds the cause and tests a fix. The verdict says in about eleven lines "
    "what happened, where, what to change, and which run confirms it. Takes seconds to minutes.",
    "explain_error": "Explains an error text or a whole log without running anything: which error came "
    "first, what it means, and what it does not prove.",
    "check_devices": "Compares this machine, the package and the inputs before anything runs: devices, GPU "
    "architecture, dtypes, sizes, strides. Without a package it checks only the machine.",
    "inspect_package": "Reads a package without running it: inputs with their ranges, kernel launches, "
    "weights, model lines. With an option such as --launch or --assertion it answers that one question in "
    "full.",
    "decompile": "Writes a package as a PyTorch program that runs, with its weights: one function for each "
    "kernel launch, in place of thousands of generated lines. With --inputs it checks that both agree.",
    "run_deterministic": "Repeats a run, each time in a new process and with all checks on, and says whether "
    "it fails every time and in the same way.",
    "dump_kernel_io": "Runs the model once and prints what kernels read and wrote: ranges, NaN, Inf, indices "
    "beyond their bound, and the first bad value.",
    "locate_fault": "Runs the failing call under a memory checker and names the launch, the access, the line "
    "of generated code and the line of the model. For segfaults and illegal memory accesses.",
    "trace_launches": "Runs a package with a probe at each kernel launch and names the one at which the run "
    "ended. Without inputs it writes the instrumented package, for a C++ host.",
    "try_fix": "Makes the failing call without your change, with it, and without it again, and says whether "
    "the failure went away and which other values changed.",
    "compare_with_eager": "Runs the package and its exported program on the same inputs, and names each "
    "kernel that computes something else from right inputs by more than rounding.",
    "compile_with_flags": "Compiles an exported program with debugging flags, such as NaN checks or model "
    "lines. Flags that cannot take effect are refused.",
    "reduce": "Cuts a failing program down to a few operators that still fail in the same way, as a script "
    "that needs only torch. Takes 1 to 10 minutes.",
    "bisect": "Finds the compiler's decision (a pass, a lowering, an option) that makes a program wrong "
    "where eager mode is right, with a workaround that was tested and a text for PyTorch's tracker.",
    "record": "Writes a copy of a package that keeps the newest calls of each thread in a ring file, for "
    "failures that cannot be repeated. With --preload it runs a host under the recorder instead.",
    "recordings": "Lists what the recorder kept: processes, calls that failed or did not end, and which "
    "values.",
    "post_mortem": "Says where the threads of a dead process (its core file) or a hung one (its number) are "
    "in a package: launch, kernel, lines of generated code and model. Nothing is run.",
}

# By the name of the argument. What is not here says the same to people and to agents.
OPTIONS = {
    "package": "The package (.pt2).",
    "exported": "The exported program, a .pt2 of torch.export.save. With a package: its reference.",
    "model_name": "The model inside the package. Default: model.",
    "device_index": "The GPU to run on. Default: the one that the package was compiled for.",
    "inputs": 'Inputs of the call: a file of torch.save, or JSON such as [{"shape": [8, 64], "dtype": '
    '"int64", "low": 0, "high": 9}].',
    "script": "The Python script to run.",
    "script_args": "An argument of the script. May be repeated; or put all of them after --.",
    "command": "The program to run, and each of its arguments.",
    "extra_imports": "A module or file that registers custom operators. May be repeated.",
    "cwd": "The folder to run in. Default: this one.",
    "env": "An environment variable for the run. May be repeated.",
    "python": "The Python that has your torch. Default: that of the active environment.",
    "timeout_s": "Seconds after which a single run is stopped, 1 to 86400. Default: 300.",
    "budget_s": "Seconds for the whole command, 1 to 86400. Default: {default}.",
    "log": "The log of a failing run.",
    "recording": "A folder that `aoti-debug record` filled: the failing call is taken from there.",
    "symptom": "What you see: wrong-output, nan, crash, hang or memory.",
    "expect": "A file of the outputs that are right (torch.save).",
    "rtol": "Relative tolerance for --expect, 0 to 1. Default: chosen by dtype.",
    "atol": "Absolute tolerance for --expect, 0 to 1. Default: chosen by dtype.",
    "check": "A command that judges a file of outputs: status 0 means that they are right.",
    "flags": "A flag to compile with, such as TORCHINDUCTOR_NAN_ASSERTS=1. May be repeated.",
    "text": "The error text.",
    "repeats": "How many runs, 1 to 20. Default: 3.",
    "launch": "The number of a launch, as inspect-package lists them.",
    "kernel": "The name of a kernel.",
    "buffer": "The name of a buffer, such as buf3.",
    "symbol": "The name of a size, such as ks0.",
    "input": "The name or number of an input.",
    "constant": "The name of a weight or constant.",
    "location": "A line of the model, FILE.py:LINE.",
    "assertion": "An assertion, such as 'index out of bounds: 0 <= tmp4 < ks1'.",
    "generated_line": "The line in generated code that the assertion names.",
    "offset": "How many results to skip. Default: 0.",
    "graph": "Also draw the dataflow.",
    "sync": "Wait after each kernel (default), or not.",
    "stop_at": "Stop before the launch of this number.",
    "calls": "How often to call the model, 1 to 1000. Default: 1.",
    "changes": "A change of an input, such as 'args[1]: set 9 where > 9'. May be repeated.",
    "replace": "Replace the expression OLD of --kernel by NEW.",
    "how": "What to do to --launch: guard (default), finite-mask, guard-div, guard-log, guard-sqrt, "
    "guard-acos, guard-pow, skip or eager.",
    "constants": "A file of constants by name, to be set before the call (torch.save).",
    "set_env": "An environment variable for the changed call only. May be repeated.",
    "tool": "The checker. Default: auto, which chooses by device.",
    "launches": "The number of a launch to look at. May be repeated; default: all.",
    "kernels": "A kernel or model line (FILE.py:LINE) to look at. May be repeated.",
    "buffers": "A buffer to look at. May be repeated.",
    "save": "Also save the tensors.",
    "stop_at_first_bad": "Stop at the first NaN, Inf or bad index.",
    "out": "The file to write; it must be new.",
    "remove": "Take the recorder out of the package again.",
    "mode": "What to keep of values: adaptive (what costs under 1 %; default), ints, full or redact (none).",
    "directory": "Where recordings are kept. Default: a folder of yours in /dev/shm.",
    "ring_mb": "Megabytes of calls to keep, 4 to 65536. Default: 64.",
    "budget_mb": "Megabytes in all, 8 to 1048576. Default: 1024.",
    "folder": "The folder of the recordings.",
    "process": "A core file, or the number of a process that runs or hangs, and goes on.",
    "in_place": "Let the script overwrite its packages; otherwise they are put back afterwards.",
}


def command_help(tool: str, for_agents: str) -> str:
    """The help of the command of `tool`, which agents get as `for_agents`."""
    return COMMANDS.get(tool) or in_shell_words(for_agents)


def option_help(name: str, for_agents: str, default: object = None) -> str:
    """The help of the argument `name`, which agents get as `for_agents`."""
    return OPTIONS.get(name, "").replace("{default}", str(default)) or in_shell_words(for_agents)


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
