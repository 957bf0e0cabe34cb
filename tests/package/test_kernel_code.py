"""The code of kernels: asserts, divisions and values; index assertions traced to launch and origin."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.assertion import explain, propose, read_assertion
from mcp_server.package.kernels import Kernel, Parameter
from mcp_server.package.terms import linear
from mcp_server.package.terms.linear import IndexForm, Limit, allowed_elements
from mcp_server.package.terms.parts import elements
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import Unread
from mcp_server.package.view import PackageView
from tests.package.summaries import view_of

DEVICE = (
    "/cache/ab/cabc.py:{}: unknown: block: [0,0,0], thread: [1,0,0] Assertion "
    "`index out of bounds: {}` failed."
)


def traced(view: PackageView, text: str, line: int | None = None) -> tuple[Any, ...]:
    assertion = read_assertion(text, line=line)
    assert assertion is not None
    return view.tracer.trace(assertion)


CPU, CUDA = "torch-2.13-cpu", "torch-2.11-cuda"


class Traced(NamedTuple):
    """A check of a recorded model: what its facts say and never say, and the guard."""

    condition: str
    said: list[str]
    never: str = "nothing of this"
    guard: str = ""
    model: str = "computed_index"
    built: str = CPU


TRACED = [
    Traced(
        "0 <= tmp4 < ks1",
        ["the index is x - 1, x being a value of input 1 (args[1])", "as given; it may be 1 to s27"],
        guard="if ((args[1] < 1) | (args[1] > args[0].shape[1])).any(): raise ValueError(",
    ),
    Traced("0 <= tmp6 < 40", ["it may be 0 to 19"], guard="> 19"),
    Traced("0 <= tmp15 < 40", ["the index is -x + 39", "it may be 0 to 79", "count from the end"]),
    Traced(
        "0 <= tmp24 < 40",
        ["written by launch 2 (this one), which depends on input 2 (args[2])"],
        never="as given",
        guard="must be in -40..39: refuse the values of",  # negative indices count from the end
    ),
    # A sum of two elements gives no range for either.
    Traced("0 <= tmp42 < 40", ["input 1 (args[1])", "input 0 (args[0])"], never="it may be"),
    Traced("0 <= tmp8 < 40", ["it may be -20 to 19"], built=CUDA),
    Traced("0 <= tmp6 < ks0", ["it may be -s27 + 1 to s27"], built=CUDA),
    Traced("0 <= tmp14 < 40", ["it may be 0 to 79"], built=CUDA),
    Traced("0 <= tmp21 < 40", ["it may be -40 to 39"], built=CUDA),
    Traced("0 <= tmp28 < ks0", ["it may be 1 to 2*s27"], built=CUDA),
    Traced(
        "0 <= tmp4 < ks0",
        [
            "s59 is the size of dim 0 of input 0 (args[0]), compiled for 2 to 512",
            "the index is a value of input 1 (args[1]), as given",
            "allowed down to -(s59)",
            "a shorter input 0",
        ],
        model="jagged",
        built=CUDA,
    ),
]


@pytest.mark.parametrize("row", TRACED, ids=lambda row: f"{row.model} {row.condition}")
def test_a_recorded_check_is_explained(row: Traced) -> None:
    """The facts have the bound, the index as a sum, the elements that pass, and a guard in source names."""
    (found,) = traced(view_of(row.model, row.built), DEVICE.format("", row.condition))
    facts = "\n".join(explain(found))
    assert [each for each in row.said if each not in facts] == [] and row.never not in facts
    fix = propose(found)
    assert row.guard in (fix.after or fix.text)
    assert found.location.startswith("wrapper.cpp:" if row.built == CUDA else "kernel.cpp:")


# The arithmetic between a load and an index check.

HEAD = """@triton_heuristics.pointwise(triton_meta={'signature': {'in_ptr0': '*i64', 'ks1': 'i64'}})
def k(in_ptr0, ks1):
"""


def kernel_of(lines: str, language: str) -> Kernel:
    """Make a kernel with these lines."""
    parameters = (Parameter("in_ptr0", "const int64_t*", "read"), Parameter("ks1", "int64_t", "read"))
    source = lines if language == "C++" else HEAD + "\n".join(f"    {line}" for line in lines.split("\n"))
    return Kernel("k", "cpp" if language == "C++" else "triton", "k", parameters, 1, source)


def read_form(lines: str, language: str, name: str = "tmp4") -> IndexForm | None:
    made = read_program(kernel_of(lines, language)).definitions
    value = next((each.value for each in reversed(made) if each.name == name), Unread(name))
    return linear.read_form(value, elements(value))


LOAD = {
    "Triton": "tmp0 = tl.load(in_ptr0 + (0), xmask)",
    "C++": "auto tmp0 = in_ptr0[static_cast<int64_t>(0)];",
}
CASTS = {"Triton": ["tl.full([1], {}, tl.int64)", "{}"], "C++": ["static_cast<int64_t>({})", "int64_t({})"]}
CHOICE = {"Triton": "tl.where({1}, {2}, {0})", "C++": "{1} ? {2} : {0}"}


@given(
    st.sampled_from(sorted(LOAD)),
    st.integers(-4, 4).filter(bool),
    st.integers(-60, 60),
    st.integers(1, 50),
    st.booleans(),
)
def test_exactly_allowed_elements_pass(language: str, scale: int, shift: int, size: int, wraps: bool) -> None:
    """An element from -300 to 300 is in the reported range exactly if its index passes the check."""
    number, cast = CASTS[language]
    lines = {"tmp1": number.format(scale), "tmp2": number.format(shift), "tmp3": cast.format("tmp0 * tmp1")}
    lines["tmp4"] = last = cast.format("tmp3 + tmp2")
    if wraps:
        choice = CHOICE[language].format("tmp8", "tmp7", "tmp6")
        lines |= {"tmp8": last, "tmp5": str(size), "tmp6": cast.format("tmp8 + tmp5"), "tmp7": "tmp8 < 0"}
        del lines["tmp4"]
        lines["tmp4"] = cast.format(choice)
    form = "auto {} = {};" if language == "C++" else "{} = {}"
    text = [LOAD[language], *(form.format(*each) for each in lines.items())]
    found = read_form("\n".join(text), language)
    assert found is not None
    (load,) = found.loads.values()
    allowed = allowed_elements(found, load, Limit.of_check("0", str(size)))
    assert allowed is not None
    low, high = allowed.numbers({}) or (0, 0)
    for element in range(-300, 301):
        index = scale * element + shift
        index += size if wraps and index < 0 else 0
        assert (low <= element <= high) == (0 <= index < size), element
