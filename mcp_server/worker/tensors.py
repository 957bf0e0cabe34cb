"""Facts about tensors: layout, memory, statistics, digests, bad values."""

from __future__ import annotations

import cmath
import hashlib
import math
from dataclasses import replace
from typing import Any, Callable, Union

import torch
from torch.utils import _pytree

from .report import OddElement, TensorFacts

CHUNK = 1 << 24  # elements processed at once; bounds the temporaries
WORD = 8  # bytes
LANES = 256  # words in a row of the table of `_weighted`

_places: dict[torch.device, torch.Tensor] = {}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def only_tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def widest(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to the largest dtype of its kind: complex128, float64 or int64."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)


def unequal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A mask of the elements that differ at all. NaN equals NaN."""
    return ~((one == other) | ((one != one) & (other != other)))


def furthest(one: torch.Tensor, other: torch.Tensor) -> float | None:
    """The largest finite difference between two tensors of one shape, or None."""
    away = (widest(one.detach()) - widest(other.detach()).to(one.device)).abs()
    finite = away[torch.isfinite(away)]
    return float(finite.max()) if finite.numel() else None


def checksum(tensor: torch.Tensor) -> str:
    """A digest of dtype, shape and values in row-major order.

    It is made of sums of 64-bit words, plain and weighted by place, modulo 2**64. They are twenty times as
    fast as a cryptographic hash of the bytes, on a GPU too, and find any change that is not contrived. They
    may miss a swap of the highest bytes of two words, since the weighted bytes overflow. The bytes after the
    last whole word are hashed unchanged.
    """
    digest = hashlib.blake2b(digest_size=12)
    digest.update("{} {}".format(tensor.dtype, list(tensor.shape)).encode())
    flat = tensor.reshape(-1)
    for part in flat.split(CHUNK) if flat.numel() else ():
        part = part.resolve_conj().resolve_neg()
        octets = (torch.view_as_real(part) if part.is_complex() else part).contiguous().reshape(-1)
        octets = octets.view(torch.uint8)
        whole = octets.numel() // WORD * WORD
        words = octets[:whole]
        if words.storage_offset() % WORD:
            words = words.clone()
        sums: list[Any] = torch.stack(_weighted(words.view(torch.int64))).tolist()
        digest.update(repr((sums, octets[whole:].tolist())).encode())
    return digest.hexdigest()


def _weighted(bits: torch.Tensor) -> list[torch.Tensor]:
    """Return the plain sum and the sum weighted by place. Sum many words as a table, by rows and columns."""
    rows = bits.numel() // LANES
    if rows < LANES // 8:
        return [bits.sum(), _by_place(bits)]
    table = bits[: rows * LANES].view(rows, LANES)
    lanes = table.sum(0)
    sums = [lanes.sum(), _by_place(lanes), _by_place(table.sum(1))]
    rest = bits[rows * LANES :]
    return [*sums, rest.sum(), _by_place(rest)] if rest.numel() else sums


def _by_place(numbers: torch.Tensor) -> torch.Tensor:
    """The sum of the numbers times 1, 2, 3, ... The factors are cached, since making them is slow."""
    weights = _places.get(numbers.device)
    if weights is None or weights.numel() < numbers.numel():
        weights = _places[numbers.device] = torch.arange(1, numbers.numel() + 1, device=numbers.device)
    weights = weights[: numbers.numel()]
    return torch.dot(numbers, weights) if numbers.device.type == "cpu" else (numbers * weights).sum()


def summary(flat: torch.Tensor) -> TensorFacts:
    """The counts of nan, inf and zero, and, unless complex, min, max and mean of the finite values."""
    nan = inf = zero = count = 0
    ends: list[Any] = []
    total = 0.0
    for part in flat.split(CHUNK):
        bad = [int(mask.sum()) for mask in (torch.isnan(part), torch.isinf(part))]
        nan, inf, zero = nan + bad[0], inf + bad[1], zero + int((part == 0).sum())
        finite = part[torch.isfinite(part)] if any(bad) else part
        if finite.numel() and not part.is_complex():
            ends += [end.item() for end in torch.aminmax(finite)]
            total += float(finite.sum(dtype=torch.float64))
            count += finite.numel()
    found = TensorFacts(nan=nan, inf=inf, zero=zero)
    if count:
        found.min, found.max, found.mean = min(ends), max(ends), total / count
    return found


MOST_SEEN = 10_000  # summaries kept
STATISTICS_LIMIT = 1 << 30  # elements; more would need gigabytes of temporaries
_seen: dict[str, TensorFacts] = {}  # summaries by digest, since many launches read the same values


def is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def layout(tensor: torch.Tensor) -> TensorFacts:
    """Return dtype, device and shape. For a strided tensor, also return how its elements lie in memory."""
    found = TensorFacts(dtype=dtype_name(tensor.dtype), device=str(tensor.device))
    found.shape = None if tensor.is_nested else list(tensor.shape)
    if not is_strided(tensor):
        found.layout = str(tensor.layout)
        return found
    found.stride, found.storage_offset = list(tensor.stride()), tensor.storage_offset()
    found.contiguous, found.alignment = tensor.is_contiguous(), alignment(tensor)
    found.bytes = tensor.numel() * tensor.element_size()
    return found


def alignment(tensor: torch.Tensor) -> int:
    """The largest power of two up to 64 that divides the address. 0 for a tensor without memory."""
    try:
        address = int(tensor.data_ptr())
    except RuntimeError:  # a fake tensor or the like
        return 0
    return min(address & -address, 64)


def is_plain(value: Any) -> bool:
    """Whether the value is a strided tensor of torch's own class, whose memory begins at its address."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided


# The sum of finite halves may overflow, so sum in float32. If that overflows too, the values are counted.
_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def nonfinite(tensor: torch.Tensor) -> dict[str, Union[int, float]]:
    """Return the counts of NaN and infinities. If there are none, also return the sum of real values.

    The sum needs no temporaries, and tells outputs of two calls apart.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return {"nan": 0, "inf": 0}
    values = _comparable(tensor)
    total = values.sum(dtype=_WIDE.get(values.dtype)).item()
    if cmath.isfinite(total):
        return {"nan": 0, "inf": 0, **({"sum": total} if isinstance(total, float) else {})}
    return {"nan": int(torch.isnan(values).sum()), "inf": int(torch.isinf(values).sum())}


# Dtypes that lack operators, each with a larger dtype that has them.
_ROOMY = {
    torch.bool: torch.uint8,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.float64,
}


def _comparable(values: torch.Tensor) -> torch.Tensor:
    """Convert to a dtype that has isnan, min and sum, which eight-bit floats lack."""
    if values.is_floating_point() and values.element_size() == 1:
        return values.to(torch.float32)
    return values.to(_ROOMY.get(values.dtype, values.dtype))


def describe(tensor: torch.Tensor) -> TensorFacts:
    """`layout`, `checksum` and `summary`, if the values can be read."""
    found = layout(tensor)
    if not is_strided(tensor) or tensor.is_meta:
        return found
    tensor = tensor.detach()
    if tensor.numel() > STATISTICS_LIMIT:
        return replace(found, skipped="more than {} elements".format(STATISTICS_LIMIT))
    digest = checksum(tensor)
    if not tensor.numel():
        return replace(found, checksum=digest)
    if digest not in _seen:
        if len(_seen) >= MOST_SEEN:
            _seen.clear()
        _seen[digest] = summary(_comparable(tensor.reshape(-1)))
    seen = _seen[digest]
    found = replace(found, checksum=digest, nan=seen.nan, inf=seen.inf, zero=seen.zero)
    return replace(found, min=seen.min, max=seen.max, mean=seen.mean)


def leaf_facts(tree: Any, facts: Callable[[torch.Tensor], TensorFacts] = describe) -> list[TensorFacts]:
    """The facts of each leaf, with its path. Leaves are in the order of AOTInductor."""
    found: list[TensorFacts] = []
    for path, leaf in _pytree.tree_flatten_with_path(tree)[0]:
        other = TensorFacts(kind=type(leaf).__name__, value=repr(leaf)[:200])
        about = facts(leaf) if isinstance(leaf, torch.Tensor) else other
        found.append(replace(about, path=_pytree.keystr(path)))
    return found


MASK = str(-math.inf)


def first_non_finite(tensor: torch.Tensor) -> OddElement | None:
    """Return the first NaN or +inf in row-major order. If there are none, return the first -inf."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    found = _first(tensor, lambda part: ~torch.isfinite(part))
    if found is None or found.value != MASK:
        return found
    worse = _first(tensor, lambda part: torch.isnan(part) | (part == math.inf))
    return found if worse is None else replace(worse, count=found.count)


def first_outside(tensor: torch.Tensor, low: int, high: int) -> OddElement | None:
    """The first integer outside [low, high)."""
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
        return None
    return _first(tensor, lambda part: (part < low) | (part >= high))


def _first(tensor: torch.Tensor, bad: Callable[[torch.Tensor], torch.Tensor]) -> OddElement | None:
    count = 0
    first: tuple[int, Any] | None = None
    for number, part in enumerate(tensor.detach().reshape(-1).split(CHUNK)):
        values = _comparable(part)
        mask = bad(values)
        here = int(mask.sum())
        if here and first is None:
            offset = int(mask.to(torch.uint8).argmax())
            first = (number * CHUNK + offset, values[offset].item())
        count += here
    if first is None:
        return None
    return OddElement(str(first[1]), unravel(first[0], tuple(tensor.shape)), count)


def unravel(position: int, shape: tuple[int, ...]) -> list[int]:
    """The logical index of the element at `position` in row-major order."""
    return [int(at) for at in torch.unravel_index(torch.tensor(position), shape)]


def storage_bytes(tensors: list[torch.Tensor]) -> int:
    """The number of bytes of the distinct storages behind `tensors`."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def span(shape: Any, stride: Any) -> int:
    """The number of elements in memory from the first to the last that the layout touches."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride))


def laid_out(tensor: torch.Tensor, sizes: Any, strides: Any, offset: int) -> torch.Tensor | None:
    """The tensor's memory in another layout. None if the memory is too small for it."""
    room = tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1)
    fits = offset + span(sizes, strides) <= room
    return tensor.as_strided(sizes, strides, offset) if fits else None


