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

from mcp_server.logs.facts import Frame
from mcp_server.logs.traceback import is_user_file
from mcp_server.model import ModelLocation
from mcp_server.package.launches import Launch

Source = Literal["kernel_information", "context_guard", "comments", "none"]

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>[^\n]*))?'
    r"(?:\n +(?P<code>[^\n]*))?"
)


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
    stacks: tuple[tuple[Frame, ...], ...] = ()

    @property
    def locations(self) -> tuple[ModelLocation, ...]:
        """The innermost user line of each stack, without duplicates."""
        found = {(at.file, at.line): at for stack in self.stacks if (at := innermost(stack))}
        return tuple(found.values())

    @property
    def folded(self) -> int:
        """Number of library frames that `locations` omits."""
        return sum(not frame.user for stack in self.stacks for frame in stack)


def read_stack(text: str) -> tuple[Frame, ...]:
    """The frames of a Python traceback text, outermost first. What is not in a file was generated."""
    found = []
    for match in _FRAME.finditer(text):
        function, code = ((match[name] or "").strip() for name in ("function", "code"))
        user = not match["file"].startswith("<") and is_user_file(match["file"])
        found.append(Frame(match["file"], int(match["line"]), function, code, user))
    return tuple(found)


def innermost(stack: Iterable[Frame]) -> ModelLocation | None:
    """The innermost line of the user's own code."""
    own = [frame for frame in stack if frame.user]
    return ModelLocation(file=own[-1].file, line=own[-1].line, code=own[-1].code) if own else None


def read_provenance(launch: Launch, information: Mapping[str, object]) -> Provenance:
    """The most detailed provenance of a launch. `information` is kernel_information.json, or empty."""
    entry = information.get(f"{launch.kernel}:{launch.handle}") if launch.handle is not None else None
    if isinstance(entry, Mapping):
        listed = (entry.get(name) for name in ("post_grad_nodes", "pre_grad_nodes", "stack_traces"))
        post, pre, texts = (
            tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
            for value in listed
        )
        return Provenance("kernel_information", post, pre, tuple(filter(None, map(read_stack, texts))))
    if launch.stack.strip():
        stacks = map(read_stack, re.split(r"\n\s*\n", launch.stack))  # separated by blank lines
        return Provenance("context_guard", launch.sources, (), tuple(filter(None, stacks)))
    if launch.sources or launch.atens:
        return Provenance("comments", launch.sources)
    return Provenance("none")


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

    `indexed`: names of constants in the model, such as `encoder.tokens.weight`, which code calls `tokens`.
    """
    modules = []
    for constant in indexed:
        names = [part for part in constant.split(".") if not part.isdigit() and part not in _PARAMETERS]
        modules += names[-1:]

    def distance(stack: tuple[Frame, ...]) -> int:
        own = [frame.code for frame in stack if frame.user]
        named = any(re.search(rf"\.{re.escape(name)}\b", code) for name in modules for code in own)
        return -2 * named - bool(stack and INDEXES.search(stack[-1].code))

    return replace(provenance, stacks=tuple(sorted(provenance.stacks, key=distance)))


def unbounded_first(provenance: Provenance) -> Provenance:
    """Sort stacks: operators that can return infinity or NaN for finite values first. Stable."""
    stacks = sorted(provenance.stacks, key=lambda stack: not (stack and UNBOUNDED.search(stack[-1].code)))
    return replace(provenance, stacks=tuple(stacks))


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
}
_NOT_DATA = re.compile(r"\.(?:shape|size\(\)|sizes|stride\(\))$")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_doing(at: ModelLocation, operators: re.Pattern[str]) -> list[ModelLocation] | None:
    """Lines with one of `operators`: the recorded line, or lines of functions that it calls.

    None if unknown: the file has changed since, or the line calls a function of another file.
    """
    path = Path(at.file)
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    lines = text.splitlines()
    if at.line > len(lines) or not lines[at.line - 1].strip() == at.code.strip() != "":
        return None
    functions = list(_functions(tree, None))
    around = [(f, owner) for f, owner in functions if f.lineno <= at.line <= (f.end_lineno or f.lineno)]
    if not around:
        return None
    function, owner = around[-1]
    inside = (node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function)
    statements = [node for node in inside if node.lineno <= at.line <= (node.end_lineno or node.lineno)]
    try:
        calls = _Calls(tree, dict(functions), operators)
        found = sorted(set(calls.lines(statements[-1:], owner, _MAX_DEPTH)))
    except LookupError:
        return None
    return [ModelLocation(file=at.file, line=n, code=lines[n - 1].strip()) for n in found]


@dataclass(frozen=True)
class _Calls:
    """Follows the calls within a file. `owners` are its functions, each with the class of a method."""

    tree: ast.Module
    owners: Mapping[Function, ast.ClassDef | None]
    operators: re.Pattern[str]

    def lines(self, statements: list[ast.stmt], owner: ast.ClassDef | None, depth: int) -> Iterator[int]:
        """Lines with one of the operators in these statements and in the functions that they call.

        Raises `LookupError` for a function of another file, and for calls that go too deep.
        """
        if not depth:
            raise LookupError("calls go too deep")
        for node in (node for statement in statements for node in ast.walk(statement)):
            function: Function | None = None
            match node:
                case ast.Call(func=ast.Name(id=name)):
                    function = _named(self.tree.body, name)
                    if function is None and not hasattr(builtins, name):
                        raise LookupError(name)
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)) if owner is not None:
                    function = _named(owner.body, name)
            if function is not None and function.name != "forward":
                yield from self.lines(list(function.body), self.owners[function], depth - 1)
            elif self.operators.fullmatch(_operator(node)):
                yield getattr(node, "lineno", 0)


def _operator(node: ast.AST) -> str:
    """The operator name of a syntax node; empty for other nodes."""
    match node:
        case ast.BinOp(op=op):
            return _OPERATORS.get(type(op), "")
        case ast.Subscript(value=value, slice=index):
            # Data cannot make literals and slices out of bounds.
            data = any(isinstance(part, ast.Name | ast.Attribute | ast.Call) for part in ast.walk(index))
            return "index" if data and not _NOT_DATA.search(ast.unparse(value)) else ""
        case ast.Call(func=ast.Attribute(attr=name)):
            return name.rstrip("_")
    return ""


def _functions(node: ast.AST, owner: ast.ClassDef | None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Every function under a node with its class, outer functions first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, owner
        yield from _functions(child, child if isinstance(child, ast.ClassDef) else owner)


def _named(body: list[ast.stmt], name: str) -> Function | None:
    return next((node for node in body if isinstance(node, Function) and node.name == name), None)
