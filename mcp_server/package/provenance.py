"""From a launch to the lines of the user's model.

The lines of methods and functions that a recorded line of the model calls, read from the source.

`torch.export` writes down the frames that are named `forward` (torch 2.13), so that the line of an operator
in a helper is told as the one that calls the helper.
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
    """One stack frame of the trace of the model, outermost first in a stack. `line` is 1-based."""

    file: str
    line: int
    function: str
    code: str

    @property
    def library(self) -> bool:
        """Whether this is torch or another installed package, or generated code, and not the user's file."""
        return bool(_LIBRARY.search(self.file))


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a launch comes from.

    `source`: `kernel_information` (compiled with INDUCTOR_PROVENANCE=1) and `context_guard` (compiled with
    TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1) know stack frames; `comments` know graph nodes only; C++
    kernels carry no comment, so that `none` is left. `stacks` keep all frames.
    """

    source: Source
    post_grad: tuple[str, ...] = ()
    pre_grad: tuple[str, ...] = ()
    atens: tuple[str, ...] = ()
    stacks: tuple[tuple[Frame, ...], ...] = ()

    @property
    def locations(self) -> tuple[ModelLocation, ...]:
        """The user's own line of each stack, innermost, each once."""
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
        """How many library frames `locations` leaves out."""
        return sum(frame.library for stack in self.stacks for frame in stack)


def read_stack(text: str) -> tuple[Frame, ...]:
    """The frames of a Python traceback text."""
    return tuple(
        Frame(m["file"], int(m["line"]), (m["function"] or "").strip(), (m["code"] or "").strip())
        for m in _FRAME.finditer(text)
    )


def read_provenance(launch: Launch, information: Mapping[str, object]) -> Provenance:
    """The best that is known of a launch; `information` is the package's kernel_information.json, maybe
    empty.
    """
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
    """A guard holds several tracebacks, parted by blank lines."""
    return tuple(stack for part in re.split(r"\n\s*\n", text) if (stack := read_stack(part)))


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str):
        return ()
    return tuple(item for item in value if isinstance(item, str))


INDEXES = re.compile(
    r"embedding|gather\(|scatter|index_\w+\(|take(?:_along_dim)?\(|\.put_?\(|(?<!shape)(?<![\s(=,])\[(?!\])"
)
# operators that can make an infinity or a NaN of finite values: outside their domain, or beyond the dtype
UNBOUNDED = re.compile(
    r"(?<!/)/(?!/)|\*\*|\b(?:div\w*|exp\w*|log\w*|r?sqrt|pow|float_power|reciprocal|tan|acos\w*|asin|atanh|sinh|cosh"
    r"|softmax|softmin|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inverse|"
    r"linalg|half|bfloat16|float16)\b"
)
DIVIDES = re.compile(r"//|%|\b(?:div\w*|true_divide|floor_divide|remainder|fmod|mod)\(")
_PARAMETERS = frozenset({"weight", "bias"})


def indexing_first(provenance: Provenance, indexed: Collection[str]) -> Provenance:
    """The same, with the stacks first that name the indexed constant's module, then those that index.

    `indexed`: names of constants in the model, such as `encoder.tokens.weight`. The order of equals stays.
    """
    modules = [name for constant in indexed if (name := _module(constant))]

    def distance(stack: tuple[Frame, ...]) -> int:
        own = [frame.code for frame in stack if not frame.library]
        named = any(re.search(rf"\.{re.escape(name)}\b", code) for name in modules for code in own)
        return -2 * named - bool(stack and INDEXES.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def unbounded_first(provenance: Provenance) -> Provenance:
    """The same, with the stacks first whose operator can make a value that is not finite of finite ones."""

    def distance(stack: tuple[Frame, ...]) -> int:
        return -bool(stack and UNBOUNDED.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def _module(constant: str) -> str | None:
    """The attribute by which a model's code reaches it: `tokens` of `encoder.tokens.weight`."""
    parts = [part for part in constant.split(".") if not part.isdigit()]
    names = [part for part in parts if part not in _PARAMETERS]
    return names[-1] if names else None


_DEEPEST = 6
_LONGEST = 1 << 20  # bytes of a source file
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
        """The innermost function around a line, and the class that it is a method of."""
        found: tuple[Function, ast.ClassDef | None] | None = None
        for node, owner in _functions(self.tree, None):
            if node.lineno <= line <= (node.end_lineno or node.lineno):
                found = node, owner
        return found

    def called(self, call: ast.Call, owner: ast.ClassDef | None) -> Function | None:
        """The method or function of this file that a call names; LookupError for one of another file."""
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
    """The lines that do one of `operators`: a recorded line, or what it calls. None where that is open.

    It is where the file is another one by now, and where the line calls what is not in it.
    """
    source = _read(at)
    place = source.function_at(at.line) if source is not None else None
    if source is None or place is None:
        return None
    statements = [node for node in ast.walk(place[0]) if isinstance(node, ast.stmt) and node is not place[0]]
    around = [node for node in statements if node.lineno <= at.line <= (node.end_lineno or node.lineno)]
    try:
        found = sorted(set(_lines(source, around[-1:], place[1], operators, _DEEPEST)))
    except LookupError:
        return None
    return [ModelLocation(file=at.file, line=n, code=source.lines[n - 1].strip()) for n in found]


def _read(at: ModelLocation) -> _Source | None:
    """The file as it was when the line was recorded, as far as that line tells."""
    path = Path(at.file)
    try:
        if path.stat().st_size > _LONGEST:
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
    """Lines with one of the operators, in these statements and in what they call."""
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
    """The name of the operator that a piece of source does; empty for what is none."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS.get(type(node.op), "")
    if isinstance(node, ast.Subscript):
        return "" if _NOT_DATA.search(ast.unparse(node.value)) or _by_numbers(node.slice) else "index"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr.rstrip("_")
    return ""


def _by_numbers(index: ast.expr) -> bool:
    """Whether an index is made of numbers and slices alone: no data can be out of its bound."""
    return not any(isinstance(node, ast.Name | ast.Attribute | ast.Call) for node in ast.walk(index))


def _functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function below a node with its class, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, owner
        yield from _functions(child, child if isinstance(child, ast.ClassDef) else owner)


def _named(body: list[ast.stmt], name: str) -> Function | None:
    return next((node for node in body if isinstance(node, Function) and node.name == name), None)
