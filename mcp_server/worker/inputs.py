"""Inputs of a call: read or made, described, changed for another try, and checked for changes."""

from __future__ import annotations

import contextlib
import json
import pickle
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, Optional

import torch

from .element_changes import drop_rows, pad, set_elements
from .report import Refused, Report
from .tensors import CALL_FORMAT, checksum, describe, first_non_finite, leaves, restore, sharing, unravel

FORMS = "a tensor, a list, tuple or dict of tensors, {'args': ..., 'kwargs': ...}, or a captured call"


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call. `flat` marks a captured list of leaves, which the loader takes unchanged."""

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


Leaves = list[Any]


def apply(leaves: Leaves, changes: list[dict[str, Any]]) -> Leaves:
    """`leaves` with each change made in turn; a change is `{"change": NAME, "input": INDEX, ...}`.

    Raises `Refused` for an unknown change or an input that is not there.
    """
    for change in changes:
        name = change.get("change")
        if name not in CHANGES:
            raise Refused("unknown change of inputs", name, ", ".join(sorted(CHANGES)))
        leaves = CHANGES[name](list(leaves), change)
    return leaves


def _on_one(function: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor]) -> Any:
    """A change of one input, as a change of the whole list."""

    def changed(leaves: Leaves, change: dict[str, Any]) -> Leaves:
        index = int(change["input"])
        if not 0 <= index < len(leaves):
            raise Refused("no such input", index, "0 to {}".format(len(leaves) - 1))
        leaves[index] = function(leaves[index], change)
        return leaves

    return changed


def _cast(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    return tensor.to(getattr(torch, str(change["dtype"])))


def _move(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """On that device; what is on `meta` has no values, and becomes zeros."""
    if tensor.is_meta:
        return torch.zeros_like(tensor, device=str(change["device"]))
    return tensor.to(str(change["device"]))


def _contiguous(tensor: torch.Tensor, _change: dict[str, Any]) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _restride(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """The same values laid out with the strides that the package was compiled for."""
    stride = [int(step) for step in change["stride"]]
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride)) if tensor.numel() else 0
    out = torch.zeros(span, dtype=tensor.dtype, device=tensor.device).as_strided(tensor.shape, stride)
    return out.copy_(tensor)


def _align(tensor: torch.Tensor, _change: dict[str, Any]) -> torch.Tensor:
    """A copy with the same strides at the begin of memory of its own, as allocators align it."""
    return _restride(tensor.detach(), {"stride": tensor.stride()})


def _clamp(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Values into [low, high]; with `stride` and `offset`, only flat elements offset + k * stride."""
    low, high = change.get("low"), change.get("high")
    if change.get("stride") is None:
        return tensor.clamp(low, high)
    flat = tensor.contiguous().view(-1).clone()
    part = flat[int(change.get("offset", 0)) :: int(change["stride"])]
    part.copy_(part.clamp(low, high))
    return flat.view(tensor.shape)


