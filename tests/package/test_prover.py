"""Defects that a kernel's code and a call's sizes show: recorded kernels, compared with brute force."""

from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcp_server.package.kernels import Kernel
from mcp_server.package.mismatch import GivenTensor, symbol_values
from mcp_server.package.prover import find_kernel_defects, largest_sizes
from mcp_server.package.terms.accesses import Spans, lanes, read_accesses
from mcp_server.package.view import PackageView, view_package
from tests.conftest import Zoo
from tests.memory_faults.support import FAULTS, PROGRAMS, given_to, view_of
from tests.recorded import RECORDINGS
from tests.support.programs import recorded
from tests.zoo.names import TRIED, few

WRAPPERS = sorted((RECORDINGS / "wrappers").glob("*.torch-2.11-cuda.cpp"))
# What the kernels of these recordings do wrong, whatever the values of tensors.
WRONG = {
    "int32_overflow": ("overflow", "x"),
    "missing_mask": ("beyond", "out"),
    "uninitialised": ("uncovered", "out"),
}
INDEX_LIMIT = (1 << 31) - 1


def triton(body: str, signature: Mapping[str, str]) -> Kernel:
    """Make a Triton kernel of Inductor's form over `xnumel`."""
    names = ", ".join(signature)
    lines = "\n".join(f"    {line}" for line in body.strip().split("\n"))
    source = f"""
@triton_heuristics.pointwise(triton_meta={{'signature': {dict(signature)!r}, 'constants': {{}}}})
@triton.jit
def triton_poi_0({names}, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
{lines}
"""
    return Kernel("triton_poi_0", "triton", "triton_poi_0", (), 1, source)


@st.composite
def digits(draw: st.DrawFn) -> tuple[str, list[tuple[int, int, int]], int]:
    """Make an index from digits of `xindex`: its text, with the factor, divisor and modulus of each digit."""
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    most = len(sizes) + 1
    factors = draw(st.lists(st.integers(-(1 << 22), 1 << 28), min_size=most, max_size=most))
    found, below = [], 1
    for size, factor in zip(sizes, factors, strict=False):
        found.append((factor, below, size))
        below *= size
    found.append((factors[-1], below, 0))
    words = [f"({c} * ((xindex // {d}){f' % {m}' if m else ''}))" for c, d, m in found]
    return " + ".join(words), found, draw(st.integers(1, 4)) * below + draw(st.integers(0, below))


@settings(max_examples=few(60))
@given(made=digits(), blocks=st.integers(0, 3))
def test_one_lanes_overflow_is_found(made: tuple[str, list[tuple[int, int, int]], int], blocks: int) -> None:
    """Brute force computes all lanes in 64 bits, multiplied and added in the order of the text."""
    text, parts, numel = made
    numel += blocks * 4096 * prod(size or 1 for _, _, size in parts)  # more than are tried one by one
    assume(numel < 200_000)
    kernel = triton(f"tl.store(out_ptr0 + ({text}), 0, xmask)", {"out_ptr0": "*i8", "xnumel": "i32"})
    (access,) = read_accesses(kernel)
    x, total, beyond = np.arange(numel), np.zeros(numel, dtype=np.int64), np.zeros(numel, dtype=bool)
    for factor, divisor, size in parts:
        digit = x // divisor % size if size else x // divisor
        total = total + factor * digit
        for value in (factor * digit, total):
            beyond |= (value > INDEX_LIMIT) | (value < -INDEX_LIMIT - 1)
    sizes = {"xnumel": numel}
    found = None
    for lane in lanes(access, sizes):
        lane.offset(access)
        if (found := lane.overflow) is not None:
            break
    assert (found is not None) == bool(beyond.any())
    assert Spans(access, sizes).may_overflow or found is None
    if found is not None:
        assert found.wrapped == int(np.int64(found.exact).astype(np.int32)) != found.exact


