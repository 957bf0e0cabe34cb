"""The wrapper reader: statements, launches, arguments, roles, and the dataflow over them."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

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


@pytest.mark.parametrize("file", sorted(WRAPPERS.glob("*.cpp")), ids=lambda file: file.stem)
def test_a_recorded_wrapper_is_understood(file: Path) -> None:
    """No line of it is left that the reader does not know."""
    assert read_wrapper(file.read_text(encoding="utf-8")).problems == ()


def test_torch_2_15_checks_the_errors_of_a_scatter() -> None:
    """The call that torch 2.13 leaves unchecked is checked in 2.15."""
    scatter = next(n for n in recorded("scatter", "torch-2.15-cpu").launches if n.kind == "extern")
    assert (scatter.callee, scatter.checked) == ("aoti_torch_cpu_scatter_reduce_two_out", True)


def test_kernels_configured_by_macros() -> None:
    """torch 2.14+ with lazy Triton compilation: symbol, cubin, warps and grid come from macros."""
    wrapper = recorded("lazy_shift", "torch-2.15-cuda")
    kernel = wrapper.kernels["shift_kernel_0"]
    assert (kernel.symbol, kernel.cubin, kernel.num_warps, kernel.shared_bytes) == (
        "shift_kernel",
        "ccd.cubin",
        4,
        0,
    )
    assert wrapper.grid(wrapper.launches[3])[0] == "((triton_poi_fused_sin_0_xnumel + (128 - 1)) / (128))"
    assert wrapper.kernels["triton_poi_fused_sin_0"].block_sizes == {"XBLOCK": 128}
    # Without its source, what a user's kernel does to its tensors is not known, and not guessed.
    assert [a.role for a in wrapper.launches[0].tensors] == ["unknown", "unknown"]
    assert [a.role for a in wrapper.launches[3].tensors] == ["read", "written"]


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
    """The wrappers compiled here hold no statement and no argument that the reader does not know."""
    wrapper = read(zoo, name)
    assert wrapper.problems == ()
    assert wrapper.launches
    assert all(a.kind != "unknown" for launch in wrapper.launches for a in launch.arguments)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIED)
def test_places_point_at_the_text(zoo: ZooPackage, name: str) -> None:
    """Offsets of launches and arguments cut exactly the call and the expression out of the file."""
    wrapper = read(zoo, name)
    for launch in wrapper.launches:
        statement = wrapper.text[launch.start : launch.end]
        assert launch.callee in statement
        assert statement.endswith(";")
        assert wrapper.text.count("\n", 0, launch.start) + 1 == launch.line
        for argument in launch.arguments:
            assert wrapper.text[argument.start : argument.end] == argument.expression
            assert launch.start < argument.start < argument.end < launch.end


@pytest.mark.slow
def test_unchecked_shim_calls_are_flagged(zoo: ZooPackage) -> None:
    """A scatter whose error code torch 2.13 throws away is flagged; its kernels and other shims are not."""
    wrapper = read(zoo, "scatter")
    assert [n.kernel for n in wrapper.launches if not n.checked] == ["aoti_torch_cpu_scatter_reduce_two_out"]


@pytest.mark.slow
def test_mutation_of_a_constant_and_an_input(zoo: ZooPackage) -> None:
    """A kernel that writes into a buffer of the model and into its input says so."""
    (launch,) = read(zoo, "counter").launches
    assert {"seen", "arg1_1"} <= set(launch.writes) & set(launch.reads)


@pytest.mark.slow
def test_proxy_call_of_a_custom_operator(zoo: ZooPackage) -> None:
    """A custom operator's tensors are read and written, and its node in the package is known."""
    package = open_package(zoo("plugin"))
    launch = next(n for n in read(zoo, "plugin").launches if n.kind == "proxy_executor")
    assert [a.role for a in launch.tensors] == ["read", "written"]
    assert launch.proxy_index is not None
    assert package.proxy_nodes[launch.proxy_index] == "aotizoo::halve_rows"


def test_user_kernels_have_two_names() -> None:
    """A user's kernel has a numbered name in the wrapper, its own on the device; its stores are partial."""
    wrapper = recorded("user_spread")
    launch = next(n for n in wrapper.launches if n.kind == "user_triton")
    assert (launch.kernel, launch.symbol) == ("spread_kernel_0", "spread_kernel")
    roles = {a.name: (a.role, a.partial) for a in launch.tensors}
    assert roles == {"x": ("read", False), "slots": ("read", False), "out": ("written", True)}


