"""The elements that a kernel accesses as a PyTorch view: the tensor, a reshape, slices, a permutation.

`Memory` says which tensor a load reads. `Structures` says which terms of a kernel are the same.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mcp_server.package.pytorch.axes import NotRead, plain_name
from mcp_server.package.terms.parts import children
from mcp_server.package.terms.program import Store
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Position, Size, Term, Unread, is_float
from mcp_server.package.terms.whole import Whole, constant, product

_TYPICAL = 97  # a size for ordering symbolic strides


@dataclass(frozen=True)
class Step:
    """One dimension of a view: its size, and the distance between neighbouring elements."""

    size: Whole
    stride: Whole


@dataclass(frozen=True)
class Tensor:
    """A tensor that an expression names, with its layout in the wrapper."""

    text: str
    sizes: tuple[Whole, ...]
    strides: tuple[Whole, ...]
    dtype: str

    @property
    def numel(self) -> Whole:
        return product(self.sizes)

    @property
    def is_contiguous(self) -> bool:
        return _is_dense(self.sizes, self.strides)


def contiguous(sizes: Sequence[Whole]) -> tuple[Whole, ...]:
    """The strides of a dense tensor."""
    return tuple(product(sizes[at + 1 :]) for at in range(len(sizes)))


def is_whole(tensor: Tensor, steps: Sequence[Step], offset: Whole) -> bool:
    """Whether a view contains each element of the tensor exactly once."""
    if offset != Whole():
        return False
    mine = sorted(
        ((s, t) for s, t in zip(tensor.sizes, tensor.strides, strict=True) if s.number != 1), key=str
    )
    theirs = sorted(((each.size, each.stride) for each in steps if each.size.number != 1), key=str)
    return mine == theirs or _covers(tensor, steps)


def _is_dense(sizes: Sequence[Whole], strides: Sequence[Whole]) -> bool:
    """Whether these dimensions, from the outermost one, reach adjacent elements."""
    dense = zip(sizes, strides, contiguous(sizes), strict=True)
    return all(size.number == 1 or stride == wanted for size, stride, wanted in dense)


def _covers(tensor: Tensor, steps: Sequence[Step]) -> bool:
    """Whether the steps, from the outermost one, reach the elements of a dense tensor in their order."""
    sizes, strides = [each.size for each in steps], [each.stride for each in steps]
    return tensor.is_contiguous and _is_dense(sizes, strides) and product(sizes) == tensor.numel


def view(tensor: Tensor, steps: Sequence[Step], offset: Whole, *, to_write: bool = False) -> str:
    """Write the elements of a tensor that the steps reach from `offset`, in their order."""
    sizes = [each.size for each in steps]
    if offset == Whole() and _is_same(tensor, steps):
        return tensor.text
    if offset == Whole() and _covers(tensor, steps):
        how = "view" if to_write else "reshape"
        return (
            f"{tensor.text}.flatten()"
            if len(sizes) == 1 and not to_write
            else f"{tensor.text}.{how}({listed(sizes)})"
        )
    found = _sliced(tensor, steps, offset)
    if found is None and (folded := refolded(tensor, steps, to_write)) is not None:
        found = _sliced(folded, steps, offset)
    if found is None:
        found = _sliced(unflattened(tensor, steps), steps, offset)
    return found if found is not None else strided(tensor, steps, offset)


def unflattened(tensor: Tensor, steps: Sequence[Step]) -> Tensor:
    """Split each dimension along which two steps move into two dimensions."""
    found = [_dimension_of(tensor, each, ()) for each in steps]
    for dim in reversed(range(len(tensor.sizes))):
        inners = [each[1] for each in found if each is not None and each[0] == dim]
        outer = tensor.sizes[dim].over(constant(max(inners, default=1)))
        if len(inners) < 2 or outer is None:
            continue
        inner, stride = constant(max(inners)), tensor.strides[dim]
        tensor = Tensor(
            f"{tensor.text}.unflatten({dim}, ({listed([outer, inner])}))",
            (*tensor.sizes[:dim], outer, inner, *tensor.sizes[dim + 1 :]),
            (*tensor.strides[:dim], stride * inner, stride, *tensor.strides[dim + 1 :]),
            tensor.dtype,
        )
    return tensor


def strided(tensor: Tensor, steps: Sequence[Step], offset: Whole) -> str:
    """Write elements of a tensor's memory with any strides."""
    sizes, strides = ([getattr(each, what) for each in steps] for what in ("size", "stride"))
    at = f", {offset}" if offset != Whole() else ""
    return f"strided({tensor.text}, {tupled(sizes)}, {tupled(strides)}{at})"


