"""Names and tensors of a wrapper as expressions of a PyTorch program.

All names from the package become identifiers.
"""

import builtins
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mcp_server.package.launches import Argument, Buffer, Launch
from mcp_server.package.pytorch.axes import Axes, NotRead
from mcp_server.package.pytorch.text import HELPERS
from mcp_server.package.pytorch.views import Step, Tensor, contiguous, strided, tupled, view
from mcp_server.package.signature import CompiledDim
from mcp_server.package.symbols import Symbol, origins
from mcp_server.package.terms.sizes import size_term
from mcp_server.package.terms.whole import Whole, constant, named
from mcp_server.package.view import PackageView

Layout = tuple[tuple[Whole, ...], tuple[Whole, ...], str]
"""Sizes, strides and type."""


@dataclass(frozen=True)
class Call:
    """A launch as a call of its function. `reads` maps names in the function to what is passed.

    `results` maps names in the function to variables, `arguments` to arguments of the launch.
    """

    launch: Launch
    name: str
    lines: tuple[str, ...]
    reads: Mapping[str, str]
    results: Mapping[str, str]
    shapes: Mapping[str, str]
    arguments: Mapping[str, Argument]


@dataclass
class Scope:
    """The statements of one method, and the names that are defined in it."""

    lines: list[str | Call] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)


_COMPLEX = re.compile(r"c10::complex<\w+>\{(?P<real>[^,]+),(?P<imaginary>[^,]+)\}")
_SCALAR = re.compile(r"scalar_to_tensor_handle\((?P<value>.*)\)")  # a tensor on the CPU


