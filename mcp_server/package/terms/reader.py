"""What the readers of both languages record of a kernel, and the tests and loops around a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from mcp_server.package.terms.program import Access, Check, Definition, Program, Source, Store
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.terms.term import Number, Range, Term, Unread, free_positions, say
from mcp_server.package.terms.translate import Translator, operator

TRUE = Number(True, "bool")


class Reader(Translator):
    """Follows the names of one kernel, statement by statement; `line` is that of the statement, 1-based."""

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
        """The value of a name at this place."""
        raise NotImplementedError

    @property
    def program(self) -> Program:
        """The program from all that was recorded."""
        made = tuple(self.accesses), tuple(self.checks), tuple(self.definitions)
        return Program(*made, tuple(self.unread))

    @contextmanager
    def where(self, test: Term | None) -> Iterator[None]:
        """A block whose statements also depend on `test`."""
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
        """All tests around this place; None without one."""
        total: Term = TRUE
        for each in self.tests:
            total = operator("and", (total, each))
        return None if isinstance(total, Number) and total.value else total

    def settle(self, loop: str, first: int) -> None:
        """Mark the stores of a loop that may read what another turn of it stored.

        `first` is the number of the loop's first access. A turn that loads and stores only at one place,
        which depends on the loop, reads no value of another turn.
        """
        inside, loop = self.accesses[first:], loop.removesuffix("_tail")
        loads = [each for each in inside if each.kind == "load"]
        for number, each in enumerate(inside, first):
            if not isinstance(each, Store):
                continue
            above = [e for e in loads if e.parameter == each.parameter and e.line <= each.line]
            places = {say(e.index).replace("_tail", "") for e in above}  # `x0_tail` is `x0` as well
            moves = loop in {name.removesuffix("_tail") for name in free_positions(each.index)}
            apart = moves and places <= {say(each.index).replace("_tail", "")}
            if above and not apart and each.mode == "plain":
                self.accesses[number] = replace(each, value=Unread(each.parameter, each.value.dtype))
