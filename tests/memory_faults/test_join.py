"""The join of a memory fault with its launch, element and line, on recorded runs of a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.memory_faults.support import FAULTS, PROGRAMS, joined

# Recordings of one H200 (torch 2.11): programs with a known fault, or none.


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


@pytest.mark.parametrize(("name", "row"), [("read_far", 500_000_000), ("read_negative", -2)])
@pytest.mark.parametrize(("seen", "blame"), [(True, ("input", "likely")), (False, ("kernel", "possible"))])
def test_values_that_nobody_saw_are_not_claimed(
    name: str, row: int, seen: bool, blame: tuple[str, str], tmp_path: Path
) -> None:
    """A row far outside of the table: only the ids that the launch read tell that they asked for it."""
    fault = joined(name, tmp_path, with_values=seen)
    assert fault is not None and fault.missed is not None and fault.blame is not None
    assert (fault.missed.variable, fault.missed.index, fault.missed.certain) == ("table", [row, 0], True)
    assert (fault.blame.kind, fault.blame.confidence) == blame
    assert (fault.parts[0].limit, fault.parts[0].beyond) == (64, True if seen else None)


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
