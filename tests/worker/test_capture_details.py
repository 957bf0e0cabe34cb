"""What the hook keeps of a program: its streams and graphs, packages, repeated inputs, checks and lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.fx.proxy import TracerBase

from mcp_server.logs.capture_journal import read_capture
from mcp_server.package.provenance import read_stack
from mcp_server.worker.capture.calls import Calls
from mcp_server.worker.capture.checks import compared
from mcp_server.worker.capture.compiles import Compiles, keep_lines
from mcp_server.worker.capture.journal import CaptureStore, Journal
from mcp_server.worker.capture.memory import Repeats
from mcp_server.worker.capture.streams import Snapshot, Streams
from mcp_server.worker.encode import raised_in


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
    assert [set(known) for known in compiles.models.compiled] == [{"weight", "bias"}, set()]


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


# Which names a failed check of the program's own compared.


class Tenant:
    golden = 1.0
    other = 2.0


def too_far() -> None:
    tenant, unrelated = Tenant(), 5.0
    gap = abs(3.0 - tenant.golden)
    print(unrelated)
    if gap > 1e-4:
        raise RuntimeError("off")


def too_little() -> None:
    before, after = 1.0, 1.0
    rise = after - before
    if rise < 0.5:
        raise RuntimeError("no rise")


def asserted() -> None:
    want, got = 1.0, 2.0
    assert abs(want - got) < 1e-3


def asserted_more() -> None:
    old, new = 1.0, 1.0
    assert new > old


@pytest.mark.parametrize(
    ("check", "names"),
    [
        (too_far, ["abs", "gap", "tenant", "tenant.golden", "Tenant"]),
        (too_little, []),
        (asserted, ["abs", "got", "want"]),
        (asserted_more, []),
    ],
)
def test_what_the_number_was_computed_from(check: Callable[[], None], names: list[str]) -> None:
    """Also by way of a variable; nothing where more difference would have passed."""
    with pytest.raises((RuntimeError, AssertionError)) as caught:
        check()
    places = [(frame, line) for frame, line in raised_in(caught.value)]
    assert compared(places) == sorted(names)


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
