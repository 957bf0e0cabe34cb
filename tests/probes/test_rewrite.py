"""Probes are inserted without moving a line, and what cannot get one is listed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import Wrapper, read_wrapper
from mcp_server.probes.model_build import blame
from mcp_server.probes.rewrite import Edit, apply, numbered, quoted, rewrite
from tests.conftest import ZooPackage

WRAPPER = """extern "C"  void  cpp_fused_log_0(float* in_out_ptr0,
                       const float* in_ptr0,
                       const int64_t ks0);
void AOTInductorModel::run_impl(
    AtenTensorHandle* input_handles,
    DeviceStreamType stream
) {
    auto inputs = steal_from_raw_handles_to_raii_handles(input_handles, 1);
    auto arg0_1 = std::move(inputs[0]);
    [[maybe_unused]] auto& w = constants_->at(0);
    auto arg0_1_size = arg0_1.sizes();
    int64_t s77 = arg0_1_size[0];
    const int64_t int_array_0[] = {s77, 16L};
    static constexpr int64_t int_array_1[] = {16L, 1L};
    AtenTensorHandle buf0_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(2, int_array_0, int_array_1, cached_torch_dtype_float32, cached_torch_device_type_cpu, this->device_idx_, &buf0_handle));
    RAIIAtenTensorHandle buf0(buf0_handle);
    cpp_fused_log_0((float*)(buf0.data_ptr()), (const float*)(arg0_1.data_ptr()), s77);
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_mm_out(buf0, arg0_1, wrap_with_raii_handle_if_needed(reinterpret_tensor_wrapper(w, 2, int_array_0, int_array_1, 0L))));
    AtenTensorHandle buf1_handle;
    AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_cpu_topk(buf0, 4L, 1L, 1, 1, &buf1_handle));
    RAIIAtenTensorHandle buf1(buf1_handle);
    output_handles[0] = buf1.release();
} // AOTInductorModel::run_impl
"""  # noqa: E501 - a wrapper's lines are long

MARKER = re.compile(r"aoti_debug")


def test_every_launch_gets_probes_on_its_own_line() -> None:
    """Three launches, three probes, the same number of lines, and every line ends as it did."""
    done = rewrite(read_wrapper(WRAPPER), "model")
    assert done.probed == (0, 1, 2) and done.skipped == ()
    old, new = WRAPPER.split("\n"), done.text.split("\n")
    assert len(old) == len(new)
    changed = [number for number, (a, b) in enumerate(zip(old, new, strict=True), 1) if a != b]
    assert changed == [7, 18, 19, 21]


def test_views_outputs_and_numbers_are_seen() -> None:
    """An inline view is bound to a variable, an output handle is read afterwards, a symbol is a number."""
    lines = rewrite(read_wrapper(WRAPPER), "model").text.split("\n")
    assert 'aoti_debug_launch.scalar("ks0", s77)' in lines[17]
    assert "auto&& aoti_debug_view_0 = wrap_with_raii_handle_if_needed(" in lines[18]
    assert (
        lines[18]
        .rstrip()
        .endswith("aoti_torch_cpu_mm_out(buf0, arg0_1, aoti_debug_view_0)); aoti_debug_launch.after(); }")
    )
    assert '.tensor("w", "mat2", 1, aoti_debug::handle(aoti_debug_view_0))' in lines[18]
    assert '.result("buf1", "ret0", 2, &buf1_handle)' in lines[20]


def test_a_refused_launch_is_left_alone_and_listed() -> None:
    """A reason from the compiler keeps the launch as it was."""
    done = rewrite(read_wrapper(WRAPPER), "model", {1: "because"})
    assert done.probed == (0, 2)
    assert [(s.launch, s.reason) for s in done.skipped] == [(1, "because")]
    assert done.text.split("\n")[18] == WRAPPER.split("\n")[18]


def test_a_compilers_errors_are_put_on_the_launch_of_their_line() -> None:
    """An error on a launch's line refuses that launch once; an error elsewhere refuses nothing."""
    places = ("19:5: error: no such thing", "19: error: again", "3:1: error: elsewhere")
    log = "".join(f"x.wrapper.cpp:{place}\n" for place in places)
    wrapper = read_wrapper(WRAPPER)
    found = blame(log, wrapper, {})
    assert found == {1: "the compiler refuses its probes: no such thing"}
    assert blame(log, wrapper, found) == {}


def test_a_weight_is_separated_unless_a_launch_writes_it() -> None:
    """A constant that is only read becomes an allocation of its own; a mutated buffer stays what it is."""
    separated = "auto w = aoti_debug::separate<RAIIAtenTensorHandle>(constants_->at(0));"
    assert separated in rewrite(read_wrapper(WRAPPER), "m", separate_weights=True).text
    mutated = WRAPPER.replace("(float*)(buf0.data_ptr())", "(float*)(w.data_ptr())")
    assert "separate<" not in rewrite(read_wrapper(mutated), "m", separate_weights=True).text


def test_names_out_of_the_package_cannot_leave_their_string() -> None:
    """A kernel name with quotes or control characters is made harmless."""
    assert quoted('a"; system("x"); //\n\\') == '"a?; system(?x?); //??"'


@given(st.text("abc\n", max_size=20), st.lists(st.integers(0, 20), max_size=5))
def test_edits_insert_exactly_what_they_hold(text: str, places: list[int]) -> None:
    """Removing the inserted marks gives the text back."""
    edits = [Edit(min(p, len(text)), min(p, len(text)), "#") for p in places]
    assert apply(text, edits).replace("#", "") == text


@st.composite
def mutilated(draw: st.DrawFn) -> str:
    """A wrapper with some spans removed, doubled, or replaced by noise."""
    text = WRAPPER
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 60)))
        text = (
            text[:start]
            + draw(st.sampled_from(["", text[start:end] * 2, "(", '"', "{", "/*", "}"]))
            + text[end:]
        )
    return text


@settings(max_examples=150)
@given(mutilated())
def test_a_damaged_wrapper_is_rewritten_by_insertion_only_or_refused_with_reasons(text: str) -> None:
    """No line moves, no launch is lost from the lists, and a launch without probes has its reason."""
    wrapper = read_wrapper(text)
    done = rewrite(wrapper, "model")
    assert done.text.count("\n") == text.count("\n")
    told = {s.launch: s.reason for s in done.skipped if s.launch is not None}
    assert sorted([*done.probed, *told]) == [number for number, _ in numbered(wrapper)]
    assert all(told.values())


def _wrapper(zoo: ZooPackage, name: str) -> Wrapper:
    return read_wrapper(open_package(zoo(name)).wrapper_text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ranker", "plugin", "loop", "branch"])
def test_real_wrappers_get_a_probe_for_every_launch(zoo: ZooPackage, name: str) -> None:
    """Kernels, shims, proxy calls and launches inside loops and branches."""
    wrapper = _wrapper(zoo, name)
    done = rewrite(wrapper, "model")
    assert done.skipped == () and len(done.probed) == len(wrapper.launches) > 0
    assert done.text.count("aoti_debug_launch.after()") == len(wrapper.launches)
