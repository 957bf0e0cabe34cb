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
from mcp_server.package.pytorch.alone import Alone, Bare, place_of
from mcp_server.package.pytorch.axes import Axes, NotRead
from mcp_server.package.pytorch.calls import Names, Written, proxy_call, shim_call
from mcp_server.package.pytorch.idioms import put_together
from mcp_server.package.pytorch.kernel import Function, Passed, write_kernel
from mcp_server.package.pytorch.runtime import HELPERS, helpers_for
from mcp_server.package.pytorch.views import Step, Tensor, contiguous, strided, tupled, view
from mcp_server.package.pytorch.whole import TooLarge, Whole, constant, named
from mcp_server.package.signature import CompiledDim
from mcp_server.package.symbols import Symbol, origins
from mcp_server.package.terms import size_term
from mcp_server.package.terms.blocks import Block
from mcp_server.package.view import PackageView
from mcp_server.package.wrapper import grouped
from mcp_server.worker.events import Schema

INDENT = "    "
DEDENT = "# end"
Node: TypeAlias = Launch | Transfer
ASSIGN = "assign"  # the callee of a moved handle
_TYPES = {
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "int": "int32",
    "half": "float16",
    "at::Half": "float16",
    "at::BFloat16": "bfloat16",
    "bfloat16": "bfloat16",
    "int64_t": "int64",
    "int32_t": "int32",
    "int16_t": "int16",
    "int8_t": "int8",
    "uint8_t": "uint8",
}
_POINTERS = {
    "fp32": "float32",
    "fp64": "float64",
    "fp16": "float16",
    "bf16": "bfloat16",
    "i1": "bool",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
}


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

    `results` are the variables of the caller by the name in the function, `arguments` those of the launch.
    """

    name: str
    lines: tuple[str, ...]
    reads: Mapping[str, str]
    results: Mapping[str, str]
    symbols: tuple[str, ...]
    shapes: Mapping[str, str]
    targets: Mapping[str, str]
    arguments: Mapping[str, Argument]
    gives: Mapping[str, str]
    launch: Launch


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

    def result(self, name: str) -> str:
        return self.identifier(name)

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
        """An `if`, `else` or loop. Names that are made in it hold in it, but for what it assigns."""
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
        if block.kind == "loop" and exit_ is not None:
            tested = _test(exit_, body).symbol.line
            before = [each for each in nodes if each.line < tested]
            self.scope.lines.append("while True:")
            self._statements(before, depth + 1, body)
            self.scope.lines += [f"if {self._condition(exit_, body)}:", "break", DEDENT]
            nodes = nodes[len(before) :]
        elif block.kind == "else":
            self.scope.lines.append("else:")
        else:
            self.scope.lines.append(f"if {self._condition(block.header, body)}:")
        self._statements(nodes, depth + 1, body)
        self.scope.lines.append(DEDENT)
        self.scope = scope
        scope.names.update({name: self.identifier(name) for name in carried})

    def _condition(self, header: str, body: Body) -> str:
        test = _test(header, body)
        return f"{'not ' if test.negated else ''}{self.variable(test.symbol.tensor or '')}.item()"

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
        written = self._operator_call(launch, self)
        line = written.text
        if written.results:
            line = f"{', '.join(written.results)} = {line}"
            for argument in launch.arguments:
                if argument.fresh and argument.target:
                    self.scope.names[argument.target] = self.identifier(argument.target)
        elif written.out:
            line = self._written_out(launch, written.out, line)
        self.scope.lines.append(line)
        alone = self._operator_alone(launch)
        self.launches.append(
            WrittenLaunch(launch.index, launch.kernel, launch.kind, "", (line,), alone=alone)
        )

    def _operator_call(self, launch: Launch, names: Names) -> Written:
        if launch.kind == "proxy_executor":
            return proxy_call(launch, self._proxy_node(launch), names)
        return shim_call(launch, self.schemas, names)

    def _operator_alone(self, launch: Launch) -> Alone:
        """The call over its arguments: `torch.mm(t0, t1)`, or with `out=` where the operator needs it."""
        names = Bare(self, launch)
        written = self._operator_call(launch, names)
        if written.out and "torch.ops." not in written.text:
            return Alone(written.text, names.takes, written.out)
        written_to = [each for each in launch.tensors if each.target in written.out and each.role != "read"]
        out = "".join(f", out={names.tensor(each)}" for each in written_to)
        return Alone(f"{written.text[:-1]}{out})", names.takes, names.gives)

    def _written_out(self, launch: Launch, targets: Sequence[str], line: str) -> str:
        """`x = torch.mm(a, b)` where nobody holds the memory, else with `out=`."""
        outs = [each for each in launch.arguments if each.target in targets and each.role != "read"][
            : len(targets)
        ]
        operands = {each.target for each in launch.arguments if each not in outs}
        fresh = [
            self._may_be_new(each, launch) and each.target not in operands and self._is_dense(each.target)
            for each in outs
        ]
        if len(outs) == 1 and fresh[0] and outs[0].target and "torch.ops." not in line:
            name = self.identifier(outs[0].target)
            self.scope.names[outs[0].target] = name
            return f"{name} = {line}"
        given = ", ".join(f"out={self.tensor(each)}" for each in outs)
        return f"{line[:-1]}, {given})"

    def _is_dense(self, name: str | None) -> bool:
        if name is None:
            return False
        sizes, strides, dtype = self.layout(name)
        return Tensor(name, sizes, strides, dtype).is_contiguous

    def _proxy_node(self, launch: Launch) -> dict[str, object]:
        nodes = json.loads(self._proxy_text())["nodes"]
        index = launch.proxy_index
        if index is None or not 0 <= index < len(nodes):
            raise NotRead("the package's list of operator calls")
        node = nodes[index].get("node", {})
        if not isinstance(node, dict):
            raise NotRead("the package's list of operator calls")
        return node

    def _proxy_text(self) -> str:
        member = self.package.package.files.proxy_nodes
        return self.package.package.text(member.name) if member is not None else '{"nodes": []}'

    def _kernel(self, launch: Launch) -> None:
        kernel = self.wrapper.kernels[launch.kernel]
        if not kernel.source:
            raise NotRead("the package does not hold its source")
        passed: dict[str, Passed] = {}
        sizes: dict[str, Whole] = {}
        local: dict[str, str] = {}
        for argument in launch.arguments:
            if argument.is_tensor and argument.target:
                passed[argument.name] = self._passed(argument, launch, local)
            elif argument.name and argument.kind in ("symbol", "scalar"):
                sizes[argument.name] = self.whole(argument.expression)
        label = f"launch {launch.index}"
        function = write_kernel(kernel, passed, sizes, label)
        self._called(launch, function, passed, local)

    def _passed(self, argument: Argument, launch: Launch, local: dict[str, str]) -> Passed:
        """The tensor of one parameter, under the name that it has in the function."""
        target = argument.target or ""
        sizes, strides, dtype = self.layout(target)
        name = self.identifier(target, self.fqn(target))
        if argument.view is not None:
            seen = argument.view
            sizes, strides = (tuple(self.whole(each) for each in part) for part in (seen.sizes, seen.strides))
            name = f"{name}_{argument.name}"
        dtype = dtype or _dtype(argument.type)
        new = argument.role != "read" and self._may_be_new(argument, launch)
        local[name] = target
        return Passed(Tensor(name, sizes, strides, dtype), new, self._is_written_after(target, launch))

    def _called(
        self,
        launch: Launch,
        function: Function,
        passed: Mapping[str, Passed],
        local: Mapping[str, str],
    ) -> None:
        """The function, and the line that calls it."""
        by_name = {
            passed[each.name].tensor.text: each
            for each in launch.arguments
            if each.is_tensor and each.name in passed
        }
        reads = {name: self.tensor(by_name[name]) for name in function.reads}
        results, gives = {}, {}
        for parameter, name in function.results.items():
            target = gives[name] = local[passed[parameter].tensor.text]
            results[name] = self.scope.names[target] = self._result_identifier(target, launch)
        text = "\n".join(function.lines)
        names = self._symbol_names()
        symbols = tuple(sorted({name for name in re.findall(r"\b[A-Za-z_]\w*\b", text) if name in names}))
        call = _Call(
            self._function_name(launch),
            function.lines,
            reads,
            results,
            symbols,
            self._shapes(passed),
            local,
            by_name,
            gives,
            launch,
        )
        self.scope.lines.append(call)

    def _result_identifier(self, target: str, launch: Launch) -> str:
        """The name of a tensor that a launch makes: that of the model's value where there is one."""
        source = launch.sources[-1] if launch.sources and len(launch.writes) == 1 else ""
        return self.identifier(target, source if source.isidentifier() else "")

    def _symbol_names(self) -> set[str]:
        return {self.identifiers[name] for name in self.scope.symbols if name in self.identifiers}

    def _function_name(self, launch: Launch) -> str:
        short = re.sub(r"^(?:cpp|triton)(?:_(?:poi|per|red|tem|mm))?_(?:fused_)?|_\d+$", "", launch.kernel)
        words = re.sub(r"\W+", "_", short).strip("_").replace("native_", "")[:40].strip("_")
        return self.identifier(
            f"function {launch.function} {launch.index}", f"launch_{launch.index}_{words}".rstrip("_")
        )

    def _shapes(self, passed: Mapping[str, Passed]) -> dict[str, str]:
        tensors = (each.tensor for each in passed.values())
        return {each.text: f"{each.dtype or 'flat '}[{', '.join(map(str, each.sizes))}]" for each in tensors}

    def _finished(self, lines: Sequence[str | _Call]) -> list[str]:
        """The statements of a method, from its end: without what nobody uses."""
        used: set[str] = set()
        found: list[str] = []
        for line in reversed(lines):
            text = self._call_text(line, used) if isinstance(line, _Call) else _with_blanks(line, used)
            made = re.match(r"(\w+) = (empty\()?", text)
            if made and made[1] not in used and (made[2] or made[1] in self._symbol_names()):
                continue
            used |= set(re.findall(r"\b[A-Za-z_]\w*\b", text.partition("#")[0]))
            found.append(text)
        return _indented(found[::-1])

    def _laid_out(self, name: str, given: str, text: str, call: _Call) -> str:
        """What is passed; in the layout of the wrapper where the function looks at the memory itself."""
        target = call.targets.get(name, "")
        buffer = self.wrapper.buffers.get(target)
        if self._is_flat(call, name):
            return f"flat({given})"
        if buffer is None or buffer.kind in ("input", "constant") or given != self.identifiers.get(target):
            return given
        if not re.search(rf"\b(?:strided|take|put)\({name}\b", text):
            return given
        _, strides, _ = self.layout(target)
        return f"laid_out({given}, {tupled(strides)})"

    def _is_flat(self, call: _Call, name: str) -> bool:
        """Whether the function takes a tensor as flat memory."""
        return call.arguments[name].view is None and self._is_of_operator(call.targets[name])

    def _call_text(self, call: _Call, used: Collection[str]) -> str:
        """The line that calls, and the function with the results that are used."""
        wanted = {name: variable for name, variable in call.results.items() if variable in used}
        lines = _without_unused(call.lines, wanted)
        text = "\n".join(lines)
        reads = {name: self._laid_out(name, given, text, call) for name, given in call.reads.items()}
        needs = [name for name in (*call.reads, *call.symbols) if re.search(rf"\b{name}\b", text)]
        shapes = [f"{name}: {call.shapes[name]}" for name in needs if name in call.shapes]
        self.functions.append(_function(call.name, needs, lines, list(wanted), shapes))
        launch = call.launch
        takes = {f"t_{name}": place_of(launch, call.arguments[name]) for name in needs if name in reads}
        own = {name: f"flat(t_{name})" if self._is_flat(call, name) else f"t_{name}" for name in reads}
        alone = Alone(
            f"{call.name}({', '.join(own.get(name, name) for name in needs)})",
            takes,
            [call.gives[name] for name in wanted],
        )
        self.launches.append(
            WrittenLaunch(launch.index, launch.kernel, launch.kind, call.name, tuple(lines), alone=alone)
        )
        given = ", ".join(reads.get(name, name) for name in needs)
        made = f"{', '.join(wanted.values())} = " if wanted else ""
        return f"{made}{call.name}({given})"

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


