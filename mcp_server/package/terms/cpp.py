"""Reads the C++ kernels of the CPU backend as programs, statement by statement in source order.

Vector code is read element by element: a loop that steps by a vector's width counts as one that steps by 1,
and a loop over the lanes of a vector (`x0_inner`) counts as its first lane. If a statement cannot be read,
all names in it have unknown values from there on.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from mcp_server.package.terms.blocks import Node, Statement, closing, split_arguments, tree
from mcp_server.package.terms.linear import linear
from mcp_server.package.terms.parts import key, parts, rebuilt, say, uncast
from mcp_server.package.terms.program import (
    Access,
    AccessKind,
    Check,
    Definition,
    Place,
    Program,
    Reader,
    Source,
    Store,
    all_of,
    place_of,
)
from mcp_server.package.terms.sizes import IndexAssert
from mcp_server.package.terms.syntax import Call, Item, Name, NotRead, Operation, Syntax, read_cpp
from mcp_server.package.terms.term import (
    Apply,
    Element,
    Fold,
    Number,
    Position,
    Range,
    Size,
    Term,
    Unread,
    dtype_of,
    is_address,
    itemsize_of,
    promoted,
    type_of,
)
from mcp_server.package.terms.translate import cast, chosen, inverted, operator

_LOOP = re.compile(
    r"for\s*\(\s*(?P<type>\w+)\s+(?P<name>\w+)\s*=\s*(?P<start>[^;]+);\s*(?P=name)\s*<\s*(?P<stop>[^;]+)"
    r";[^;]*\)$",
    re.S,
)
_ASSIGN = re.compile(
    r"^(?:(?:static|const|constexpr)\s+)*"
    r"(?:(?P<type>[A-Za-z_][\w:]*(?:<[^=;]*>|\(\w+\))?(?:\s*\*)?)\s+\*?)?(?P<name>\w+)"
    r"\s*=(?!=)\s*(?P<value>.+)$",
    re.S,
)
_STORE = re.compile(r"^(?P<place>\w+\[.+\])\s*(?P<add>\+)?=(?!=)\s*(?P<value>.+)$", re.S)
_PART = re.compile(r"if\s*\(C10_(?:UN)?LIKELY\((?P<test>.+)\)\)$", re.S)
_COMPARED = re.compile(r"(?P<name>\w+) (?P<op>>=|<) (?P<end>.+)", re.S)
_IF = re.compile(r"if\s*\((?P<test>.+)\)$", re.S)
_LAMBDA = re.compile(r"^auto\s+(?P<name>\w+)\s*=\s*\[&\]", re.S)
_ARRAY = re.compile(r"[\w:>]\s+(?:(?P<array>\w+)|(?P<name>\w+)\[[^;=]*\])$", re.S)
_LOCAL = re.compile(r"^(?P<type>\w+)\s*\*\s*(?P<name>\w+) = buf_\w+\.get\(\)$")
_TRANSPOSED = re.compile(r"^transpose_mxn<.*?>\((?=[^()]*\b\w*(?:ptr|tmp|buffer))", re.S)
_REDUCE_ALL = re.compile(
    r"at::vec::vec_reduce_all<[^()]*>\(\s*\[\][^\n]*?\{[^\n]*?\}\s*,\s*((?:[^()\n]|\([^()\n]*\))*)\)"
)
_MOST_BITS = re.compile(r"sizeof\((?P<type>\w+)\) \* CHAR_BIT(?P<signed> - std::is_signed_v<\w+>)?")
_ACCUMULATOR = re.compile(r"(?:masked_)?(?P<base>tmp_acc\d+)(?:_\w+)?$")
_OF_ACCUMULATOR = re.compile(r"(?:masked_)?tmp_acc\d+|\w*(?:welford|cascade)\w*helper\w*")
_EXCEPT = re.compile(r"\|\s*!\((?P<test>.+?)\)\s*,\s*\"index out of bounds", re.S)
# Statements that manage threads, errors and memory, and compute no element.
_NO_VALUE = re.compile(
    r"$|\(\)$|int tid = omp_|int max_threads = |std::atomic<|inductor_cpu_|std::unique_ptr<|RECORD_|alignas"
    r"|using\b|(?:static )?(?:Welford|CascadeSum)Helper<|__at_align__|.*throw std::runtime_error"
    r"|AOTI_TORCH_CHECK\((?!.*index out)"
)
_KINDS = (
    (re.compile(r"^(argmax|argmin)_combine"), r"\1"),
    (re.compile(r"^(max|min)(?:_propagate_nan|imum|_masked_reduce|)$"), r"\1"),
    (re.compile(r"^(?:add|sum_masked_reduce|cascade_sum_combine)$"), "sum"),
    (re.compile(r"^(?:mul|prod_masked_reduce)$"), "prod"),
    (re.compile(r"^(?:or|bitor|any_masked_reduce)$"), "any"),
    (re.compile(r"^welford_combine"), "welford"),
)
_MEMBERS = {"argmax": {"index": "argmax", "value": "max"}, "argmin": {"index": "argmin", "value": "min"}}
_MEMBERS["welford"] = {"mean": "mean", "m2": "m2"}


def read_cpp_program(kernel: Source) -> Program:
    """Read what a C++ kernel does, in source order."""
    reader = _Reader(kernel)
    root = tree(_MOST_BITS.sub(_most_bits, _REDUCE_ALL.sub(r"\1", kernel.source)))
    try:
        reader.run(root)
    except RecursionError:
        reader.unread.append(root.block.line)
    return reader.program


def _most_bits(limit: re.Match[str]) -> str:
    """The number for `sizeof(T) * CHAR_BIT`, with or without ` - std::is_signed_v<T>` after it."""
    dtype = dtype_of(limit["type"]) or "int64"
    return str(8 * itemsize_of(dtype) - bool(limit["signed"] and dtype != "uint8"))


@dataclass
class _Accumulator:
    """A reduction, declared inside `depth` loops. `fold` is None before its first update."""

    depth: int
    fold: Fold | Unread | None = None


@dataclass
class _Scope:
    """Names that a block declares inside `depth` loops. `ends` narrow these loops in the block."""

    depth: int
    names: dict[str, Term | Node] = field(default_factory=dict)
    accumulators: dict[str, _Accumulator] = field(default_factory=dict)
    ends: dict[tuple[str, str], Term] = field(default_factory=dict)


class _Reader(Reader):
    """Reads one kernel."""

    def __init__(self, kernel: Source) -> None:
        super().__init__(kernel)
        self.parameters = {each.name: dtype_of(each.type) for each in kernel.parameters}
        given: dict[str, Term | Node] = {
            each.name: Size(each.name, type_of(each.type) or ("*float32" if "*" in each.type else "int64"))
            for each in kernel.parameters
        }
        self.lines = kernel.source.split("\n")
        self.scopes = [_Scope(0, given)]
        self.local: dict[str, list[tuple[Term | None, Term]]] = {}  # index (None: all) and value
        self.outer = 0  # number of tests around the lambda being read
        self.returned: list[tuple[Term | None, Term]] = []  # tests and values of the lambda's returns

    # Names

    def named(self, name: str) -> Term:
        base, _, member = name.partition(".")
        if match := _ACCUMULATOR.match(base):
            found = self._accumulator(match["base"])
            return _part(found.fold, member, name) if found is not None else Unread(name)
        value = self._found(name)
        if isinstance(value, Node):
            return Unread(name)
        return value if value is not None else Unread(name)

    def _found(self, name: str) -> Term | Node | None:
        return next((scope.names[name] for scope in reversed(self.scopes) if name in scope.names), None)

    def _accumulator(self, base: str) -> _Accumulator | None:
        return next((s.accumulators[base] for s in reversed(self.scopes) if base in s.accumulators), None)

    @contextmanager
    def _scope(self) -> Iterator[_Scope]:
        self.scopes.append(_Scope(len(self.loops)))
        try:
            yield self.scopes[-1]
        finally:
            self.scopes.pop()

    # Expressions

    def read(self, text: str) -> Term:
        """The value of an expression at this point."""
        try:
            return self.term(read_cpp(text))
        except (NotRead, IndexError):
            return Unread(text[:120])

    def called(self, call: Call) -> Term | None:
        """The result of a function that the kernel defines. None for other functions."""
        if not call.args and call.receiver is None and isinstance(node := self._found(call.name), Node):
            return self._returned(node)
        if call.name == "data" and call.receiver is not None:
            return self.term(call.receiver)
        return None

    def loaded(self, pointer: Term, mask: Term | None = None, other: Term | None = None) -> Term:
        place = place_of(pointer)
        if place.parameter in self.local:
            wanted = say(self._of_current_loops(place.index))
            for index, value in reversed(self.local[place.parameter]):
                if index is None or say(self._of_current_loops(index)) == wanted:
                    return self._of_current_loops(value)
            return Unread(place.parameter)
        with self.where(mask):
            self.accesses.append(self._access(place, masked=mask is not None))
        value = Element(place.parameter, place.index, pointer.dtype.removeprefix("*"), self.line)
        return value if mask is None or other is None else chosen(mask, value, cast(other, value.dtype))

    def _of_current_loops(self, term: Term) -> Term:
        """Rename a term's loops to those around this point. A vector loop and its remainder count as one."""
        names = {each.name.removesuffix("_tail"): each.name for each in self.loops}
        bound = {each.name for fold in parts(term) if isinstance(fold, Fold) for each in fold.ranges}

        def moved(each: Term) -> Term | None:
            if not isinstance(each, Position) or each.name in bound:
                return None
            return replace(each, name=names.get(each.name.removesuffix("_tail"), each.name))

        return rebuilt(term, moved)

    def _access(self, place: Place, *, masked: bool = False) -> Access:
        """Describe the access of the current statement as a load."""
        known = Access(kind="load", place=place, ranges=self.ranges(), test=self.test(), line=self.line)
        return replace(known, masked=masked, code=self.lines[self.line - 1].strip())

    # Blocks

    def run(self, node: Node) -> None:
        """Read the statements and blocks of a block."""
        last: Term | None = None  # the test of the `if` just above
        for number, item in enumerate(node.items):
            if isinstance(item, Statement):
                last = None
                self.statement(item)
                continue
            self.line = item.block.line
            following = node.items[number + 1] if number + 1 < len(node.items) else None
            if item.block.kind == "lambda":
                at_once = isinstance(following, Statement) and following.text.strip() == "()"
                self._lambda(item, at_once)
            elif item.block.kind == "else" and last is not None:
                with self.where(inverted(last)), self._scope():
                    self.run(item)
            elif item.block.kind == "loop":
                self._loop(item)
            elif item.block.kind == "if":
                last = self._if(item)
            else:
                with self._scope():
                    self.run(item)

    def _loop(self, node: Node) -> None:
        match = _LOOP.match(node.block.header)
        with self._scope() as scope:
            if match is None:
                self._not_read(node.block.line, node.block.header)
                with self.where(Unread("loop")):
                    self.run(node)
                return
            name, dtype = match["name"], dtype_of(match["type"]) or "int64"
            if name.endswith("_inner") or name in ("tid", "i", "offset_idx"):
                scope.names[name] = Number(0, "int64")
                self.run(node)
                return
            first = len(self.accesses)
            self.loops.append(Range(name, self.read(match["start"]), self.read(match["stop"])))
            scope.depth += 1
            scope.names[name] = Position(name, dtype)
            self.run(node)
            self.loops.pop()
            self.settle((name,), first)

    def _if(self, node: Node) -> Term | None:
        """Read a branch. Return its test if an `else` may follow, else None."""
        header = node.block.header
        with self._scope() as scope:
            if part := _PART.match(header):
                for comparison in part["test"].split(" && "):
                    if match := _COMPARED.fullmatch(comparison.strip()):
                        scope.ends[match["name"], match["op"]] = self.read(match["end"])
                self.run(node)
                return None
            text = match["test"] if (match := _IF.match(header)) else header
            if text.endswith(".all_zero()"):  # a shortcut: the `else` branch gives the same result
                return Number(False, "bool")
            test = self.read(text)
            with self.where(test):
                self.run(node)
            return test

    def _lambda(self, node: Node, at_once: bool) -> None:
        match = _LAMBDA.match(node.block.header)
        if match is None and at_once and node.block.header.strip() == "[&]":
            self._returned(node)  # the lambda stores the lanes of a vector one by one
        elif match is None:
            self._not_read(node.block.line, node.block.header)
        elif at_once:
            line = node.block.line
            value = self._returned(node)
            self.define(match["name"], value, line)
        else:
            self.scopes[-1].names[match["name"]] = node

    def _returned(self, node: Node) -> Term:
        """The result of a lambda: the values of its `return`s, chosen by the tests around them."""
        before, self.returned, self.outer = (self.returned, self.line, self.outer), [], len(self.tests)
        with self._scope():
            self.run(node)
        found: Term = Unread("lambda")
        for test, value in reversed(self.returned):
            found = value if test is None else chosen(test, value, found)
        self.returned, self.line, self.outer = before
        return found

    def ranges(self, outer: int = 0, *, whole: bool = False) -> tuple[Range, ...]:
        """List the loops around this point, outermost first, without the first `outer` loops.

        A loop has two parts, for vectors and for the remainder. Only the current part counts unless `whole`.
        A scalar remainder (`x0_tail`) is nested in the vector loop, and replaces it.
        """
        found = {each.name: each for each in self.loops[outer:]}
        for name in [name for name in found if name.endswith("_tail")]:
            base = name.removesuffix("_tail")
            if (vectors := found.pop(base, None)) is not None and whole:
                found[name] = replace(found[name], start=vectors.start)
        if whole:
            return tuple(found.values())
        ends = {key: end for scope in self.scopes for key, end in scope.ends.items()}
        parted = []
        for name, each in found.items():
            start, stop = ends.get((name.removesuffix("_tail"), ">=")), ends.get((name, "<"))
            end, last = linear(stop) if stop is not None else None, linear(each.stop)
            if end is not None and last is not None and (end - last).is_positive_or_zero():
                stop = each.stop  # the loop itself ends first
            parted.append(replace(each, start=start or each.start, stop=stop or each.stop))
        return tuple(parted)

    # Statements

    def statement(self, statement: Statement) -> None:
        """Read one statement. If it is not understood, everything that it may write becomes unknown."""
        text, self.line = " ".join(statement.text.split()), statement.line
        if self.line in self.asserts:
            self._check(self.asserts[self.line], text)
        elif text.startswith("return "):
            self._return(text[7:])
        elif (array := _ARRAY.search(text)) and (array["name"] or "std::array<" in text):
            self._declare_array(array["array"] or array["name"], text)
        elif match := _LOCAL.match(text):
            self.scopes[-1].names[match["name"]] = Size(match["name"], f"*{dtype_of(match['type'])}")
            self.local[match["name"]] = []
        elif _NO_VALUE.match(text):
            return
        elif (match := _STORE.match(text)) and closing(text, match["place"].find("[") + 1) == match.end(
            "place"
        ) - 1:
            self._store(match["place"], match["value"], "add" if match["add"] else "plain")
        elif match := _ASSIGN.match(text):
            self._assign(match["name"], match["type"], match["value"])
        elif not self._call_statement(text):
            self._not_read(self.line, text)

    def _return(self, text: str) -> None:
        """Read a `return` of a lambda. It is reached if the tests of earlier `return`s fail."""
        test = all_of(self.tests[self.outer :])
        earlier = (inverted(each) for each, _ in self.returned if each is not None)
        with self.where(all_of(earlier)):
            value = self.read(text)
            value = self.loaded(value) if is_address(value.dtype) else value
        self.returned.append((test, value))

    def _declare_array(self, name: str, text: str) -> None:
        """Declare the kernel's own array over the lanes of a vector, which counts as one element."""
        if not _ACCUMULATOR.match(name):
            dtype = re.findall(r"\b(?:float|double|bool|[\w:]*Half|[\w:]*BFloat16|u?int\d+_t)\b", text)
            self.scopes[-1].names[name] = Size(name, f"*{dtype_of(dtype[-1]) if dtype else 'float32'}")
            self.local[name] = []

    def _call_statement(self, text: str) -> bool:
        """Read a vector store, an atomic addition or a transposed tile; return False for other statements."""
        if match := _TRANSPOSED.match(text):
            places = split_arguments(text, match.end(), closing(text, match.end()))
            given = [text[start:end] for start, end in places]
            pointers = [each for each in given if is_address(self.read(each).dtype)]
            if len(pointers) == 2:
                self._write(self.read(pointers[1]), self.loaded(self.read(pointers[0])), "plain")
                return True
            return False
        try:
            syntax = read_cpp(text)
        except NotRead:
            return False
        match syntax:
            case Call(name="store", receiver=Call() | Name() | Operation() as value, args=(place, *_)):
                self._write(self.term(place), self.term(value), "plain")
            case Call(name="atomic_add", args=(place, value)):
                self._write(self._address(place), self.term(value), "add")
            case Call(name="atomic_add_vec", args=(base, index, value, *_)):
                pointer = operator("add", (self.term(base), self.term(index)))
                self._write(pointer, self.term(value), "add")
            case _:
                return False
        return True

    def _address(self, syntax: Syntax) -> Term:
        match syntax:
            case Operation(op="address", args=(inner,)):
                return self._address(inner)
        if isinstance(syntax, Item):
            return operator("add", (self.term(syntax.base), self.term(syntax.index)))
        return self.term(syntax)

    def _store(self, place: str, value: str, mode: str) -> None:
        if match := _ACCUMULATOR.match(place.partition("[")[0]):
            if not re.fullmatch(r"\d+|[^=]*(?:::from)?\([^a-z]*\)|.*numeric_limits.*|.*\(\)", value):
                self._accumulate(match["base"], None, value)
            return
        try:
            self._write(self._address(read_cpp(place)), self.read(value), mode)
        except NotRead:
            self._not_read(self.line, place)

    def _write(self, pointer: Term, value: Term, mode: str) -> None:
        place = place_of(pointer)
        if place.parameter in self.local:
            kept = self.local[place.parameter]
            declared = any(
                s.names.get(place.parameter) is not None and s.depth == len(self.loops) for s in self.scopes
            )
            kept.append((None if declared and mode == "plain" else place.index, value))
            return
        if not is_address(pointer.dtype):
            self._not_read(self.line, say(pointer))
            return
        value, mode = _added(place.parameter, place.index, value, mode)
        stored = cast(value, pointer.dtype.removeprefix("*"))
        kind: AccessKind = "store" if mode == "plain" else "update"
        self.accesses.append(Store.of(self._access(place), kind, stored, mode))

    def _assign(self, name: str, type_: str | None, value: str) -> None:
        if match := _ACCUMULATOR.match(name):
            self._accumulate(match["base"], type_, value)
            return
        read = self.read(value)
        if type_ and type_.strip() != "auto":
            read = cast(read, type_of(type_))
        holder = self.scopes[-1]
        if not type_:
            holder = next((scope for scope in reversed(self.scopes) if name in scope.names), holder)
            if holder.depth < len(self.loops) or self.tests:
                read = Unread(name, read.dtype)  # the value may come from another iteration, or not exist
        self.define(name, read, self.line, holder)

    def define(self, name: str, value: Term, line: int, scope: _Scope | None = None) -> None:
        """Give a name its value from here on."""
        (scope or self.scopes[-1]).names[name] = value
        self.definitions.append(Definition(name, line, value))

    def _not_read(self, line: int, text: str) -> None:
        self.unread.append(line)
        for name in re.findall(r"[A-Za-z_]\w*", text):
            for scope in self.scopes[1:]:
                if name in scope.names:
                    scope.names[name] = Unread(name)
            if name in self.parameters and is_address(self.look(name).dtype):
                value = Unread(text[:120], self.parameters[name] or "float32")
                access = self._access(Place(name, 1, ((Unread(name, "int64"), 1),)))
                self.accesses.append(Store.of(replace(access, line=line), "store", value))

    def _check(self, found: IndexAssert, text: str) -> None:
        excepted = _EXCEPT.search(text)
        lower, upper = (self.read(end) if end else None for end in (found.lower, found.upper))
        with self.where(self.read(excepted["test"]) if excepted else None):
            test = self.test()
        ranges = self.ranges(whole=True)
        self.checks.append(Check(found.line, self.look(found.variable), lower, upper, ranges, test))

    # Reductions

    def _accumulate(self, base: str, type_: str | None, value: str) -> None:
        """Read a declaration or update of an accumulator or of a part such as `tmp_acc0_vec`."""
        found = self._accumulator(base)
        if type_:
            if found is None or found.fold is not None:
                self.scopes[-1].accumulators[base] = _Accumulator(len(self.loops))
            return
        if found is None:
            return
        try:
            syntax = read_cpp(value)
        except NotRead:
            found.fold = Unread(base)
            return
        if _is_of(syntax, base):
            return  # combines only the parts of the accumulator
        fold = self._update(syntax, base, found.depth)
        before = found.fold
        if isinstance(before, Fold) and not (isinstance(fold, Fold) and _alike(before, fold)):
            fold = Unread(base)
        found.fold = fold if not isinstance(before, Unread) else before

    def _update(self, syntax: Syntax, base: str, depth: int) -> Fold | Unread:
        """The reduction to which an update belongs: its kind, and what each iteration adds."""
        given = syntax.args if isinstance(syntax, Call | Operation) else ()
        mine = [each for each in given if _is_of(each, base)]
        if not isinstance(syntax, Call | Operation) or not mine or self.tests:
            return Unread(base)
        # `tmp_acc0_arr[x0_tail - 0L]` is one accumulator for each lane of an outer loop.
        lanes = {f"{each.name}_tail" for each in self.loops[:depth] if isinstance(mine[0], Item)}
        ranges = tuple(each for each in self.ranges(depth, whole=True) if each.name not in lanes)
        kind = _kind(syntax.op if isinstance(syntax, Operation) else syntax.name)
        operands = [each for each in given if not _is_of(each, base)]
        if not kind or not ranges or not operands or (isinstance(syntax, Operation) and len(operands) > 1):
            return Unread(base)
        body = self.term(operands[0])
        if kind.startswith("arg"):
            index = self.term(operands[1]) if len(operands) > 1 else Unread(base)
            if not isinstance(index, Position) or [index.name] != [each.name for each in ranges]:
                return Unread(base)
        return Fold(kind, ranges, body, promoted(body.dtype))


