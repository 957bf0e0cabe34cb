"""Specs of tensors to be made up, checked before anything runs: what cannot be made is a wrong call."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mcp_server.errors import ProblemError
from mcp_server.model import TensorSpec

EXAMPLE = (
    'specs such as [{"shape": [8, 64], "dtype": "float32", "device": "cpu", "low": 0, "high": 1}], '
    "or the path of a torch.save'd list"
)
EXACT = 2.0**53
"""The worker draws in float64, which has each whole number up to this."""

# Names of torch.dtype, torch 2.8-2.15; the worker asks torch itself.
_DTYPE = re.compile(
    r"(?:torch\.)?(?:(?:float|u?int|complex|bits|q?u?int)\d\w*|float|double|half|bfloat16|complex\d+|cfloat|"
    r"cdouble|chalf|int|long|short|bool)"
)
_WHOLE = re.compile(r"(?:torch\.)?(?P<sign>u?)int(?P<bits>\d+)")
_OTHER_NAMES = {"short": "int16", "int": "int32", "long": "int64", "bool": "uint1"}
_SPECS = TypeAdapter(list[TensorSpec])


def specs_of(items: list[Any]) -> list[TensorSpec]:
    """The specs. Raises ProblemError for one that is not understood, or asks for what no tensor can hold."""
    try:
        specs = _SPECS.validate_python(items)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        value = str(first["input"])[:120]
        raise ProblemError(f"inputs{where}: {first['msg']}", value=value, allowed=EXAMPLE) from error
    for place, spec in enumerate(specs):
        _check_dtype(f"inputs[{place}]", spec)
        _check_range(f"inputs[{place}]", spec)
    return specs


def specs_from_text(text: str) -> list[TensorSpec]:
    """The specs in a JSON list. Raises ProblemError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = f"inputs looks like specs but is not JSON ({error})"
        raise ProblemError(what, value=text[:120], allowed=EXAMPLE) from error
    return specs_of(parsed)


def _check_dtype(where: str, spec: TensorSpec) -> None:
    if not _DTYPE.fullmatch(spec.dtype):
        allowed = "names of torch dtypes, such as float32 or int64"
        raise ProblemError(f"{where}: unknown dtype", value=spec.dtype[:80], allowed=allowed)


def _check_range(where: str, spec: TensorSpec) -> None:
    """Both ends as numbers that the dtype has; the worker takes 0 and 1 for what is not said."""
    low = 0.0 if spec.low is None else spec.low
    high = 1.0 if spec.high is None else spec.high
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ProblemError(f"{where}: low and high are finite numbers", value=f"low {low}, high {high}")
    if low > high:
        what = f"{where}: low is greater than high"
        raise ProblemError(what, value=f"low {low:g}, high {high:g}", allowed="low 0 and high 1 by default")
    first, last = _range_of(spec.dtype)
    if (spec.low is not None and not first <= low) or (spec.high is not None and not high <= last):
        raise ProblemError(
            f"{where}: {spec.dtype} has no such values",
            value=f"low {low:g}, high {high:g}",
            allowed=f"{first:.0f} to {last:.0f}",
        )


def _range_of(dtype: str) -> tuple[float, float]:
    """Smallest and largest value that can be drawn; without an end for numbers with a fraction."""
    plain = dtype.removeprefix("torch.")
    found = _WHOLE.fullmatch(_OTHER_NAMES.get(plain, plain))
    if found is None:
        return -math.inf, math.inf
    bits = int(found["bits"])
    first, last = (0.0, 2.0**bits - 1) if found["sign"] else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1)
    return max(first, -EXACT), min(last, EXACT)
