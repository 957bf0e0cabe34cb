"""Reads a generated wrapper.cpp: launches with their arguments, buffers, symbols, kernels. Nothing is
executed.
Checked against wrappers of torch 2.8, 2.11, 2.13 and 2.15; the statement forms are those of
torch/_inductor/codegen (cpp_wrapper_cpu.py, cpp_wrapper_gpu.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mcp_server.package import symbols as symbol_table
from mcp_server.package.buffers import Buffer
from mcp_server.package.kernels import Kernel, LineCounter, read_cpp_kernels, read_triton_kernels
from mcp_server.package.launches import Launch, Transfer, substitute
from mcp_server.package.reader import read_body
from mcp_server.package.scope import Problem, Scope
from mcp_server.package.statements import Block
from mcp_server.package.symbols import Symbol

_FUNCTION = re.compile(r"^void \w+::(?P<name>_const_run_impl|run_impl)\(", re.M)
_OPEN = re.compile(r"\)\s*\{")
_FOLDED = re.compile(r'folded_constants_map\["(\w+)"\] = \w+\[(\d+)\]')


@dataclass(frozen=True, slots=True)
class Body:
    """What one function does, in textual order: `run_impl`, or `_const_run_impl` (constant folding at
    load).

    `start` and `end` are offsets of the body; `line` is the 1-based line of its `{`. `freed` maps a tensor
    variable to the line of its last `reset()`; `exits` maps a loop to the statement that leaves it.
    `outputs` maps an output index to the variable returned.
    """

    name: str
    start: int
    end: int
    line: int
    launches: tuple[Launch, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    outputs: Mapping[int, str] = field(default_factory=dict)
    freed: Mapping[str, int] = field(default_factory=dict)
    exits: Mapping[Block, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wrapper:
    """A wrapper.cpp as read. `problems` lists every place that was not understood, with its line.

    `folding` is what runs once, before the first call, and makes the constants `folded`: output index by name
    (torch 2.8-2.15 with aot_inductor.use_runtime_constant_folding).
    """

    text: str = field(repr=False)
    kernels: Mapping[str, Kernel]
    run: Body
    folding: Body | None
    problems: tuple[Problem, ...]
    folded: Mapping[str, int] = field(default_factory=dict)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of a call, in order."""
        return self.run.launches

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        return self.run.buffers

    @property
    def symbols(self) -> Mapping[str, Symbol]:
        return self.run.symbols

    def inputs(self) -> dict[int, Buffer]:
        """Model inputs by position."""
        return {b.position: b for b in self.buffers.values() if b.kind == "input" and b.position is not None}

    def grid(self, launch: Launch) -> tuple[str, ...]:
        """Blocks per axis of a Triton launch, as expressions over the wrapper's symbols."""
        kernel = self.kernels.get(launch.kernel)
        if kernel is None:
            return ()
        values = {a.name: a.expression for a in launch.arguments if a.name}
        return tuple(substitute(part, values) for part in kernel.grid)

    def uses(self, name: str) -> tuple[int, ...]:
        """The lines of `run_impl` that use a name."""
        return symbol_table.uses(name, self.text, self.run.start, self.run.end, self.run.line)


def read_wrapper(text: str, kernel_text: str = "") -> Wrapper:
    """Read a wrapper; `kernel_text` is the package's kernel.cpp, which holds the bodies of C++ kernels.

    Never raises on damaged text: what could be read is returned, and `problems` says what is missing.
    """
    count_line = LineCounter(text)
    kernels = {**read_cpp_kernels(text, count_line), **read_triton_kernels(text, count_line)}
    kernels.update(_with_bodies(kernels, kernel_text))
    problems: list[Problem] = []
    bodies = {}
    for match in _FUNCTION.finditer(text):
        if opened := _OPEN.search(text, match.end()):
            body = _read_function(
                text, match["name"], opened.end(), count_line(opened.end()), kernels, problems
            )
            bodies[body.name] = body
    if "run_impl" not in bodies:
        problems.append(Problem("no run_impl: this is not a wrapper, or it is cut", 1))
    run = bodies.get("run_impl") or Body("run_impl", 0, 0, 1)
    folded = {name: int(index) for name, index in _FOLDED.findall(text)} if len(bodies) > 1 else {}
    return Wrapper(text, kernels, run, bodies.get("_const_run_impl"), tuple(problems), folded)


def _with_bodies(kernels: Mapping[str, Kernel], kernel_text: str) -> dict[str, Kernel]:
    """C++ kernels as defined in kernel.cpp, for those that the wrapper only declares."""
    found = read_cpp_kernels(kernel_text, LineCounter(kernel_text)) if kernel_text else {}
    return {name: kernel for name, kernel in found.items() if name not in kernels or not kernels[name].source}


def _ends_early(text: str, name: str, end: int) -> bool:
    """A function ends with `} // Class::name` (torch 2.8-2.15); found later, a brace was lost."""
    marker = text.find(f"::{name}\n", end)
    return marker >= 0 and "\n" in text[end:marker]


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _read_function(
    text: str, name: str, start: int, line: int, kernels: Mapping[str, Kernel], problems: list[Problem]
) -> Body:
    scope = Scope(text, kernels, name)
    end = read_body(scope, start, line)
    if _ends_early(text, name, end):
        scope.problem("braces do not match: the function ends here, before its end", _line(text, end))
    problems += scope.problems
    return Body(
        name,
        start,
        end,
        line,
        tuple(scope.launches),
        tuple(scope.transfers),
        scope.buffers.by_name,
        scope.symbols,
        scope.outputs,
        scope.freed,
        scope.exits,
    )