def too_short(tensors: list[torch.Tensor]) -> dict[int, str]:
    """Say, by position, how many bytes the storage has, for tensors that span more than their storage."""
    plain = [(place, each, each.storage_offset()) for place, each in enumerate(tensors) if is_plain(each)]
    short = [(n, each) for n, each, at in plain if laid_out(each, each.shape, each.stride(), at) is None]
    return {n: "its storage has {} bytes".format(each.untyped_storage().nbytes()) for n, each in short}


def cut_out(tensor: torch.Tensor) -> torch.Tensor:
    """Copy the memory that the tensor spans. The copy has the same layout, and its offset modulo 64 bytes."""
    lead = tensor.storage_offset() % max(1, 64 // tensor.element_size())
    length = span(tensor.shape, tensor.stride())
    copy = torch.empty(lead + length, dtype=tensor.dtype, device=tensor.device)
    if length:
        copy[lead:].copy_(tensor.as_strided((length,), (1,), tensor.storage_offset()))
    return copy.as_strided(tuple(tensor.shape), tuple(tensor.stride()), lead)


def digests(tensors: dict[str, torch.Tensor]) -> dict[str, str]:
    """A digest of each tensor that has values. Empty if any of them cannot be read.

    A read fails if the GPU has no memory left, or after an error of an earlier kernel. Fake and meta tensors
    have no values, nor do tensors whose memory was freed.
    """
    found = {}
    try:
        for name, value in tensors.items():
            plain = value.layout is torch.strided and value.device.type != "meta" and not value.is_nested
            if plain and value.untyped_storage().nbytes() >= value.numel() * value.element_size():
                found[name] = checksum(value.detach())
    except Exception:
        return {}
    return found
