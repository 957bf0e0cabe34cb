"""Accesses read out of kernel sources: which pointer, which values, how many elements of each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.memory_faults.kernel_lines import (
    KernelUse,
    LineAccess,
    Sum,
    cpp_accesses_on,
    triton_accesses_on,
    value_of,
)
from mcp_server.package.kernels import Kernel, Parameter, constants_of

NAMES = ("a", "b", "c")


def use(source: str, tensors: str = "x table out", scalars: str = "n stride") -> KernelUse:
    kernel = Kernel("k_0", "user_triton", "k", (), 1, source, 1)
    values = {"n": 100, "stride": 64, "W": 16}
    return KernelUse(kernel, frozenset(tensors.split()), frozenset(scalars.split()), values)


def first(source: str, code: str) -> LineAccess:
    line = next(n for n, text in enumerate(source.split("\n"), 1) if code in text)
    return triton_accesses_on(use(source), line)[0]


def factors(access: LineAccess) -> dict[str, int | None]:
    return {f"{t.kind} {t.name}": f for t, f in access.address.terms.items() if t.kind != "other"}


def test_a_pointer_kept_in_a_variable_is_followed() -> None:
    """`p = table + i * W` two lines above still starts at the table."""
    source = (
        "def k(x, table, W):\n    i = tl.load(x)\n    p = table + i * W\n    p += 4\n    v = tl.load(p)\n"
    )
    access = first(source, "tl.load(p)")
    assert factors(access) == {"pointer table": 1, "load x": 16}
    assert access.address.constant == 4


def test_a_helper_function_is_followed_to_its_caller() -> None:
    """The pointer parameter of a helper is the caller's argument."""
    source = (
        "def row(base, i, W):\n    return tl.load(base + i * W)\n"
        "def k(x, table, out, n, W):\n    v = row(table, tl.load(x), W)\n"
    )
    assert factors(first(source, "base + i"))["pointer table"] == 1


def test_a_product_with_an_unknown_has_an_unknown_factor() -> None:
    """`program_id * stride`: the stride counts, and nobody knows how often."""
    source = "def k(x, table, out, stride):\n    v = tl.load(table + tl.program_id(0) * stride)\n"
    assert factors(first(source, "tl.load"))["scalar stride"] is None


@pytest.mark.parametrize(
    "pointer",
    [
        "tl.make_block_ptr(table, (8,), (1,), (0,), (8,), (0,))",
        "tl.make_block_ptr(base=table + 4, shape=(8,), strides=(1,), offsets=(0,), block_shape=(8,))",
        "tl.advance(tl.make_block_ptr(table, (8,), (1,), (0,), (8,), (0,)), (8,))",
        "tl.multiple_of(table, 16) + tl.max_contiguous(tl.arange(0, 8), 8)",
        "table.to(tl.pointer_type(tl.int64))",
    ],
)
def test_pointers_keep_their_base(pointer: str) -> None:
    """Through block pointers, hints and casts, by position or by name."""
    assert first(f"def k(table):\n    p = {pointer}\n    tl.load(p)\n", "tl.load(p)").parameters == ("table",)


def test_either_pointer_of_a_choice_may_be_meant() -> None:
    """`x if n else table`, and the same by `tl.where`."""
    for choice in ("x if n else table", "tl.where(n > 0, x, table)"):
        source = f"def k(x, table, n):\n    p = {choice}\n    tl.load(p)\n"
        assert first(source, "tl.load(p)").parameters == ("x", "table")


def test_an_index_is_followed_inside_a_while_loop() -> None:
    """As inside any other loop."""
    source = (
        "def k(x, table, n):\n    i = 0\n    while i < n:\n        row = tl.load(x + i, i < n, other=0)\n"
        "        v = tl.load(table + row * 8)\n        i += 1\n"
    )
    assert factors(first(source, "table + ")) == {"pointer table": 1, "load x": 8}


def test_shared_terms_are_read_once() -> None:
    """A sum that is doubled in each line has 2**60 terms written out."""
    doubled = "".join(f"    i{n + 1} = i{n} + i{n}\n" for n in range(60))
    source = f"def k(x, table):\n    i0 = tl.load(x)\n{doubled}    v = tl.load(table + i60)\n"
    assert factors(first(source, "table + "))["load x"] == 1 << 60


