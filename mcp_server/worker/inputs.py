"""Reads or makes the inputs of a call, describes and changes them, and finds those that a call changed.

A change of elements alters only the chosen elements. An element is chosen if it meets all given keys:
- `flat`: numbers of elements in row-major order; `index`: one index with a number for each dimension;
- `stride`, `offset` and `end`: flat elements offset + k * stride, below `end` if it is given;
- `rows`: indices along `dim` (default 0);
- `where`: {"below": low}, {"above": high}, {"equals": value}, {"non_finite": true}, {"nan": true};
  one entry suffices, so that {"below": 0, "above": 9} chooses what lies outside 0..9.
"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence, Union, cast

import torch
from torch.utils import _pytree

from . import events
from .encode import CALL_FORMAT, restore
from .protocol import CallRecord, Change, InputSlice, InputsRequest, TensorSpec
from .report import Refused, Report, TensorFacts, members
from .tensors import checksum, describe, is_strided, leaf_facts, only_tensors, span, unravel

FORMS = "torch.save of tensors: one, a list, tuple or dict, {'args': ..., 'kwargs': ...}, or a captured call"
Leaves = list[Any]


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call. `flat`: `args` are captured leaves, in the order that the loader takes."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mapping: bool = False  # `args` is one dict: inputs by name, or a single argument
    flat: bool = False


def load_file(path: str, what: str = "inputs file", where: Any = None, safe: Sequence[Any] = ()) -> Any:
    """Call `torch.load` with weights_only, and `where` as map_location. Raise `Refused` if it fails.

    `safe` are functions that the file may call in addition to those that torch allows.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(2)
    except FileNotFoundError:
        raise Refused("no such " + what, path, FORMS) from None
    except OSError as error:
        raise Refused("the {} cannot be read: {}".format(what, error.strerror), path, FORMS) from None
    if start[:2] != b"PK" and start[:1] != b"\x80":  # neither a zip nor a pickle of protocol 2 or later
        why = "was not written by torch.save" if start else "is empty (0 bytes)"
        raise Refused("the {} {}".format(what, why), path, FORMS)
    try:
        with torch.serialization.safe_globals(list(safe)):
            return torch.load(path, map_location=where, weights_only=True)
    except Exception as error:  # the unpickler raises almost anything on a malformed file
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        text = text.split(". This is an internal miniz")[0][:300]  # drop the advice about checkpoints
        why = "cannot be read: " + text
        if isinstance(error, pickle.UnpicklingError):
            why = "holds objects that need pickle, which could run code; save only tensors, with torch.save"
        elif "CUDA" in text or "deserialize object on" in text:
            why = "holds tensors of a device that is not available here: " + text
        raise Refused("the {} {}".format(what, why), path, FORMS) from None


def arrange(loaded: Any, path: str) -> Inputs:
    """The arguments that a loaded inputs file has. May raise `Refused`."""
    if isinstance(loaded, torch.Tensor):
        return Inputs((loaded,), {})
    if isinstance(loaded, (list, tuple)):
        return Inputs(tuple(loaded), {})
    if not isinstance(loaded, dict):
        raise Refused("the inputs file holds no tensors but " + type(loaded).__name__, path, FORMS)
    if loaded.get("format") == CALL_FORMAT:
        flat, tree = restore(cast(CallRecord, loaded))
        return Inputs(tuple(flat), {}, flat=True) if tree is None else Inputs(*tree)
    if loaded and set(loaded) <= {"args", "kwargs"}:
        return Inputs(tuple(loaded.get("args", ())), dict(loaded.get("kwargs", {})))
    return Inputs((loaded,), {}, mapping=True)


