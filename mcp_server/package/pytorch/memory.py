"""What a load of a kernel sees, and which of its terms are the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mcp_server.package.pytorch.axes import NotRead, plain_name
from mcp_server.package.pytorch.views import Tensor
from mcp_server.package.terms.program import Store
from mcp_server.package.terms.term import Apply, Element, Fold, Number, Position, Size, Term, Unread


class Memory:
    """The tensors of a kernel's parameters as loads see them: by the stores before them."""

    def __init__(self, tensors: Mapping[str, Tensor], stores: Sequence[Store] = ()) -> None:
        self.start = dict(tensors)
        self._stores = [(self._text(each.parameter), each.line) for each in stores]
        self.states: dict[str, list[tuple[int, Tensor]]] = {name: [(0, t)] for name, t in tensors.items()}

    @property
    def names(self) -> set[str]:
        return {tensor.text for states in self.states.values() for _, tensor in states}

    def written(self, parameter: str, line: int, tensor: Tensor) -> None:
        """From this line on the parameter holds that tensor."""
        self.states[parameter].append((line, tensor))

    def rename(self, parameters: Collection[str], text: str, name: str) -> None:
        """What these parameters held so far is now called `name`."""
        for parameter in parameters:
            states = self.states[parameter]
            states[:] = [(at, replace(t, text=name) if t.text == text else t) for at, t in states]

    def version(self, element: Element) -> int:
        """How many stores a load sees."""
        text = self._text(element.parameter)
        return sum(text == written and line < element.line for written, line in self._stores)

    def _text(self, parameter: str) -> str:
        return self.start[parameter].text if parameter in self.start else parameter

    def tensor(self, element: Element) -> Tensor:
        found = [t for line, t in self.states.get(element.parameter, ()) if line < element.line or line == 0]
        if not found:
            raise NotRead(f"a load of {element.parameter}, which is no argument")
        return found[-1]


class Structures:
    """Numbers for terms: those that are built alike, over the same state of the memory, have the same."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.uses: dict[int, int] = {}
        self._identity: dict[Term, int] = {}
        self._structures: dict[tuple[object, ...], int] = {}

    def identity(self, term: Term) -> int:
        """The same number for two terms of one structure."""
        if term not in self._identity:
            inner: tuple[object, ...]
            match term:
                case Number(value=value, dtype=dtype):
                    inner = ("number", repr(value), dtype)
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
        """Count uses, so that what is used twice gets a name."""
        seen: set[int] = set()
        for term in terms:
            self._count(term, seen)

    def _count(self, term: Term, seen: set[int]) -> None:
        number = self.identity(term)
        self.uses[number] = self.uses.get(number, 0) + 1
        if number in seen:
            return
        seen.add(number)
        match term:
            case Apply(args=args) | Unread(args=args):
                for each in args:
                    self._count(each, seen)
            case Element(index=index):
                self._count(index, seen)
            case Fold(body=body):
                self._count(body, seen)

    def is_shared(self, term: Term) -> bool:
        """Whether a term was counted twice."""
        return self.uses.get(self.identity(term), 0) > 1