USER = """
@triton_heuristics.user_autotune(triton_meta={'signature': {'x': '*fp32', 'out': '*fp32', 'stride': 'i32',
    'n': 'i32', 'block': 'constexpr'}, 'constants': {'block': 64}})
@triton.jit
def user(x, out, stride, n, block: tl.constexpr):
    row, batch = tl.program_id(0), tl.program_id(axis=1)
    x += batch * stride
    at = row * block + tl.arange(0, block)
    other, at2 = at, row
    at2, other = other, at2
    keep = at < n
    here, moved = x + at, out
    for turn in range(0, n, block):
        tl.store(out + at, tl.load(here + turn, mask=keep), mask=keep)
        moved += block
        tl.store(moved, 2)
    tl.store(out + other, 0)
    if n > 4:
        at = at * stride
        tl.store(out + stride, 0)
    tl.store(out + at, 1)
"""


@settings(max_examples=few(20))
@given(n=st.integers(2, 1 << 20))
def test_a_mask_is_exact(n: int) -> None:
    """The largest factor for which the last unmasked element fits is accepted, the next one is not."""
    source = USER.partition("    if n >")[0] + "    tl.store(out + at * stride, 1, mask=keep)\n"
    kernel = Kernel("user", "user_triton", "user", (), 1, source, 0, ("((n + 63) / 64)", "8", "1"))
    access = read_accesses(kernel)[-1]
    factor = INDEX_LIMIT // (n - 1)
    for stride in (factor, factor + 1):
        tried = list(lanes(access, {"n": n, "stride": stride}))
        reached = [lane for lane in tried if lane.offset(access) is not None]
        assert any(lane.overflow for lane in reached) == (stride > factor)