def _replace(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Elements equal to `old` set to `new`."""
    return tensor.masked_fill(tensor == change["old"], change["new"])


def _resize(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Dimension `dim` cut, or filled up by repeating what is there, to `size` elements."""
    dim, size = int(change["dim"]), int(change["size"])
    have = tensor.shape[dim]
    if have == 0:
        shape = list(tensor.shape)
        shape[dim] = size
        return tensor.new_zeros(shape)
    index = torch.arange(size, device=tensor.device) % have
    return tensor.index_select(dim, index).contiguous()


def _fill(tensor: torch.Tensor, change: dict[str, Any]) -> torch.Tensor:
    """Non-finite values replaced by `value`."""
    finite = torch.isfinite(tensor)
    return torch.where(finite, tensor, torch.full_like(tensor, float(change.get("value", 0.0))))


def _permute(leaves: Leaves, change: dict[str, Any]) -> Leaves:
    """The leaves in another order: `order[i]` is the old position of the new leaf i."""
    order = [int(position) for position in change["order"]]
    if sorted(order) != list(range(len(leaves))):
        raise Refused("not an order of the inputs", order, "each position once")
    return [leaves[position] for position in order]


CHANGES: dict[str, Any] = {
    "cast": _on_one(_cast),
    "move": _on_one(_move),
    "contiguous": _on_one(_contiguous),
    "restride": _on_one(_restride),
    "align": _on_one(_align),
    "clamp": _on_one(_clamp),
    "replace": _on_one(_replace),
    "resize": _on_one(_resize),
    "fill": _on_one(_fill),
    "elements": _on_one(set_elements),
    "pad": _on_one(pad),
    "drop_rows": _on_one(drop_rows),
    "permute": _permute,
}


@contextlib.contextmanager
def reporting_changes(asked: Mapping[str, int], flat: "list[Any]", report: Report) -> "Iterator[None]":
    """Event `changed_inputs` after a call that returned: for each input in `asked` ({index: alignment}),
    whether its values changed and whether its address is misaligned.
    """
    places = {int(place): int(size) for place, size in asked.items()}
    tensors = {place: flat[place] for place in places if place < len(flat)}
    before = {place: checksum(each) for place, each in tensors.items() if isinstance(each, torch.Tensor)}
    yield
    facts = [
        {
            "input": place,
            "changed": checksum(tensors[place]) != digest,
            "misaligned": tensors[place].data_ptr() % places[place] != 0,
        }
        for place, digest in before.items()
    ]
    if facts:
        report.event("changed_inputs", inputs=facts)


def operate_describe_inputs(request: dict[str, Any], report: Report) -> None:
    """Event `inputs`: `leaves` (path, kind, layout, statistics), `sharing` (groups of one storage)."""
    asked = request.get("inputs")
    devices: dict[int, str] = {}
    if isinstance(asked, str):
        loaded = load_file(asked, where=_remember(devices))
        arranged = arrange(loaded, asked)
    else:
        arranged = read(request)
    tree = arranged.args if arranged.flat else (arranged.args, arranged.kwargs)
    found = leaves(tree)
    tensors = [leaf for _, leaf in found if isinstance(leaf, torch.Tensor)]
    report.event(
        "inputs",
        leaves=[_describe_inputs_facts(path, leaf, devices) for path, leaf in found],
        sharing=sharing(tensors),
    )


def _remember(devices: dict[int, str]) -> Any:
    """A map_location that keeps every storage on the CPU and notes where it was saved from."""

    def locate(storage: Any, location: str) -> Any:
        devices[storage.data_ptr()] = location
        return storage

    return locate


def _describe_inputs_facts(path: str, leaf: Any, devices: dict[int, str]) -> dict[str, Any]:
    if not isinstance(leaf, torch.Tensor):
        return {"path": path, "kind": type(leaf).__name__, "value": repr(leaf)[:200]}
    facts = {"path": path, "kind": "tensor", **describe(leaf)}
    if leaf.layout is torch.strided and not leaf.is_nested:
        facts["device"] = devices.get(leaf.untyped_storage().data_ptr(), str(leaf.device))
    return facts


def operate_describe_files(request: dict[str, Any], report: Report) -> None:
    """One event `file` for each of `files`: its path, and the tensor's facts or why it cannot be read."""
    for path in request["files"]:
        report.event("file", path=path, **_describe_files_facts(path))


def _describe_files_facts(path: str) -> dict[str, Any]:
    try:
        tensor = load_file(path, where="cpu")
    except Refused as refused:
        return {"unreadable": refused.what}
    if not isinstance(tensor, torch.Tensor):
        return {"unreadable": "no tensor but " + type(tensor).__name__}
    return {**describe(tensor), "non_finite": first_non_finite(tensor)}


def operate_index_values(request: dict[str, Any], report: Report) -> None:
    """Event `index_values`, one per part of `parts`.

    A part is {"input", "offset", "stride", "low", "high"}: the elements offset, offset + stride, … of a flat
    input, which must lie in [low, high]. Reports min, max, how many are outside, and the first of those.
    With "unlike" instead, the elements that equal this number count as outside.
    """
    flat = _flat(request)
    for part in request["parts"]:
        index = int(part["input"])
        facts = look(flat[index], part) if index < len(flat) else {"elements": 0}
        report.event("index_values", part=part, **facts)


def _flat(request: dict[str, Any]) -> list[torch.Tensor]:
    """The input tensors on the CPU, in calling order."""
    return [leaf.cpu() for leaf in flatten(read(request), request.get("in_spec"))]


def look(tensor: torch.Tensor, part: dict[str, Any]) -> dict[str, Any]:
    """Facts of the addressed elements of one tensor."""
    offset, stride = int(part["offset"]), max(int(part["stride"]), 1)
    values = tensor.contiguous().view(-1)[offset::stride]
    found: dict[str, Any] = {"elements": values.numel()}
    if not values.numel():
        return found
    wrong = part.get("unlike")
    outside = (values < part["low"]) | (values > part["high"]) if wrong is None else values == wrong
    found.update(min=values.min().item(), max=values.max().item(), outside=int(outside.sum()))
    if found["outside"]:
        first = int(outside.nonzero()[0])
        place = offset + first * stride
        found.update(value=values[first].item(), index=unravel(place, tuple(tensor.shape)))
    return found
