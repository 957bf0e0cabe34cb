"""Accesses in kernel sources, reductions of a user's Triton kernel, and memory faults linked to them."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcp_server.memory_faults.situation import SourceAccess
from mcp_server.package.kernels import Kernel, Parameter
from mcp_server.package.prover import narrow_sums, paddings
from mcp_server.package.terms.linear import address_of
from mcp_server.package.terms.program import read_program
from tests.memory_faults.support import FAULTS, PROGRAMS, joined

# Accesses in kernel sources.


VALUES = {"n": 100, "stride": 64, "W": 16}


def accesses(source: str, tensors: str = "x table out") -> list[SourceAccess]:
    """The accesses of a user's kernel whose scalars are `VALUES`."""
    parameters = tuple(Parameter(name, "tensor", "read") for name in tensors.split())
    program = read_program(Kernel("k_0", "user_triton", "k", parameters, 1, source, 1))
    return [SourceAccess(each, address_of(each.place, VALUES)) for each in program.accesses]


def first(source: str, code: str) -> SourceAccess:
    """The first access on the first line with `code`."""
    line = next(n for n, text in enumerate(source.split("\n"), 1) if code in text)
    return next(each for each in accesses(source) if each.access.line == line)


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
    """The base is found through block pointers, hints and casts, by position or by name."""
    assert first(f"def k(table):\n    p = {pointer}\n    tl.load(p)\n", "tl.load(p)").parameters == ("table",)


def test_either_pointer_of_a_choice_may_be_meant() -> None:
    """`x if n else table` and `tl.where` give both pointers."""
    for choice in ("x if n else table", "tl.where(n > 0, x, table)"):
        source = f"def k(x, table, n):\n    p = {choice}\n    tl.load(p)\n"
        assert first(source, "tl.load(p)").parameters == ("x", "table")


# Reductions in a user's Triton kernel.

SOFTMAX = """
def kernel(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + col, mask=col < width, other={other})
    x = x - tl.max(x, 0)
    e = tl.exp(x)
    tl.store(y_ptr + row * width + col, e / tl.sum(e, 0), mask=col < width)
"""
RUNNING_MAXIMUM = """
def kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    best = tl.{begin}
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < width, other={other})
        best = tl.maximum(best, x)
    tl.store(out_ptr, tl.max(best, 0))
"""
VARIANCE = """
def kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    mask = col < width
    x = tl.load(x_ptr + col, mask, 0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / width
    centred = {centred}
    tl.store(out_ptr, tl.sum(centred * centred, axis=0) / width)
"""
SUMMED_IN_A_LOOP = """
def kernel(x_ptr, out_ptr, width, mean, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + col, mask=col < width, other=0.0)
        x = x - mean
        total += x * x
    tl.store(out_ptr, tl.sum(total, axis=0))
"""
FULL = "full([BLOCK], float('-inf'), tl.float32)"
WRONG = {
    "softmax": (SOFTMAX.format(other="0.0"), ["x = x - tl.max(x, 0)", "tl.store(y_ptr + row * width"]),
    "loaded": (RUNNING_MAXIMUM.format(begin=FULL, other="0"), ["tl.store(out_ptr, tl.max(best, 0))"]),
    "variance": (VARIANCE.format(centred="x - mean"), ["tl.store(out_ptr, tl.sum(centred * centred"]),
    "loop": (SUMMED_IN_A_LOOP, ["tl.store(out_ptr, tl.sum(total, axis=0))"]),
}
SOUND = {
    "softmax": SOFTMAX.format(other="-float('inf')"),
    "from zero": RUNNING_MAXIMUM.format(begin="zeros([BLOCK], tl.float32)", other="0.0"),
    "maximum": RUNNING_MAXIMUM.format(begin=FULL, other="float('-inf')"),
    "variance": VARIANCE.format(centred="tl.where(mask, x - mean, 0.0)"),
    "causal mask": """
def kernel(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col, mask=col < width, other=0.0)
    x = x + tl.where(col > 3, -float("inf"), 0.0)
    tl.store(y_ptr, tl.max(x, 0))
""",
    "largest size of a value": """
def kernel(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col, mask=col < width, other=0.0)
    tl.store(y_ptr, tl.max(tl.abs(x), 0) + tl.sum(x * x, 0))
""",
    "scaled": """
def kernel(x_ptr, y_ptr, width, scale, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    x = scale * tl.load(x_ptr + col, mask=col < width, other=-float("inf")) * scale
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr, tl.sum(e, 0))
""",
    "two masks": """
def kernel(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col, mask=col < width, other=1.0)
    y = tl.load(y_ptr + col, mask=col > 1, other=1.0)
    tl.store(y_ptr, tl.sum(x - y, 0))
""",
}


TENSORS = tuple(Parameter(name, "tensor", "read") for name in ("x_ptr", "y_ptr", "out_ptr", "w_ptr", "p"))


def kernel_of(source: str) -> Kernel:
    """Make a user's kernel from this source."""
    return Kernel("kernel", "user_triton", "kernel", TENSORS, 1, source, 1, ("4", "1", "1"))


@pytest.mark.parametrize("name", WRONG)
def test_lanes_that_change_a_reduction_are_found(name: str) -> None:
    """Each is found with the lines of its load and reduction, and the filler that the reduction needs."""
    source, expected = WRONG[name]
    found = paddings(kernel_of(source))
    assert len(found) == len(expected)
    assert all(padding.code.startswith(code) for padding, code in zip(found, expected, strict=True))
    assert all("tl.load" in padding.load for padding in found)
    assert all(p.needed == (0.0 if p.kind == "sum" else float("-inf")) for p in found)


