"""Reading wrappers: statements, launches, arguments, roles, dataflow, and lines of the model."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.package.dataflow import Dataflow
from mcp_server.package.exported import Provenance, indexing_first, read_exported, read_provenance, read_stack
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.wrapper import read_wrapper
from tests.conftest import Zoo
from tests.package.made_wrapper import make_wrapper
from tests.package.summaries import GOLD, WRAPPERS, all_summaries, read, recorded
from tests.zoo.names import TRIED


def test_recorded_wrappers_read_as_before() -> None:
    """The summary of recorded wrappers is unchanged."""
    assert all_summaries() == GOLD.read_text()


def test_the_recorded_wrappers_are_understood() -> None:
    """The reader understands every line of them, and knows which errors are unchecked."""
    assert [path.name for path in WRAPPERS.glob("*.cpp") if read_wrapper(path.read_text()).problems] == []
    scatter = next(n for n in recorded("scatter", "torch-2.15-cpu").launches if n.kind == "extern")
    assert scatter.checked  # unchecked in torch 2.13
    # Without its source, the roles of a user's kernel are unknown, and not guessed.
    lazy = recorded("lazy_shift", "torch-2.15-cuda").launches
    assert [[a.role for a in lazy[n].tensors] for n in (0, 3)] == [["unknown"] * 2, ["read", "written"]]
    # Line 1 of an embedded source is the rest of the line with the quotes, as in device assertions.
    lines = recorded("jagged").kernels["triton_poi_fused_index_mul_0"].source.split("\n")
    assert lines[0] == "" and "tl.device_assert" in lines[33 - 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_every_statement_is_understood(zoo: Zoo, name: str) -> None:
    """Wrappers compiled here are understood, too, and offsets give each launch's and argument's text."""
    wrapper = read(zoo, name)
    assert wrapper.problems == () and wrapper.launches
    for launch in wrapper.launches:
        statement = wrapper.text[launch.start : launch.end]
        assert launch.callee in statement and statement.endswith(";")
        assert wrapper.text.count("\n", 0, launch.start) + 1 == launch.line
        for argument in launch.arguments:
            assert argument.kind != "unknown"
            assert wrapper.text[argument.start : argument.end] == argument.expression
            assert launch.start < argument.start < argument.end < launch.end


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("    AtenTensorHandle buf1_handle;", "    odd(buf0, 3);\n\\g<0>", "a statement of unknown form"),
        # An unknown tensor is not taken for a number.
        (r"auto& table_weight =", "auto& other =", "the argument wrap_with_raii_handle_if_needed"),
        ("(?s)^.*$", "int main() {}", "no run_impl: this is not a wrapper, or it is cut"),
    ],
)
def test_what_is_not_understood_is_reported_with_its_line(old: str, new: str, what: str) -> None:
    """An unknown statement is named with its line, and the rest is read."""
    text = re.sub(old, new, make_wrapper(4), count=1)
    wrapper = read_wrapper(text)
    (problem,) = wrapper.problems
    assert problem.what.startswith(what)
    if "odd(" in text:
        assert problem.line == text.count("\n", 0, text.index("odd(")) + 1
        assert len(wrapper.launches) == 4


def test_a_context_guard_gives_its_launch_a_stack() -> None:
    """The text of a KernelContextGuard, with braces and quotes, belongs to the launch in its block."""
    text = make_wrapper(2)
    call = "    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_zero_(buf0));\n"
    guard = (
        '    {\n    KernelContextGuard _ctx("aoti_torch_cuda_mm_out", R"(\n'
        'File "/app/model.py", line 12, in forward\n'
        '    return {"a": self.head(x)};\n)");\n'
        '    RAIIAtenRecordFunctionHandle record_mm_("aoti_torch_cuda_mm_out", nullptr);\n'
        "    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cuda_mm_out(buf2, buf1, table_weight));\n    }\n"
    )
    wrapper = read_wrapper(text.replace("    output_handles[0]", call + guard + "    output_handles[0]"))
    assert wrapper.problems == ()
    launch = wrapper.launches[-1]
    assert (launch.kernel, launch.context[-1].kind) == ("aoti_torch_cuda_mm_out", "scope")
    assert [m.line for m in read_provenance(launch, {}).locations] == [12]
    assert [(t.callee, t.writes) for t in wrapper.run.transfers] == [("aoti_torch_zero_", "buf0")]


# Shape expressions.


@pytest.mark.parametrize("text", ["s1", "s44 / 0", "__import__('os')", "s44.real", "", "(" * 500, "9" * 3000])
def test_anything_else_is_unknown(text: str) -> None:
    """Unknown names, other calls, attributes and nonsense give None, never an exception."""
    assert evaluate(text, {"s44": 7}) is None


# The dataflow.

_HEAD = """void AOTInductorModel::run_impl(AtenTensorHandle* input_handles) {
    auto arg0_1 = std::move(inputs[0]);
    auto arg1_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& weight = constants_->at(0);
    static constexpr int64_t int_array_0[] = {8L, };
    static constexpr int64_t int_array_1[] = {1L, };
    static constexpr int64_t int_array_2[] = {4L, };
"""


def body(*lines: str) -> Any:
    """Read a wrapper of hand-written statements."""
    return read_wrapper(_HEAD + "\n".join(f"    {line}" for line in lines) + "\n}\n")


def allocate(name: str) -> str:
    return (
        f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, int_array_0, int_array_1, "
        f"cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &{name}_handle)); "
        f"RAIIAtenTensorHandle {name}({name}_handle);"
    )


def mm(out: str, left: str, right: str) -> str:
    return f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out({out}, {left}, {right}));"


def view(base: str, offset: int) -> str:
    return (
        "wrap_with_raii_handle_if_needed("
        f"reinterpret_tensor_wrapper({base}, 1, int_array_2, int_array_1, {offset}L))"
    )


def writers(flow: Dataflow, name: str, launch: int | None = None) -> list[int | None]:
    return [step.launch for step in flow.last_writers(name, launch)]


def behind(flow: Dataflow, name: str) -> tuple[tuple[int, ...], tuple[str, ...], tuple[str, ...]]:
    """The launches, inputs and constants from which a tensor is computed."""
    found = flow.backward(name)
    return found.launches, found.inputs, found.constants


ALLOCATED, MOVED = allocate("buf0"), "auto {} = std::move(buf0);  // reuse"
HALVES = [ALLOCATED, f"auto buf1 = {view('buf0', 0)};  // alias", f"auto buf2 = {view('buf0', 4)};  // alias"]
BRANCH = [
    "bool arg1_1_scalar;",
    "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_item_bool(arg1_1, &arg1_1_scalar));",
    "if (arg1_1_scalar) {",
    mm("buf0", "weight", "weight"),
    "}",
]
Ask = Callable[[Dataflow], object]
FLOWS: dict[str, tuple[list[str], Ask, object]] = {
    "a reused buffer forgets its first life": (
        [ALLOCATED, mm("buf0", "arg0_1", "weight"), MOVED.format("buf1"), mm("buf1", "arg1_1", "weight")],
        lambda flow: behind(flow, "buf1"),
        ((1,), ("arg1_1",), ("weight",)),
    ),
    "halves have their own writers, the whole has both": (
        [*HALVES, mm("buf1", "arg0_1", "weight"), mm("buf2", "arg1_1", "weight")],
        lambda flow: ([writers(flow, f"buf{n}") for n in (1, 2, 0)], flow.backward("buf1").inputs),
        ([[0], [1], [1, 0]], ("arg0_1",)),
    ),
    "a view of a view adds the offsets": (
        [
            *HALVES,
            f"auto buf3 = {view('buf2', 0)};  // alias",
            *(mm("buf1", "arg0_1", "weight"), mm("buf2", "arg1_1", "weight")),
            mm("buf0", view("buf2", 0), view("buf3", 0)),
        ],
        lambda flow: (flow.body.buffers["buf3"].offset, flow.backward_from(2).inputs),
        ("4L", ("arg1_1",)),
    ),
    "a branch may or may not write": (
        [ALLOCATED, mm("buf0", "arg0_1", "weight"), *BRANCH],
        lambda flow: (writers(flow, "buf0"), sorted(flow.backward("buf0").inputs)),
        ([1, 0], ["arg0_1", "arg1_1"]),
    ),
    "memory that nothing set": (
        [ALLOCATED, allocate("buf1"), mm("buf1", "buf0", "weight")],
        lambda flow: flow.backward("buf1").unset,
        ("buf0",),
    ),
    "taint ends at a full write": (
        [
            *(ALLOCATED, mm("buf0", "arg0_1", "weight"), mm("buf0", "arg1_1", "weight")),
            "output_handles[0] = buf0.release();",
        ],
        lambda flow: [(s.launches, s.outputs) for s in map(flow.forward, (["arg0_1"], ["arg1_1"]))],
        [((0,), ()), ((1,), (0,))],
    ),
    "a loop does not reach what ran before it": (
        [
            *(ALLOCATED, mm("buf0", "weight", "weight"), allocate("buf1"), mm("buf1", "buf0", "weight")),
            *(MOVED.format("buf2"), "while (1) {", mm("buf2", "arg0_1", "weight"), "}"),
        ],
        lambda flow: flow.forward(["arg0_1"]).launches,
        (2,),
    ),
}


@pytest.mark.parametrize("name", FLOWS)
def test_flows(name: str) -> None:
    """Dataflow follows reuse, views, branches and loops."""
    lines, asked, expected = FLOWS[name]
    assert asked(Dataflow(body(*lines).run)) == expected


"""A buffer by its number, and the offset of the half of it that a view shows."""


# The lines of the model that a launch comes from.


STACK = """File "/app/model.py", line 12, in forward
    return self.head(x)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)"""


def test_frames_and_nodes_of_a_launch() -> None:
    """They come from the package's file, else from a guard's text, else only nodes from a comment.

    The innermost frame of the user's files counts. Frames of installed packages are only counted.
    """
    launch = recorded("jagged").launches[1]
    key = f"{launch.kernel}:{launch.handle}"
    entry = {"stack_traces": [STACK, STACK], "post_grad_nodes": ["addmm"], "pre_grad_nodes": ["linear"]}
    found = read_provenance(launch, {key: entry})
    lines = [(m.file, m.line, m.code) for m in found.locations]
    assert (found.source, lines) == ("kernel_information", [("/app/model.py", 12, "return self.head(x)")])
    assert (found.folded, found.post_grad, found.pre_grad) == (2, ("addmm",), ("linear",))
    guarded = read_provenance(replace(launch, stack=f"\n{STACK}\n\n{STACK}\n"), {})
    assert (guarded.source, len(guarded.stacks), len(guarded.locations)) == ("context_guard", 2, 1)
    bare = read_provenance(launch, {})
    assert bare.source == "comments" and "linear" in bare.post_grad and bare.locations == ()
    for odd in ({}, {"stack_traces": None}, {"stack_traces": [1, "x"]}, {"post_grad_nodes": "x"}):
        assert read_provenance(launch, {key: odd}).locations == ()
    frames = read_stack('File "a.py", line 3\nFile "b.py", line 4, in f')
    assert [(f.file, f.line, f.code) for f in frames] == [("a.py", 3, ""), ("b.py", 4, "")]


LINEAR = 'File "/app/m.py", line 9, in forward\n    h = self.mix(torch.cat([who, what], dim=-1))'
VIEW = 'File "/app/m.py", line 7, in forward\n    who = self.users(u).expand(-1, items.shape[1], -1)'
IN_TORCH = '\n  File "/site-packages/torch/nn/sparse.py", line 9, in forward\n    return F.embedding('
ITEMS = 'File "/app/m.py", line 8, in forward\n    what = self.items(items)' + IN_TORCH
TABLE = 'File "/app/m.py", line 6, in forward\n    bias = self.table[buckets]'
GATHER = 'File "/app/m.py", line 5, in forward\n    picked = scores.gather(1, best)'


@pytest.mark.parametrize(
    "stacks, indexed, first",
    [
        ([LINEAR, VIEW, VIEW + IN_TORCH, ITEMS], ["items.weight"], 8),
        ([LINEAR, VIEW, VIEW + IN_TORCH, ITEMS], ["encoder.users.weight"], 7),
        ([LINEAR, GATHER, TABLE], ["table"], 6),
        ([LINEAR, VIEW, GATHER], [], 5),
        ([LINEAR, VIEW], [], 9),
    ],
)
def test_the_line_that_indexes_comes_first(stacks: list[str], indexed: list[str], first: int) -> None:
    """Lines of the constant's module come first, else lines that index; otherwise the order stays."""
    given = Provenance("kernel_information", stacks=tuple(read_stack(text) for text in stacks))
    ordered = indexing_first(given, indexed)
    assert ordered.locations[0].line == first
    assert set(ordered.stacks) == {s for s in given.stacks if s[0].line == first or not indexed}


