"""A package as a Python program that imports torch and nothing else: one function or call for each launch.

What a launch can't be written as raises an error there, with the reason: nothing is guessed. All names from
the package are made identifiers; its other text is only in comments and quotes.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TypeAlias

from mcp_server.package.calls import Body
from mcp_server.package.launches import Argument, Buffer, Launch, Transfer
from mcp_server.package.pytorch.axes import Axes, NotRead
from mcp_server.package.pytorch.calls import Alone, place_of, proxy_call, shim_call
from mcp_server.package.pytorch.kernel import Passed, write_kernel
from mcp_server.package.pytorch.runtime import HELPERS
from mcp_server.package.pytorch.text import (
    DEDENT,
    assembled,
    function,
    indented,
    printable,
    quoted,
    with_blanks,
    without_unused,
)
from mcp_server.package.pytorch.views import Step, Tensor, contiguous, strided, tupled, view
from mcp_server.package.pytorch.whole import TooLarge, Whole, constant, named
from mcp_server.package.signature import CompiledDim
from mcp_server.package.symbols import Symbol, origins
from mcp_server.package.terms import size_term
from mcp_server.package.terms.blocks import Block
from mcp_server.package.terms.translate import dtype_of
from mcp_server.package.view import PackageView
from mcp_server.package.wrapper import grouped
from mcp_server.worker.events import Schema

Node: TypeAlias = Launch | Transfer
ASSIGN = "assign"  # the callee of a moved handle


@dataclass(frozen=True)
class WrittenLaunch:
    """A launch in the program: the lines of its function, the call of its operator, or why it is not read.

    `alone` is the same over nothing but its arguments.
    """

    index: int
    kernel: str
    kind: str
    name: str
    lines: tuple[str, ...]
    not_read: str = ""
    alone: Alone | None = None


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
        """The functions and calls of some launches."""
        wanted = [each for each in self.launches if each.index in launches]
        names = [each.name for each in wanted if each.name]
        blocks = self.text.split("\n\n\n")
        functions = [block for block in blocks if any(block.startswith(f"def {name}(") for name in names)]
        return "\n\n\n".join([*functions, *("\n".join(each.lines) for each in wanted if not each.name)])


def write_program(
    package: PackageView, schemas: Mapping[str, Schema] | None = None, only: Sequence[int] | None = None
) -> PytorchProgram:
    """The program of a package. `schemas` are those of the operators that it calls, by their shim.

    With `only`, functions of these launches and no others.
    """
    return _Writer(package, schemas or {}, only).program()


@dataclass(frozen=True)
class _Call:
    """A launch as a call of its function: `reads` gives what is passed for each name that it reads.

    `results` are variables of the wrapper by the name in the function, `arguments` those of the launch.
    """

    launch: Launch
    name: str
    lines: tuple[str, ...]
    reads: Mapping[str, str]
    results: Mapping[str, str]
    shapes: Mapping[str, str]
    arguments: Mapping[str, Argument]


@dataclass
class _Scope:
    """The statements of one method, and the names that hold in it."""

    lines: list[str | _Call] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)


class _Writer:
    def __init__(
        self, package: PackageView, schemas: Mapping[str, Schema], only: Sequence[int] | None
    ) -> None:
        self.package, self.wrapper, self.schemas, self.only = package, package.wrapper, schemas, only
        self.scope = _Scope()
        self.functions: list[str] = []
        self.launches: list[WrittenLaunch] = []
        self.taken: set[str] = {"torch", "F", "json", "os", "device", "self", "DTYPES", *HELPERS}
        self.identifiers: dict[str, str] = {}
        self.symbols: set[str] = set()  # of the program
        self.constants = {each.name: each for each in package.package.constants}
        buffers = self.wrapper.buffers
        self.last_use = self._last_uses()
        self.last_write = {
            buffers[name].storage: node.start
            for node in sorted(self._nodes(), key=lambda each: each.start)
            for name in _variables(node, written=True)
            if name in buffers
        }
        self.families = grouped((each.storage, each) for each in buffers.values())

    # Names.

    def identifier(self, name: str, wanted: str = "") -> str:
        """A name of the program for one of the package, the same for the same."""
        if name not in self.identifiers:
            text = re.sub(r"\W+", "_", wanted or name).strip("_") or "value"
            text = f"_{text}" if text[0].isdigit() or keyword.iskeyword(text) else text
            number = 2
            found = text[:60]
            while found in self.taken:
                found = f"{text[:60]}_{number}"
                number += 1
            self.taken.add(found)
            self.identifiers[name] = found
        return self.identifiers[name]

    def whole(self, expression: str) -> Whole:
        """A size of the wrapper; the symbols in it are defined first. Raises `NotRead`."""
        sizes: dict[str, Whole] = {}
        for symbol in reversed(origins(expression, self.wrapper.symbols)):
            sizes[symbol.name] = self._size(symbol, sizes)
        term = size_term(expression.strip())
        for name in re.findall(r"[A-Za-z_]\w*", expression):
            sizes.setdefault(name, named(self.identifier(name)))
        found = Axes(sizes).whole(term, {}) if term is not None else None
        if found is None:
            raise NotRead(f"the size {expression}")
        return found

    def _size(self, symbol: Symbol, known: Mapping[str, Whole]) -> Whole:
        """A symbol of the wrapper: what it is computed from where that is a sum, else a variable."""
        term = size_term(symbol.expression) if symbol.kind == "computed" else None
        found = Axes(known).whole(term, {}) if term is not None else None
        if found is not None:
            return found
        self._define(symbol)
        return named(self.identifier(symbol.name))

    def _define(self, symbol: Symbol) -> None:
        if symbol.name in self.scope.symbols:
            return
        self.scope.symbols.add(symbol.name)
        name = self.identifier(symbol.name)
        self.symbols.add(name)
        if symbol.kind in ("size", "stride") and symbol.tensor:
            what = f"shape[{symbol.dim}]" if symbol.kind == "size" else f"stride({symbol.dim})"
            self.scope.lines.append(f"{name} = {self.variable(symbol.tensor)}.{what}")
        elif symbol.kind == "value" and symbol.tensor:
            self.scope.lines.append(f"{name} = {self.variable(symbol.tensor)}.item()")
        else:
            self.scope.lines.append(f"{name} = {self._computed(symbol.expression)}")

    def _computed(self, expression: str) -> str:
        """`(1.0/2.0)*n` is a whole number: `n // 2`."""
        half = re.fullmatch(r"\(1\.0/(\d+)\.0\)\*(\w+)", expression.replace(" ", ""))
        if half:
            return f"{self.identifier(half[2])} // {half[1]}"
        return str(self.whole(expression))

    def number(self, expression: str) -> str:
        text = expression.strip()
        if re.fullmatch(r"-?\d+L*", text):
            return text.rstrip("L")
        if re.fullmatch(r"-?\d*\.?\d+(e[+-]?\d+)?f?", text):
            return text.rstrip("f")
        if text in ("true", "false"):
            return text.capitalize()
        if "infinity" in text:
            return f'float("{"-" if text.startswith("-") else ""}inf")'
        return str(self.whole(text))

    def array(self, expression: str) -> Sequence[str]:
        inline = re.search(r"\{(.*?)\}", expression)
        text = inline[1] if inline else None
        if text is None:
            name = re.escape(expression.strip())
            found = re.findall(rf"\b{name}(?:\[\d*\])? = \{{(.*?)\}};", self.wrapper.text)
            if not found:
                raise NotRead(f"the array {expression}")
            text = found[-1]
        return [each.strip() for each in text.split(",") if each.strip()]

    def assigned(self, name: str, before: int) -> str | None:
        if not re.fullmatch(r"\w+", name):
            return None
        found = re.findall(rf"\b{name} = (.*?);", self.wrapper.text[:before])
        return str(found[-1]) if found else None

    # Tensors.

    def variable(self, name: str) -> str:
        """The expression of a tensor of the wrapper; an allocation is made at its first use."""
        if name in self.scope.names:
            return self.scope.names[name]
        buffer = self.wrapper.buffers.get(name) or (
            self.wrapper.folding and self.wrapper.folding.buffers.get(name)
        )
        if not buffer:
            raise NotRead(f"the tensor {name}")
        text = self._made(name, buffer)
        self.scope.names[name] = text
        return text

    def _made(self, name: str, buffer: Buffer) -> str:
        if buffer.kind == "constant":
            return f"self.{self.identifier(name, self.fqn(name))}"
        if buffer.kind == "input":
            return self.identifier(name)
        if buffer.kind in ("view", "alias", "moved", "assigned") and buffer.base:
            base = self.variable(buffer.base)
            of = self.wrapper.buffers[buffer.base]
            if buffer.kind != "view" or buffer.sizes is None:
                return base
            return self.viewed(base, of, buffer.sizes, buffer.strides or (), buffer.offset or "0")
        if buffer.kind == "allocated" and buffer.sizes is not None:
            text = self.identifier(name)
            sizes, strides = (
                [self.whole(each) for each in part] for part in (buffer.sizes, buffer.strides or ())
            )
            self.scope.lines.append(
                f"{text} = empty({tupled(sizes)}, {tupled(strides)}, torch.{buffer.dtype})"
            )
            return text
        raise NotRead(f"the tensor {name}, which is {buffer.kind}")

    def fqn(self, name: str) -> str:
        return self.constants[name].fqn if name in self.constants else name

    def layout(self, name: str) -> tuple[tuple[Whole, ...], tuple[Whole, ...], str]:
        """Sizes, strides and type of a tensor of the wrapper, flat memory where only its operator knows them.

        Raises `NotRead`.
        """
        if name in self.constants:
            weight = self.constants[name]
            return tuple(map(constant, weight.shape)), tuple(map(constant, weight.stride)), weight.dtype
        buffer = self.wrapper.buffers[name]
        if buffer.kind == "input" and (buffer.sizes is None or buffer.strides is None):
            return self._input_layout(name)
        if buffer.sizes is None or buffer.strides is None:
            return (named(f"{self.variable(name)}.numel()"),), (constant(1),), buffer.dtype or ""
        sizes_ = tuple(self.whole(each) for each in buffer.sizes)
        return sizes_, tuple(self.whole(each) for each in buffer.strides), buffer.dtype or ""

    def _is_of_operator(self, name: str) -> bool:
        """Whether a tensor has the layout that its operator gave it: the wrapper does not say which."""
        buffer = self.wrapper.buffers[name]
        return name not in self.constants and buffer.kind != "input" and buffer.strides is None

    def _input_layout(self, name: str) -> tuple[tuple[Whole, ...], tuple[Whole, ...], str]:
        """The layout of an input, from the checks that the wrapper makes of it."""
        found = next((each for each in self.package.package.inputs if each.name == name), None)
        if found is None or not found.described:
            raise NotRead(f"the layout of {name}")
        sizes = [self._input_size(name, dim) for dim in found.dims]
        given = [None if each is None else self.whole(str(each)) for each in found.strides]
        dense = contiguous(sizes)
        strides = [dense[n] if each is None else each for n, each in enumerate(given)] or dense
        return tuple(sizes), tuple(strides), found.dtype or ""

    def _input_size(self, name: str, dim: CompiledDim) -> Whole:
        """A size of an input; one without a symbol in the wrapper gets a variable."""
        if dim.size is not None or dim.expression is not None:
            return self.whole(str(dim))
        symbol = Symbol(f"{name}_size_{dim.index}", "size", "", 0, name, dim.index)
        self._define(symbol)
        return named(self.identifier(symbol.name))

    def viewed(self, text: str, of: Buffer, sizes: Sequence[str], strides: Sequence[str], offset: str) -> str:
        """A view of a tensor, as the wrapper describes it by sizes, strides and offset."""
        at = self.whole(offset) - (self.whole(of.offset) if of.offset else Whole())
        return self._view(text, of.name, sizes, strides, at)

    def tensor(self, argument: Argument) -> str:
        if argument.target is None:
            raise NotRead(f"the argument {argument.expression}")
        text, seen = self.variable(argument.target), argument.view
        if seen is None:
            return text
        return self._view(text, argument.target, seen.sizes, seen.strides, self.whole(seen.offset))

    def _view(self, text: str, of: str, sizes: Sequence[str], strides: Sequence[str], at: Whole) -> str:
        steps = [Step(self.whole(a), self.whole(b)) for a, b in zip(sizes, strides, strict=True)]
        tensor = Tensor(text, *self.layout(of))
        return strided(tensor, steps, at) if self._is_of_operator(of) else view(tensor, steps, at)

    # Which tensors may be new ones.

    def _nodes(self) -> list[Node]:
        return [*self.wrapper.run.launches, *self.wrapper.run.transfers]

    def _last_uses(self) -> dict[str, int]:
        """The offset of the last statement that uses each variable; outputs are used at the end."""
        found: dict[str, int] = {}
        for node in self._nodes():
            for name in _variables(node):
                found[name] = max(found.get(name, 0), node.start)
        for name in self.wrapper.run.outputs.values():
            found[name] = len(self.wrapper.text)
        return found

    def _may_be_new(self, argument: Argument, launch: Launch) -> bool:
        """Whether nobody reads the memory behind an argument under another name after this launch."""
        buffer = self.wrapper.buffers.get(argument.target or "")
        if buffer is None or argument.view is not None or buffer.sizes is None:
            return False
        if buffer.kind not in ("allocated", "moved", "view", "alias", "assigned"):
            return False
        if any(buffer.line < block.line for block in _branches(launch)):
            return False  # the other branch and what follows know it by its name
        family = self.families[buffer.storage]
        if any(each.kind in ("input", "constant", "pool") for each in family):
            return False
        for other in family:
            if (
                other.name != buffer.name
                and not self._comes_from(other, buffer.name)
                and self.last_use.get(other.name, 0) > launch.start
            ):
                return False
        same = [each for each in launch.arguments if each.target and each.target != argument.target]
        return not any(
            self.wrapper.buffers[each.target].storage == buffer.storage
            for each in same
            if each.target in self.wrapper.buffers and each.target
        )

    def _is_read_after(self, name: str, launch: Launch) -> bool:
        """Whether anything uses a tensor after the launch that makes it, under any name."""
        buffer = self.wrapper.buffers.get(name)
        family = self.families[buffer.storage] if buffer is not None else ()
        return any(
            self.last_use.get(each, 0) > launch.start for each in (name, *(one.name for one in family))
        )

    def _is_written_after(self, name: str, launch: Launch) -> bool:
        """Whether a later statement writes to the memory of a tensor."""
        return self.last_write.get(self.wrapper.buffers[name].storage, -1) > launch.start

    def _comes_from(self, buffer: Buffer, name: str) -> bool:
        """Whether a variable is another name, or a view, of that one."""
        seen: set[str] = set()
        while buffer.base is not None and buffer.base not in seen:
            if buffer.base == name:
                return True
            seen.add(buffer.base)
            buffer = self.wrapper.buffers[buffer.base]
        return False

    # The program.

    def program(self) -> PytorchProgram:
        inputs = self.wrapper.inputs()
        labels = {each.name: each.path for each in self.package.package.inputs}
        for name in (buffer.name for _, buffer in sorted(inputs.items())):
            self.identifier(name, _plain(labels.get(name)) or name)
        parameters = [self.identifier(buffer.name) for _, buffer in sorted(inputs.items())]
        folding = self._body(self.wrapper.folding, folds=True) if self.wrapper.folding else []
        self.scope = _Scope()
        forward = self._body(self.wrapper.run)
        self.functions.reverse()
        text = self._text(parameters, folding, forward)
        launches = tuple(sorted(self.launches, key=lambda each: each.index))
        return PytorchProgram(text, launches, tuple(parameters))

    def _returned(self) -> str:
        names = []
        for _, name in sorted(self.wrapper.run.outputs.items()):
            try:
                names.append(self.variable(name))
            except (NotRead, TooLarge) as error:
                names.append(f"None  # {error}")
        return f"return ({', '.join(names)},)" if names else "return ()"

    def _body(self, body: Body, *, folds: bool = False) -> list[str]:
        """The statements of a function of the wrapper, constant folding or a run."""
        nodes: list[Node] = [*body.launches, *body.transfers]
        nodes.sort(key=lambda each: each.start)
        self._statements([n for n in nodes if isinstance(n, Transfer) or self._is_wanted(n)], 0, body)
        self.scope.lines += self._folded() if folds else [self._returned()]
        return self._finished(self.scope.lines)

    def _is_wanted(self, launch: Launch) -> bool:
        return self.only is None or launch.index in self.only

    def _statements(self, nodes: Iterable[Node], depth: int, body: Body) -> None:
        """Statements of a block, those of blocks in it indented; assignments side by side are one."""
        for block, inside in groupby(nodes, key=lambda each: next(iter(_branches(each)[depth:]), None)):
            if block is not None:
                self._attempt(list(inside), partial(self._block, block, depth, body))
                continue
            for assigns, group in groupby(inside, key=lambda each: each.callee == ASSIGN):
                for each in [list(group)] if assigns else [[node] for node in group]:
                    self._attempt(each, self._assign if assigns else lambda one: self._node(one[0]))

    def _attempt(self, nodes: list[Node], write: Callable[[list[Node]], None]) -> None:
        """Statements, or lines that raise an error with what is not read of them."""
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
        """An `if`, `else` or loop. Names that are made in it end with it, except those that it assigns."""
        made_before = [self.wrapper.buffers[name] for node in nodes for name in _variables(node)]
        for buffer in made_before:
            while buffer.base is not None and buffer.line > block.line:
                buffer = self.wrapper.buffers[buffer.base]
            if buffer.line < block.line and buffer.kind == "allocated":
                self.variable(buffer.name)
        carried = [_variables(each, written=True)[0] for each in nodes if each.callee == ASSIGN]
        scope = self.scope
        self.scope = _Scope(scope.lines, dict(scope.names), set(scope.symbols))
        exit_ = body.exits.get(block)
        test = _test(exit_, body) if block.kind == "loop" and exit_ is not None else None
        if test is not None and exit_ is not None:
            before = [each for each in nodes if each.line < test.symbol.line]
            self.scope.lines.append("while True:")  # the test between its statements breaks out of it
            self._statements(before, depth + 1, body)
            self.scope.lines += [f"if {self._condition(exit_, body)}:", "break", DEDENT]
            nodes = nodes[len(before) :]
        elif block.header == "else":
            self.scope.lines.append("else:")
        else:
            condition = self._condition(block.header, body)  # it may define sizes before
            self.scope.lines.append(f"if {condition}:")
        self._statements(nodes, depth + 1, body)
        self.scope.lines.append(DEDENT)
        self.scope = scope
        scope.names.update({name: self.identifier(name) for name in carried})

    def _condition(self, header: str, body: Body) -> str:
        """What `if (s77 > 6L)` asks of sizes, `if (!x)` or `if (x == 0)` of the element of a tensor."""
        test = _test(header, body)
        if test is not None:
            return f"{'not ' if test.negated else ''}{self.variable(test.symbol.tensor or '')}.item()"
        sizes = re.fullmatch(r"if \((?P<left>[\w* +-]+) (?P<op>[<>]=?|[!=]=) (?P<right>\w+)\)", header)
        if sizes is None:
            raise NotRead(f"the block {header}")
        return f"{self.whole(sizes['left'])} {sizes['op']} {self.whole(sizes['right'])}"

    def _assign(self, nodes: Sequence[Node]) -> None:
        """Other tensors under known names, as handles of the wrapper are moved."""
        pairs = [(each.writes, each.reads) for each in nodes if isinstance(each, Transfer) and each.reads]
        given = [self.variable(read) for _, read in pairs]
        made = {name: self.identifier(name) for name, _ in pairs}
        self.scope.names.update(made)
        self.scope.lines.append(f"{', '.join(made.values())} = {', '.join(given)}")

    def _not_read(self, node: Node, why: str) -> None:
        label = f"launch {node.index}, {node.kernel}" if isinstance(node, Launch) else node.callee
        self.scope.lines.append(f"raise NotImplementedError({quoted(f'{label} is not read: {why}')})")
        for name in _variables(node, written=True):
            self.scope.names.setdefault(name, self.identifier(name))
        if isinstance(node, Launch):
            self.launches.append(WrittenLaunch(node.index, node.kernel, node.kind, "", (), why))

    def _node(self, node: Node) -> None:
        if isinstance(node, Transfer):
            self._transfer(node)
            return
        self._comment(node)
        if node.kernel in self.wrapper.kernels:
            self._kernel(node)
        else:
            self._operator(node)

    def _comment(self, launch: Launch) -> None:
        places = self.package.locations(launch.index) if launch.function == self.wrapper.run.name else []
        where = (
            f"{_short(places[0].file)}:{places[0].line}  {places[0].code}"
            if places
            else ", ".join(launch.sources)
        )
        line = f"# launch {launch.index}" + (f": {where}" if where else "")
        self.scope.lines.append(printable(line)[:110].rstrip())

    def _transfer(self, node: Transfer) -> None:
        target = node.writes
        if node.reads is None:
            self.scope.lines.append(f"{self.variable(target)}.zero_()")
        elif target not in self.scope.names and self.wrapper.buffers[target].kind == "returned":
            name = self.identifier(target)
            self.scope.lines.append(f"{name} = {self.variable(node.reads)}.clone()")
            self.scope.names[target] = name
        else:
            self.scope.lines.append(f"{self.variable(target)}.copy_({self.variable(node.reads)})")

    def _operator(self, launch: Launch) -> None:
        """The call, and the same over its arguments: `torch.mm(t0, t1)`, with `out=` where it needs that."""
        if launch.kind == "proxy_executor":
            written = proxy_call(launch, self._proxy_node(launch), self)
        else:
            written = shim_call(launch, self.schemas, self)
        line = written.filled([self._operand(each, written.results) for each in written.tensors])
        own = written.filled([f"t{number}" for number in range(len(written.tensors))])
        takes, gives = list(written.tensors), list(written.out)
        if written.results:
            self.scope.names.update({each: self.identifier(each) for each in written.results if each})
            line = f"{', '.join(self.scope.names.get(each, '_') for each in written.results)} = {line}"
            # Seeds and the like, which nobody reads, are the operator's own.
            gives = [each if self._is_read_after(each, launch) else "" for each in written.results]
        elif written.out:
            line = self._written_out(launch, written.out, line)
            if "torch.ops." in own:
                gives = []
                for each in _outs(launch, written.out):
                    own = f"{own[:-1]}, out=t{len(takes)})"
                    takes.append(each)
        self.scope.lines.append(line)
        places = {f"t{number}": place_of(launch, each) for number, each in enumerate(takes)}
        alone = Alone(own, places, tuple(gives))
        self.launches.append(
            WrittenLaunch(launch.index, launch.kernel, launch.kind, "", (line,), alone=alone)
        )

    def _operand(self, argument: Argument, results: Sequence[str]) -> str:
        """A tensor for an operator; in the wrapper's layout where that decides the layout of the results."""
        given = self.tensor(argument)
        return self._with_strides(given, argument.target or "") if any(results) else given

    def _written_out(self, launch: Launch, targets: Sequence[str], line: str) -> str:
        """`x = torch.mm(a, b)` where nobody holds the memory, else with `out=`."""
        outs = _outs(launch, targets)
        first, operands = outs[0], {each.target for each in launch.arguments if each not in outs}
        new = len(outs) == 1 and first.target not in operands and self._may_be_new(first, launch)
        if new and first.target and "torch.ops." not in line and self._is_dense(first.target):
            name = self.scope.names[first.target] = self.identifier(first.target)
            return f"{name} = {line}"
        given = ", ".join(f"out={self.tensor(each)}" for each in outs)
        return f"{line[:-1]}, {given})"

    def _is_dense(self, name: str) -> bool:
        return Tensor(name, *self.layout(name)).is_contiguous

    def _proxy_node(self, launch: Launch) -> dict[str, object]:
        """The call in the package's JSON. Raises `NotRead`."""
        member, index = self.package.package.files.proxy_nodes, launch.proxy_index
        nodes = json.loads(self.package.package.text(member.name))["nodes"] if member is not None else []
        node = nodes[index].get("node") if index is not None and 0 <= index < len(nodes) else None
        if not isinstance(node, dict):
            raise NotRead("the package's list of operator calls")
        return node

    def _kernel(self, launch: Launch) -> None:
        kernel = self.wrapper.kernels[launch.kernel]
        if not kernel.source:
            raise NotRead("the package does not hold its source")
        passed: dict[str, Passed] = {}
        sizes: dict[str, Whole] = {}
        by_name: dict[str, Argument] = {}
        for argument in launch.arguments:
            if argument.is_tensor and argument.target:
                passed[argument.name] = self._passed(argument.target, argument, launch)
                by_name[passed[argument.name].tensor.text] = argument
            elif argument.name and argument.kind in ("symbol", "scalar"):
                sizes[argument.name] = self.whole(argument.expression)
        made = write_kernel(kernel, passed, sizes, f"launch {launch.index}")
        reads = {name: self.tensor(by_name[name]) for name in made.reads}
        results = {
            name: by_name[passed[parameter].tensor.text].target or ""
            for parameter, name in made.results.items()
        }
        self.scope.names.update({each: self._result_identifier(each, launch) for each in results.values()})
        shapes = {
            each.text: f"{each.dtype or 'flat '}[{', '.join(map(str, each.sizes))}]"
            for each in (one.tensor for one in passed.values())
        }
        name = self._function_name(launch)
        self.scope.lines.append(_Call(launch, name, made.lines, reads, results, shapes, by_name))

    def _passed(self, target: str, argument: Argument, launch: Launch) -> Passed:
        """The tensor of one parameter, under the name that it has in the function."""
        sizes, strides, dtype = self.layout(target)
        name = self.identifier(target, self.fqn(target))
        if argument.view is not None:
            seen = argument.view
            sizes, strides = (tuple(self.whole(each) for each in part) for part in (seen.sizes, seen.strides))
            name = f"{name}_{argument.name}"
        tensor = Tensor(name, sizes, strides, dtype or dtype_of(argument.type) or "")
        new = argument.role != "read" and self._may_be_new(argument, launch)
        return Passed(tensor, new, self._is_written_after(target, launch))

    def _result_identifier(self, target: str, launch: Launch) -> str:
        """The name of a tensor that a launch makes: that of the model's value where there is one."""
        source = launch.sources[-1] if launch.sources and len(launch.writes) == 1 else ""
        return self.identifier(target, source if source.isidentifier() else "")

    def _function_name(self, launch: Launch) -> str:
        short = re.sub(r"^(?:cpp|triton)(?:_(?:poi|per|red|tem|mm))?_(?:fused_)?|_\d+$", "", launch.kernel)
        words = re.sub(r"\W+", "_", short).strip("_").replace("native_", "")[:40].strip("_")
        return self.identifier(
            f"function {launch.function} {launch.index}", f"launch_{launch.index}_{words}".rstrip("_")
        )

    def _finished(self, lines: Sequence[str | _Call]) -> list[str]:
        """The statements of a method, from its end: without what nobody uses."""
        used: set[str] = set()
        found: list[str] = []
        for line in reversed(lines):
            text = self._call_text(line, used) if isinstance(line, _Call) else with_blanks(line, used)
            made = re.match(r"(\w+) = (empty\()?", text)
            if made and made[1] not in used and (made[2] or made[1] in self.symbols):
                continue
            used |= set(re.findall(r"\b[A-Za-z_]\w*\b", text.partition("#")[0]))
            found.append(text)
        return indented(found[::-1])

    def _laid_out(self, name: str, text: str, call: _Call) -> str:
        """What is passed; in the layout of the wrapper where the function looks at the memory itself."""
        given, target = call.reads[name], call.arguments[name].target or ""
        if self._is_flat(call.arguments[name]):
            return f"flat({given})"
        if not re.search(rf"\b(?:strided|take|put)\({name}\b", text):
            return given
        return self._with_strides(given, target)

    def _with_strides(self, given: str, target: str) -> str:
        """A tensor that the program computed, with the strides that it has in the wrapper."""
        buffer = self.wrapper.buffers.get(target)
        if buffer is None or buffer.kind in ("input", "constant") or given != self.identifiers.get(target):
            return given
        if self._is_of_operator(target):
            return given
        return f"laid_out({given}, {tupled(self.layout(target)[1])})"

    def _is_flat(self, argument: Argument) -> bool:
        """Whether a function takes a tensor as flat memory."""
        return argument.view is None and self._is_of_operator(argument.target or "")

    def _call_text(self, call: _Call, used: Collection[str]) -> str:
        """The line that calls, and the function with the results that are used."""
        launch = call.launch
        wanted = {name: each for name, each in call.results.items() if self.identifiers[each] in used}
        lines = without_unused(call.lines, wanted)
        text = "\n".join(lines)
        inside = set(re.findall(r"\b[A-Za-z_]\w*\b", text))
        reads = [name for name in call.reads if name in inside]
        symbols = sorted(self.symbols & inside)
        shapes = [f"{name}: {call.shapes[name]}" for name in reads]
        self.functions.append(function(call.name, [*reads, *symbols], lines, list(wanted), shapes))
        own = [f"flat(t_{name})" if self._is_flat(call.arguments[name]) else f"t_{name}" for name in reads]
        takes = {f"t_{name}": place_of(launch, call.arguments[name]) for name in reads}
        alone = Alone(f"{call.name}({', '.join([*own, *symbols])})", takes, list(wanted.values()))
        self.launches.append(
            WrittenLaunch(launch.index, launch.kernel, launch.kind, call.name, tuple(lines), alone=alone)
        )
        given = [self._laid_out(name, text, call) for name in reads]
        made = f"{', '.join(self.identifiers[each] for each in wanted.values())} = " if wanted else ""
        return f"{made}{call.name}({', '.join([*given, *symbols])})"

    def _text(self, parameters: Sequence[str], folding: Sequence[str], forward: Sequence[str]) -> str:
        loads = []
        for each in self.package.package.constants:
            if each.folded or self.only is not None:
                continue
            name = self.identifier(each.name, each.fqn)
            shape = "".join(f"{size}, " for size in each.shape)
            how = f".as_strided(({shape}), {tuple(each.stride)})" if shape else ".view(())"
            loads.append(f"self.{name} = weights[{quoted(each.fqn)}]{how}.to(device)")
        return assembled(self.functions, loads, parameters, folding, forward, self._device())

    def _device(self) -> str:
        return "cuda" if self.package.package.device_type == "cuda" else "cpu"

    def _folded(self) -> list[str]:
        """Where the results of constant folding are kept."""
        body = self.wrapper.folding
        if body is None:
            return []
        found = []
        for name, index in self.wrapper.folded.items():
            value = body.outputs.get(index)
            if value is not None:
                found.append(f"self.{self.identifier(name, self.fqn(name))} = {self.identifier(value)}")
        return found


