"""Recorded wrappers as packages, and recorded memory faults."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_server.logs.journal import read_journal_file
from mcp_server.memory_faults import Fault
from mcp_server.memory_faults.join import join_fault
from mcp_server.memory_faults.situation import Evidence
from mcp_server.package.view import PackageView, view_package
from mcp_server.runtime.context import stream_events
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.fault_run import read_ranges, read_report
from mcp_server.worker import events
from tests.recorded import RECORDINGS

FAULTS = RECORDINGS / "memory_faults"
PROGRAMS = sorted(path.name for path in FAULTS.iterdir())


def given_to(name: str, *, rows: int | None = None) -> Any:
    """The inputs of a recorded run, with `rows` rows in the first if given."""
    report = FAULTS / name / "report.jsonl"
    leaves = [leaf for event in stream_events(report, events.Given) for leaf in event.leaves]
    if rows is not None:
        leaves[0].shape = [rows, *(leaves[0].shape or ())[1:]]
    return from_leaves([replace(leaf, kind="tensor") for leaf in leaves], None)


def view_of(recording: Path, directory: Path, changes: Mapping[str, str] = {}) -> PackageView:
    """The recorded package, with `changes` to its generated code."""
    for path in recording.glob("model*"):
        shutil.copyfile(path, directory / path.name)
    text = (wrapper := directory / "model.wrapper.cpp").read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    wrapper.write_text(text)
    return view_package(directory)


def joined(
    name: str,
    directory: Path,
    *,
    with_journal: bool = True,
    with_values: bool = True,
    changes: Mapping[str, str] = {},
) -> Fault | None:
    """The first fault of a recorded run, linked with everything that the run left."""
    recording = FAULTS / name
    view = view_of(recording, directory, changes)
    _, found = read_report(recording / "memcheck.txt", "memcheck", view)
    evidence = Evidence(
        journal=read_journal_file(recording / "launches.jsonl") if with_journal else None,
        synchronous=with_journal,
        ranges=read_ranges(stream_events(recording / "report.jsonl", events.Argument)) if with_values else {},
        inputs=given_to(name).tensors,
    )
    return join_fault(view, found[0], evidence) if found else None
