"""Reductions of a user's Triton kernel: masked lanes that take part, and sums kept in 16 bits."""

from __future__ import annotations

import ast
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.memory_faults.triton_reductions import (
    narrow_pointers,
    narrow_sums,
    paddings,
    repaired,
    widened,
)

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


SIGNED = (
    "triton_meta={'signature': {'x': '*fp16', 'w': '*bf16', 'n': 'i32', 'out': '*fp32', 'B': 'constexpr'}}"
)
POINTERS = frozenset({"x", "w"})


def kernel(*body: str) -> str:
    lines = "\n".join(f"    {line}" for line in body)
    return f"@triton.jit\ndef level(x, w, n, out, B: tl.constexpr):\n{lines}\n"


def test_the_signature_tells_which_tensors_are_narrow() -> None:
    """As Inductor writes it into the text of a kernel; without one nothing is known."""
    assert narrow_pointers(SIGNED) == POINTERS
    assert narrow_pointers("def level(x): pass") == frozenset()


@pytest.mark.parametrize(
    ("body", "sums"),
    [
        (["v = tl.load(x + tl.arange(0, B))", "tl.store(out, tl.sum(v * v, 0))"], ["tl.sum(v * v, 0)"]),
        (["tl.store(out, (tl.sum(tl.load(x), 0) / n).to(tl.float32))"], ["tl.sum(tl.load(x), 0)"]),
        (["row = x + n", "tl.store(out, tl.sum(tl.load(row + 1)))"], ["tl.sum(tl.load(row + 1))"]),
        (
            ["acc = tl.zeros([B], dtype=tl.float16)", "for i in range(n):", "    acc += tl.load(w + i)"],
            ["acc += tl.load(w + i)"],
        ),
        (["tl.store(out, tl.sum(tl.exp(tl.load(w))))"], ["tl.sum(tl.exp(tl.load(w)))"]),
        (["v = tl.load(out).to(tl.float16)", "tl.store(out, tl.sum(v))"], ["tl.sum(v)"]),
        (["v = tl.sum(tl.load(x), 1)[:, None]", "tl.store(out, v)"], ["tl.sum(tl.load(x), 1)"]),
        (["v = tl.load(x).to(tl.float32)", "tl.store(out, tl.sum(v * v))"], []),
        (["acc = tl.zeros([B], tl.float32)", "for i in range(n):", "    acc += tl.load(x + i)"], []),
        (["tl.store(out, tl.sum(tl.load(x), dtype=tl.float32))"], []),
        (["tl.store(out, tl.sum(tl.load(out + tl.load(x))))"], []),
        (["p = x", "for i in range(n):", "    p += B", "tl.store(out, tl.max(tl.load(p), 0))"], []),
        (["tl.store(out, tl.load(x) + tl.load(w))"], []),
    ],
    ids=[
        "squares", "cast after", "derived pointer", "running", "function", "narrowed", "in a subscript",
        "widened", "wide running", "dtype of the sum", "other tensor", "pointer moves", "no sum",
    ],
)  # fmt: skip
def test_sums_that_are_kept_in_16_bits(body: list[str], sums: list[str]) -> None:
    """Those over values that were loaded or made narrow, and not widened before."""
    source = kernel(*body)
    assert [found.text for found in narrow_sums(source, "level", POINTERS)] == sums
    assert (widened(source, "level", POINTERS) is not None) == bool(sums)


def test_the_wide_kernel_loads_and_computes_in_float32() -> None:
    """Each narrow load is widened, and no 16-bit dtype is left; other loads stay."""
    source = kernel(
        "v = tl.load(x, mask=n > 0).to(tl.float16)",
        "u = tl.load(out)",
        "tl.store(out, (tl.sum(v) * u).to(tl.bfloat16))",
    )
    text = widened(source, "level", POINTERS)
    assert text is not None and "tl.load(x, mask=n > 0).to(tl.float32)" in text
    assert "u = tl.load(out)\n" in text and "float16" not in text
    assert not narrow_sums(text, "level", frozenset())


def test_bits_are_not_reinterpreted_in_another_width() -> None:
    """A kernel that takes the bits of a value apart is left alone."""
    source = kernel("v = tl.load(x).to(tl.int16, bitcast=True)", "tl.store(out, tl.sum(tl.load(x)))")
    assert narrow_sums(source, "level", POINTERS) and widened(source, "level", POINTERS) is None


@given(st.text(max_size=200))
def test_any_text_is_read(text: str) -> None:
    """What is no kernel has no sums, and nothing raises."""
    for source in (text, kernel(text.replace("\n", " "))):
        found = narrow_sums(source, "level", POINTERS)
        changed = widened(source, "level", POINTERS)
        assert changed is None or (found and ast.parse(changed))
