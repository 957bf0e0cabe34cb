"""Interpreting the exported program: errors, integer overflow, updated constants, custom operators."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mcp_server.runtime.context import read_events, stream_events
from mcp_server.worker import events, interpret
from mcp_server.worker.capture.compiles import stopped_at
from mcp_server.worker.interpret import Operators
from mcp_server.worker.loading import recapture, update_program
from mcp_server.worker.report import Overrun, Refused, Report
from tests.worker.support import Of, saved


class Total(nn.Module):  # type: ignore[misc]
    """Quantities times prices, by row."""

    def forward(self, quantity: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        line = quantity * price
        return line.sum(dim=1)


def test_an_error_of_a_kernel_is_put_on_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device reports the error when waited for, which happens after each node."""
    given = [torch.ones(4, 3), torch.ones(4, 3)]
    module = torch.export.export(Total(), tuple(given)).module()
    nodes = iter([str(node.target) for node in module.graph.nodes])

    def fail() -> None:
        if next(nodes) == "aten.mul.Tensor":
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(interpret, "synchronize", fail)
    watcher = interpret.Watcher(module, given, Report(str(tmp_path / "report.jsonl")))
    with pytest.raises(RuntimeError, match="device-side"):
        watcher.run(*given, enable_io_processing=False)
    (event,) = stream_events(tmp_path / "report.jsonl", events.NodeRaised)
    assert event.op == "aten.mul.Tensor" and "quantity * price" in event.stack[0].code


def events_of(at: Path, model: nn.Module, *inputs: Any, expected: Any = None, **request: Any) -> list[Any]:
    """The events of an interpretation, whose user expects these outputs."""
    if expected is not None:
        request["expect"] = str(at / "expected.pt")
        torch.save(expected, request["expect"])
    torch.export.save(torch.export.export(model, inputs), at / "model.pt2")
    torch.save({"args": inputs, "kwargs": {}}, at / "inputs.pt")
    paths = {"exported": str(at / "model.pt2"), "inputs": str(at / "inputs.pt")}
    report = at / "report.jsonl"
    report.unlink(missing_ok=True)
    interpret.operate({**paths, "extra_imports": [], **request}, Report(str(report)))  # type: ignore[typeddict-item]
    return list(read_events(report))


def named(told: list[events.Event], kind: type[events.Event]) -> list[Any]:
    return [event for event in told if isinstance(event, kind)]


def test_the_operator_that_overflows_is_reported_with_both_values(tmp_path: Path) -> None:
    """The product does not fit int32. The sum, which torch computes in int64, only adds the wrong product."""
    quantity = torch.tensor([[3, 10], [60000, 500]], dtype=torch.int32)
    price = torch.tensor([[1999, 450], [49900, 1200]], dtype=torch.int32)
    (event,) = named(events_of(tmp_path, Total(), quantity, price), events.NodeOverflow)
    assert (event.op, event.dtype, event.index) == ("aten.mul.Tensor", "int32", [1, 0])
    assert (event.value, event.exact) == (60000 * 49900 - (1 << 32), 60000 * 49900)
    assert event.stack[0].code == "line = quantity * price" and not event.modular
    hashed = Of(lambda key: torch.zeros(8).index_select(0, torch.fmod(key * 60001, 8)))
    with pytest.raises(IndexError):
        events_of(tmp_path, hashed, torch.tensor([40001], dtype=torch.int32))
    (told,) = named([*read_events(tmp_path / "report.jsonl")], events.NodeRaised)
    assert told.overflowed == ["mul"]


