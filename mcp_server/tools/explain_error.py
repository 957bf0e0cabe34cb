"""Explains an error text: its family, meaning and limits, the guide, and the next call.

Runs nothing. With a package, an index assertion is traced to its launch, its bound and the index's source.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePath

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError, argument
from mcp_server.logs.facts import ErrorFact, LogFacts
from mcp_server.logs.families import Advice, Rank, closest_family
from mcp_server.logs.families.kinds import HANG_GUIDE, MAIN_GUIDE, guide_path
from mcp_server.logs.journal import DEVICES, DTYPES, read_printout
from mcp_server.logs.log import lines_of
from mcp_server.logs.text import is_expression
from mcp_server.model import Category, ModelLocation, NextStep, Record
from mcp_server.package.assertion import assertion_of
from mcp_server.package.query import Fact, ambiguity, assertion_facts, no_holder
from mcp_server.package.view import view_package
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import read_text, read_users_log

PACKAGE = "path/to/model.pt2"
INPUTS = "path/to/inputs.pt"
PROGRAM = "path/to/program.py"

# The tool to call next, and why. Clients list these tools by default.
_ADVICE: Mapping[Advice, tuple[str, str]] = {
    "check_inputs": ("check_devices", "compare every input with what the package was compiled for"),
    "check_package": (
        "check_devices",
        "check the package's file, device and architecture against this machine",
    ),
    "check_machine": ("check_devices", "look at driver, devices, memory, compiler and libraries"),
    "trace_index": ("diagnose", "trace the assertion to its launch, its bound and the input behind it"),
    "constants": ("diagnose", "compare the package's constants with those of the program"),
    "locate": ("diagnose", "name the launch, the line and the access"),
    "heap": ("diagnose", "see whether a launch of the package writes past its memory"),
    "find_nan": ("dump_kernel_io", "find the first launch whose output is not finite"),
    "compare": ("dump_kernel_io", "look at what each launch reads and writes"),
    "run_again": (
        "run_deterministic",
        "run again with blocking launches and input checks, keeping all output",
    ),
    "read_cause": ("run_deterministic", "run again keeping all output: the cause is on standard error"),
    "recompile": ("diagnose", "name the line of the model that does not compile, and try changes of it"),
    "fix_script": ("diagnose", "find out whether only the script is at fault"),
    "trace_hang": ("diagnose", "see the last launch that began and did not end"),
}


def in_words(root: ErrorFact) -> dict[str, str]:
    """An error's fields, with names for the dtype and device codes that the runtime prints."""
    words = {"input_dtype": DTYPES, "input_device": DEVICES}.get(root.family.id, {})
    codes = {name: root.fields[name] for name in ("expected", "got") if words and name in root.fields}
    return {**root.fields, **{name: words.get(int(code), f"code {code}") for name, code in codes.items()}}


def filled(template: str, root: ErrorFact) -> str:
    """The template with the fields of the text. Empty if a field is missing or is not an expression."""
    try:
        return template.format_map({name: e for name, e in in_words(root).items() if is_expression(e)})
    except KeyError:
        return ""


def as_sentence(root: ErrorFact) -> str:
    """Fill the family's sentence with this error's values. Return the meaning if a value is prose or absent.

    Prose from a log could be read as an instruction, so it stays in `fields`.
    """
    return filled(root.family.sentence, root) or root.family.meaning


def next_call(root: ErrorFact | None, facts: LogFacts, package: Path | None) -> NextStep:
    """The most useful next tool call, with placeholder paths for files that the log does not name."""
    if root is not None:
        advice = root.family.advice
    else:
        advice = "locate" if facts.last_launch else "trace_hang" if not facts.best_lines else "run_again"
    tool, why = _ADVICE[advice]
    program = program_of(facts)
    needs_package = tool not in ("diagnose", "run_deterministic") and advice != "check_machine"
    if needs_package and package is None and program:
        why = f"{why}; the log names the {''.join(program)}"
        return NextStep(why=why, tool="diagnose", arguments=program)
    named = str(package or PACKAGE)
    arguments: dict[str, object] = {"package": named, "inputs": INPUTS}
    if advice == "check_machine":
        arguments = {"package": named} if package else {}
    elif package is None and program:
        arguments = program
    elif tool == "diagnose" and package is None:
        arguments = {"script": PROGRAM}
    elif advice == "check_package":
        arguments = {"package": named}
    return NextStep(why=why, tool=tool, arguments=arguments)