def make(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """A random tensor. Integers include `high`; they are drawn in float64, exact up to 2**53."""
    name = spec.get("dtype") or "float32"
    dtype = getattr(torch, name.replace("torch.", ""), None)
    if not isinstance(dtype, torch.dtype):
        raise Refused("unknown dtype", name, "names of torch dtypes, such as float32 or int64")
    low, high = spec.get("low"), spec.get("high")
    first, last = float(0 if low is None else low), float(1 if high is None else high)
    if last < first:
        raise Refused("low is greater than high", [low, high])
    values = torch.rand([int(size) for size in spec["shape"]], dtype=torch.float64, generator=generator)
    if dtype.is_floating_point or dtype.is_complex:
        values = (values * (last - first) + first).to(dtype)
    else:
        values = (values * (last - first + 1) + first).floor().clamp(max=last).to(dtype)
    stride = spec.get("stride")
    if stride is not None:
        if len(stride) != values.dim() or any(step < 0 for step in stride):
            raise Refused("stride does not fit the shape", stride, "one non-negative number per dimension")
        if 0 in stride and values.numel():  # elements share memory: give all the same value
            shared = values.reshape(-1)[:1].repeat(span(values.shape, stride))
            values = shared.as_strided(values.shape, stride)
        else:
            values = strided(values, stride)
    try:
        return values.to(spec.get("device") or "cpu")
    except (RuntimeError, AssertionError) as error:
        raise Refused("cannot put an input there: {}".format(error), spec.get("device")) from None


def strided(values: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy with these strides in new memory, which has the allocator's alignment."""
    memory = torch.zeros(span(values.shape, stride), dtype=values.dtype, device=values.device)
    return memory.as_strided(values.shape, tuple(stride)).copy_(values)


def read(asked: Union[str, list[TensorSpec], None]) -> Inputs:
    """The inputs from a file or from specs. Specs give the same values each time."""
    if asked is None:
        raise Refused("no inputs were given", None, "a file written by torch.save, or a list of specs")
    if isinstance(asked, str):
        return arrange(load_file(asked), asked)
    generator = torch.Generator().manual_seed(0)
    return Inputs(tuple(make(spec, generator) for spec in asked), {})


def flatten(inputs: Inputs, in_spec: str | None) -> list[Any]:
    """The tensors in the order in which the package takes them.

    Do as `AOTICompiledModel.__call__` does (torch/export/pt2_archive/_package.py, 2.13): drop every leaf that
    is not a tensor, and compare neither keys nor structure.
    """
    if inputs.flat:
        return only_tensors(list(inputs.args))
    args, kwargs = inputs.args, inputs.kwargs
    if in_spec:
        from torch.export._tree_utils import reorder_kwargs

        # The second child of a serialised (args, kwargs) spec has the names of the keyword arguments.
        names = json.loads(json.loads(in_spec)[1]["children_spec"][1]["context"] or "null") or ()
        if inputs.mapping and set(args[0]) == set(names):
            kwargs, args = dict(args[0]), ()
        kwargs = reorder_kwargs(kwargs, _pytree.treespec_loads(in_spec))
    return only_tensors((args, kwargs))


def apply(leaves: Leaves, changes: Iterable[Mapping[str, Any]]) -> Leaves:
    """Apply the changes to `leaves` in order; raise `Refused` for a change that cannot be made."""
    leaves = list(leaves)
    for change in map(_change, changes):
        name = change.change
        if name == "permute":
            order = change.order or ()
            if sorted(order) != list(range(len(leaves))):
                raise Refused("not an order of the inputs", order, "each position once")
            # The new leaf i is the old leaf order[i].
            leaves = [leaves[position] for position in order]
            continue
        if name not in CHANGES:
            raise Refused("unknown change of inputs", name, ", ".join(sorted([*CHANGES, "permute"])))
        index = change.input
        if index is None or not 0 <= index < len(leaves):
            raise Refused("no such input", index, "0 to {}".format(len(leaves) - 1))
        leaves[index] = CHANGES[name](leaves[index], change)
    return leaves


def _change(facts: Mapping[str, Any]) -> Change:
    try:
        return Change.read(facts)
    except TypeError as error:  # a field that is in neither `Change` nor `Where`
        raise Refused("not a change of an input: {}".format(error), dict(facts)) from None


def _resize(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """Resize dimension `dim` to `size`: cut it, or repeat its elements (zeros if it has none)."""
    dim, size = _dimension(tensor, change), _size(change)
    have = tensor.shape[dim]
    if have == 0:
        return _pad(tensor, change)
    return tensor.index_select(dim, torch.arange(size, device=tensor.device) % have).contiguous()


def _pad(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """Resize dimension `dim` to `size`: cut it, or fill it with `value` (default 0)."""
    dim, size = _dimension(tensor, change), _size(change)
    kept = tensor.narrow(dim, 0, min(size, tensor.shape[dim]))
    shape = list(tensor.shape)
    shape[dim] = size - kept.shape[dim]
    value = _number(change.value or 0)
    return torch.cat([kept, torch.full(shape, value, dtype=tensor.dtype, device=tensor.device)], dim)


def _reshape(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    shape = change.shape or ()
    if math.prod(shape) != tensor.numel():
        raise Refused("another number of elements", list(shape), "{} elements".format(tensor.numel()))
    return tensor.reshape(shape)


def _reorder(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    order = change.order or ()
    if sorted(order) != list(range(tensor.dim())):
        raise Refused("not an order of its dimensions", list(order), "each dimension once")
    return tensor.permute(order).contiguous()


def _reread(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """Read the memory from its first element as another dtype, and convert the values."""
    values = as_dtype(tensor, getattr(torch, str(change.dtype)))
    if values.numel() < tensor.numel():
        raise Refused("too few bytes for its elements", change.dtype, "a dtype that is not larger")
    return values.reshape(tensor.shape).to(tensor.dtype)


def as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Read the tensor's memory as another dtype. Return at most as many elements as the tensor has."""
    return tensor.contiguous().view(-1).view(dtype)[: tensor.numel()]


def _drop_rows(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    dim = _dimension(tensor, change)
    line = torch.ones(tensor.shape[dim], dtype=torch.bool, device=tensor.device)
    line[_existing(change.rows or (), tensor.shape[dim], "row")] = False
    return tensor.index_select(dim, line.nonzero().reshape(-1)).contiguous()


def _take(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """Take the values of tensor number `size` of the inputs in `file`."""
    leaves, place = flatten(read(change.file), None), _size(change)
    if place >= len(leaves) or leaves[place].shape != tensor.shape:
        raise Refused("no such tensor in the file", place, "a tensor of shape {}".format(list(tensor.shape)))
    return strided(leaves[place].to(tensor.device, tensor.dtype), tensor.stride())


def _set_elements(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """Set the chosen elements to `value`, or clamp them to [`low`, `high`]; keep the strides."""
    mask = chosen(tensor, change)
    if change.value is not None:
        value = _number(change.value)
        if isinstance(value, float) and not math.isfinite(value) and not tensor.is_floating_point():
            raise Refused("whole numbers cannot be set to this", change.value, "a whole number")
        values = tensor.masked_fill(mask, value)
    elif change.low is None and change.high is None:
        raise Refused(
            "the change of elements names neither a value nor limits", members(change), "value, low, high"
        )
    else:
        low, high = _number(change.low), _number(change.high)
        values = torch.where(mask, tensor.clamp(low, high).to(tensor.dtype), tensor)
    if values.stride() == tensor.stride() or not values.numel():
        return values
    if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride())):
        return values.contiguous()  # the elements shared memory
    return strided(values, tensor.stride())


CHANGES: dict[str, Callable[[torch.Tensor, Change], torch.Tensor]] = {
    "cast": lambda tensor, change: tensor.to(getattr(torch, str(change.dtype))),
    "reread": _reread,
    # A tensor on `meta` has no values to move: make zeros.
    "move": lambda tensor, change: (torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor).to(
        str(change.device)
    ),
    "contiguous": lambda tensor, _: tensor.detach().clone(memory_format=torch.contiguous_format),
    "restride": lambda tensor, change: strided(tensor, cast("tuple[int, ...]", change.stride)),
    "align": lambda tensor, _: strided(tensor.detach(), tensor.stride()),
    "reshape": _reshape,
    "reorder": _reorder,
    "flip": lambda tensor, change: tensor.flip(_dimension(tensor, change)),
    "sort": lambda tensor, change: tensor.sort(_dimension(tensor, change)).values,
    "divide": lambda tensor, change: tensor / _number(change.value or 1),
    "resize": _resize,
    "elements": _set_elements,
    "take": _take,
    "pad": _pad,
    "drop_rows": _drop_rows,
}

CONDITIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "below": lambda values, limit: values < limit,
    "above": lambda values, limit: values > limit,
    "equals": lambda values, wanted: values == wanted,
    "non_finite": lambda values, _: ~torch.isfinite(values),
    "nan": lambda values, _: torch.isnan(values),
}


def chosen(tensor: torch.Tensor, change: Change) -> torch.Tensor:
    """A mask of the elements that `change` chooses. Raises `Refused` for places outside the tensor."""
    masks = [torch.ones(tensor.shape, dtype=torch.bool, device=tensor.device)]

    def another() -> torch.Tensor:
        masks.append(torch.zeros_like(masks[0]))
        return masks[-1]

    if change.flat is not None:
        another().view(-1)[_existing(change.flat, tensor.numel(), "element")] = True
    if change.index is not None:
        index = change.index
        fits = len(index) == tensor.dim() and all(0 <= at < size for at, size in zip(index, tensor.shape))
        if not fits:
            raise Refused("no such element", index, "an index into shape {}".format(list(tensor.shape)))
        another()[tuple(index)] = True
    if isinstance(change.stride, int):
        another().view(-1)[change.offset or 0 : change.end : change.stride] = True
    if change.rows is not None:
        dim = _dimension(tensor, change)
        rows = _existing(change.rows, tensor.shape[dim], "row")
        another().index_fill_(dim, torch.tensor(rows, device=tensor.device).long(), True)
    if change.where is not None:
        conditions = {name: limit for name, limit in members(change.where).items() if limit is not False}
        if not conditions:
            raise Refused("no condition on elements", None, ", ".join(sorted(CONDITIONS)))
        fulfilled = [CONDITIONS[name](tensor, _number(limit)) for name, limit in conditions.items()]
        masks.append(torch.stack(fulfilled).any(0))
    return torch.stack(masks).all(0)


def _number(value: Any) -> Any:
    """Convert text, which stands for NaN or an infinity in JSON, to a number."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise Refused("no number to set elements to", value, "a number, nan, inf or -inf") from None


def _existing(places: Sequence[int], count: int, what: str) -> list[int]:
    for place in places:
        if not 0 <= place < count:
            raise Refused("no such " + what, place, "0 to {}".format(count - 1))
    return list(places)


def _dimension(tensor: torch.Tensor, change: Change) -> int:
    dim = change.dim or 0
    if not -tensor.dim() <= dim < tensor.dim():
        raise Refused("no such dimension", dim, "0 to {}".format(tensor.dim() - 1))
    return dim % tensor.dim()


def _size(change: Change) -> int:
    if change.size is None:
        raise Refused("the change needs a size", change.change)
    return change.size


@contextlib.contextmanager
def reporting_changes(asked: Mapping[str, int], flat: Leaves, report: Report) -> Iterator[None]:
    """After the body, report `changed_inputs`: for each input in `asked` ({number: alignment in bytes}),
    whether its values changed and whether its address is misaligned.
    """
    tensors = {int(place): flat[int(place)] for place in asked if int(place) < len(flat)}
    before = {place: checksum(each) for place, each in tensors.items() if isinstance(each, torch.Tensor)}
    yield
    facts = []
    for place, digest in before.items():
        misaligned = tensors[place].data_ptr() % asked[str(place)] != 0
        facts.append(events.ChangedInput(place, checksum(tensors[place]) != digest, misaligned))
    if facts:
        report.event(events.ChangedInputs(facts))


def operate_describe_inputs(request: InputsRequest, report: Report) -> None:
    """Report `inputs`: the leaves, each with the device on which it was saved."""
    asked = request.get("inputs")
    devices: dict[int, str] = {}

    def locate(storage: Any, location: str) -> Any:
        devices[storage.data_ptr()] = location
        return storage

    def facts(leaf: torch.Tensor) -> TensorFacts:
        found = describe(leaf)
        found.kind = "tensor"
        if is_strided(leaf):
            found.device = devices.get(leaf.untyped_storage().data_ptr(), str(leaf.device))
        return found

    arranged = arrange(load_file(asked, where=locate), asked) if isinstance(asked, str) else read(asked)
    tree = arranged.args if arranged.flat else (arranged.args, arranged.kwargs)
    report.event(events.Inputs(leaf_facts(tree, facts)))


def _is_int32(tensor: torch.Tensor, part: InputSlice) -> bool:
    """Whether the memory of an int64 tensor has allowed values only if it is read as int32.

    As many int32 values as the tensor has elements fill half of its memory. Most int64 elements in that half
    must be out of range.
    """
    half = tensor.contiguous().view(-1)[: tensor.numel() // 2]
    if tensor.dtype != torch.int64 or not half.numel():
        return False
    narrow = as_dtype(tensor, torch.int32)
    inside = ((narrow >= part.low) & (narrow <= part.high)).all()
    return bool(inside) and 2 * int(((half < part.low) | (half > part.high)).sum()) > half.numel()


MOST_OUTSIDE = 4  # elements that the event lists


def operate_index_values(request: InputsRequest, report: Report) -> None:
    """Report `index_values` for each of `parts`. Their `input` counts tensors in call order."""
    flat = [leaf.cpu() for leaf in flatten(read(request.get("inputs")), None)]
    for facts in request["parts"]:
        part = InputSlice(**facts)
        found = events.IndexValues(part)
        report.event(look(flat[part.input], part, found) if part.input < len(flat) else found)


def look(tensor: torch.Tensor, part: InputSlice, found: events.IndexValues) -> events.IndexValues:
    """Fill in what `tensor` has in this part: the range of its values, and the elements out of bounds."""
    offset, stride = part.offset, max(part.stride, 1)
    values = tensor.contiguous().view(-1)[offset : part.end : stride]
    if not values.numel():
        return found
    wrong = part.unlike
    outside = (values < part.low) | (values > part.high) if wrong is None else values == wrong
    found.as_int32 = wrong is None and _is_int32(tensor, part)
    found.elements, found.outside = values.numel(), int(outside.sum())
    found.min, found.max = values.min().item(), values.max().item()
    shape, firsts = tuple(tensor.shape), outside.nonzero().flatten()[:MOST_OUTSIDE].tolist()
    found.first = [(unravel(offset + at * stride, shape), values[at].item()) for at in firsts]
    return found
