"""A defect that a kernel's code shows, as a cause: when it may explain a failure, and what proves it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes.illegal_memory_access import detect_kernel_defect
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind
from mcp_server.diagnosis.observe.kernels import MendKernels, ReadKernels
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel
from mcp_server.diagnosis.verdict import bystanders, confidence, is_bystander
from mcp_server.runtime.context import stream_events
from mcp_server.tools.check_devices import from_leaves
from mcp_server.tools.locate_fault import LocatedFault
from mcp_server.worker.events import Given
from tests.diagnosis.support import run, trial
from tests.memory_faults.support import FAULTS, joined, view_of
from tests.worker.support import context_in

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
REFUSED = "RuntimeError: CUDA driver error: invalid argument"
OWN_CHECK = "ValueError: books do not balance"


def wide(directory: Path, text: str, *, rows: int | None = None) -> DiagnosisState:
    """The recorded call of 66,000 rows, or of others, of a kernel with an index of 32 bits; it ended so."""
    case = DiagnosisState(None)
    view = view_of(FAULTS / "int32_overflow", directory)
    case.parsed, case.package = view, view.package
    leaves = [
        leaf
        for event in stream_events(FAULTS / "int32_overflow" / "report.jsonl", Given)
        for leaf in event.leaves
    ]
    if rows is not None:
        leaves[0].shape = [rows, *(leaves[0].shape or ())[1:]]
    case.given = from_leaves([replace(leaf, kind="tensor") for leaf in leaves], None)
    case.call = CallSpec("run", {}, directory, None)
    case.runs["plain"] = run("plain", text)
    return case


def read(case: DiagnosisState, directory: Path) -> DiagnosisState:
    anyio.run(partial(ReadKernels().act, case, context_in(directory)))
    return case


@pytest.mark.parametrize(
    ("text", "looked", "category"),
    [
        (ILLEGAL, True, "illegal_memory_access"),
        (REFUSED, True, None),  # which a grid would explain
        (OWN_CHECK, False, None),
        ("", False, None),
    ],
)
def test_a_defect_explains_failures_of_its_kind_alone(
    tmp_path: Path, text: str, looked: bool, category: str | None
) -> None:
    """Nothing is read for a healthy call, or for one that fails of something else."""
    case = wide(tmp_path, text)
    assert (ReadKernels().gain(case, []) > 0) == looked
    found = list(detect_kernel_defect(read(case, tmp_path)))
    assert [each.category for each in found] == ([category] if category else [])


def test_a_defect_is_possible_and_one_that_was_located_likely(tmp_path: Path) -> None:
    """The address that memcheck saw lies 2**32 elements from the argument that the code is wrong for."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    (alone,) = detect_kernel_defect(case)
    assert confidence(alone, case) == "possible" and alone.guilty.name == "wide_kernel"
    assert alone.guilty.generated_location == "wrapper.cpp:213" and "66,000" not in alone.summary
    directory = tmp_path / "joined"
    directory.mkdir()
    fault = joined("int32_overflow", directory)
    case.located = LocatedFault.model_construct(fault=fault)
    (located,) = detect_kernel_defect(case)
    assert confidence(located, case) == "likely" and located.key == alone.key
    assert "2**32 elements" in located.evidence[1].fact and located.level is CausalLevel.FAULT_SITE


@pytest.mark.parametrize("effect", [Effect.GONE, Effect.SAME])
def test_the_call_without_the_defect_decides(tmp_path: Path, effect: Effect) -> None:
    """Proven where the failure goes with it; else a bystander, which clears nothing else in that launch."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    (before,) = detect_kernel_defect(case)
    change = Intervention(
        key="kernel:wide_kernel_0:overflow", kind=Kind.KERNEL, what="the call with it repaired"
    )
    assert case.kernel_defects is not None
    case.kernel_defects = dict.fromkeys(case.kernel_defects, change)
    case.trials[change.key] = trial(change, effect)
    (after,) = detect_kernel_defect(case)
    assert (confidence(after, case) == "proven") == (effect is Effect.GONE)
    assert is_bystander(after, case) == (after.key != before.key) == (effect is Effect.SAME)
    assert bool(bystanders([after], case)) == (effect is Effect.SAME)


def test_a_kernel_that_cannot_be_compiled_here_stays_possible(tmp_path: Path) -> None:
    """The recording has no package and this machine no GPU: a note says why nothing was tried."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    case.call = CallSpec("run", {"package": str(tmp_path)}, tmp_path, None)
    assert MendKernels().gain(case, []) > 0
    anyio.run(partial(MendKernels().act, case, context_in(tmp_path)))
    (found,) = detect_kernel_defect(case)
    assert found.intervention is None and "eager" in found.settle
    assert any("It was not repaired" in note for note in case.notes)