def defects(view: PackageView, given: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(each.kind, each.parameter) for each in find_kernel_defects(view, given)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_program_on_a_gpu(name: str, tmp_path: Path) -> None:
    """Only kernels whose code is wrong are accused, each with the argument."""
    view = view_of(FAULTS / name, tmp_path)
    sizes = symbol_values(view.package.signature, given_to(name).tensors)
    found = defects(view, sizes)
    assert found[:1] == ([WRONG[name]] if name in WRONG else [])


@pytest.mark.parametrize("path", WRAPPERS, ids=lambda path: path.name)
def test_recorded_cuda_kernels_are_healthy(path: Path, tmp_path: Path) -> None:
    """Every kernel of every CUDA wrapper is read, and has no defect at its recorded sizes."""
    view = recorded(path.name.partition(".")[0], tmp_path)
    symbols = view.wrapper.symbols.values()
    assert not find_kernel_defects(view, {s.name: 8 for s in symbols if s.kind in ("size", "stride")})
    for kernel in view.wrapper.kernels.values():
        assert read_accesses(kernel) or not kernel.source


@pytest.mark.parametrize("name", TRIED)
def test_kernels_of_the_zoo_are_healthy(name: str, zoo: Zoo) -> None:
    """C++ kernels have no defect at the sample's sizes, nor at the largest compiled ones."""
    view, inputs = view_package(zoo(name)), torch.load(zoo(name).with_name(f"{name}.inputs.pt"))
    passed = [GivenTensor(str(t.dtype).removeprefix("torch."), tuple(t.shape), t.stride()) for t in inputs]
    for sizes in (symbol_values(view.package.signature, passed), largest_sizes(view)):
        assert not find_kernel_defects(view, sizes)
    kernels = [kernel for kernel in view.wrapper.kernels.values() if kernel.source]
    assert kernels and all(map(read_accesses, kernels))


def edited(name: str, directory: Path, *edits: tuple[str, str], size: int = 8) -> list[tuple[str, str]]:
    """The defects of a recorded CUDA wrapper after replacing each first text by its second."""
    view = recorded(name, directory, dict(edits))
    assert not view.wrapper.problems
    symbols = view.wrapper.symbols.values()
    return defects(view, {s.name: size for s in symbols if s.kind in ("size", "stride")})


def test_an_output_that_is_only_loaded(tmp_path: Path) -> None:
    """As in pytorch/pytorch#183575, `in_out_ptr0` is only loaded, but callers expect it to be written."""
    gone = ("tl.store(in_out_ptr0 + (x2), tmp4, xmask)", "tmp5 = tmp4")
    assert edited("attention", tmp_path, gone) == [("never_stored", "in_out_ptr0")]


GRID = "uint32_t grid_1 = 1;"


@pytest.mark.parametrize(("blocks", "wrong"), [(65_535, False), (65_536, True)])
def test_a_grid_that_the_driver_refuses(blocks: int, wrong: bool, tmp_path: Path) -> None:
    """The largest number of blocks in y is allowed, and one more is not. The launcher rounds up."""
    numel = f"uint32_t grid_1 = ((({blocks} * xnumel) + (xnumel - 1)) / xnumel);"
    assert set(edited("logarithm", tmp_path, (GRID, numel))) == ({("grid", "y")} if wrong else set())


@pytest.mark.parametrize(("split", "wrong"), [(32, False), (33, True)])
def test_a_workspace_for_fewer_blocks_than_the_grid_has(split: int, wrong: bool, tmp_path: Path) -> None:
    """Only the grid gives `RSPLIT` of a cooperative reduction. 32 results of each row fit."""
    store = "tl.store(out_ptr2 + (r0_1 + 32*x0), tmp27, xmask)"
    peers = "tl.store((out_ptr2 + 0).to(tl.pointer_type(tl.float32)) + (xindex * RSPLIT + rsplit_id), tmp27)"
    found = edited(
        "attention",
        tmp_path,
        (store, f"rsplit_id = tl.program_id(0)\n        {peers}"),
        ("'grid_type': 'Grid1D'", "'grid_type': 'CooperativeReductionGrid'"),
        ("xoffset = tl.program_id(0) * XBLOCK", "xoffset = tl.program_id(1) * XBLOCK"),
        ("XBLOCK : tl.constexpr)", "XBLOCK : tl.constexpr, RSPLIT : tl.constexpr)"),
        ("uint32_t grid_0 = ", f"uint32_t grid_0 = {split} + 0 * "),
    )
    assert [each for each in found if each[1] == "out_ptr2"][:1] == ([("beyond", "out_ptr2")] * wrong)


KERNEL = "        tl.store(out + at, tl.load(x + at) * 2)\n"
BROKEN = {
    "healthy": ("tl.store(out + at, tl.load(x + at) * 2)", set()),
    "atomic": ("tl.store(out + at, 0.0)\n        tl.atomic_add(out + at, tl.load(x + at))", set()),
    "same element": (
        "tl.store(out + tl.arange(0, block), tl.load(x + at))",
        {("clash", "out"), ("uncovered", "out")},
    ),
    "not filled": ("tl.atomic_add(out + at, tl.load(x + at))", {("unset", "out")}),
    "wrong bound": ("tl.store(out + at, tl.load(x + at), mask=at < 1000)", {("uncovered", "out")}),
    "not atomic": (
        "i = tl.load(x + at).to(tl.int32)\n        tl.store(out + i, tl.load(out + i) + 1.0)",
        {("lost", "out"), ("unset", "out")},
    ),
    "neighbours in place": (
        "tl.store(out + at, tl.load(out + at - 1, mask=at > 0) + tl.load(x + at))",
        {("raced", "out"), ("unset", "out")},
    ),
    "itself in place": ("tl.store(out + at, tl.load(out + at) + tl.load(x + at))", {("unset", "out")}),
    "another dtype": (
        "x = x.to(tl.pointer_type(tl.float16))\n        tl.store(out + at, tl.load(x + at) * 2)",
        {("retyped", "x")},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_users_kernel_does_wrong_for_the_sizes_of_a_call(name: str, tmp_path: Path) -> None:
    """Twelve programs of 128 lanes run on [96, 16] elements. Each defect is named, and no other."""
    body, wrong = BROKEN[name]
    view = view_of(FAULTS / "missing_mask", tmp_path, {KERNEL: f"        {body}\n"})
    assert set(defects(view, {"s77": 96})) == wrong


def test_a_users_kernel_that_takes_a_strided_tensor_for_contiguous(tmp_path: Path) -> None:
    """Rows of 16 elements are 32 apart, so the 17th element of memory belongs to no row."""
    strided = "static constexpr int64_t int_array_3[] = {32L, 1L};"
    view = view_of(FAULTS / "missing_mask", tmp_path, {strided.replace("32L", "16L"): strided})
    assert ("gap", "x") in defects(view, {"s77": 96})
