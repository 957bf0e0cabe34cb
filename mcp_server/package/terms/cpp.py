"""Reads the C++ kernels of the CPU backend as programs: loops, stores, checks and reductions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mcp_server.package.kernel_code import IndexAssert, find_asserts
from mcp_server.package.kernels import Kernel
from mcp_server.package.statements import split_arguments
from mcp_server.package.terms.program import Check, Program, Store, Value
from mcp_server.package.terms.syntax import Call, Name, NotRead, Operation, Syntax, read_cpp
from mcp_server.package.terms.term import (
    Element,
    Fold,
    Number,
    Position,
    Range,
    Size,
    Term,
    Unread,
    promoted,
    rebuilt,
    say,
    understood,
)
from mcp_server.package.terms.translate import Translator, cast, dtype_of

_LOOP = re.compile(
    r"for\s*\(\s*(?P<type>\w+)\s+(?P<name>\w+)\s*=\s*(?P<start>[^;]+);\s*(?P=name)\s*<\s*(?P<stop>[^;]+);[^;]*$"
)
_ASSIGN = re.compile(
    r"^(?:(?P<type>[A-Za-z_][\w:]*(?:<[^=;]*>)?)\s+)?(?P<name>\w+)\s*=(?!=)\s*(?P<value>.+);$", re.S
)
_PLAIN_STORE = re.compile(r"^(?P<to>\w+)\[(?P<index>.+)\]\s*=(?!=)\s*(?P<value>.+);$", re.S)
_VECTOR_STORE = re.compile(r"^(?P<value>.+)\.store\((?P<place>.+)\);$", re.S)
_ATOMIC = re.compile(r"^atomic_add\(&?(?P<to>\w+)\[(?P<index>.+)\],\s*(?P<value>.+)\);$", re.S)
_ATOMIC_VECTOR = re.compile(
    r"^atomic_add_vec<[^()]*>\((?P<to>\w+),\s*(?P<index>\w+),\s*(?P<value>\w+)(?:,.+)?\);$", re.S
)
_PART = re.compile(r"if\s*\(C10_(?:UN)?LIKELY\((?P<test>.+)\)\)$")
_COMPARED = re.compile(r"(?P<name>\w+) (?P<op>>=|<) (?P<end>.+)")
_BRANCH = re.compile(r"(?:else\b|if\s*\()(?!.*LIKELY\()", re.S)
_LAMBDA = re.compile(r"^auto\s+(?P<name>\w+)\s*=\s*\[&\]$")
_REDUCE_ALL = re.compile(r"at::vec::vec_reduce_all<[^()]*>\(\s*\[\].*?\{.*?\}\s*,\s*(\w+)\s*\)")
# A buffer of the kernel's own, and a second name for a parameter that two arguments would share.
_LOCAL = re.compile(r"^\s*(\w+)\s*\*\s*(\w+) = buf_\w+\.get\(\);", re.M)
_ALIAS = re.compile(r"^[ \t]*auto (\w+_ptr\d+) = (\w+_ptr\d+);", re.M)
_ACCUMULATOR = re.compile(r"(?:masked_)?(tmp_acc\d+)")
_EXCEPT = re.compile(r"\|\s*!\((?P<test>.+?)\)\s*,\s*\"index out of bounds")
_KINDS = (
    (re.compile(r"^(argmax|argmin)_combine"), r"\1"),
    (re.compile(r"^(max|min)(?:_propagate_nan|imum|_masked_reduce|)$"), r"\1"),
    (re.compile(r"^(?:add|sum_masked_reduce|cascade_sum_combine)$"), "sum"),
    (re.compile(r"^(?:mul|prod_masked_reduce)$"), "prod"),
    (re.compile(r"^(?:or|bitor|any_masked_reduce)$"), "any"),
    (re.compile(r"^welford_combine"), "welford"),
)


@dataclass(eq=False)
class _Statement:
    text: str
    line: int


@dataclass(eq=False)
class _Block:
    """A pair of braces. `header` is the text before it, `place` its number among the items of its parent."""

    header: str
    line: int
    parent: _Block | None = None
    place: int = 0
    items: list[_Statement | _Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = _LOOP.match(self.header)
        match = _LAMBDA.match(self.header)
        self.function = match["name"] if match else ""  # the variable that a lambda is assigned to


_Place = tuple[_Block, int]
"""Just before an item of a block, by its number."""


def read_cpp_program(kernel: Kernel) -> Program:
    """What a C++ kernel does, in the order of its text."""
    reader = _Reader(kernel)
    root = _blocks(reader.source)
    asserts = {check.line: check for check in find_asserts(kernel.source)}
    stores: list[Store] = []
    checks: list[Check] = []
    for place, statement in _statements(root):
        if statement.line in asserts:
            checks.append(reader.check(asserts[statement.line], statement, place))
        elif (store := reader.store(statement, place)) is not None:
            reader.local.get(store.parameter, stores).append(store)
    # Also what reaches no store, and is a load.
    for (block, number), statement in _statements(root, lambdas=True):
        if match := _ASSIGN.match(statement.text):
            reader.defined(match["name"], block, number)

    def value_at(name: str, line: int) -> Value:
        place = (root, 0)
        for (block, number), statement in _statements(root, lambdas=True):
            if statement.line <= line:
                place = (block, number + (statement.line < line))
        return reader.look(name, place), reader.ranges(place)

    return Program(tuple(stores), tuple(checks), tuple(reader.translator.loads), value_at)


def definitions(kernel: Kernel) -> Iterator[tuple[int, Term]]:
    """What each variable is defined as, with the 1-based line of the kernel's source."""
    reader = _Reader(kernel)
    for (block, number), statement in _statements(_blocks(reader.source)):
        match = _ASSIGN.match(statement.text)
        term = reader.defined(match["name"], block, number) if match and match["type"] == "auto" else None
        if term is not None and understood(term):
            yield statement.line, term


