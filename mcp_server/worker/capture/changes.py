"""Changes that may make an export or compile pass: of dimensions, options, container types, or code."""

from __future__ import annotations

import ast
import contextlib
import copy
import difflib
import dis
import importlib
import inspect
import linecache
import math
import re
import sys
import textwrap
import traceback
import types
from collections import deque
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, Callable, ContextManager, Iterable, Iterator, Sequence

import torch
from torch.utils import _pytree as pytree

from ..encode import INSTALLED
from ..report import Attempt
from ..tensors import only_tensors
from .rewrites import SIZE, VALUE, WHOLE, Context, Expressions, Rewrite, fitting, of_forms
from .shapes import NO_FAKE, call_of, registered, written

Place = tuple[str, int]
_VIOLATED = re.compile(r"Constraints violated \((?P<names>[\w, ]+)\)")


@dataclass
class Failing:
    """A failed export, or an export whose compile failed: `compile` then repeats the compile.

    `error` is None if nothing failed. `build` compiles a program if a change lets the export pass.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    error: BaseException | None
    compile: Callable[..., Any] | None = None
    build: Callable[..., Any] | None = None
    lines: list[Place] = field(default_factory=list)  # lines of the model, if the error names none
    sources: tuple[str, ...] = ()  # the files from which the export was called
    trees: dict[tuple[Any, str], Any] = field(default_factory=dict)  # rewritten syntax trees, by function
    keep: Callable[[Any], None] | None = None  # gets each program that agrees with eager mode
    grad: bool = False  # whether gradients were recorded at the export
    begun: Any = None  # the Python state before the export, of type `attempts.State`

    @property
    def stage(self) -> str:
        return "compile" if self.compile is not None else "export"


@dataclass
class Change:
    """A change to try: other `options` of the export, or a new syntax `tree` of `owner.attribute`."""

    told: Attempt
    options: dict[str, Any]
    owner: Any = None
    attribute: str = ""
    tree: Any = None
    lines: range = range(0)  # lines of the replaced statement
    during: Callable[[], ContextManager[None]] = contextlib.nullcontext  # entered while the change is tried
    example: tuple[Any, Any] | None = None  # other example inputs for the export
    convert: Callable[[Any], Any] = staticmethod(lambda given: given)  # makes the arguments of the program
    module: Callable[[], Any] | None = None  # makes the module to export in place of the model
    narrows: bool = False  # whether the changed program may reject declared sizes
    exact: bool = True  # whether the results must agree at other values of the example
    factor: int = 1  # the program rejects sizes that are not multiples of it

    def takes(self, sizes: Iterable[int]) -> bool:
        """Whether the changed program must accept these declared sizes."""
        return not self.narrows and all(size % self.factor == 0 for size in sizes)


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def places(failing: Failing) -> list[Place]:
    """List lines of the error's text, then `failing.lines`, then lines of tracebacks, innermost first."""
    told = re.findall(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)', str(failing.error))
    found = [*((file, int(line)) for file, line in reversed(told)), *failing.lines]
    for error in chain(failing.error):
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            found.append((frame.filename, frame.lineno or 0))
    return found


def functions(module: torch.nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """Yield (class, name, function) of each method of a module, its submodules, and their attributes."""
    held = (value for each in module.modules() for value in (each, *vars(each).values()))
    for kind in dict.fromkeys(map(type, held)):
        for owner in kind.__mro__:
            if owner.__module__.partition(".")[0] in ("torch", "builtins", "collections"):
                continue
            for name, value in vars(owner).items():
                if isinstance(value, types.FunctionType):
                    yield owner, name, value


def reachable(module: torch.nn.Module) -> Iterator[tuple[Any, str, Any]]:
    """Yield the methods as `functions` does, and the user's functions that they call, directly or not.

    To replace a function, set its `__code__`, because files import functions by name.
    """
    known = list(functions(module))
    yield from known
    waiting = deque(function for *_, function in known)
    seen = set(map(id, waiting))
    while waiting:
        for value in _named(waiting.popleft()):
            plain = isinstance(value, types.FunctionType) and id(value) not in seen
            if plain and not value.__code__.co_freevars and not INSTALLED.search(value.__code__.co_filename):
                seen.add(id(value))
                waiting.append(value)
                yield value, "__code__", value


def _named(function: Any) -> Iterator[Any]:
    """Yield the globals that a function uses, and the members that it uses of global modules."""
    names = function.__code__.co_names
    for value in (function.__globals__.get(name) for name in names):
        yield value
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] != "torch":
            yield from (vars(value).get(name) for name in names)


def holds(function: Any, place: Place) -> bool:
    """Whether the function contains the line."""
    code = function.__code__
    last = max((line or 0 for _, line in dis.findlinestarts(code)), default=0)
    return bool(place[0] == code.co_filename and code.co_firstlineno <= place[1] <= last)


def changing(module: torch.nn.Module, name: str) -> tuple[str, list[Place]]:
    """The type of an attribute, and the first line of `forward` or its helpers that changes it."""
    kind = type(getattr(module, name, None)).__name__
    for function in _of_forward(module):
        for node in _nodes_of(function):
            if _changes(node, name):
                return kind, [(function.__code__.co_filename, node.lineno)]
    return kind, []


