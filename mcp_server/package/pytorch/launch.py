"""One statement of a wrapper in a program: a launch as a function or operator call, or a copy.

`Lifetimes` says which results may be new tensors.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mcp_server.package.calls import Body
from mcp_server.package.launches import Argument, Buffer, Launch, Transfer
from mcp_server.package.pytorch.axes import NotRead
from mcp_server.package.pytorch.calls import Alone, place_of, proxy_call, shim_call
from mcp_server.package.pytorch.kernel import Passed, write_kernel
from mcp_server.package.pytorch.tensors import Call, Tensors
from mcp_server.package.pytorch.text import function, printable, put_together, without_unused
from mcp_server.package.pytorch.values import LOCAL
from mcp_server.package.pytorch.views import Tensor, tupled
from mcp_server.package.terms.blocks import Block
from mcp_server.package.terms.term import dtype_of
from mcp_server.package.terms.whole import Whole
from mcp_server.package.view import PackageView
from mcp_server.package.wrapper import grouped
from mcp_server.worker.events import Schema

Node: TypeAlias = Launch | Transfer
_SHARES = (
    "(?:view|reshape|flatten|unflatten|squeeze|unsqueeze|transpose|t|permute|expand|select|slice|unbind|chunk"
    "|split|contiguous|to|detach|clone|to_copy|unsafe_view)"
)
"""Operators whose results only share or copy memory."""
_VIEW = re.compile(rf"{_SHARES}(?:_\d+)?")
_VIEWS = re.compile(rf"(?<![a-z0-9])_*{_SHARES}(?![a-z0-9])_*")
_LONG_NAME = 32


class Lifetimes:
    """The lifetimes of the variables of one wrapper function, by the offsets of its statements."""

    def __init__(self, body: Body) -> None:
        self.buffers = body.buffers
        nodes: list[Node] = sorted([*body.launches, *body.transfers], key=lambda each: each.start)
        self._last_use = {name: node.start for node in nodes for name in variables(node)}
        self._last_use |= dict.fromkeys(body.outputs.values(), body.end)  # used at the end
        self.last_write = {
            self.buffers[name].storage: node.start
            for node in nodes
            for name in variables(node, written=True)
            if name in self.buffers
        }
        self._families = grouped((each.storage, each) for each in self.buffers.values())

    def may_be_new(self, argument: Argument, launch: Launch) -> bool:
        """Whether a launch may return a new tensor instead of writing to an argument's memory.

        Nothing may use this memory under another name afterwards.
        """
        buffer = self.buffers.get(argument.target or "")
        if buffer is None or argument.view is not None or buffer.sizes is None:
            return False
        if buffer.kind not in ("allocated", "moved", "view", "alias", "assigned"):
            return False
        if any(buffer.line < block.line for block in branches(launch)):
            return False  # the other branch and later code use this name
        family = self._families[buffer.storage]
        if any(each.kind in ("input", "constant", "pool") for each in family):
            return False
        for other in family:
            if (
                other.name != buffer.name
                and not self._comes_from(other, buffer.name)
                and self._last_use.get(other.name, 0) > launch.start
            ):
                return False
        same = [each for each in launch.arguments if each.target and each.target != argument.target]
        return not any(
            self.buffers[each.target].storage == buffer.storage
            for each in same
            if each.target in self.buffers and each.target
        )

    def is_read_after(self, name: str, launch: Launch) -> bool:
        """Whether anything uses a tensor, under any name, after the launch that creates it."""
        buffer = self.buffers.get(name)
        family = self._families[buffer.storage] if buffer is not None else ()
        return any(
            self._last_use.get(each, 0) > launch.start for each in (name, *(one.name for one in family))
        )

    def _comes_from(self, buffer: Buffer, name: str) -> bool:
        """Whether a variable is another name for `name`, or a view of it."""
        seen: set[str] = set()
        while buffer.base is not None and buffer.base not in seen:
            if buffer.base == name:
                return True
            seen.add(buffer.base)
            buffer = self.buffers[buffer.base]
        return False


def branches(node: Node) -> list[Block]:
    """The conditions and loops around a statement: it may be skipped, or run several times."""
    return [each for each in node.context if each.kind in ("if", "else", "loop")]


def variables(node: Node, *, written: bool = False) -> tuple[str, ...]:
    """The variables that a statement uses, or those that it writes."""
    if isinstance(node, Launch):
        return node.writes if written else (*node.reads, *node.writes)
    return (node.writes,) if written or node.reads is None else (node.reads, node.writes)


@dataclass(frozen=True)
class WrittenLaunch:
    """A launch in the program: the lines of its function, its operator call, or why it cannot be read.

    `alone` is the launch as an expression over its own arguments. None if it `folds` constants at the load.
    """

    index: int
    kernel: str
    kind: str
    name: str
    lines: tuple[str, ...]
    not_read: str = ""
    alone: Alone | None = None
    folds: bool = False


class Launches(Tensors):
    """Writes launches: their statements into the scope, and their functions into `functions`."""

    def __init__(self, package: PackageView, schemas: Mapping[str, Schema]) -> None:
        super().__init__(package)
        self.schemas, self.lifetimes = schemas, Lifetimes(self.body)
        self.functions: list[str] = []
        self.launches: list[WrittenLaunch] = []
        self.names: dict[str, str] = {}  # meaningful names for `buf3` and the like
        self.by_memory: set[str] = set()  # variables whose memory a statement below addresses
        self.read_unseen: set[int] = set()  # storages that statements missing from the program use

    def not_written(self, nodes: Iterable[Node]) -> None:
        """Record which memory is used by statements that are missing from the program."""
        names = {name for node in nodes for name in variables(node)} & self.body.buffers.keys()
        self.read_unseen |= {self.body.buffers[name].storage for name in names}

    def node(self, node: Node) -> None:
        """Write one statement. May raise `NotRead`."""
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
        line = f"# launch {launch.index}"
        if made := [each for each in launch.writes if each not in self.constants]:
            line += f" ({', '.join(made)})"
        if places:
            line += f": {places[0].file.rpartition('/')[2]}:{places[0].line}  {places[0].code}"
        elif node := _node(launch):
            line += f": {node}"
        self.scope.lines.append(printable(line)[:110].rstrip())

    def _transfer(self, node: Transfer) -> None:
        target = node.writes
        if node.reads is None:
            self.scope.lines.append(f"{self.variable(target)}.zero_()")
        elif target not in self.scope.names and self.body.buffers[target].kind == "returned":
            name = self.identifier(target)
            self.scope.lines.append(f"{name} = {self.variable(node.reads)}.clone()")
            self.scope.names[target] = name
        else:
            self.scope.lines.append(f"{self.variable(target)}.copy_({self.variable(node.reads)})")

    def _operator(self, launch: Launch) -> None:
        """Write the call, and once more as an expression of its own arguments: `torch.mm(t0, t1)`."""
        if launch.kind == "proxy_executor":
            calls, index = self.package.package.proxy_calls, launch.proxy_index
            if index is None or not 0 <= index < len(calls):
                raise NotRead("the package's list of operator calls")
            written = proxy_call(launch, calls[index], self)
        else:
            written = shim_call(launch, self.schemas, self)
        line = written.filled([self._operand(each, written.results) for each in written.tensors])
        own = written.filled([f"t{number}" for number in range(len(written.tensors))])
        takes, gives = list(written.tensors), list(written.out)
        if written.results:
            self.scope.names.update({each: self.identifier(each) for each in written.results if each})
            if len(written.results) == 1:
                self._name(written.results[0], launch)
            line = f"{', '.join(self.scope.names.get(each, '_') for each in written.results)} = {line}"
            # Omit results that only the operator needs, such as seeds.
            gives = [each if self.lifetimes.is_read_after(each, launch) else "" for each in written.results]
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
        """Write a tensor operand, in the wrapper's layout if the layout of the results depends on it."""
        given = self.tensor(argument)
        return self.with_strides(given, argument.target or "") if any(results) else given

    def _written_out(self, launch: Launch, targets: Sequence[str], line: str) -> str:
        """`x = torch.mm(a, b)` if no other variable has the memory, else the call with `out=`."""
        outs = _outs(launch, targets)
        first, operands = outs[0], {each.target for each in launch.arguments if each not in outs}
        new = len(outs) == 1 and first.target not in operands and self.lifetimes.may_be_new(first, launch)
        dense = new and Tensor("", *self.layout(first.target or "")).is_contiguous
        if dense and first.target and "torch.ops." not in line:
            name = self.scope.names[first.target] = self.identifier(first.target)
            self._name(first.target, launch)
            return f"{name} = {line}"
        given = ", ".join(f"out={self.tensor(each)}" for each in outs)
        return f"{line[:-1]}, {given})"

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
        written = write_kernel(kernel, passed, sizes, f"launch {launch.index}")
        kept = {passed[each].tensor.text for each in written.results}
        for text, argument in by_name.items():
            if argument.role != "read" and text not in kept and argument.target in self.body.buffers:
                self._in_memory_of(argument.target or "")
        reads = {name: self.tensor(by_name[name]) for name in written.reads}
        results = {
            name: by_name[passed[parameter].tensor.text].target or ""
            for parameter, name in written.results.items()
        }
        self.scope.names.update({each: self.identifier(each) for each in results.values()})
        shapes = {
            each.text: f"{each.dtype or 'flat '}[{', '.join(map(str, each.sizes))}]"
            for each in (one.tensor for one in passed.values())
        }
        name = self._function_name(launch)
        self.scope.lines.append(Call(launch, name, written.lines, reads, results, shapes, by_name))

    def _passed(self, target: str, argument: Argument, launch: Launch) -> Passed:
        """The tensor of one parameter, under its name in the function."""
        sizes, strides, dtype = self.layout(target)
        name = self.identifier(target, self.fqn(target))
        if argument.view is not None:
            seen = argument.view
            sizes, strides = (tuple(self.whole(each) for each in part) for part in (seen.sizes, seen.strides))
            name = f"{name}_{argument.name}"
        tensor = Tensor(name, sizes, strides, dtype or dtype_of(argument.type) or "")
        new = argument.role != "read" and self.lifetimes.may_be_new(argument, launch)
        later = self.lifetimes.last_write.get(self.body.buffers[target].storage, -1) > launch.start
        return Passed(tensor, new, later)

    def _name(self, target: str, launch: Launch) -> None:
        """Name a new tensor after the module whose weights the launch takes, or its operator: `softmax_3`."""
        weights = [self.fqn(each) for each in launch.reads if each in self.constants]
        modules = {each.rpartition(".")[0] for each in weights}
        fused = launch.kernel in self.wrapper.kernels
        operator = _VIEWS.sub("", f"_{_operators(launch)}").strip("_") if fused else _node(launch)
        wanted = f"{re.sub(r'_[0-9]+$', '', operator)}_{launch.index}" if operator else ""
        if len(modules) == 1 and len(weights) > fused:  # a kernel may copy a weight that another launch uses
            wanted = modules.pop() or wanted
        if wanted and len(wanted) <= _LONG_NAME and not LOCAL.fullmatch(wanted):
            plain = self.identifier(target)
            self.names.setdefault(plain, self.identifier(f"name of {plain}", wanted))

    def _in_memory_of(self, target: str) -> None:
        """Give a separate name to a tensor that is written into the memory of another tensor."""
        buffer = self.body.buffers[target]
        if buffer.kind == "moved" and target not in self.scope.names:
            name, before = self.identifier(target), self.variable(target)
            self.scope.lines.append(f"{name} = {before}  # the same memory")
            self.in_place.add(target)
            self.scope.names[target] = name

    def _function_name(self, launch: Launch) -> str:
        words = _operators(launch)[:40].strip("_")
        return self.identifier(
            f"function {launch.function} {launch.index}", f"launch_{launch.index}_{words}".rstrip("_")
        )

    def _laid_out(self, name: str, text: str, call: Call) -> str:
        """Write the passed tensor, in the wrapper's layout if the function accesses memory directly."""
        given, target = call.reads[name], call.arguments[name].target or ""
        if self._is_flat(call.arguments[name]):
            return f"flat({given})"
        if not re.search(rf"\b(?:strided|take|put)\({name}\b", text) or _writes(name, text):
            return given  # a write must not go to a copy: the tensor's creator lays it out
        return self.with_strides(given, target)

    def _is_flat(self, argument: Argument) -> bool:
        """Whether a function takes a tensor as flat memory."""
        return argument.view is None and self.is_of_operator(argument.target or "")

    def _assumed(self, argument: Argument) -> str:
        """Write how a kernel reads the memory of a tensor of unknown layout. Empty for other tensors."""
        buffer, dtype = self.body.buffers.get(argument.target or ""), dtype_of(argument.type)
        if buffer is None or not buffer.assumed or argument.view is not None or not dtype:
            return ""
        sizes, strides, _ = self.layout(buffer.name)
        return f"{tupled(sizes)}, {tupled(strides)}, torch.{dtype}"

    def call_text(self, call: Call, used: Collection[str]) -> str:
        """Return the line with the call. Add the function, which returns only the results that are used."""
        launch, results = call.launch, call.results
        wanted = {name: each for name, each in results.items() if self.identifiers[each] in used} or results
        if len(wanted) == 1:
            self._name(next(iter(wanted.values())), launch)
        lines = put_together(without_unused(call.lines, wanted))
        lines += [
            f"{name} = laid_out({name}, {tupled(self.layout(at)[1])})"
            for name, at in wanted.items()  # a statement below addresses the memory
            if self.identifiers[at] in self.by_memory and not any(f"laid_out({name}," in x for x in lines)
        ]
        text = "\n".join(lines)
        inside = set(re.findall(r"\b[A-Za-z_]\w*\b", text))
        reads = [name for name in call.reads if name in inside]
        symbols = sorted(self.symbols & inside)
        shapes = [f"{name}: {call.shapes[name]}" for name in reads]
        self.functions.append(function(call.name, [*reads, *symbols], lines, list(wanted), shapes))
        own = [f"flat(t_{name})" if self._is_flat(call.arguments[name]) else f"t_{name}" for name in reads]
        takes = {f"t_{name}": place_of(launch, call.arguments[name]) for name in reads}
        assumed = {place_of(launch, each): read for each in launch.tensors if (read := self._assumed(each))}
        alone = Alone(f"{call.name}({', '.join([*own, *symbols])})", takes, list(wanted.values()), assumed)
        self.launches.append(
            WrittenLaunch(launch.index, launch.kernel, launch.kind, call.name, tuple(lines), alone=alone)
        )
        given = [self._laid_out(name, text, call) for name in reads]
        self.by_memory |= {_base(one) for name, one in zip(reads, given, strict=True) if _writes(name, text)}
        made = f"{', '.join(self.identifiers[each] for each in wanted.values())} = " if wanted else ""
        return f"{made}{call.name}({', '.join([*given, *symbols])})"


