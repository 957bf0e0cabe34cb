"""A user's Triton kernel that sums in 16 bits or counts masked lanes, on a recorded package for CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import custom_op
from mcp_server.diagnosis.causes.custom_op import narrow_launches, padded_launches
from mcp_server.diagnosis.components import users_code
from mcp_server.diagnosis.next_steps import command_for
from mcp_server.diagnosis.observe.launches import TryPadding, TryWider
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.model import PackageWorkload, ScriptWorkload, Workload
from mcp_server.tools.reduce.launch import Changed, Variant
from tests.diagnosis.support import called, run
from tests.memory_faults.support import recorded

BODY = "tl.store(out + slot * width + col, tl.load(x + row * width + col))"
SUM = "tl.store(out + slot, tl.sum(tl.load(x + row * width + col), 0))"
WIDER = Variant(1, changed=Changed("out", by=3.0, reach=2.0))


def narrow_case(directory: Path, dtype: str = "fp16", workload: Workload | None = None) -> DiagnosisState:
    """A call of the recorded package, whose own kernel sums values of `dtype`."""
    given = workload or PackageWorkload(package=directory, inputs=Path("inputs.pt"))
    case = DiagnosisState(given, call=CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt")))
    case.package = recorded("user_spread", directory).package
    wrapper = directory / "user_spread.wrapper.cpp"
    text = wrapper.read_text()
    assert BODY in text and "{'x': '*fp32'" in text
    wrapper.write_text(text.replace(BODY, SUM).replace("{'x': '*fp32'", f"{{'x': '*{dtype}'"))
    case.runs["plain"] = run("plain", "", called())
    return case


@pytest.mark.parametrize(("dtype", "tried"), [("fp16", True), ("bf16", True), ("fp32", False)])
def test_a_kernel_that_sums_in_16_bits_is_tried_in_float32(tmp_path: Path, dtype: str, tried: bool) -> None:
    """The signature in the package tells the dtype; a wide kernel costs no run."""
    case = narrow_case(tmp_path, dtype)
    assert list(narrow_launches(case)) == (["spread_kernel"] if tried else [])
    assert (TryWider().gain(case, []) > 0) == tried


def test_a_program_that_ended_well_is_not_tried_in_float32(tmp_path: Path) -> None:
    """Its own checks passed."""
    case = narrow_case(tmp_path)
    case.runs["script"] = run("script")
    assert TryWider().gain(case, []) == 0


def test_a_kernel_that_writes_something_else_in_float32_is_guilty(tmp_path: Path) -> None:
    """Likely from the package alone, at the sum; the launch can be made again by a command."""
    case = narrow_case(tmp_path)
    case.widened["spread_kernel"] = WIDER
    (found,) = custom_op.detect_narrow(case)
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "wrong_output",
        "kernel",
        "spread_kernel",
    )
    assert "tl.sum(" in found.summary and confidence(found, case) == "likely"
    assert "--launch 1" in command_for("try_wider", case)


@pytest.mark.parametrize("tried", [Variant(1), Variant(1, changed=Changed("out", by=0.02, reach=2.0))])
def test_rounding_is_no_fault(tmp_path: Path, tried: Variant) -> None:
    """A per cent of the largest value, nothing, or a launch that could not be made again."""
    case = narrow_case(tmp_path)
    case.widened["spread_kernel"] = tried
    assert list(custom_op.detect_narrow(case)) == []


def test_the_line_of_the_sum_in_the_users_script_comes_first(tmp_path: Path) -> None:
    """The sum, where the kernel stands in the script that was given."""
    script = tmp_path / "model.py"
    script.write_text(f"@triton.jit\ndef spread_kernel(x, slots, out, width: tl.constexpr):\n    {SUM}\n")
    case = narrow_case(tmp_path, workload=ScriptWorkload(script=script))
    case.widened["spread_kernel"] = WIDER
    (found,) = custom_op.detect_narrow(case)
    first = found.guilty.model_locations[0]
    assert (first.file, first.line) == (str(script), 3) and "tl.sum(" in first.code


def test_the_users_kernels_are_in_the_exported_program_too(tmp_path: Path) -> None:
    """So that an agreement with it clears nothing of what they compute."""
    assert users_code(narrow_case(tmp_path)) == ["spread_kernel"]


MAXIMUM = "tl.store(out + slot, tl.max(tl.load(x + col, mask=col < width, other={other}), 0))"
EXPECTED = {"event": "compared_expected", "equal": False, "outputs": [{"shape": [[2, 3], [2, 3]]}]}
NEUTRAL = Variant(1, changed=Changed("out", by=0.5, reach=2.0))
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
    case.package = recorded("user_spread", directory).package
    wrapper = directory / "user_spread.wrapper.cpp"
    text = wrapper.read_text()
    assert BODY in text
    wrapper.write_text(text.replace(BODY, MAXIMUM.format(other=other)))
    case.runs["plain"] = run("plain", "", called())
    return case


def test_such_a_kernel_is_tried_with_neutral_padding(tmp_path: Path) -> None:
    """One whose masked lanes hold 0 where a maximum is taken, and none with a neutral filler."""
    case = padded_case(tmp_path, "0.0")
    assert list(padded_launches(case)) == ["spread_kernel"] and TryPadding().gain(case, []) > 0
    (tmp_path / "sound").mkdir()
    sound = padded_case(tmp_path / "sound", "float('-inf')")
    assert padded_launches(sound) == {} and TryPadding().gain(sound, []) == 0


def test_a_program_that_ended_well_is_not_doubted(tmp_path: Path) -> None:
    """Its own checks passed: a filler that counts is what it wants."""
    case = padded_case(tmp_path, "0.0")
    case.runs["script"] = run("script")
    assert TryPadding().gain(case, []) == 0


def test_a_kernel_that_writes_something_else_with_neutral_padding_is_guilty(tmp_path: Path) -> None:
    """Likely from the package alone; a reference that the call differs from makes it proven."""
    case = padded_case(tmp_path, "0.0")
    case.padding["spread_kernel"] = NEUTRAL
    (found,) = custom_op.detect_padding(case)
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "wrong_output",
        "kernel",
        "spread_kernel",
    )
    assert found.fix is not None and "other=float('-inf')" in found.fix.action
    assert "tl.max(" in found.summary and confidence(found, case) == "likely"
    case.runs["plain"] = run("plain", "", called(), EXPECTED)
    assert [confidence(seen, case) for seen in custom_op.detect_padding(case)] == ["likely"]


@pytest.mark.parametrize("tried", [Variant(1), Variant(1, changed=Changed("out", by=1e-4, reach=2.0))])
def test_padding_that_changes_nothing_is_no_fault(tmp_path: Path, tried: Variant) -> None:
    """No lane was masked in this call, the change was rounding, or the launch could not be made again."""
    case = padded_case(tmp_path, "0.0")
    case.padding["spread_kernel"] = tried
    assert list(custom_op.detect_padding(case)) == []


def test_the_line_in_the_users_script_comes_first(tmp_path: Path) -> None:
    """The load whose filler is wrong, where the kernel stands in the script that was given."""
    script = tmp_path / "model.py"
    script.write_text(SCRIPT)
    case = padded_case(tmp_path, "0.0", ScriptWorkload(script=script))
    case.padding["spread_kernel"] = NEUTRAL
    (found,) = custom_op.detect_padding(case)
    first = found.guilty.model_locations[0]
    assert (first.file, first.line) == (str(script), 6) and "other=0.0" in first.code
