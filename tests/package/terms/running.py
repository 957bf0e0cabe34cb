"""Runs C++ kernels alone, and what was read of them, on the same random tensors."""

from __future__ import annotations

import ctypes
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.accesses import position_of
from mcp_server.package.terms.dtypes import dtype_of, is_float
from mcp_server.package.terms.evaluate import Evaluator, rounded
from mcp_server.package.terms.program import Program, Store, read_program
from mcp_server.package.terms.term import Element, Scalar

_ELEMENTS = 1 << 17  # of each tensor: more than any of the kernels reaches
_MOST = 3000  # stores that are looked at one by one
_TRIED = 8  # elements of each tensor
_TOLERANCE = {"float16": 2e-2, "bfloat16": 5e-2, "float64": 1e-9, "float32": 3e-4}
SIZE = 10  # of each scalar argument: four of them fit


def compiled(kernels: Sequence[Kernel]) -> ctypes.CDLL:
    """The kernels in one library, as `k0`, `k1`, …, built as Inductor builds them."""
    from torch._inductor.codecache import CppCodeCache

    text = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
    for number, kernel in enumerate(kernels):
        text += re.sub(rf"void\s+{kernel.symbol}\s*\(", f"void k{number}(", kernel.source, count=1) + "\n"
    library: ctypes.CDLL = CppCodeCache.load(text)
    return library


def tensor(type_: str, seed: int, least: int) -> torch.Tensor:
    """Random elements; whole numbers are small, no two of five neighbours equal, and at least `least`."""
    generator, dtype = torch.Generator().manual_seed(seed), getattr(torch, dtype_of(type_) or "float32")
    if dtype.is_floating_point:
        return torch.randn(_ELEMENTS, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.randn(_ELEMENTS, generator=generator) > 0
    rows = torch.rand(_ELEMENTS // 4, 5, generator=generator).argsort(-1)
    return (rows.flatten()[:_ELEMENTS] + least).to(dtype)


@dataclass
class Read:
    """What was read of a kernel, on tensors as they were before it ran."""

    program: Program
    before: Mapping[str, Sequence[Scalar]]
    sizes: Mapping[str, int]

    def element(self, element: Element, offset: int) -> Scalar:
        """What a load gives: what the kernel stored above it, or what was there before."""
        return self.value(self.program.stores_to(element.parameter, element.line), element.parameter, offset)

    def value(self, stores: Sequence[Store], parameter: str, offset: int) -> Scalar:
        """An element after these stores, the last one first."""
        added: list[Scalar] = []
        for store in stores:
            if store.mode == "add":
                added += [
                    at.value(store.value) for at in self.points(store) if at.value(store.index) == offset
                ]
                continue
            place = position_of(store.index, offset, store.ranges, self.sizes, self.element)
            at = Evaluator(place or {}, self.sizes, self.element)
            if place is not None and (store.test is None or at.value(store.test)):
                return sum(added, at.value(store.value)) if added else at.value(store.value)
        return sum(added, self.before[parameter][offset]) if added else self.before[parameter][offset]

    def points(self, store: Store) -> Iterator[Evaluator]:
        """Every point of the loops around a store."""
        for place in Evaluator({}, self.sizes, self.element).places(store.ranges):
            yield Evaluator(place, self.sizes, self.element)

    def stored(self, parameter: str) -> set[int] | None:
        """The elements that are stored to; None where there are too many."""
        found: set[int] = set()
        for store in self.program.stores_to(parameter):
            spans = map(Evaluator({}, self.sizes, self.element).span, store.ranges)
            if math.prod(map(len, spans)) > _MOST:
                return None
            found |= {int(at.value(store.index)) for at in self.points(store)}
        return found


def disagreements(kernel: Kernel, number: int, library: ctypes.CDLL) -> list[str]:
    """Where a kernel and what was read of it differ: in an element, or in which elements are stored."""
    divides = "remainder" in kernel.name or "div" in kernel.name
    pointers = {each.name: each.type for each in kernel.parameters if "*" in each.type}
    tensors = {name: tensor(type_, n, int(divides)) for n, (name, type_) in enumerate(pointers.items())}
    sizes = {each.name: SIZE for each in kernel.parameters if each.name not in pointers}
    read = Read(read_program(kernel), {name: each.tolist() for name, each in tensors.items()}, sizes)
    getattr(library, f"k{number}")(
        *(
            ctypes.c_void_p(tensors[each.name].data_ptr())
            if each.name in pointers
            else ctypes.c_int64(sizes[each.name])
            for each in kernel.parameters
        )
    )
    found = []
    for name, each in tensors.items():
        dtype, after, before = dtype_of(pointers[name]) or "", each.tolist(), read.before[name]
        changed = [at for at in range(_ELEMENTS) if not _same(before[at], after[at], 0)]
        stored = read.stored(name)
        if stored is not None and not set(changed) <= stored:
            found.append(
                f"{kernel.name}: {name} changes at {min(set(changed) - stored)}, where nothing stores"
            )
        picked = random.Random(0).sample(changed, min(_TRIED, len(changed)))
        for at in {*picked, *changed[:1], *changed[-1:]}:
            value = rounded(read.value(read.program.stores_to(name), name, at), dtype)
            if not _same(value, after[at], _TOLERANCE.get(dtype, 0)):
                found.append(f"{kernel.name}: {name}[{at}] is {after[at]}, and {value} as it was read")
    return found


def _same(a: Scalar, b: Scalar, tolerance: float) -> bool:
    if a != a or b != b:
        return a != a and b != b
    if math.isinf(a) or math.isinf(b) or not tolerance or not is_float(f"float{tolerance}"):
        return a == b
    return abs(a - b) <= tolerance * max(1, abs(a), abs(b))