def _of_forward(module: torch.nn.Module) -> list[Any]:
    """List `forward` and the methods that it uses, directly or through others."""
    known, named = list(functions(module)), deque(["forward"])
    found: dict[str, list[Any]] = {}
    while named:
        name = named.popleft()
        if name not in found:
            found[name] = [function for _, method, function in known if method == name]
            nodes = (node for each in found[name] for node in _nodes_of(each))
            named.extend(node.attr for node in nodes if isinstance(node, ast.Attribute))
    return [each for several in found.values() for each in several]


def _changes(node: Any, name: str) -> bool:
    """Whether the node assigns `self.name` or an element of it, or calls a method that changes it."""
    changed: list[Any] = getattr(node, "targets", []) if isinstance(node, ast.Assign) else []
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        changed = [node.target]
    called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
    if called in CHANGING or re.search(r"[a-z]_$", called):
        changed = [node.func.value]
    parts = [each.value if isinstance(each, ast.Subscript) else each for each in changed]
    return any(isinstance(each, ast.Attribute) and ast.unparse(each) == f"self.{name}" for each in parts)


CHANGING = frozenset(
    {"append", "appendleft", "extend", "insert", "pop", "popleft", "clear", "remove", "update", "add"}
    | {"setdefault", "popitem", "discard"}
)
NUMBER = r"Expected a proper Tensor but got None"  # torch 2.8-2.15, for a SymInt in place of a tensor
UNKNOWN_TYPE = r"Unsupported input type|pytree|namedtuple|not a known type|Encountered unrecognized type"
DEFERRED = "prefer_deferred_runtime_asserts_over_guards"
SUGGESTED = "Suggested fixes:"
_SUGGESTED = re.compile(r"^\s+(?P<name>\w+) = (?P<how>Dim\([^\n]*\)|\d+\s*\*\s*_\w+|[A-Za-z_]\w*)\s*$", re.M)


def changes(failing: Failing, runs: Sequence[Callable[[], Any]] = ()) -> Iterator[Change]:
    """Yield the changes to try, first those that keep the declared sizes. `runs` call the model."""
    text = words(failing)
    if re.search(STRUCTURE, text):  # without this, no other change has an effect
        told = Attempt("structure", "nest dynamic_shapes as the arguments are nested")
        code = re.sub(r"Dim\('(\w+)'[^)]*\)", r"\1", repr(failing.options["dynamic_shapes"]))
        told.after = "dynamic_shapes=" + re.sub(r"DimHint\((\w+)\)", r"Dim.\1", code)
        yield Change(told, failing.options)
        return
    yield from registrations(failing, text)
    yield from fakes(failing, text, runs)
    yield from dense(failing)
    yield from traced(failing)
    yield from of_functions(failing, text)
    yield from rewritten(failing, text)
    yield from primed(failing, text)
    yield from larger_example(failing, text)
    yield from tensor_arguments(failing, text)
    yield from suggestions(failing, text)
    if failing.stage == "export":
        yield from options(failing)
        yield from as_operator(failing, text, runs)


STRUCTURE = r"structure of `inputs` and `dynamic_shapes`|its top-level keys|specified at `dynamic_shapes"