def _outs(launch: Launch, targets: Sequence[str]) -> list[Argument]:
    """The arguments for the tensors of `out=`."""
    return [each for each in launch.arguments if each.target in targets and each.role != "read"][
        : len(targets)
    ]


@dataclass(frozen=True)
class _Test:
    """A test of the one element of a tensor."""

    symbol: Symbol
    negated: bool


def _test(header: str, body: Body) -> _Test | None:
    """That of `if (!x) break`, `if (x == 0)`; None for a test of sizes."""
    found = re.match(r"if \((?P<not>!?)(?P<name>\w+)(?P<zero> == (?:0|false))?\)", header)
    symbol = body.symbols.get(found["name"]) if found else None
    if found is None or symbol is None or symbol.tensor is None or symbol.kind != "value":
        return None
    return _Test(symbol, bool(found["not"]) != bool(found["zero"]))


def _branches(node: Node) -> list[Block]:
    """The blocks around a statement in which it need not run once."""
    return [each for each in node.context if each.kind in ("if", "else", "loop")]


def _variables(node: Node, *, written: bool = False) -> tuple[str, ...]:
    if isinstance(node, Launch):
        return node.writes if written else (*node.reads, *node.writes)
    return (node.writes,) if written or node.reads is None else (node.reads, node.writes)


def _plain(path: str | None) -> str:
    """`args[0]` is no name to read; a keyword is."""
    return path if path is not None and path.isidentifier() else ""


def _short(file: str) -> str:
    return file.rpartition("/")[2]
