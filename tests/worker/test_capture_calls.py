"""What the hook keeps of a program's calls: outputs, refilled and managed memory, details."""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.proxy import TracerBase

from mcp_server.package.exported import read_stack
from mcp_server.worker.capture import journal
from mcp_server.worker.capture.compiles import keep_lines
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.capture.memory import Aliases, Managed
from mcp_server.worker.capture.streams import PendingUses, Snapshot, Streams
from mcp_server.worker.tensors import digests, too_short

# Streams, graphs and repeated inputs.


class Told(list[tuple[Any, ...]]):
    """Collects events of the log of memory: storage, act, interval, call, and other facts."""

    def __call__(self, *what: object, **more: object) -> None:
        self.append((*what, *more.values()))


def test_a_replay_after_an_input_was_replaced_is_told_once() -> None:
    """Only the input whose memory nothing holds, not even a view, is reported, at the first replay."""
    told = Told()
    streams = Streams(told)
    static, other, whole = torch.zeros(4), torch.zeros(4), torch.zeros(8)
    streams.watch_graph(7, [other, static, whole[:4]])
    streams.replaying(None)
    assert told == []
    static = torch.ones(4)
    streams.replaying(None)
    streams.replaying(None)
    assert told == [("input", "freed", "graph", 7, 1)]


@pytest.mark.parametrize("later, raced", [(float("nan"), []), (5.0, [1])])
def test_an_input_that_changed_is_raced(later: float, raced: list[int]) -> None:
    """Bytes that changed after the call began are a race; unchanged NaN is not. CPU inputs are not copied."""
    inputs = [torch.zeros(3), torch.full((2, 2), float("nan"))]
    snapshot = Snapshot(inputs, [tensor.clone() for tensor in inputs])
    inputs[1][0, 0] = later
    assert snapshot.raced() == raced
    streams = Streams(Told())
    streams.several = True
    assert streams.snapshot(inputs) is None


# The model's lines that `torch.export` records under the hook.


def gap(x: torch.Tensor) -> torch.Tensor:
    """A function outside the model."""
    return x - x.mean()


class Layer(nn.Module):  # type: ignore[misc]
    """A module whose `forward` calls a method."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.root(gap(x))

    def root(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x)


def test_lines_of_methods_and_functions_that_forward_calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's stack leads from the first `forward` to the line with the operator."""
    monkeypatch.setattr(TracerBase, "_filter_traceback_frames", TracerBase._filter_traceback_frames)
    keep_lines()
    keep_lines()  # the function is replaced only once if a module is loaded twice
    keep_lines(SimpleNamespace())  # a tracer of a release without the filter
    program = torch.export.export(nn.Sequential(Layer()), (torch.ones(3),))
    stacks = {n.name: read_stack(n.meta.get("stack_trace") or "") for n in program.graph.nodes}
    own = {name: [(f.function, f.code) for f in stack if f.user] for name, stack in stacks.items()}
    called = ("forward", "return self.root(gap(x))")
    assert own["mean"] == [called, ("gap", "return x - x.mean()")]
    assert own["sqrt"] == [called, ("root", "return torch.sqrt(x)")]


# Inputs that are kept for a later check of the program.


FLOATS = 1000


