"""Classifies unmatched exceptions by the file that raised them: package, compiler, model or script."""

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
# `AOTICompiledModel.__call__`: the frames inside it belong to the package (torch 2.8-2.15).
_PACKAGE_CALL = re.compile(r"\bloader\.(?:boxed_)?run\(")
_LOAD = re.compile(r"\b(?:aoti_load_package|load_package|AOTIModelPackageLoader|aot_load)\(")
_PACKAGE_FILE = re.compile(r"[/\\]torch[/\\](?:export[/\\]pt2_archive|_inductor[/\\]package)[/\\]")
# The frame of `Module.__call__`: the frames inside it belong to the model.
_MODULE_FILE = re.compile(r"[/\\]torch[/\\]nn[/\\]modules[/\\]module\.py$")
_ENVIRON = re.compile(r"^<frozen os>$|[/\\]os\.py$")
_OF_FILES = frozenset({"OSError", "FileNotFoundError", "BlockingIOError", "ChildProcessError"})
# An exit status in a message that the program wrote itself.
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
# Exceptions that the machine causes, whatever the model is.
_OF_HOST = re.compile(
    r"(?:\w*OSError|\w*IOError|\w*MemoryError|\w*Timeout\w*|\w*Interrupt|File\w+|Permission\w+)\b"
)
_OWN_CHECK = re.compile(r"(?:raise|assert)\b|self\.fail\(|sys\.exit\(")


def settle_exception(error: ErrorFact) -> ErrorFact:
    """Classify an exception that no family matched by the file that raised it."""
    exception = error.exception
    if exception is None or not exception.frames:
        return error
    inside = "inside" in error.fields
    if error.family.id == "inductor_error":
        return _of_lowering(error, exception)
    if "operand" in error.family.tags:
        statement = _is_statement(exception) and not inside
        return replace(error, candidates=first("script_error", error.candidates)) if statement else error
    if error.family.id != "python_exception":
        return error
    family = BY_ID["operator_refused" if inside else _exception_family(exception)]
    fields = dict(error.fields)
    if family.id == "environment_variable" and (variable := exception.message.strip("'\"")):
        fields["variable"] = variable
    return replace(error, family=family, candidates=family.candidates, fields=fields)


def unnamed_exception(errors: Sequence[ErrorFact], exceptions: Sequence[PythonException]) -> ErrorFact | None:
    """The exception that ended the program, if no family matched any text of its chain."""
    chain = last_chain(exceptions)
    if not chain or any(error.exception in chain for error in errors):
        return None
    last = chain[-1]
    family = BY_ID["python_exception"]
    text = bound(f"{last.type}: {last.message}".rstrip(": "))
    fields = {"type": last.type, "detail": bound(last.message, 300)}
    return ErrorFact(family, fields, last.line, text, family.candidates, 1, last.process, last)


def _of_lowering(error: ErrorFact, exception: PythonException) -> ErrorFact:
    """Any exception of Inductor's lowering or code generation becomes `inductor_internal`."""
    deeper = list(takewhile(lambda frame: not _INDUCTOR.search(frame.file), reversed(exception.frames)))
    at = exception.frames[: len(exception.frames) - len(deeper)][-1:]
    within = any(_LOWERS.search(frame.file) for frame in at) and all(_TORCH.search(f.file) for f in deeper)
    if not within or _OF_HOST.match(error.fields.get("detail", "")):
        return error
    family = BY_ID["inductor_internal"]
    return replace(error, family=family, candidates=family.candidates)


def is_passed_on(exception: PythonException, before: PythonException) -> bool:
    """Whether the program raised `before` again: with `from`, or in the function that caught it."""
    if exception.relation != "during":
        return exception.relation == "cause"
    raised, caught = exception.frames[-1:], before.frames[:1]
    return bool(raised and caught) and _function(raised[0]) == _function(caught[0])


def _function(frame: Frame) -> tuple[str, str]:
    return frame.file, frame.function


def _is_statement(exception: PythonException) -> bool:
    """Whether a line of the program raised, outside every package and module."""
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
        if checks and _reports_child(exception.message):
            return "child_failed"
        return "own_check" if checks else "script_exception"
    if any(_is_compile_call(frame) for frame in exception.frames):
        return "bad_path" if exception.type in _OF_FILES else "compiler_exception"
    return "python_exception"


def _reports_child(message: str) -> bool:
    """Whether the message gives the exit status of a process. Larger numbers are HTTP statuses."""
    found = _OF_CHILD.search(message)
    return found is not None and -64 <= int(found["status"]) <= 255


def _is_environ(frame: Frame) -> bool:
    """Whether the frame is `os.environ.__getitem__` (Python 3.9-3.14)."""
    return frame.function == "__getitem__" and _ENVIRON.search(frame.file) is not None


def _is_package_call(frame: Frame) -> bool:
    return _PACKAGE_FILE.search(frame.file) is not None and _PACKAGE_CALL.search(frame.code) is not None


def _is_load(frame: Frame) -> bool:
    """Whether the line loads a package (torch 2.8-2.15)."""
    return _LOAD.search(frame.code) is not None


def _is_compile_call(frame: Frame) -> bool:
    named = any(word in frame.function for word in ("compile", "export", "lower"))
    return named and _COMPILE_FILE.search(frame.file) is not None


def first(category: Category, candidates: tuple[Category, ...]) -> tuple[Category, ...]:
    """`candidates` with `category` moved to the front."""
    return (category, *(other for other in candidates if other != category))
