"""Maps a launch to lines of the user's model.

`torch.export` records only frames named `forward` (torch 2.13), so for an operator in a helper it records the
line that calls the helper. `lines_doing` reads the source to find the line in the helper.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mcp_server.model import ModelLocation
from mcp_server.package.launches import Launch

Source = Literal["kernel_information", "context_guard", "comments", "none"]

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>[^\n]*))?'
    r"(?:\n +(?P<code>[^\n]*))?"
)
_LIBRARY = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|^<|[/\\]lib[/\\]python\d"
    r"|[/\\]torch[/\\](?:nn|fx|export|_\w+)[/\\]"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a model stack trace. Stacks are outermost first; `line` is 1-based."""

    file: str
    line: int
    function: str
    code: str

    @property
    def library(self) -> bool:
        """Whether the frame is in torch, another installed package or generated code."""
        return bool(_LIBRARY.search(self.file))


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a launch in the model.

    `source`: `kernel_information` (compiled with INDUCTOR_PROVENANCE=1) and `context_guard` (compiled with
    TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1) have stack frames; `comments` have graph nodes only; C++
    kernels have no comment, hence `none`. `stacks` contain all frames.
    """

    source: Source
    post_grad: tuple[str, ...] = ()
    pre_grad: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()

    @property
    def locations(self) -> tuple[ModelLocation, ...]:
        """The innermost user line of each stack, without duplicates."""
        found = {}
        for stack in self.stacks:
            own = [frame for frame in stack if not frame.library]
            if own:
                frame = own[-1]
                found[frame.file, frame.line] = ModelLocation(
                    file=frame.file, line=frame.line, code=frame.code
                )
        return tuple(found.values())

    @property
    def folded(self) -> int:
        """Number of library frames that `locations` omits."""
        return sum(frame.library for stack in self.stacks for frame in stack)


def read_stack(text: str) -> tuple[Frame, ...]:
    """The frames of a Python traceback text."""
    return tuple(
        Frame(m["file"], int(m["line"]), (m["function"] or "").strip(), (m["code"] or "").strip())
        for m in _FRAME.finditer(text)
    )


def read_provenance(launch: Launch, information: Mapping[str, object]) -> Provenance:
    """The most detailed provenance of a launch. `information` is kernel_information.json, or empty."""
    entry = information.get(f"{launch.kernel}:{launch.handle}") if launch.handle is not None else None
    if isinstance(entry, Mapping):
        return Provenance(
            "kernel_information",
            _texts(entry.get("post_grad_nodes")),
            _texts(entry.get("pre_grad_nodes")),
            launch.atens,
            tuple(stack for text in _texts(entry.get("stack_traces")) if (stack := read_stack(text))),
        )
    if launch.stack.strip():
        return Provenance("context_guard", launch.sources, (), launch.atens, _guard_stacks(launch.stack))
    if launch.sources or launch.atens:
        return Provenance("comments", launch.sources, (), launch.atens)
    return Provenance("none")


def _guard_stacks(text: str) -> tuple[tuple[Frame, ...], ...]:
    """The tracebacks of a guard, which are separated by blank lines."""
    return tuple(stack for part in re.split(r"\n\s*\n", text) if (stack := read_stack(part)))


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        return ()
    return tuple(item for item in value if isinstance(item, str))


INDEXES = re.compile(
    r"embedding|gather\(|scatter|index_\w+\(|take(?:_along_dim)?\(|\.put_?\(|(?<!shape)(?<![\s(=,])\[(?!\])"
)
# Operators that can return infinity or NaN for finite values: domain errors and overflow.
UNBOUNDED = re.compile(
    r"(?<!/)/(?!/)|\*\*|\b(?:div\w*|exp\w*|log\w*|r?sqrt|pow|float_power|reciprocal|tan|acos\w*|asin|atanh|sinh|cosh"
    r"|softmax|softmin|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inverse|"
    r"linalg|half|bfloat16|float16)\b"
)
DIVIDES = re.compile(r"//|%|\b(?:div\w*|true_divide|floor_divide|remainder|fmod|mod)\(")
_PARAMETERS = frozenset({"weight", "bias"})


def indexing_first(provenance: Provenance, indexed: Collection[str]) -> Provenance:
    """Sort stacks: lines that name the indexed constant's module first, then lines that index. Stable.

    `indexed`: names of constants in the model, such as `encoder.tokens.weight`.
    """
    modules = [name for constant in indexed if (name := _module(constant))]

    def distance(stack: tuple[Frame, ...]) -> int:
        own = [frame.code for frame in stack if not frame.library]
        named = any(re.search(rf"\.{re.escape(name)}\b", code) for name in modules for code in own)
        return -2 * named - bool(stack and INDEXES.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def unbounded_first(provenance: Provenance) -> Provenance:
    """Sort stacks: operators that can return infinity or NaN for finite values first. Stable."""

    def distance(stack: tuple[Frame, ...]) -> int:
        return -bool(stack and UNBOUNDED.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def _module(constant: str) -> str | None:
    """The attribute name that model code uses for a constant: `tokens` for `encoder.tokens.weight`."""
    parts = [part for part in constant.split(".") if not part.isdigit()]
    names = [part for part in parts if part not in _PARAMETERS]
    return names[-1] if names else None


_MAX_DEPTH = 6
_MAX_BYTES = 1 << 20  # bytes of a source file
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Subscript: "index",
}
_NOT_DATA = re.compile(r"\.(?:shape|size\(\)|sizes|stride\(\))$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Source:
    """A parsed file."""

    lines: list[str]
    tree: ast.Module

    def function_at(self, line: int) -> tuple[Function, ast.ClassDef | None] | None:
        """The innermost function around a line, and the class of a method."""
        found: tuple[Function, ast.ClassDef | None] | None = None
        for node, owner in _functions(self.tree, None):
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                found = node, owner
        return found

    def called(self, call: ast.Call, owner: ast.ClassDef | None) -> Function | None:
        """The function or method of this file that is called. Raises `LookupError` for another file's."""
        if isinstance(call.func, ast.Name):
            return self._function(call.func.id)
        own = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
        if own and call.func.value.id == "self" and owner is not None:  # type: ignore[attr-defined]
            return _named(owner.body, call.func.attr)  # type: ignore[attr-defined]
        return None

    def _function(self, name: str) -> Function | None:
        found = _named(self.tree.body, name)
        if found is None and not hasattr(builtins, name):
            raise LookupError(name)
        return found