def refolded(tensor: Tensor, steps: Sequence[Step], to_write: bool) -> Tensor | None:
    """Write a dense tensor with a dimension for each stride of the steps. None if that is impossible."""
    strides = sorted({each.stride for each in steps if each.size.number != 1}, key=typical, reverse=True)
    if not tensor.is_contiguous or not strides or any(stride == Whole() for stride in strides):
        return None
    if strides[-1].number != 1:
        strides.append(constant(1))
    sizes = []
    for outer, inner in zip([tensor.numel, *strides], strides, strict=False):
        size = outer.over(inner)
        if size is None:
            return None
        sizes.append(size)
    how = "view" if to_write else "reshape"
    return Tensor(f"{tensor.text}.{how}({listed(sizes)})", tuple(sizes), tuple(strides), tensor.dtype)


def _is_same(tensor: Tensor, steps: Sequence[Step]) -> bool:
    return len(steps) == len(tensor.sizes) and all(
        each.size == size and (each.stride == stride or size.number == 1)
        for each, size, stride in zip(steps, tensor.sizes, tensor.strides, strict=True)
    )


def _sliced(tensor: Tensor, steps: Sequence[Step], offset: Whole) -> str | None:
    """Write slices and a permutation of dimensions. None if a step is not along a dimension of the tensor."""
    found = slices_of(tensor, steps, offset)
    if found is None:
        return None
    return f"{tensor.text}{bracketed(found[0])}{_permuted(found[1])}"


def bracketed(parts: Sequence[str]) -> str:
    """Write an index by dimension, as short as possible: `[..., 0]`, or nothing for the whole tensor."""
    used = [dim for dim, part in enumerate(parts) if part != ":"]
    if not used:
        return ""
    before = ["..."] if used[0] > 2 and used[-1] == len(parts) - 1 else parts[: used[0]]
    return f"[{', '.join([*before, *parts[used[0] : used[-1] + 1]])}]"


def slices_of(tensor: Tensor, steps: Sequence[Step], offset: Whole) -> tuple[list[str], list[int]] | None:
    """The slice or number in each dimension, and the dimension of each step. None if impossible."""
    place: dict[int, tuple[Step, int]] = {}
    for step in steps:
        found = _dimension_of(tensor, step, place)
        if found is None:
            return None
        place[found[0]] = (step, found[1])
    starts = starts_of(tensor, offset)
    if starts is None:
        return None
    index = []
    for dim, size in enumerate(tensor.sizes):
        start = starts[dim]
        if dim not in place:
            if not (size - constant(1) - start).is_positive_or_zero():
                return None
            index.append(str(start))
            continue
        step, every = place[dim]
        end = start + (step.size - constant(1)) * constant(every) + constant(1)
        if not (size - end).is_positive_or_zero():
            return None
        begins = "" if start == Whole() else str(start)
        ends = "" if end == size or (every > 1 and (end + constant(every - 1)) == size) else str(end)
        index.append(f"{begins}:{ends}" + (f":{every}" if every > 1 else ""))
    return index, list(place)


def _dimension_of(tensor: Tensor, step: Step, taken: Collection[int]) -> tuple[int, int] | None:
    """The dimension along which a step moves, and by how many elements, or None."""
    found = []
    for dim, (size, stride) in enumerate(zip(tensor.sizes, tensor.strides, strict=True)):
        every = step.stride.over(stride) if dim not in taken else None
        if every is None or not every.number or every.number < 1:
            continue
        if (size - (step.size - constant(1)) * every - constant(1)).is_positive_or_zero():
            found.append((typical(stride), dim, every.number))
    return max(found)[1:] if found else None


def _permuted(dims: Sequence[int]) -> str:
    order = [sorted(dims).index(dim) for dim in dims]
    if order == sorted(order):
        return ""
    return ".T" if len(order) == 2 else f".permute({', '.join(map(str, order))})"