def _node(launch: Launch) -> str:
    """The last node of the exported program that a launch computes, except views. Empty if unknown."""
    nodes = [each for each in launch.sources if not _VIEW.fullmatch(each)]
    return (nodes or launch.sources or [""])[-1]


def _operators(launch: Launch) -> str:
    """`softmax_add` for the kernel `cpp_fused__softmax_add_3`."""
    short = re.sub(r"^(?:cpp|triton)(?:_(?:poi|per|red|tem|mm))?_(?:fused_)?|_\d+$", "", launch.kernel)
    return re.sub(r"\W+", "_", short).strip("_").replace("native_", "")


def _writes(name: str, text: str) -> bool:
    """Whether the text of a function writes to the memory of a parameter."""
    changes = r"\.(?:copy_|fill_|index_put_|scatter_\w*)\(|\] = "
    forms = rf"put\({name}\b|(?:strided\()?{name}\b[^=]*(?:{changes})"
    return re.search(f"^(?:{forms})", text, re.M) is not None


def _base(text: str) -> str:
    """The variable whose memory an expression views."""
    found = re.match(r"(?:(?:strided|laid_out|flat)\()*(\w+)", text)
    return found[1] if found else ""


def _outs(launch: Launch, targets: Sequence[str]) -> list[Argument]:
    """The arguments for the tensors of `out=`."""
    return [each for each in launch.arguments if each.target in targets and each.role != "read"][
        : len(targets)
    ]
