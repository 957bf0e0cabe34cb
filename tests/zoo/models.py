"""The zoo: small real models, each chosen for a kind of launch or of wrapper code.

Runs in any interpreter that has torch; imports nothing of this project. Every entry builds the same model
from the same seed on the CPU and on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

Tensors = tuple[torch.Tensor, ...]


@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0] // 2
    return x[: n * 2].reshape(n, 2, *x.shape[1:]).sum(1).contiguous()


@halve_rows.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0] // 2, *x.shape[1:])


@dataclass(frozen=True)
class Entry:
    """One model: `build` returns the module, `sample` its example inputs, `dynamic` the dynamic shapes."""

    name: str
    build: Callable[[], nn.Module]
    sample: Callable[[int], Tensors]
    dynamic: Any = None
    bad: dict[str, Callable[[], Tensors]] = field(default_factory=dict)
    cuda_only: bool = False


class Ranker(nn.Module):
    """Embedding lookup, then two linear layers: the demo of an index out of bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(32, 16)
        self.hidden = nn.Linear(16, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.table(ids)
        hidden = F.relu(self.hidden(rows))
        return self.head(hidden).softmax(-1)


class Logarithm(nn.Module):
    """A logarithm between matrix products: NaN for a negative value."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(16, 16)
        self.out = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        h = self.inp(x)
        h = h.sigmoid() * torch.log(scale)
        return self.out(h)


class Attention(nn.Module):
    def __init__(self, d: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, t, d))


class Bags(nn.Module):
    """Embedding bags over offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 8, mode="sum")
        self.head = nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(ids, offsets))