def in_structure(failing: Failing) -> Failing:
    """If the error says that the dynamic shapes have another structure, give them that of the arguments.

    If they are not one for each tensor, the shape of an argument is that of each tensor in it.
    """
    shapes = failing.options.get("dynamic_shapes")
    if shapes is None or not re.search(STRUCTURE, words(failing)):
        return failing
    given = _arguments(failing)
    leaves, spec = pytree.tree_flatten(given)
    found = pytree.tree_leaves(shapes, is_leaf=_is_shape)
    if len(found) != len(only_tensors(leaves)):
        by_name = isinstance(shapes, dict) and not given.keys().isdisjoint(shapes)
        each = [shapes] * len(given) if _is_shape(shapes) else getattr(shapes, "values", lambda: shapes)()
        named, found = shapes if by_name else dict(zip(given, each)), []
        for name, value in given.items():
            own, count = pytree.tree_leaves(named.get(name), is_leaf=_is_shape), len(only_tensors(value))
            found += own if len(own) == count else own[:1] * count
    rest = iter(found)
    made = [next(rest, None) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
    return replace(failing, options={**failing.options, "dynamic_shapes": pytree.tree_unflatten(made, spec)})


def _arguments(failing: Failing) -> dict[str, Any]:
    module = importlib.import_module("torch.export.dynamic_shapes")
    return dict(module._combine_args(failing.module, failing.args, failing.kwargs))


def _is_shape(value: Any) -> bool:
    """Whether the value declares the dimensions of one tensor, not of several."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return not any(isinstance(each, (dict, list, tuple)) for each in parts)


def declared_dims(failing: Failing) -> Iterator[tuple[int, int, int, Any]]:
    """Yield the dynamic dimensions: number among the tensors, number among the leaves, dimension, `Dim`."""
    module = importlib.import_module("torch.export.dynamic_shapes")
    found: list[tuple[Any, Any]] = []
    with contextlib.suppress(Exception):  # the dynamic shapes lack the structure of the inputs
        given = _arguments(failing)
        shapes = failing.options["dynamic_shapes"]
        named = shapes if isinstance(shapes, dict) else dict(zip(given, shapes))
        module._tree_map_with_path(lambda _at, *pair: found.append(pair), given, named, tree_name="inputs")
    place = 0
    for number, (leaf, dims) in enumerate(found):
        pairs = dims.items() if isinstance(dims, dict) else enumerate(dims or ())
        for dim, what in pairs if isinstance(leaf, torch.Tensor) else ():
            if what is not None and not isinstance(what, int):
                yield place, number, dim, what
        place += isinstance(leaf, torch.Tensor)


def with_sizes(failing: Failing, sizes: dict[tuple[int, int], int]) -> tuple[Any, Any] | None:
    """The inputs, repeated or cut to `sizes`, by (leaf, dimension). None if a size is 0 or was 0."""
    leaves, spec = pytree.tree_flatten((failing.args, failing.kwargs))
    for (number, dim), size in sizes.items():
        before = leaves[number].shape[dim]
        if size < 1 or not before:
            return None
        index = torch.arange(size, device=leaves[number].device) % before
        leaves[number] = leaves[number].index_select(dim, index)
    copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    copies = [copy.deepcopy(leaf) if is_dataclass(leaf) else leaf for leaf in copies]  # forward may change it
    args, kwargs = pytree.tree_unflatten(copies, spec)
    return args, kwargs


def with_dims(shapes: Any, change: Callable[[Any], Any]) -> Any:
    """The dynamic shapes with `change` applied to each dynamic dimension."""
    if isinstance(shapes, dict):
        return {key: with_dims(value, change) for key, value in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        return type(shapes)(with_dims(value, change) for value in shapes)
    return shapes if shapes is None or isinstance(shapes, int) else change(shapes)


def name_of(dim: Any) -> str:
    """The name of a `Dim`. Empty for `Dim.DYNAMIC` and `Dim.AUTO`."""
    return str(getattr(dim, "__name__", ""))


def is_hint(dim: Any) -> bool:
    """Whether a dimension is declared as `Dim.DYNAMIC` or `Dim.AUTO`."""
    return getattr(getattr(dim, "type", None), "name", "") in ("DYNAMIC", "AUTO")


def suggestions(failing: Failing, text: str) -> Iterator[Change]:
    """Yield an export with the dimensions that torch suggests in the error, except constants."""
    shapes, dim = failing.options.get("dynamic_shapes"), torch.export.Dim
    declared = {name_of(each): each for *_, each in declared_dims(failing)}
    new: dict[str, Any] = {}
    said: dict[str, None] = {}
    for found in _SUGGESTED.finditer(text.partition(SUGGESTED)[2]):
        name, how = found["name"], found["how"].replace(" ", "")
        ends = {end: int(value) for end, value in re.findall(r"(min|max)=(\d+)", how)}
        if how.startswith("Dim("):
            kept = {end: getattr(declared.get(name), end, None) for end in ("min", "max")}
            ends = {**{end: value for end, value in kept.items() if type(value) is int}, **ends}
            new[name] = dim(name, **ends)
            listed = "".join(f", {end}={ends[end]}" for end in ("min", "max") if ends.get(end))
            said[f'{name} = Dim("{name}"{listed})'] = None
            continue
        elif "*" in how:
            new[name] = int(how.partition("*")[0]) * dim(how.partition("*")[2])
        else:
            new[name] = new.get(how) or declared.get(how) or dim(how)
        said[f"{name} = {found['how']}"] = None
    if shapes is None or not new:
        return
    told = Attempt("suggested dimension", "declare the dimension as torch suggests")
    told.after = "; ".join(said)
    narrows = re.search(r"Dim\(|\*", told.after) is not None  # not if sizes are only declared equal
    told.note = "other sizes are refused: pad or split them in the caller" if narrows else ""
    told.before = ", ".join(f'{name} = Dim("{name}")' for name in new if name in declared)
    yield replace(_redeclared(failing, told, lambda each: new.get(name_of(each), each)), narrows=narrows)


LONGEST = 1024  # the largest size that is tried if a `Dim` has no maximum
MOST_GIVEN = 1 << 24  # most elements of an input for which this is tried


def primed(failing: Failing, text: str) -> Iterator[Change]:
    """If forward keeps tables that it builds, yield an export that follows a call with the largest sizes.

    A table that grows with longer inputs is then large enough for all sizes.
    """
    ends = {
        (number, axis): end if isinstance(end := getattr(dim, "max", None), int) else LONGEST
        for _, number, axis, dim in declared_dims(failing)
    }
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    most = math.prod(end / max(leaves[number].shape[axis], 1) for (number, axis), end in ends.items())
    if not ends or not re.search(SIZE, text) or most * max(leaves[n].numel() for n, _ in ends) > MOST_GIVEN:
        return
    given, before = with_sizes(failing, ends), _held(failing.module)
    with contextlib.suppress(Exception), torch.no_grad():
        failing.module(*given[0], **given[1])  # type: ignore[index]
    codes = [
        f"torch.zeros({', '.join(map(str, leaf.shape))}, dtype={leaf.dtype}, device={str(leaf.device)!r})"
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in pytree.tree_leaves(given)
    ]
    if len(codes) != len(failing.args) + len(failing.kwargs) or _held(failing.module) == before:
        return
    names = [*[""] * len(failing.args), *(f"{name}=" for name in failing.kwargs)]
    listed_codes = ", ".join(map("".join, zip(names, codes)))
    told = Attempt("largest first", "call the model once with the largest sizes before the export")
    told.note = "what forward builds and keeps then fits all sizes; it could as well be built in __init__"
    open_ended = [
        each for *_, each in declared_dims(failing) if not isinstance(getattr(each, "max", None), int)
    ]
    dims = {each.__name__: torch.export.Dim(each.__name__, min=each.min, max=LONGEST) for each in open_ended}
    listed = [f'{name} = Dim("{name}", max={LONGEST})' for name in dims]
    told.after = "\n".join((*listed, f"with torch.no_grad():\n    model({listed_codes})"))
    change = _redeclared(failing, told, lambda each: dims.get(name_of(each), each))
    yield replace(change, narrows=bool(dims), during=partial(_called, failing.module, *given))  # type: ignore[misc]


def _held(module: torch.nn.Module) -> list[Any]:
    """List the shapes of the tensors in a module and its submodules, and the lengths of containers."""
    values = (
        value for each in module.modules() for own in (vars(each), each._buffers) for value in own.values()
    )
    return [getattr(v, "shape", len(v) if isinstance(v, (list, dict)) else None) for v in values]


@contextlib.contextmanager
def _called(module: torch.nn.Module, args: Any, kwargs: Any) -> Iterator[None]:
    with torch.no_grad():
        module(*args, **kwargs)
    yield


def larger_example(failing: Failing, text: str) -> Iterator[Change]:
    """Yield an example with size 2 for each dynamic dimension of size 1, because the export fixes size 1."""
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    ones = {
        (number, dim): 2 for _, number, dim, _ in declared_dims(failing) if leaves[number].shape[dim] == 1
    }
    example = with_sizes(failing, ones) if ones and re.search(SIZE, text) else None
    if example is None:
        return
    new = pytree.tree_leaves(example)
    told = Attempt("example of size 1", "export with an example of at least 2 in each dynamic dimension")
    told.note = "torch.export takes a size of 1 in the example as fixed; the package accepts 1 as well"
    changed = [(leaves[number].shape, new[number].shape) for number in sorted({place for place, _ in ones})]
    told.before, told.after = (
        ", ".join(f"torch.randn({', '.join(map(str, pair[side]))})" for pair in changed) for side in (0, 1)
    )
    yield Change(told, failing.options, example=example)


def tensor_arguments(failing: Failing, text: str) -> Iterator[Change]:
    """Pass numbers as tensors. A number with a dynamic shape is a symbol, which most operators reject."""
    if not re.search(NUMBER, text):
        return

    def convert(given: tuple[Any, Any]) -> tuple[Any, Any]:
        args, kwargs = pytree.tree_map_only((int, float), torch.tensor, given)
        return args, kwargs

    told = Attempt("number as a tensor", "pass the number as a tensor, at the export and in each call")
    numbers = [
        leaf for leaf in pytree.tree_leaves((failing.args, failing.kwargs)) if type(leaf) in (int, float)
    ]
    told.before, told.after = (", ".join(map(text.format, numbers)) for text in ("{}", "torch.tensor({})"))
    change = _redeclared(failing, told, lambda dim: dim if name_of(dim) else None)
    yield from [replace(change, convert=convert)] if numbers else []


def options(failing: Failing) -> Iterator[Change]:
    """Yield other options of the export and other declarations of its dimensions."""
    strict = not failing.options.get("strict", False)
    told = Attempt("strict", f"export with strict={strict}", after=f"strict={strict}")
    yield Change(told, {**failing.options, "strict": strict})
    if failing.options.get("dynamic_shapes") is None:
        return
    if DEFERRED in inspect.signature(torch.export.export).parameters:
        note = "the package checks sizes as it runs"
        told = Attempt("deferred asserts", f"export with {DEFERRED}=True", note, after=f"{DEFERRED}=True")
        yield Change(told, {**failing.options, DEFERRED: True})
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    dims = _written(_dim_names(failing))
    sizes = [leaves[number].shape[dim] for _, number, dim, _ in declared_dims(failing)]
    for factor in (2, 4, 8):
        if any(size % factor for size in sizes):
            break
        told = Attempt("multiple", f"declare a multiple of {factor}", "other sizes are refused")
        told.before, told.after = dims, f'{factor} * Dim("k", min=1)'
        yield replace(_redeclared(failing, told, partial(_multiple, factor)), factor=factor)
    note = "sizes from 2 on; the package does not check a range that export narrows"
    told = Attempt("DYNAMIC", "declare the dimension as Dim.DYNAMIC", note, before=dims, after="Dim.DYNAMIC")
    yield _redeclared(failing, told, lambda _each: torch.export.Dim.DYNAMIC)
    yield _static(failing)


def _dim_names(failing: Failing) -> list[str]:
    return list(dict.fromkeys(filter(None, (name_of(dim) for *_, dim in declared_dims(failing)))))


def _written(names: list[str]) -> str:
    return ", ".join(f'Dim("{name}")' for name in names) or "Dim(...)"


def _static(failing: Failing) -> Change:
    """Declare as static the dimensions that the error names, or all if it names none."""
    named, declared = _VIOLATED.search(words(failing)), _dim_names(failing)
    known = named["names"].split(", ") if named is not None else ()
    names = [name for name in declared if name in known] or declared
    action = advice(failing) or "change that line to take every size, or declare the dimension static"
    note = "a static dimension needs inputs padded to one size, or a package for each size"
    told = Attempt("static", action, note, before=_written(names), after="None")
    change = _redeclared(failing, told, lambda each: None if name_of(each) in names else each)
    return replace(change, narrows=True)


def _multiple(factor: int, dim: Any) -> Any:
    return factor * torch.export.Dim(f"{dim.__name__}_{factor}", min=1)


def _redeclared(failing: Failing, told: Attempt, change: Callable[[Any], Any]) -> Change:
    shapes = with_dims(failing.options.get("dynamic_shapes"), change)
    return Change(told, {**failing.options, "dynamic_shapes": shapes})


def registrations(failing: Failing, text: str) -> Iterator[Change]:
    """Register the types of dataclasses and named tuples in the inputs and outputs as containers."""
    if not re.search(UNKNOWN_TYPE, text):
        return
    given, result = with_sizes(failing, {}), None
    with contextlib.suppress(Exception), torch.no_grad():
        result = failing.module(*given[0], **given[1])  # type: ignore[index]
    kinds = dict.fromkeys(map(type, _held_in([*failing.args, *failing.kwargs.values(), result])))
    known = [(kind, *_REGISTERS[hasattr(kind, "_fields")]) for kind in kinds]
    if known:
        calls = [f"{how}({k.__name__}, serialized_type_name={k.__qualname__!r})" for k, how, _ in known]
        note = "the program that loads the package must register it, too"
        told = Attempt("container", "register the type before the export", note, after="\n".join(calls))
        yield Change(told, failing.options, during=partial(_containers, known))


_REGISTERS = {
    False: ("torch.export.register_dataclass", torch.export.register_dataclass),
    True: ("torch.utils._pytree._register_namedtuple", pytree._register_namedtuple),
}


def _held_in(value: Any) -> Iterator[Any]:
    """Yield the dataclasses and named tuples in a value, the outer ones first."""
    if is_dataclass(value) or hasattr(value, "_fields"):
        yield value
    parts = vars(value) if is_dataclass(value) else value
    parts = list(parts.values()) if isinstance(parts, dict) else parts
    for part in parts if isinstance(parts, (list, tuple)) else ():
        yield from _held_in(part)


@contextlib.contextmanager
def _containers(known: list[Any]) -> Iterator[None]:
    """Register types as containers, and remove them from torch's tables afterwards."""
    for kind, _, register in known:
        register(kind, serialized_type_name=kind.__qualname__)
    try:
        yield
    finally:
        for kind, *_ in known:
            for table in (pytree.SUPPORTED_NODES, pytree.SUPPORTED_SERIALIZED_TYPES):
                node: Any = table.pop(kind, None)
                pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(getattr(node, "serialized_type_name", ""), None)


def registration(owner: torch.nn.Module, name: str) -> tuple[Place, Any, str] | None:
    """Place, syntax tree of the value, and code of the statement that sets a parameter or buffer."""
    for _, _, function in functions(owner):
        for node in _nodes_of(function):
            value = None
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == f"self.{name}":
                value = node.value
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "self.register_buffer":
                named = node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == name
                value = node.args[1] if named and len(node.args) > 1 else None
            if value is not None:
                return (function.__code__.co_filename, node.lineno), value, ast.unparse(node)
    return None


def tree_of(function: Any) -> ast.Module | None:
    """The syntax tree of a function, with line numbers of its file. None if it has no source."""
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return None
    return ast.increment_lineno(ast.parse(textwrap.dedent("".join(lines))), first - 1)


def _nodes_of(function: Any) -> Iterator[Any]:
    """Yield the nodes of the syntax tree of a function."""
    tree = tree_of(function)
    yield from ast.walk(tree) if tree is not None else ()


def dense(failing: Failing) -> Iterator[Change]:
    """Make sparse tensors and their products dense, because export and compile reject sparse tensors."""
    sparse = [
        (each, name, value)
        for each in failing.module.modules()
        for own in (each._buffers, vars(each))
        for name, value in own.items()
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided
    ]
    if not sparse:
        return
    dense = of_forms(("torch.sparse.mm(A, B)", "A @ B"), ("torch.spmm(A, B)", "A @ B"))
    products = transformed(functions(failing.module), partial(Expressions, dense))
    told = Attempt("sparse tensor", "keep the tensor dense, and multiply with @")
    told.note = (
        "it then has an element for each zero; if that is too large, keep indices and values, and add up the "
        "products with index_add"
    )
    found = list(filter(None, (registration(each, name) for each, name, _ in sparse)))
    found = [each for n, each in enumerate(found) if each[0] not in [other[0] for other in found[:n]]]
    parts = [(code, *code.rpartition(ast.unparse(value))) for _, value, code in found]
    made = {code: f"{start}{value}.to_dense(){end}" for code, start, value, end in parts}
    made.update((before, after) for *_, lines in products for before, after in lines)
    if found:
        told.file, told.line = found[0][0]
    told.before, told.after = "\n".join(made), "\n".join(made.values())
    tensors = [(*each, each[2].to_dense()) for each in sparse]
    yield Change(told, failing.options, during=partial(replaced, [*tensors, *products]))


DERIVES = re.compile(r"autograd\.grad$|\.backward$|\bfunc\.(grad|vjp|jvp|jac\w+|hessian|grad_and_value)$")
GRADIENT = (
    r"fake tensor in the exported program constant|does not require grad|requires_grad_|autograd_ops"
    r"|'Tensor' object has no attribute 'constant'|functorch tensor"  # errors of torch.func
)
TRACED = """from torch.fx.experimental.proxy_tensor import make_fx
with torch.enable_grad():
    traced = make_fx(model, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*args)
program = torch.export.export(traced, args, dynamic_shapes=(...))  # one entry for each argument"""


def derives(failing: Failing) -> bool:
    """Whether the export failed because the model computes a gradient."""
    return bool(re.search(GRADIENT, words(failing)))


def traced(failing: Failing) -> Iterator[Change]:
    """Export a model that computes a gradient as a graph that has the operators of the gradient."""
    known = [function for *_, function in reachable(failing.module)] if derives(failing) else []
    nodes = ((each.__code__.co_filename, node) for each in known for node in _nodes_of(each))
    taken = (each for each in nodes if isinstance(each[1], ast.Attribute))
    found = [(file, node.lineno) for file, node in taken if DERIVES.search(ast.unparse(node))]
    if not found or failing.kwargs:
        return
    told = Attempt("gradient", "trace the model with make_fx before the export", after=TRACED)
    told.note = "torch.export does not follow a gradient; make_fx writes it out as operators"
    told.file, told.line = found[0]
    make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx

    def module() -> Any:
        with torch.enable_grad():
            given = pytree.tree_map_only(torch.Tensor, torch.clone, failing.args)
            return make_fx(failing.module, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given)

    shapes = failing.options.get("dynamic_shapes")
    shapes = tuple(shapes.values()) if isinstance(shapes, dict) else shapes
    yield Change(told, {**failing.options, "dynamic_shapes": shapes}, module=module)


def of_functions(failing: Failing, text: str) -> Iterator[Change]:
    """Yield the changes of whole functions (`WHOLE`) that fit the error."""
    for row in fitting(text, failing.stage, WHOLE):
        made = transformed((each for each in reachable(failing.module) if each[1] != "__init__"), row.made)
        if made:
            told = Attempt(row.name, row.action, row.changes)
            told.file, told.line = stop(failing) or (inspect.getfile(made[0][2]), 0)
            lines = [line for *_, changed in made for line in changed]
            told.before, told.after = ("\n".join(line[side] for line in lines) for side in (0, 1))
            yield Change(told, failing.options, during=partial(replaced, made))


def transformed(known: Iterable[tuple[Any, str, Any]], kind: Any) -> list[Any]:
    """List (owner, name, old function, new function, changed lines) of functions that `kind` transforms."""
    found: list[Any] = []
    for owner, name, function in known:
        tree = tree_of(function)
        if tree is None:
            continue
        texts = list(map(str.strip, ast.unparse(tree).splitlines()))
        made = ast.fix_missing_locations(kind().visit(tree))
        new_texts = list(map(str.strip, ast.unparse(made).splitlines()))
        parts = difflib.SequenceMatcher(None, texts, new_texts, autojunk=False).get_opcodes()
        changed = [
            ("\n".join(texts[a:b]), "\n".join(new_texts[c:d]))
            for same, a, b, c, d in parts
            if same != "equal"
        ]
        new = compiled_function(made, function) if changed else None
        found += [(*swap(owner, name, new), changed)] if new is not None else []
    return found


def swap(owner: Any, name: str, new: Any) -> tuple[Any, str, Any, Any]:
    """The row of `replaced` that puts a function, or its code, where `reachable` found another."""
    return owner, name, getattr(owner, name), new.__code__ if name == "__code__" else new


@contextlib.contextmanager
def replaced(made: Iterable[Sequence[Any]]) -> Iterator[None]:
    """Set other values during the body. A row has owner, name, old value and new value."""
    rows = [row[:4] for row in made]
    for owner, name, _, new in rows:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, old, _ in rows:
            setattr(owner, name, old)


def fakes(failing: Failing, text: str, runs: Sequence[Callable[[], Any]]) -> Iterator[Change]:
    """Register the missing fake function of an operator, derived from its results in `runs`."""
    found = NO_FAKE.search(text)
    if found is None:
        return
    name = found["made"] or found["defined"]
    calls = list(filter(None, (call_of(name, run) for run in runs)))
    code = written(name, calls)
    if code:
        seen = "it was derived from results in eager mode: check that it holds for all inputs"
        told = Attempt("fake function", "give the operator a fake function", seen, after=code)
        yield Change(told, failing.options, during=partial(registered, name, code))


SCHEMA = {torch.Tensor: "Tensor", bool: "bool", int: "int", float: "float"}
OPERATOR = """@torch.library.custom_op("{name}", mutates_args=(), schema="{schema}")
def {plain}({given}):
    ...  # lines {first} to {last}, as they are
{fake}
# in place of these lines:
{call}"""


def as_operator(failing: Failing, text: str, runs: Sequence[Callable[[], Any]]) -> Iterator[Change]:
    """Move the end of a function, from a line that needs a value, into an operator, which is not compiled."""
    place = stop(failing) if re.search(VALUE, text) else None
    if place is None:
        return
    for owner, name, function in reachable(failing.module):
        tree = tree_of(function) if holds(function, place) else None
        lines = [each.lineno for each in tree.body[0].body] if tree is not None else []  # type: ignore[attr-defined]
        for start in reversed([n for n, line in enumerate(lines) if line <= place[1]]):
            with contextlib.suppress(Exception), torch.no_grad():
                change = _of_end(function, copy.deepcopy(tree), start, runs, (owner, name))
                if change is not None:
                    change.told.file, change.told.line = place
                    yield replace(change, options=failing.options)
                    return


def _of_end(
    function: Any, tree: Any, start: int, runs: Sequence[Callable[[], Any]], at: tuple[Any, str]
) -> Change | None:
    """The change that makes `body[start:]` an operator. None if no operator can have its types."""
    body = tree.body[0].body
    end, body[start:] = body[start:], []
    values = _values_at(function, end[0].lineno, runs[0])
    nodes = [each for part in end for each in ast.walk(part)]
    given = {each.id: each.id for each in nodes if isinstance(each, ast.Name) and each.id in values}
    if given.pop("self", ""):
        of_self = (each for each in nodes if isinstance(each, ast.Attribute))
        own = {each.attr for each in of_self if ast.unparse(each.value) == "self"}
        given.update({name: f"self.{name}" for name in own})
        values = {**values, **{name: getattr(values["self"], name) for name in own}}
    kinds = {name: SCHEMA.get(type(values[name]), "") for name in given}
    if not all(kinds.values()):
        return None
    plain = f"{function.__name__}_end"
    inner = ast.parse(f"def {plain}({', '.join(given)}): pass")
    inner.body[0].body = [Expressions(_without_self).visit(each) for each in end]  # type: ignore[attr-defined]
    names = dict(function.__globals__)
    exec(compile(ast.fix_missing_locations(inner), function.__code__.co_filename, "exec"), names)
    result = names[plain](*(values[name] for name in given))
    results = result if isinstance(result, tuple) else (result,)
    if not all(isinstance(each, torch.Tensor) for each in results):
        return None
    returned = ", ".join(["Tensor"] * len(results))
    returned = f"({returned})" if isinstance(result, tuple) else returned
    schema = f"({', '.join(f'{kind} {name}' for name, kind in kinds.items())}) -> {returned}"
    operator = f"model::{plain}"
    torch.library.custom_op(operator, names[plain], mutates_args=(), schema=schema)
    body += ast.parse(f"return torch.ops.model.{plain}({', '.join(given.values())})").body
    call = ast.unparse(body[-1])
    new = compiled_function(ast.fix_missing_locations(tree), function)
    if new is None:
        return None
    made: list[Any] = [swap(*at, new)]
    with replaced(made):
        fake = written(operator, list(filter(None, (call_of(operator, run) for run in runs))))
    note = "it runs as in eager mode; the program that loads the package must define it, too"
    told = Attempt("operator", "move these lines into a custom operator", note)
    told.before = linecache.getline(function.__code__.co_filename, end[0].lineno).strip()
    first, last = end[0].lineno, end[-1].end_lineno
    words_of = {"plain": plain, "given": ", ".join(given), "first": first, "last": last, "call": call}
    told.after = OPERATOR.format(name=operator, schema=schema, fake=fake, **words_of)
    change = Change(told, {}, *at, tree, during=partial(_defined, operator, fake, made))
    return change if fake else None


@contextlib.contextmanager
def _defined(operator: str, fake: str, made: list[Any]) -> Iterator[None]:
    with registered(operator, fake), replaced(made):
        yield


def _without_self(node: Any, _context: Any) -> Any:
    """Write `self.x` as `x`."""
    own = isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    return ast.Name(node.attr, ast.Load()) if own else None


def _values_at(function: Any, line: int, run: Callable[[], Any]) -> dict[str, Any]:
    """The local variables of a function when a run first reaches this line."""
    found: list[dict[str, Any]] = []

    def look(frame: Any, event: str, _argument: Any) -> Any:
        if frame.f_code is not function.__code__:
            return None
        if event == "line" and frame.f_lineno == line:
            found.append(dict(frame.f_locals))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        run()
    finally:
        sys.settrace(before)
    return found[0]


def stop(failing: Failing) -> Place | None:
    """The innermost line of the model that the error names. None if it names none."""
    known = [function for *_, function in reachable(failing.module)]
    return next((place for place in places(failing) if any(holds(each, place) for each in known)), None)


LAYERS = [
    (
        torch.nn.RNNBase,
        "pad every input to one length in the caller, declare that dimension static, and mask the outputs of "
        "padded steps: the export unrolls the time steps of a recurrent layer, so their number is fixed",
    )
]  # seen with torch 2.13: GRU, LSTM and RNN export with a dynamic batch, but not with a dynamic length


def advice(failing: Failing, reached: Sequence[Place] = ()) -> str:
    """Advice about a layer that needs a fixed size. Empty if no failing line calls such a layer."""
    for place in filter(None, (stop(failing), *failing.lines, *reached)):
        for name in re.findall(r"self\.(\w+)\(", linecache.getline(*place)):
            layers = [getattr(module, name, None) for module in failing.module.modules()]
            for kind, text in LAYERS:
                if any(isinstance(layer, kind) for layer in layers):
                    return text
    return ""


def words(failing: Failing) -> str:
    """The text of the error and of the errors that led to it."""
    return "\n".join(f"{type(each).__name__}: {each}" for each in chain(failing.error))


def rewritten(failing: Failing, text: str) -> Iterator[Change]:
    """Yield the rewrites that fit the error, at the lines that it names or, if none, at all lines."""
    rows = fitting(text, failing.stage)
    known = list(reachable(failing.module)) if rows else []
    told = set(places(failing)) if rows else set()
    is_told = any(holds(function, place) for _, _, function in known for place in told)
    for owner, name, function in known:
        whole = failing.trees.get((owner, name)) or tree_of(function)
        if whole is None:
            continue
        file, definition = function.__code__.co_filename, whole.body[0]
        within = range(definition.lineno + 1, (definition.end_lineno or definition.lineno) + 1)
        inside = {line for where, line in told if where == file and line in within}
        lines = [*sorted(inside), *_set_before(whole, inside)] or ([] if is_told else within)
        for line in lines:
            for row in rows:
                tree = copy.deepcopy(whole)
                change = _of_row(row, tree, line, failing, function, (owner, name))
                if change is not None:
                    change.told.file, change.told.line = file, line
                    yield change


def _set_before(tree: ast.Module, lines: set[int]) -> list[int]:
    """List the lines above that assign the variables which these lines use."""
    nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Name)]
    used = {each.id for each in nodes if each.lineno in lines and isinstance(each.ctx, ast.Load)}
    stored = {each.lineno for each in nodes if each.id in used and isinstance(each.ctx, ast.Store)}
    return sorted((line for line in stored - lines if line < max(lines)), reverse=True)