def assembled(
    functions: Sequence[str],
    loads: Sequence[str],
    parameters: Sequence[str],
    folding: Sequence[str],
    forward: Sequence[str],
    device: str,
) -> str:
    """The text of the file."""
    init = ['def __init__(self, weights="weights.safetensors"):']
    if loads:
        init.append(f"{INDENT}weights = load_weights(weights)")
    init += [f"{INDENT}{line}" for line in (*loads, *folding)] or [f"{INDENT}pass"]
    run = [f"def forward(self, {', '.join(parameters)}):" if parameters else "def forward(self):"]
    run += [f"{INDENT}{line}" for line in forward]
    body = "\n".join(
        f"{INDENT}{line}" if line else "" for line in (*init, "", *run, "", "__call__ = forward")
    )
    rest = "\n\n\n".join([*(each for each in functions), f"class Model:\n{body}\n"])
    helpers = helpers_for(rest)
    imports = ["import json\nimport os\n"] if "load_weights(" in rest else []
    text = rest + helpers
    code = re.sub(r"#.*", "", text)
    functional = "from torch.nn import functional as F\n" if re.search(r"\bF\.", code) else ""
    where = (
        f'device = torch.device("{device}" if torch.{device}.is_available() else "cpu")\n'
        if device != "cpu"
        else 'device = torch.device("cpu")\n'
    )
    types = ""
    if "load_weights(" in rest:
        types = (
            "DTYPES = {\n"
            + "".join(f'{INDENT}"{code}": torch.{dtype},\n' for dtype, code in _codes().items())
            + "}\n"
        )
    head = '"""A package of AOTInductor, read as PyTorch. `python -i model.py`, then Model()(*inputs)."""\n'
    parts = [head, *imports, f"import torch\n{functional}", where + types + "\n"]
    return "\n".join(parts) + "\n" + "\n\n".join(each.strip("\n") + "\n" for each in (helpers, rest) if each)


