"""Errors that tell the caller what to do, in place of a traceback. Also parses JSON from outside."""

import json
from contextvars import ContextVar
from pathlib import Path
from typing import Any

on_command_line: ContextVar[bool] = ContextVar("on_command_line", default=False)
"""Set by the command line, where arguments are spelled as options."""


# Options that are not spelled like their argument, or that have a short form.
OPTION_NAMES = {
    "inputs": ("--inputs", "-i"),
    "env": ("--env", "-e"),
    "flags": ("--flag", "-f"),
    "changes": ("--change",),
    "how": ("--as",),
}


def option_of(name: str) -> str:
    """The option of an argument: --model-name for `model_name`."""
    return OPTION_NAMES.get(name, (f"--{name.replace('_', '-')}",))[0]


def argument(name: str) -> str:
    """Spell an argument as the caller does: `model_name`, or --model-name on the command line."""
    return option_of(name) if on_command_line.get() else f"`{name}`"


class ProblemError(Exception):
    """A tool cannot do its job, for a reason that the caller can remove.

    A workload that fails is a result, not a ProblemError. `next_call` is a tool or command to use next.
    """

    def __init__(self, what: str, *, value: object = None, allowed: str = "", next_call: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.value = value
        self.allowed = allowed
        self.next_call = next_call

    def __str__(self) -> str:
        parts = [self.what if self.value is None else f"{self.what}: {self.value!r}"]
        if self.allowed:
            parts.append(f"allowed: {self.allowed}")
        if self.next_call:
            parts.append(f"next: {self.next_call}")
        return "; ".join(parts)


def here() -> Path:
    """The current directory. Raises ProblemError if it has been deleted."""
    try:
        return Path.cwd()
    except OSError as error:
        what = f"the current directory cannot be used ({error.strerror})"
        raise ProblemError(what, allowed="a directory that exists: cd to one, and start again") from None


def read_json(text: str | bytes) -> Any:
    """Parse JSON. Raise `ValueError` if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