def test_triton_source_lines_count_from_the_quotes() -> None:
    """Line 1 of an embedded source is the rest of the line with the quotes, as in device assertions."""
    kernel = recorded("jagged").kernels["triton_poi_fused_index_mul_0"]
    lines = kernel.source.split("\n")
    assert lines[0] == ""
    assert "tl.device_assert" in lines[33 - 1]


def test_grid_over_the_wrappers_symbols() -> None:
    """A grid is given in the caller's symbols, not in the kernel's parameters."""
    wrapper = recorded("user_spread")
    launch = next(n for n in wrapper.launches if n.kind == "user_triton")
    assert wrapper.grid(launch) == ("s55", "1L", "1L")


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
PIECES = (
    "(",
    ")",
    "{",
    "}",
    ";",
    ",",
    '"',
    "/*",
    "*/",
    "//",
    "\n",
    "std::move(",
    "&",
    "'",
    'R"(',
    "buf0",
    "\\",
)

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


def test_two_statements_on_a_line_and_a_comment() -> None:
    """A reused view frees its base on the same line: two statements, one comment."""
    found = split("\n    auto a = f(b); b.reset();  // reuse\n}")
    assert [(s.kind, s.text, s.line) for s in found] == [
        ("simple", "auto a = f(b)", 2),
        ("simple", "b.reset()", 2),
        ("comment", "// reuse", 2),
        ("close", "}", 3),
    ]


def test_strings_and_comments_hide_braces() -> None:
    """Braces and semicolons in strings, raw strings and comments are no structure."""
    found = split('\n p("a;}{\\"");\n q(R"(\n File "x", line 1;\n })");\n /* ; } */\n}')
    assert [s.kind for s in found] == ["simple", "simple", "comment", "close"]
    assert [s.line for s in found] == [2, 3, 6, 7]


def test_initialisers_are_no_blocks() -> None:
    """Braces after `=` or a type are values; the statement ends at its semicolon."""
    found = split("int64_t a[] = {8L, }; g(std::array<int64_t, 2>{1L, 2L}.cbegin(), 2);}")
    assert [s.text for s in found if s.kind == "simple"] == [
        "int64_t a[] = {8L, }",
        "g(std::array<int64_t, 2>{1L, 2L}.cbegin(), 2)",
    ]


def test_blocks_nest() -> None:
    """Branches, loops, bare scopes and lambdas are blocks with a path."""
    body = "if (x) { a(); } else { while (1) { b(); } } { c(); } auto l = [&](int n) { d(); }; }"
    kinds = {s.text: [b.kind for b in s.block.path[1:]] for s in split(body) if s.kind == "simple"}
    assert kinds["a()"] == ["if"]
    assert kinds["b()"] == ["else", "loop"]
    assert kinds["c()"] == ["scope"]
    assert kinds["d()"] == ["lambda"]


def test_a_cut_text_says_so() -> None:
    """A body without its closing brace ends in `cut`, with the line."""
    last = split("\n a();\n b(c")[-1]
    assert (last.kind, last.line) == ("cut", 3)


def test_arguments_are_split_outside_all_brackets() -> None:
    """Commas in calls, braces, template arguments and strings separate nothing; a last one adds nothing."""
    text = 'a, f(b, c), std::array<T, 2>{d, e}.data(), "x, y", (float*)(g.data_ptr()), '
    assert [text[a:b] for a, b in split_arguments(text, 0, len(text))] == [
        "a",
        "f(b, c)",
        "std::array<T, 2>{d, e}.data()",
        '"x, y"',
        "(float*)(g.data_ptr())",
    ]


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


