"""Sums that a Triton kernel keeps in 16 bits, and the kernel in float32."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.memory_faults.triton_reductions import narrow_pointers, narrow_sums, widened

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