def _of_row(
    row: Rewrite, tree: Any, line: int, failing: Failing, function: Any, at: tuple[Any, str]
) -> Change | None:
    """The rewrite of a row at a line of a function. None if the row does not fit the line."""
    place = _innermost(tree.body[0], line, row.of)
    if place is None:
        return None
    block, number = place
    before, statement, after = block[:number], block[number], block[number + 1 :]
    told = Attempt(row.name, row.action, row.changes)
    code = function.__code__
    parameters = list(code.co_varnames[1 : code.co_argcount])
    made = row.made(statement, Context(failing.module, before, after, parameters, function.__globals__))
    if made is None:
        return None
    block[number:] = made
    for node in (each for new in made for each in ast.walk(new)):
        if getattr(node, "lineno", 0) < tree.body[0].lineno and "lineno" in node._attributes:
            ast.copy_location(node, statement)  # otherwise the line is that of the template
    same = next(
        (n for n, pair in enumerate(zip(after[::-1], made[::-1])) if pair[0] is not pair[1]),
        min(len(after), len(made)),
    )
    parts = [statement, *after][: len(after) + 1 - same], made[: max(len(made) - same, 1)]
    told.before, told.after = ("\n".join(map(ast.unparse, each)) for each in parts)
    new = compiled_function(tree, function)
    if new is None:
        return None
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    during = partial(replaced, [swap(*at, new)])
    return Change(told, failing.options, *at, tree, lines, during, exact=row.exact)


