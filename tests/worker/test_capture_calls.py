"""What the hook keeps of a program's calls: outputs, refilled and managed memory, details."""

from __future__ import annotations

import json
import mmap
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy
import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.proxy import TracerBase
from torch.multiprocessing.reductions import StorageWeakRef

from mcp_server.logs.capture_journal import read_capture
from mcp_server.package.provenance import read_stack
from mcp_server.worker.capture import journal, memory
from mcp_server.worker.capture.calls import Calls
from mcp_server.worker.capture.compiles import Compiles, keep_lines
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.capture.memory import Aliases, Managed, Outputs, Repeats
from mcp_server.worker.capture.streams import PendingUses, Snapshot, Streams
from mcp_server.worker.tensors import digests

# What the hook keeps of a program: its streams and graphs, packages, repeated inputs, checks and lines.


def told(directory: Path) -> list[tuple[int, int]]:
    """(call, input) of every input that was told to be gone."""
    lines = (line for path in directory.glob("capture-*.jsonl") for line in path.read_text().splitlines())
    events = [event for event in map(json.loads, lines) if event["event"] == "graph_input_gone"]
    return [(event["call"], event["input"]) for event in events]


def test_a_replay_after_an_input_was_replaced_is_told_once(tmp_path: Path) -> None:
    """Only the input whose memory nobody holds is told, and only at the first replay."""
    streams = Streams(Journal(str(tmp_path)))
    static, other = torch.zeros(4), torch.zeros(4)
    streams.watch_graph(7, [other, static])
    streams.replaying(None)
    assert told(tmp_path) == []
    static = torch.ones(4)
    streams.replaying(None)
    streams.replaying(None)
    assert told(tmp_path) == [(7, 1)]


def test_a_view_keeps_the_memory(tmp_path: Path) -> None:
    """The captured tensor may go as long as something shares its memory."""
    streams = Streams(Journal(str(tmp_path)))
    whole = torch.zeros(8)
    streams.watch_graph(1, [whole[:4]])
    streams.replaying(None)
    assert told(tmp_path) == []


def test_one_stream_costs_no_copies(tmp_path: Path) -> None:
    """Inputs are copied only where the program uses a stream of its own, and only those of a device."""
    streams = Streams(Journal(str(tmp_path)))
    assert streams.snapshot([torch.zeros(4)]) is None
    streams.several = True
    assert streams.snapshot([torch.zeros(4)]) is None


@pytest.mark.parametrize("later, raced", [(float("nan"), []), (5.0, [1])])
def test_an_input_that_changed_is_raced(later: float, raced: list[int]) -> None:
    """Other bytes than at the call are a race; NaN that stays NaN is not."""
    inputs = [torch.zeros(3), torch.full((2, 2), float("nan"))]
    snapshot = Snapshot(inputs, [tensor.clone() for tensor in inputs])
    inputs[1][0, 0] = later
    assert snapshot.raced() == raced


# What the hook tells of files that the program packages itself, and of the weights that it compiled.


def compiles_in(directory: Path) -> Compiles:
    journal = Journal(str(directory))
    return Compiles(Calls(journal, CaptureStore(journal)))


def test_the_files_of_each_model_are_told(tmp_path: Path) -> None:
    """By the first file, which is what a compile is told to have written, at the program's line."""
    packagings = compiles_in(tmp_path)
    files = {"coast": ["/c/a.wrapper.cpp", "/c/a.wrapper.so"], "valley": "/c/b.so"}
    packagings.packaging(tmp_path / "all.pt2", files)
    packagings.packaging(str(tmp_path / "one.pt2"), ["/c/a.wrapper.cpp"])
    every, one = read_capture(tmp_path).packagings
    assert every.package == tmp_path / "all.pt2" and every.stack[0].file == __file__
    assert every.files == {"coast": Path("/c/a.wrapper.cpp"), "valley": Path("/c/b.so")}
    assert one.files == {"model": Path("/c/a.wrapper.cpp")}