def test_inputs_of_first_and_latest_calls_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of number and size hold, but the latest two and the first odd ones always stay."""
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


# Outputs that share memory with an input.


KEPT_BY_PYTORCH = [[0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("keep", "copied", "written", "numpy", "told"),
    [
        pytest.param(True, False, True, False, KEPT_BY_PYTORCH, id="kept views"),
        pytest.param(False, False, True, False, [], id="let go"),
        pytest.param(True, True, True, False, [], id="copies"),
        pytest.param(True, False, False, False, [], id="an input that stays as it is"),
        # NumPy's writes are not counted, and each call may get a new tensor over the same memory. So the hook
        # compares the values of the oldest output.
        pytest.param(True, False, True, True, [[0, 1, 1]], id="numpy, kept"),
        pytest.param(False, False, True, True, [], id="numpy, let go"),
        pytest.param(True, False, False, True, [], id="numpy, as it is"),
    ],
)
def test_kept_views_of_an_input_that_is_written_anew(
    keep: bool, copied: bool, written: bool, numpy: bool, told: list[list[int]]
) -> None:
    """At the last of four calls, each output that the program holds is reported, with its call and input."""
    aliases, window, kept = Aliases(), torch.zeros(3, 4), []
    block, found = np.zeros((3, 4), dtype=np.float32), list[list[int]]()
    for number in range(4):
        if written:
            block[:] = number
            window.copy_(torch.full((3, 4), float(number)))
        found = aliases.overwritten()
        leaf = torch.from_numpy(block) if numpy else window
        given = aliases.inputs([torch.ones(1), leaf])
        tail = leaf[:, 2:]
        del leaf
        outputs = [window.sum(), tail.clone() if copied else tail]
        aliases.returned(number, given, outputs)
        if keep:
            kept.append(outputs[1])
        del outputs, tail
    assert found == told


def test_a_tensor_that_is_given_again() -> None:
    """A tensor is reported if the program wrote into it since, or if another thread passes it unchanged."""
    aliases, window = Aliases(), torch.zeros(3, 4)

    def again(call: int) -> list[tuple[str, int, int]]:
        inputs = aliases.inputs([window])
        return list(aliases.again(call, inputs, aliases.before(inputs)))

    with ThreadPoolExecutor(1) as other:
        told = [again(1), again(2), other.submit(again, 3).result()]
        window.add_(1)
        told += [again(4), other.submit(again, 5).result(), list(aliases.again(6, [], []))]
    assert [(n, each.call) for n, each in aliases.before(aliases.inputs([window]))] == [(0, 5)]
    assert told == [[], [], [("given", 0, 2)], [("written", 0, 3)], [("given", 0, 4)], []]


def test_memory_that_is_gone_is_not_read(tmp_path: Path) -> None:
    """A kept view may be of a mapped file that was cut. Reading it would kill the program."""
    path = tmp_path / "block.bin"
    np.ones(mmap.PAGESIZE, np.float32).tofile(path)
    aliases, block = Aliases(), torch.from_numpy(np.memmap(path, np.float32, "r+"))
    output = block[:]
    aliases.returned(0, aliases.inputs([block]), [output])
    aliases.returned(1, [], [])
    os.truncate(path, 0)
    assert aliases.overwritten() == [] and output.numel() == mmap.PAGESIZE


# Inputs freed while another stream may read them. Streams are numbers here, the memory is real.

MAIN, SIDE = 0, 7


@dataclass(frozen=True)
class Stream:
    cuda_stream: int


WAITS: dict[str, tuple[Callable[[PendingUses, torch.Tensor], object], bool]] = {
    "nothing": (lambda uses, _: None, True),
    "all waited": (lambda uses, _: uses.all_waited(), False),
    "the reader ended": (lambda uses, _: uses.ended(Stream(SIDE)), False),
    "the owner waits": (lambda uses, _: uses.waits(Stream(MAIN)), False),
    "the reader was recorded": (lambda uses, given: uses.recorded(given, Stream(SIDE)), False),
    "the owner was recorded": (lambda uses, given: uses.recorded(given, Stream(MAIN)), True),
    "the owner ended": (lambda uses, _: uses.ended(Stream(MAIN)), True),
    "the reader waits": (lambda uses, _: uses.waits(Stream(SIDE)), True),
    "another was recorded": (lambda uses, _: uses.recorded(torch.ones(2), Stream(SIDE)), True),
}


@pytest.mark.parametrize(
    ("wait", "harmless"),
    [
        *((wait, "") for wait in WAITS),
        *(("nothing", each) for each in ("held", "not taken", "own", "before")),
    ],
)
def test_an_input_that_is_let_go_before_its_owner_waited_is_told(wait: str, harmless: str) -> None:
    """Only the input that nothing holds is reported, and once. Its owner must wait, or record the stream.

    Not reported: memory that was not reused, that the reading stream owns, or for which that stream was
    recorded before the call.
    """
    told, allocated, gone, kept = Told(), [0], torch.zeros(4), torch.zeros(4)
    uses = PendingUses(told, lambda: allocated[0])
    if harmless == "before":
        uses.recorded(gone, Stream(SIDE))
    uses.track(3, [kept, gone], MAIN if harmless == "own" else SIDE, [(0, 1 << 62, MAIN)])
    act, counts = WAITS[wait]
    act(uses, gone)
    held = gone if harmless == "held" else None
    del gone
    allocated[0] += harmless != "not taken"
    for _ in range(2):
        uses.look()
    expected = [("input", "freed", "stream", 3, 1)] if counts and not harmless else []
    assert told == expected and kept.numel() == 4
    del held


# Memory that the program still holds.


def test_a_constant_of_a_cut_file_is_lost_and_not_read(tmp_path: Path) -> None:
    """Reading pages beyond the end of the file would kill the process, so the hook asks the kernel."""
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(16 * FLOATS))
    mapped = torch.from_file(str(file), shared=True, size=4 * FLOATS)
    own = torch.zeros(FLOATS)
    managed = Managed()
    managed.update(1, {"mapped": mapped, "own": own}, True, {"mapped": "digest", "own": "digest"})
    assert managed.unmapped(1) == []
    os.truncate(file, 0)
    assert managed.unmapped(1) == ["mapped"]
    assert managed.unmapped(2) == []


def test_a_storage_that_was_released_is_too_short() -> None:
    """A part of a larger storage fits, and so does a tensor without elements."""
    released, whole = torch.zeros(FLOATS), torch.zeros(FLOATS)
    released.untyped_storage().resize_(0)
    assert too_short([whole[2:4], released, whole[FLOATS:]]) == {1: "its storage has 0 bytes"}


# Constants that the program manages.


def test_writes_are_seen_through_views_that_nobody_holds() -> None:
    """Views from `state_dict()` are freed at once. A later update without `user_managed` makes a copy."""
    model, managed = torch.nn.Linear(3, 2), Managed()
    managed.update(1, model.state_dict(), managed=True)
    assert managed.counted(1) == []
    with torch.no_grad():
        model.bias.add_(1.0)
    assert (managed.counted(1), managed.counted(2)) == (["bias"], [])
    managed.update(1, {"bias": model.bias.detach()}, managed=False)
    with torch.no_grad():
        model.bias.add_(1.0)
        model.weight.add_(1.0)
    assert managed.counted(1) == ["weight"]


def test_memory_that_moved_is_told_and_none_is_kept_alive() -> None:
    """A tensor with new memory is reported, a freed one is not. Inference tensors have no write count."""
    kept, managed = torch.ones(4), Managed()
    with torch.inference_mode():
        inference = torch.ones(4)
    managed.update(1, {"kept": kept, "gone": torch.ones(4), "i": inference}, managed=True)
    assert managed.moved(1) == managed.counted(1) == []
    count = managed.known[1]["kept"].count
    assert count is not None and count.untyped_storage().nbytes() == 0
    kept.data = torch.ones(8)
    assert managed.moved(1) == ["kept"]


def given(load: int, constants: dict[str, torch.Tensor]) -> Managed:
    managed = Managed()
    managed.update(load, constants, True, digests(constants))
    return managed


def test_other_values_are_seen_where_no_count_tells_of_the_write() -> None:
    """Writes by NumPy are seen, even after the views were freed. Writing the same values is no change."""
    raw = np.zeros(64, dtype=np.float32)
    block = torch.from_numpy(raw)
    managed = given(3, {"w": block[:32].view(4, 8), "b": block[32:40]})
    assert managed.refilled(3) == []
    raw[:32] += 0.0
    assert managed.refilled(3) == []
    block[48:].fill_(1.0)  # views of one block share a write count, even if only one is written
    assert (sorted(managed.counted(3)), managed.refilled(3)) == (["b", "w"], [])
    raw[5] = 1.0
    assert (managed.refilled(3), managed.refilled(4)) == (["w"], [])
    assert block.numel() == 64
