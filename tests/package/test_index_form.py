"""The arithmetic between a load and the check of an index: the allowed elements, read from the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.assertion import Candidate, explain, propose, read_assertion
from mcp_server.package.kernels import Kernel, Parameter
from mcp_server.package.terms import linear
from mcp_server.package.terms.linear import IndexForm, Limit, allowed_elements, position_limit
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import Unread, elements
from tests.package.summaries import view_of
from tests.recorded import RECORDINGS

KERNELS = RECORDINGS / "kernels"
RECORDED = "computed_index.torch-2.13-cpu.cpp"


def traced(condition: str) -> Candidate:
    """The one candidate for a check of the recorded model, whose indices are all computed."""
    assertion = read_assertion(condition)
    assert assertion is not None
    (found,) = view_of("computed_index", "torch-2.13-cpu").tracer.trace(assertion)
    return found


def text(directory: Path) -> str:
    return (directory / RECORDED).read_text(encoding="utf-8")


def facts(condition: str) -> str:
    return "\n".join(explain(traced(condition)))


def test_a_shifted_index_allows_shifted_values() -> None:
    """`lengths - 1` into a size: lengths of 1 up to that size; the guard names the caller's."""
    found = facts("0 <= tmp4 < ks1")
    assert "the index is x - 1, x being a value of input 1 (args[1])" in found
    assert "the kernel reads a value of input 1 (args[1]), as given; it may be 1 to s27" in found
    guard = propose(traced("0 <= tmp4 < ks1")).after
    assert guard == "assert 1 <= int(args[1].min()) and int(args[1].max()) <= args[0].shape[1]"


def test_a_scaled_index_allows_fewer_values() -> None:
    """`2*tokens + 1` into 40 rows: tokens of 0 to 19."""
    assert "it may be 0 to 19" in facts("0 <= tmp6 < 40")


def test_a_mirrored_index_that_wraps() -> None:
    """`39 - lengths` into 40 rows, where negative indices count from the end: lengths of 0 to 79."""
    found = facts("0 <= tmp15 < 40")
    assert "the index is -x + 39" in found and "it may be 0 to 79" in found
    assert "count from the end" in found


def test_an_index_made_by_the_same_launch() -> None:
    """An argmax that the asserting kernel computes itself is named as its product, with the inputs behind."""
    found = traced("0 <= tmp24 < 40")
    (source,) = found.sources
    assert source.producers == (found.launch.index,) and not source.direct
    assert "written by launch 2 (this one), which depends on input 2 (args[2])" in facts("0 <= tmp24 < 40")
    assert "clamp(-40, 39)" in (propose(found).after or "")  # negative ones count from the end


def test_a_sum_of_two_inputs_tells_no_range_for_either() -> None:
    """Where two elements make the index both are named, and neither is said to have a range of its own."""
    found = facts("0 <= tmp42 < 40")
    assert "the index is x + y" in found or "the index is y + x" in found
    assert "input 1 (args[1])" in found and "input 0 (args[0])" in found
    assert "it may be" not in found


TRITON_FORMS = [
    ("0 <= tmp8 < 40", ("-20", "19")),
    ("0 <= tmp6 < ks0", ("-s27 + 1", "s27")),
    ("0 <= tmp14 < 40", ("0", "79")),
    ("0 <= tmp21 < 40", ("-40", "39")),
    ("0 <= tmp28 < ks0", ("1", "2*s27")),
]


@pytest.mark.parametrize(("condition", "ends"), TRITON_FORMS)
def test_the_same_indices_in_triton(condition: str, ends: tuple[str, str]) -> None:
    """The kernels of the same model for CUDA (torch 2.11 wraps all indices), with the text of a real run."""
    error = (
        "/cache/vp/cvpg3o2e.py:58: unknown: block: [0,0,0], thread: [2,0,0] Assertion "
        f"`index out of bounds: {condition}` failed."
    )
    assertion = read_assertion(error.replace(":58:", ":") if "tmp28" not in condition else error)
    assert assertion is not None
    (found,) = view_of("computed_index").tracer.trace(assertion)
    assert "it may be {} to {}".format(*ends) in "\n".join(explain(found))


HEAD = """@triton_heuristics.pointwise(triton_meta={'signature': {'in_ptr0': '*i64', 'ks1': 'i64'}})
def k(in_ptr0, ks1):
"""


def kernel_of(lines: str, language: str) -> tuple[Kernel, int]:
    """A kernel with these lines, and the number of the one after them."""
    parameters = (Parameter("in_ptr0", "const int64_t*", "read"), Parameter("ks1", "int64_t", "read"))
    source = lines
    if language == "Triton":
        source = HEAD + "\n".join(f"    {line}" for line in lines.split("\n"))
    return Kernel("k", "cpp" if language == "C++" else "triton", "k", parameters, 1, source), source.count(
        "\n"
    ) + 2


def read_form(lines: str, language: str, name: str = "tmp4") -> IndexForm | None:
    kernel, _ = kernel_of(lines, language)
    defined = (each.value for each in reversed(read_program(kernel).definitions) if each.name == name)
    value = next(defined, Unread(name))
    return linear.read_form(value, elements(value))


POSITIONS = {
    "C++": (
        "for(int64_t x1=static_cast<int64_t>(0L); x1<static_cast<int64_t>(ks1); "
        "x1+=static_cast<int64_t>(1L))\n{\n"
        "auto tmp5 = x1;\nauto tmp6 = c10::convert<int64_t>(tmp5);\n"
        'AOTI_TORCH_CHECK(tmp6 < ks1, "index out of bounds: tmp6 < ks1");\n}'
    ),
    "Triton": "xindex = tl.program_id(0)\nx1 = (xindex % ks1)\ntmp6 = x1\n"
    'tl.device_assert(tmp6 < ks1, "index out of bounds: tmp6 < ks1")',
}