def test_a_reused_buffer_forgets_its_first_life() -> None:
    """After std::move and a full write, the value of the earlier life is no input any more."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "arg0_1", "weight"),
        "auto buf1 = std::move(buf0);  // reuse",
        mm("buf1", "arg1_1", "weight"),
        "output_handles[0] = buf1.release();",
    )
    behind = Dataflow(wrapper.run).backward("buf1")
    assert (behind.launches, behind.inputs, behind.constants) == ((1,), ("arg1_1",), ("weight",))


def test_views_of_one_buffer_meet_only_where_they_overlap() -> None:
    """Two halves of a buffer are written apart: each half has its own writer, the whole has both."""
    wrapper = body(
        allocate("buf0"),
        f"auto buf1 = {view('buf0', 0)};  // alias",
        f"auto buf2 = {view('buf0', 4)};  // alias",
        mm("buf1", "arg0_1", "weight"),
        mm("buf2", "arg1_1", "weight"),
    )
    flow = Dataflow(wrapper.run)
    assert writers(flow, "buf1") == [0]
    assert writers(flow, "buf2") == [1]
    assert sorted(n for n in writers(flow, "buf0") if n is not None) == [0, 1]
    assert flow.backward("buf1").inputs == ("arg0_1",)


def test_a_view_of_a_view_adds_the_offsets() -> None:
    """The second half of a buffer, seen through a view at offset zero of it, does not meet the first half."""
    wrapper = body(
        allocate("buf0"),
        f"auto buf1 = {view('buf0', 0)};  // alias",
        f"auto buf2 = {view('buf0', 4)};  // alias",
        f"auto buf3 = {view('buf2', 0)};  // alias",
        mm("buf1", "arg0_1", "weight"),
        mm("buf2", "arg1_1", "weight"),
        mm("buf0", view("buf2", 0), view("buf3", 0)),
    )
    flow = Dataflow(wrapper.run)
    assert wrapper.buffers["buf3"].offset == "4L"
    assert flow.backward_from(2).inputs == ("arg1_1",)


def test_a_branch_may_or_may_not_write() -> None:
    """After a conditional write, the value may be the branch's or the one before."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "arg0_1", "weight"),
        "bool arg1_1_scalar;",
        "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_item_bool(arg1_1, &arg1_1_scalar));",
        "if (arg1_1_scalar) {",
        mm("buf0", "weight", "weight"),
        "}",
    )
    flow = Dataflow(wrapper.run)
    assert writers(flow, "buf0") == [1, 0]
    assert set(flow.backward("buf0").inputs) == {"arg0_1", "arg1_1"}


def test_memory_that_nothing_set() -> None:
    """A buffer that is read before anything wrote it is named."""
    wrapper = body(allocate("buf0"), allocate("buf1"), mm("buf1", "buf0", "weight"))
    assert Dataflow(wrapper.run).backward("buf1").unset == ("buf0",)


def test_forward_stops_at_a_full_write() -> None:
    """Taint ends where a buffer is overwritten with something clean."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "arg0_1", "weight"),
        mm("buf0", "arg1_1", "weight"),
        "output_handles[0] = buf0.release();",
    )
    flow = Dataflow(wrapper.run)
    assert (flow.forward(["arg0_1"]).launches, flow.forward(["arg0_1"]).outputs) == ((0,), ())
    assert (flow.forward(["arg1_1"]).launches, flow.forward(["arg1_1"]).outputs) == ((1,), (0,))


def test_a_partial_write_keeps_what_was_there() -> None:
    """A user's kernel that stores at data-dependent places leaves the zeros of the first launch."""
    flow = Dataflow(recorded("user_spread").run)
    assert flow.backward_from(3).launches == (0, 1, 2, 3)


def test_a_loop_hands_values_back() -> None:
    """In a loop, the first launch reads what the last one left; the exit condition is an input of it all."""
    flow = Dataflow(recorded("loop").run)
    assert flow.backward("buf3").launches == (0, 1, 2, 3, 4)
    assert flow.backward("buf3").inputs == ("arg0_1", "arg1_1")
    assert flow.forward(["arg0_1"]).launches == (1, 2, 4)
    written = [use.name for use in flow.steps[flow.order_of[3]].writes]
    assert flow.forward(written, 3).launches == (0, 1, 2, 3, 4)


def test_a_loop_does_not_reach_what_ran_before_it() -> None:
    """Memory that a loop taints and that had an earlier life does not taint the readers of that life."""
    wrapper = body(
        allocate("buf0"),
        mm("buf0", "weight", "weight"),
        allocate("buf1"),
        mm("buf1", "buf0", "weight"),
        "auto buf2 = std::move(buf0);  // reuse",
        "while (1) {",
        mm("buf2", "arg0_1", "weight"),
        "}",
    )
    assert Dataflow(wrapper.run).forward(["arg0_1"]).launches == (2,)


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
