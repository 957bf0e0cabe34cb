"""The join on recordings of one H200 (torch 2.11): 28 programs with a known fault, or none."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.logs.journal import read_journal_file
from mcp_server.memory_faults.join import join_fault
from mcp_server.memory_faults.records import Fault
from mcp_server.memory_faults.situation import Evidence
from mcp_server.package.archive import Package
from mcp_server.package.members import FLAT_MODEL, DirectoryContainer, flat_model
from mcp_server.package.view import PackageView
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.context import stream_events
from mcp_server.tools.fault_methods import read_report
from mcp_server.tools.fault_run import read_ranges
from mcp_server.worker.events import Argument, Given
from tests.recorded import RECORDINGS

FAULTS = RECORDINGS / "memory_faults"
PROGRAMS = sorted(path.name for path in FAULTS.iterdir())


def view_of(recording: Path, directory: Path, old: str = "", new: str = "") -> PackageView:
    """The recorded package; with `old` made `new` in its generated code, which keeps its lines."""
    for path in recording.glob("model*"):
        shutil.copyfile(path, directory / path.name)
    if old:
        path = directory / "model.wrapper.cpp"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    container = DirectoryContainer(directory, recursive=False)
    models = flat_model(container)
    return PackageView(Package(directory, container, tuple(models), models[FLAT_MODEL]))


def joined(
    name: str, directory: Path, *, with_journal: bool = True, old: str = "", new: str = ""
) -> Fault | None:
    """The first fault of a recorded run, joined with everything that the run left."""
    recording = FAULTS / name
    view = view_of(recording, directory, old, new)
    _, found = read_report(recording / "memcheck.txt", "memcheck", view)
    leaves = [leaf for event in stream_events(recording / "report.jsonl", Given) for leaf in event.leaves]
    evidence = Evidence(
        journal=read_journal_file(recording / "launches.jsonl") if with_journal else None,
        synchronous=with_journal,
        ranges=read_ranges(stream_events(recording / "report.jsonl", Argument)),
        inputs=from_leaves([replace(leaf, kind="tensor") for leaf in leaves], None).tensors,
    )
    return join_fault(view, found[0], evidence) if found else None


def truth(name: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((FAULTS / name / "truth.json").read_text())
    return known


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_fault_is_joined_as_it_was_made(name: str, tmp_path: Path) -> None:
    """Kernel, argument and guilty party are those that the program was written with."""
    known, fault = truth(name), joined(name, tmp_path)
    assert (fault is not None) == known["fault"]
    if fault is None:
        return
    assert known["kernel"] in fault.kernel
    assert fault.launch is not None and fault.blame is not None
    if known["argument"]:
        assert fault.missed is not None
        assert fault.missed.variable.startswith(known["argument"])
    if known["guilty"]:
        assert fault.blame.kind in known["guilty"]
    if known["input_index"] is not None:
        assert fault.blame.input_index == known["input_index"]


@pytest.mark.parametrize("name", [n for n in PROGRAMS if truth(n)["fault"]])
def test_without_a_journal_nothing_is_measured(name: str, tmp_path: Path) -> None:
    """A package that could not be rebuilt: no side, no distance, and the reader is told."""
    fault = joined(name, tmp_path, with_journal=False)
    assert fault is not None
    assert fault.missed is None or fault.missed.bytes_outside is None
    assert fault.unknown


@pytest.mark.parametrize(
    ("name", "side", "outside"),
    [
        ("write_adjacent", "after", 0),
        ("write_before", "before", 128),
        ("read_negative", "before", 128),
        ("upstream", "after", 152_448),
        ("int32_overflow", "before", 2_140_700_672),
        ("empty_tensor", "empty", None),
        ("host_tensor", "host", None),
    ],
)
def test_side_and_distance(name: str, side: str, outside: int | None, tmp_path: Path) -> None:
    """As computed by hand from the recorded pointers and addresses."""
    fault = joined(name, tmp_path)
    assert fault is not None and fault.missed is not None
    assert (fault.missed.side, fault.missed.bytes_outside) == (side, outside)


@pytest.mark.parametrize(
    ("name", "mask", "guilty"),
    [
        ("read_negative", "index < 512", "kernel"),
        ("read_negative", "(col < width) & (index < 512)", "kernel"),
        ("read_negative", "512 > index", "kernel"),
        ("read_negative", "index >= 0", "input"),
        ("read_negative", "(index >= 0) & (index < 512)", "input"),
        ("read_negative", "col < width", "input"),
        ("read_far", "index >= 0", "kernel"),
        ("read_far", "index < 512", "input"),
    ],
)
def test_a_mask_that_bounds_the_other_side_only_is_the_kernels(
    name: str, mask: str, guilty: str, tmp_path: Path
) -> None:
    """An index that a user's kernel masks on one side may be anything; one that it leaves alone may not."""
    load = "tl.load(table + index * width + col"
    fault = joined(name, tmp_path, old=f"{load})", new=f"{load}, {mask})")
    assert fault is not None and fault.blame is not None
    assert fault.blame.kind == guilty
    if guilty == "kernel":
        assert (fault.blame.name, fault.blame.category) == ("lookup_kernel", "illegal_memory_access")
        assert mask in fault.blame.reasons[0] and fault.blame.confidence == "likely"


def test_uninitialised_memory_blames_who_was_to_write_it(tmp_path: Path) -> None:
    """initcheck names the reader; the join names the kernel that left half of the buffer unwritten."""
    fault = joined("uninitialised", tmp_path)
    assert fault is not None and fault.blame is not None
    assert (fault.blame.kind, fault.blame.name) == ("upstream_kernel", "half_kernel")