@pytest.mark.parametrize(("right", "equal"), [(True, [False, True, False]), (False, [False, False, False])])
def test_in_int64_the_program_gives_what_is_expected(tmp_path: Path, right: bool, equal: list[bool]) -> None:
    """Unchanged, with the exact sum, and unchanged again; another expectation is never met.

    The program's check compared the second of two outputs, with a tolerance of its own.
    """
    voice, music = (torch.tensor([100, 30000, -3], dtype=torch.int16) for _ in range(2))
    expected = (voice.int() + music.int()).float() / 32768 + 1e-3 if right else torch.ones(3)
    both = Of(lambda voice, music: (voice.abs(), voice.clone().add_(music).float() / 32768))
    sides = {"actual": [expected], "expected": [expected], "places": [1], "limits": (0.0, 2e-3)}
    told = events_of(tmp_path, both, voice, music, expected=sides)
    assert [event.op for event in named(told, events.NodeOverflow)] == ["aten.add_.Tensor"]
    assert [event.equal for event in named(told, events.ComparedForm)] == [tuple(equal)]


def test_integers_that_a_conversion_rounds_are_reported_and_tried_in_float64(tmp_path: Path) -> None:
    """Times are converted before they are subtracted; a float32 product follows. Small integers stay."""
    now, then = torch.tensor(1732800200), torch.tensor([1732800000, 1732800110])
    age = Of(lambda now, then: (now.float() - then.float()) @ torch.ones(2, 3))
    told = events_of(tmp_path, age, now, then, expected=[(now - then).float() @ torch.ones(2, 3)])
    first = named(told, events.NodeOverflow)[0]
    assert (first.dtype, first.value, first.exact, first.modular) == ("float32", 1732800256, 1732800200, True)
    assert [event.equal for event in named(told, events.ComparedForm)] == [(False, True, False)]
    assert not named(events_of(tmp_path, age, now - then.min(), then - then.min()), events.NodeOverflow)


def test_floats_that_do_not_fit_a_narrow_integer_are_reported_and_tried_in_int64(tmp_path: Path) -> None:
    """C++ leaves open what such a conversion gives. Values that fit are not reported."""
    quantised = Of(lambda x: (x / 0.05).round().to(torch.int8).float() * 0.05)
    x = torch.tensor([0.5, 9.0])
    told = events_of(tmp_path, quantised, x, expected=[x])
    (found,) = named(told, events.NodeOverflow)
    assert (found.dtype, found.exact, found.index, found.undefined) == ("int8", 180, [1], True)
    assert [event.equal for event in named(told, events.ComparedForm)] == [(False, True, False)]
    assert not named(events_of(tmp_path, quantised, x / 2), events.NodeOverflow)


