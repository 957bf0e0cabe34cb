"""Inputs of a call: read from a file without pickle, or made from specs."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from typing import Any, Optional

import torch

from .failures import Refused
from .layout import CALL_FORMAT, restore

FORMS = "a tensor, a list, tuple or dict of tensors, {'args': ..., 'kwargs': ...}, or a captured call"


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call. `flat` marks a captured list of leaves that is given to the loader as it is."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mapping: bool = False  # one dict of tensors: by name, or a single dict argument
    flat: bool = False


def load_file(path: str, where: Any = None) -> Any:
    """`torch.load` with weights_only; raises `Refused` with the reason.

    `where` is passed on as `map_location`.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(2)
    except OSError as error:
        raise Refused(_why_not_opened(error), path, FORMS) from None
    if start[:2] != b"PK" and start[:1] != b"\x80":  # a zip, or a pickle of protocol 2 and above
        raise Refused("the inputs file was not written by torch.save", path, FORMS)
    try:
        return torch.load(path, map_location=where, weights_only=True)
    except Exception as error:  # the unpickler raises nearly anything on a file that is not what it seems
        raise Refused(_why_not_loaded(error), path, FORMS) from None


def _why_not_opened(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such inputs file"
    return "the inputs file cannot be read: {}".format(error.strerror)


def _why_not_loaded(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
        return "the inputs file holds objects that need pickle, which could run code; save only tensors"
    if "CUDA" in text or "deserialize object on" in text:
        return "the inputs file holds tensors of a device that is not available here: " + text
    return "the inputs file cannot be read: " + text


def arrange(loaded: Any, path: str) -> Inputs:
    """Decide what the file's object means as arguments."""
    if isinstance(loaded, dict) and loaded.get("format") == CALL_FORMAT:
        leaves, tree = restore(loaded)
        return Inputs(tuple(leaves), {}, flat=True) if tree is None else Inputs(*tree)
    if isinstance(loaded, torch.Tensor):
        return Inputs((loaded,), {})
    if isinstance(loaded, (list, tuple)):
        return Inputs(tuple(loaded), {})
    if isinstance(loaded, dict) and loaded and set(loaded) <= {"args", "kwargs"}:
        return Inputs(tuple(loaded.get("args", ())), dict(loaded.get("kwargs", {})))
    if isinstance(loaded, dict):
        return Inputs((loaded,), {}, mapping=True)
    raise Refused("the inputs file holds no tensors but " + type(loaded).__name__, path, FORMS)


def make(spec: dict[str, Any], generator: torch.Generator) -> torch.Tensor:
    """A tensor from a `TensorSpec`: uniform values in [low, high], strides as asked."""
    dtype = _dtype(spec.get("dtype") or "float32")
    shape = [int(size) for size in spec["shape"]]
    values = _values(shape, dtype, spec.get("low"), spec.get("high"), generator)
    if spec.get("stride") is not None:
        values = _strided(values, [int(step) for step in spec["stride"]])
    try:
        return values.to(spec.get("device") or "cpu")
    except (RuntimeError, AssertionError) as error:
        raise Refused("cannot put an input there: {}".format(error), spec.get("device")) from None


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.replace("torch.", ""), None)
    if not isinstance(dtype, torch.dtype):
        raise Refused("unknown dtype", name, "names of torch dtypes, such as float32 or int64")
    return dtype


def _values(
    shape: list[int],
    dtype: torch.dtype,
    low: Optional[float],
    high: Optional[float],
    generator: torch.Generator,
) -> torch.Tensor:
    """Drawn in float64, so that int64 ids up to 2**53 are reached; integers include `high`."""
    whole = not (dtype.is_floating_point or dtype.is_complex)
    first = float(0 if low is None else low)
    last = float(1 if high is None else high)
    if last < first:
        raise Refused("low is greater than high", [low, high])
    drawn = torch.rand(shape, dtype=torch.float64, generator=generator)
    if whole:
        return (drawn * (last - first + 1) + first).floor().clamp(max=last).to(dtype)
    return (drawn * (last - first) + first).to(dtype)


def _strided(values: torch.Tensor, stride: list[int]) -> torch.Tensor:
    if len(stride) != values.dim() or any(step < 0 for step in stride):
        raise Refused("stride does not fit the shape", stride, "one non-negative number per dimension")
    span = 1 + sum((size - 1) * step for size, step in zip(values.shape, stride)) if values.numel() else 0
    if 0 in stride and span:  # several elements share memory: all get one value
        return values.reshape(-1)[:1].repeat(span).as_strided(values.shape, stride)
    return torch.zeros(span, dtype=values.dtype).as_strided(values.shape, stride).copy_(values)


def read(request: dict[str, Any]) -> Inputs:
    """The inputs of `request["inputs"]`: a path, or a list of specs drawn from `request["seed"]`."""
    asked = request.get("inputs")
    if asked is None:
        raise Refused("no inputs were given", None, "a file written by torch.save, or a list of specs")
    if isinstance(asked, str):
        return arrange(load_file(asked), asked)
    generator = torch.Generator().manual_seed(int(request.get("seed", 0)))
    return Inputs(tuple(make(spec, generator) for spec in asked), {})


def flatten(inputs: Inputs, in_spec: Optional[str]) -> list[Any]:
    """The leaves in the order in which the package takes them.

    The same steps as `AOTICompiledModel.__call__` (torch/export/pt2_archive/_package.py, 2.13), which drops
    every leaf that is no tensor and compares neither keys nor structure.
    """
    from torch.utils import _pytree

    if inputs.flat:
        return [leaf for leaf in inputs.args if isinstance(leaf, torch.Tensor)]
    args, kwargs = inputs.args, inputs.kwargs
    if in_spec:
        from torch.export._tree_utils import reorder_kwargs

        if inputs.mapping and set(args[0]) == _keyword_names(in_spec):
            kwargs, args = dict(args[0]), ()
        kwargs = reorder_kwargs(kwargs, _pytree.treespec_loads(in_spec))
    return [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def _keyword_names(in_spec: str) -> set[str]:
    """Names of the keyword arguments in a serialised (args, kwargs) spec."""
    kwargs = json.loads(in_spec)[1]["children_spec"][1]
    return set(json.loads(kwargs["context"] or "null") or ())