def _part(fold: Fold | Unread | None, member: str, name: str) -> Term:
    """A member of the result of a reduction."""
    if not isinstance(fold, Fold):
        return Unread(name)
    if fold.kind not in _MEMBERS:
        return fold if not member else Unread(name)
    kind = _MEMBERS[fold.kind].get(member)
    if kind is None:
        return Unread(name)
    return replace(fold, kind=kind, dtype="int64" if kind.startswith("arg") else fold.dtype)


def _alike(one: Fold, other: Fold) -> bool:
    """Whether two updates, for vectors and remainder of a loop, belong to one reduction."""

    def names(fold: Fold) -> list[str]:
        return [each.name.removesuffix("_tail") for each in fold.ranges]

    return one.kind == other.kind and names(one) == names(other) and key(one.body) == key(other.body)


def _kind(name: str) -> str:
    """The kind of a reduction from its operator or function."""
    last = name.rpartition("::")[2]
    return next((m.expand(kind) for pattern, kind in _KINDS if (m := pattern.match(last))), "")


def _is_of(syntax: Syntax, base: str) -> bool:
    """Whether an expression reads only the accumulator `base`, whole or in parts."""
    match syntax:
        case Name(name=name):
            match = _OF_ACCUMULATOR.match(name)
            return match is not None and (base in name or "helper" in name)
        case Call(args=args, receiver=receiver):
            given = [*args, *([receiver] if receiver is not None else [])]
            return bool(given) and all(_is_of(each, base) for each in given)
        case Operation(args=args):
            return all(_is_of(each, base) for each in args)
    return isinstance(syntax, Item) and _is_of(syntax.base, base)


def _added(parameter: str, index: Term, value: Term, mode: str) -> tuple[Term, str]:
    """Value and mode of a store; `add` if it adds to its own element at a loaded index.

    The value is then only the addend, as several iterations may add to one element.
    """
    if mode == "add" or not any(isinstance(each, Element) for each in parts(index)):
        return value, mode
    own = [each for each in parts(value) if isinstance(each, Element) and each.parameter == parameter]
    if not own:
        return value, mode
    plain = uncast(value)
    if isinstance(plain, Apply) and plain.op == "add" and len(own) == 1:
        for element, other in (plain.args, plain.args[::-1]):
            if element is own[0] and say(own[0].index) == say(index):
                return other, "add"
    return Unread(parameter, value.dtype), mode
