"""Terms are evaluated as torch and numpy compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.package.terms.evaluate import UnknownValue, applied, fold, rounded
from mcp_server.package.terms.term import Apply, Element, Number, Scalar, Term
from tests.package.terms.made import read, terms, value

UNARY = [
    *("sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "sinh"),
    *("asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc", "sigmoid"),
    *("floor", "ceil", "trunc", "round", "sign", "abs", "neg"),
]
_NUMPY: dict[str, Any] = {
    **{op: getattr(np, op) for op in ("minimum", "maximum", "floor", "ceil", "trunc", "abs", "sqrt")},
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def in_numpy(term: Term, x: float) -> np.generic:
    """The same term, computed by numpy in float32."""
    match term:
        case Number(value=known):
            return np.float32(known)
        case Element():
            return np.float32(x)
        case Apply(op="cast", args=(inner,), dtype=dtype):
            number: np.generic = np.dtype(dtype).type(in_numpy(inner, x))
            return number
        case Apply(op="where", args=(test, first, second)):
            return in_numpy(first if in_numpy(test, x) else second, x)
        case Apply(op=op, args=args):
            result: np.generic = _NUMPY[op](*(in_numpy(argument, x) for argument in args))
            return result
    raise AssertionError(term)


@given(terms(), st.floats(-1e4, 1e4, width=32))
def test_terms_are_rounded_as_numpy_rounds(term: Term, x: float) -> None:
    """Operators that IEEE 754 defines give the very bits of float32 arithmetic, through any nesting."""
    with np.errstate(all="ignore"):
        expected = float(in_numpy(term, x))
    found = float(value(term, x))
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize("op", UNARY)
def test_functions_are_those_of_torch(op: str) -> None:
    """Each function agrees with torch in float32, also where it is not defined, or infinite."""
    function = getattr(torch, op)
    values = [0.0, 1.0, 0.5, 2.0, 37.5, 88.0, 100.0, 1e-3, 3e38, math.inf]
    values += [-each for each in values]
    for x in [*values, *torch.randn(200, generator=torch.Generator().manual_seed(0)).tolist()]:
        expected = function(torch.tensor(x, dtype=torch.float32)).item()
        found = float(applied(op, [float(np.float32(x))], "float32"))
        if math.isnan(expected):
            assert math.isnan(found) or (op in ("sin", "cos") and math.isinf(x)), x
        else:
            assert math.isclose(found, expected, rel_tol=2e-6, abs_tol=1e-7), (x, found, expected)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-100, 100).filter(bool))
def test_whole_numbers_divide_as_in_cpp(a: int, b: int) -> None:
    """Sums wrap as int64 does, division cuts off, and the floor of a quotient is rounded down."""
    tensor = torch.tensor(a)
    assert applied("add", [a, 2**62], "int64") == (tensor + 2**62).item()
    if a > -(2**63):
        assert applied("div", [a, b], "int64") == torch.div(tensor, b, rounding_mode="trunc").item()
        assert applied("floordiv", [a, b], "int64") == torch.div(tensor, b, rounding_mode="floor").item()
        assert applied("mod", [a, b], "int64") == torch.remainder(tensor, b).item()


@given(st.floats(width=32), st.sampled_from(["float16", "bfloat16", "float32", "int64"]))
def test_numbers_are_rounded_as_torch_rounds(x: float, dtype: str) -> None:
    """Short floats get the nearest value, ties to even; what int64 cannot hold is its least number (x86)."""
    expected = torch.tensor(x, dtype=torch.float32).to(getattr(torch, dtype)).item()
    if dtype == "int64" and not (math.isfinite(x) and abs(x) < 2**63):
        expected = -(2**63)
    found = rounded(x, dtype)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "argmax", "argmin", "mean"])
def test_reductions_are_those_of_torch(kind: str) -> None:
    """Each reduction agrees with torch."""
    values = torch.randn(37, generator=torch.Generator().manual_seed(1))
    expected = getattr(torch, kind)(values).item()
    dtype = "int64" if kind.startswith("arg") else "float32"
    assert math.isclose(float(fold(kind, values.tolist(), dtype)), expected, rel_tol=1e-5, abs_tol=1e-6)


def test_what_is_not_known_is_said() -> None:
    """Code outside of the tables gives no value; a NaN wins a maximum wherever it stands."""
    values: list[Scalar] = [1.0, math.nan, 3.0]
    assert math.isnan(float(fold("max", values, "float32")))
    assert math.isnan(float(applied("maximum", [math.nan, 2.0], "float32")))
    with pytest.raises(UnknownValue):
        value(read("calc_erfinv(x)", "float32"), 0.5)