class Jagged(nn.Module):
    """Rows gathered by a computed index: the bound is a run-time size."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, values: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        first = values[starts] * 2
        return self.head(first) + values.mean(0)[:4]


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 4, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.relu(self.a(x))).mean((2, 3))


class Patches(nn.Module):
    """A convolution that CUDA computes with the channels last, and attention over its places."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 16, 3, padding=1)
        self.l = nn.Linear(16, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.l(F.relu(self.c(x)).flatten(2).transpose(1, 2)).unsqueeze(1)
        return F.scaled_dot_product_attention(query, query, query)[:, 0].softmax(-1)


class Scatter(nn.Module):
    """scatter_reduce and index_put with accumulation: fallbacks with unchecked errors up to torch 2.13."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        y = torch.ones(12, device=x.device).scatter_reduce(0, index, x, "prod")
        z = torch.zeros(12, device=x.device).index_put((index,), x, accumulate=True)
        return y + z


class Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def hot(x: torch.Tensor) -> torch.Tensor:
            return x.sin() @ x.t()

        def cold(x: torch.Tensor) -> torch.Tensor:
            return x.cos() @ x.t() + 1

        return torch.cond(x.sum() > 0, hot, cold, (x,)).relu()


class Loop(nn.Module):
    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        def more(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            return n > 0

        def body(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x @ x.t() * 0.1, n - 1

        y, _ = while_loop(more, body, (x, n))
        return y + 1


class Plugin(nn.Module):
    """A Python custom op between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(8, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.inp(x))
        return self.out(halve_rows(h))


class Select(nn.Module):
    """topk, sort and gather: multi-output fallbacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, index = torch.topk(x, 4, dim=1)
        ordered, order = torch.sort(x, dim=1)
        return values + ordered[:, :4] + torch.gather(x, 1, order)[:, :4] + index


class Counter(nn.Module):
    """A buffer mutated in place, and an input mutated in place."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x)
        x.mul_(2)
        return self.seen * x + 1


class Unbacked(nn.Module):
    """nonzero: a size known only at run time."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = torch.nonzero(x[:, 0] > 0).squeeze(1)
        return self.head(x[keep] * 3)


class Views(nn.Module):
    """Chunks, transposes, cat and a reused buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.cat([a, b.t().reshape(b.shape[0], -1), a * b], dim=1)
        u, v = self.mix(y).chunk(2, dim=1)
        return (u.sigmoid() * v).t().contiguous() + x.sum()


class Norms(nn.Module):
    """A deeper stack: the same kernel is launched many times."""

    def __init__(self, layers: int = 6, d: int = 24) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(layers))
        self.lins = nn.ModuleList(nn.Linear(d, d) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, norm in enumerate(self.norms):
            x = x + F.gelu(self.lins[i](norm(x)))
        return x


class Features(nn.Module):
    """A dictionary input: the only user of the pytree spec."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Linear(8, 4)
        self.item = nn.Linear(8, 4)

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return (self.user(features["user"]).tanh() * self.item(features["item"])).sum(1)


def _ids(n: int) -> torch.Tensor:
    return torch.randint(0, 32, (n, 6), generator=torch.Generator().manual_seed(n))


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape))) + 0.1


def _spoiled(x: torch.Tensor, value: float) -> torch.Tensor:
    x = x.clone()
    x.view(-1)[5] = value
    return x


B = Dim("b", min=2, max=64)

ENTRIES: dict[str, Entry] = {
    e.name: e
    for e in [
        Entry(
            "ranker",
            Ranker,
            lambda n: (_ids(n),),
            ({0: B},),
            {"index": lambda: (_spoiled(_ids(8), 32),), "dtype": lambda: (_ids(8).int(),)},
        ),
        Entry(
            "logarithm",
            Logarithm,
            lambda n: (_randn(n, 16), _rand(n, 16)),
            ({0: B}, {0: B}),
            {"nan": lambda: (_randn(8, 16), _spoiled(_rand(8, 16), -1.0))},
        ),
        Entry("attention", Attention, lambda n: (_randn(n, 10, 32),), ({0: B},)),
        Entry("bags", Bags, lambda n: (torch.arange(4 * n) % 50, torch.arange(0, 4 * n, 4)), None),
        Entry(
            "jagged",
            Jagged,
            lambda n: (_randn(3 * n, 8), torch.arange(n) * 3),
            ({0: Dim("v", min=2, max=512)}, {0: B}),
            {"index": lambda: (_randn(6, 8), torch.tensor([0, 2, 5, 9]))},
        ),
        Entry("conv", Conv, lambda n: (_randn(n, 3, 12, 12),), ({0: B},)),
        Entry("patches", Patches, lambda n: (_randn(2, 3, 16, 16),), None),
        Entry(
            "scatter",
            Scatter,
            lambda n: (_rand(n), torch.arange(n) % 12),
            ({0: B}, {0: B}),
            {"index": lambda: (_rand(8), torch.tensor([0, 1, 2, 3, 4, 5, 6, 300]))},
        ),
        Entry("branch", Branch, lambda n: (_randn(n, 6),), None),
        Entry("loop", Loop, lambda n: (_randn(n, n), torch.tensor(3)), None),
        Entry("plugin", Plugin, lambda n: (_randn(n, 8),), ({0: 2 * Dim("half", min=1, max=32)},)),
        Entry("select", Select, lambda n: (_randn(n, 9),), ({0: B},)),
        Entry("counter", Counter, lambda n: (_randn(4, 8),), None),
        Entry("unbacked", Unbacked, lambda n: (_randn(n, 8),), ({0: B},)),
        Entry("views", Views, lambda n: (_randn(n, 16),), None),
        Entry("norms", Norms, lambda n: (_randn(n, 24),), ({0: B},)),
    ]
}


def export(name: str, device: str = "cpu", n: int = 8) -> torch.export.ExportedProgram:
    """The exported program of one entry, from seed 0, with inputs of size `n`."""
    entry = ENTRIES[name]
    torch.manual_seed(0)
    module = entry.build().eval().to(device)
    args = tuple(t.to(device) for t in entry.sample(n))
    with torch.no_grad():
        return torch.export.export(module, args, dynamic_shapes=entry.dynamic)