def _blocks(source: str) -> _Block:
    """The nested blocks of a kernel, whose statements stand on lines of their own."""
    root = block = _Block("", 0)
    pending, first = "", 0
    for number, raw in enumerate(source.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith(("#", "//")) or line in ("()", ";", "();", ")"):
            continue
        first = first if pending else number
        if line == "{" or (line.endswith("{") and not line.endswith("={")):
            inner = _Block(f"{pending} {line[:-1]}".strip(), first, block, len(block.items))
            block.items.append(inner)
            block, pending = inner, ""
        elif line.startswith("}"):
            block, pending = block.parent or root, ""
        elif line.endswith(";"):
            block.items.append(_Statement(f"{pending} {line}".strip(), first))
            pending = ""
        else:
            pending = f"{pending} {line}".strip()
    return root


def _statements(
    block: _Block, end: int | None = None, *, lambdas: bool = False
) -> Iterator[tuple[_Place, _Statement]]:
    """The statements of a block and of the blocks in it, in `lambdas` on request; only those before `end`."""
    for number, item in enumerate(block.items[:end]):
        if isinstance(item, _Statement):
            yield (block, number), item
        elif lambdas or not item.function:
            yield from _statements(item, lambdas=lambdas)


def lines_in_branches(source: str) -> set[int]:
    """The lines of statements in a branch that may not be taken.

    `C10_LIKELY` and `C10_UNLIKELY` part a loop into vectors and its rest: both are reached.
    """
    found: set[int] = set()
    for place, statement in _statements(_blocks(source), lambdas=True):
        headers = (block.header for block, _ in _upward(place))
        if any(map(_BRANCH.match, (statement.text, *headers))):
            found.add(statement.line)
    return found


def _upward(place: _Place) -> Iterator[_Place]:
    """A place, and the places of the blocks around it, innermost first."""
    block, at = place
    yield block, at
    while block.parent is not None:
        block, at = block.parent, block.place
        yield block, at


class _Reader:
    """Follows the names of one kernel."""

    def __init__(self, kernel: Kernel) -> None:
        pointers = {p.name: dtype_of(p.type) or "float32" for p in kernel.parameters if "*" in p.type}
        self.scalars = {p.name: dtype_of(p.type) or "int64" for p in kernel.parameters if "*" not in p.type}
        self.source = _ALIAS.sub("", kernel.source)
        for name, same in _ALIAS.findall(kernel.source):
            self.source = re.sub(rf"\b{name}\b", same, self.source)
        locals_ = {name: dtype_of(type_) or "float32" for type_, name in _LOCAL.findall(kernel.source)}
        self.local: dict[str, list[Store]] = {name: [] for name in locals_}
        self.pointers = {**pointers, **locals_}
        self.translator = Translator(self.pointers)
        self._known: dict[_Block | _Statement, Term] = {}

    def term(self, text: str, place: _Place, line: int) -> Term:
        """The value of an expression at a place."""
        try:
            return self._term(read_cpp(_REDUCE_ALL.sub(r"\1", text)), place, line)
        except (NotRead, RecursionError, IndexError):
            return Unread(text[:120])

    def _term(self, syntax: Syntax, place: _Place, line: int) -> Term:
        def from_local(term: Term) -> Term | None:
            """The value stored in a local buffer of the kernel, at the index that is read."""
            if not isinstance(term, Element) or term.parameter not in self.local:
                return None
            index = say(term.index)
            for store in reversed(self.local[term.parameter]):
                if say(store.index) == index:
                    return store.value
            return Unread(term.parameter)

        term = self.translator.term(syntax, lambda name: self.look(name, place), line)
        return rebuilt(term, from_local) if self.local else term

    def look(self, name: str, place: _Place) -> Term:
        """The value of a variable just before a place."""
        if name.endswith("_inner"):
            return Number(0, "int64")
        if match := _ACCUMULATOR.match(name):
            return self._reduced(match[1], name.partition(".")[2], place)
        for block, at in _upward(place):
            for number in range(at - 1, -1, -1):
                if (found := self.defined(name, block, number)) is not None:
                    return found
            if (loop := block.loop) and loop["name"] == name:
                return Position(name, dtype_of(loop["type"]) or "int64")
        return Size(name, self.scalars[name]) if name in self.scalars else Unread(name)

    def defined(self, name: str, block: _Block, number: int) -> Term | None:
        """The value that item `number` assigns to `name`; None if it assigns none."""
        item = block.items[number]
        match = _ASSIGN.match(item.text) if isinstance(item, _Statement) else None
        defined = item.function if isinstance(item, _Block) else match["name"] if match else ""
        if defined != name:
            return None
        if item not in self._known:
            self._known[item] = Unread(name)  # for a value that depends on itself
            if isinstance(item, _Block):
                self._known[item] = self._returned(item)
            elif match is not None:
                value = self.term(match["value"], (block, number), item.line)
                type_ = match["type"] or "auto"
                self._known[item] = value if type_ == "auto" else cast(value, dtype_of(type_))
        return self._known[item]

    def _returned(self, block: _Block) -> Term:
        """The result of a lambda: what it writes to its buffer, else its last returned value."""
        found: Term | None = None
        for place, statement in _statements(block):
            text = statement.text
            plain, vector = _PLAIN_STORE.match(text), _VECTOR_STORE.match(text)
            if plain and plain["to"] == "tmpbuf":
                return self.term(plain["value"], place, statement.line)
            if vector and vector["place"].startswith("tmpbuf"):
                return self.term(vector["value"], place, statement.line)
            if text.startswith("return ") and "tmpbuf" not in text:
                found = self.term(text[7:-1], place, statement.line)
        return found or Unread("lambda")

    def _reduced(self, name: str, part: str, place: _Place) -> Term:
        """The result of the reduction into an accumulator, from the loop that updates it."""
        for block, at in _upward(place):
            inner = [found for found in _statements(block, at) if found[0][0] is not block]
            for where, statement in reversed(inner):
                found = self._update(name, part, block, where, statement)
                if found is not None and understood(found):
                    return found
        return Unread(name)

    def _update(
        self, name: str, part: str, outer: _Block, place: _Place, statement: _Statement
    ) -> Term | None:
        match = _ASSIGN.match(statement.text)
        target = _ACCUMULATOR.match(match["name"]) if match else None
        if match is None or target is None or target[1] != name or "_arr" in match["value"]:
            return None
        ranges = self.ranges(place, outer)
        try:
            syntax = read_cpp(match["value"])
        except NotRead:
            return None
        if not ranges or not isinstance(syntax, Call | Operation):
            return None
        kind = _kind(syntax.op if isinstance(syntax, Operation) else syntax.name, part)
        operand = next((a for a in syntax.args if not _mentions(a, name)), None)
        if not kind or operand is None:
            return None
        body = self._term(operand, place, statement.line)
        return Fold(kind, ranges, body, "int64" if kind.startswith("arg") else promoted(body.dtype))

    def parted(self, place: _Place) -> tuple[Range, ...]:
        """The loops around a place, without what another part of them does: the vectors, or their rest."""
        ends: dict[tuple[str, str], Term] = {}
        for block, at in _upward(place):
            guard = _PART.match(block.header)
            for comparison in guard["test"].split(" && ") if guard else ():
                if match := _COMPARED.fullmatch(comparison):
                    ends[match["name"], match["op"]] = self.term(match["end"], (block, at), block.line)
        found = []
        for each in self.ranges(place):
            # A scalar loop ends where it says; the test of its part is of the vector loop around it.
            name = each.name.removesuffix("_tail")
            start, stop = ends.get((name, ">=")), ends.get((each.name, "<"))
            found.append(replace(each, start=start or each.start, stop=stop or each.stop))
        return tuple(found)

    def ranges(self, place: _Place, outer: _Block | None = None) -> tuple[Range, ...]:
        """The loops around a place, outermost first, up to a block outside of them."""
        found: list[Range] = []
        for block, _ in _upward(place):
            if block is outer:
                break
            loop = block.loop
            if loop and block.parent and not loop["name"].endswith("_inner"):
                before = (block.parent, block.place)
                ends = [self.term(loop[end], before, block.line) for end in ("start", "stop")]
                found.append(Range(loop["name"], *ends))
        # A scalar tail goes on where its vector loop ends: it stands for all that both of them do.
        loops = {each.name: each for each in found}
        tails = {name.removesuffix("_tail") for name in loops if name.endswith("_tail")}
        whole = (
            replace(each, start=loops[base].start)
            if (base := each.name.removesuffix("_tail")) in loops
            else each
            for each in reversed(found)
        )
        return tuple(each for each in whole if each.name not in tails)

    def store(self, statement: _Statement, place: _Place) -> Store | None:
        """The store of a statement to a parameter or a local buffer; None for another statement."""
        text, line, mode = statement.text, statement.line, "plain"
        if match := _ATOMIC.match(text) or _ATOMIC_VECTOR.match(text) or _PLAIN_STORE.match(text):
            to, index = match["to"], match["index"]
            mode = "plain" if match.re is _PLAIN_STORE else "add"
        if (match is None or to not in self.pointers) and (match := _VECTOR_STORE.match(text)):
            start, end = split_arguments(match["place"], 0, len(match["place"]))[0]
            to, _, index = (part.strip() for part in match["place"][start:end].partition("+"))
        if match is None or to not in self.pointers:
            return None
        stored = cast(self.term(match["value"], place, line), self.pointers[to])
        return Store(to, self.term(index or "0", place, line), stored, self.parted(place), line, mode)

    def check(self, found: IndexAssert, statement: _Statement, place: _Place) -> Check:
        """An index check with its ends as terms."""
        line = statement.line
        excepted = _EXCEPT.search(statement.text)
        return Check(
            line,
            self.look(found.variable, place),
            self.term(found.lower, place, line) if found.lower else None,
            self.term(found.upper, place, line) if found.upper else None,
            self.ranges(place),
            self.term(excepted["test"], place, line) if excepted else None,
        )


def _kind(name: str, part: str) -> str:
    """The kind of a reduction from its operator or function, and the member of a Welford result."""
    last = name.rpartition("::")[2]
    for pattern, kind in _KINDS:
        if match := pattern.match(last):
            found = match.expand(kind)
            return {"mean": "mean"}.get(part, "") if found == "welford" else found
    return ""


def _mentions(syntax: Syntax, name: str) -> bool:
    match syntax:
        case Name(name=known):
            return name in known
        case Call(args=args) | Operation(args=args):
            return any(_mentions(each, name) for each in args)
    return False
