"""A C++ kernel that was understood computes the same as eager mode.

A wrong reading would look like a fault of the package, and be `proven`.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from benchmarks.decompiled import schemas_of
from mcp_server.package.pytorch.program import write_program
from mcp_server.package.pytorch.values import PADDED
from mcp_server.package.terms.program import read_program
from mcp_server.package.view import view_package
from tests.support.programs import assert_program_agrees
from tests.zoo.names import THOROUGH


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def ids(most: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(0))


def shifts(x: torch.Tensor) -> torch.Tensor:
    """Shifts by more bits than a type has, and by negative numbers."""
    return torch.stack([1 << x, x.flip(0) >> x, (x.to(torch.uint8) << x.to(torch.uint8)).long()])


def near(x: torch.Tensor, bias: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Attention to valid near positions. Each lane of the loop over rows has its own maximum."""
    apart = torch.arange(8) - torch.arange(8)[:, None]
    seen = (apart.abs() < 4) & (torch.arange(8) < offsets.diff()[:, None, None, None])
    biased = x / 4 + bias[apart.clamp(-3, 3) + 3].permute(2, 0, 1)
    return torch.where(seen, biased, -1e4).softmax(-1)


X, Y, ROWS = floats(5, 40), floats(5, 40), ids(12, 7)
IMAGE = floats(2, 3, 9, 9)
FORMS: dict[str, tuple[Any, ...]] = {
    "lanes of an outer loop": (near, floats(4, 2, 8, 8), floats(7, 2), ids(9, 5)),
    "sums": (lambda x: (x.sum(-1), x.sum(0), x.sum(), x.prod(-1)), X),
    "extremes": (lambda x: (x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(0), x.max()), X),
    "sums of masks": (lambda x: ((x > 0).sum(-1), (x > 0).float().mean(), (x > 0).sum() / x.numel()), X),
    "any and all": (lambda x: ((x > 1).any(-1), (x > -2).all(-1), (x > 1).any(), (x * x).sum(-1)), X),
    "variance": (lambda x: (x.var(-1), torch.var_mean(x, 0), x.std()), X),
    "long rows": (lambda x: ((x - x.mean()) / x.std(), x.var(1)), floats(8, 1000)),
    "norms": (
        lambda x, w: (F.layer_norm(x, (40,), w, w), F.group_norm(x.view(1, 8, 5, 5), 2)),
        X,
        floats(40),
    ),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.logsumexp(-1), x.log_softmax(0)), X),
    "attention": (lambda x: (x + torch.full((20, 20), float("-inf")).triu(1)).softmax(-1), floats(4, 20, 20)),
    "tiles": (lambda x, y: (x.t() * y, (x.t() + 1).contiguous()), floats(37, 40), floats(40, 37)),
    "tiles and norms": (lambda x: F.layer_norm(x.permute(0, 2, 1), (33,)), floats(2, 33, 20)),
    "channels last": (
        lambda x: (x.contiguous() * 2, x.mean((2, 3))),
        floats(2, 32, 7, 7).to(memory_format=torch.channels_last),
    ),
    "gathers": (
        lambda w, i, j: (F.embedding(i, w), w[i], w[i, i + 1], w.gather(1, j)),
        floats(12, 24),
        ROWS,
        ids(24, 12, 9),
    ),
    "scatters": (
        lambda x, i, v: (x.index_put((i,), v, accumulate=True), x.index_add(0, i, v)),
        floats(12, 24),
        ROWS,
        floats(7, 24),
    ),
    "store at an index": (lambda x, i, v: x.index_put((i,), v), floats(12, 24), ROWS, floats(7, 24)),
    "in place": (lambda x, i, v: x.index_add_(0, i, v), floats(12, 24), ROWS, floats(7, 24)),
    "padding": (
        lambda x: (F.pad(x[0], (2, 3, 1, 1), value=1.5), *(F.pad(x, (2, 3), mode=mode) for mode in PADDED)),
        IMAGE[0],
    ),
    "pools": (lambda x: (F.max_pool2d(x, 3, 2, 1, return_indices=True), F.adaptive_avg_pool2d(x, 4)), IMAGE),
    "averages": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "windows": (lambda x: (F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, 2), F.unfold(x, 3, padding=1)), IMAGE),
    "written out": (
        lambda x, w, i: (
            x[:, 0] * x[:, 9] + x[:, 1] * x[:, 11] + x[:, 2] * x[:, 13] + x[:, 3] * x[:, 15],
            F.embedding(i, w).sum(1) - (F.embedding(i, w) * (i > 3)[..., None]).amax(1),
            torch.stack([x[:, n : n + 4].sum(1) for n in (0, 7, 14, 21)]).prod(0),
        ),
        X,
        floats(12, 24),
        ids(12, 7, 5),
    ),
    "resizing": (
        lambda x: (F.interpolate(x, scale_factor=2.0), F.interpolate(x, 12, mode="bilinear")),
        IMAGE[None, 0],
    ),
    "whole numbers": (
        lambda x: (x // 3, x % 7, x.int() * 3 % 5, (x & 7) | (x << 2) ^ (x >> 1), shifts(x[:, ::3])),
        ids(100, 5, 40) - 50,
    ),
    "quotients": (
        lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.remainder(x, y), torch.fmod(x, y)),
        ids(100, 5, 40) - 50,
        ids(9, 5, 40) + 1,
    ),
    "float ratios": (lambda x, y: (torch.remainder(x, y), torch.fmod(x, y), torch.floor_divide(x, y)), X, Y),
    "short floats": (lambda x, y: (x.softmax(-1), F.gelu(y), x * y.float()), X.bfloat16(), Y.half()),
    "gates": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), x.tanh(), x.clamp(-1, 1)), X),
    "functions": (lambda x: (x.sign() + x.trunc() + x.round(), x.abs() ** 1.5, x.abs().log1p(), x.erf()), X),
    "tests": (
        lambda x, y: (torch.where(x.isnan() | x.isinf(), 0, x), torch.fmax(x, y), (x > 0) ^ (y > 0)),
        X,
        Y,
    ),
    "positions": (
        lambda x: (x.flip(-1) + x.roll((3, -1), (0, 1)), x.tril(), x.unfold(1, 5, 2).sum(-1), x[:, [3, 1]]),
        X,
    ),
    "buckets": (lambda x, b: torch.bucketize(x, b), X, torch.linspace(-2, 2, 9)),
    "choices by what is loaded": (lambda w, i: (F.leaky_relu(w[i]), F.elu(w[i])), floats(12, 24), ROWS),
    "loss": (lambda x, i: (F.cross_entropy(x, i), F.one_hot(i, 12), F.mse_loss(x, -x)), floats(7, 12), ROWS),
}


