"""The exported program, node by node: what it tells, integers that do not fit, updated constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mcp_server.runtime.context import E, read_events, stream_events
from mcp_server.worker import events, interpret
from mcp_server.worker.interpret import rounded
from mcp_server.worker.loading import update_program
from mcp_server.worker.report import Report
from tests.worker.support import saved


class Lookup(nn.Module):  # type: ignore[misc]
    """A row of a table, doubled."""

    def forward(self, table: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return table[row] * 2


def test_an_error_of_a_kernel_is_put_on_the_node_that_launched_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device tells of it when it is waited for, which is done after each node."""
    program = torch.export.export(Lookup(), (torch.ones(4, 3), torch.tensor([1, 2])))
    module = program.module()
    nodes = iter([str(node.target) for node in module.graph.nodes])

    def fail() -> None:
        if next(nodes) == "aten.index.Tensor":
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(interpret, "synchronize", fail)
    given = [torch.ones(4, 3), torch.tensor([1, 2])]
    watcher = interpret.Watcher(module, given, Report(str(tmp_path / "report.jsonl")))
    with pytest.raises(RuntimeError, match="device-side"):
        watcher.run(*given, enable_io_processing=False)
    (event,) = stream_events(tmp_path / "report.jsonl", events.NodeRaised)
    assert event.op == "aten.index.Tensor"
    assert "table[row]" in event.stack[0].code


class Total(nn.Module):  # type: ignore[misc]
    """Quantities times prices, by row."""

    def forward(self, quantity: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        line = quantity * price
        return line.sum(dim=1)


class Mixed(nn.Module):  # type: ignore[misc]
    """Two tracks, added in place."""

    def forward(self, voice: torch.Tensor, music: torch.Tensor) -> torch.Tensor:
        both = voice.clone()
        both += music
        return both.float() / 32768


class Hashed(nn.Module):  # type: ignore[misc]
    """Buckets of a hash, which is computed modulo the range of its dtype."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return (ids * 1664525) & 15


def events_of(tmp_path: Path, model: nn.Module, *inputs: torch.Tensor, **request: Any) -> list[events.Event]:
    """What the interpretation reports."""
    torch.export.save(torch.export.export(model, inputs), tmp_path / "model.pt2")
    torch.save({"args": inputs, "kwargs": {}}, tmp_path / "inputs.pt")
    paths = {"exported": str(tmp_path / "model.pt2"), "inputs": str(tmp_path / "inputs.pt")}
    report = tmp_path / "report.jsonl"
    interpret.operate({**paths, "extra_imports": [], **request}, Report(str(report)))  # type: ignore[typeddict-item]
    return list(read_events(report))


def named(told: list[events.Event], kind: type[E]) -> list[E]:
    return [event for event in told if isinstance(event, kind)]


def test_the_operator_that_overflows_is_reported_with_both_values(tmp_path: Path) -> None:
    """The product does not fit int32; the sum, which torch makes in int64, adds what is wrong by then."""
    quantity = torch.tensor([[3, 10], [60000, 500]], dtype=torch.int32)
    price = torch.tensor([[1999, 450], [49900, 1200]], dtype=torch.int32)
    (event,) = named(events_of(tmp_path, Total(), quantity, price), events.NodeOverflow)
    assert (event.op, event.dtype, event.index) == ("aten.mul.Tensor", "int32", [1, 0])
    assert (event.value, event.exact) == (60000 * 49900 - (1 << 32), 60000 * 49900)
    assert event.stack[0].code == "line = quantity * price" and not event.modular


@pytest.mark.parametrize(("right", "equal"), [(True, [False, True, False]), (False, [False, False, False])])
def test_in_int64_the_program_gives_what_is_expected(tmp_path: Path, right: bool, equal: list[bool]) -> None:
    """As it is, with the exact sum, and as it is again; another expectation is met by neither."""
    voice, music = (torch.tensor([100, 30000, -3], dtype=torch.int16) for _ in range(2))
    expected = (voice.int() + music.int()).float() / 32768 if right else torch.ones(3)
    torch.save([expected], tmp_path / "expected.pt")
    told = events_of(tmp_path, Mixed(), voice, music, expect=str(tmp_path / "expected.pt"))
    assert [event.op for event in named(told, events.NodeOverflow)] == ["aten.add_.Tensor"]
    assert [event.equal for event in named(told, events.ComparedExact)] == [tuple(equal)]


def test_a_hash_is_marked_as_one(tmp_path: Path) -> None:
    """Its bits are taken apart at once."""
    ids = torch.arange(5000, dtype=torch.int32)
    (event,) = named(events_of(tmp_path, Hashed(), ids), events.NodeOverflow)
    assert event.modular


def test_numbers_that_fit_are_not_reported(tmp_path: Path) -> None:
    """Neither are those of floats, nor those of int64."""
    small = torch.ones(2, 2, dtype=torch.int32)
    for inputs in ((small, small), (small.long() << 40, small.long() << 40), (small.float() * 1e30, small)):
        assert not named(events_of(tmp_path, Total(), *inputs), events.NodeOverflow)
        (tmp_path / "report.jsonl").unlink()


@pytest.mark.parametrize(
    ("values", "largest"),
    [
        ([100, 301, 401, 541], 540),
        ([0, 128, 256], None),
        ([0.5, 300, 400, 500], None),
        ([0, 300, 400, 500, float("inf")], None),
        ([0, -30000, 0], None),
    ],
)
def test_whole_numbers_beyond_what_half_precision_has(values: list[float], largest: int | None) -> None:
    """Codes up to 256 are exact in bfloat16; fractions are no codes, and a mask has one large value."""
    found = rounded(torch.tensor(values, dtype=torch.bfloat16))
    assert (found and found["largest"]) == largest
    assert not rounded(torch.tensor(values)) and not rounded(None)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("weight", torch.ones(2, 3), None),
        ("running", torch.ones(2, 3), "no constant of that name"),
        ("weight", torch.ones(3, 2), "it is float32 [3, 2] and the program has float32 [2, 3]"),
        ("weight", torch.ones(2, 3).double(), "it is float64 [2, 3]"),
    ],
)
def test_an_update_fits_or_is_told(
    tmp_path: Path, name: str, value: torch.Tensor, refused: str | None
) -> None:
    """A value takes the place of the program's own only when name, shape and dtype are the same."""
    module = nn.Linear(3, 2)
    before = module.weight.detach().clone()
    report = tmp_path / "report.jsonl"
    update_program(module, {"file": str(saved(tmp_path, "c.pt", {name: value}))}, Report(str(report)))
    told = list(stream_events(report, events.NotApplied))
    assert torch.equal(module.weight, value if refused is None else before)
    assert [event.name for event in told] == ([name] if refused else [])
    assert all(str(refused) in event.what for event in told)


def test_names_as_the_package_mangles_them_are_known(tmp_path: Path) -> None:
    """The older call names constants as C++ does: `0_weight` is `0.weight`."""
    module = nn.Sequential(nn.Linear(3, 2))
    file = saved(tmp_path, "c.pt", {"0_weight": torch.zeros(2, 3)})
    update_program(module, {"file": str(file)}, Report(str(tmp_path / "report.jsonl")))
    assert not module[0].weight.any()