def _codes() -> Mapping[str, str]:
    from mcp_server.package.pytorch.weights import CODES

    return CODES


def _function(
    name: str, parameters: Sequence[str], lines: Sequence[str], results: Sequence[str], shapes: Sequence[str]
) -> str:
    """The text of a function; a last statement that makes the only result is its `return`."""
    body = list(lines)
    if len(results) == 1 and body and body[-1].startswith(f"{results[0]} = "):
        body[-1] = f"return {body[-1].partition(' = ')[2]}"
    elif results:
        body.append(f"return {', '.join(results)}")
    body = put_together(body) or ["pass"]
    text = [f"def {name}({', '.join(parameters)}):"]
    text += [f"{INDENT}# {printable(each)}" for each in shapes]
    return "\n".join([*text, *(f"{INDENT}{line}" for line in body)])


def _without_unused(lines: Sequence[str], results: Iterable[str]) -> list[str]:
    """Without names that nobody reads: results that only this launch needed, steps of them."""
    wanted = set(results)
    kept: list[str] = []
    for line in reversed(lines):
        name = re.match(r"(\w+) = ", line)
        if name and name[1] not in wanted and not any(re.search(rf"\b{name[1]}\b", each) for each in kept):
            continue
        kept.append(line)
    return kept[::-1]


