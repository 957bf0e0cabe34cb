"""A user's Triton kernel whose masked lanes get into its result, on a recorded package for CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.causes import custom_op
from mcp_server.diagnosis.causes.custom_op import padded_launches
from mcp_server.diagnosis.observe.launches import TryPadding
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.model import PackageWorkload, ScriptWorkload, Workload
from mcp_server.tools.reduce.launch import Changed, Variant
from tests.diagnosis.support import called, run
from tests.memory_faults.support import recorded

BODY = "tl.store(out + slot * width + col, tl.load(x + row * width + col))"
SUMMED = "tl.store(out + slot, tl.max(tl.load(x + col, mask=col < width, other={other}), 0))"
EXPECTED = {"event": "compared_expected", "equal": False, "outputs": [{"shape": [[2, 3], [2, 3]]}]}
TRIED = Variant(1, sound=True, changed=Changed("out", by=0.5, reach=2.0))
SCRIPT = f"""import triton

@triton.jit
def spread_kernel(x, slots, out, width: tl.constexpr):
    col, slot = tl.arange(0, width), 0
    {SUMMED.format(other=0.0)}
"""


def case_of(directory: Path, other: str, workload: Workload | None = None) -> DiagnosisState:
    """A call of the recorded package, whose own kernel takes a maximum over lanes that hold `other`."""
    given = workload or PackageWorkload(package=directory, inputs=Path("inputs.pt"))
    case = DiagnosisState(given, call=CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt")))
    case.package = recorded("user_spread", directory).package
    wrapper = directory / "user_spread.wrapper.cpp"
    text = wrapper.read_text()
    assert BODY in text
    wrapper.write_text(text.replace(BODY, SUMMED.format(other=other)))
    case.runs["plain"] = run("plain", "", called())
    return case


def test_such_a_kernel_is_tried_with_neutral_padding(tmp_path: Path) -> None:
    """One whose masked lanes hold 0 where a maximum is taken, and none with a neutral filler."""
    case = case_of(tmp_path, "0.0")
    assert list(padded_launches(case)) == ["spread_kernel"] and TryPadding().gain(case, []) > 0
    (tmp_path / "sound").mkdir()
    sound = case_of(tmp_path / "sound", "float('-inf')")
    assert padded_launches(sound) == {} and TryPadding().gain(sound, []) == 0


def test_a_program_that_ended_well_is_not_doubted(tmp_path: Path) -> None:
    """Its own checks passed: a filler that counts is what it wants."""
    case = case_of(tmp_path, "0.0")
    case.runs["script"] = run("script")
    assert TryPadding().gain(case, []) == 0


def test_a_kernel_that_writes_something_else_with_neutral_padding_is_guilty(tmp_path: Path) -> None:
    """Likely from the package alone; a reference that the call differs from makes it proven."""
    case = case_of(tmp_path, "0.0")
    case.padding["spread_kernel"] = TRIED
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


@pytest.mark.parametrize(
    "tried",
    [
        Variant(1, sound=False),
        Variant(1, sound=True),
        Variant(1, sound=True, failure="exit status 1"),
        Variant(1, sound=True, changed=Changed("out", by=1e-4, reach=2.0)),
    ],
)
def test_padding_that_changes_nothing_is_no_fault(tmp_path: Path, tried: Variant) -> None:
    """No lane was masked in this call, the change was rounding, or the launch could not be made again."""
    case = case_of(tmp_path, "0.0")
    case.padding["spread_kernel"] = tried
    assert list(custom_op.detect_padding(case)) == []


def test_the_line_in_the_users_script_comes_first(tmp_path: Path) -> None:
    """The load whose filler is wrong, where the kernel stands in the script that was given."""
    script = tmp_path / "model.py"
    script.write_text(SCRIPT)
    case = case_of(tmp_path, "0.0", ScriptWorkload(script=script))
    case.padding["spread_kernel"] = TRIED
    (found,) = custom_op.detect_padding(case)
    first = found.guilty.model_locations[0]
    assert (first.file, first.line) == (str(script), 6) and "other=0.0" in first.code
