"""A package as a Python program that imports only torch: one function or call for each launch.

Where code cannot be written, the program raises an error with the reason; nothing is guessed. All names from
the package become identifiers; its other text appears only in comments and quotes.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby

from mcp_server.package.calls import Body
from mcp_server.package.launches import Launch, Transfer
from mcp_server.package.pytorch.axes import NotRead
from mcp_server.package.pytorch.launch import Launches, Lifetimes, Node, WrittenLaunch, branches, variables
from mcp_server.package.pytorch.tensors import Call, Scope
from mcp_server.package.pytorch.text import DEDENT, assembled, indented, quoted, with_blanks
from mcp_server.package.symbols import Symbol
from mcp_server.package.terms.blocks import Block
from mcp_server.package.terms.whole import TooLarge
from mcp_server.package.view import PackageView
from mcp_server.worker.events import Schema

ASSIGN = "assign"  # the callee of a moved handle


LEAST_USUAL = 3  # launches that must agree before another launch of their kind counts as odd
MOST_ODD_LINES = 2
MOST_SHOWN = 3


@dataclass(frozen=True)
class OddLaunch:
    """A launch that differs from all `others` of its kind, and the lines that differ.

    `text` is the program with the lines of the others in their place.
    """

    launch: int
    kernel: str
    others: tuple[int, ...]
    lines: tuple[str, ...]
    usual: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.others[:MOST_SHOWN])) + (
            ", …" if len(self.others) > MOST_SHOWN else ""
        )
        return (
            f"Launch {self.launch} ({self.kernel}) is unlike the {len(self.others)} others of its kind "
            f"(launches {shown}): it has `{'; '.join(self.lines)}` where they have `{'; '.join(self.usual)}`."
        )


@dataclass(frozen=True)
class PytorchProgram:
    """The text of model.py, and what became of each launch."""

    text: str
    launches: tuple[WrittenLaunch, ...]
    inputs: tuple[str, ...]

    @property
    def not_read(self) -> tuple[WrittenLaunch, ...]:
        return tuple(each for each in self.launches if each.not_read)

    def text_of(self, launches: Sequence[int]) -> str:
        """The functions and calls of these launches."""
        wanted = [each for each in self.launches if each.index in launches]
        known = self._functions()
        functions = [known[each.name] for each in wanted if each.name in known]
        return "\n\n\n".join([*functions, *("\n".join(each.lines) for each in wanted if not each.name)])

    def _functions(self) -> dict[str, str]:
        """The text of each function by its name."""
        blocks = self.text.split("\n\n\n")
        return {block[4 : block.index("(")]: block for block in blocks if block.startswith("def ")}

    @cached_property
    def odd(self) -> list[OddLaunch]:
        """Launches that differ in a line or two from at least three of their kind, which all agree.

        Layers of a model repeat, so such a launch may be a fault. Kernels are of one kind if the same
        operators were fused, on tensors of the same shapes.
        """
        kinds: dict[tuple[str, ...], list[tuple[WrittenLaunch, list[str]]]] = {}
        functions = self._functions()
        for each in self.launches:
            if each.name in functions:
                lines = _common_names(functions[each.name]).splitlines()
                shapes = (line for line in lines if line.lstrip().startswith("#"))
                operators = each.name.removeprefix(f"launch_{each.index}_")
                kinds.setdefault((operators, *shapes), []).append((each, lines))
        return [found for kind in kinds.values() for found in self._odd_of(kind, functions)]

    def _odd_of(
        self, kind: Sequence[tuple[WrittenLaunch, list[str]]], functions: Mapping[str, str]
    ) -> Iterable[OddLaunch]:
        (usual, times), *_ = Counter("\n".join(lines) for _, lines in kind).most_common(1)
        model = next(each for each, lines in kind if "\n".join(lines) == usual)
        if times < max(LEAST_USUAL, len(kind) - times + 1):
            return
        others = tuple(each.index for each, lines in kind if "\n".join(lines) == usual)
        for each, lines in kind:
            own, theirs = (functions[one.name].splitlines() for one in (each, model))
            at = [n for n, (a, b) in enumerate(zip(lines, usual.split("\n"), strict=False)) if a != b]
            if len(lines) != len(theirs) or not 0 < len(at) <= MOST_ODD_LINES:
                continue
            here, there = (tuple(text[n].strip() for n in at) for text in (own, theirs))
            names = dict(zip(*(_names_of("\n".join(lines)) for lines in (theirs, own)), strict=False))
            put = [_renamed(theirs[n], names) if n in at else line for n, line in enumerate(own)]
            text = self.text.replace("\n".join(own), "\n".join(put))
            yield OddLaunch(each.index, each.kernel, others, here, there, text)


def write_program(
    package: PackageView, schemas: Mapping[str, Schema] | None = None, only: Sequence[int] | None = None
) -> PytorchProgram:
    """Write the program of a package. `schemas` has the schemas of its operators by shim.

    With `only`, write the functions of only these launches.
    """
    return _Writer(package, schemas or {}, only).program()


class _Writer(Launches):
    def __init__(
        self, package: PackageView, schemas: Mapping[str, Schema], only: Sequence[int] | None
    ) -> None:
        super().__init__(package, schemas)
        self.only = only

    def program(self) -> PytorchProgram:
        inputs = self.wrapper.inputs()
        labels = {each.name: each.path for each in self.package.package.inputs}
        for name in (buffer.name for _, buffer in sorted(inputs.items())):
            self.identifier(name, labels.get(name) or name)
        parameters = [self.identifier(buffer.name) for _, buffer in sorted(inputs.items())]
        folding = self._body(self.wrapper.folding, folds=True) if self.wrapper.folding else []
        self.launches = [replace(each, alone=None, folds=True) for each in self.launches]
        self.scope = Scope()
        forward = self._body(self.wrapper.run)
        self.functions.reverse()
        text = self._renamed(self._text(parameters, folding, forward))
        launches = (replace(each, lines=tuple(map(self._renamed, each.lines))) for each in self.launches)
        in_order = tuple(sorted(launches, key=lambda each: each.index))
        return PytorchProgram(text, in_order, tuple(parameters))

    def _renamed(self, text: str) -> str:
        """Replace names such as `buf3`, except in the comments that say which launch writes them."""
        return re.sub(r"# launch .*|\bbuf\w+", lambda found: self.names.get(found[0], found[0]), text)

    def _returned(self) -> str:
        names = []
        for _, name in sorted(self.wrapper.run.outputs.items()):
            try:
                names.append(self.variable(name))
            except (NotRead, TooLarge) as error:
                names.append(f"None  # {error}")
        return f"return ({', '.join(names)},)" if names else "return ()"

    def _body(self, body: Body, *, folds: bool = False) -> list[str]:
        """Write the statements of a wrapper function: constant folding or a run."""
        self.body, self.lifetimes = body, Lifetimes(body)
        nodes: list[Node] = [*body.launches, *body.transfers]
        nodes.sort(key=lambda each: each.start)
        left = [n for n in nodes if isinstance(n, Launch) and self.only and n.index not in self.only]
        gone = {node.start for node in left}
        self.read_unseen = set()
        self.not_written(left)
        self._statements([node for node in nodes if node.start not in gone], 0, body)
        self.scope.lines += self._folded() if folds else [self._returned()]
        return self._finished(self.scope.lines)

    def _statements(self, nodes: Iterable[Node], depth: int, body: Body) -> None:
        """Write the statements of a block, indenting nested blocks and merging adjacent assignments."""
        for block, inside in groupby(nodes, key=lambda each: next(iter(branches(each)[depth:]), None)):
            if block is not None:
                self._attempt(list(inside), partial(self._block, block, depth, body))
                continue
            for assigns, group in groupby(inside, key=lambda each: each.callee == ASSIGN):
                for each in [list(group)] if assigns else [[node] for node in group]:
                    self._attempt(each, self._assign if assigns else lambda one: self.node(one[0]))

    def _attempt(self, nodes: list[Node], write: Callable[[list[Node]], None]) -> None:
        """Write statements. For those that cannot be read, write lines that raise an error."""
        scope, start, known = self.scope, len(self.scope.lines), len(self.launches)
        try:
            write(nodes)
        except (NotRead, TooLarge, KeyError, ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, NotRead | TooLarge) else type(error).__name__
            self.scope = scope
            del scope.lines[start:], self.launches[known:]
            for each in nodes:
                self._not_read(each, why)

    def _block(self, block: Block, depth: int, body: Body, nodes: Sequence[Node]) -> None:
        """Write an `if`, `else` or loop. Names created inside are local, unless a handle is moved to them."""
        made_before = [self.body.buffers[name] for node in nodes for name in variables(node)]
        for buffer in made_before:
            while buffer.base is not None and buffer.line > block.line:
                buffer = self.body.buffers[buffer.base]
            if buffer.line < block.line and buffer.kind == "allocated":
                self.variable(buffer.name)
        carried = [variables(each, written=True)[0] for each in nodes if each.callee == ASSIGN]
        scope = self.scope
        self.scope = Scope(scope.lines, dict(scope.names), set(scope.symbols))
        exit_ = body.exits.get(block)
        test = _test(exit_, body) if block.kind == "loop" and exit_ is not None else None
        if test is not None and exit_ is not None:
            before = [each for each in nodes if each.line < test[0].line]
            self.scope.lines.append("while True:")  # a test among the statements breaks out of the loop
            self._statements(before, depth + 1, body)
            self.scope.lines += [f"if {self._condition(exit_, body)}:", "break", DEDENT]
            nodes = nodes[len(before) :]
        elif block.header == "else":
            self.scope.lines.append("else:")
        else:
            condition = self._condition(block.header, body)  # first: it may write lines
            self.scope.lines.append(f"if {condition}:")
        self._statements(nodes, depth + 1, body)
        self.scope.lines.append(DEDENT)
        self.scope = scope
        scope.names.update({name: self.identifier(name) for name in carried})

    def _condition(self, header: str, body: Body) -> str:
        """Write a condition: `if (s77 > 6L)` on sizes, `if (!x)` or `if (x == 0)` on a tensor's element."""
        test = _test(header, body)
        if test is not None:
            return f"{'not ' if test[1] else ''}{self.variable(test[0].tensor or '')}.item()"
        sizes = re.fullmatch(r"if \((?P<left>[\w* +-]+) (?P<op>[<>]=?|[!=]=) (?P<right>\w+)\)", header)
        if sizes is None:
            raise NotRead(f"the block {header}")
        return f"{self.whole(sizes['left'])} {sizes['op']} {self.whole(sizes['right'])}"

    def _assign(self, nodes: Sequence[Node]) -> None:
        """Assign tensors to known names, as the wrapper moves handles."""
        pairs = [(each.writes, each.reads) for each in nodes if isinstance(each, Transfer) and each.reads]
        given = [self.variable(read) for _, read in pairs]
        made = {name: self.identifier(name) for name, _ in pairs}
        self.scope.names.update(made)
        self.scope.lines.append(f"{', '.join(made.values())} = {', '.join(given)}")

    def _not_read(self, node: Node, why: str) -> None:
        label = f"launch {node.index}, {node.kernel}" if isinstance(node, Launch) else node.callee
        self.scope.lines.append(f"raise NotImplementedError({quoted(f'{label} is not read: {why}')})")
        for name in variables(node, written=True):
            self.scope.names.setdefault(name, self.identifier(name))
        self.not_written([node])
        if isinstance(node, Launch):
            self.launches.append(WrittenLaunch(node.index, node.kernel, node.kind, "", (), why))

    def _finished(self, lines: Sequence[str | Call]) -> list[str]:
        """The statements of a method, without those whose results are unused. Works from the end."""
        names = (each.name for each in self.body.buffers.values() if each.storage in self.read_unseen)
        used = {self.identifiers[name] for name in names if name in self.identifiers}
        found: list[str] = []
        for line in reversed(lines):
            text = self.call_text(line, used) if isinstance(line, Call) else with_blanks(line, used)
            made = re.match(r"(\w+) = (empty\()?", text)
            if made and made[1] not in used and (made[2] or made[1] in self.symbols):
                continue
            used |= set(re.findall(r"\b[A-Za-z_]\w*\b", text.partition("#")[0]))
            self.by_memory |= {name for each in _BY_MEMORY for name in re.findall(each, text)}
            if (same := _SAME.fullmatch(text)) and same["name"] in self.by_memory:
                self.by_memory.add(same["of"])
            found.append(text)
        return indented(found[::-1])

    def _text(self, parameters: Sequence[str], folding: Sequence[str], forward: Sequence[str]) -> str:
        loads = []
        for each in self.package.package.constants:
            if each.folded or self.only is not None:
                continue
            name = self.identifier(each.name, each.fqn)
            shape = "".join(f"{size}, " for size in each.shape)
            how = f".as_strided(({shape}), {tuple(each.stride)})" if shape else ".view(())"
            loads.append(f"self.{name} = weights[{quoted(each.fqn)}]{how}.to(device)")
        device = "cuda" if self.package.package.device_type == "cuda" else "cpu"
        dtypes = {each.dtype for each in self.package.package.constants}
        return assembled(self.functions, loads, parameters, folding, forward, device, dtypes)

    def _folded(self) -> list[str]:
        """Write the code that stores the results of constant folding."""
        made = ((name, self.body.outputs.get(index)) for name, index in self.wrapper.folded.items())
        return [
            f"self.{self.identifier(name, self.fqn(name))} = {self.identifier(value)}"
            for name, value in made
            if value is not None
        ]