@pytest.mark.parametrize(("archive", "inside"), [(BytesIO(), False), ("a.pt2", True)])
def test_what_is_no_packaging_of_the_programs_own(tmp_path: Path, archive: object, inside: bool) -> None:
    """A stream has no path, and a compile that packages what it made is told as a compile."""
    packagings = compiles_in(tmp_path)
    packagings.thread.inside = inside
    packagings.packaging(archive, {"m": ["/c/a.wrapper.cpp"]})
    assert read_capture(tmp_path).packagings == []


def test_a_graph_module_has_weights_as_a_program_has(tmp_path: Path) -> None:
    """`aot_compile` is given a module; anything else that is compiled has none."""
    compiles = compiles_in(tmp_path)
    for program in (torch.fx.symbolic_trace(torch.nn.Linear(3, 2)), None):
        compiles.compiling("aot_compile", program)
        compiles.thread.inside = False
    assert [set(each.digests) for each in read_capture(tmp_path).compiles] == [{"weight", "bias"}, set()]


# Inputs that are the very tensors of the call before.

BASE = torch.ones(4, 3).add_(1).add_(1)


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        ([BASE], [BASE], [0]),
        ([BASE[:2]], [BASE[:2]], [0]),
        ([BASE[0]], [BASE[1]], []),
        ([BASE], [BASE.clone()], []),
        ([BASE, torch.ones(1)], [torch.ones(1), BASE], []),
    ],
    ids=["one", "views", "rows", "copy", "order"],
)
def test_one_tensor_in_two_calls_is_told(
    first: list[torch.Tensor], second: list[torch.Tensor], again: list[int]
) -> None:
    """The same part of one memory counts, at the same position; another row or equal values do not."""
    repeats = Repeats()
    assert repeats.again(0, first) == []
    assert repeats.again(0, second) == again
    assert repeats.again(1, second) == []


def test_a_request_that_is_sent_again_was_not_written_over() -> None:
    """A tensor with as few writes as calls holds what each of them was meant to read."""
    repeats, request = Repeats(), torch.empty(3)
    request.copy_(torch.ones(3))
    assert [repeats.again(0, [request]) for _ in range(3)] == [[], [], []]
    frame = torch.empty(3)
    for _ in range(3):
        frame.copy_(torch.ones(3))  # three frames of a queue, before the first call of a slow thread
    assert [repeats.again(1, [frame]) for _ in range(4)] == [[], [0], [0], []]


def test_what_was_written_in_between_is_another_content() -> None:
    """An operation in place, by whichever thread, ends the repetition."""
    repeats, tensor = Repeats(), torch.ones(3).add_(1)
    repeats.again(0, [tensor])
    tensor.add_(1).add_(1)
    assert repeats.again(0, [tensor]) == []
    assert repeats.again(0, [tensor]) == [0]


# The lines of a model that `torch.export` writes down under the hook.


def gap(x: torch.Tensor) -> torch.Tensor:
    """A function beside the model."""
    return x - x.mean()


class Layer(nn.Module):  # type: ignore[misc]
    """A module whose `forward` calls a method."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.root(gap(x))

    def root(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch with its filter replaced, for one test."""
    monkeypatch.setattr(TracerBase, "_filter_traceback_frames", TracerBase._filter_traceback_frames)
    keep_lines()
    keep_lines()  # a module that is loaded twice replaces it once
    yield


@pytest.mark.usefixtures("kept")
def test_lines_of_methods_and_functions_that_forward_calls_are_kept() -> None:
    """A node's stack goes from the first `forward` to the line with the operator."""
    program = torch.export.export(nn.Sequential(Layer()), (torch.ones(3),))
    stacks = {n.name: read_stack(n.meta.get("stack_trace") or "") for n in program.graph.nodes}
    own = {name: [(f.function, f.code) for f in stack if f.user] for name, stack in stacks.items()}
    called = ("forward", "return self.root(gap(x))")
    assert own["mean"] == [called, ("gap", "return x - x.mean()")]
    assert own["sqrt"] == [called, ("root", "return torch.sqrt(x)")]


