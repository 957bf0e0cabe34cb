"""Kernels, C++ and Triton, are read as programs that compute what the model does; damage never raises."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.package.kernels import Kernel, Parameter
from mcp_server.package.terms.evaluate import Evaluator
from mcp_server.package.terms.program import Program, position_of, read_program
from mcp_server.package.terms.term import (
    Element,
    Scalar,
    Term,
    key,
    number,
    parts,
    say,
)
from mcp_server.package.wrapper import read_wrapper
from tests.package.terms.made import unread
from tests.recorded import RECORDINGS

WRAPPERS = sorted((RECORDINGS / "wrappers").glob("*.cpp"))


def kernels(path: Path) -> Mapping[str, Kernel]:
    """The kernels of a recorded wrapper, with the C++ ones where their file was recorded."""
    sources = RECORDINGS / "kernels" / path.name
    text = sources.read_text() if sources.exists() else ""
    return read_wrapper(path.read_text(), text).kernels


def program(wrapper: str, kernel: str) -> Program:
    return read_program(kernels(RECORDINGS / "wrappers" / wrapper)[kernel])


def stored(
    found: Program, parameter: str, offset: int, tensors: Mapping[str, Sequence[Scalar]], **sizes: int
) -> Scalar:
    """The value that a program stores at an offset, computed from whole tensors."""

    def read(element: Element, place: int) -> Scalar:
        if found.stores_to(element.parameter, element.line):
            return stored(found, element.parameter, place, tensors, **sizes)
        return tensors[element.parameter][place]

    for store in found.stores_to(parameter):
        position = position_of(store.index, offset, store.ranges, sizes, read)
        if position is not None:
            return Evaluator(position, sizes, read).value(store.value)
    raise AssertionError(f"nothing is stored at {offset}")


@pytest.mark.parametrize("path", WRAPPERS, ids=lambda path: path.name)
def test_all_of_the_code_is_understood(path: Path) -> None:
    """Every store and every check of every recorded kernel is read, except a sort inside of a kernel."""
    for kernel in kernels(path).values():
        found = read_program(kernel)
        assert found.stores or not kernel.source, kernel.name
        terms: list[Term] = [*(s.value for s in found.stores), *(c.value for c in found.checks)]
        left = {unread(term) for term in terms} - {""}
        assert not left or "sort" in kernel.name, (kernel.name, left)


def test_a_triton_reduction_computes_the_layer_norm() -> None:
    """Two reductions, the mean and the variance, give what torch gives."""
    x, weight, bias = (torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (96, 32, 33))
    found = program("attention.torch-2.11-cuda.cpp", "triton_per_fused_native_layer_norm_0")
    tensors = {"in_ptr0": x.tolist(), "in_ptr1": weight.tolist(), "in_ptr2": bias[:32].tolist()}
    expected = torch.nn.functional.layer_norm(x.view(3, 32), (32,), weight, bias[:32]).flatten()
    for place in (0, 33, 95):
        assert stored(found, "out_ptr2", place, tensors, xnumel=3) == pytest.approx(
            expected[place].item(), abs=2e-6
        )


HASHED = """
@triton_heuristics.pointwise(triton_meta={'signature': {'in_ptr0': '*i32', 'out_ptr0': '*i32'}})
@triton.jit
def hashed(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    tmp0 = tl.load(in_ptr0 + (xindex), xmask)
    tmp3 = tl.full([1], 61, tl.int32)
    tmp4 = (tmp0 % tmp3)
    tmp5 = tl.full([1], 0, tl.int32)
    tmp6 = tmp4 != tmp5
    tmp7 = (libdevice.signbit(tmp4) != 0) if (tmp4).dtype is tl.float32 else tmp4 < 0
    tmp8 = (libdevice.signbit(tmp3) != 0) if (tmp3).dtype is tl.float32 else tmp3 < 0
    tmp12 = tl.where(tmp6 & (tmp7 != tmp8), tmp4 + tmp3, tmp4)
    tl.store(out_ptr0 + (xindex), tmp12, xmask)
"""


def test_a_remainder_of_triton_has_the_sign_of_its_divisor() -> None:
    """As torch 2.11 writes it on CUDA: the choice by dtype and sign is one `%`."""
    found = read_program(Kernel("hashed", "triton", "hashed", (), 1, HASHED))
    assert say(found.stores[0].value) == "in_ptr0 % 61"
    given = [-62, -61, -1, 0, 60, 61, 1000]
    computed = [stored(found, "out_ptr0", place, {"in_ptr0": given}, xnumel=7) for place in range(7)]
    assert computed == torch.remainder(torch.tensor(given), 61).tolist()


@pytest.mark.parametrize(
    ("value", "operators", "text"),
    [
        (4.174387454986572, {"log1p"}, "log1p(64)"),
        (4.174387454986572, {"log"}, "log(65)"),
        (4.859812259674072, set(), "4.859812"),
        (2.0794415416798357, {"log"}, "log(8)"),
        (64.0, set(), "64"),
        (0.125, set(), "0.125"),
    ],
)
def test_constants_are_worded(value: float, operators: set[str], text: str) -> None:
    """A folded logarithm is written as one if the launch has that operator."""
    assert number(value, "float32", operators) == text


NAMES = (
    "computed_index.torch-2.13-cpu",
    *(f"{name}.torch-2.11-cuda" for name in ("computed_index", "attention", "jagged", "user_lookup")),
)  # both languages
KERNELS = [k for name in NAMES for k in kernels(RECORDINGS / "wrappers" / f"{name}.cpp").values() if k.source]


@settings(max_examples=150)
@given(st.sampled_from(KERNELS), st.data())
def test_damaged_kernels(kernel: Kernel, data: st.DataObject) -> None:
    """Lines that are dropped, doubled, moved or cut leave a program, maybe not all understood."""
    lines = kernel.source.split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.sampled_from(("drop", "double", "cut", "move"))):
            case "drop" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "cut":
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
            case _:
                lines.append(lines[at])
    found = read_program(replace(kernel, source="\n".join(lines)))
    for value in (*(store.value for store in found.stores), *(check.value for check in found.checks)):
        assert isinstance(unread(value), str)


def test_values_that_are_shared_many_times() -> None:
    """Sixty doublings of one value are sixty terms: neither words nor comparisons write out 2^60.

    A variable that is defined by itself, which no compiler writes, is not understood.
    """
    body = "".join(f"auto tmp{n + 1} = tmp{n} * tmp{n};\n" for n in range(60))
    begun = time.monotonic()
    value = stored_last(f"auto tmp0 = in_ptr0[static_cast<int64_t>(0L)];\n{body}", "tmp60")
    assert len(list(parts(value))) == 61
    assert len(say(value, lambda _element: "x")) <= 600
    assert key(value)[0] and time.monotonic() - begun < 5
    assert unread(stored_last("auto tmp1 = tmp1 + 1;\n", "tmp1")) == "tmp1"


def stored_last(body: str, name: str) -> Term:
    """What a C++ kernel with these lines stores, which is this name."""
    names = {"in_ptr0": "const float*", "out_ptr0": "float*"}
    parameters = tuple(Parameter(name, type_, "read") for name, type_ in names.items())
    head = 'extern "C" void k(const float* in_ptr0, float* out_ptr0)\n{\n'
    source = f"{head}{body}out_ptr0[static_cast<int64_t>(0L)] = {name};\n}}\n"
    (store,) = read_program(Kernel("k", "cpp", "k", parameters, 1, source)).stores
    return store.value
