"""What rounding does to a program is told from a wrong value, element by element, and in a float64 run."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mcp_server.tools.context import stream_events
from mcp_server.worker.eager_values import expectations
from mcp_server.worker.events import Rounding
from mcp_server.worker.report import Report
from mcp_server.worker.rounding import Reference, judge, references

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Chain(nn.Module):  # type: ignore[misc]
    """Operators that eager rounds one by one, and a fused kernel keeps in float32."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            x = x * 1.7 - torch.sin(x * 2.0)
            x = x / (1 + x.abs())
        return x * 8


class Block(nn.Module):  # type: ignore[misc]
    """Products, a softmax, a norm, and an index."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.left = nn.Parameter(torch.randn(16, 16, generator=generator) / 4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.softmax(x @ self.left @ x.transpose(-1, -2), -1)
        x = self.norm(x + scores @ x)
        return x, x.argmax(-1)


class Cancels(nn.Module):  # type: ignore[misc]
    """Nothing but rounding is left of the first row; the others are well conditioned."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        big = x * 1000 + 1
        return torch.cat([(big[:1] - x[:1] * 1000) - 1, x[1:] * 2])


MODELS = {"chain": Chain, "block": Block, "cancels": Cancels}


@cache
def exported(name: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    return torch.export.export(model, (torch.randn(8, 16).to(dtype),)).module()


def computed(name: str, seed: int, dtype: torch.dtype, directory: Path) -> tuple[list[Reference], list[Any]]:
    """The references of a program, and what a package gives that keeps all results in float32."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
    found = references(exported(name, dtype), [x], Report(str(directory / "report.jsonl")))
    assert found is not None
    wide = MODELS[name]().float()
    wide.load_state_dict({key: value.float() for key, value in exported(name, dtype).state_dict().items()})
    with torch.no_grad():
        made = wide(x.float())
    made = made if isinstance(made, tuple) else (made,)
    return found, [tensor.to(one.eager.dtype) for tensor, one in zip(made, found, strict=True)]


CASES = (st.sampled_from(sorted(MODELS)), st.integers(0, 10_000), st.sampled_from(DTYPES))


@settings(deadline=None, max_examples=40)
@given(*CASES)
def test_fewer_roundings_than_eagers_are_rounding(
    tmp_path_factory: pytest.TempPathFactory, name: str, seed: int, dtype: torch.dtype
) -> None:
    """A kernel that keeps intermediate results in float32 is never accused, in whatever dtype."""
    found, made = computed(name, seed, dtype, tmp_path_factory.mktemp("rounding"))
    floats = [pair for pair in zip(found, made, strict=True) if pair[1].is_floating_point()]
    assert [one.unexplained(tensor) for one, tensor in floats] == [0] * len(floats)


@settings(deadline=None, max_examples=40)
@given(*CASES, st.integers(16, 127), st.sampled_from((0.0, math.inf, math.nan, -1.0)))
def test_one_wrong_element_is_never_rounding(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    seed: int,
    dtype: torch.dtype,
    place: int,
    value: float,
) -> None:
    """One element that is lost, negated or not finite is seen, whatever the other 127 do."""
    found, made = computed(name, seed, dtype, tmp_path_factory.mktemp("rounding"))
    spoilt = made[0].clone().reshape(-1)
    before = float(spoilt[place])
    spoilt[place] = -before if value == -1.0 else value
    # What rounding may do to the element itself: a value of that size is none of this test.
    moves = max(float((one - found[0].exact).abs().reshape(-1)[place]) for one in found[0].moved)
    if not math.isfinite(value) or abs(before) > 20 * max(
        moves, float((made[0] - found[0].eager).abs().max())
    ):
        assert found[0].unexplained(spoilt.reshape(made[0].shape)) == 1


def test_an_element_that_cancels_hides_no_other(tmp_path: Path) -> None:
    """The row of which rounding alone is left may be anything near; a wrong value in another row is seen."""
    found, (made,) = computed("cancels", 3, torch.bfloat16, tmp_path)
    assert float((found[0].eager - found[0].exact)[0].abs().max()) > 0.9  # all of it is rounding there
    assert found[0].unexplained(found[0].eager) == 0
    made[4, 4] *= 1.5
    assert found[0].unexplained(made) == 1


def test_an_index_must_be_one_that_was_seen(tmp_path: Path) -> None:
    """Another place than eager's and that of every run is no rounding."""
    found, made = computed("block", 5, torch.bfloat16, tmp_path)
    assert found[1].unexplained(found[1].eager) == 0
    assert found[1].unexplained((found[1].eager + 1) % 16) > 0
    assert made[1].dtype == torch.int64


class Draws(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_random_numbers_are_not_judged(tmp_path: Path) -> None:
    """Where eager differs from run to run, a difference says nothing."""
    module = torch.export.export(Draws(), (torch.ones(8),)).module()
    assert references(module, [torch.ones(8)], Report(str(tmp_path / "report.jsonl"))) is None


@pytest.mark.parametrize(("reference", "near"), [("eager", True), ("other", False), ("own", None)])
def test_the_reference_of_a_check_is_judged_as_well(
    tmp_path: Path, reference: str, near: bool | None
) -> None:
    """Eager's outputs are explained, those of another model are not, and the package's own say nothing."""
    found, (made,) = computed("chain", 1, torch.bfloat16, tmp_path)
    checked = {"eager": found[0].eager, "other": found[0].eager + 1, "own": made.clone()}[reference]
    report = tmp_path / "judged.jsonl"
    judge(found, [made], [checked], Report(str(report)))
    (event,) = stream_events(report, Rounding)
    assert event.reference is near and event.narrow
    assert [each.unexplained for each in event.outputs] == [0]


class Standardised(nn.Module):  # type: ignore[misc]
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
    mean, total, plain = outputs_of(Standardised(), (500, 8), tmp_path)
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
