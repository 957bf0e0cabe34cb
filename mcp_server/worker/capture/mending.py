"""Tries what makes an export or a compile pass: options, other dimensions, rewrites of one statement.

It runs in the program itself, once that has ended with the error, on its own module and inputs. Nothing of
the user's is changed: a rewrite is a function in memory, and is taken back.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import itertools
import linecache
import os
import re
import tempfile
import textwrap
import time
import traceback
import types
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils import _pytree as pytree

from .events import Attempt
from .rewrites import fitting

BUDGET_S = 60.0
MOST = 14
DELTAS = (-1, 1)
CLOSE = {torch.float16: 1e-2, torch.bfloat16: 3e-2, torch.float64: 1e-7}
Place = Tuple[str, int]


@dataclass
class Failing:
    """An export, or a compile of one, that raised `error`. `compile` repeats the compile of a program."""

    module: torch.nn.Module
    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]
    options: Dict[str, Any]
    error: BaseException
    compile: Optional[Callable[[Any], Any]] = None
    lines: List[Place] = field(default_factory=list)  # of the model, where the error tells none

    @property
    def stage(self) -> str:
        return "compile" if self.compile is not None else "export"


@dataclass
class Context:
    """What a rewrite may look at beside its statement: the module, and the statements behind."""

    module: torch.nn.Module
    after: List[ast.stmt]


@dataclass
class Change:
    """One thing to do: `options` of the export, or a function in the place of another."""

    name: str
    action: str
    options: Dict[str, Any]
    place: Optional[Place] = None
    before: str = ""
    after: str = ""
    note: str = ""
    owner: Any = None
    attribute: str = ""
    function: Any = None


def attempts(failing: Failing) -> List[Attempt]:
    """What was tried, in order, until something passed. The state of the module and of torch is kept."""
    began, found = time.monotonic(), []
    state = {name: value.detach().clone() for name, value in failing.module.state_dict().items()}
    random = torch.get_rng_state()
    try:
        if failing.stage == "export" and not any(inside_model(failing, each) for each in places(failing)):
            failing.lines = drafted(failing)
            restore(failing.module, state)
        wanted = list(references(failing, state))
        for change in itertools.islice(changes(failing), MOST):
            if time.monotonic() - began > BUDGET_S:
                break
            found.append(attempt(failing, change, wanted, state))
            if found[-1].outcome == "passes":
                found[-1].again = fails_again(failing, state)
                break
    finally:
        restore(failing.module, state)
        torch.set_rng_state(random)
    return found


def restore(module: torch.nn.Module, state: Dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name in state and value.shape == state[name].shape:
                value.copy_(state[name])


def inside_model(failing: Failing, place: Place) -> bool:
    return any(holds(function, place) for _, _, function in functions(failing.module))


def drafted(failing: Failing) -> List[Place]:
    """The lines at which `draft_export` narrows a size or meets a value, the innermost of each."""
    draft = getattr(torch.export, "draft_export", None)
    if draft is None:
        return []
    found = []
    with contextlib.suppress(Exception), torch.no_grad(), without_trace_log():
        shapes = failing.options.get("dynamic_shapes")
        program = draft(
            failing.module, failing.args, failing.kwargs or None, dynamic_shapes=shapes, strict=False
        )
        for each in program._report.failures:
            for frame in reversed(each.data.get("user_stack") or each.data.get("stack") or []):
                if (place := line_of(failing, frame)) is not None:
                    found.append(place)
                    break
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def without_trace_log() -> Iterator[None]:
    """Keeps the log that `draft_export` leaves open in a temporary folder, closes it and removes it.

    Source: torch/export/_draft_export.py, `CaptureStructuredTrace`, torch 2.13.
    """
    module = importlib.import_module("torch.export._draft_export")
    kind = module.CaptureStructuredTrace
    leave = kind.__exit__

    def close(trace: Any, *error: Any) -> None:
        leave(trace, *error)
        trace.close()

    before = os.environ.get("TORCH_TRACE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_TRACE"], kind.__exit__ = folder, close
        try:
            yield
        finally:
            kind.__exit__ = leave
            del os.environ["TORCH_TRACE"]
            if before is not None:
                os.environ["TORCH_TRACE"] = before


def line_of(failing: Failing, frame: Any) -> Optional[Place]:
    """The place of a frame of the report, which has a line and its code."""
    for _, _, function in functions(failing.module):
        place = (function.__code__.co_filename, int(frame.get("line") or 0))
        code = linecache.getline(*place).strip()
        if holds(function, place) and code and code == str(frame.get("loc") or "").strip():
            return place
    return None


# Inputs of other sizes, and what eager mode gives for them.


def dynamic_places(failing: Failing) -> Dict[int, List[int]]:
    """The dimensions that were asked to be dynamic, by the number of the tensor among the leaves."""
    shapes = failing.options.get("dynamic_shapes")
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    if shapes is None:
        return {}
    flat = shapes.values() if isinstance(shapes, dict) else shapes
    tensors = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    found: Dict[int, List[int]] = {}
    given = list(flat) if len(list(flat)) == len(tensors) else []
    for number, each in zip(tensors, given):
        dims = each.items() if isinstance(each, dict) else enumerate(each or ())
        found[number] = [dim for dim, what in dims if what is not None and not isinstance(what, int)]
    return found


def resized(failing: Failing, delta: int) -> Optional[Tuple[Any, Any]]:
    """The inputs with every dynamic dimension longer or shorter by `delta`; None where they have none."""
    places = dynamic_places(failing)
    leaves, spec = pytree.tree_flatten((failing.args, failing.kwargs))
    if delta and not any(places.values()):
        return None
    for number, dims in places.items():
        for dim in dims if delta else ():
            size = leaves[number].shape[dim] + delta
            if size < 1 or not leaves[number].shape[dim]:
                return None
            index = torch.arange(size, device=leaves[number].device) % leaves[number].shape[dim]
            leaves[number] = leaves[number].index_select(dim, index)
    copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(copies, spec)
    return args, kwargs


def references(failing: Failing, state: Dict[str, torch.Tensor]) -> Iterator[Tuple[int, List[Any]]]:
    """What eager mode gives, for the inputs and for other sizes of them."""
    for delta in (0, *DELTAS):
        given = resized(failing, delta)
        if given is None:
            continue
        restore(failing.module, state)
        try:
            with torch.no_grad():
                yield delta, tensors(failing.module(*given[0], **given[1]))
        except Exception:
            continue  # eager mode does not take this size either


def tensors(value: Any) -> List[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def same(first: List[torch.Tensor], second: List[torch.Tensor]) -> bool:
    pairs = zip(first, second)
    return len(first) == len(second) and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(
            a.double(), b.double(), CLOSE.get(a.dtype, 1e-4), CLOSE.get(a.dtype, 1e-4), equal_nan=True
        )
        for a, b in pairs
    )


# One attempt.


def attempt(
    failing: Failing, change: Change, wanted: List[Tuple[int, List[Any]]], state: Dict[str, torch.Tensor]
) -> Attempt:
    """The export (and compile) with a change, compared with eager mode at each size."""
    made = Attempt(
        name=change.name,
        action=change.action,
        note=change.note,
        file=change.place[0] if change.place else "",
        line=change.place[1] if change.place else 0,
        before=change.before,
        after=change.after,
    )
    old = getattr(change.owner, change.attribute) if change.owner is not None else None
    try:
        if change.owner is not None:
            setattr(change.owner, change.attribute, change.function)
        restore(failing.module, state)
        program = exported(failing, change.options)
        for delta, expected in wanted:
            given = resized(failing, delta)
            assert given is not None
            try:
                got = tensors(program.module()(*given[0], **given[1]))
            except Exception as error:
                if delta == 0:
                    raise
                made.error = f"at another size: {error}"[:300]
                continue
            made.sizes += 1
            if not same(expected, got):
                made.outcome = "differs"
                return made
        if failing.compile is not None:
            failing.compile(program)
        made.outcome = "passes" if made.sizes else "differs"
    except Exception as error:
        made.outcome, made.error = "fails", f"{type(error).__name__}: {error}"[:300]
    finally:
        if change.owner is not None:
            setattr(change.owner, change.attribute, old)
        restore(failing.module, state)
    return made


def exported(failing: Failing, options: Dict[str, Any]) -> Any:
    export = getattr(torch.export.export, "__wrapped__", torch.export.export)
    deferred = options.get("prefer_deferred_runtime_asserts_over_guards")
    with torch.no_grad():
        asked = {name: value for name, value in options.items() if value is not None}
        if deferred:
            asked["prefer_deferred_runtime_asserts_over_guards"] = True
        return export(failing.module, failing.args, failing.kwargs or None, **asked)


def fails_again(failing: Failing, state: Dict[str, torch.Tensor]) -> str:
    """The error of the same without the change; empty if there is none."""
    restore(failing.module, state)
    try:
        program = exported(failing, failing.options)
        if failing.compile is not None:
            failing.compile(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


# What is tried, the likeliest first.


def changes(failing: Failing) -> Iterator[Change]:
    text = "\n".join(f"{type(each).__name__}: {each}" for each in chain(failing.error))
    yield from suggestions(failing, text)
    yield from registrations(failing, text)
    yield from rewritten(failing, text)
    if failing.stage == "export":
        yield from options(failing)


_SUGGESTED = re.compile(r"^\s+(?P<name>\w+) = (?P<how>Dim\([^\n]*\)|\d+\s*\*\s*_\w+|[A-Za-z_]\w*)\s*$", re.M)


def with_dims(shapes: Any, change: Callable[[Any], Any]) -> Any:
    """The dynamic shapes with each dimension replaced."""
    if isinstance(shapes, dict):
        return {key: with_dims(value, change) for key, value in shapes.items()}
    if isinstance(shapes, (list, tuple)):
        return type(shapes)(with_dims(value, change) for value in shapes)
    return change(shapes) if hasattr(shapes, "__name__") and not isinstance(shapes, int) else shapes


def suggestions(failing: Failing, text: str) -> Iterator[Change]:
    """What torch itself suggests for the dimensions, constants excepted."""
    shapes, dim = failing.options.get("dynamic_shapes"), torch.export.Dim
    advice = text.partition("Suggested fixes:")[2]
    new: Dict[str, Any] = {}
    said = []
    for found in _SUGGESTED.finditer(advice):
        name, how = found["name"], found["how"].replace(" ", "")
        ends = {end: int(value) for end, value in re.findall(r"(min|max)=(\d+)", how)}
        if how.startswith("Dim("):
            new[name] = dim(name, **ends)
        elif "*" in how:
            new[name] = int(how.partition("*")[0]) * dim(how.partition("*")[2])
        else:
            new[name] = new.get(how) or dim(how)
        shown = f"{name} = {re.sub(r', m(?:ax|in)=-?(?:int_)?oo', '', found['how'])}"
        if shown not in said:
            said.append(shown)
    if shapes is None or not new:
        return
    changed = with_dims(shapes, lambda each: new.get(each.__name__, each))
    yield Change(
        "suggested dimension",
        "declare the dimension as torch suggests",
        {**failing.options, "dynamic_shapes": changed},
        before=", ".join(f'{name} = Dim("{name}")' for name in new),
        after="; ".join(said),
        note="sizes outside of it are refused",
    )


def options(failing: Failing) -> Iterator[Change]:
    """Other ways to export the same."""
    strict = not failing.options.get("strict", False)
    told = f"strict={strict}"
    yield Change("strict", f"export with {told}", {**failing.options, "strict": strict}, after=told)
    shapes = failing.options.get("dynamic_shapes")
    if shapes is None:
        return
    if "prefer_deferred_runtime_asserts_over_guards" in inspect.signature(torch.export.export).parameters:
        asked = {**failing.options, "prefer_deferred_runtime_asserts_over_guards": True}
        how = "prefer_deferred_runtime_asserts_over_guards=True"
        yield Change(
            "deferred asserts",
            f"export with {how}",
            asked,
            after=how,
            note="the package checks sizes as it runs",
        )
    for factor in (2, 4, 8):
        if any(leaf % factor for leaf in sizes(failing)):
            break
        multiple = with_dims(shapes, partial(times, factor))
        asked = {**failing.options, "dynamic_shapes": multiple}
        after = f'{factor} * Dim("k", min=1)'
        yield Change(
            "multiple",
            f"declare a multiple of {factor}",
            asked,
            before="Dim(...)",
            after=after,
            note="other sizes are refused",
        )
    free = with_dims(shapes, lambda _each: torch.export.Dim.DYNAMIC)
    asked = {**failing.options, "dynamic_shapes": free}
    note = "sizes from 2 on; the package does not check a range that export narrows"
    yield Change(
        "DYNAMIC",
        "declare the dimension as Dim.DYNAMIC",
        asked,
        before="Dim(...)",
        after="Dim.DYNAMIC",
        note=note,
    )


def times(factor: int, dim: Any) -> Any:
    return factor * torch.export.Dim(f"{dim.__name__}_{factor}", min=1)


def sizes(failing: Failing) -> List[int]:
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    return [leaves[number].shape[dim] for number, dims in dynamic_places(failing).items() for dim in dims]


UNKNOWN_TYPE = r"Unsupported input type|pytree|namedtuple|not a known type|Encountered unrecognized type"


def registrations(failing: Failing, text: str) -> Iterator[Change]:
    """Types of inputs and outputs that torch does not know as containers."""
    if not re.search(UNKNOWN_TYPE, text):
        return
    result = None
    with contextlib.suppress(Exception), torch.no_grad():
        result = failing.module(*failing.args, **failing.kwargs)
    for value in (*failing.args, *failing.kwargs.values(), result):
        kind = type(value)
        if hasattr(kind, "__dataclass_fields__") and hasattr(torch.export, "register_dataclass"):
            how, register = "torch.export.register_dataclass", torch.export.register_dataclass
        elif isinstance(value, tuple) and hasattr(kind, "_fields"):
            how, register = "torch.utils._pytree._register_namedtuple", pytree._register_namedtuple
        else:
            continue
        with contextlib.suppress(Exception):
            register(kind, serialized_type_name=kind.__qualname__)
            call = f"{how}({kind.__name__}, serialized_type_name={kind.__qualname__!r})"
            yield Change("container", "register the type before the export", failing.options, after=call)


# Rewrites.


def chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """An exception and those that it came from."""
    seen: List[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__


def places(failing: Failing) -> List[Place]:
    """The lines of the model that the error tells, the innermost first."""
    found: List[Place] = []
    for error in chain(failing.error):
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            found.append((frame.filename, frame.lineno or 0))
    found = [*failing.lines, *found]
    told = re.findall(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)', str(failing.error))
    return [*((file, int(line)) for file, line in reversed(told)), *found]


def functions(module: torch.nn.Module) -> Iterator[Tuple[Any, str, Any]]:
    """Each method of the classes of a module and its parts: class, name, function."""
    for kind in dict.fromkeys(type(each) for each in module.modules()):
        for owner in kind.__mro__:
            if owner.__module__.partition(".")[0] == "torch" or owner is object:
                continue
            for name, value in vars(owner).items():
                if isinstance(value, types.FunctionType):
                    yield owner, name, value


def rewritten(failing: Failing, text: str) -> Iterator[Change]:
    rows = fitting(text, failing.stage)
    if not rows:
        return
    known = list(functions(failing.module))
    told = set(places(failing))
    is_told = any(holds(function, place) for _, _, function in known for place in told)
    for owner, name, function in known:
        try:
            lines, first = inspect.getsourcelines(function)
        except (OSError, TypeError):
            continue
        file = function.__code__.co_filename
        inside = {line for where, line in told if where == file and first <= line < first + len(lines)}
        wanted = sorted(inside) or ([] if is_told else list(range(first + 1, first + len(lines))))
        for line in wanted:
            for row in rows:
                for change in of_row(row, owner, name, function, lines, first, line, failing):
                    yield change


def holds(function: Any, place: Place) -> bool:
    """Whether a line lies in a function."""
    code = function.__code__
    last = (
        max((line for _, _, line in code.co_lines() if line), default=0) if hasattr(code, "co_lines") else 0
    )
    return bool(place[0] == code.co_filename and code.co_firstlineno <= place[1] <= last)


def of_row(
    row: Any, owner: Any, name: str, function: Any, lines: List[str], first: int, line: int, failing: Failing
) -> Iterator[Change]:
    tree = ast.parse(textwrap.dedent("".join(lines)))
    place = innermost(tree.body[0], line - first + 1)
    if place is None:
        return
    block, number = place
    statement = block[number]
    before = ast.unparse(statement)
    made = row.made(statement, Context(failing.module, block[number + 1 :]))
    if made is None:
        return
    rest = len(block) - number - 1
    shown = made[: max(len(made) - rest, 1)]
    block[number:] = made
    ast.fix_missing_locations(tree)
    new = compiled(tree, function)
    if new is None:
        return
    yield Change(
        row.name,
        row.action,
        failing.options,
        place=(function.__code__.co_filename, line),
        before=before,
        after="\n".join(ast.unparse(each) for each in shown),
        note=row.changes,
        owner=owner,
        attribute=name,
        function=new,
    )


def innermost(node: Any, line: int) -> Optional[Tuple[List[ast.stmt], int]]:
    """The block and the place of the statement on a line."""
    for part in ("body", "orelse", "finalbody", "handlers"):
        for number, each in enumerate(block := getattr(node, part, None) or []):
            if each.lineno <= line <= (each.end_lineno or each.lineno):
                inner = innermost(each, line)
                if inner is None and not isinstance(
                    each, ast.excepthandler if hasattr(ast, "excepthandler") else ()
                ):
                    return block, number
                return inner
    return None


def compiled(tree: Any, function: Any) -> Any:
    """The function of a changed tree, in the place of the old one; None where it does not compile."""
    definition = tree.body[0]
    definition.decorator_list = []
    free = function.__code__.co_freevars
    if free:
        outer = ast.parse(f"def _outer({', '.join(free)}):\n    pass").body[0]
        outer.body = [definition]  # type: ignore[attr-defined]
        tree.body = [outer]
        ast.fix_missing_locations(tree)
    try:
        code = compile(tree, f"<{function.__code__.co_filename}, rewritten>", "exec")
    except (SyntaxError, ValueError):
        return None
    for name in (*(["_outer"] if free else []), function.__name__):
        code = next(
            each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == name
        )
    cells = dict(zip(free, function.__closure__ or ()))
    names = (
        function.__globals__ if "torch" in function.__globals__ else {**function.__globals__, "torch": torch}
    )
    closure = tuple(cells[each] for each in code.co_freevars)
    new = types.FunctionType(code, names, function.__name__, function.__defaults__, closure)
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def compile_with(configs: Any) -> Callable[[Any], Any]:
    """Compiles a program into a file that goes again."""

    def again(program: Any) -> None:
        compile_ = torch._inductor.aoti_compile_and_package
        compile_ = getattr(compile_, "__wrapped__", compile_)
        with tempfile.TemporaryDirectory() as folder:
            compile_(program, package_path=os.path.join(folder, "tried.pt2"), inductor_configs=configs)

    return again
