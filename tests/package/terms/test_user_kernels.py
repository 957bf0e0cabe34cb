"""Triton kernels that people write, read and evaluated, against what they mean in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.program import read_program
from tests.package.terms.running import Read

N, BLOCK = 24, 16
HEAD = """@triton_heuristics.user_autotune(triton_meta={
    'signature': {'x': '*fp32', 'out': '*fp32', 'n': 'i32', 'B': 'constexpr'}, 'constants': {'B': 16}})
"""
TWICE = "@triton.jit\ndef twice(p, m):\n    v = tl.load(p, mask=m, other=1.0)\n    return v * 2\n"
AT = "at = tl.program_id(0) * B + tl.arange(0, B)\n"
ROW = "row = tl.program_id(0)\nat = tl.arange(0, B)\nacc = tl.zeros([B], dtype=tl.float32)\n"
GRID = "i = tl.arange(0, B)\nat = i[:, None] * B + i[None, :]\n"


def kernel(body: str, before: str = "", parameters: str = "x, out, n, B: tl.constexpr") -> Kernel:
    """A kernel of four programs; `n` is 24, and a block has 16 lanes."""
    lines = "".join(f"    {line}\n" for line in body.strip("\n").split("\n"))
    source = f"{before}{HEAD}@triton.jit\ndef k({parameters}):\n{lines}"
    return Kernel("k", "user_triton", "k", (), 1, source, 1, ("4", "1", "1"))


KERNELS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a mask": (
        AT + "tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)",
        lambda x: x[:N],
    ),
    "a branch": (
        AT
        + "v = tl.load(x + at)\nif tl.program_id(0) > 1:\n    v = v * 2\nelse:\n    v = -v\n"
        + "tl.store(out + at, v)",
        lambda x: torch.cat([-x[:32], x[32:64] * 2]),
    ),
    "an early return": (
        AT + "if tl.program_id(0) >= 2:\n    return\ntl.store(out + at, tl.load(x + at))",
        lambda x: x[:32],
    ),
    "a function": (AT + "tl.store(out + at, twice(x + at, at < n), mask=at < n)", lambda x: x[:N] * 2),
    "a pointer that moves": (
        ROW + "p = x + row * 48 + at\nfor k in range(3):\n    acc += tl.load(p)\n    p += B\n"
        "tl.store(out + row * B + at, acc)",
        lambda x: x[:192].view(4, 3, 16).sum(1).flatten(),
    ),
    "a sum over a loop": (
        ROW
        + "for k in range(0, n, B):\n    acc += tl.load(x + row * n + k + at, mask=k + at < n, other=0.0)\n"
        "tl.store(out + row, tl.sum(acc, axis=0))",
        lambda x: x[: 4 * N].view(4, N).sum(-1),
    ),
    "a softmax": (
        ROW + "v = tl.load(x + row * B + at)\ne = tl.exp(v - tl.max(v, axis=0))\n"
        "tl.store(out + row * B + at, e / tl.sum(e, axis=0))",
        lambda x: x[:64].view(4, 16).softmax(-1).flatten(),
    ),
    "one range on two axes": (GRID + "tl.store(out + at, tl.load(x + at) * 2)", lambda x: x[:256] * 2),
    "a sum over an axis": (
        GRID + "tl.store(out + i, tl.sum(tl.load(x + at), axis=1))",
        lambda x: x[:256].view(16, 16).sum(1),
    ),
    "a turn that is left out": (
        AT
        + "for k in range(2):\n    if k == 0:\n        continue\n"
        + "    tl.store(out + (k - 1) * 64 + at, tl.load(x + k * 64 + at))",
        lambda x: x[64:128],
    ),
    "atomic additions": (
        AT + "tl.atomic_add(out + at % 8, tl.load(x + at))",
        lambda x: x[:64].view(8, 8).sum(0),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_computes_what_was_read(name: str) -> None:
    """All that it stores, and nothing else."""
    body, meaning = KERNELS[name]
    program = read_program(kernel(body, TWICE))
    assert program.is_understood
    x = torch.randn(400, generator=torch.Generator().manual_seed(0))
    read = Read(program, {"x": x.tolist(), "out": [0.0] * 400}, {"n": N})
    expected, stored = meaning(x), set[int]()
    for store in program.stores:
        made = [at for at in read.points(store) if store.test is None or at.value(store.test)]
        stored |= {int(at.value(store.index)) for at in made}
    assert stored == set(range(len(expected)))
    for place in range(0, len(expected), 3):
        value = read.value(program.stores_to("out"), "out", place)
        assert value == pytest.approx(expected[place].item(), abs=1e-5), place


@pytest.mark.parametrize(
    "body",
    [
        "s = 0.0\nfor k in range(n):\n    s = s * 0.5 + tl.load(x + k)\ntl.store(out, s)",
        "i = 0\nwhile i < n:\n    i += 1\ntl.store(out, tl.load(x + i))",
        "v = tl.inline_asm_elementwise('x', '=r', [n], tl.int32, True, 1)\ntl.store(out, v)",
        "for k in range(n):\n    if k > 3:\n        break\n    tl.store(out + k, 1.0)",
        "old = tl.atomic_add(out, 1.0)\ntl.store(out + 1, old)",
        "for k in range(n):\n    tl.store(out, tl.load(out) + tl.load(x + k))",
        "for k in range(1, n):\n    tl.store(out + k, tl.load(out + k - 1) + tl.load(x + k))",
        "v = tl.dot(tl.load(x), tl.load(x))\ntl.store(out, v)",
    ],
)
def test_what_is_not_read_is_not_understood(body: str) -> None:
    """Recurrences, in a name or in memory; `while`, `break`, code of the device, what atomics give back."""
    assert not read_program(kernel(body)).is_understood
