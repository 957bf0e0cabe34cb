"""Reads facts from the file of an exported program without loading it, and the model lines of a launch.

`torch.export` records only frames named `forward` (torch 2.13), so for an operator in a helper it records the
line that calls the helper. If the program runs under the capture hook, the helper's own line is recorded. For
other packages, the helper is looked up in the model's file.
"""

import ast
import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mcp_server.errors import read_json
from mcp_server.logs.facts import Frame
from mcp_server.logs.text import is_user_file
from mcp_server.model import ModelLocation
from mcp_server.package.launches import Launch
from mcp_server.package.members import ZipContainer, read_bytes
from mcp_server.package.problems import PackageError

# models/<name>.json from torch 2.8 on. A device is {"type": "cuda", "index": 0}.
_GRAPH = re.compile(r"(?:^|/)models/[^/]+\.json$")
_METADATA = re.compile(r"_metadata\.json$")
# Operators that mutate an argument end in "_". The excluded namespaces belong to torch and Python.
_IN_PLACE = re.compile(r"aten\.\w*[^_\W]_\.\w+$")
_SPECIAL = re.compile(rf"{_IN_PLACE.pattern}|(?!aten\.|prims?\.|_?operator\.|torch\.|math\.)\w+\.\w+\.\w+$")
_NAMED = re.compile(r'"name": "(\w+)"')
_DEVICE = re.compile(rb'"device":\s*\{\s*"type":\s*"(\w+)"')


def exported_device(path: Path) -> Literal["cpu", "cuda"] | None:
    """The device of the program's tensors: cuda if mixed, None if unknown."""
    types = {found for text in _texts(path, _GRAPH) for found in _DEVICE.findall(text)}
    return "cuda" if b"cuda" in types else "cpu" if types == {b"cpu"} else None


def package_device(path: Path) -> Literal["cpu", "cuda"] | None:
    """The device for which a package was compiled. None if the package does not say."""
    texts = _texts(path, _METADATA)
    return ("cuda" if any(b'"cuda"' in text for text in texts) else "cpu") if texts else None


def _texts(path: Path, name: re.Pattern[str]) -> list[bytes]:
    """Read the members whose names match. Empty if the file is not an archive."""
    try:
        archive = ZipContainer(path)
        return [read_bytes(archive, m.name) for m in archive.members if name.search(m.name)]
    except PackageError:
        return []


@dataclass(frozen=True)
class ExportedFacts:
    """Facts from the graph of an exported program.

    `state` lists fully qualified names of parameters and buffers, `idle` those that no operator reads.
    `fixed` has the flat index of each non-tensor argument and its value at export, which AOTInductor uses in
    every call. `names` are the flat argument names, "" for non-tensors. `ranges` are inclusive bounds of
    dynamic dimensions by symbol. `sizes` has, for each tensor argument, the expressions of its dimensions.
    `special` are operators that mutate an argument or do not belong to torch, each with its model line.
    """

    state: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    fixed: tuple[tuple[int, object], ...] = ()
    names: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)
    sizes: tuple[tuple[str, ...], ...] = ()
    special: tuple[tuple[str, ModelLocation], ...] = ()

    @property
    def in_place(self) -> list[ModelLocation]:
        """The lines at which the model mutates a tensor in place."""
        return list(dict.fromkeys(line for target, line in self.special if _IN_PLACE.match(target)))