def test_masks_and_directions_are_told() -> None:
    """A mask may come by position or by name; `mask=None` is none."""
    source = (
        "def k(x, table, out):\n    a = tl.load(x, m)\n    b = tl.load(x, mask=None)\n"
        "    tl.store(out, a, mask=m)\n    tl.atomic_add(out, a)\n"
    )
    found = [triton_accesses_on(use(source), line)[0] for line in (2, 3, 4, 5)]
    assert [(a.direction, a.masked) for a in found] == [
        ("read", True),
        ("read", False),
        ("write", True),
        ("atomic", False),
    ]


@pytest.mark.parametrize(
    ("mask", "sides"),
    [
        ("inside & (src < n)", {"high"}),
        ("bounded", {"high"}),
        ("bounded & (0 <= src)", {"low", "high"}),
        ("inside", set()),
        ("inside | (src < n)", set()),
    ],
)
def test_the_sides_on_which_a_mask_bounds_a_loaded_index(mask: str, sides: set[str]) -> None:
    """By tests of what is loaded, also through variables; not of a position, nor by one of two."""
    source = (
        "def k(x, table, out, n):\n    offs = tl.program_id(0) * 64\n    inside = offs < n\n"
        "    src = offs + tl.load(x + offs, mask=inside)\n    bounded = inside & (src < n)\n"
        f"    v = tl.load(table + src, mask={mask}, other=0.0)\n"
    )
    assert first(source, "table + ").limits == sides


def test_a_negative_index_that_is_moved_up_is_known_to_wrap() -> None:
    """Inductor's `tl.where(i < 0, i + n, i)` keeps the index's weight."""
    source = (
        "def k(x, table, out, n):\n    t0 = tl.load(x)\n    t1 = t0 + n\n    t2 = t0 < 0\n"
        "    t3 = tl.where(t2, t1, t0)\n    v = tl.load(table + (8 * t3))\n"
    )
    access = first(source, "table + ")
    assert factors(access)["load x"] == 8
    assert access.address.wraps


@pytest.mark.parametrize(
    ("value", "factor"),
    [
        ("c10::convert<int64_t>(tmp0)", 64),
        ("floor_divide_integral(tmp0, tmp9)", None),
        ("int64_t(tmp0 - tmp9)", 64),
        ("tmp0 % tmp9", None),
        ("std::abs(tmp0)", None),
    ],
)
def test_what_an_element_may_be_is_known_of_a_sum_only(value: str, factor: int | None) -> None:
    """Of an index that is computed otherwise, the size of the table says nothing about the element."""
    source = f"auto tmp0 = x[x0];\nauto tmp9 = 7;\nauto tmp1 = {value};\nauto tmp2 = table[64L*tmp1];"
    parameters = tuple(Parameter(name, "const int64_t*", "read") for name in ("x", "table"))
    kernel = Kernel("k_0", "cpp", "k", parameters, 1, source, 1)
    (access,) = cpp_accesses_on(KernelUse(kernel, frozenset({"x", "table"}), frozenset(), {}), 4)
    assert factors(access)["load x"] == factor


def test_a_source_that_is_no_python_gives_nothing() -> None:
    """A cut source is no error."""
    assert triton_accesses_on(use("def k(x:\n  tl.load(x"), 2) == ()


def test_constants_are_read_from_the_meta_data() -> None:
    """Only integers: a dtype or None is no number."""
    source = "triton_meta={'constants': {'width': 16, 'flag': True, 'none': None}, 'device': 0}"
    assert constants_of(source) == {"width": 16}


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([*NAMES, "1", "7", "16"]))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return f"({left} {draw(st.sampled_from(['+', '-', '*']))} {right})"


@given(expressions(), st.fixed_dictionaries({name: st.integers(-50, 50) for name in NAMES}))
def test_a_known_sum_is_what_python_computes(text: str, values: dict[str, int]) -> None:
    """Where all names are known, the sum has Python's value; it never has another."""
    source = f"def k(x, {', '.join(NAMES)}):\n    tl.load(x + {text})\n"
    kernel = Kernel("k_0", "user_triton", "k", (), 1, source, 1)
    (access,) = triton_accesses_on(KernelUse(kernel, frozenset("x"), frozenset(NAMES), values), 2)
    terms = {term: factor for term, factor in access.address.terms.items() if term.kind != "pointer"}
    total = Sum(terms, access.address.constant)
    found = value_of(total, values)
    assert found is None or found == eval(text, {}, dict(values))
    if "*" not in text:
        assert found is not None
