"""What roundings put into a float64 run say of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mcp_server.worker.eager_values import expectations
from mcp_server.worker.report import Report


class Cancels(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((x - x.mean(0)) / x.std(0)).mean(0), x.sum(0), x + 1


class InPlace(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        y.view(-1)[3:].add_(1000.0)
        return (y + 1,)


class Random(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.to(torch.float32) * 2, (x > 0) & (x < 1))


def outputs_of(model: nn.Module, shape: tuple[int, ...], place: Path) -> list[Any]:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    report = Report(str(place / "report.jsonl"))
    module = torch.export.export(model, (x,)).module()
    return expectations(module, [x], None, 1 << 24, report)[1]


def test_noise_is_large_where_terms_cancel(tmp_path: Path) -> None:
    """A mean that is nothing but rounding has noise above its size; a plain sum has far less than its own."""
    mean, total, plain = outputs_of(Cancels(), (500, 8), tmp_path)
    assert mean.noise > 0.1 * float(mean.eager.abs().mean())
    assert 0 < total.noise < 1e-4 * float(total.eager.abs().mean())
    assert 0 < plain.noise < 2e-7 * float(plain.eager.abs().max())
    assert (total.terms, plain.terms) == (500.0, 1.0)


@pytest.mark.parametrize("model", [InPlace(), Random()])
def test_views_and_dtypes_stay_what_they_are(model: nn.Module, tmp_path: Path) -> None:
    """What is written through a view reaches the tensor, and asserts of dtypes hold, with roundings too."""
    for output in outputs_of(model, (2, 3), tmp_path):
        assert output.exact is not None
        assert output.noise < 1e-3
