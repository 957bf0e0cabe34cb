"""What the place of an exception says about it: a package's call, a compile, a model, or the script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from mcp_server.logs.facts import ErrorFact, Frame, PythonException, last_chain
from mcp_server.logs.families import BY_ID
from mcp_server.logs.text import bound
from mcp_server.model import Category

_COMPILE_FILE = re.compile(
    r"[/\\]torch[/\\](?:_inductor|_dynamo|export|fx|_functorch|_export)[/\\]|[/\\]triton[/\\]"
)
# The frame below which a package's own code runs (torch 2.8-2.15, `AOTICompiledModel.__call__`).
_PACKAGE_CALL = re.compile(r"\bloader\.(?:boxed_)?run\(")
_LOAD = re.compile(r"\b(?:aoti_load_package|load_package|AOTIModelPackageLoader|aot_load)\(")
_PACKAGE_FILE = re.compile(r"[/\\]torch[/\\](?:export[/\\]pt2_archive|_inductor[/\\]package)[/\\]")
# The frame below which a module of a model runs.
_MODULE_FILE = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")
_ENVIRON = re.compile(r"^<frozen os>$|[/\\]os\.py$")
_OF_FILES = frozenset({"OSError", "FileNotFoundError", "BlockingIOError", "ChildProcessError"})
# The status of a process, in words of the program's own.
_OF_CHILD = re.compile(
    r"\b(?:fail|exit|end|terminat|die|return|crash)\w*\b[^\n]{0,40}?"
    r"\b(?:status|code|rc)\b[ =:]*(?P<status>-?\d{1,3})\b"
)
# Where Inductor lowers a model and writes code for it (torch 2.8-2.15); the rest runs compilers and files.
_LOWERS = re.compile(
    r"[/\\]torch[/\\]_inductor[/\\](?:codegen[/\\]\w+|kernel[/\\]\w+|fx_passes[/\\]\w+|\w*lowering|graph|ir|scheduler|"
    r"loop_body|dependencies|sizevars|ops_handler|index_propagation|decomposition)\.py$"
)
_INDUCTOR = re.compile(r"[/\\]torch[/\\]_inductor[/\\]")
_TORCH = re.compile(r"[/\\]torch[/\\]")
# Exceptions that code of the compiler meets through no fault of the model's.
_OF_HOST = re.compile(
    r"(?:\w*OSError|\w*IOError|\w*MemoryError|\w*Timeout\w*|\w*Interrupt|File\w+|Permission\w+)\b"
)
_OWN_CHECK = re.compile(r"(?:raise|assert)\b|self\.fail\(|sys\.exit\(")


def settle_exception(error: ErrorFact) -> ErrorFact:
    """Put an exception that has no family of its own into one by where it was raised."""
    exception = error.exception
    if exception is None or not exception.frames:
        return error
    inside = "inside" in error.fields
    if error.family.id == "inductor_error":
        return _of_lowering(error, exception)
    if "operand" in error.family.tags:
        return _of_statement(error) if _is_statement(exception) and not inside else error
    if error.family.id != "python_exception":
        return error
    family = BY_ID["operator_refused" if inside else _exception_family(exception)]
    variable = exception.message.strip("'\"") if family.id == "environment_variable" else ""
    fields = {**error.fields, **({"variable": variable} if variable else {})}
    return replace(error, family=family, candidates=family.candidates, fields=fields)


def unnamed_exception(errors: Sequence[ErrorFact], exceptions: Sequence[PythonException]) -> ErrorFact | None:
    """The exception that ended the program, when no family knows any text of its chain."""
    chain = last_chain(exceptions)
    if not chain or any(error.exception in chain for error in errors):
        return None
    last = chain[-1]
    family = BY_ID["python_exception"]
    text = bound(f"{last.type}: {last.message}".rstrip(": "))
    fields = {"type": last.type, "detail": bound(last.message, 300)}
    return ErrorFact(family, fields, last.line, text, family.candidates, 1, last.process, last)


def _of_lowering(error: ErrorFact, exception: PythonException) -> ErrorFact:
    """What Inductor raised while it lowered the model or wrote code for it, in whatever words."""
    deeper = list(takewhile(lambda frame: not _INDUCTOR.search(frame.file), reversed(exception.frames)))
    at = exception.frames[: len(exception.frames) - len(deeper)][-1:]
    within = any(_LOWERS.search(frame.file) for frame in at) and all(_TORCH.search(f.file) for f in deeper)
    if not within or _OF_HOST.match(error.fields.get("detail", "")):
        return error
    family = BY_ID["inductor_internal"]
    return replace(error, family=family, candidates=family.candidates)


def is_passed_on(exception: PythonException, before: PythonException) -> bool:
    """Whether the program's own `raise` tells of the one before it: `from` it, or where that was caught."""
    if exception.relation != "during":
        return exception.relation == "cause"
    raised, caught = exception.frames[-1:], before.frames[:1]
    return bool(raised and caught) and _function(raised[0]) == _function(caught[0])


def _function(frame: Frame) -> tuple[str, str]:
    return frame.file, frame.function


def _of_statement(error: ErrorFact) -> ErrorFact:
    """What an operator says of its operands, raised by a statement of the script's own."""
    return replace(error, candidates=first("script_error", error.candidates))


def _is_statement(exception: PythonException) -> bool:
    """Whether the program's own line raised, outside packages and modules of a model."""
    within = any(_is_package_call(frame) or _MODULE_FILE.search(frame.file) for frame in exception.frames)
    return exception.frames[-1].user and not within


def _exception_family(exception: PythonException) -> str:
    inner = exception.frames[-1]
    if exception.type == "KeyError" and _is_environ(inner):
        return "environment_variable"
    if any(_is_package_call(frame) for frame in exception.frames):
        return "operator_raised" if inner.user else "operator_refused"
    if any(_is_load(frame) for frame in exception.frames[-1 if inner.user else -3 :]):
        return "load_exception"
    if inner.user:
        checks = _OWN_CHECK.match(inner.code) is not None or exception.type.endswith("AssertionError")
        of_child = checks and _tells_of_child(exception.message)
        return "child_failed" if of_child else "own_check" if checks else "script_exception"
    if any(_is_compile_call(frame) for frame in exception.frames):
        return "bad_path" if exception.type in _OF_FILES else "compiler_exception"
    return "python_exception"


def _tells_of_child(message: str) -> bool:
    """Whether the message is about a process that failed; HTTP's codes of failure are no exit statuses."""
    found = _OF_CHILD.search(message)
    return found is not None and -64 <= int(found["status"]) <= 255


def _is_environ(frame: Frame) -> bool:
    """Whether the frame is where Python looks up a variable of the environment (3.9-3.14)."""
    return frame.function == "__getitem__" and _ENVIRON.search(frame.file) is not None


def _is_package_call(frame: Frame) -> bool:
    return _PACKAGE_FILE.search(frame.file) is not None and _PACKAGE_CALL.search(frame.code) is not None


def _is_load(frame: Frame) -> bool:
    """Whether a package is loaded there (torch 2.8-2.15), by whomever."""
    return _LOAD.search(frame.code) is not None


def _is_compile_call(frame: Frame) -> bool:
    named = any(word in frame.function for word in ("compile", "export", "lower"))
    return named and _COMPILE_FILE.search(frame.file) is not None


def first(category: Category, candidates: tuple[Category, ...]) -> tuple[Category, ...]:
    """The candidates with this one before the others."""
    return (category, *(other for other in candidates if other != category))
