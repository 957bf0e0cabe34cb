"""How a child ended and the error that explains it, as a result of a step."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from mcp_server.jobs.types import Ending, Finished
from mcp_server.model import Category, Record
from mcp_server.steps.logs import read_output


class Failure(Record):
    """A child that did not end well. `family` and `text` are empty when no known error was in its output.

    `line` counts from 1 in `log`, the child's stdout and stderr together.
    """

    ending: Ending
    returncode: int | None
    signal: str | None
    family: str = ""
    meaning: str = ""
    candidates: list[Category] = Field(default_factory=list)
    text: str = ""
    line: int = 0
    guide: str = ""
    log: Path


def read_failure(finished: Finished) -> Failure | None:
    """The failure of a child, with the root error of its whole output; None when it ended well."""
    if finished.ok:
        return None
    how = Failure(
        ending=finished.ending, returncode=finished.returncode, signal=finished.signal, log=finished.output
    )
    facts = read_output(finished.output)
    if facts.root is None:
        last = facts.best_lines[-1:] or facts.tail[-1:]
        return how.model_copy(update={"line": last[0][0], "text": last[0][1]}) if last else how
    root = facts.root
    told = {
        "family": root.family.id,
        "meaning": root.family.meaning,
        "candidates": list(root.candidates),
        "text": root.text,
        "line": root.line,
        "guide": root.family.guide,
    }
    return how.model_copy(update=told)