class Tensors:
    """The names of one program. `scope` has the statements that are being written."""

    def __init__(self, package: PackageView) -> None:
        self.package, self.wrapper = package, package.wrapper
        self.body = package.wrapper.run  # function being written
        self.scope = Scope()
        self.taken: set[str] = {
            "torch",
            "F",
            "json",
            "os",
            "device",
            "self",
            "DTYPES",
            *dir(builtins),
            *HELPERS,
        }
        self.identifiers: dict[str, str] = {}
        self.in_place = set[str]()  # variables written in the memory of another variable
        self.symbols: set[str] = set()  # symbols of the program
        self.constants = {each.name: each for each in package.package.constants}

    # Names.

    def identifier(self, name: str, wanted: str = "") -> str:
        """The program's name for a name of the package, always the same."""
        if name not in self.identifiers:
            text = re.sub(r"\W+", "_", wanted or name, flags=re.ASCII).strip("_") or "value"
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
        """Write a size of the wrapper, after defining its symbols. May raise `NotRead`."""
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
        """Write a symbol of the wrapper: the sum that defines it. If no sum does, define a variable."""
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
        """Write a computed size. `(1.0/2.0)*n` is an integer: `n // 2`."""
        half = re.fullmatch(r"\(1\.0/(\d+)\.0\)\*(\w+)", expression.replace(" ", ""))
        if half:
            return f"{self.identifier(half[2])} // {half[1]}"
        return str(self.whole(expression))

    def number(self, expression: str) -> str:
        """Write a scalar of the wrapper."""
        text = expression.strip()
        if re.fullmatch(r"-?\d+L*", text):
            return text.rstrip("L")
        if re.fullmatch(r"-?\d*\.?\d+(e[+-]?\d+)?f?", text):
            return text.rstrip("f")
        if text in ("true", "false"):
            return text.capitalize()
        if parts := _COMPLEX.fullmatch(text):
            return f"complex({self.number(parts['real'])}, {self.number(parts['imaginary'])})"
        if "infinity" in text:
            return f'float("{"-" if text.startswith("-") else ""}inf")'
        return str(self.whole(text))

    def array(self, expression: str) -> Sequence[str]:
        """The elements of an array, each a C++ expression. May raise `NotRead`."""
        name = re.escape(expression.strip())
        found = re.findall(r"\{(.*?)\}", expression)[:1] or re.findall(
            rf"\b{name}(?:\[\d*\])? = \{{(.*?)\}};", self.wrapper.text
        )
        if not found:
            raise NotRead(f"the array {expression}")
        return [each.strip() for each in found[-1].split(",") if each.strip()]

    def assigned(self, name: str, before: int) -> str | None:
        """The last text assigned to a variable of the wrapper above the offset `before`; else None."""
        if not re.fullmatch(r"\w+", name):
            return None
        found = re.findall(rf"\b{name} = (.*?);", self.wrapper.text[:before])
        return str(found[-1]) if found else None

    # Tensors.

    def variable(self, name: str) -> str:
        """Write a wrapper tensor. Its allocation is written at its first use."""
        if name in self.scope.names:
            return self.scope.names[name]
        buffer = self.body.buffers.get(name)
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
            of = self.body.buffers[buffer.base]
            if buffer.kind == "view" and buffer.dtype != of.dtype:
                return self._of_type(base, buffer)
            if buffer.kind != "view" or buffer.sizes is None:
                return base
            # The wrapper describes a view by its position in the whole memory.
            start = self.whole(of.offset) if of.offset else Whole()
            at = self.whole(buffer.offset or "0") - start
            return self._view(base, of.name, buffer.sizes, buffer.strides or (), at)
        if buffer.kind == "allocated" and buffer.sizes is not None:
            text = self.identifier(name)
            sizes, strides = (
                [self.whole(each) for each in part] for part in (buffer.sizes, buffer.strides or ())
            )
            self.scope.lines.append(
                f"{text} = empty({tupled(sizes)}, {tupled(strides)}, torch.{buffer.dtype})"
            )
            return text
        if scalar := _SCALAR.fullmatch(self.assigned(name, self.body.end) or ""):
            value = self.number(scalar["value"])
            number = "complex128" if value.startswith("complex") else "float64"
            kind = f", dtype=torch.{number}" if re.search(r"\.|\de|float|complex", value) else ""
            return f"torch.tensor({value}{kind})"
        raise NotRead(f"the tensor {name}, which is {buffer.kind}")

    def _of_type(self, base: str, buffer: Buffer) -> str:
        """Write memory as elements of another type (`view_dtype`), such as complex numbers as floats."""
        if buffer.sizes is None or buffer.strides is None or buffer.offset not in (None, "0", "0L"):
            raise NotRead(f"{buffer.name}, which has another type than its memory")
        sizes, strides = (tuple(self.whole(each) for each in part) for part in (buffer.sizes, buffer.strides))
        return f"flat({base}).view(torch.{buffer.dtype}).as_strided({tupled(sizes)}, {tupled(strides)})"

    def fqn(self, name: str) -> str:
        return self.constants[name].fqn if name in self.constants else name

    def layout(self, name: str) -> Layout:
        """Return sizes, strides and type of a wrapper tensor.

        If an operator chose the layout, the tensor counts as flat memory.

        Raise `NotRead` if these are unknown.
        """
        if name in self.constants:
            weight = self.constants[name]
            return tuple(map(constant, weight.shape)), tuple(map(constant, weight.stride)), weight.dtype
        buffer = self.body.buffers[name]
        if buffer.kind == "input" and (buffer.sizes is None or buffer.strides is None):
            return self._input_layout(name)
        if buffer.sizes is None or buffer.strides is None:
            return (named(f"{self.variable(name)}.numel()"),), (constant(1),), buffer.dtype or ""
        sizes_ = tuple(self.whole(each) for each in buffer.sizes)
        return sizes_, tuple(self.whole(each) for each in buffer.strides), buffer.dtype or ""

    def is_of_operator(self, name: str) -> bool:
        """Whether an operator chose the layout of a tensor, so that the wrapper does not specify it."""
        buffer = self.body.buffers[name]
        return name not in self.constants and buffer.kind != "input" and buffer.strides is None

    def _input_layout(self, name: str) -> Layout:
        """The layout of an input, from the wrapper's checks of that input."""
        found = next((each for each in self.package.package.inputs if each.name == name), None)
        if found is None or not found.described:
            raise NotRead(f"the layout of {name}")
        sizes = [self._input_size(name, dim) for dim in found.dims]
        given = [None if each is None else self.whole(str(each)) for each in found.strides]
        dense = contiguous(sizes)
        strides = [dense[n] if each is None else each for n, each in enumerate(given)] or dense
        return tuple(sizes), tuple(strides), found.dtype or ""

    def _input_size(self, name: str, dim: CompiledDim) -> Whole:
        """Write a size of an input. If it has no symbol in the wrapper, define a variable."""
        if dim.size is not None or dim.expression is not None:
            return self.whole(str(dim))
        symbol = Symbol(f"{name}_size_{dim.index}", "size", "", 0, name, dim.index)
        self._define(symbol)
        return named(self.identifier(symbol.name))

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
        return strided(tensor, steps, at) if self.is_of_operator(of) else view(tensor, steps, at)

    def with_strides(self, given: str, target: str) -> str:
        """Write a tensor that the program computed, with the strides that it has in the wrapper."""
        buffer = self.body.buffers.get(target)
        if buffer is None or buffer.kind in ("input", "constant") or given != self.identifiers.get(target):
            return given
        if target in self.in_place or self.is_of_operator(target):
            return given
        return f"laid_out({given}, {tupled(self.layout(target)[1])})"
