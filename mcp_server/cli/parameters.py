"""Turns the arguments of operations into parameters of commands, and parameters back into arguments.

Also explains a wrong command line.
"""

import difflib
import inspect
import itertools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from mcp_server.errors import OPTION_NAMES, ProblemError, option_of
from mcp_server.operations import arguments as args
from mcp_server.operations.table import command_name, in_shell_words
from mcp_server.operations.workload import is_exported_program
from mcp_server.plurals import capitalized, listed

# A command always waits until its job ends.
NOT_ON_THE_COMMAND_LINE = frozenset({"wait_s"})

# What the positional TARGET can be, by the argument that it fills.
TARGETS = {
    "script": "a script (.py)",
    "package": "a package (.pt2)",
    "exported": "an exported program (.pt2)",
    "command": "a program to run",
}
WITHOUT_TARGET = ("log", "recording", "pid")  # one of these makes TARGET unnecessary
AS_TARGET = frozenset({"script", "script_args", "command"})  # hidden: TARGET and ARGS are shorter
TENSOR_FILES = (".pt", ".pth")
REST_HELP = "Arguments of the script or program; put -- before those that start with a dash."


# Help of arguments whose descriptions suit only agents. The others show their description.
OPTIONS = {
    "flags": "A flag, such as TORCHINDUCTOR_NAN_ASSERTS=1.",
    "inputs": "Inputs of the call: a file of torch.save, or JSON such as "
    """'[{"shape": [8, 64], "dtype": "int64", "low": 0, "high": 9}]'.""",
    "edit": "Edited model.py of decompile; with --launch, only that launch.",
    "log": "Log of a failing run.",
    "env": "An environment variable.",
    "changes": "Change of an input, such as 'args[1]: clamp 0 9 where > 9'. The table below has all forms.",
}
# The sections of a long help, with their arguments, most used first. Other options come before the sections.
SECTIONS = {
    "What to look at": (
        *("inputs", "exported", "package", "model_name", "log", "recording", "pid", "resume"),
    ),
    "What you see, and what is correct": ("symptom", "expect", "rtol", "atol", "check"),
    "Output": ("verbose", "as_json", "report", "bundle", "out", "save", "help"),
    "Limits": ("budget_s", "timeout_s"),
    "Where and how to run it": ("python", "cwd", "env", "extra_imports", "device_index", "in_place"),
}
LONG = 10  # a help with more options has sections
# What an option's value is called in the help, if not TEXT.
FILES = ("package", "exported", "inputs", "log", "python", "expect", "edit", "constants", "core")
METAVARS = {
    **dict.fromkeys(FILES, "FILE"),
    **dict.fromkeys(("cwd", "folder", "directory"), "FOLDER"),
    **dict.fromkeys(("recording", "out"), "PATH"),
    **dict.fromkeys(("model_name", "kernel", "kernels", "buffer", "buffers", "symbol", "constant"), "NAME"),
    "extra_imports": "MODULE",
    "check": "COMMAND",
    "location": "FILE:LINE",
    "changes": "CHANGE",
}


_CHANGES = [
    *args.ACTIONS.items(),
    ("order N,N", "all inputs in this order: 'order 1,0', without INPUT"),
    ("... ELEMENTS", f"after clamp and set: {args.OF_ELEMENTS}"),
]


class Sectioned(TyperCommand):
    """Lists the options of a long help in sections."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [(each, each.get_help_record(ctx)) for each in self.get_params(ctx)]
        options = {each.name: row for each, row in shown if row and each.param_type_name == "option"}
        sections = {"Arguments": [row for each, row in shown if row and each.param_type_name == "argument"]}
        sections["Options"] = []
        for title, names in SECTIONS.items() if len(options) > LONG else ():
            sections[title] = [options.pop(name) for name in names if name in options]
        sections["Options"] = [*options.values()]
        forms = f"Forms of a change: {args.OF_INPUT}, and ACTION is"
        sections[forms] = _CHANGES if "changes" in options else []
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(model: type[args.Arguments]) -> list[inspect.Parameter]:
    """Build the command's signature: positionals first, then one option per field."""
    positional, options = [], []
    kinds = targets_of(model)
    if kinds:
        words = listed([TARGETS[kind] for kind in kinds], "or")
        target = typer.Argument(help=f"{capitalized(words)}.", metavar="TARGET")
        positional = [parameter("target", Annotated[str, target], "")]
    if "script" in kinds:
        rest = typer.Argument(help=REST_HELP, metavar="ARGS")
        positional.append(parameter("rest", Annotated[list[str], rest], []))
    for name, field in args.fields_of(model):
        about = OPTIONS.get(name) or in_shell_words(field.description or "")
        if kinds and name == "package":
            about = "The package (.pt2), if TARGET is something else."
        if field.is_required():
            info = typer.Argument(help=about, metavar=name.upper())
            positional.append(parameter(name, Annotated[str, info], inspect.Parameter.empty))
        elif name not in NOT_ON_THE_COMMAND_LINE:
            told = name in AS_TARGET or (name == "package" and kinds == ["package"])
            options.append(_option(name, field, about, hidden=bool(kinds) and told))
    return positional + options


