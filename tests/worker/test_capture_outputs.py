"""The call that a check of the program's own refused, and the inputs that are kept for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mcp_server.worker.capture import journal
from mcp_server.worker.capture.checks import looked_at
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.capture.memory import Outputs
from mcp_server.worker.encode import raised_in


def calls_of(check: Callable[[], None], returned: Outputs) -> list[int]:
    """The calls that are named when this check fails."""
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        check()
    return returned.calls_of(looked_at([(frame, line) for frame, line in raised_in(caught.value)]))


def returning(*outputs: torch.Tensor) -> Outputs:
    """Calls 10, 11, … with one output each."""
    returned = Outputs()
    for number, output in enumerate(outputs):
        returned.add(10 + number, [output])
    return returned


def test_a_part_of_an_output_names_its_call() -> None:
    """Memory tells the call, also of a slice; tensors of another making and numbers tell none."""
    first, second = torch.ones(4), torch.zeros(4)
    returned = returning(first, second)
    assert returned.calls_of([second[1:3], torch.ones(4), second]) == [11]
    del first
    assert returned.calls_of([torch.ones(4)]) == []


def test_memory_that_several_calls_gave_names_none() -> None:
    """A package may return one of its constants, or what it was given, each time."""
    constant = torch.ones(4)
    assert returning(constant, constant.view(2, 2)).calls_of([constant]) == []


def test_the_variables_of_the_check_count_and_no_others() -> None:
    """The output that the `if` around the `raise` names, not the last one, which a variable still has."""
    outputs = [torch.full((3,), float(k)) for k in range(3)]

    def check() -> None:
        last = outputs[-1]
        for k, got in enumerate(outputs):
            if torch.equal(got, torch.ones(3)):
                raise RuntimeError(f"{k} of {len(last)}")

    assert calls_of(check, returning(*outputs)) == [11]


def test_an_item_of_a_list_is_found() -> None:
    """`outputs[k]` in the check is looked up; a check that names no tensor tells nothing."""
    outputs = [torch.full((3,), float(k)) for k in range(3)]

    def item() -> None:
        for k in range(3):
            assert float(outputs[k].sum()) < 5

    def total() -> None:
        count = sum(float(each.sum()) for each in outputs)
        assert count < 5

    assert calls_of(item, returning(*outputs)) == [12]
    assert calls_of(total, returning(*outputs)) == []


def test_inputs_of_first_and_latest_calls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within numbers and bytes; the latest two stay whatever their size, as do the first odd ones."""
    for name, limit in {"FIRST": 3, "LATEST": 4, "BYTES": 1000}.items():
        monkeypatch.setattr(journal, name, limit)
    store = CaptureStore(Journal(str(tmp_path)))

    def kept(sizes: list[int]) -> list[int]:
        for number, size in enumerate(sizes):
            path = tmp_path / f"{number}.pt"
            path.write_bytes(b"x" * size)
            store.evict(str(path), 0, odd=False)
        found = sorted(int(path.stem) for path in tmp_path.glob("*.pt"))
        store.forget()
        return found

    assert kept([10] * 12) == [0, 1, 2, 8, 9, 10, 11]
    for path in tmp_path.glob("*.pt"):
        path.unlink()
    assert kept([10, 10, 10, 10, 600, 600, 600]) == [0, 1, 2, 5, 6]