WRITTEN = {"choices by what is loaded": r"(?<!def )\btake\("}
"""What the program of a form must not contain."""


class _Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: torch.Tensor) -> Any:
        return self.function(*given)


def generated(name: str, directory: Path, *, dynamic: bool) -> Path:
    """The package that torch generates for a form, without compiling it."""
    function, *given = FORMS[name]
    sizes = tuple(dict.fromkeys(range(each.dim()), torch.export.Dim.AUTO) for each in given)
    shapes = (sizes,) if dynamic else None
    program = torch.export.export(_Model(function), tuple(given), dynamic_shapes=shapes)
    path = directory / f"{name.replace(' ', '_')}.{'dynamic' if dynamic else 'static'}.pt2"
    only = {"aot_inductor.package_cpp_only": True}
    torch._inductor.aoti_compile_and_package(program, package_path=str(path), inductor_configs=only)
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch itself, which the compiler imports
@pytest.mark.parametrize("dynamic", [False, True] if THOROUGH else [True])
def test_kernels_of_every_form_compute_what_was_read(dynamic: bool, tmp_path: Path) -> None:
    """Reductions, tiles, gathers, scatters and functions of dynamic sizes. Thorough: all, and fixed sizes.

    The package as PyTorch gives eager mode's results.
    """
    found: set[str] = set()
    tried = FORMS if THOROUGH else dict(list(FORMS.items())[::6])
    for name, (function, *given) in tried.items():
        view = view_package(generated(name, tmp_path, dynamic=dynamic))
        kernels = [each for each in view.wrapper.kernels.values() if each.kind == "cpp" and each.source]
        program = write_program(view, schemas_of(view))
        assert not program.not_read, (name, program.not_read)
        assert not re.search(WRITTEN.get(name, "$^"), program.text), program.text
        assert [each.name for each in kernels if not read_program(each).is_understood] == []
        found |= {each.source for each in kernels}
        assert_program_agrees(program, function, given)
    assert len(found) > len(tried) / 2