@pytest.mark.parametrize("name", SOUND)
def test_sound_padding_is_not_accused(name: str) -> None:
    """Neutral fillers, lanes that are masked again, and values that are not followed are accepted."""
    assert paddings(kernel_of(SOUND[name])) == ()


@pytest.mark.parametrize("text", ["", "def kernel(:", "x = 1", "def other():\n    pass"])
def test_what_cannot_be_read_is_not_accused(text: str) -> None:
    """A text without a function, or that is not Python, is not accused."""
    assert not paddings(kernel_of(text)) and not narrow_sums(kernel_of(text))


# Memory faults linked to their launch, element and line.

# Recordings of one H200 (torch 2.11): programs with a known fault.


def truth(name: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads((FAULTS / name / "truth.json").read_text())
    return known


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recorded_fault_is_joined_as_it_was_made(name: str, tmp_path: Path) -> None:
    """Kernel, argument and guilty party are those with which the program was written."""
    known, fault = truth(name), joined(name, tmp_path)
    assert fault is not None and known["kernel"] in fault.kernel
    assert fault.launch is not None and fault.blame is not None
    if known["argument"]:
        assert fault.missed is not None
        assert fault.missed.variable.startswith(known["argument"])
    if known["guilty"]:
        assert fault.blame.kind in known["guilty"]
    if known["input_index"] is not None:
        assert fault.blame.input_index == known["input_index"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_without_a_journal_nothing_is_measured(name: str, tmp_path: Path) -> None:
    """If the package could not be rebuilt, there is no side or distance, and the result says so."""
    fault = joined(name, tmp_path, with_journal=False)
    assert fault is not None
    assert fault.missed is None or fault.missed.bytes_outside is None
    assert fault.unknown


@pytest.mark.parametrize(("name", "row"), [("read_far", 500_000_000), ("read_negative", -2)])
@pytest.mark.parametrize(("seen", "blame"), [(True, ("input", "likely")), (False, ("kernel", "possible"))])
def test_values_nobody_saw(name: str, row: int, seen: bool, blame: tuple[str, str], tmp_path: Path) -> None:
    """For a row far outside the table, only the ids that the launch read show that they asked for it."""
    fault = joined(name, tmp_path, with_values=seen)
    assert fault is not None and fault.missed is not None and fault.blame is not None
    assert (fault.missed.variable, fault.missed.index, fault.missed.certain) == ("table", [row, 0], True)
    assert (fault.blame.kind, fault.blame.confidence) == blame
    assert (fault.parts[0].limit, fault.parts[0].beyond) == (64, True if seen else None)


@pytest.mark.parametrize(
    ("name", "side", "outside", "category"),
    [
        ("read_negative", "before", 128, "index_out_of_bounds"),
        ("int32_overflow", "before", 2_140_700_672, "illegal_memory_access"),
        ("empty_tensor", "empty", None, "illegal_memory_access"),
        ("host_tensor", "host", None, "device_mismatch"),
    ],
)
def test_side_and_distance(name: str, side: str, outside: int | None, category: str, tmp_path: Path) -> None:
    """Side and distance are those computed by hand from the recorded pointers and addresses."""
    fault = joined(name, tmp_path)
    assert fault is not None and fault.missed is not None and fault.blame is not None
    assert (fault.missed.side, fault.missed.bytes_outside) == (side, outside)
    assert fault.blame.category == category and (fault.masked is False or name != "empty_tensor")


@pytest.mark.parametrize(
    ("name", "mask", "guilty"),
    [
        ("read_negative", "index < 512", "kernel"),
        ("read_negative", "512 > index", "kernel"),
        ("read_negative", "(index >= 0) & (index < 512)", "input"),
        ("read_negative", "col < width", "input"),
        ("read_far", "index >= 0", "kernel"),
    ],
)
def test_a_mask_of_the_other_side_is_the_kernels(name: str, mask: str, guilty: str, tmp_path: Path) -> None:
    """If a user's kernel masks one side of an index, it is at fault; if it masks none, the index is."""
    load = "tl.load(table + index * width + col"
    fault = joined(name, tmp_path, changes={f"{load})": f"{load}, {mask})"})
    assert fault is not None and fault.blame is not None
    assert fault.blame.kind == guilty
    if guilty == "kernel":
        assert (fault.blame.name, fault.blame.category) == ("lookup_kernel", "illegal_memory_access")
        assert mask in fault.blame.reasons[0] and fault.blame.confidence == "likely"


def test_a_buffer_of_another_size_blames_the_launch_that_made_it(tmp_path: Path) -> None:
    """The wrapper expects two more rows than the buffer has, so the kernel that reads it is not at fault."""
    sizes = "int_array_2[] = {"
    fault = joined("missing_mask", tmp_path, changes={f"{sizes}s77,": f"{sizes}s77 + 2L,"})
    assert fault is not None and fault.blame is not None
    assert (fault.blame.name, fault.blame.category) == ("triton_poi_fused_sin_0", "illegal_memory_access")


def test_uninitialised_memory_blames_who_was_to_write_it(tmp_path: Path) -> None:
    """initcheck names the reader. The link names the kernel that left half of the buffer unwritten."""
    fault = joined("uninitialised", tmp_path)
    assert fault is not None and fault.blame is not None
    assert (fault.blame.kind, fault.blame.name) == ("upstream_kernel", "half_kernel")
