"""The join of a memory fault with its launch, element and line, on recorded runs of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_server.logs.crash_reports import Access
from mcp_server.logs.journal import Journal, TensorFacts
from mcp_server.memory_faults import Fault
from mcp_server.memory_faults.join import join_fault
from mcp_server.memory_faults.situation import Evidence, ValueRange
from tests.memory_faults.support import (
    BASE,
    FAULTS,
    PROGRAMS,
    given,
    joined,
    journal,
    launch,
    line_of,
    recorded,
    tensor,
)

# The join on recorded wrappers of torch 2.11 (CUDA), with journals and host frames of instrumented runs.

ERROR = "cudaErrorLaunchFailure: unspecified launch failure"
TABLE = tensor(BASE, (64, 16))
IDS = tensor(BASE + 0x10_0000, (8,), "int64")
OUT = tensor(BASE + 0x20_0000, (8, 16))


def lookups(table: TensorFacts = TABLE, ids: TensorFacts = IDS) -> Journal:
    """A call that ended at its lookup."""
    arguments = (given("table", "table", "read", table), given("arg6_1", "ids", "read", ids))
    return journal(
        launch(0, "lookup_kernel_0", *arguments, given("buf0", "out", "written", OUT), fault=ERROR)
    )


def lookup(tmp_path: Path, seen: Journal | None, address: int | None, ranges: object = None) -> Fault:
    view = recorded("user_lookup", tmp_path)
    access = Access(
        "memcheck",
        "invalid_access",
        "Invalid __global__ read of size 4 bytes",
        "lookup_kernel",
        "hash.py",
        line_of(view, "lookup_kernel", "tl.store("),
        "read",
        4,
        address,
    )
    values = ranges if isinstance(ranges, dict) else {}
    return join_fault(view, access, Evidence(seen, seen is not None, values))


FAR_ROW = 500_000_000
FAR, NEXT = BASE + FAR_ROW * 64, BASE + 64 * 64


@pytest.mark.parametrize(
    ("address", "ids", "missed", "blame", "beyond"),
    [
        # Row FAR_ROW of 64: the kernel only did what its ids asked for.
        (
            FAR,
            (0, 500_000_000),
            ("after", 499_999_936 * 64, [500_000_000, 0]),
            ("input", True, "likely"),
            True,
        ),
        # All ids are in range, so the address is the kernel's own doing.
        (NEXT, (0, 63), ("after", 0, [64, 0]), ("kernel", False, "likely"), False),
        # Values that nobody saw are not claimed.
        (NEXT, None, ("after", 0, [64, 0]), ("kernel", False, "possible"), None),
    ],
)
def test_an_index_into_a_table(
    tmp_path: Path,
    address: int,
    ids: tuple[int, int] | None,
    missed: tuple[str, int, list[int]],
    blame: tuple[str, bool | None, str],
    beyond: bool | None,
) -> None:
    """The line also stores to `out`: a read means the table."""
    fault = lookup(tmp_path, lookups(), address, {(0, "arg6_1"): ValueRange(*ids)} if ids else {})
    assert fault.access == "tl.load(table + index * width + col)"
    assert fault.missed is not None and fault.blame is not None
    assert fault.missed.variable == "table" and fault.missed.certain
    assert (fault.missed.side, fault.missed.bytes_outside, fault.missed.index) == missed
    assert (fault.blame.kind, fault.blame.received, fault.blame.confidence) == blame
    assert (fault.parts[0].limit, fault.parts[0].beyond) == (64, beyond)
    assert ("fits" in fault.blame.reasons[0]) == (beyond is False)


def shift(tmp_path: Path, evidence: Evidence, line: int | None = None) -> Fault:
    view = recorded("user_shift", tmp_path)
    at = line_of(view, "shift_kernel", "tl.store(") if line is None else line
    access = Access(
        "memcheck", "invalid_access", "", "shift_kernel", "h.py", at, "read", 4, BASE + 4 * 56_000_000
    )
    return join_fault(view, access, evidence)


def test_without_a_journal_all_launches_of_the_kernel_stay_candidates(tmp_path: Path) -> None:
    """Nothing separates the three launches, and the fault says so."""
    fault = shift(tmp_path, Evidence())
    assert fault.launch is not None
    assert fault.launch.candidates == [0, 2, 4]
    assert not fault.launch.certain
    assert any("which launch" in text for text in fault.unknown)


def test_tool_and_journal_that_disagree_are_not_certain(tmp_path: Path) -> None:
    """The tool's kernel was launched before the one at which the journal ends: its last launch is taken."""
    seen = journal(launch(3, "triton_poi_fused_sin_0", fault=ERROR))
    fault = shift(tmp_path, Evidence(seen, True))
    assert fault.launch is not None
    assert (fault.launch.index, fault.launch.certain) == (2, False)


# Which element of a tensor an offset is.


# The join on recordings of one H200 (torch 2.11): programs with a known fault, or none.


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
    ("name", "side", "outside", "category"),
    [
        ("read_negative", "before", 128, "index_out_of_bounds"),
        ("int32_overflow", "before", 2_140_700_672, "illegal_memory_access"),
        ("empty_tensor", "empty", None, "illegal_memory_access"),
        ("host_tensor", "host", None, "device_mismatch"),
    ],
)
def test_side_and_distance(name: str, side: str, outside: int | None, category: str, tmp_path: Path) -> None:
    """As computed by hand from the recorded pointers and addresses."""
    fault = joined(name, tmp_path)
    assert fault is not None and fault.missed is not None and fault.blame is not None
    assert (fault.missed.side, fault.missed.bytes_outside) == (side, outside)
    assert fault.blame.category == category and (fault.masked is False or name != "empty_tensor")


@pytest.mark.parametrize(
    ("name", "mask", "guilty"),
    [
        ("read_negative", "index < 512", "kernel"),
        ("read_negative", "512 > index", "kernel"),
        ("read_negative", "(index >= 0) & (index < 512)", "input"),
        ("read_negative", "col < width", "input"),
        ("read_far", "index >= 0", "kernel"),
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
