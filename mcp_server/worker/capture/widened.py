"""Exports a model again with a range that includes a size with which its package was called."""

from __future__ import annotations

import ast
import linecache
import re
from typing import Any, Dict, Iterator, List, Tuple

import torch

from ..compare import compare_all
from ..tensors import only_tensors
from .attempts import exported, restore, silent, with_sizes
from .changes import Failing, declared_dims, with_dims
from .events import Attempt

Shapes = List[Tuple[Tuple[int, ...], ...]]


def widened(failing: Failing, shapes: Shapes) -> List[Attempt]:
    """Return an attempt for each bound of a `Dim` that calls exceed. Restores the module and torch."""
    state = {name: value.detach().clone() for name, value in failing.module.state_dict().items()}
    random = torch.get_rng_state()
    try:
        with silent():
            return [_attempt(failing, *each) for each in _passed(failing, shapes)]
    finally:
        restore(failing.module, state)
        torch.set_rng_state(random)


def _passed(failing: Failing, shapes: Shapes) -> Iterator[Tuple[Any, str, int]]:
    """Yield each `Dim` that is not derived, the bound that calls exceed, and the size farthest from it."""
    declared = list(declared_dims(failing))
    derived = {getattr(dim, "root", dim).__name__ for *_, dim in declared if hasattr(dim, "root")}
    sizes: Dict[str, List[int]] = {}
    dims: Dict[str, Any] = {}
    for place, _, axis, dim in declared:
        name = getattr(dim, "__name__", "")
        if name and name not in derived and not hasattr(dim, "root"):
            dims[name] = dim
            found = (shape[place] for shape in shapes if len(shape) > place)
            sizes.setdefault(name, []).extend(shape[axis] for shape in found if len(shape) > axis)
    for name, dim in dims.items():
        if sizes[name] and min(sizes[name]) < dim.min:
            yield dim, "min", min(sizes[name])
        if sizes[name] and max(sizes[name]) > dim.max:
            yield dim, "max", max(sizes[name])


def _attempt(failing: Failing, dim: Any, bound: str, size: int) -> Attempt:
    name = dim.__name__
    told = Attempt(bound, f"export with {bound}={size} for {name}")
    told.file, told.line, told.before, told.after = declaration(failing, name, bound, size)
    places = [each for each in declared_dims(failing) if getattr(each[3], "__name__", "") == name]
    told.widened = [(place, axis) for place, _, axis, _ in places]
    ends = {end: value for end in ("min", "max") if isinstance(value := getattr(dim, end), int)}
    new = torch.export.Dim(name, **{**ends, bound: size})
    changed = with_dims(
        failing.options["dynamic_shapes"], lambda each: new if each.__name__ == name else each
    )
    given = with_sizes(failing, {(number, axis): size for _, number, axis, _ in places})
    stage = "eager mode"
    try:
        assert given is not None, "the example inputs cannot have this size"
        with torch.no_grad():
            wanted = only_tensors(failing.module(*given[0], **given[1]))
        stage = "the export"
        program = exported(failing, {**failing.options, "dynamic_shapes": changed})
        got = only_tensors(program.module()(*given[0], **given[1]))
        told.outcome = "passes" if compare_all(wanted, got).equal else "differs"
    except Exception as error:
        told.note, told.error = stage, f"{type(error).__name__}: {error}"[:1000]
    return told


def declaration(failing: Failing, name: str, bound: str, size: int) -> Tuple[str, int, str, str]:
    """Return file, line and text of the one line that declares a `Dim`, and the text with another bound.

    The texts name only the `Dim` if its line is unknown.
    """
    found = [(file, call) for file in failing.sources for call in _declared_in(file, name)]
    if len(found) == 1:
        file, call = found[0]
        line = linecache.getline(file, call.lineno)
        start, end = (len(line.encode()[:at].decode()) for at in (call.col_offset, call.end_col_offset))
        new = re.sub(rf"\b{bound}\s*=\s*[^,)]+", f"{bound}={size}", line[start:end])
        if call.lineno == call.end_lineno and new != line[start:end]:
            return file, call.lineno, line.strip(), (line[:start] + new + line[end:]).strip()
    return "", 0, f'Dim("{name}", ...)', f'Dim("{name}", {bound}={size}, ...)'


def _declared_in(file: str, name: str) -> Iterator[Any]:
    """Yield the calls `Dim("name", ...)` of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        first: Any = node.args[0] if called == "Dim" and node.args else None  # type: ignore[attr-defined]
        if isinstance(first, ast.Constant) and first.value == name:
            yield node