def starts_of(tensor: Tensor, offset: Whole) -> list[Whole] | None:
    """The index of an offset in each dimension. None if the offset lies between indices."""
    starts, rest = [Whole()] * len(tensor.sizes), offset
    strides = [typical(stride) for stride in tensor.strides]
    for dim in sorted(range(len(strides)), key=strides.__getitem__, reverse=True):
        stride = tensor.strides[dim]
        if tensor.sizes[dim].number == 1 or stride == Whole():
            continue
        if rest.number is not None and stride.number:
            start = constant(rest.number // stride.number)
        else:
            exact = tuple(term for term in rest.terms if Whole((term,)).over(stride) is not None)
            start = Whole(exact).over(stride) or Whole()
        starts[dim], rest = start, rest - start * stride
    return starts if rest == Whole() and all(each.is_positive_or_zero() for each in starts) else None


def typical(value: Whole) -> int:
    """The value for typical sizes, by which strides are ordered."""
    found = value.replaced({atom: constant(_TYPICAL) for atom in value.atoms}).number
    return found if found is not None else 0


def listed(sizes: Sequence[Whole]) -> str:
    """Write sizes as arguments; an empty tuple if there are none."""
    return ", ".join(map(str, sizes)) or "()"


def tupled(sizes: Sequence[Whole]) -> str:
    return f"({listed(sizes)}{',' * (len(sizes) == 1)})" if sizes else "()"


class Memory:
    """The tensors that loads from a kernel's parameters see after earlier stores."""

    def __init__(self, tensors: Mapping[str, Tensor], stores: Sequence[Store] = ()) -> None:
        self.start = dict(tensors)
        self._stores = [(self._text(each.parameter), each.line) for each in stores]
        self.states: dict[str, list[tuple[int, Tensor]]] = {name: [(0, t)] for name, t in tensors.items()}

    @property
    def names(self) -> set[str]:
        return {tensor.text for states in self.states.values() for _, tensor in states}

    def written(self, parameter: str, line: int, tensor: Tensor) -> None:
        """Let the parameter refer to this tensor from this line on."""
        self.states[parameter].append((line, tensor))

    def rename(self, parameters: Collection[str], text: str, name: str) -> None:
        """Let loads that would see `text` in these parameters see its copy `name`."""
        for parameter in parameters:
            states = self.states[parameter]
            states[:] = [(at, replace(t, text=name) if t.text == text else t) for at, t in states]

    def version(self, element: Element) -> int:
        """The number of stores that a load sees."""
        text = self._text(element.parameter)
        return sum(text == written and line < element.line for written, line in self._stores)

    def _text(self, parameter: str) -> str:
        return self.start[parameter].text if parameter in self.start else parameter

    def tensor(self, element: Element) -> Tensor:
        found = [t for line, t in self.states.get(element.parameter, ()) if line < element.line or line == 0]
        if not found:
            raise NotRead(f"a load of {element.parameter}, which is not an argument")
        return found[-1]


class Structures:
    """Numbers for terms. Terms with the same structure over the same memory state have the same number."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.uses: dict[int, int] = {}
        self._identity: dict[Term, int] = {}
        self._structures: dict[tuple[object, ...], int] = {}

    def identity(self, term: Term) -> int:
        """The same number for terms of the same structure."""
        if term not in self._identity:
            inner: tuple[object, ...]
            match term:
                case Number(value=value, dtype=dtype):
                    inner = ("number", repr(value), dtype if is_float(dtype) else "")
                case Position(name=name):
                    inner = ("position", plain_name(name))
                case Size(name=name):
                    inner = ("size", name)
                case Element(parameter=parameter, index=index, dtype=dtype):
                    version = self.memory.version(term)
                    inner = ("element", parameter, version, self.identity(index), dtype)
                case Apply(op=op, args=args, dtype=dtype):
                    inner = (op, dtype, *map(self.identity, args))
                case Fold(kind=kind, ranges=ranges, body=body, dtype=dtype):
                    ends = (
                        (plain_name(r.name), self.identity(r.start), self.identity(r.stop)) for r in ranges
                    )
                    inner = ("fold", kind, dtype, self.identity(body), *ends)
                case Unread(text=text, args=args):
                    inner = ("unread", text, *map(self.identity, args))
            self._identity[term] = self._structures.setdefault(inner, len(self._structures))
        return self._identity[term]

    def count(self, *terms: Term) -> None:
        """Count uses, so that a term used twice gets a name. Parts of a term are counted only once."""
        for term in terms:
            number = self.identity(term)
            self.uses[number] = self.uses.get(number, 0) + 1
            if self.uses[number] == 1:
                self.count(*((term.body,) if isinstance(term, Fold) else children(term)))
