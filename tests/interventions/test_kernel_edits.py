"""Kernels of a real package changed without the source of its model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import anyio
import pytest

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Intervention
from mcp_server.diagnosis.interventions.kernel import edit_kernel, replace_launch
from mcp_server.errors import ProblemError
from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes import changed_kernel as interposing
from tests.interventions.support import offered, the_call, tried
from tests.worker.support import context_in
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

MINUS_INFINITY = "-std::numeric_limits<float>::infinity()"


def kernel_of(package: Path) -> str:
    opened = open_package(package)
    return next(iter(read_wrapper(opened.wrapper_text, opened.kernel_text).kernels))


def replaced(directory: Path, package: Path, given: str, old: str, new: str) -> Intervention:
    async def run() -> Intervention:
        call = the_call(package, package.with_name(given))
        return await edit_kernel(context_in(directory), call, kernel_of(package), old, new)

    return anyio.run(run)


def relaunched(directory: Path, package: Path, given: str, how: str, launch: int = 0) -> Intervention:
    async def run() -> Intervention:
        call = the_call(package, package.with_name(given))
        return await replace_launch(context_in(directory), call, launch, how)

    return anyio.run(run)


def test_a_finite_mask_mends_the_softmax_of_a_masked_row_and_no_other(masked: Path, tmp_path: Path) -> None:
    """By text or by launch; zeros in place of the result are a side effect; the package stays as it was."""
    before = hashlib.sha256(masked.read_bytes()).hexdigest()
    call = the_call(masked, masked.with_name("masked.nan.pt"))
    text = replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "-1e30f")
    launch = relaunched(tmp_path, masked, "masked.nan.pt", "finite-mask")
    zeros = relaunched(tmp_path, masked, "masked.nan.pt", "skip")
    trials = tried(tmp_path, call, [text, launch, zeros])
    assert [trial.effect for trial in trials] == [Effect.GONE] * 3
    assert [offered(trial) for trial in trials] == [True, True, False]
    assert trials[2].side_effects.rows == (0, 1, 3, 4, 5)
    assert trials[0].after.facts is not None and trials[0].after.facts.compared is not None
    assert trials[0].after.facts.compared.outputs[0].rows == (2,)
    assert hashlib.sha256(masked.read_bytes()).hexdigest() == before


def test_a_bounds_guard_lets_the_call_pass_and_changes_the_offending_row_only(
    masked: Path, tmp_path: Path
) -> None:
    """Held against calls in which nothing but the offending id is replaced."""
    call = the_call(masked, masked.with_name("masked.index.pt"))
    guard = relaunched(tmp_path, masked, "masked.index.pt", "guard")
    clamp = inputs.keep_in_range(inputs.Leaf(0, "args[0]"), 0, 11)
    by_input, by_kernel = tried(
        tmp_path,
        call,
        [clamp, Intervention(guard.key, guard.kind, guard.what, (), guard.options, minimal=clamp.minimal)],
    )
    assert offered(by_input) and offered(by_kernel) and by_kernel.side_effects.known
    assert by_input.after.facts is not None and by_kernel.after.facts is not None
    assert [o.checksum for o in by_input.after.facts.outputs] == [
        o.checksum for o in by_kernel.after.facts.outputs
    ]


def test_an_edit_that_does_not_compile_names_the_line(masked: Path, tmp_path: Path) -> None:
    """The compiler's first error, with the line of the package's own kernel.cpp and its code."""
    with pytest.raises(ProblemError, match=r"does not compile: line \d+: .*not declared.*tmpX") as refused:
        replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "tmpX")
    number = int(str(refused.value).partition("line ")[2].partition(":")[0])
    line = open_package(masked).kernel_text.split("\n")[number - 1]
    assert MINUS_INFINITY in line


@thorough
def test_a_library_that_calls_the_kernel_directly_gets_another_wrapper(
    masked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower way gives the same outputs."""
    monkeypatch.setattr(interposing, "calls_through_relocation", lambda _library, _symbol: False)
    slow = replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "-2e30f")
    monkeypatch.undo()
    quick = replaced(tmp_path, masked, "masked.nan.pt", MINUS_INFINITY, "-1e30f")
    call = the_call(masked, masked.with_name("masked.nan.pt"))
    one, other = tried(tmp_path, call, [slow, quick])
    assert offered(one) and offered(other)
    assert one.after.facts is not None and other.after.facts is not None
    assert one.after.facts.outputs[0].checksum == other.after.facts.outputs[0].checksum


def test_what_a_package_cannot_do_is_said(masked: Path, tmp_path: Path) -> None:
    """No such kernel, launch or way; an eager launch needs the exported program."""
    with pytest.raises(ProblemError, match="no such launch"):
        relaunched(tmp_path, masked, "masked.nan.pt", "skip", 99)
    with pytest.raises(ProblemError, match="no such way"):
        relaunched(tmp_path, masked, "masked.nan.pt", "backwards")
    assert "exported program" in relaunched(tmp_path, masked, "masked.nan.pt", "eager").unavailable

    async def unknown() -> None:
        call = the_call(masked, masked.with_name("masked.nan.pt"))
        await edit_kernel(context_in(tmp_path), call, "cpp_nothing", "a", "b")

    with pytest.raises(ProblemError, match="no such kernel"):
        anyio.run(unknown)