@pytest.mark.parametrize(("right", "equal"), [(True, (False, True, False)), (False, (False, False, False))])
def test_in_evaluation_mode_the_program_gives_what_is_expected(
    tmp_path: Path, right: bool, equal: tuple[bool, bool, bool]
) -> None:
    """A batch norm exported in training mode gives the trained model's outputs in evaluation mode."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    x = torch.randn(8, 4)
    expected = torch.nn.functional.batch_norm(x, torch.zeros(4), torch.ones(4)) if right else torch.ones(8, 4)
    told = events_of(tmp_path, model, x, expected=[expected])
    ops = [event.op for event in named(told, events.NodeTraining)]
    assert ops == ["aten.batch_norm.default", "aten.dropout.default"]
    assert [(each.form, each.equal) for each in named(told, events.ComparedForm)] == [("evaluation", equal)]


def test_an_operator_that_ignores_strides_is_run_on_contiguous_copies(tmp_path: Path) -> None:
    """The operator reads a transposed tensor's memory in order. A contiguous copy gives the right result."""

    @torch.library.custom_op("interpret_test::in_order", mutates_args=())  # type: ignore[untyped-decorator]
    def in_order(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((x.numel(),), (1,)) * 2

    in_order.register_fake(lambda x: x.new_empty(x.numel()))
    x = torch.arange(6.0).reshape(2, 3)
    told = events_of(tmp_path, Of(lambda x: in_order(x.t())), x, expected=[x.t().flatten() * 2])
    assert [event.op for event in named(told, events.NodeStrided)] == ["interpret_test.in_order.default"]
    (found,) = named(told, events.ComparedForm)
    assert (found.form, found.equal) == ("contiguous", (False, True, False))
    assert not named(events_of(tmp_path, Of(lambda x: in_order(x)), x), events.NodeStrided)


def test_a_write_that_loses_values_is_tried_with_their_sum(tmp_path: Path) -> None:
    """Two receipts of a store: one is lost. A mark that is written twice loses nothing."""
    store, amount = torch.tensor([1, 4, 1]), torch.tensor([10.0, 25, 5])
    right = [torch.tensor([0.0, 15, 0, 0, 25])]
    for write in (lambda b, s, a: b.index_put((s,), b[s] + a), lambda b, s, a: b.scatter(0, s, a)):
        book = Of(lambda s, a, write=write: write(torch.zeros(5).index_fill(0, s, 0), s, a))
        told = events_of(tmp_path, book, store, amount, expected=right)
        (lost,) = named(told, events.NodeRepeated)
        assert (lost.of, lost.index, lost.other, lost.place) == ("given_0", [0], [2], [1])
        (found,) = named(told, events.ComparedForm)
        assert (found.form, found.equal) == ("summed", (False, True, False))
    for index, found in (([0, 4, -1], [[1], [2]]), ([0, 1, 2], [])):  # -1 is place 4; NaN loses nothing
        marks = Of(lambda s, a: torch.full((5,), torch.nan).index_put((s,), a))
        told = named(events_of(tmp_path, marks, torch.tensor(index), amount), events.NodeRepeated)
        assert [place for each in told for place in (each.index, each.other)] == found


def test_with_the_weights_of_now_the_program_gives_what_is_expected(tmp_path: Path) -> None:
    """The expected outputs are those of a linear layer trained after its export."""
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    later = torch.ones(2, 3)
    torch.save({"weight": later}, tmp_path / "weights.pt")
    expected = [nn.functional.linear(x, later, model.bias).detach()]
    told = events_of(tmp_path, model, x, expected=expected, weights=str(tmp_path / "weights.pt"))
    (found,) = named(told, events.ComparedForm)
    assert (found.form, found.equal) == ("weights", (False, True, False))


def test_a_hash_is_marked_as_one_and_numbers_that_fit_are_not_reported(tmp_path: Path) -> None:
    """A hash, of which bits are taken at once, is marked. Floats and int64 do not overflow."""
    ids = torch.arange(5000, dtype=torch.int32)
    (event,) = named(events_of(tmp_path, Of(lambda ids: (ids * 1664525) & 15), ids), events.NodeOverflow)
    assert event.modular
    small = torch.ones(2, 2, dtype=torch.int32)
    for inputs in ((small, small), (small.long() << 40, small.long() << 40), (small.float() * 1e30, small)):
        assert not named(events_of(tmp_path, Total(), *inputs), events.NodeOverflow)


FITS = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("0.weight", FITS, None),
        ("0_weight", FITS, None),  # as the package mangles it
        ("running", FITS, "no constant of that name"),
        ("0.weight", FITS.t(), "it is float32 [3, 2] and the program has float32 [2, 3]"),
        ("0.weight", FITS.double(), "it is float64 [2, 3]"),
    ],
)
def test_updates_fit_or_are_told(tmp_path: Path, name: str, value: torch.Tensor, refused: str | None) -> None:
    """A value replaces the program's only if name, shape and dtype are the same."""
    module = nn.Sequential(nn.Linear(3, 2))
    before = module[0].weight.detach().clone()
    report = tmp_path / "report.jsonl"
    update_program(module, {"file": str(saved(tmp_path, "c.pt", {name: value}))}, Report(str(report)))
    told = list(stream_events(report, events.NotApplied))
    assert torch.equal(module[0].weight, value if refused is None else before)
    assert [event.name for event in told] == ([name] if refused else [])
    assert all(str(refused) in event.what for event in told)


# Custom operators and their fake functions.


SPACE = "aotipromises"


LIBRARY = torch.library.Library(SPACE, "FRAGMENT")
HELD = torch.ones(3, 4)


def filled(x: torch.Tensor, first: int, beyond: int) -> torch.Tensor:
    """Write zeros as native code does, from byte `first` to `beyond` bytes past the end."""
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
    "held": ("Tensor x", lambda x: HELD),
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