HELPED = """class M:
    def pick(self, x):
        return self.rows(x[ids])

    def rows(self, x):
        return x[:2]

    def forward(self, x):
        return self.pick(x)
"""


@pytest.mark.parametrize("text, lines", [(HELPED, [3, 6]), (f"\n{HELPED}", [9]), ("x = (\n", [9]), ("", [9])])
def test_the_line_inside_a_helper_is_found(tmp_path: Path, text: str, lines: list[int]) -> None:
    """A call of helpers leads to their lines that index, but only in the file that was compiled."""
    source = tmp_path / "model.py"
    source.write_text(text)
    source = source if text else Path("m" * 999)
    stack = read_stack(f'File "{source}", line 9, in forward\n    return self.pick(x)')
    assert [at.line for at in indexing_first(Provenance("comments", stacks=(stack,)), []).locations] == lines


# Lines of operators that the provenance of a package does not give.


def test_lines_of_own_operators_and_of_writes(zoo: Zoo) -> None:
    """The program says where an operator outside torch is called, and where the model writes in place."""
    own = read_exported(zoo("plugin").with_name("plugin.exported.pt2"))
    ((target, line),) = own.special
    assert not target.startswith("aten.") and "halve_rows" in line.code and own.in_place == []
    written = read_exported(zoo("counter").with_name("counter.exported.pt2"))
    assert [line.code for line in written.in_place] == ["self.seen.add_(x)", "x.mul_(2)"]
    assert read_exported(zoo("ranker").with_name("ranker.exported.pt2")).special == ()
