"""Custom operators beside what their fake functions promise."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mcp_server.runtime.context import read_events, stream_events
from mcp_server.worker.capture.events import Overrun
from mcp_server.worker.events import Operator
from mcp_server.worker.interpret import Operators
from mcp_server.worker.report import Report

SPACE = "aotipromises"


LIBRARY = torch.library.Library(SPACE, "FRAGMENT")


def filled(x: torch.Tensor, first: int, beyond: int) -> torch.Tensor:
    """Zeros, written as native code does: from `first` bytes on, to `beyond` bytes past the end."""
    ctypes.memset(x.data_ptr() + first, 0, x.numel() * x.element_size() - first + beyond)
    return x


IMPLEMENTED: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "turned": ("Tensor x", lambda x: x.t().contiguous().t()),
    "widened": ("Tensor x", lambda x: (x * 2).double()),
    "shortened": ("Tensor x", lambda x: x[1:].clone()),
    "kept": ("Tensor x", lambda x: x * 3),
    "sized": ("Tensor x", lambda x: x[x > 0].clone()),
    "unfaked": ("Tensor x", lambda x: x.clone()),
    "writes": ("Tensor x", lambda x: x.mul_(2).clone()),
    "returns": ("Tensor x", lambda x: x),
    "declared": ("Tensor(a!) x", lambda x: x.mul_(2).clone()),
    "beyond": ("Tensor x", lambda x: filled(torch.empty_like(x), -8, 8)),
    "within": ("Tensor x", lambda x: filled(torch.empty_like(x), 0, 0)),
}


def decorated(x: torch.Tensor) -> torch.Tensor:
    return filled(torch.empty_like(x), -8, 8)


torch.library.custom_op(f"{SPACE}::decorated", decorated, mutates_args=()).register_fake(torch.empty_like)


def sized(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


for name, (argument, function) in IMPLEMENTED.items():
    LIBRARY.define(f"{name}({argument}) -> Tensor")
    LIBRARY.impl(name, function, "CPU")
    if name != "unfaked":
        fake = sized if name == "sized" else torch.empty_like
        torch.library.register_fake(f"{SPACE}::{name}", fake, lib=LIBRARY)


def under(directory: Path, name: str, repair: bool) -> tuple[torch.Tensor, list[Operator]]:
    """The result of an operator on ones of shape [3, 4], and the worker's events."""
    report = directory / "report.jsonl"
    with Operators(Report(str(report)), repair):
        result = getattr(getattr(torch.ops, SPACE), name)(torch.ones(3, 4))
    return result, list(stream_events(report, Operator))


LAYOUTS = [("turned", "stride", [4, 1], [1, 3]), ("widened", "dtype", "torch.float32", "torch.float64")]
LAYOUTS.append(("shortened", "shape", [3, 4], [2, 4]))


@pytest.mark.parametrize(("name", "what", "promised", "returned"), LAYOUTS)
def test_a_layout_that_was_not_promised(
    tmp_path: Path, name: str, what: str, promised: object, returned: object
) -> None:
    """Stride, dtype and shape are told as the fake function and as the operator have them."""
    _, (event,) = under(tmp_path, name, repair=False)
    (pair,) = event.layouts
    assert event.op == f"{SPACE}.{name}.default"
    assert (getattr(pair.promised, what), getattr(pair.returned, what)) == (promised, returned)


@pytest.mark.parametrize(("name", "repair"), [("beyond", False), ("beyond", True), ("decorated", False)])
def test_what_an_operator_writes_beyond_what_it_allocated(tmp_path: Path, name: str, repair: bool) -> None:
    """It is told with its extent, does no harm, and what stays within is not told."""
    result, (event,) = under(tmp_path, name, repair=repair)
    assert event.overrun == [Overrun([3, 4], "torch.float32", 8, 8)]
    assert torch.equal(result, torch.zeros(3, 4))
    assert torch.equal(under(tmp_path, "within", repair=repair)[0], torch.zeros(3, 4))
    assert len(list(read_events(tmp_path / "report.jsonl"))) == 1


REPAIRED = [("turned", torch.ones(3, 4)), ("widened", torch.full((3, 4), 2.0))]
REPAIRED.append(("shortened", torch.cat([torch.ones(2, 4), torch.zeros(1, 4)])))


@pytest.mark.parametrize(("name", "wanted"), REPAIRED)
def test_a_repaired_result_is_as_promised(tmp_path: Path, name: str, wanted: torch.Tensor) -> None:
    """The values in the promised layout; what the operator did not make is zero."""
    result, _ = under(tmp_path, name, repair=True)
    assert result.stride() == (4, 1) and result.dtype == torch.float32
    assert torch.equal(result, wanted)


@pytest.mark.parametrize("name", ["kept", "sized", "declared"])
def test_an_operator_that_keeps_its_promises(tmp_path: Path, name: str) -> None:
    """Nothing is told of a right operator, of a size that the data makes, and of a declared mutation."""
    assert under(tmp_path, name, repair=False)[1] == []


def test_an_operator_without_a_fake_function(tmp_path: Path) -> None:
    """It is told that nothing is promised, and the result is the operator's."""
    result, told = under(tmp_path, "unfaked", repair=True)
    (event,) = read_events(tmp_path / "report.jsonl")
    assert (event.event, told) == ("no_fake", []) and torch.equal(result, torch.ones(3, 4))


@pytest.mark.parametrize(("name", "broken"), [("writes", "mutated"), ("returns", "aliases")])
def test_an_argument_that_is_written_or_returned(tmp_path: Path, name: str, broken: str) -> None:
    """An argument that the schema does not allow to be written, or to be returned, is named."""
    _, (event,) = under(tmp_path, name, repair=False)
    assert getattr(event, broken) == ["x"] and not event.layouts


def test_torchs_own_operators_are_let_through(tmp_path: Path) -> None:
    """What torch itself computes is not looked at."""
    report = tmp_path / "report.jsonl"
    with Operators(Report(str(report)), repair=True) as watch:
        torch.ones(3) + 1
    assert watch.calls == 0 and list(read_events(report)) == []