def under(
    directory: Path, name: str, repair: bool, calls: int = 1
) -> tuple[torch.Tensor, list[events.Operator]]:
    """An operator's last result on ones of shape [3, 4], and the worker's events."""
    report = directory / "report.jsonl"
    with Operators(Report(str(report)), repair):
        for _ in range(calls):
            result = getattr(getattr(torch.ops, SPACE), name)(torch.ones(3, 4))
    return result, list(stream_events(report, events.Operator))


TWO_ROWS = torch.cat([torch.ones(2, 4), torch.zeros(1, 4)])


@pytest.mark.parametrize(
    ("name", "what", "promised", "returned", "repaired"),
    [
        ("turned", "stride", [4, 1], [1, 3], torch.ones(3, 4)),
        ("widened", "dtype", "torch.float32", "torch.float64", torch.full((3, 4), 2.0)),
        ("shortened", "shape", [3, 4], [2, 4], TWO_ROWS),
    ],
)
@pytest.mark.parametrize("repair", [False, True])
def test_a_layout_that_was_not_promised(
    tmp_path: Path, name: str, what: str, promised: object, returned: object, repaired: Any, repair: bool
) -> None:
    """The event has the layouts of fake function and operator. Repaired, values are as promised.

    Elements that the operator did not write are zero.
    """
    result, (event,) = under(tmp_path, name, repair=repair)
    (pair,) = event.layouts
    assert event.op == f"{SPACE}.{name}.default"
    assert (getattr(pair.promised, what), getattr(pair.returned, what)) == (promised, returned)
    if repair:
        assert (result.stride(), result.dtype) == ((4, 1), torch.float32) and torch.equal(result, repaired)


@pytest.mark.parametrize(("name", "repair"), [("beyond", False), ("beyond", True), ("decorated", False)])
def test_what_an_operator_writes_beyond_what_it_allocated(tmp_path: Path, name: str, repair: bool) -> None:
    """The overrun is reported with its extent and does no harm. A write within is not reported."""
    result, (event,) = under(tmp_path, name, repair=repair)
    assert event.overrun == [Overrun([3, 4], "torch.float32", 8, 8)]
    assert torch.equal(result, torch.zeros(3, 4))
    assert torch.equal(under(tmp_path, "within", repair=repair)[0], torch.zeros(3, 4))
    assert len(list(read_events(tmp_path / "report.jsonl"))) == 1


@pytest.mark.parametrize("name", ["kept", "sized", "declared", "unfaked"])
def test_an_operator_that_keeps_its_promises(tmp_path: Path, name: str) -> None:
    """A correct operator, a data-dependent size and a declared mutation are not reported.

    A missing fake function is reported. torch's own operators are not checked.
    """
    result, told = under(tmp_path, name, repair=name == "unfaked")
    assert told == [] and (name != "unfaked" or torch.equal(result, torch.ones(3, 4)))
    report = tmp_path / "report.jsonl"
    assert [event.event for event in read_events(report)] == ["no_fake"] * (name == "unfaked")
    with Operators(Report(str(report)), repair=True) as watch:
        torch.ones(3) + 1
    assert watch.calls == 0


@pytest.mark.parametrize(("name", "broken"), [("writes", "mutated"), ("returns", "aliases")])
def test_an_argument_that_is_written_or_returned(tmp_path: Path, name: str, broken: str) -> None:
    """An argument is named if the schema does not allow that it is written or returned."""
    _, (event,) = under(tmp_path, name, repair=False)
    assert getattr(event, broken) == ["x"] and not event.layouts


@pytest.mark.parametrize("repair", [False, True])
def test_an_operator_that_returns_the_same_memory_again(tmp_path: Path, repair: bool) -> None:
    """The second call is reported, and repaired by a copy. New memory at a freed address is not reported."""
    result, (event,) = under(tmp_path, "held", repair, calls=2)
    assert (event.kept, event.call) == (True, 2)
    assert (result.data_ptr() == HELD.data_ptr()) is not repair
    assert under(tmp_path, "kept", repair, calls=9)[1] == [event]


# Operators at which a compile failed, and the program that a script was about to compile.


