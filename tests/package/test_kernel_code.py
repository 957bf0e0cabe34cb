"""Inside a kernel: index asserts, divisions, where values come from, which parameters are stored to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mcp_server.package.assertion import Division, IndexSource, divisions
from mcp_server.package.kernels import Kernel, Parameter, read_cpp_kernels
from mcp_server.package.launches import Argument, Launch
from mcp_server.package.terms.accesses import indexed_by
from mcp_server.package.terms.blocks import LineCounter
from mcp_server.package.terms.linear import name_of
from mcp_server.package.terms.parts import elements, unwrapped
from mcp_server.package.terms.program import read_program
from mcp_server.package.terms.term import Element

VECTOR = """extern "C" void k(const int64_t* in_ptr1, const float* in_ptr2, float* out_ptr0)
{
    auto tmp3 = at::vec::VectorizedN<int64_t,2>::loadu(in_ptr1 + static_cast<int64_t>(x1), 4);
    auto tmp4 =
    [&]
    {
        __at_align__ std::array<int64_t, 16> tmpbuf;
        tmp3.store(tmpbuf.data(), static_cast<int64_t>(4L));
        return tmpbuf;
    }
    ()
    ;
    AOTI_TORCH_CHECK((VecMask<int64_t,2>((tmp4 < 9))).all_masked(), "index out of bounds: 0 <= tmp4 < 9L");
    out_ptr0[static_cast<int64_t>(x1)] = in_ptr2[static_cast<int64_t>(tmp4[x1_inner] + 9L*x0)];
}
"""


def test_a_vectorised_cpp_index_is_followed_through_its_buffers() -> None:
    """A C++ index that was unpacked into a temporary array is followed through it."""
    kernel = read_cpp_kernels(VECTOR, LineCounter(VECTOR))["k"]
    program = read_program(kernel)
    (made,) = program.checks
    value = made.value
    assert [load.parameter for load in elements(value)] == ["in_ptr1"]
    assert unwrapped(value) is value
    assert [name for _, name in indexed_by(program, made, ("in_ptr1", "in_ptr2"))] == ["in_ptr2"]


VECTORISED = "decltype(tmp1)::set(decltype(tmp1)(1), tmp1, static_cast<int64_t>(ks0))"
TYPES = {"in_ptr0": "const int64_t*", "in_ptr1": "const int64_t*", "in_ptr2": "const float*"}


def found_in(*lines: str) -> tuple[Division, ...]:
    """The divisions of a package with one launch of a kernel of these lines, whose parameters are inputs."""
    parameters = tuple(Parameter(name, type_, "read") for name, type_ in TYPES.items())
    loop = (
        "for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(8L); x0+=static_cast<int64_t>(1L))"
    )
    kernel = Kernel("k", "cpp", "k", parameters, 1, "\n".join((loop, "{", *lines, "}")), 38)
    arguments = tuple(Argument(i, n, n, 0, 0, "input", n, "read") for i, n in enumerate(TYPES))
    launch = Launch(0, "k", "k", "cpp", "k", arguments, 1, 0, 0)

    def source(load: Element, _launch: Launch) -> IndexSource:
        return IndexSource(load, load.parameter, "input", load.parameter, (), (load.parameter,))

    wrapper = SimpleNamespace(kernels={"k": kernel}, launches=(launch,))
    tracer: Any = SimpleNamespace(view=SimpleNamespace(wrapper=wrapper), source=source)
    return divisions(tracer)


@pytest.mark.parametrize(
    "division",
    [
        "auto tmp2 = floor_divide_integral(tmp0, tmp1);",
        f"auto tmp2 = floor_divide_integral(tmp0, {VECTORISED});",
        f"auto tmp2 = tmp0 / {VECTORISED};",
        "auto tmp2 = tmp0 / tmp1;",
        "auto tmp2 = mod(tmp0, tmp1);",
        "auto tmp2 = c10::div_floor_integer(static_cast<int64_t>(tmp0), static_cast<int64_t>(tmp1));",
    ],
)
def test_an_element_of_an_input_as_divisor(division: str) -> None:
    """Each form of division is found with the element that it divides by, and where it stands."""
    loads = [f"auto tmp{n} = in_ptr{n}[static_cast<int64_t>(3L*x0)];" for n in (0, 1)]
    (found,) = found_in(*loads, division)
    assert (found.plain, found.inputs, found.location) == (True, ("in_ptr1",), "kernel.cpp:42")
    assert [name_of(source.load) for source in found.sources] == ["in_ptr1[3 * x0]"]