def read_exported(path: Path) -> ExportedFacts:
    """Read the graph's facts. Raise `PackageError` for another kind of file.

    Schema: torch/_export/serde/schema.py (2.8-2.15).
    """
    graph = _graph(path)
    if not graph:
        raise PackageError("no_model", f"{path} holds no exported graph")
    specs = graph.get("graph_module", {}).get("signature", {}).get("input_specs", [])
    nodes = graph.get("graph_module", {}).get("graph", {}).get("nodes", [])
    read = set(_NAMED.findall(json.dumps([node.get("inputs") for node in nodes])))
    kept = {
        str(name): str(spec[kind].get("arg", {}).get("name"))
        for spec in specs
        for kind in ("parameter", "buffer")
        if (name := spec.get(kind, {}).get(f"{kind}_name"))
    }
    fixed: list[tuple[int, object]] = []
    names: list[str] = []
    for spec in specs:
        if "user_input" not in spec and "constant_input" not in spec:
            continue
        argument = spec.get("user_input", {}).get("arg") or {}
        # such as {"as_int": 7}
        values = argument or spec.get("constant_input", {}).get("value") or {}
        kind, value = next(iter(values.items()), ("", None))
        if kind in ("as_int", "as_float", "as_bool", "as_string", "as_none"):
            fixed.append((len(names), None if kind == "as_none" else value))
        names.append(str(argument.get("as_tensor", {}).get("name") or ""))
    ranges = graph.get("range_constraints", {}).items()
    tensors = graph.get("graph_module", {}).get("graph", {}).get("tensor_values", {})
    return ExportedFacts(
        state=tuple(kept),
        idle=tuple(name for name, argument in kept.items() if argument not in read),
        fixed=tuple(fixed),
        names=tuple(names),
        ranges={symbol: (bounds.get("min_val"), bounds.get("max_val")) for symbol, bounds in ranges},
        sizes=tuple(tuple(map(_size, tensors.get(name, {}).get("sizes", ()))) for name in names if name),
        special=tuple(_lines(graph, _SPECIAL)),
    )


def _size(dim: Mapping[str, Any]) -> str:
    """The text of a size such as `{"as_int": 8}` or `{"as_expr": {"expr_str": "s77"}}`."""
    return str(dim.get("as_int") or dim.get("as_expr", {}).get("expr_str", ""))


def node_lines(path: Path) -> tuple[tuple[str, ModelLocation], ...]:
    """List each node's operator (`aten.index.Tensor`) with the innermost model line that produced it.

    Raise `PackageError` for another kind of file.
    """
    return tuple(_lines(_graph(path), re.compile("")))


def _graph(path: Path) -> dict[str, Any]:
    """Read the serialised program, in torch's own JSON. Empty if the archive has none."""
    archive = ZipContainer(path)
    name = next((m.name for m in archive.members if _GRAPH.search(m.name)), None)
    return read_json(read_bytes(archive, name)) if name is not None else {}


def _lines(graph: Mapping[str, Any], wanted: re.Pattern[str]) -> Iterator[tuple[str, ModelLocation]]:
    """Yield the operators that match `wanted` and have a model line, each with the line."""
    for node in graph.get("graph_module", {}).get("graph", {}).get("nodes", ()):
        target = str(node.get("target", "")).removeprefix("torch.ops.")
        if not wanted.match(target):
            continue
        line = innermost(read_stack(str(node.get("metadata", {}).get("stack_trace") or "")))
        if line is not None:
            yield target, line


Source = Literal["kernel_information", "context_guard", "comments", "none"]

_FRAME = re.compile(
    r'File "(?P<file>[^"\n]*)", line (?P<line>\d+)(?:, in (?P<function>[^\n]*))?'
    r"(?:\n +(?P<code>[^\n]*))?"
)


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a launch in the model.

    `source` says where this was read. `kernel_information` (compiled with INDUCTOR_PROVENANCE=1) and
    `context_guard` (with TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE=1) have stack frames, `comments` have only
    graph nodes. It is `none` if there are none: C++ kernels have no comment. `stacks` contain all frames.
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
        """The number of library frames that `locations` omits."""
        return sum(not frame.user for stack in self.stacks for frame in stack)


def read_stack(text: str) -> tuple[Frame, ...]:
    """Parse the frames of a Python traceback, outermost first. A frame without a file is generated code."""
    found = []
    for match in _FRAME.finditer(text):
        function, code = ((match[name] or "").strip() for name in ("function", "code"))
        user = not match["file"].startswith("<") and is_user_file(match["file"])
        found.append(Frame(match["file"], int(match["line"]), function, code, user))
    return tuple(found)


def innermost(stack: Iterable[Frame]) -> ModelLocation | None:
    """The innermost line of the user's own code, or None."""
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
# Operators that can return infinity or NaN for finite values, by domain errors or overflow.
UNBOUNDED = re.compile(
    r"(?<!/)/(?!/)|\*\*|\b(?:div\w*|exp\w*|log\w*|r?sqrt|pow|float_power|reciprocal|tan|acos\w*|asin|atanh|sinh|cosh"
    r"|softmax|softmin|normalize|\w*norm|mean|std\w*|var\w*|lgamma|digamma|erfinv|xlogy|cross_entropy|inverse|"
    r"linalg|half|bfloat16|float16)\b"
)
DIVIDES = re.compile(r"//|%|\b(?:div\w*|true_divide|floor_divide|remainder|fmod|mod)\(")
_PARAMETERS = frozenset({"weight", "bias"})