def _innermost(node: Any, line: int, kind: Any) -> tuple[list[ast.stmt], int] | None:
    """Find the innermost statement of a kind on a line. Return its block and position, or None."""
    for part in ("body", "orelse", "finalbody", "handlers"):
        for number, each in enumerate(block := getattr(node, part, None) or []):
            if each.lineno <= line <= (each.end_lineno or each.lineno):
                inner = _innermost(each, line, kind)
                found = inner is None and part != "handlers" and isinstance(each, kind)
                return (block, number) if found else inner
    return None


def compiled_function(tree: Any, function: Any) -> Any:
    """Compile a changed syntax tree to a function with the old globals and closure. None if it fails."""
    definition = tree.body[0]
    definition.decorator_list = []
    free = function.__code__.co_freevars
    if free:
        outer = ast.parse(f"def _outer({', '.join(free)}):\n    pass").body[0]
        outer.body = [definition]  # type: ignore[attr-defined]
        tree.body = [outer]
        ast.fix_missing_locations(tree)
    try:
        code = compile(tree, function.__code__.co_filename, "exec")
    except (SyntaxError, ValueError):
        return None
    for name in (*(["_outer"] if free else []), function.__name__):
        inside = (each for each in code.co_consts if isinstance(each, types.CodeType))
        code = next(each for each in inside if each.co_name == name)
    cells = dict(zip(free, function.__closure__ or ()))
    names = function.__globals__
    names = names if "torch" in names else {**names, "torch": torch}
    closure = tuple(cells[each] for each in code.co_freevars)
    new = types.FunctionType(code, names, function.__name__, function.__defaults__, closure)
    new.__kwdefaults__ = function.__kwdefaults__
    return new