def _with_blanks(line: str, used: Collection[str]) -> str:
    """A call of several results, with those that nobody uses left out."""
    found = re.match(r"\w+(?:, \w+)+ = (?=torch\.|attention\()", line)
    if found is None:
        return line
    names = [name if name in used else "_" for name in found[0].removesuffix(" = ").split(", ")]
    return f"{', '.join(names)} = {line[found.end() :]}"


@dataclass(frozen=True)
class _Test:
    """A test of the one element of a tensor."""

    symbol: Symbol
    negated: bool


def _test(header: str, body: Body) -> _Test:
    """That of `if (!x) break`, `if (x == 0)`. Raises `NotRead`."""
    found = re.match(r"if \((?P<not>!?)(?P<name>\w+)(?P<zero> == (?:0|false))?\)", header)
    symbol = body.symbols.get(found["name"]) if found else None
    if found is None or symbol is None or symbol.tensor is None:
        raise NotRead(f"the block {header}")
    return _Test(symbol, bool(found["not"]) != bool(found["zero"]))


def _branches(node: Node) -> list[Block]:
    """The blocks around a statement in which it need not run once."""
    return [each for each in node.context if each.kind in ("if", "else", "loop")]


def _indented(lines: Iterable[str]) -> list[str]:
    """With the blocks of Python, whose ends are marked."""
    depth, found = 0, []
    for line in lines:
        if line == DEDENT:
            depth -= 1
            continue
        found.append(INDENT * depth + line)
        depth += line.startswith(("if ", "else:", "while "))
    return found


def _variables(node: Node, *, written: bool = False) -> tuple[str, ...]:
    if isinstance(node, Launch):
        return node.writes if written else (*node.reads, *node.writes)
    return (node.writes,) if written or node.reads is None else (node.reads, node.writes)


def _dtype(type_: str) -> str:
    bare = type_.replace("const", "").replace("*", "").strip()
    return _TYPES.get(bare) or _POINTERS.get(bare) or bare


def _plain(path: str | None) -> str:
    """`args[0]` is no name to read; a keyword is."""
    return path if path is not None and path.isidentifier() else ""


def _short(file: str) -> str:
    return file.rpartition("/")[2]


def quoted(text: str) -> str:
    """Text of the package as a literal of Python, on one line."""
    return json.dumps(printable(text))


def printable(text: str) -> str:
    """Without control characters, so that a comment stays one line."""
    return "".join(each if each.isprintable() else " " for each in text)