STACK = '  File "/app/model.py", line 9, in forward\n    return codec(x)'


def graph() -> torch.fx.Graph:
    """A graph of two operators, of which the second has its line of the model."""
    made = torch.fx.Graph()
    first = made.call_function(torch.ops.aten.relu.default, (made.placeholder("x"),))
    made.call_function(torch.ops.aten.neg.default, (first,)).meta["stack_trace"] = STACK
    return made


class Lowering:
    """Lowers one node after the other, and rejects the second."""

    def run_node(self, n: torch.fx.Node) -> None:
        if n.target is torch.ops.aten.neg.default:
            raise RuntimeError("Unsupported return type")

    def run(self, of: torch.fx.Graph) -> None:
        for n in of.nodes:
            self.run_node(n)


class Kernel:
    """Like Inductor's IR, which has the nodes of its origin."""

    __module__ = "torch._inductor.ir"

    def __init__(self, origins: list[torch.fx.Node]) -> None:
        self.origins = origins

    def codegen(self) -> None:
        raise RuntimeError("Unsupported return type")


def told(work: Any, *args: Any) -> list[dict[str, str]]:
    try:
        work(*args)
    except RuntimeError as error:
        return stopped_at(error)
    raise AssertionError("it did not fail")


def test_the_nodes_that_were_being_lowered_or_written() -> None:
    """Nodes are named with the model's lines, but not those that succeeded, inputs, or for other errors."""
    assert told(Lowering().run, graph()) == [{"operator": "aten.neg.default", "stack": STACK}]
    found = told(Kernel(list(graph().nodes)).codegen)
    assert [each["operator"] for each in found] == ["aten.relu.default", "aten.neg.default"]
    assert told(Kernel([]).codegen) == []


SCRIPT = """
import sys, torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x + float(sys.argv[1])

if __name__ == "__main__":
    program = torch.export.export(Model(), (torch.ones(3),))
    if "compile" in sys.argv:
        try:
            torch._inductor.aoti_compile_and_package(program)
        except Exception:
            pass
        open(sys.argv[0] + ".went-on", "w")
"""


def test_the_program_of_a_script_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs with its own arguments up to the compile. A script without one is rejected."""
    monkeypatch.setattr("sys.argv", ["pytest"])
    monkeypatch.syspath_prepend(tmp_path)
    script, report = tmp_path / "program.py", Report(str(tmp_path / "report.jsonl"))
    script.write_text(SCRIPT)
    compile_before = torch._inductor.aoti_compile_and_package
    asked: Any = {"script": str(script), "args": ["7", "compile"], "compile": 0}
    program = recapture(asked, report)
    assert program.module()(torch.ones(3)).tolist() == [8.0, 8.0, 8.0]
    assert not script.with_name("program.py.went-on").exists()
    assert torch._inductor.aoti_compile_and_package is compile_before
    asked["args"] = ["7"]
    with pytest.raises(Refused, match="did not reach"):
        recapture(asked, report)


def test_an_index_inside_an_operator_is_told_with_its_element_and_line(tmp_path: Path) -> None:
    """It is looked at before the operator of torch runs, as a GPU reports it late and without the element."""

    @torch.library.custom_op("interpret_test::binned", mutates_args=())  # type: ignore[untyped-decorator]
    def binned(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3).index_add_(0, x.long(), torch.ones_like(x))

    binned.register_fake(lambda x: x.new_empty(3))
    module = torch.export.export(Of(lambda x: binned(x)), (torch.ones(4),)).module()
    watcher = interpret.Watcher(module, [torch.ones(4)], Report(str(tmp_path / "report.jsonl")))
    with torch.no_grad(), pytest.raises(IndexError, match=r"index 3 at \[2\] is out of bounds .* size 3"):
        watcher.run(torch.tensor([0.0, 2.0, 3.0, 1.0]), enable_io_processing=False)
    (event,) = stream_events(tmp_path / "report.jsonl", events.NodeRaised)
    assert event.op == "interpret_test.binned.default" and "index_add_" in event.stack[0].code
