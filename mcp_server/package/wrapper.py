"""Reads a generated wrapper.cpp: launches with arguments, buffers, symbols, kernels. Nothing is executed.

Statement forms: torch/_inductor/codegen/cpp_wrapper_cpu.py and cpp_wrapper_gpu.py, torch 2.8 to 2.15; checked
against wrappers of 2.8, 2.11, 2.13 and 2.15. An unknown statement becomes a problem with its line, and is
never skipped silently.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from mcp_server.package.calls import Body, Problem, Scope, add_transfer, handle_call
from mcp_server.package.kernels import Kernel, read_cpp_kernels, read_triton_kernels
from mcp_server.package.launches import (
    Buffer,
    BufferKind,
    Launch,
    braced,
    read_call,
    read_reference,
    substitute,
)
from mcp_server.package.symbols import Symbol, define, names_in
from mcp_server.package.terms.blocks import LineCounter, Statement, split_body

_FIRST = re.compile(r"\[\[maybe_unused\]\]|[A-Za-z_][\w:]*")
_SOURCES = re.compile(r"// (?:Topologically Sorted|Unsorted) Source Nodes: \[(.*)\], Original ATen: \[(.*)\]")
_HANDLE = re.compile(r"// \[Provenance debug handles\] (?P<kernel>.+):(?P<handle>\d{1,9})$")
_ARRAY = re.compile(
    r"(?:static )?(?:constexpr|const) int64_t \*?\s*(?P<name>\w+)(?:\[\])?\s*=\s*(?P<value>.*)", re.S
)
_INPUT = re.compile(
    r"(?:\[\[maybe_unused\]\] )?auto (?P<name>\w+) = std::move\(inputs\[(?P<position>\d{1,9})\]\)"
)
_CONSTANT = re.compile(
    r"(?:\[\[maybe_unused\]\] )?auto&? (?P<name>\w+) = constants_->at\((?P<position>\d{1,9})\)"
)
_BIND = re.compile(
    r"(?:\[\[maybe_unused\]\] )?(?:auto|decltype\(auto\)|auto&) (?P<name>\w+) = (?P<value>.*)", re.S
)
_OWN = re.compile(r"RAIIAtenTensorHandle (\w+)\((?:RAIIAtenTensorHandle\()?(\w+)\)?\)")
_DECLARE = re.compile(r"RAIIAtenTensorHandle (\w+)$")
_SCALAR_TENSOR = re.compile(r"RAIIAtenTensorHandle (\w+) = (scalar_to_tensor_handle\(.*\))", re.S)
_OUTPUT = re.compile(
    r"output_handles\[(?P<number>\d{1,9})\] = (?P<name>\w+)(?:\.release\(\)|\[(?P<other>\d{1,9})\])"
)
_SCALAR = re.compile(r"(?:const )?[\w:<> ]+?\*? (?P<name>\w+)(?: = (?P<value>.*))?$", re.S)
_ASSIGN = re.compile(r"(?P<name>\w+) = (?P<value>.*)", re.S)
_RESET = re.compile(r"(\w+)\.reset\(\)")
_MOVED = re.compile(r"std::move\((\w+)\)")
_POINTER = re.compile(
    r"CUdeviceptr (?P<name>\w+) = reinterpret_cast<CUdeviceptr>\((?P<tensor>\w+)\.data_ptr\(\)\)"
)
_DESCRIPTOR = re.compile(r"&(?P<name>\w+)(?:\.m)?, reinterpret_cast<void\*>\(\*\(&(?P<pointer>\w+)\)\)")
_HANDLES = re.compile(r"reinterpret_tensor_wrapper|_handle\b|constants_->|\binputs\[|std::move")
_SIZES = re.compile(r"\w+\.(?:sizes|strides)\(\)$")
_GUARD = re.compile(r'KernelContextGuard _ctx\("[^"]*",\s*R"\((?P<stack>.*)\)"\)', re.S)
_REASSIGNED = re.compile(r"^\s*(\w+) = std::move\(\w+\);", re.M)
_SYMBOL = re.compile(r"(?:(?:z?uf?|s|ps)\d+(?:_\w+)?|\w*(?:numel|_size_\d+|_stride_\d+))$")
_TYPES = re.compile(
    r"u?int(?:8|16|32|64)_t|int|bool|float|double|half|bfloat16|long|size_t|at::Half|at::BFloat16|c10::complex"
)
# Statements without a tensor or number that a launch uses.
_QUIET = re.compile(
    r"AOTI(?:Cuda|Xpu)StreamGuard|AOTICudaGuard|(?:torch::aot_inductor::)?RAIIAtenRecordFunctionHandle"
    r"|(?:RAII)?C10IValueHandle|AtenTensorHandle|cudaStream_t|std::(?:unordered_map|vector)"
    r"|throw|return|break|continue|alignas"
)


class _Reader:
    """Dispatches each statement to the handler of its first word."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.reassigned = frozenset(_REASSIGNED.findall(scope.text, scope.start))
        self.last_made = ""
        self.handlers: dict[str, Callable[[Statement], bool]] = {
            "RAIIAtenTensorHandle": self._owner,
            "auto": self._bind,
            "auto&": self._bind,
            "decltype": self._bind,
            "[[maybe_unused]]": self._bind,
            "static": self._array,
            "constexpr": self._array,
            "const": self._array,
            "output_handles": self._output,
            "CUdeviceptr": self._pointer_or_guard,
            "KernelContextGuard": self._pointer_or_guard,
            "if": self._exit,
        }

    def take(self, statement: Statement) -> None:
        text = statement.text
        if statement.kind == "simple":
            match = _FIRST.match(text)
            first = match.group() if match else ""
            if handler := self.handlers.get(first):
                known = handler(statement)
            elif _TYPES.fullmatch(first):
                known = self._scalar(statement)
            elif match is not None:
                known = _QUIET.fullmatch(first) is not None or self._call_or_assignment(statement)
            else:
                known = not text.strip("();, ")
            if not known:
                self.scope.problem("a statement of unknown form", statement.line, text)
        elif statement.kind == "comment":
            scope = self.scope
            if match := _HANDLE.match(text):
                scope.notes = replace(scope.notes, handle=int(match["handle"]), kernel=match["kernel"])
            elif match := _SOURCES.match(text):
                sources, atens = (
                    tuple(filter(None, map(str.strip, part.split(",")))) for part in match.groups()
                )
                scope.notes = replace(scope.notes, sources=sources, atens=atens)
            elif text.startswith("// reuse") and (buffer := scope.buffers.get(self.last_made)):
                scope.buffers[buffer.name] = replace(buffer, reused=True)
        elif statement.kind == "cut":
            self.scope.problem("the text ends inside this function", statement.line, text)
        elif statement.kind == "open" and statement.block.kind == "lambda":
            self.scope.problem("a lambda: its calls are listed where it stands", statement.line, text)

    def _owner(self, statement: Statement) -> bool:
        """Read a RAIIAtenTensorHandle, which adopts a handle, is declared empty, or contains a scalar."""
        buffers = self.scope.buffers
        match = _DECLARE.fullmatch(statement.text) or _SCALAR_TENSOR.fullmatch(statement.text)
        if match:
            kind: BufferKind = "assigned" if match.re is _DECLARE else "returned"
            buffers.add(Buffer(match[1], kind, 0, statement.line))
            return True
        if not (match := _OWN.fullmatch(statement.text)):
            return False
        name, handle = match.groups()
        known = handle if handle in buffers else handle.removesuffix("_handle")
        if known not in buffers:
            return False
        if known != name:
            buffers[name] = replace(buffers.pop(known), name=name)
        old = buffers[name]
        if name in self.reassigned and old.base is not None and old.kind == "alias":
            # A loop-carried variable has its own storage, copied from its base.
            buffers.add(replace(old, kind="assigned"))
            add_transfer(self.scope, statement, "assign", name, old.base)
        return True

    def _bind(self, statement: Statement) -> bool:
        """Read `auto x = …`: inputs, constants, moves, views, symbols."""
        text, scope = statement.text, self.scope
        if match := _INPUT.fullmatch(text) or _CONSTANT.fullmatch(text):
            source: BufferKind = "input" if match.re is _INPUT else "constant"
            scope.buffers.add(
                Buffer(match["name"], source, 0, statement.line, position=int(match["position"]))
            )
            return True
        if not (match := _BIND.fullmatch(text)):
            return False
        name, value = match["name"], match["value"].strip()
        if name in ("inputs", "kernels") or _SIZES.fullmatch(value):
            return True
        reference = read_reference(value, 0, len(value))
        base = scope.pointers.get(reference.name or "", reference.name)
        if base is None or base not in scope.buffers:
            return self._bind_value(name, value, statement)
        self.last_made = name
        view = scope.view(reference)
        kind: BufferKind = "view" if view else "moved" if _MOVED.fullmatch(value) else "alias"
        return scope.buffers.derive(name, base, kind, statement.line, view)

    def _bind_value(self, name: str, value: str, statement: Statement) -> bool:
        """Record a symbol or other scalar; return False for a value computed from unknown tensors."""
        scope = self.scope
        if _HANDLES.search(value):
            return False
        if _SYMBOL.fullmatch(name) or any(n in scope.symbols for n in names_in(value)):
            scope.symbols[name] = define(name, value, statement.line)
        else:
            scope.scalars.add(name)
        return True

    def _exit(self, statement: Statement) -> bool:
        """Read `if (!condition) break`, the exit condition of a loop."""
        if statement.text.endswith("break"):
            self.scope.exits[statement.block] = statement.text
            return True
        return statement.text.endswith(("continue", "return"))

    def _array(self, statement: Statement) -> bool:
        if match := _ARRAY.fullmatch(statement.text):
            self.scope.arrays[match["name"]] = () if match["value"] == "nullptr" else braced(match["value"])
            return True
        return statement.text.startswith("const ") and self._scalar(statement)

    def _scalar(self, statement: Statement) -> bool:
        match = _SCALAR.fullmatch(statement.text)
        if match and match["value"] is not None:
            return self._bind_value(match["name"], match["value"].strip(), statement)
        if match:
            self.scope.scalars.add(match["name"])
        return match is not None

    def _output(self, statement: Statement) -> bool:
        if not (match := _OUTPUT.fullmatch(statement.text)):
            return False
        name, other = match["name"], match["other"]
        source = self.scope.outputs.get(int(other)) if other else name
        self.scope.outputs[int(match["number"])] = source or name
        return source is not None

    def _pointer_or_guard(self, statement: Statement) -> bool:
        if match := _POINTER.fullmatch(statement.text):
            self.scope.pointers[match["name"]] = match["tensor"]
        elif match := _GUARD.fullmatch(statement.text):
            self.scope.notes = replace(self.scope.notes, stack=match["stack"])
        return match is not None

    def _call_or_assignment(self, statement: Statement) -> bool:
        text, scope = statement.text, self.scope
        if match := _RESET.fullmatch(text):
            scope.freed[match[1]] = statement.line
            return True
        call = read_call(scope.text, statement.start, statement.end)
        if call is not None:
            if match := _DESCRIPTOR.search(text):
                pointer = match["pointer"]
                scope.pointers[match["name"]] = scope.pointers.get(pointer, pointer)
            return text.startswith("initTMADescriptor") or handle_call(scope, statement, call)
        if match := _ASSIGN.fullmatch(text):
            return self._assign(match["name"], match["value"].strip(), statement)
        return bool(re.match(r"\w+\.(?:block_shape|global_shape|strides)\[\d+\] = ", text))

    def _assign(self, name: str, value: str, statement: Statement) -> bool:
        """Read `x = …`: a loop-carried tensor, an aligned copy of an input, or a reassigned symbol."""
        scope = self.scope
        if name in scope.symbols or name in scope.scalars:
            return self._bind_value(name, value, statement)
        old = scope.buffers.get(name)
        reference = read_reference(value, 0, len(value))
        moved = _MOVED.fullmatch(value) or (reference.view and value.startswith("std::move("))
        new = scope.buffers.get(reference.name or "") if moved else None
        if old is None or new is None:
            return old is not None and "_aligned" in value
        if (view := scope.view(reference)) is not None:
            seen = f"{name} as {new.name}"  # a moved view has no name of its own
            scope.buffers.derive(seen, new.name, "view", statement.line, view)
            new = scope.buffers[seen]
        if old.sizes is None:
            scope.buffers[name] = replace(
                old, sizes=new.sizes, strides=new.strides, dtype=new.dtype, device=new.device, offset="0"
            )
        add_transfer(scope, statement, "assign", name, new.name)
        return True