def lines_doing(at: ModelLocation, operators: re.Pattern[str]) -> list[ModelLocation] | None:
    """Lines with one of `operators`: the recorded line, or lines of functions that it calls.

    None if unknown: the file has changed since, or the line calls a function of another file.
    """
    source = _read(at)
    function = source.function_at(at.line) if source is not None else None
    if source is None or function is None:
        return None
    statements = [
        node for node in ast.walk(function[0]) if isinstance(node, ast.stmt) and node is not function[0]
    ]
    around = [node for node in statements if node.lineno <= at.line <= (node.end_lineno or node.lineno)]
    try:
        found = sorted(set(_lines(source, around[-1:], function[1], operators, _MAX_DEPTH)))
    except LookupError:
        return None
    return [ModelLocation(file=at.file, line=n, code=source.lines[n - 1].strip()) for n in found]


def _read(at: ModelLocation) -> _Source | None:
    """Parse the file; None if the recorded line has changed."""
    path = Path(at.file)
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        same = at.line <= len(lines) and lines[at.line - 1].strip() == at.code.strip() != ""
        return _Source(lines, ast.parse(text)) if same else None
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None


def _lines(
    source: _Source,
    statements: list[ast.stmt],
    owner: ast.ClassDef | None,
    operators: re.Pattern[str],
    depth: int,
) -> Iterator[int]:
    """Lines with one of the operators in these statements and in the functions that they call."""
    if not depth:
        raise LookupError("calls go too deep")
    for node in (node for statement in statements for node in ast.walk(statement)):
        function = source.called(node, owner) if isinstance(node, ast.Call) else None
        if function is not None and function.name != "forward":
            yield from _lines(source, list(function.body), _owner(source, function), operators, depth - 1)
        elif operators.fullmatch(_operator(node)):
            yield getattr(node, "lineno", 0)


def _owner(source: _Source, function: Function) -> ast.ClassDef | None:
    return next((owner for node, owner in _functions(source.tree, None) if node is function), None)


def _operator(node: ast.AST) -> str:
    """The operator name of a syntax node; empty for other nodes."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op), "")
    if isinstance(node, ast.Subscript):
        return "" if _NOT_DATA.search(ast.unparse(node.value)) or _is_constant_index(node.slice) else "index"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.rstrip("_")
    return ""


def _is_constant_index(index: ast.expr) -> bool:
    """Whether an index consists of literals and slices only, so that data cannot make it out of bounds."""
    return not any(isinstance(node, ast.Name | ast.Attribute | ast.Call) for node in ast.walk(index))


def _functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function under a node with its class, outer functions first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, owner
        yield from _functions(child, child if isinstance(child, ast.ClassDef) else owner)


def _named(body: list[ast.stmt], name: str) -> Function | None:
    return next((node for node in body if isinstance(node, Function) and node.name == name), None)
