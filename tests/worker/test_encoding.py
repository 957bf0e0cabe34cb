"""The short ways to JSON give what the long way gives."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.worker.encode import encode_all, encode_layout, encode_output, frames
from mcp_server.worker.report import Encoded, encode, plain
from mcp_server.worker.tensors import layout, nonfinite

_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
_JSON = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner))


@given(_JSON)
def test_encoding_is_that_of_json(value: Any) -> None:
    """Whatever the value, the text reads as its plain form."""
    assert json.loads(encode(value)) == json.loads(json.dumps(plain(value)))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(3, 4),
        torch.zeros(8, 8)[1:, ::2],
        torch.zeros(0, 5, dtype=torch.int8),
        torch.zeros(2, 2).to_sparse(),
        torch.tensor(1.5),
    ],
    ids=["dense", "strided", "empty", "sparse", "scalar"],
)
def test_a_told_layout_is_the_layout(tensor: torch.Tensor) -> None:
    """Told twice, so that the second text is the remembered one."""
    assert [json.loads(encode_layout(tensor)) for _ in range(2)] == [plain(layout(tensor))] * 2


def test_layouts_that_differ_in_one_fact_are_told_apart() -> None:
    """Same shape, other strides, dtype, offset or alignment."""
    base = torch.zeros(64)
    views = [base[:4], base[1:5], base[16:20], base[:8:2], base[:4].to(torch.int32), base[:4].double()]
    assert len({encode_layout(view) for view in views}) == len(views)


@pytest.mark.parametrize(
    ("values", "nan", "inf"),
    [
        ([1.0, -2.0], 0, 0),
        ([math.nan, 1.0], 1, 0),
        ([math.inf, -math.inf, 1.0], 0, 2),
        ([3e38, 3e38], 0, 0),
    ],
    ids=["finite", "nan", "infinities that cancel", "a sum that overflows"],
)
def test_counts_of_outputs(values: list[float], nan: int, inf: int) -> None:
    """A sum that is not finite is counted again, element by element."""
    told = encode_output(torch.tensor(values), "", True)
    assert (json.loads(told.text)["nan"], json.loads(told.text)["inf"]) == (nan, inf)
    assert told.odd is bool(nan or inf)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_narrow_and_complex_values(dtype: torch.dtype) -> None:
    """Large finite halves are not taken for infinite."""
    large = torch.full((100,), 400.0).to(dtype)
    assert nonfinite(large) == {"nan": 0, "inf": 0}


def test_an_unreadable_output_and_one_that_is_no_tensor() -> None:
    """What the device said is kept; a plain value is told by its repr."""
    broken = encode_output(torch.zeros(2), "an illegal memory access", True)
    assert broken.odd and broken.unreadable and "illegal" in json.loads(broken.text)["unreadable"]
    told = encode_output(7, "", True)
    assert json.loads(encode_all([told.text, told.text])) == [{"value": "7"}] * 2


def test_frames_name_the_calling_line_each_time() -> None:
    """Two calls on one line give one text, a call on another line another."""
    told: list[Encoded] = [frames() for _ in range(2)]
    other = frames()
    first, second = json.loads(told[0])[0], json.loads(other)[0]
    assert told[0] is told[1]
    assert (first["file"], second["line"]) == (__file__, first["line"] + 1)
    assert first["code"].startswith("told: list[Encoded]")