def targets_of(model: type[args.Arguments]) -> list[str]:
    """List the arguments that a positional TARGET may fill: the kinds of workload that the command takes.

    Empty if one of them is required, because it is then itself positional.
    """
    fields = model.model_fields if issubclass(model, args.RunArguments) else {}
    kinds = [kind for kind in TARGETS if kind in fields]
    return [] if any(fields[kind].is_required() for kind in kinds) else kinds


def _option(name: str, field: FieldInfo, help_text: str, hidden: bool) -> inspect.Parameter:
    """Build an option: repeated NAME=VALUE for a mapping, text for other complex values."""
    kind: Any = field.annotation
    metavar = METAVARS.get(name, "TEXT")
    default = field.default
    if name in args.PAIRS:
        kind, default, metavar = tuple[str, str], None, "OLD NEW"
    elif name in args.COMMANDS:
        kind, default = str, ""
    elif get_origin(kind) is dict:
        kind, default, metavar = list[str], [], "NAME=VALUE"
    elif get_origin(kind) is Literal:
        choices = [choice for choice in get_args(kind) if choice]
        if not all(choice in help_text for choice in choices):
            help_text = f"{help_text} One of {', '.join(choices)}."
        kind, metavar = str, "CHOICE"
    elif kind in (int, float, list[int]):
        metavar = "NUMBER"
    elif kind not in (bool, str, list[str], list[int]):
        kind = str
    if get_origin(kind) is list:
        help_text = f"{help_text} Repeat it for more."
    dashed = command_name(name)
    spelled = f"--{dashed}/--no-{dashed}" if kind is bool and default else f"--{dashed}"
    info = typer.Option(
        *OPTION_NAMES.get(name, (spelled,)),
        help=help_text,
        show_default=False,
        hidden=hidden,
        metavar=None if kind is bool else metavar,
    )
    return parameter(name, Annotated[kind, info], default)


def arguments_of(model: type[args.Arguments], given: Mapping[str, Any]) -> args.Arguments:
    """Validate the arguments of a command line. Raise ProblemError if they are invalid."""
    values = {
        name: _from_text(name, model.model_fields[name], value)
        for name, value in given.items()
        if name in model.model_fields and value is not None
    }
    if given.get("target"):
        found = _target_values(given["target"], list(given.get("rest", ())))
        unfit = [kind for kind in found if kind in TARGETS and kind not in model.model_fields]
        if unfit:
            allowed = listed([TARGETS[kind] for kind in targets_of(model)], "or")
            what = f"this command does not take {TARGETS[unfit[0]]}"
            raise ProblemError(what, value=given["target"], allowed=allowed)
        values.update(found)
    elif not any(values.get(name) for name in (*TARGETS, *WITHOUT_TARGET)) and "script" in targets_of(model):
        words = listed([TARGETS[kind] for kind in targets_of(model)], "or")
        raise ProblemError("nothing to work on", allowed=words)
    return args.validated(model, values)


def _target_values(target: str, rest: list[str]) -> dict[str, Any]:
    """The arguments that TARGET and ARGS fill, by the name of the target and the content of a .pt2."""
    if target.endswith(".py"):
        return {"script": target, "script_args": rest}
    if target.endswith(TENSOR_FILES):
        package = next((word for word in rest if word.endswith(".pt2")), "model.pt2")
        raise ProblemError(
            "this file holds tensors; it is not a program",
            value=target,
            allowed="the package, and this file as --inputs",
            next_call=shlex.join(["aoti-debug", "diagnose", package, "--inputs", target]),
        )
    if not target.endswith(".pt2") and not _is_archive(target):
        return {"command": [target, *rest]}
    if rest:
        allowed, line = "options, such as --inputs", ("aoti-debug", "diagnose", target, "--inputs", rest[0])
        what = "a .pt2 takes no arguments"
        raise ProblemError(what, value=" ".join(rest), allowed=allowed, next_call=shlex.join(line))
    return {"exported" if is_exported_program(Path(target)) else "package": target}


def _is_archive(target: str) -> bool:
    """Whether the target is a package without the suffix .pt2: a zip archive that is not executable.

    Raise ProblemError for a folder, or for a link to nothing.
    """
    path = Path(target)
    if path.is_symlink() and not path.exists():
        allowed = "a link that leads to a file"
        raise ProblemError("the link leads nowhere, or in a circle", value=target, allowed=allowed)
    if path.is_dir():
        allowed = "one file: a script (.py), a package (.pt2) or a program"
        raise ProblemError("a folder is not a workload", value=target, allowed=allowed)
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04" and not os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False


def _from_text(name: str, field: FieldInfo, value: Any) -> Any:
    """Convert pairs, NAME=VALUE and command lines to values of the field. Others are unchanged."""
    if name in args.PAIRS:
        return list(value)
    if get_origin(field.annotation) is dict:
        pairs = [item.partition("=") for item in value]
        bad = next(("".join(pair) for pair in pairs if not pair[0] or not pair[1]), None)
        if bad is not None:
            allowed = f"NAME=VALUE, such as {option_of(name)} OMP_NUM_THREADS=1"
            raise ProblemError(f"{option_of(name)} is given without a value", value=bad, allowed=allowed)
        return {key: text for key, _, text in pairs}
    try:
        return shlex.split(value) if name in args.COMMANDS else value
    except ValueError as error:
        raise ProblemError(f"--{name} is not a valid command line ({error})", value=value[:120]) from error


