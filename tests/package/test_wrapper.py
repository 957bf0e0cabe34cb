"""The wrapper reader: statements, launches, arguments, roles, and the dataflow over them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.provenance import read_provenance
from mcp_server.package.terms.asserts import find_asserts
from mcp_server.package.terms.blocks import Statement, split_arguments, split_body
from mcp_server.package.terms.sizes import evaluate
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.conftest import ZooPackage
from tests.package.made_wrapper import make_wrapper
from tests.package.summaries import GOLD, WRAPPERS, all_summaries, read, recorded
from tests.zoo.names import TRIED, thorough

# The wrapper reader: launches, arguments and roles, on packages, recordings and damaged wrappers.


def test_recorded_wrappers_read_as_before() -> None:
    """Every launch, argument, role, writer and symbol of the recorded wrappers is as in the kept summary."""
    assert all_summaries() == GOLD.read_text()


def test_the_recorded_wrappers_are_understood() -> None:
    """No line of them is left that the reader does not know; what scatter throws away is unchecked."""
    kept = GOLD.read_text()
    assert "not understood" not in kept and "aoti_torch_cpu_scatter_reduce_two_out" in kept
    scatter = next(n for n in recorded("scatter", "torch-2.15-cpu").launches if n.kind == "extern")
    assert scatter.checked  # which torch 2.13 leaves unchecked
    # Without its source, what a user's kernel does to its tensors is not known, and not guessed.
    lazy = recorded("lazy_shift", "torch-2.15-cuda").launches
    assert [[a.role for a in lazy[n].tensors] for n in (0, 3)] == [["unknown"] * 2, ["read", "written"]]


def test_a_grid_chosen_by_autotuning() -> None:
    """Of a switch over configurations the one whose index the macros name."""
    text = (WRAPPERS / "lazy_shift.torch-2.15-cuda.cpp").read_text(encoding="utf-8")
    switch = (
        "uint32_t grid_0, grid_1, grid_2;\n    switch (shift_kernel_0_result.config_index) {\n"
        "        case 0: grid_0 = _grid_0; grid_1 = 1L; grid_2 = 1L; break;\n"
        "        case 1: grid_0 = 2*_grid_0; grid_1 = _grid_1; grid_2 = 1L; break;\n"
        "        default: grid_0 = 1; grid_1 = 1; grid_2 = 1; break;\n    }\n"
    )
    text = text.replace("SHIFT_KERNEL_0_CONFIG_INDEX -1", "SHIFT_KERNEL_0_CONFIG_INDEX 1")
    text = re.sub(r"uint32_t grid_0 = _grid_0;\n.*\n.*grid_2 = _grid_2;\n", switch, text)
    assert read_wrapper(text).kernels["shift_kernel_0"].grid == ("2*_grid_0", "_grid_1", "1L")


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_every_statement_is_understood(zoo: ZooPackage, name: str) -> None:
    """In wrappers compiled here, too; offsets of launches and arguments cut out call and expression."""
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


@pytest.mark.slow
def test_roles_in_packages_compiled_here(zoo: ZooPackage) -> None:
    """A constant and an input that are written, a custom operator, an error code that is thrown away."""
    (launch,) = read(zoo, "counter").launches
    assert {"seen", "arg1_1"} <= set(launch.writes) & set(launch.reads)
    launch = next(n for n in read(zoo, "plugin").launches if n.kind == "proxy_executor")
    assert [a.role for a in launch.tensors] == ["read", "written"] and launch.proxy_index is not None
    assert open_package(zoo("plugin")).proxy_nodes[launch.proxy_index] == "aotizoo::halve_rows"
    unchecked = [n.kernel for n in read(zoo, "scatter").launches if not n.checked]
    assert unchecked == ["aoti_torch_cpu_scatter_reduce_two_out"]


def test_triton_source_lines_count_from_the_quotes() -> None:
    """Line 1 of an embedded source is the rest of the line with the quotes, as in device assertions."""
    kernel = recorded("jagged").kernels["triton_poi_fused_index_mul_0"]
    lines = kernel.source.split("\n")
    assert lines[0] == ""
    assert "tl.device_assert" in lines[33 - 1]


def test_an_unknown_statement_is_reported_with_its_line() -> None:
    """A statement of no known form is named with its line, and the rest is read all the same."""
    text = make_wrapper(4)
    at = text.index("    AtenTensorHandle buf1_handle;")
    broken = text[:at] + "    frobnicate(buf0, 3);\n" + text[at:]
    wrapper = read_wrapper(broken)
    assert [(p.what, p.line) for p in wrapper.problems] == [
        ("a statement of unknown form", broken.count("\n", 0, at) + 1)
    ]
    assert len(wrapper.launches) == 4


def test_a_text_that_is_no_wrapper() -> None:
    """Any other text is reported as no wrapper."""
    assert [p.what for p in read_wrapper("int main() {}").problems] == [
        "no run_impl: this is not a wrapper, or it is cut"
    ]


def test_a_context_guard_gives_its_launch_a_stack() -> None:
    """The text of a KernelContextGuard, with its braces and quotes, belongs to the launch in its block."""
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


def test_a_tensor_of_unknown_origin_is_a_problem() -> None:
    """An argument made of a tensor that the reader never saw is reported, and not taken for a number."""
    text = make_wrapper(4).replace(
        "auto& table_weight = constants_->at(0)", "auto& other = constants_->at(0)"
    )
    (problem,) = read_wrapper(text).problems
    assert problem.what.startswith("the argument wrap_with_raii_handle_if_needed")


TEXTS = (make_wrapper(6), *(p.read_text(encoding="utf-8") for p in sorted(WRAPPERS.glob("*.cpp"))))
WHOLE = {text: len(read_wrapper(text).launches) for text in TEXTS}
PIECES = [*"(){};,&'\n\\", '"', "/*", "*/", "//", "std::move(", 'R"(', "buf0"]

_texts = st.sampled_from(TEXTS)


def use_all(wrapper: Wrapper) -> None:
    """Everything that a query would ask of it."""
    flow = Dataflow(wrapper.run)
    for launch in wrapper.launches:
        flow.backward_from(launch.index)
        flow.through(launch.index)
        wrapper.grid(launch)
    for kernel in wrapper.kernels.values():
        find_asserts(kernel.source)
    lines = wrapper.text.count("\n") + 1
    assert all(1 <= problem.line <= lines for problem in wrapper.problems)


@settings(max_examples=60, deadline=None)
@given(_texts, st.data())
def test_a_cut_wrapper_says_that_it_is_cut(text: str, data: st.DataObject) -> None:
    """Wherever the text ends, what came before is read, and the missing end is reported."""
    start = text.index("::run_impl(")
    end = text.rindex("\n} // AOTInductorModel::run_impl")
    wrapper = read_wrapper(text[: data.draw(st.integers(start, end))])
    assert wrapper.problems
    assert len(wrapper.launches) <= WHOLE[text]
    use_all(wrapper)


@settings(max_examples=100, deadline=None)
@given(_texts, st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 30)), max_size=4))
def test_a_mutated_wrapper_never_crashes(text: str, edits: list[tuple[float, str, int]]) -> None:
    """Pieces put in and stretches taken out anywhere: reading and every query still come to an end."""
    for where, piece, removed in edits:
        at = int(where * len(text))
        text = text[:at] + piece + text[at + removed :]
    use_all(read_wrapper(text))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_lost_line_loses_nothing_else_in_silence(data: st.DataObject) -> None:
    """Without one line of run_impl, all launches on other lines are still there, or a problem is reported."""
    wrapper = recorded("user_spread")
    lines = wrapper.text.split("\n")
    last = wrapper.text.count("\n", 0, wrapper.run.end)
    number = data.draw(st.integers(wrapper.run.line, last - 1))
    less = read_wrapper("\n".join(lines[:number] + lines[number + 1 :]))
    kept = [n.kernel for n in wrapper.launches if n.line != number + 1]
    assert less.problems or [n.kernel for n in less.launches] == kept


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    """Text that is no wrapper at all gives a problem, and so does such a function body."""
    assert read_wrapper(text).problems
    use_all(read_wrapper("void AOTInductorModel::run_impl(int x) {" + text))


# The splitter of statements, and the shape expressions in them.


def split(body: str) -> list[Statement]:
    return list(split_body("f() {" + body, len("f() {"), 1, "f"))


@pytest.mark.parametrize(
    ("body", "statements"),
    [
        # A reused view frees its base on the same line.
        (
            "\n    auto a = f(b); b.reset();  // reuse\n}",
            ["2 simple auto a = f(b)", "2 simple b.reset()", "2 comment // reuse", "3 close }"],
        ),
        # Braces and semicolons in strings, raw strings and comments are no structure.
        (
            '\n p("a;}{\\"");\n q(R"(\n "x", line 1;\n })");\n /* ; } */\n}',
            [
                '2 simple p("a;}{\\"")',
                '3 simple q(R"(\n "x", line 1;\n })")',
                "6 comment /* ; } */",
                "7 close }",
            ],
        ),
        # Braces after `=` or a type are values.
        (
            "int64_t a[] = {8L, }; g(std::array<int64_t, 2>{1L, 2L}.cbegin(), 2);}",
            [
                "1 simple int64_t a[] = {8L, }",
                "1 simple g(std::array<int64_t, 2>{1L, 2L}.cbegin(), 2)",
                "1 close }",
            ],
        ),
        ("\n a();\n b(c", ["2 simple a()", "3 cut b(c"]),
    ],
)
def test_statements(body: str, statements: list[str]) -> None:
    """With their lines; a body without its closing brace ends in `cut`."""
    assert [f"{s.line} {s.kind} {s.text}" for s in split(body)] == statements


def test_blocks_nest() -> None:
    """Branches, loops, bare scopes and lambdas are blocks with a path."""
    body = "if (x) { a(); } else { while (1) { b(); } } { c(); } auto l = [&](int n) { d(); }; }"
    kinds = {s.text: [b.kind for b in s.block.path[1:]] for s in split(body) if s.kind == "simple"}
    assert kinds["a()"] == ["if"]
    assert kinds["b()"] == ["else", "loop"]
    assert kinds["c()"] == ["scope"]
    assert kinds["d()"] == ["lambda"]


def test_arguments_are_split_outside_all_brackets() -> None:
    """Commas in calls, braces, template arguments and strings separate nothing; a last one adds nothing."""
    parts = ["a", "f(b, c)", "std::array<T, 2>{d, e}.data()", '"x, y"', "(float*)(g.data_ptr())"]
    text = ", ".join([*parts, ""])
    assert [text[a:b] for a, b in split_arguments(text, 0, len(text))] == parts


_CODE = st.text(alphabet="ab01 \n;{}()[]<>,=&*\"'\\/#R.:+-", max_size=300)


@given(_CODE)
def test_any_text_is_split_in_order(text: str) -> None:
    """Whatever the text: statements do not overlap, lines rise, and each text is what stands at its place."""
    whole = "f() {" + text
    end, line = 0, 0
    for found in split_body(whole, len("f() {"), 1, "f"):
        assert end <= found.start <= found.end <= len(whole)
        assert line <= found.line <= whole.count("\n") + 1
        assert whole[found.start : found.end].startswith(found.text)
        assert found.line == whole.count("\n", 0, found.start) + 1
        end, line = found.end, found.line


@given(_CODE)
def test_any_arguments_stay_in_order(text: str) -> None:
    """Whatever the text: argument places rise and lie inside it."""
    end = 0
    for begin, stop in split_arguments(text, 0, len(text)):
        assert end <= begin
        assert stop <= len(text)
        end = max(end, stop)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2L*s44", 14),
        ("(-8L) + s44*s44", 41),
        ("(1.0/2.0)*s44", Fraction(7, 2)),
        ("c10::div_floor_integer(static_cast<int64_t>(s44), static_cast<int64_t>(2L))", 3),
        ("std::max<int64_t>(1L, s44)", 7),
        ("s44 % 4L", 3),
        ("7", 7),
    ],
)
def test_forms_of_the_generator(text: str, value: Fraction) -> None:
    """Sums, products, rationals, floor division, min and max as cexpr prints them."""
    assert evaluate(text, {"s44": 7}) == value


@pytest.mark.parametrize("text", ["s1", "s44 / 0", "__import__('os')", "s44.real", "", "(" * 500, "9" * 3000])
def test_anything_else_is_unknown(text: str) -> None:
    """Unknown names, other calls, attributes and nonsense give None, never an exception."""
    assert evaluate(text, {"s44": 7}) is None


@given(st.text(alphabet="s4(*+-/%,)L0129. ", max_size=60))
def test_no_text_crashes(text: str) -> None:
    """Any text is a number or None."""
    assert evaluate(text, {"s4": 3}) is None or isinstance(evaluate(text, {"s4": 3}), Fraction)


# The dataflow: last writers, backward and forward slices, over aliases, reuse, branches and loops.

_HEAD = """void AOTInductorModel::run_impl(AtenTensorHandle* input_handles) {
    auto arg0_1 = std::move(inputs[0]);
    auto arg1_1 = std::move(inputs[1]);
    [[maybe_unused]] auto& weight = constants_->at(0);
    static constexpr int64_t int_array_0[] = {8L, };
    static constexpr int64_t int_array_1[] = {1L, };
    static constexpr int64_t int_array_2[] = {4L, };
"""


def body(*lines: str) -> Wrapper:
    """A wrapper of hand-written statements."""
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
    """The launches, inputs and constants that a tensor is computed from."""
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
    """Reuse, views, branches and loops in hand-written statements."""
    lines, asked, expected = FLOWS[name]
    assert asked(Dataflow(body(*lines).run)) == expected


def test_flows_of_recorded_wrappers() -> None:
    """A store at data-dependent places keeps what was there; a loop hands its values back to its start."""
    assert Dataflow(recorded("user_spread").run).backward_from(3).launches == (0, 1, 2, 3)
    flow = Dataflow(recorded("loop").run)
    assert behind(flow, "buf3")[:2] == ((0, 1, 2, 3, 4), ("arg0_1", "arg1_1"))
    assert flow.forward(["arg0_1"]).launches == (1, 2, 4)
    written = [use.name for use in flow.steps[flow.order_of[3]].writes]
    assert flow.forward(written, 3).launches == (0, 1, 2, 3, 4)


Part = tuple[int, int | None]
"""A buffer by its number, and the offset of the half of it that a view shows."""
_PARTS = st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 4]))


@given(st.lists(st.tuples(_PARTS, _PARTS, _PARTS), min_size=3, max_size=8), st.booleans())
def test_a_slice_is_what_the_elements_depend_on(calls: list[tuple[Part, Part, Part]], views: bool) -> None:
    """Against memory in which each element remembers the launches and inputs that went into it.

    With views a slice may have more, since a part that is overwritten does not end an earlier value.
    """
    names = ("arg0_1", "buf0", "buf1")
    lines = [allocate(name) for name in names[1:]]
    memory: dict[str, list[set[int | str]]] = {name: [set() for _ in range(8)] for name in names}
    memory["arg0_1"] = [{"arg0_1"} for _ in range(8)]
    behind: list[set[int | str]] = []
    for number, parts in enumerate(calls):
        places = []
        for at, offset in parts:
            shown = slice(offset, offset + 4) if views and offset is not None else slice(8)
            places.append((names[at], shown))
        (out, written), *read = places
        read_from = [each for name, part in read for each in memory[name][part]]
        behind.append(set[int | str]({number}).union(*read_from))
        memory[out][written] = [behind[-1]] * len(memory[out][written])
        lines.append(mm(*(view(n, part.start or 0) if part != slice(8) else n for n, part in places)))
    flow = Dataflow(body(*lines).run)
    for number, expected in enumerate(behind):
        found = flow.backward_from(number)
        depends = {*found.launches, *found.inputs}
        assert depends >= expected if views else depends == expected
    reached, due = set(flow.forward(["arg0_1"]).launches), {n for n, b in enumerate(behind) if "arg0_1" in b}
    assert reached >= due if views else reached == due


def test_a_long_chain() -> None:
    """Everything that a chain computes depends on all launches before it."""
    wrapper = read_wrapper(make_wrapper(50))
    flow = Dataflow(wrapper.run)
    assert flow.backward("buf50").launches == tuple(range(50))
    assert flow.forward(["arg1_1"]).launches == tuple(range(50))


@thorough
@pytest.mark.slow
def test_branches_of_a_conditional(zoo: ZooPackage) -> None:
    """The output depends on both branches and on the predicate's launch."""
    flow = Dataflow(read(zoo, "branch").run)
    assert flow.backward("buf4").launches == tuple(range(7))
    assert flow.backward("buf4").inputs == ("arg0_1",)


@pytest.mark.slow
def test_forward_and_backward_agree(zoo: ZooPackage) -> None:
    """A launch lies in the forward slice of an input exactly if that input lies behind the launch."""
    for name in ("attention", "jagged", "scatter", "branch", "select"):
        wrapper = read(zoo, name)
        flow = Dataflow(wrapper.run)
        for buffer in wrapper.inputs().values():
            reached = set(flow.forward([buffer.name]).launches)
            behind = {n.index for n in wrapper.launches if buffer.name in flow.backward_from(n.index).inputs}
            assert reached == behind
