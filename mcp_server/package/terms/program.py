"""A kernel as a program: its loops, its loads and stores, and its index checks, as terms."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Literal, Protocol

from mcp_server.package.terms.parts import elements, free_positions, parts, say, uncast, understood
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.terms.term import Apply, Number, Range, Size, Term, Unread, is_address, itemsize_of
from mcp_server.package.terms.translate import Translator, cast, operator

TRUE = Number(True, "bool")
AccessKind = Literal["load", "store", "update"]


class Parameter(Protocol):
    """A parameter of a kernel with its type, such as `const float*` in C++."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...


class Source(Hashable, Protocol):
    """The source of one kernel: C++ if `kind` is `cpp`, otherwise Triton with the launcher's decorator.

    `kind` is `triton` for Inductor's own kernels, whose masks only cut off what is beyond the iteration
    space. `grid` gives the numbers of blocks as C++ expressions of the parameters.
    """

    @property
    def kind(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def parameters(self) -> Sequence[Parameter]: ...
    @property
    def grid(self) -> Sequence[str]: ...


@dataclass(frozen=True, eq=False)
class Place:
    """An address: a parameter plus `parts`, each an index and the size in bytes of its unit.

    An address is 64 bits wide, and each index as wide as its own type. `itemsize` is the size of the element
    at the address. `parameter` is empty if the address comes from no parameter. If the code chooses between
    addresses, `others` has the other parameters.
    """

    parameter: str
    itemsize: int
    parts: tuple[tuple[Term, int], ...] = ()
    others: tuple[str, ...] = ()

    @property
    def is_loaded(self) -> bool:
        """Whether a loaded element decides the address."""
        return any(elements(part) for part, _ in self.parts)

    @cached_property
    def index(self) -> Term:
        """The index from the parameter's first element; `Unread` if a part has another unit."""
        if any(size != self.itemsize for _, size in self.parts) or not self.parameter or self.others:
            return Unread("address", "int64", tuple(part for part, _ in self.parts))
        if not self.parts:
            return Number(0, "int64")
        total = self.parts[0][0]
        for part, _ in self.parts[1:]:
            total = operator("add", (cast(total, "int64"), cast(part, "int64")))  # addresses are 64 bits wide
        return total


def place_of(pointer: Term) -> Place:
    """Find where an address points, following sums, choices and casts."""
    match pointer:
        case Size(name=name, dtype=dtype) if is_address(dtype):
            return Place(name, itemsize_of(dtype))
        case Apply(op="add" | "sub" as op, args=(left, right), dtype=dtype) if is_address(dtype):
            at, offset = (left, right) if is_address(left.dtype) else (right, left)
            base = place_of(at)
            moved = offset if op == "add" else operator("neg", (offset,))
            return replace(base, parts=(*base.parts, (moved, base.itemsize)))
        case Apply(op="cast", args=(inner,), dtype=dtype) if is_address(inner.dtype):
            return replace(place_of(inner), itemsize=itemsize_of(dtype))
        case Apply(op="cast", args=(inner,), dtype=dtype) if is_address(dtype):
            return Place("", itemsize_of(dtype), ((inner, 1),))
    # The pointer is a choice of addresses, or the result of a function of an address.
    inside = list(parts(pointer))
    bases = [each for each in inside if isinstance(each, Size) and is_address(each.dtype)]
    if not bases:
        return Place("", 1, ((pointer, 1),))
    names = tuple(dict.fromkeys(each.name for each in bases))
    size = itemsize_of(bases[0].dtype)
    rest = tuple(each for each in inside if not is_address(each.dtype) and each is not pointer)
    return Place(names[0], size, ((Unread("address", "int64", rest), size),), names[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class Access:
    """A load, a store or an update (an adding store or atomic operation), at a 1-based source line.

    It happens for all of `ranges` where `test` holds. `masked` means that it has its own mask. `code` is the
    call or, in C++, the line. All accesses except loads are `Store`s.
    """

    kind: AccessKind
    place: Place
    ranges: tuple[Range, ...]
    test: Term | None
    line: int
    masked: bool = False
    code: str = ""
    value: Term | None = None

    @property
    def parameter(self) -> str:
        return self.place.parameter

    @property
    def index(self) -> Term:
        return self.place.index

    @property
    def decided_by(self) -> tuple[Term, ...]:
        """The terms that decide where and when the access happens."""
        tests = (self.test,) if self.test is not None else ()
        ends = (end for each in self.ranges for end in (each.start, each.stop))
        return (*(part for part, _ in self.place.parts), *tests, *ends)

    @property
    def is_understood(self) -> bool:
        """Whether place, loops, test and stored value of the access were all understood."""
        terms = (*self.decided_by, *([self.value] if self.value is not None else []))
        return bool(self.parameter) and not self.place.others and all(map(understood, terms))


@dataclass(frozen=True, eq=False, kw_only=True)
class Store(Access):
    """`parameter[index] = value` for all of `ranges` where `test` holds. `mode` is plain or add."""

    value: Term
    mode: str = "plain"

    @staticmethod
    def of(access: Access, kind: AccessKind, value: Term, mode: str = "plain") -> Store:
        """The store of a value at the place of an access."""
        known = {each.name: getattr(access, each.name) for each in fields(access)}
        return Store(**(known | {"kind": kind, "value": value}), mode=mode)


@dataclass(frozen=True, eq=False, slots=True)
class Check:
    """An index check, `lower <= value < upper`, for every combination of `ranges` where `test` holds."""

    line: int
    value: Term
    lower: Term | None
    upper: Term | None
    ranges: tuple[Range, ...]
    test: Term | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Definition:
    """The value that a variable is assigned on a 1-based line."""

    name: str
    line: int
    value: Term


@dataclass(frozen=True, eq=False)
class Program:
    """What a kernel does, in source order.

    `unread` are the lines of statements that were not understood. Whatever these may write is `Unread` where
    it is used later.
    """

    accesses: tuple[Access, ...] = ()
    checks: tuple[Check, ...] = ()
    definitions: tuple[Definition, ...] = ()
    unread: tuple[int, ...] = ()

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        return tuple(each for each in self.accesses if isinstance(each, Store))

    @property
    def is_understood(self) -> bool:
        """Whether every statement, store and check was read."""
        checks = [end for c in self.checks for end in (c.value, c.lower, c.upper, c.test) if end is not None]
        stores = all(each.is_understood for each in self.stores)
        return not self.unread and bool(self.stores) and stores and all(map(understood, checks))

    def stores_to(self, parameter: str, before: int | None = None) -> tuple[Store, ...]:
        """List the stores to a tensor, the last one first; only those above a line if given."""
        mine = [each for each in self.stores if parameter in (each.parameter, *each.place.others)]
        return tuple(each for each in reversed(mine) if before is None or each.line < before)

    def check_at(self, line: int) -> Check | None:
        """The check on a 1-based line of the kernel's source, or None."""
        return next((check for check in self.checks if check.line == line), None)

    def defining_line(self, check: Check) -> int | None:
        """The line that computes a checked value, before it is copied or converted; else None."""
        value = uncast(check.value)
        same = (each.line for each in self.definitions if uncast(each.value) is value)
        return next((line for line in same if line < check.line), None)


def all_of(tests: Iterable[Term]) -> Term | None:
    """Join tests with `and`. None if the result is always true."""
    total: Term = TRUE
    for each in tests:
        total = operator("and", (total, each))
    return None if isinstance(total, Number) and total.value else total


class Reader(Translator):
    """Follows the names of one kernel, statement by statement; `line` is the statement's 1-based line."""

    def __init__(self, kernel: Source, *, masks_hold: bool = True) -> None:
        super().__init__(self.named, masks_hold=masks_hold)
        self.asserts = {check.line: check for check in find_asserts(kernel.source)}
        self.line = 0
        self.loops: list[Range] = []
        self.tests: list[Term] = []
        self.checks: list[Check] = []
        self.accesses: list[Access] = []
        self.definitions: list[Definition] = []
        self.unread: list[int] = []

    def named(self, name: str) -> Term:
        """The value of a name at this point."""
        raise NotImplementedError

    @property
    def program(self) -> Program:
        """The program, built from everything recorded."""
        made = tuple(self.accesses), tuple(self.checks), tuple(self.definitions)
        return Program(*made, tuple(self.unread))

    @contextmanager
    def where(self, test: Term | None) -> Iterator[None]:
        """Read a block whose statements also depend on `test`."""
        count = len(self.tests)
        self.tests += [test] if test is not None else []
        try:
            yield
        finally:
            del self.tests[count:]

    def under(self, test: Term, value: Callable[[], Term], /) -> Term:
        with self.where(test):
            return value()

    def test(self) -> Term | None:
        """Combine all tests around this point, or None."""
        return all_of(self.tests)

    def settle(self, turning: Collection[str], first: int) -> None:
        """Make the stored values of a loop `Unread` if an iteration may read what another one stored.

        `turning` are the positions that differ between iterations; `first` is the number of the loop's first
        access. An iteration that loads and stores only at its own place reads no value of another one.
        """
        inside, moving = self.accesses[first:], {name.removesuffix("_tail") for name in turning}
        loads = [each for each in inside if each.kind == "load"]
        for number, each in enumerate(inside, first):
            if not isinstance(each, Store):
                continue
            above = [e for e in loads if e.parameter == each.parameter and e.line <= each.line]
            places = {say(e.index).replace("_tail", "") for e in above}  # `x0_tail` counts as `x0`
            moves = moving & {name.removesuffix("_tail") for name in free_positions(each.index)}
            apart = moves and places <= {say(each.index).replace("_tail", "")}
            if above and not apart and each.mode == "plain":
                self.accesses[number] = replace(each, value=Unread(each.parameter, each.value.dtype))


@lru_cache(maxsize=512)
def read_program(kernel: Source) -> Program:
    """Read the program of a kernel. Empty if its source is unknown."""
    from mcp_server.package.terms.cpp import read_cpp_program
    from mcp_server.package.terms.triton import read_triton_program

    if not kernel.source:
        return Program()
    return read_cpp_program(kernel) if kernel.kind == "cpp" else read_triton_program(kernel)
