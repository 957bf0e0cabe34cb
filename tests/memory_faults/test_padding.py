"""Masked lanes of a user's Triton kernel that take part in a reduction, read from its source."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.memory_faults.triton_reductions import paddings, repaired

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
    "softmax": (SOFTMAX.format(other="0.0"), ["tl.max(x, 0)", "tl.sum(e, 0)"]),
    "maximum": (RUNNING_MAXIMUM.format(begin="zeros([BLOCK], tl.float32)", other="0.0"), ["tl.max(best, 0)"]),
    "loaded": (RUNNING_MAXIMUM.format(begin=FULL, other="0"), ["tl.max(best, 0)"]),
    "variance": (VARIANCE.format(centred="x - mean"), ["tl.sum(centred * centred, axis=0)"]),
    "loop": (SUMMED_IN_A_LOOP, ["tl.sum(total, axis=0)"]),
}
SOUND = {
    "softmax": SOFTMAX.format(other="-float('inf')"),
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
    "product of two": """
def kernel(x_ptr, w_ptr, y_ptr, width, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + col, mask=col < width, other=0.0)
    w = tl.load(w_ptr + col, mask=col < width, other=1.0)
    tl.store(y_ptr, tl.sum(x * w, 0))
""",
}


@pytest.mark.parametrize("name", WRONG)
def test_lanes_that_change_a_reduction_are_found(name: str) -> None:
    """Each with the line of its load and of the reduction, and what the reduction would need."""
    source, expected = WRONG[name]
    found = paddings(source, "kernel")
    assert [padding.reduction for padding in found] == expected
    lines = source.splitlines()
    assert all("tl.load" in lines[p.load_line - 1] and p.operation in lines[p.line - 1] for p in found)
    assert all(p.needed == (0.0 if p.operation == "tl.sum" else float("-inf")) for p in found)


@pytest.mark.parametrize("name", SOUND)
def test_sound_padding_is_not_accused(name: str) -> None:
    """Neutral fillers, lanes that are masked again, and values that are not followed."""
    assert paddings(SOUND[name], "kernel") == () and repaired(SOUND[name], "kernel") is None


@pytest.mark.parametrize("name", WRONG)
def test_a_repaired_kernel_pads_neutrally(name: str) -> None:
    """The other source is read again, is sound, and has the same signature."""
    source, _ = WRONG[name]
    changed = repaired(source, "kernel")
    assert changed is not None and paddings(changed, "kernel") == ()
    before, after = (ast.parse(text).body[0] for text in (source, changed))
    assert isinstance(before, ast.FunctionDef) and isinstance(after, ast.FunctionDef)
    assert ast.dump(before.args) == ast.dump(after.args)


def test_a_running_maximum_begins_with_its_neutral_value() -> None:
    """Zeros that it began with would stay in lanes that no iteration fills."""
    changed = repaired(WRONG["maximum"][0], "kernel")
    assert changed is not None and "tl.full([BLOCK], float('-inf'), tl.float32)" in changed


@pytest.mark.parametrize("text", ["", "def kernel(:", "x = 1", "def other():\n    pass"])
def test_what_cannot_be_read_is_not_accused(text: str) -> None:
    """No such function, or no Python."""
    assert paddings(text, "kernel") == () and repaired(text, "kernel") is None


_VALUES = st.sampled_from(
    ["x", "w", "2.0", "width", "tl.exp(x)", "tl.sum(x, 0)", "-x", "x / w", "tl.load(p + col)"]
)
_LINES = st.sampled_from(
    [
        "x = {}",
        "w = {}",
        "x += {}",
        "w = tl.maximum(w, {})",
        "x = tl.where(col < width, x, {})",
        "tl.store(p, {})",
    ]
)


@given(st.lists(st.tuples(_LINES, _VALUES), max_size=6), st.sampled_from(["0.0", "1.0", "float('-inf')"]))
def test_any_arithmetic_is_read(lines: list[tuple[str, str]], other: str) -> None:
    """No error whatever is assigned; what is repaired is sound afterwards."""
    body = "\n".join(form.format(value) for form, value in lines)
    begin = f"x = tl.load(p + col, mask=col < width, other={other})\nw = tl.sum(x, 0) + x"
    text = f"{begin}\n{body}\ntl.store(p, tl.max(x, 0))"
    source = "def kernel(p, width, col):\n" + textwrap.indent(text, "    ")
    changed = repaired(source, "kernel")
    assert changed is None or paddings(changed, "kernel") == ()