def program_of(facts: LogFacts) -> dict[str, object]:
    """The failing program, a script or command, as arguments of `diagnose`. Empty if not named."""
    for exception in facts.exceptions:
        first = exception.frames[0] if exception.frames else None
        if first and first.user and first.function == "<module>" and first.file.endswith(".py"):
            return {"script": first.file}
    command = next((error.fields["ran"] for error in facts.errors if "ran" in error.fields), "")
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    if "$" in command:  # shell variables lost their values: at most the program and its script are known
        words = [word for word in words[:2] if "$" not in word]
    if len(words) > 1 and PurePath(words[0]).name.startswith("python") and words[1].endswith(".py"):
        return {"script": words[1]}
    words = words or next(([error.fields["host"]] for error in facts.errors if "host" in error.fields), [])
    return {"command": words} if words else {}


_OTHERS = 6
_FRAMES = 4
_TRACES = 3
_LINES = 12


class OtherError(Record):
    """Another error of the log, and why it is not the root cause."""

    family: str
    line: int
    text: str
    role: str
    count: int = 1


class Explanation(Record):
    """What is known about an error text. Lines count from 1 in the text.

    `known` is False if no family matched: then `lines` are those most like an error. `category` is set if the
    text decides it; otherwise `candidates` are the possible ones, the likeliest first. `meaning` is empty if
    the summary says it. `trace` needs a package. `page` lists the texts of all families.
    """

    known: bool
    summary: str
    family: str = ""
    stage: str = ""
    category: Category | None = None
    candidates: list[Category] = Field(default_factory=list)
    text: str = ""
    line: int | None = None
    count: int | None = None
    fields: dict[str, str] = Field(default_factory=dict)
    meaning: str = ""
    fix: str = ""
    not_proven: str = ""
    releases: str = ""
    guide: str
    page: str = ""
    next: NextStep
    others: list[OtherError] = Field(default_factory=list)
    last_launch: str = ""
    kernel: str = ""
    generated: list[str] = Field(default_factory=list)
    model_lines: list[ModelLocation] = Field(default_factory=list)
    trace: list[Fact] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    lines: list[str] = Field(default_factory=list)
    versions: dict[str, str] = Field(default_factory=dict)


async def explain_error(
    context: Context,
    *,
    text: str = "",
    log: Path | None = None,
    package: Path | None = None,
    model_name: str | None = None,
) -> Explanation:
    """Explain `text`, or a log file of any size.

    Raise ProblemError for both, neither, or an unreadable file; PackageError for a bad `package`.
    """
    facts = await _facts_of(context, text, log)
    root = facts.root
    if root is None:
        update, notes = _unknown(facts)
    else:
        update = _known(root, facts)
        update["trace"], notes = await anyio.to_thread.run_sync(_trace, root, package, model_name)
    printed = await anyio.to_thread.run_sync(read_printout, lines_of(log) if log else text.splitlines())
    said = [printed] if printed else []
    frames = reversed(facts.frames[-_FRAMES:])
    explanation = Explanation(
        known=root is not None,
        summary="",
        guide=MAIN_GUIDE,
        next=next_call(root, facts, package),
        others=_others(facts),
        last_launch=facts.last_launch.kernel if facts.last_launch else "",
        model_lines=[ModelLocation(file=frame.file, line=frame.line, code=frame.code) for frame in frames],
        notes=[*said, *notes, *_notes(facts)],
        versions=facts.versions,
    )
    return explanation.model_copy(update=update)


async def _facts_of(context: Context, text: str, log: Path | None) -> LogFacts:
    """Read the text or the log, whichever is given."""
    if bool(text.strip()) == (log is not None):
        raise ProblemError(
            f"give the error either as {argument('text')} or as {argument('log')}",
            allowed="the text of one error, or the path of one log",
        )
    if log is not None:
        context.progress(f"reading {log.name}")
        return await read_users_log(log)
    facts = await read_text(text)
    # A text that was sent as an error counts as one.
    return replace(facts, best_lines=facts.best_lines or facts.tail) if facts.root is None else facts