def test_a_release_without_the_filter_is_left_alone() -> None:
    """Nothing is added to a tracer that has no such method."""
    tracer = SimpleNamespace()
    keep_lines(tracer)
    assert not vars(tracer)


# The call that a check of the program's own refused, and the inputs that are kept for that.


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


# Outputs that change with an input which the program uses again.


def loop(*, keep: bool, copied: bool, written: bool, calls: int = 4) -> list[list[int]]:
    """What is told at the last of some calls whose second output is a view of their input."""
    aliases, window, kept = Aliases(), torch.zeros(3, 4), []
    told: list[list[int]] = []
    for number in range(calls):
        if written:
            window.copy_(torch.full((3, 4), float(number)))
        told = aliases.overwritten()
        given = aliases.inputs([torch.ones(1), window])
        tail = window[:, 2:]
        outputs = [window.sum(), tail.clone() if copied else tail]
        aliases.returned(number, given, outputs)
        if keep:
            kept.append(outputs[1])
    return told


def test_kept_views_of_an_input_that_is_written_anew() -> None:
    """Each output that the program still holds is told with its call and the input."""
    assert loop(keep=True, copied=False, written=True) == [[0, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("keep", "copied", "written"), [(False, False, True), (True, True, True), (True, False, False)]
)
def test_what_does_not_change_under_the_program(keep: bool, copied: bool, written: bool) -> None:
    """Outputs that are let go, copies, and inputs that stay as they are do no harm."""
    assert loop(keep=keep, copied=copied, written=written) == []


@pytest.mark.parametrize(("keep", "written"), [(True, True), (False, True), (True, False)])
def test_what_numpy_writes_is_seen_by_the_values_of_the_oldest_output(keep: bool, written: bool) -> None:
    """Its writes are not counted, and each call may get a new tensor over the same memory."""
    aliases, block, kept = Aliases(), np.zeros((3, 4), dtype=np.float32), []
    told: list[list[int]] = []
    for number in range(4):
        if written:
            block[:] = number
        told = aliases.overwritten()
        window = torch.from_numpy(block)
        given = aliases.inputs([window])
        output = window[:, 2:]
        del window
        aliases.returned(number, given, [output])
        if keep:
            kept.append(output)
    assert told == ([[0, 0, 0]] if keep and written else [])


def test_memory_that_is_gone_is_not_read(tmp_path: Path) -> None:
    """A kept view of a mapped file that was cut since: reading it would end the program."""
    path = tmp_path / "block.bin"
    np.ones(mmap.PAGESIZE, np.float32).tofile(path)
    aliases, block = Aliases(), torch.from_numpy(np.memmap(path, np.float32, "r+"))
    output = block[:]
    aliases.returned(0, aliases.inputs([block]), [output])
    aliases.returned(1, [], [])
    os.truncate(path, 0)
    assert aliases.overwritten() == [] and output.numel() == mmap.PAGESIZE


# Inputs of a call on another stream that are let go: streams are numbers here, the memory is real.

MAIN, SIDE = 0, 7


@dataclass(frozen=True)
class Stream:
    cuda_stream: int


class Watched:
    """A program whose main stream owns all memory, and that counts its allocations."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.allocated = 0
        self.pending_uses = PendingUses(Journal(str(directory)), lambda: self.allocated)

    def call(self, *leaves: torch.Tensor, reader: int = SIDE) -> None:
        self.pending_uses.track(3, list(leaves), reader, [(0, 1 << 62, MAIN)])

    def told(self) -> list[tuple[int, int]]:
        """(call, input) of every input that was told to be let go."""
        self.pending_uses.look()
        paths = self.directory.glob("capture-*.jsonl")
        events = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        return [(e["call"], e["input"]) for e in events if e["event"] == "input_let_go"]


@pytest.fixture
def program(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_an_input_that_is_let_go_before_its_owner_waited_is_told(program: Watched) -> None:
    """Once, and only the input that nobody holds."""
    kept, gone = torch.zeros(4), torch.zeros(4)
    program.call(kept, gone)
    del gone
    program.allocated += 1
    assert program.told() == [(3, 1)] == program.told()


@pytest.mark.parametrize("what", ["held", "nothing allocated", "own stream"])
def test_memory_that_nobody_can_have_taken_is_not_told(program: Watched, what: str) -> None:
    """It is still held, nothing was allocated since, or the stream that reads it owns it."""
    given = torch.zeros(4)
    program.call(given, reader=MAIN if what == "own stream" else SIDE)
    kept = given if what == "held" else None
    del given
    program.allocated += what != "nothing allocated"
    assert program.told() == []
    del kept


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (lambda pending_uses, _: pending_uses.all_waited(), []),
        (lambda pending_uses, _: pending_uses.ended(Stream(SIDE)), []),
        (lambda pending_uses, _: pending_uses.waits(Stream(MAIN)), []),
        (lambda pending_uses, given: pending_uses.recorded(given, Stream(SIDE)), []),
        (lambda pending_uses, given: pending_uses.recorded(given, Stream(MAIN)), [(3, 0)]),
        (lambda pending_uses, _: pending_uses.ended(Stream(MAIN)), [(3, 0)]),
        (lambda pending_uses, _: pending_uses.waits(Stream(SIDE)), [(3, 0)]),
        (lambda pending_uses, _: pending_uses.recorded(torch.ones(2), Stream(SIDE)), [(3, 0)]),
    ],
)
def test_who_waits_for_whom_counts(program: Watched, wait: object, told: list[tuple[int, int]]) -> None:
    """The owner must wait, or be told: that the reader waits for the owner rules nothing out."""
    given = torch.zeros(4)
    program.call(given)
    assert callable(wait)
    wait(program.pending_uses, given)
    del given
    program.allocated += 1
    assert program.told() == told


def test_a_stream_that_was_recorded_before_the_call_is_waited_for(program: Watched) -> None:
    """The usual order: the producer records the stream that will read, then the package is called."""
    given = torch.zeros(4)
    program.pending_uses.recorded(given, Stream(SIDE))
    program.call(given)
    del given
    program.allocated += 1
    assert program.told() == []


# What a program still holds: outputs by their memory, and constants whose mapped file was cut.

FLOATS = 1000
BYTES = 4 * FLOATS


def test_a_view_holds_the_whole_output_and_released_outputs_count_no_more() -> None:
    """Memory counts, once, as long as anything uses it; watching it keeps nothing alive."""
    outputs, kept = Outputs(), []
    for call in range(3):
        output = torch.zeros(FLOATS)
        outputs.add(call, [output, output[:2], 7])
        kept.append(output[:1])
        del output
    found = outputs.retained()["cpu"]
    assert (found.calls, found.bytes) == (3, 3 * BYTES)
    kept.pop()
    found = outputs.retained()["cpu"]
    assert (found.calls, found.bytes) == (2, 2 * BYTES)
    kept.clear()
    assert outputs.retained() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_a_constant_of_a_cut_file_is_lost_and_not_read(tmp_path: Path) -> None:
    """The pages behind the end of the file end whoever reads them; the hook asks the kernel instead."""
    file = tmp_path / "weights.bin"
    file.write_bytes(bytes(BYTES * 4))
    mapped = torch.from_file(str(file), shared=True, size=4 * FLOATS)
    own = torch.zeros(FLOATS)
    managed = Managed()
    managed.update(1, {"mapped": mapped, "own": own}, True, {"mapped": "digest", "own": "digest"})
    assert managed.lost(1) == {}
    os.truncate(file, 0)
    assert managed.lost(1) == {"mapped": str(file)}
    assert managed.lost(2) == {}


# Constants that the program manages: freed or moved memory, and writes after they were given.


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