# Some versions of typer contain click, others import it: these classes are found through typer in both.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
ClickException: type[Exception] = UsageError.__bases__[0]
_NO_NUMBER = re.compile(r"Invalid value for '(--[\w-]+)'.*valid (number|float|integer).*")
_MEANT = re.compile(r"[Dd]id you mean '?(?P<meant>[^'?]+)")
LIKE = 0.75  # difflib ratio: --symptm is similar to --symptom, --batch to no option of ours


def explained(error: Any, words: Sequence[str]) -> ProblemError:
    """The problem that click found in the command line `words`."""
    context = getattr(error, "ctx", None)
    option, wrong = getattr(error, "option_name", None), getattr(error, "param", None)
    if type(error).__name__ == "NoSuchOption" and context is not None:
        return _no_such_option(str(option), context, words)
    said = error.format_message().strip().rstrip(".")
    if context is not None and context.info_name == "explain-error" and "extra argument" in said:
        text = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), words[1:]))
        option = "--log" if Path(text).is_file() or text.endswith(".log") else "--text"
        what = "give the text of an error with --text, or a file with --log"
        line = shlex.join(["aoti-debug", "explain-error", option, text])
        return ProblemError(what, value=text, next_call=line)
    if number := _NO_NUMBER.fullmatch(said):
        name, kind = number.groups()
        more = "; repeat the option for more" if getattr(wrong, "multiple", False) else ""
        allowed = f"a {'whole number' if kind == 'integer' else 'number'}, such as {name} 3{more}"
        value = next((value for before, value in itertools.pairwise(words) if before == name), None)
        return ProblemError(f"{name} must be a number", value=value, allowed=allowed)
    allowed = getattr(wrong, "help", None) or (f"{option} and its value" if option else "")
    unknown = "a command that `aoti-debug --help` lists" if said.startswith("No such command") else ""
    return ProblemError(f"{said[:1].lower()}{said[1:]}", allowed=allowed or unknown)


def spelled_out(next_call: str, words: Sequence[str]) -> str:
    """`diagnose` as a whole command, with the arguments of `words`, if it takes them all."""
    known = {option_of(name) for name, _ in args.fields_of(args.DiagnoseArguments)} | {"-i", "--json"}
    given = {word.partition("=")[0] for word in words if word.startswith("-")}
    if next_call != "diagnose" or not given <= known:
        return next_call
    return shlex.join(["aoti-debug", "diagnose", *words[1:]])


def corrected(what: str, words: Sequence[str]) -> str:
    """The command line, corrected by the `did you mean` suggestion in `what`. Empty if uncertain."""
    meant = _MEANT.search(what)
    names = [word.rpartition("/")[2] for word in words]  # a suggestion for a file has no folder
    lower = [name.lower() for name in names]
    close = difflib.get_close_matches(meant["meant"].lower(), lower, 1) if meant else []
    if meant is None or not close or meant["meant"] in names:
        return ""
    at = lower.index(close[0])
    right = words[at].removesuffix(names[at]) + meant["meant"]
    return shlex.join(["aoti-debug", *words[:at], right, *words[at + 1 :]])


def example_like(words: Sequence[str], epilog: str) -> str:
    """The command's example that has most of `words`, with the caller's own files. Empty if none."""

    def kind(word: str) -> str:
        ending = Path(word).suffix
        return ending if ending in args.ENDINGS else word

    lines = [shlex.split(line) for line in epilog.splitlines()[2:]]
    best = max(lines, key=lambda line: len({*map(kind, line)} & {*map(kind, words)}), default=[])
    files = {kind(word): word for word in words[:0:-1] if kind(word) != word}
    if "--" in best and not files.keys().isdisjoint(map(kind, best)):
        best = best[: best.index("--")]  # the caller's script has other arguments
    filled = [files.pop(kind(word), word) for word in best]
    return shlex.join(filled) if filled[1:] != [*words] else ""


def _no_such_option(option: str, context: Any, words: Sequence[str]) -> ProblemError:
    """Explain an unknown option, which is most often an option of the script without `--` before it."""
    what = f"no such option: {option}"
    parameters = context.command.params
    known = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    close = difflib.get_close_matches(option, [name for name in known if name.startswith("-")], 1, LIKE)
    if close:
        return ProblemError(f"{what} (did you mean {close[0]}?)")
    takes_words = any(parameter.name == "rest" for parameter in parameters)
    at = next((number for number, word in enumerate(words) if word.split("=")[0] == option), 0)
    if takes_words and at > 1 and not words[1].startswith("-") and not words[1].endswith(".pt2"):
        line = shlex.join(["aoti-debug", *words[:at], "--", *words[at:]])
        return ProblemError(what, allowed="-- before the options of the script", next_call=line)
    return ProblemError(what, next_call=f"{context.command_path} --help lists the options")