Wanted = Callable[[str], object]  # whether a line has what is looked for
_LARGEST = 1 << 20  # bytes
_DEEPEST = 3  # helpers inside helpers


def in_helpers(at: ModelLocation, wanted: Wanted) -> list[ModelLocation]:
    """The wanted lines of the functions of the same file that a line calls.

    Empty if the file cannot be read, or has other text on that line.
    """
    source = Path(at.file)
    try:
        read = at.code and source.is_file() and source.stat().st_size <= _LARGEST
        lines = _helper_lines(source, source.stat().st_mtime_ns, at.line, at.code) if read else {}
    except OSError:  # the path of another machine or user
        return []
    return [ModelLocation(file=at.file, line=n, code=code) for n, code in lines.items() if wanted(code)]


@functools.lru_cache(256)  # all checks and launches ask about few lines
def _helper_lines(source: Path, _changed_ns: int, line: int, code: str) -> dict[int, str]:
    """All lines of the functions that a line calls, by number."""
    text = source.read_text(errors="replace")
    lines = [each.strip() for each in text.splitlines()]
    try:
        tree = ast.parse(text if lines[line - 1 : line] == [code] else "")
    except (SyntaxError, ValueError, RecursionError):
        return {}
    called = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt) and not hasattr(each, "body")
        if each.lineno <= line <= (each.end_lineno or 0)
    ]
    found: dict[int, str] = {}
    for _ in range(_DEEPEST):
        called = [each for helper in _called(called, tree) for each in helper.body]
        own = (n for each in called for n in range(each.lineno, (each.end_lineno or each.lineno) + 1))
        found |= {number: lines[number - 1] for number in own}
    return found


def _called(statements: Iterable[ast.stmt], tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of the file that the statements call by name. Called modules have frames."""
    calls = [node.func for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    names = {getattr(call, "id", getattr(call, "attr", "")) for call in calls} - {"forward"}
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name in names]


def _into_helpers(provenance: Provenance, wanted: Wanted) -> Provenance:
    """The stacks, continued into helpers if their own line lacks what is wanted."""
    stacks: list[tuple[Frame, ...]] = []
    for stack in provenance.stacks:
        at = innermost(stack)
        inner = in_helpers(at, wanted) if at is not None and not wanted(at.code) else []
        stacks += [(*stack, Frame(each.file, each.line, "", each.code, True)) for each in inner] or [stack]
    return replace(provenance, stacks=tuple(stacks))


def indexing_first(provenance: Provenance, indexed: Collection[str]) -> Provenance:
    """Keep the stacks whose code names the module of an indexed constant.

    If none does, return all stacks, first those that index. `indexed` lists constants such as
    `encoder.tokens.weight`, whose module is `tokens` in code.
    """
    modules = []
    for constant in indexed:
        names = [part for part in constant.split(".") if not part.isdigit() and part not in _PARAMETERS]
        modules += names[-1:]

    def is_named(stack: tuple[Frame, ...]) -> bool:
        own = [frame.code for frame in stack if frame.user]
        return any(re.search(rf"\.{re.escape(name)}\b", code) for name in modules for code in own)

    provenance = _into_helpers(provenance, INDEXES.search)
    named = tuple(stack for stack in provenance.stacks if is_named(stack))
    rest = sorted(provenance.stacks, key=lambda stack: not (stack and INDEXES.search(stack[-1].code)))
    return replace(provenance, stacks=named or tuple(rest))


def unbounded_first(provenance: Provenance) -> Provenance:
    """Sort stacks, first those whose operator can return infinity or NaN for finite values. Stable."""
    provenance = _into_helpers(provenance, UNBOUNDED.search)
    stacks = sorted(provenance.stacks, key=lambda stack: not (stack and UNBOUNDED.search(stack[-1].code)))
    return replace(provenance, stacks=tuple(stacks))
