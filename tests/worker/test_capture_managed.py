"""Constants that the program manages: freed or moved memory, and writes after they were given."""

from __future__ import annotations

import torch

from mcp_server.worker.capture_managed import Managed


def test_writes_are_seen_through_views_that_nobody_holds() -> None:
    """`state_dict()` hands over views that are gone at once; the optimizer writes to the parameters."""
    model, managed = torch.nn.Linear(3, 2), Managed()
    managed.given(1, model.state_dict(), managed=True)
    assert managed.altered(1) == []
    with torch.no_grad():
        model.bias.add_(1.0)
    assert (managed.altered(1), managed.altered(2)) == (["bias"], [])


def test_a_copy_is_nobodys_but_the_packages() -> None:
    """A later update without `user_managed` makes a copy, which no write of the program reaches."""
    model, managed = torch.nn.Linear(3, 2), Managed()
    managed.given(1, model.state_dict(), managed=True)
    managed.given(1, {"bias": model.bias.detach()}, managed=False)
    with torch.no_grad():
        model.bias.add_(1.0)
        model.weight.add_(1.0)
    assert managed.altered(1) == ["weight"]


def test_memory_that_moved() -> None:
    """A tensor that got other memory is told; one that is merely let go is not."""
    kept, managed = torch.ones(4), Managed()
    managed.given(1, {"kept": kept, "gone": torch.ones(4)}, managed=True)
    assert managed.moved(1) == []
    kept.data = torch.ones(8)
    assert managed.moved(1) == ["kept"]


def test_the_count_holds_no_memory_and_inference_tensors_keep_none() -> None:
    """What is remembered of a constant must not keep its memory alive."""
    managed, tensor = Managed(), torch.ones(1 << 10)
    with torch.inference_mode():
        inference = torch.ones(4)
    managed.given(1, {"w": tensor, "i": inference}, managed=True)
    count = managed.known[1]["w"].count
    assert count is not None and count.untyped_storage().nbytes() == 0
    assert managed.known[1]["i"].count is None and managed.altered(1) == []