def _known(root: ErrorFact, facts: LogFacts) -> dict[str, object]:
    """The part of the explanation for an error of a known family."""
    family, summary = root.family, as_sentence(root)
    return {
        "summary": summary,
        "family": family.id,
        "stage": family.stage,
        "category": root.category,
        "candidates": list(root.candidates),
        "text": root.text,
        "line": root.line,
        "count": root.count,
        "fields": root.fields,
        "meaning": family.meaning if family.meaning != summary else "",
        "fix": filled(family.fix, root) if root.category is not None else "",
        "not_proven": family.not_proven,
        "releases": family.torch,
        "guide": guide_path(family.guide),
        "page": "guides/error-texts.md",
        "kernel": root.fields.get("kernel", ""),
        "generated": list(facts.locations[:_FRAMES]),
    }


def _unknown(facts: LogFacts) -> tuple[dict[str, object], list[str]]:
    """The explanation of a text without a root error, and notes."""
    guide, notes = MAIN_GUIDE, list[str]()
    if facts.last_launch:
        began = facts.last_launch.kernel
        summary = f"No error text; the last launch that began and did not end is {began}."
    elif facts.errors:  # all have rank NOISE: others would be a root
        summary = f"No error that names a cause. {facts.errors[0].family.meaning}"
    elif facts.best_lines:
        summary = "This text matches no known error."
    else:
        summary = (
            "This log contains no error text. If the program failed, it hung or crashed without a message, "
            "or the log was cut off."
        )
    if not facts.last_launch and facts.best_lines:
        family = closest_family(facts.best_lines[-1][1])
        notes += [f"closest known error: {family.id}: `{family.example}`"] if family else []
        notes.append(
            "pass the whole log, standard output and standard error: the cause is often in another line"
        )
    elif not facts.last_launch:
        guide = guide_path(HANG_GUIDE)
    lines = [f"{number}: {text}" for number, text in (facts.best_lines or facts.tail)[-_LINES:]]
    return {"summary": summary, "guide": guide, "lines": lines}, notes


def _trace(root: ErrorFact, package: Path | None, model_name: str | None) -> tuple[list[Fact], list[str]]:
    """The package's launches where an index assertion may have failed, and notes."""
    if package is None or "kernel_assert" not in root.family.tags:
        return [], []
    view = view_package(package, model_name)
    found = assertion_facts(view, assertion_of(root), root.text)
    if not found:
        return [], [no_holder(view)]
    notes = [note] if (note := ambiguity(found)) else []
    if len(found) > _TRACES:
        notes = [f"{note}; {_TRACES} are shown: inspect_package lists all"]
    return found[:_TRACES], notes


def _others(facts: LogFacts) -> list[OtherError]:
    """The errors of other families than the root's: those of the highest rank first."""
    root, others = facts.root, facts.errors
    if root is not None:
        of_others = (error for error in others if error.family.id != root.family.id)
        others = tuple(sorted(of_others, key=lambda error: (-error.rank, error.line)))
    return [
        OtherError(
            family=error.family.id,
            line=error.line,
            text=error.text[:160],
            role=_role(error, root),
            count=error.count,
        )
        for error in others[:_OTHERS]
    ]


def _role(error: ErrorFact, root: ErrorFact | None) -> str:
    if root is None or error.rank == Rank.NOISE:
        return "noise"
    if error.rank == Rank.GENERIC:
        return "only says that a call failed"
    return "consequence" if error.rank < root.rank else "another error"


def _notes(facts: LogFacts) -> list[str]:
    notes = []
    if facts.truncated:
        notes.append(f"the log is incomplete: {facts.truncated}")
    if len(facts.processes) > 1:
        names = ", ".join(sorted(facts.processes)[:8]) + (", …" if len(facts.processes) > 8 else "")
        notes.append(f"{len(facts.processes)} processes wrote this log: {names}")
    if facts.dropped_errors:
        notes.append(f"{facts.dropped_errors} further different errors were counted only")
    if facts.sanitizer is not None and not facts.sanitizer.complete:
        notes.append("the sanitizer's report has no summary: its run was cut off")
    return notes
