"""Every load and store of a kernel: its place in the types that the code computes in, and when it is made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.cpp import lines_in_branches
from mcp_server.package.terms.program import loads, read_program
from mcp_server.package.terms.term import Number, Range, Term, Unread, itemsize_of, parts, understood
from mcp_server.package.terms.translate import Translator, dtype_of
from mcp_server.package.terms.triton import Place, Reader, function_of

_KINDS = {"tl.load": "load", "tl.store": "store"}  # all other calls of `tl.atomic_*` are updates
_OTHER_PATH = (ast.If, ast.While, ast.Try, ast.FunctionDef, ast.Match)


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """A load, a store or an atomic update of a parameter, at a 1-based line of the kernel's source.

    The place is the sum of `index`, terms that each count in elements of so many bytes. `itemsize` is that
    of what is accessed. It is made for all of `ranges` where `test` holds.
    """

    kind: str
    parameter: str
    index: tuple[tuple[Term, int], ...]
    itemsize: int
    ranges: tuple[Range, ...]
    test: Term | None
    line: int


@lru_cache(maxsize=512)
def read_accesses(kernel: Kernel) -> tuple[Access, ...]:
    """The accesses in the order of the text, as far as they are understood.

    What stands in a branch, or behind a `return` in one, is left out: whether it is reached is not known.
    """
    try:
        found = list(_of_cpp(kernel) if kernel.kind == "cpp" else _of_triton(kernel))
    except RecursionError:
        return ()
    return tuple(each for each in found if all(understood(part) for part, _ in each.index))


def _of_cpp(kernel: Kernel) -> Iterator[Access]:
    types = {each.name: dtype_of(each.type) for each in kernel.parameters if "*" in each.type}
    skipped = lines_in_branches(kernel.source)
    for store in read_program(kernel).stores:
        kind = "store" if store.mode == "plain" else "update"
        inside = [made for term in (store.value, store.index) for made in loads(term, store.ranges)]
        reads = [("load", name, *made) for name, made in inside]
        for each in (*reads, (kind, store.parameter, store.line, store.index, store.ranges, None)):
            way, name, line, index, ranges, test = each
            if (dtype := types.get(name)) is not None and line not in skipped:
                size = itemsize_of(dtype)
                yield Access(way, name, ((index, size),), size, ranges, test, line)


class _SureReader(Reader):
    """Follows names where they have one value: not behind a branch or a loop that assigns them."""

    def __init__(self, kernel: Kernel, function: ast.FunctionDef) -> None:
        super().__init__(kernel, function)
        self.translator = Translator(self.pointers, masks_hold=kernel.kind != "user_triton")
        self.unsure: dict[str, int] = {}  # from which line on
        self.skipped: set[int] = set()
        self.last = end = function.end_lineno or 0
        self.around = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        for branch in ast.walk(function):
            if branch is not function and isinstance(branch, _OTHER_PATH):
                self.skipped.update(range(branch.lineno, (branch.end_lineno or end) + 1))
                returns = [each.lineno for each in ast.walk(branch) if isinstance(each, ast.Return)]
                self.last = min([self.last, *returns])
                begin = min([branch.lineno, *(each.lineno for each in self._loops(branch.lineno))])
                self._from(begin, _stored(branch))
        for loop in self.around:
            # In later turns a value that is updated is another one than in the first, which is read here.
            self._from((loop.end_lineno or end) + 1, _stored(loop))
            self._from(loop.lineno, _stored(loop) & _updated(loop))

    def _from(self, line: int, names: set[str]) -> None:
        self.unsure |= {name: min(line, self.unsure.get(name, line)) for name in names}

    def _loops(self, line: int) -> list[ast.For]:
        return [each for each in self.around if each.lineno < line <= (each.end_lineno or 0)]

    def _is_sure(self, name: str, at: int) -> bool:
        statement = self.statements[min(at, len(self.statements) - 1)]
        line = statement.lineno if isinstance(statement, ast.Call) else statement.line
        return line < self.unsure.get(name, line + 1)

    def look(self, name: str, at: int) -> Term:
        return super().look(name, at) if self._is_sure(name, at) else Unread(name)

    def place(self, node: ast.expr, at: int, line: int) -> Place | None:
        sure = not isinstance(node, ast.Name) or self._is_sure(node.id, at)
        return super().place(node, at, line) if sure else None

    def reached(self, line: int, at: int) -> tuple[Range, ...] | None:
        """The loops around a line; None where it may not be reached."""
        if line > self.last or line in self.skipped:
            return None
        loops = self._loops(line)
        variables = [self.look(node.target.id, at) for node in loops if isinstance(node.target, ast.Name)]
        if len(variables) < len(loops) or not all(map(understood, variables)):
            return None
        return self.ranges(tuple(variables))


def _of_triton(kernel: Kernel) -> Iterator[Access]:
    function = function_of(kernel)
    if function is None:
        return
    reader = _SureReader(kernel, function)
    for at, statement in enumerate(reader.statements):
        for node in ast.walk(statement if isinstance(statement, ast.Call) else statement.value):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            kind = _KINDS.get(name, "update" if name.startswith("tl.atomic_") else "")
            loops = reader.reached(node.lineno, at) if kind else None
            place = reader.place(node.args[0], at, node.lineno) if loops is not None else None
            if loops is None or place is None:
                continue
            mask = next((word.value for word in node.keywords if word.arg == "mask"), None)
            position = 1 if kind == "load" else 2
            if mask is None and len(node.args) > position:
                mask = node.args[position]
            test = reader.term(mask, at, node.lineno) if mask is not None else None
            test = None if isinstance(test, Number) and test.value else test
            terms = (*(part for part, _ in place.parts), *([test] if test is not None else []))
            ranges = {each.name: each for each in (*loops, *reader.ranges(terms))}
            yield Access(
                kind, place.parameter, place.parts, place.itemsize, tuple(ranges.values()), test, node.lineno
            )


def _stored(node: ast.AST) -> set[str]:
    """The names that a branch or a loop assigns."""
    names = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in names if isinstance(each.ctx, ast.Store)}


def _updated(loop: ast.For) -> set[str]:
    """The names that a loop computes from their value of the turn before."""
    found: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign | ast.Assign):
            used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            found |= _stored(node) & used if isinstance(node, ast.Assign) else _stored(node)
    return found


def terms_of(access: Access) -> tuple[Term, ...]:
    """All terms that decide where and when an access is made."""
    tests = (access.test,) if access.test is not None else ()
    ends = (end for each in access.ranges for end in (each.start, each.stop))
    roots = (*(part for part, _ in access.index), *tests, *ends)
    return tuple(dict.fromkeys(each for root in roots for each in parts(root, inside_indices=True)))
