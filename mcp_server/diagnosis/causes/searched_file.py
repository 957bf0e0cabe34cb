"""A library or header that cannot be read, and the variable whose directory the build took it from.

GCC and Clang search the directories of LIBRARY_PATH and CPATH besides their own (GCC manual, "Environment
Variables Affecting GCC"), so that one bad file in them breaks every compile after the variable was set.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from pathlib import PurePosixPath

from mcp_server.diagnosis.causes.common import component, reported, seen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCompile
from mcp_server.logs.facts import ErrorFact
from mcp_server.model import Fix

_OF_LINKER = ("LIBRARY_PATH", "LD_LIBRARY_PATH")
_OF_COMPILER = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_SEARCHED = {
    "link_file": _OF_LINKER,
    **dict.fromkeys(("cpp_error", "cpp_undeclared", "cpp_headers"), _OF_COMPILER),
}
_FIRST_LINES = 3  # an error here says that the file as a whole is no C++


def detect_searched_file(case: DiagnosisState) -> Iterator[Suspect]:
    """The file that the failed compile refused, if a directory of a variable has brought it in."""
    failed = [each for each in case.capture.compiles if each.outcome == "failed"] if case.capture else []
    for source, facts in case.own_logs:
        root = facts.root
        if not failed or root is None or root.family.id not in _SEARCHED or "file" not in root.fields:
            continue
        if (found := searched_through(root, failed[-1])) is not None:
            yield _suspect(root, source, failed[-1], *found, case)


def searched_through(root: ErrorFact, compiled: CapturedCompile) -> tuple[str, str] | None:
    """The variable and its directory that the file of `root` is in."""
    file = PurePosixPath(posixpath.normpath(root.fields["file"]))
    for variable in _SEARCHED[root.family.id]:
        for entry in filter(None, compiled.flags.get(variable, "").split(os.pathsep)):
            if PurePosixPath(posixpath.normpath(entry)) in file.parents:
                return variable, entry
    return None


def _suspect(
    root: ErrorFact,
    source: str,
    compiled: CapturedCompile,
    variable: str,
    directory: str,
    case: DiagnosisState,
) -> Suspect:
    linked = root.family.id == "link_file"
    file, detail = root.fields["file"], root.fields.get("detail", root.text[:200])
    who, what = ("linker", "library") if linked else ("compiler", "header")
    whole = linked or int(root.fields.get("line", "0")) <= _FIRST_LINES
    reading = f"as a {what}" if whole else f"line {root.fields.get('line')}"
    fact = f"{variable} had {directory} when the compile began"
    return Suspect(
        category="toolchain",
        guilty=component("toolchain", file, compiled.stack[:2], value=f"{detail}; found through {variable}"),
        summary=f"The {who} found {file} through {variable}, and cannot read it {reading}"
        f": {detail.rstrip('.')}.",
        level=CausalLevel.BUILD,
        evidence=(reported(root, source), seen("capture", fact)),
        fix=Fix(
            action=f"take {directory} out of {variable} for the compile, or put a real {what} in the place "
            f"of {PurePosixPath(file).name} there",
        ),
        harmful=case.failed,
        observed=whole,
    )
