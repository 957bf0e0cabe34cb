"""Defects that kernels show in their code: generated ones, and a user's own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel
from mcp_server.diagnosis.verdict import bystanders, confidence, is_bystander
from mcp_server.model import PackageWorkload, ScriptWorkload, Workload
from mcp_server.tools.locate_fault import LocatedFault
from tests.diagnosis.support import by, called, look, run, trial
from tests.memory_faults.support import FAULTS, given_to, joined, recorded, view_of
from tests.worker.support import context_in

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
REFUSED = "RuntimeError: CUDA driver error: invalid argument"
OWN_CHECK = "ValueError: books do not balance"


def wide(directory: Path, text: str, *, rows: int | None = None) -> DiagnosisState:
    """The recorded call of 66,000 rows, or of others, of a kernel with an index of 32 bits; it ended so."""
    case = DiagnosisState(None)
    view = view_of(FAULTS / "int32_overflow", directory)
    case.parsed, case.package = view, view.package
    case.given = given_to("int32_overflow", rows=rows)
    case.call = CallSpec("run", {}, directory, None)
    case.runs["plain"] = run("plain", text)
    return case


def read(case: DiagnosisState, directory: Path) -> DiagnosisState:
    anyio.run(partial(look("read_kernels").act, case, context_in(directory)))
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
    assert (look("read_kernels").gain(case, []) > 0) == looked
    found = by("illegal_memory_access.detect_kernel_defect", read(case, tmp_path))
    assert [each.category for each in found] == ([category] if category else [])


def test_a_defect_is_possible_and_one_that_was_located_likely(tmp_path: Path) -> None:
    """The address that memcheck saw lies 2**32 elements from the argument that the code is wrong for."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    (alone,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert confidence(alone, case) == "possible" and alone.guilty.name == "wide_kernel"
    assert alone.guilty.generated_location == "wrapper.cpp:213" and "66,000" not in alone.summary
    directory = tmp_path / "joined"
    directory.mkdir()
    fault = joined("int32_overflow", directory)
    case.located = LocatedFault.model_construct(fault=fault)
    (located,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert confidence(located, case) == "likely" and located.key == alone.key
    assert "2**32 elements" in located.evidence[1].fact and located.level is CausalLevel.FAULT_SITE


@pytest.mark.parametrize("effect", [Effect.GONE, Effect.SAME])
def test_the_call_without_the_defect_decides(tmp_path: Path, effect: Effect) -> None:
    """Proven where the failure goes with it; else a bystander, which clears nothing else in that launch."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    (before,) = by("illegal_memory_access.detect_kernel_defect", case)
    change = Intervention(
        key="kernel:wide_kernel_0:overflow", kind=Kind.KERNEL, what="the call with it repaired"
    )
    assert case.kernel_defects is not None
    case.kernel_defects = dict.fromkeys(case.kernel_defects, change)
    case.trials[change.key] = trial(change, effect)
    (after,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert (confidence(after, case) == "proven") == (effect is Effect.GONE)
    assert is_bystander(after, case) == (after.key != before.key) == (effect is Effect.SAME)
    assert bool(bystanders([after], case)) == (effect is Effect.SAME)


def test_a_kernel_that_cannot_be_compiled_here_stays_possible(tmp_path: Path) -> None:
    """The recording has no package and this machine no GPU: a note says why nothing was tried."""
    case = read(wide(tmp_path, ILLEGAL), tmp_path)
    case.call = CallSpec("run", {"package": str(tmp_path)}, tmp_path, None)
    assert look("mend_kernels").gain(case, []) > 0
    anyio.run(partial(look("mend_kernels").act, case, context_in(tmp_path)))
    (found,) = by("illegal_memory_access.detect_kernel_defect", case)
    assert found.intervention is None and "eager" in found.settle
    assert any("It was not repaired" in note for note in case.notes)


BODY = "tl.store(out + slot * width + col, tl.load(x + row * width + col))"
SUM = "tl.store(out + slot, tl.sum(tl.load(x + row * width + col), 0))"


def narrow_case(directory: Path, dtype: str = "fp16", workload: Workload | None = None) -> DiagnosisState:
    """A call of the recorded package, whose own kernel sums values of `dtype`."""
    given = workload or PackageWorkload(package=directory, inputs=Path("inputs.pt"))
    case = DiagnosisState(given, call=CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt")))
    changes = {BODY: SUM, "{'x': '*fp32'": f"{{'x': '*{dtype}'"}
    case.package = recorded("user_spread", directory, changes).package
    case.runs["plain"] = run("plain", "", called())
    return case


@pytest.mark.parametrize(("dtype", "narrow"), [("fp16", True), ("bf16", True), ("fp32", False)])
def test_a_kernel_that_sums_in_16_bits_is_suspect(tmp_path: Path, dtype: str, narrow: bool) -> None:
    """The signature in the package tells the dtype; nothing is run, so that it is only possible."""
    found = by("custom_op.detect_reductions", narrow_case(tmp_path, dtype))
    assert [each.guilty.name for each in found] == (["spread_kernel"] if narrow else [])
    for each in found:
        assert each.category == "wrong_output" and "tl.sum(" in each.summary and not each.observed


MAXIMUM = "tl.store(out + slot, tl.max(tl.load(x + col, mask=col < width, other={other}), 0))"
EXPECTED = {"event": "compared_expected", "equal": False, "outputs": [{"output": 0, "elements": 6}]}
SCRIPT = f"""import triton

@triton.jit
def spread_kernel(x, slots, out, width: tl.constexpr):
    col, slot = tl.arange(0, width), 0
    {MAXIMUM.format(other=0.0)}
"""


def padded_case(directory: Path, other: str, workload: Workload | None = None) -> DiagnosisState:
    """A call of the recorded package, whose own kernel takes a maximum over lanes that hold `other`."""
    given = workload or PackageWorkload(package=directory, inputs=Path("inputs.pt"))
    case = DiagnosisState(given, call=CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt")))
    changes = {BODY: MAXIMUM.format(other=other)}
    case.package = recorded("user_spread", directory, changes).package
    case.runs["plain"] = run("plain", "", called())
    return case


def test_a_kernel_whose_masked_lanes_count_is_suspect(tmp_path: Path) -> None:
    """One whose masked lanes hold 0 where a maximum is taken, and none with a neutral filler."""
    (found,) = by("custom_op.detect_reductions", padded_case(tmp_path, "0.0"))
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "wrong_output",
        "kernel",
        "spread_kernel",
    )
    assert found.fix is not None and "other=float('-inf')" in found.fix.text
    assert "tl.max(" in found.summary and found.weak
    (tmp_path / "sound").mkdir()
    assert list(by("custom_op.detect_reductions", padded_case(tmp_path / "sound", "float('-inf')"))) == []


def test_a_reference_that_differs_makes_it_the_first_to_suspect(tmp_path: Path) -> None:
    """The numbers are wrong then, and the source says where."""
    case = padded_case(tmp_path, "0.0")
    case.runs["plain"] = run("plain", "", called(), EXPECTED)
    (found,) = by("custom_op.detect_reductions", case)
    assert not found.weak and confidence(found, case) == "possible"


def test_the_line_in_the_users_script_comes_first(tmp_path: Path) -> None:
    """The load whose filler is wrong, where the kernel is in the script that was given."""
    script = tmp_path / "model.py"
    script.write_text(SCRIPT)
    case = padded_case(tmp_path, "0.0", ScriptWorkload(script=script))
    (found,) = by("custom_op.detect_reductions", case)
    first = found.guilty.model_locations[0]
    assert (first.file, first.line) == (str(script), 6) and "other=0.0" in first.code