@pytest.mark.parametrize("language", POSITIONS)
def test_a_position_is_no_data(language: str) -> None:
    """An index that is a loop variable is reported as a position below its loop's size."""
    kernel, _ = kernel_of(POSITIONS[language], language)
    (check,) = read_program(kernel).checks
    assert position_limit(check.value, check.ranges) == "ks1"


@pytest.mark.parametrize("condition", ["index out of bounds: tmp6 < 64L", "tmp6 < 64L"])
def test_a_check_of_the_upper_end_only(condition: str) -> None:
    """Where code generation knows that an index is not negative, the text has one side."""
    found = read_assertion(condition)
    assert found is not None
    assert found.condition == "tmp6 < 64"


CPP = (
    "auto {0} = in_ptr0[static_cast<int64_t>(0)]",
    "static_cast<int64_t>({0})",
    "int64_t({0})",
    "{1} ? {2} : {0}",
)
TRITON = (
    "{0} = tl.load(in_ptr0 + (0), xmask)",
    "tl.full([1], {0}, tl.int64)",
    "{0}",
    "tl.where({1}, {2}, {0})",
)


@st.composite
def kernels(draw: st.DrawFn) -> tuple[IndexForm | None, int, int, int, bool]:
    """A kernel that checks scale*element + shift against a size, maybe wrapped, in one of both languages."""
    load, number, cast, choice = draw(st.sampled_from([CPP, TRITON]))
    scale, shift = draw(st.integers(-4, 4).filter(bool)), draw(st.integers(-60, 60))
    size, wraps = draw(st.integers(1, 50)), draw(st.booleans())
    let = "auto " if load is CPP[0] else ""
    lines = [
        load.format("tmp0"),
        f"{let}tmp1 = {number.format(scale)}",
        f"{let}tmp2 = {number.format(shift)}",
    ]
    lines += [f"{let}tmp3 = {cast.format('tmp0 * tmp1')}", f"{let}tmp4 = {cast.format('tmp3 + tmp2')}"]
    if wraps:
        lines += [f"{let}tmp5 = {size}", f"{let}tmp6 = {cast.format('tmp4 + tmp5')}", f"{let}tmp7 = tmp4 < 0"]
        lines += [f"{let}tmp4 = {choice.format('tmp4', 'tmp7', 'tmp6')}"]
    cpp = load is CPP[0]
    text = "\n".join(f"{line};" if cpp else line for line in lines)
    return read_form(text, "C++" if cpp else "Triton"), scale, shift, size, wraps


@given(kernels())
def test_exactly_the_allowed_elements_pass(made: tuple[IndexForm | None, int, int, int, bool]) -> None:
    """An element from -300 to 300 is in the reported range if and only if its index passes the check."""
    form, scale, shift, size, wraps = made
    assert form is not None
    (load,) = form.loads.values()
    allowed = allowed_elements(form, load, Limit.of_check("0", str(size)))
    assert allowed is not None
    low, high = allowed.numbers({}) or (0, 0)
    for element in range(-300, 301):
        index = scale * element + shift
        index += size if wraps and index < 0 else 0
        assert (low <= element <= high) == (0 <= index < size), element


CONVERTED = [
    ("Triton", "tmp4 = tl.broadcast_to(tmp0, [XBLOCK])"),
    ("Triton", "tmp4 = tmp0.to(tl.int64)"),
    ("C++", "auto tmp4 = at::vec::convert<int64_t,2,int32_t,1>(tmp0);"),
    ("C++", "auto tmp4 = static_cast<int64_t>(tmp0);"),
]
LOAD = {"Triton": "tmp0 = tl.load(in_ptr0 + (0))", "C++": "auto tmp0 = in_ptr0[static_cast<int64_t>(0)];"}


@pytest.mark.parametrize(("language", "last"), CONVERTED)
def test_a_converted_element_is_the_element(language: str, last: str) -> None:
    """Broadcasts and conversions change nothing of an index."""
    form = read_form(f"{LOAD[language]}\n{last}", language)
    assert form is not None and form.is_plain


UNKNOWN = [
    "tmp4 = tmp0 / tmp1",
    "tmp4 = max_propagate_nan(tmp0, tmp1)",
    "tmp4 = tmp0 * tmp0",
    "tmp4 = tl.where(tmp0 > tmp1, tmp0, tmp1)",
    "tmp4 = tmp0 < 0",
    "tmp4 = triton_helpers.maximum(tmp0, tmp1)",
    "tmp4 = (",
]


@pytest.mark.parametrize("last", UNKNOWN)
def test_other_arithmetic_is_not_guessed(last: str) -> None:
    """Division, clamps, products and masks have no form, and nothing is said of their ranges."""
    source = f"{LOAD['Triton']}\ntmp1 = tl.full([1], 7, tl.int64)\n{last}"
    assert read_form(source, "Triton") is None


@given(st.text(alphabet="tmp0123 =+-*(),<?:wherxin_[]\n", max_size=200))
def test_damaged_kernels_do_not_raise(source: str) -> None:
    """Any text has a form or none."""
    for language in LOAD:
        form = read_form(source, language, "tmp1")
        assert form is None or isinstance(form, IndexForm)
