"""Constants that the program manages: freed or moved memory, and writes after they were given."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mcp_server.worker.capture import memory
from mcp_server.worker.capture.checks import digests
from mcp_server.worker.capture.memory import Managed


def test_writes_are_seen_through_views_that_nobody_holds() -> None:
    """`state_dict()` hands over views that are gone at once; the optimizer writes to the parameters."""
    model, managed = torch.nn.Linear(3, 2), Managed()
    managed.update(1, model.state_dict(), managed=True)
    assert managed.altered(1) == []
    with torch.no_grad():
        model.bias.add_(1.0)
    assert (managed.altered(1), managed.altered(2)) == (["bias"], [])


def test_a_copy_is_nobodys_but_the_packages() -> None:
    """A later update without `user_managed` makes a copy, which no write of the program reaches."""
    model, managed = torch.nn.Linear(3, 2), Managed()
    managed.update(1, model.state_dict(), managed=True)
    managed.update(1, {"bias": model.bias.detach()}, managed=False)
    with torch.no_grad():
        model.bias.add_(1.0)
        model.weight.add_(1.0)
    assert managed.altered(1) == ["weight"]


def test_memory_that_moved() -> None:
    """A tensor that got other memory is told; one that is merely let go is not."""
    kept, managed = torch.ones(4), Managed()
    managed.update(1, {"kept": kept, "gone": torch.ones(4)}, managed=True)
    assert managed.moved(1) == []
    kept.data = torch.ones(8)
    assert managed.moved(1) == ["kept"]


def test_the_count_holds_no_memory_and_inference_tensors_keep_none() -> None:
    """What is remembered of a constant must not keep its memory alive."""
    managed, tensor = Managed(), torch.ones(1 << 10)
    with torch.inference_mode():
        inference = torch.ones(4)
    managed.update(1, {"w": tensor, "i": inference}, managed=True)
    count = managed.known[1]["w"].count
    assert count is not None and count.untyped_storage().nbytes() == 0
    assert managed.known[1]["i"].count is None and managed.altered(1) == []


def given(load: int, constants: dict[str, torch.Tensor]) -> Managed:
    managed = Managed()
    managed.update(load, constants, True, digests(constants))
    return managed


def test_other_values_are_seen_where_no_count_tells_of_the_write() -> None:
    """Through numpy, into memory whose views the program let go; the same values again are no change."""
    raw = numpy.zeros(64, dtype=numpy.float32)
    block = torch.from_numpy(raw)
    managed = given(3, {"w": block[:32].view(4, 8), "b": block[32:40]})
    assert managed.refilled(3) == []
    raw[:32] += 0.0
    assert managed.refilled(3) == []
    raw[5] = 1.0
    assert (managed.altered(3), managed.refilled(3), managed.refilled(4)) == ([], ["w"], [])
    assert managed.refilled_by_now() == {3: ["w"]} and block.numel() == 64


def test_a_write_beside_a_constant_is_none_to_it() -> None:
    """Views of one block share a count of writes, though not what is written."""
    block = torch.zeros(64)
    managed = given(3, {"w": block[:32]})
    block[40:].fill_(1.0)
    assert (managed.altered(3), managed.refilled(3)) == (["w"], [])


def test_memory_is_read_as_long_as_it_is_there_and_no_longer() -> None:
    """What is remembered keeps no memory alive, and what became of freed memory is not looked at."""
    alone = torch.zeros(1 << 10)
    memory = StorageWeakRef(alone.untyped_storage())
    managed = given(3, {"w": alone})
    assert managed.refilled(3) == [] and not memory.expired()
    del alone
    assert memory.expired() and managed.refilled(3) == []


def test_reading_stops_when_it_has_taken_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looked: None, not an empty list; a failure may take more."""
    monkeypatch.setattr(memory, "ALLOWANCE_S", 0.0)
    block = torch.zeros(8)
    managed = given(3, {"w": block})
    managed.needed_s[3], managed.began = 1.0, managed.began - 10.0
    block.numpy()[0] = 1.0
    assert managed.refilled(3) is None
    assert managed.refilled(3, memory.AT_FAILURE) == ["w"]
