"""A user's Triton kernel that sums in 16 bits or counts masked lanes, on a recorded package for CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes import custom_op
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.model import PackageWorkload, ScriptWorkload, Workload
from tests.diagnosis.support import called, run
from tests.memory_faults.support import recorded

BODY = "tl.store(out + slot * width + col, tl.load(x + row * width + col))"
SUM = "tl.store(out + slot, tl.sum(tl.load(x + row * width + col), 0))"


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


@pytest.mark.parametrize(("dtype", "narrow"), [("fp16", True), ("bf16", True), ("fp32", False)])
def test_a_kernel_that_sums_in_16_bits_is_suspect(tmp_path: Path, dtype: str, narrow: bool) -> None:
    """The signature in the package tells the dtype; nothing is run, so that it is only possible."""
    found = list(custom_op.detect_reductions(narrow_case(tmp_path, dtype)))
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
    case.package = recorded("user_spread", directory).package
    wrapper = directory / "user_spread.wrapper.cpp"
    text = wrapper.read_text()
    assert BODY in text
    wrapper.write_text(text.replace(BODY, MAXIMUM.format(other=other)))
    case.runs["plain"] = run("plain", "", called())
    return case


def test_a_kernel_whose_masked_lanes_count_is_suspect(tmp_path: Path) -> None:
    """One whose masked lanes hold 0 where a maximum is taken, and none with a neutral filler."""
    (found,) = custom_op.detect_reductions(padded_case(tmp_path, "0.0"))
    assert (found.category, found.guilty.kind, found.guilty.name) == (
        "wrong_output",
        "kernel",
        "spread_kernel",
    )
    assert found.fix is not None and "other=float('-inf')" in found.fix.text
    assert "tl.max(" in found.summary and found.weak
    (tmp_path / "sound").mkdir()
    assert list(custom_op.detect_reductions(padded_case(tmp_path / "sound", "float('-inf')"))) == []


def test_a_reference_that_differs_makes_it_the_first_to_suspect(tmp_path: Path) -> None:
    """The numbers are wrong then, and the source says where."""
    case = padded_case(tmp_path, "0.0")
    case.runs["plain"] = run("plain", "", called(), EXPECTED)
    (found,) = custom_op.detect_reductions(case)
    assert not found.weak and confidence(found, case) == "possible"


def test_the_line_in_the_users_script_comes_first(tmp_path: Path) -> None:
    """The load whose filler is wrong, where the kernel is in the script that was given."""
    script = tmp_path / "model.py"
    script.write_text(SCRIPT)
    case = padded_case(tmp_path, "0.0", ScriptWorkload(script=script))
    (found,) = custom_op.detect_reductions(case)
    first = found.guilty.model_locations[0]
    assert (first.file, first.line) == (str(script), 6) and "other=0.0" in first.code
