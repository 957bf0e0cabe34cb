"""Packages that the user's program writes while it is diagnosed, put back as they were before.

The hook compiles with debug information, so that the package is a different build than the user's own run
writes. It keeps a copy of each file that is about to be written over (`events.Overwriting`).
"""

from __future__ import annotations

import filecmp
import os
import shutil
from pathlib import Path

from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.errors import argument
from mcp_server.logs.captured import CapturedOverwriting


def put_back(case: DiagnosisState) -> list[str]:
    """Restore the packages that runs of the program wrote over, and say what was done, a sentence for each.

    A package that was not there before is left. Nothing is done for a job that is read again: its runs were
    not made now, and the user's file may be newer.
    """
    if case.capture is None or case.capture.finished.reused:
        return []
    first: dict[Path, CapturedOverwriting] = {}
    for each in case.captured.overwritings:
        first.setdefault(each.path, each)
    return [told for each in first.values() if (told := _restored(each))]


def _restored(file: CapturedOverwriting) -> str:
    """What became of one file; empty where the run did not write it."""
    name = file.path.name
    if file.kept is None:
        if file.notice:
            return f"{name} was written over by a build with debug information, and not kept: {file.notice}."
        new = f"{name} is new: the script wrote it, with debug information."
        return new if file.path.is_file() else ""
    try:
        if file.path.is_file() and filecmp.cmp(file.path, file.kept, shallow=False):
            return ""
        partial = file.path.with_name(f".{name}.{os.getpid()}")
        shutil.copy2(file.kept, partial)
        partial.replace(file.path.resolve())
    except OSError as error:
        return f"{name} could not be put back ({error}); as it was before the run it is {file.kept}."
    return f"{name} was put back as it was before the run ({argument('in_place')}: keep what the run wrote)."