_FUNCTION = re.compile(r"^void \w+::(?P<name>_const_run_impl|run_impl)\(", re.M)
_OPEN = re.compile(r"\)\s*\{")
_FOLDED = re.compile(r'folded_constants_map\["(\w+)"\] = \w+\[(\d{1,19})\]')


@dataclass(frozen=True)
class Wrapper:
    """A parsed wrapper.cpp. `problems` lists every statement that was not understood, with its line.

    `folding` is the function that computes constants once before the first call; `folded` maps their names to
    its output indices (torch 2.8-2.15 with aot_inductor.use_runtime_constant_folding).
    """

    text: str = field(repr=False)
    kernels: Mapping[str, Kernel]
    run: Body
    folding: Body | None
    problems: tuple[Problem, ...]
    folded: Mapping[str, int] = field(default_factory=dict)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches, in order."""
        return self.run.launches

    @cached_property
    def launches_of(self) -> dict[str, list[int]]:
        """The launch numbers of each kernel name."""
        return grouped((launch.kernel, launch.index) for launch in self.launches)

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        return self.run.buffers

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        return self.run.symbols

    def kernel_named(self, name: str) -> Kernel | None:
        """A compiled kernel by its wrapper or device name. None for a shim or operator."""
        return self.kernels.get(name) or next((k for k in self.kernels.values() if k.symbol == name), None)

    def inputs(self) -> dict[int, Buffer]:
        """The model inputs by position."""
        return {b.position: b for b in self.buffers.values() if b.kind == "input" and b.position is not None}

    def grid(self, launch: Launch) -> tuple[str, ...]:
        """The blocks per axis of a Triton launch, as expressions over the wrapper's symbols."""
        kernel = self.kernels.get(launch.kernel)
        if kernel is None:
            return ()
        return tuple(substitute(part, launch.passed) for part in kernel.grid)

    def uses(self, name: str) -> tuple[int, ...]:
        """List the lines of `run_impl` that use a name."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        lines = enumerate(self.text[self.run.start : self.run.end].split("\n"), self.run.line)
        return tuple(number for number, code in lines if name in code and word.search(code))


def read_wrapper(text: str, kernel_text: str = "") -> Wrapper:
    """Read a wrapper. `kernel_text` is kernel.cpp, with the bodies of C++ kernels.

    Never raises on damaged text: returns what can be read, and lists the rest in `problems`.
    """
    count_line = LineCounter(text)
    kernels = {**read_cpp_kernels(text, count_line), **read_triton_kernels(text, count_line)}
    for name, kernel in read_cpp_kernels(kernel_text, LineCounter(kernel_text)).items():
        if name not in kernels or not kernels[name].source:
            kernels[name] = kernel
    problems: list[Problem] = []
    bodies: dict[str, Body] = {}
    for match in _FUNCTION.finditer(text):
        if opened := _OPEN.search(text, match.end()):
            scope = Scope(text, kernels, match["name"], opened.end(), count_line(opened.end()))
            bodies[scope.name] = _read_function(scope)
            problems += scope.problems
    if "run_impl" not in bodies:
        problems.append(Problem("no run_impl: this is not a wrapper, or it is cut", 1))
    run = bodies.get("run_impl") or Body("run_impl", 0, 0, 1)
    folded = {name: int(index) for name, index in _FOLDED.findall(text)} if len(bodies) > 1 else {}
    return Wrapper(text, kernels, run, bodies.get("_const_run_impl"), tuple(problems), folded)


def _read_function(scope: Scope) -> Body:
    """Read the function whose `{` is just before the scope's start."""
    text = scope.text
    reader = _Reader(scope)
    for statement in split_body(text, scope.start, scope.line, scope.name):
        scope.end = statement.end
        reader.take(statement)
    # `} // Class::name` ends a function (torch 2.8-2.15).
    marker = text.find(f"::{scope.name}\n", scope.end)
    if marker >= 0 and "\n" in text[scope.end : marker]:
        what = "braces do not match: the function ends here, before its end"
        scope.problem(what, text.count("\n", 0, scope.end) + 1)
    scope.launches, scope.transfers = tuple(scope.launched), tuple(scope.moved)
    return scope


Key = TypeVar("Key")
Grouped = TypeVar("Grouped")


def grouped(pairs: Iterable[tuple[Key, Grouped]]) -> dict[Key, list[Grouped]]:
    """Group the values by key, in order, without duplicates."""
    found: dict[Key, dict[Grouped, None]] = {}
    for key, value in pairs:
        found.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in found.items()}
