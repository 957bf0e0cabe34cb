"""The address book of one call: which buffer or constant an address belongs to, and when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from mcp_server.evidence.journal import JournalLaunch, TensorFacts

NEIGHBOURS = 3


@dataclass(frozen=True)
class Span:
    """The memory behind one tensor variable, and the launches (places in the call) between which it was seen.

    Variables that follow each other in one allocation are spans of their own.
    """

    name: str
    first: int
    last: int
    tensor: TensorFacts

    @property
    def start(self) -> int:
        return self.tensor.storage_start

    @property
    def end(self) -> int:
        return self.tensor.storage_end


@dataclass(frozen=True)
class Place:
    """Where an address lies with respect to a span.

    `offset_bytes` is from the tensor's first element; `element` is that offset in elements. `inside` tells
    whether the address is in the span's storage; `index` is the logical index that the strides imply, also
    beyond the shape: index[0] = 8000008 of a (512, 64) tensor is row 8000008. None for tensors without order.
    `distance_bytes` is 0 inside, else the gap to the storage.
    """

    span: Span
    inside: bool
    live: bool
    offset_bytes: int
    element: int
    index: tuple[int, ...] | None
    distance_bytes: int


@dataclass(frozen=True)
class Found:
    """`owners` hold the address, the ones live at the asked launch first; `neighbours` are nearest first."""

    address: int
    owners: tuple[Place, ...]
    neighbours: tuple[Place, ...]


class AddressBook:
    """Every tensor that the launches of one call were given."""

    def __init__(self, launches: Iterable[JournalLaunch]) -> None:
        self._launches = {launch.sequence: launch for launch in launches}
        self.spans = _spans(self._launches.values())

    def locate(self, address: int, sequence: int | None = None) -> Found:
        """Where `address` lies; `sequence` is the launch at which it was used, None for any time."""
        places = [_place(span, address, sequence) for span in self.spans]
        owners = sorted((p for p in places if p.inside), key=lambda p: (not p.live, -p.span.first))
        others = sorted((p for p in places if not p.inside and p.live), key=lambda p: p.distance_bytes)
        return Found(address, tuple(owners), tuple(others[:NEIGHBOURS]))

    def against_arguments(self, address: int, sequence: int) -> tuple[Place, ...]:
        """`address` measured against each tensor argument of one launch.

        An access far outside all memory still is a row of one of them.
        """
        launch = self._launches.get(sequence)
        arguments = [a for a in launch.arguments if a.tensor] if launch else []
        spans = [Span(a.name, sequence, sequence, a.tensor) for a in arguments if a.tensor]
        return tuple(sorted((_place(s, address, sequence) for s in spans), key=lambda p: p.distance_bytes))


def _spans(launches: Iterable[JournalLaunch]) -> tuple[Span, ...]:
    """One span for each variable and storage, from the first launch that had it to the last."""
    found: dict[tuple[str, int, int], Span] = {}
    for launch in sorted(launches, key=lambda one: one.sequence):
        for argument in launch.arguments:
            tensor = argument.tensor
            if tensor is None or not tensor.storage_bytes:
                continue
            key = (argument.name, tensor.storage_start, tensor.storage_bytes)
            old = found.get(key)
            new = Span(argument.name, launch.sequence, launch.sequence, tensor)
            found[key] = new if old is None else replace(old, last=launch.sequence)
    return tuple(found.values())


def _place(span: Span, address: int, sequence: int | None) -> Place:
    inside = span.start <= address < span.end
    offset = address - span.tensor.pointer
    element = offset // span.tensor.itemsize
    return Place(
        span=span,
        inside=inside,
        live=sequence is None or span.first <= sequence <= span.last,
        offset_bytes=offset,
        element=element,
        index=logical_index(element, span.tensor.shape, span.tensor.stride),
        distance_bytes=0 if inside else max(span.start - address, address - span.end + 1),
    )


def logical_index(element: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """The index of an element offset under the strides; the outermost dimension takes what is beyond.

    None when a dimension of more than one element has no positive stride, or when the offset falls between
    elements.
    """
    if any(step <= 0 and size > 1 for size, step in zip(shape, stride, strict=True)):
        return None
    index = [0] * len(shape)
    rest = element
    for dim in sorted(range(len(shape)), key=lambda d: -stride[d]):
        if shape[dim] > 1:
            index[dim], rest = divmod(rest, stride[dim])
    return None if rest else tuple(index)