_BY_MEMORY = (r"\b(?:strided|flat)\((\w+)", r"\bout=(\w+)", r"^(\w+)\S*\.(?:copy|zero)_\(")
"""Variables in a statement whose memory it addresses, whatever their layout."""
_SAME = re.compile(r"(?P<name>\w+) = (?P<of>\w+)  # the same memory")


def _test(header: str, body: Body) -> tuple[Symbol, bool] | None:
    """The `.item()` that `if (!x) break` or `if (x == 0)` tests, and whether it is negated.

    None for a condition on sizes.
    """
    found = re.match(r"if \((?P<not>!?)(?P<name>\w+)(?P<zero> == (?:0|false))?\)", header)
    symbol = body.symbols.get(found["name"]) if found else None
    if found is None or symbol is None or symbol.tensor is None or symbol.kind != "value":
        return None
    return symbol, bool(found["not"]) != bool(found["zero"])


def _names_of(function: str) -> list[str]:
    """The names that a function defines: its own, its parameters, its variables."""
    head, _, body = function.partition(":\n")
    made = (name for targets in re.findall(r"^ +([\w, ]+) = ", body, re.M) for name in targets.split(", "))
    return list(dict.fromkeys([*re.findall(r"\w+", head.removeprefix("def ")), *made]))


def _common_names(function: str) -> str:
    """A function with its names numbered, so that equal functions have equal texts."""
    numbers = {name: f"v{number}" for number, name in enumerate(_names_of(function))}
    # Copies are written where memory is shared, and short weights are numbers in the code: ignore both.
    plain = re.sub(r"\.clone\(\)|(?<=torch\.tensor\()\[[^\]]*\]", "", function)
    return _renamed(plain, numbers)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda found: names.get(found[0], found[0]), text)
