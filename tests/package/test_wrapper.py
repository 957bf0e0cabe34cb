"""The wrapper reader: launches, arguments and roles, on packages, recordings and damaged wrappers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.provenance import read_provenance
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.conftest import ZooPackage
from tests.package.made_wrapper import make_wrapper
from tests.package.summaries import GOLD, WRAPPERS, recorded, summary
from tests.zoo.names import TRIED


def read(zoo: ZooPackage, name: str) -> Wrapper:
    package = open_package(zoo(name))
    return read_wrapper(package.wrapper_text, package.kernel_text)


@pytest.mark.parametrize("file", sorted(WRAPPERS.glob("*.cpp")), ids=lambda file: file.stem)
def test_recorded_wrappers_read_as_before(file: Path) -> None:
    """Every launch, argument, role, writer and symbol of a recorded wrapper is as in its gold file."""
    wrapper = read_wrapper(file.read_text(encoding="utf-8"))
    assert wrapper.problems == ()
    assert summary(wrapper) == (GOLD / f"{file.stem}.txt").read_text(encoding="utf-8")


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
