"""Tries changes of a failed export or compile until one passes and gives eager mode's numbers.

This runs inside the program, after the error that ended it, on its module and inputs. No file of the user
changes: a rewrite is a function in memory, and is undone.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib
import itertools
import linecache
import logging
import math
import os
import re
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Callable, Iterator

import torch
from torch.utils import _pytree as pytree

from ..compare import compare_all
from ..events import SizeCompared
from ..loading import compiled, load, load_exported
from ..protocol import SizesRequest
from ..report import Attempt, Report
from ..tensors import only_tensors
from .changes import (
    SUGGESTED,
    Change,
    Failing,
    Place,
    chain,
    changes,
    declared_dims,
    derives,
    functions,
    in_structure,
    is_hint,
    name_of,
    reachable,
    registration,
    replaced,
    rewritten,
    stop,
    suggestions,
    transformed,
    with_dims,
    with_sizes,
    words,
)
from .memory import version_of
from .rewrites import InBuffer
from .shapes import Restriction, broken, symbols_of
from .shapes import places as places_of

BUDGET_S = 60.0  # processor time of this process and its compilers
MOST = 14
DEPTH = 3  # most changes in one attempt
QUICK_S = 8.0  # after a longer export, do not compile, which would take minutes
# Sizes at which a change is compared with eager mode: each function gets the example's size and its `Dim`.
STEPS: dict[str, Callable[[int, Any], int]] = {
    "example": lambda size, _dim: size,
    "less": lambda size, dim: max(size - 1, _end(dim, "min", 0)),
    "more": lambda size, dim: min(size + 1, _end(dim, "max", size + 1)),
    "first": lambda size, dim: max(_end(dim, "min", size), 2),
    "least": lambda size, dim: _even(max(_end(dim, "min", 2), 2), size),
    "twice": lambda size, dim: min(2 * size, _end(dim, "max", 2 * size)),
}
# Other values of the example: a change may be right on only one side of a branch.
VALUES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "negative": lambda leaf: -leaf if leaf.is_floating_point() else leaf.clone(),
}
Wanted = list[tuple[str, list[torch.Tensor]]]  # eager mode's results by step


@dataclass(frozen=True)
class State:
    """What forward may change in a module: pairs of a tensor, attributes or container, and its content."""

    tensors: list[tuple[torch.Tensor, torch.Tensor]]
    attributes: list[tuple[dict[str, Any], dict[str, Any]]]
    containers: list[tuple[Any, Any]]


def state_of(module: torch.nn.Module, only_python: bool = False) -> State:
    attributes = [(vars(each), dict(vars(each))) for each in module.modules()]
    values = [value for own, _ in attributes for value in own.values()]
    tensors = [] if only_python else [*module.parameters(), *module.buffers(), *values]
    return State(
        [
            (each, each.detach().clone())
            for each in tensors
            if isinstance(each, torch.Tensor) and each.layout is torch.strided
        ],
        attributes,
        [(each, _copied(each)) for each in values if isinstance(each, (list, dict, set, deque))],
    )


def restore(state: State) -> None:
    with torch.no_grad():
        for tensor, value in state.tensors:
            tensor.copy_(value)
    for own, attributes in state.attributes:
        own.clear()
        own.update(attributes)
    for container, content in state.containers:
        container.clear()
        add = container.extend if isinstance(container, (list, deque)) else container.update
        add(_copied(content))


def _copied(container: Any) -> Any:
    """Copy a container and the containers in it, but not the tensors."""
    return pytree.tree_map(lambda leaf: leaf, copy.copy(container))


def _end(dim: Any, bound: str, default: int) -> int:
    """A bound of a `Dim`, or the default if it has none."""
    value = getattr(dim, bound, None)
    return value if isinstance(value, int) else default


def _even(least: int, size: int) -> int:
    """Return the first multiple of 8 from `least` on, if it is below `size`. If not, try 4, 2 and 1."""
    found = (-(-least // step) * step for step in (8, 4, 2, 1))
    return next((each for each in found if each < size), size)


def spent() -> float:
    """The processor seconds of this process and of the children that have ended."""
    return sum(os.times()[:4])


def attempts(
    failing: Failing, tell: Callable[[str], None] = lambda _line: None, *, only_lines: bool = False
) -> list[Attempt]:
    """Return the changes tried, in order, until one passed. Restore the module and torch.

    `tell` gets a line before each attempt. `only_lines`: try only changes of the model's lines.
    """
    until, found = spent() + BUDGET_S, []
    given, failing = failing, in_structure(failing)
    with _put_back(failing) as state:
        if failing.stage == "export" and stop(failing) is None:
            tell("looking for the line that stops the export")
            failing.lines = _narrowing(failing)
            restore(state)
        wanted = list(_references(failing, state))
        runs = [partial(_eager, failing, step) for step in (*STEPS, *VALUES)]
        every = rewritten(failing, words(failing)) if only_lines else changes(failing, runs)
        for told in _tried(Trying(wanted, state, until, tell), failing, every, 1):
            found.append(told)
        if found and found[-1].outcome == "passes" and failing.keep is None:
            unchanged = Change(Attempt("", ""), given.options)
            _attempt(given, unchanged, wanted, state)
            found[-1].again = unchanged.told.error
    return found


@contextlib.contextmanager
def _put_back(failing: Failing) -> Iterator[State]:
    """Restore the Python state from before the export, which may have left fake tensors in the module.

    After the body, restore the state of the module and of the random numbers. Meanwhile, torch logs nothing.
    """
    state, begun = state_of(failing.module), failing.begun
    random = torch.get_rng_state()
    if begun is not None:
        begun = replace(state, attributes=begun.attributes, containers=begun.containers)
        restore(begun)
    try:
        with silent():
            yield begun or state
    finally:
        restore(state)
        torch.set_rng_state(random)


@dataclass(frozen=True)
class Trying:
    """What all attempts share. `until` is the processor time at which they end."""

    wanted: Wanted
    state: State
    until: float
    tell: Callable[[str], None]


def _tried(trying: Trying, failing: Failing, found: Iterator[Change], depth: int) -> Iterator[Attempt]:
    """Try each change until one passes. If the failure moves to another line, change that one, too."""
    for change in itertools.islice(found, MOST):
        if spent() > trying.until or time_left() <= 0:
            return
        told = change.told
        at = f" in line {told.line}" if told.line else ""
        trying.tell(f"trying to make the {failing.stage} pass: {told.action}{at}")
        error = _attempt(failing, change, trying.wanted, trying.state)
        further = _behind(failing, change, error) if error is not None and depth < DEPTH else None
        passed = told.outcome == "passes"
        for more in _both(trying, further, change, depth) if further is not None else ():
            yield more
            passed = more.outcome == "passes"
        if not passed or further is None:
            yield told
        if passed:
            return


def _behind(failing: Failing, change: Change, error: BaseException) -> Failing | None:
    """The failure after a change, if it is at another line, in the compile or in a size, or None."""
    if change.owner is None:
        sized = replace(failing, error=error, lines=[])
        return sized if SUGGESTED in words(sized) and SUGGESTED not in words(failing) else None
    trees = {**failing.trees, (change.owner, change.attribute): change.tree}
    if change.told.exported:  # the export now passes and the compile fails
        return replace(failing, error=error, trees=trees, lines=[], compile=failing.build)
    with change.during():
        behind = replace(failing, error=error, trees=trees, lines=[])
        if stop(behind) is None:
            rest = [place for place in failing.lines if place[1] not in change.lines]
            behind.lines = rest or _narrowing(behind)
        place = stop(behind)
        if place is None or place == stop(failing) or place[1] in change.lines:
            return None
    change.told.reached = place[1]
    change.told.reached_code = linecache.getline(*place).strip()
    return behind


def _both(trying: Trying, behind: Failing, change: Change, depth: int) -> Iterator[Attempt]:
    """Try changes for the next failure. Report each together with the change that led to it."""
    first = change.told
    with change.during():
        text = words(behind)
        of_lines = rewritten(behind, text) if change.owner is not None else ()
        for told in _tried(trying, behind, itertools.chain(suggestions(behind, text), of_lines), depth + 1):
            told.name = f"{first.name}, {told.name}"
            told.more_lines = [line for line in (told.line, *told.more_lines) if line not in (0, first.line)]
            told.action = f"{first.action}, then {told.action}"
            told.note = "; ".join(filter(None, (first.note, told.note)))
            if told.before and told.before in first.after:  # the second change is in the code of the first
                told.before, told.after = first.before, first.after.replace(told.before, told.after)
            else:
                told.before, told.after = f"{first.before}\n{told.before}", f"{first.after}\n{told.after}"
            told.file, told.line = first.file, first.line
            yield told


def _narrowing(failing: Failing) -> list[Place]:
    """List the innermost lines of the model at which an export adds guards on sizes."""
    with contextlib.suppress(Exception), _guards_logged(failing) as guards:
        exported(failing, {**failing.options, "strict": False})  # dynamo leaves no frames of the model
    return list(dict.fromkeys(at for _, at in guards))


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Silence torch's log and warnings, because aoti-debug looks for the program's own error there."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    found = [each for name in names for each in logging.getLogger(name).handlers]
    streams = [each for each in found if isinstance(each, logging.StreamHandler)]
    with warnings.catch_warnings(), replaced((s, "level", s.level, logging.CRITICAL + 1) for s in streams):
        warnings.simplefilter("ignore")
        yield


def _sizes(failing: Failing, step: str) -> dict[tuple[int, int], int]:
    """The sizes of the dynamic dimensions at a step, by leaf and dimension."""
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    return {
        (n, dim): STEPS[step](leaves[n].shape[dim], declared)
        for _, n, dim, declared in declared_dims(failing)
    }


def _resized(failing: Failing, step: str) -> tuple[Any, Any] | None:
    """The inputs of a step. None if that is impossible or gives the example again."""
    if step in VALUES:  # torch does not see the tensors of a dataclass that is not registered
        if any(map(is_dataclass, pytree.tree_leaves((failing.args, failing.kwargs)))):
            return None
        args, kwargs = pytree.tree_map_only(torch.Tensor, VALUES[step], (failing.args, failing.kwargs))
        return args, kwargs
    sizes = _sizes(failing, step)
    if step != "example" and sizes == _sizes(failing, "example"):
        return None
    return with_sizes(failing, sizes)


def _eager(failing: Failing, step: str) -> Any:
    """The result of eager mode for the inputs of a step. None if there are no such inputs."""
    given = _resized(failing, step)
    return failing.module(*given[0], **given[1]) if given is not None else None


def _references(failing: Failing, state: State) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Yield each step with eager mode's results for its inputs. Skip inputs that eager mode rejects."""
    for step in (*STEPS, *VALUES):
        if step != "example" and _resized(failing, step) is None:
            continue
        restore(state)
        try:
            with torch.set_grad_enabled(derives(failing)):
                yield step, [each.detach() for each in _tensors(_eager(failing, step))]
        except Exception:
            continue


def _tensors(tree: Any) -> list[torch.Tensor]:
    """List the tensors and numbers of a result, even in dataclasses that are not registered with torch."""
    found: list[torch.Tensor] = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, (torch.Tensor, int, float)):
            found.append(torch.as_tensor(leaf))
        elif is_dataclass(leaf):
            found += _tensors([getattr(leaf, each.name) for each in fields(leaf)])
    return found


def _attempt(failing: Failing, change: Change, wanted: Wanted, state: State) -> BaseException | None:
    """Export with a change, compare with eager mode at each size, compile, and record the outcome.

    Return the error, or None if there is none.
    """
    try:
        restore(state)
        with change.during(), in_time():
            began = time.process_time()
            program = exported(_with_example(failing, change), change.options)
            wanted = wanted or list(_references(failing, state))  # eager mode may fail without the change
            if not _agrees(failing, program, wanted, change):
                change.told.outcome = "differs"
                return None
            if failing.keep is not None:
                failing.keep(program)
            build = failing.compile
            if build is None and time.process_time() - began < QUICK_S:
                build, change.told.exported = failing.build, failing.build is not None
            if build is not None:
                build(program)
            change.told.compiled, change.told.outcome = build is not None, "passes"
    except Exception as error:
        if change.told.exported and any(isinstance(each, TimeoutError) for each in chain(error)):
            change.told.outcome = "passes"  # the export passed, and the compile took too long
            return None
        change.told.error = f"{type(error).__name__}: {error}"[:300]
        return error
    finally:
        restore(state)
    return None


def time_left() -> float:
    """The seconds until AOTI_DEBUG_UNTIL, which is before the time limit. Infinite if it is unset."""
    return float(os.environ.get("AOTI_DEBUG_UNTIL") or "inf") - time.time()


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raise `TimeoutError` in the body when the time limit is near. Do nothing outside the main thread."""

    def stop(_signal: int, _frame: Any) -> None:
        raise TimeoutError("it did not end in the time that was left")

    if time_left() == math.inf or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    timer = signal.setitimer(signal.ITIMER_REAL, max(time_left(), 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)  # the timer of the program


def _with_example(failing: Failing, change: Change) -> Failing:
    """The export to try: with the module and example inputs of the change, if it has some."""
    args, kwargs = change.convert(change.example or (failing.args, failing.kwargs))
    module = failing.module if change.module is None else change.module()
    return replace(failing, module=module, args=args, kwargs=kwargs)


def _agrees(failing: Failing, program: Any, wanted: Wanted, change: Change) -> bool:
    """Whether the program equals eager mode at one size at least, and differs at none.

    Raise the program's error at a size that it must take.
    """
    told = change.told
    for step, expected in wanted if change.exact else (each for each in wanted if each[0] in STEPS):
        given = change.convert(_resized(failing, step))
        try:
            got = _tensors(program.module()(*given[0], **given[1]))
        except Exception as error:
            must = (
                change.owner is not None if step in VALUES else change.takes(_sizes(failing, step).values())
            )
            if step == "example" or must:
                raise
            told.error = f"at another size: {error}"[:300]
            told.refuses |= step in STEPS
            continue
        told.sizes += step in STEPS
        if not compare_all(expected, got).equal:
            return False
    return told.sizes > 0


def exported(failing: Failing, options: dict[str, Any]) -> Any:
    export = getattr(torch.export.export, "__wrapped__", torch.export.export)
    asked = {name: value for name, value in options.items() if value is not None}
    with torch.set_grad_enabled(failing.grad and derives(failing)):
        return export(failing.module, failing.args, failing.kwargs or None, **asked)


def compile_with(configs: Any) -> Callable[..., Any]:
    """A function that compiles a program. Unless it gets a path, it removes the package."""

    def again(program: Any, path: str = "") -> None:
        compile_ = torch._inductor.aoti_compile_and_package
        compile_ = getattr(compile_, "__wrapped__", compile_)
        with tempfile.TemporaryDirectory() as folder:
            path = path or os.path.join(folder, "tried.pt2")
            compile_(program, package_path=path, inductor_configs=configs)

    return again


Shapes = list[tuple[tuple[int, ...], ...]]


def widened(failing: Failing, shapes: Shapes) -> list[Attempt]:
    """Try to move each bound of a `Dim` that calls exceed. Restore the module and torch."""
    declared = list(declared_dims(failing))
    dims = [dim for *_, dim in declared]
    derived = {dim.root.__name__ for dim in dims if hasattr(dim, "root")}
    known = {n: dim for dim in dims if (n := name_of(dim)) not in {"", *derived} and not hasattr(dim, "root")}
    beyond = [
        (known[name], bound, farthest(sizes))
        for name, sizes in _sizes_in(declared, shapes, list(map(name_of, dims))).items()
        for bound, farthest in (("min", min), ("max", max))
        if name in known and sizes and farthest(end := getattr(known[name], bound), *sizes) != end
    ]
    if not beyond:  # most programs: do not copy the weights
        return []
    with _put_back(failing):
        return [_with_bound(failing, *each) for each in beyond]


def _sizes_in(declared: list[Any], shapes: Shapes, names: list[str]) -> dict[str, list[int]]:
    """The sizes of each dynamic dimension in the calls, by its name."""
    sizes: dict[str, list[int]] = {name: [] for name in names}
    for name, (place, _, axis, _) in zip(names, declared):
        found = (shape[place] for shape in shapes if len(shape) > place)
        sizes[name] += [shape[axis] for shape in found if len(shape) > axis]
    return sizes


def narrowed(failing: Failing, shapes: Shapes) -> Failing | None:
    """The failed export with ranges that include the sizes of the calls.

    With `Dim.DYNAMIC` and `Dim.AUTO`, torch silently narrows a range to what the lines of the model accept.
    None if there are no such dimensions, or if this export takes the sizes.
    """
    declared = list(declared_dims(failing))
    open_ended = [is_hint(dim) for *_, dim in declared]
    if not any(open_ended):
        return None
    example = tuple(tuple(each.shape) for each in only_tensors((failing.args, failing.kwargs)))
    with _put_back(failing):
        symbols = {at[1:]: str(each) for at, each in symbols_of(exported(failing, failing.options)).items()}
        names = [symbols.get((place, axis), f"size_{place}_{axis}") for place, _, axis, _ in declared]
        sizes = _sizes_in(declared, [*shapes, example], names)
        ends = {name: (min(each), max(each)) for name, each in sizes.items() if len(set(each)) > 1}
        dims = {name: torch.export.Dim(name, min=least, max=most) for name, (least, most) in ends.items()}
        named = zip(names, open_ended, declared)
        new = iter([dims.get(name, dim) if each else dim for name, each, (*_, dim) in named])
        wide = with_dims(failing.options["dynamic_shapes"], lambda _dim: next(new))
        failing = replace(failing, options={**failing.options, "dynamic_shapes": wide})
        shape: Any = ()
        try:
            with _guards_logged(failing) as guards:
                program = exported(failing, failing.options)
            for shape in shapes:  # a guard that relates several sizes fails only in a call
                changed = {(n, axis): shape[place][axis] for place, n, axis, _ in declared}
                given = with_sizes(failing, changed)
                if given is not None:
                    program.module()(*given[0], **given[1])
        except Exception as error:
            added = [Restriction(guard, [at]) for guard, at in guards] if shape else []
            at_lines = (each.nodes[0] for each in broken(added, places_of(program), shape)) if shape else ()
            return replace(failing, error=error, lines=list(dict.fromkeys(at_lines)))
    return None


@contextlib.contextmanager
def _guards_logged(failing: Failing) -> Iterator[list[tuple[Any, Place]]]:
    """Collect each guard on sizes that an export adds, with the line of the model that adds it."""
    kind = importlib.import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv
    codes, original = {function.__code__ for *_, function in reachable(failing.module)}, kind._log_guard
    found: list[tuple[Any, Place]] = []

    def logged(env: Any, prefix: str, guard: Any, *args: Any, **kwargs: Any) -> Any:
        frames = (frame for frame, _ in traceback.walk_stack(None) if frame.f_code in codes)
        found.extend(
            (guard, (each.f_code.co_filename, each.f_lineno)) for each in itertools.islice(frames, 1)
        )
        return original(env, prefix, guard, *args, **kwargs)

    with replaced([(kind, "_log_guard", original, logged)]):
        yield found


def _with_bound(failing: Failing, dim: Any, bound: str, size: int) -> Attempt:
    name = dim.__name__
    told = Attempt(bound, f"export with {bound}={size} for {name}")
    told.file, told.line, told.before, told.after = declaration(failing, name, bound, size)
    places = [each for each in declared_dims(failing) if name_of(each[3]) == name]
    told.widened = [(place, axis) for place, _, axis, _ in places]
    ends = {end: value for end in ("min", "max") if isinstance(value := getattr(dim, end), int)}
    new = torch.export.Dim(name, **{**ends, bound: size})
    changed = with_dims(
        failing.options["dynamic_shapes"], lambda each: new if name_of(each) == name else each
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


def declaration(failing: Failing, name: str, bound: str, size: int) -> tuple[str, int, str, str]:
    """File, line and text of the line that declares a `Dim`, and the text with another bound.

    If there is no such line, or several, the texts name only the `Dim`.
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
    """Yield each call of `Dim` in a file whose first argument is `name`."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        first: Any = node.args[0] if called == "Dim" and node.args else None  # type: ignore[attr-defined]
        if isinstance(first, ast.Constant) and first.value == name:
            yield node


CALLS = 3  # calls that are made to see the effect of state


def changed_by_a_call(failing: Failing) -> list[tuple[str, str]]:
    """List (module, attribute) of Python values and parameters that an eager call changes. Restore them."""
    weights = dict(failing.module.named_parameters())
    with _put_back(failing), torch.no_grad():
        before, versions = python_state(failing.module), list(map(version_of, weights.values()))
        failing.module(*failing.args, **failing.kwargs)
        written = [key for key, old in zip(weights, versions) if version_of(weights[key]) != old]
        after = python_state(failing.module)
        old, new = ({key: [part[:2] for part in own[key]] for key in own} for own in (before, after))
        same = {key for key in new if new[key] == old.get(key, [])}
    return [*(key for key in after if key not in same), *(key.rpartition(".")[::2] for key in written)]


def python_state(module: torch.nn.Module) -> dict[tuple[str, str], list[Any]]:
    """Attributes that forward may change but a package cannot: their parts by (module, attribute).

    Each part is (value or id, version count of a tensor, object). The object is kept alive so that no other
    object gets its id.
    """
    found: dict[tuple[str, str], list[Any]] = {}
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if name.startswith("_") or name == "training" or not isinstance(value, KEPT):
                continue
            parts = pytree.tree_leaves(list(value) if isinstance(value, set) else value)
            found[path, name] = [
                (part if isinstance(part, PLAIN) else id(part), getattr(part, "_version", 0), part)
                for part in parts
            ]
    return found


PLAIN = (bool, int, float, str)
KEPT = (*PLAIN, list, dict, set, deque, torch.Tensor)


def loses_state(failing: Failing, path: str, name: str) -> bool:
    """Whether the program differs from eager mode only because this attribute changes.

    True if outputs are equal when each eager call begins with the state at the export, but not when only this
    attribute keeps its value between calls.
    """
    own = vars(failing.module.get_submodule(path))
    with _put_back(failing) as kept, torch.no_grad():
        program = exported(failing, failing.options).module()
        begun, same = replace(kept, tensors=[]), []
        wanted = _outputs(program, failing)
        for spared in ((), (name,)):
            restore(kept)
            try:
                same.append(_same(wanted, _outputs(failing.module, failing, begun, own, spared)))
            except Exception:  # the restored state does not fit
                same.append(False)
    return same == [True, False]


def _outputs(
    module: Any, failing: Failing, begun: State = State([], [], []), own: Any = None, spared: Any = ()
) -> list[list[torch.Tensor]]:
    """Return the outputs of several calls. Before each, restore `begun`, but not the attributes `spared`."""
    torch.manual_seed(0)
    found = []
    for args, kwargs in _varied(failing):
        left = {name: _copied(own[name]) for name in spared}
        restore(begun)
        vars_of = own if own is not None else {}
        vars_of.update(left)
        found.append([each.clone() for each in _tensors(module(*args, **kwargs))])
    return found


def _same(wanted: list[list[torch.Tensor]], got: list[list[torch.Tensor]]) -> bool:
    return all(compare_all(*pair).equal for pair in zip(wanted, got))


def in_a_buffer(failing: Failing, path: str, name: str, told: Attempt) -> None:
    """Try to keep the number or tensor `name` in a buffer. Record the outcome in `told`."""
    owner = failing.module.get_submodule(path)
    with _put_back(failing) as kept, torch.no_grad():
        state, fixed = getattr(owner, name), name in owner._parameters
        is_number = type(state) in (int, float)
        if not is_number and not (isinstance(state, torch.Tensor) and (fixed or state.numel() > 1)):
            return
        found = _registered(owner, name, told) if fixed else _with_buffer(owner, name, state)
        if found is None:
            return
        change, told.before, told.after = found
        first = torch.tensor([state] * 2) if is_number else state.detach().clone()
        wanted = _outputs(failing.module, failing)
        restore(kept)
        if fixed:
            told.again = _in_turn(failing, wanted)[1]
            restore(kept)
        delattr(owner, name)
        owner.register_buffer(name, first)
        told.compiled = failing.build is not None
        with change.during():
            told.outcome, told.error = _in_turn(failing, wanted)


def _registered(owner: torch.nn.Module, name: str, told: Attempt) -> tuple[Change, str, str]:
    """An empty change, the code that registers the parameter, and code that registers a buffer.

    Record the parameter's line in `told`.
    """
    found, before, after = registration(owner, name), "", ""
    if found is not None:
        (told.file, told.line), value, before = found
        whole = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("Parameter") and value.args
        after = f'self.register_buffer("{name}", {ast.unparse(value.args[0] if whole else value)})'
    return Change(told, {}), before, after


def _in_turn(failing: Failing, wanted: list[list[torch.Tensor]]) -> tuple[str, str]:
    """Export, compile if there is a `build`, and make several calls. Return the outcome and any error."""
    try:
        with tempfile.TemporaryDirectory() as folder, in_time():
            path = os.path.join(folder, "tried.pt2")
            program = exported(failing, failing.options)
            if failing.build is not None:
                failing.build(program, path)
            tried = program.module() if failing.build is None else torch._inductor.aoti_load_package(path)
            got = _outputs(tried, failing)
    except Exception as error:
        return "fails", f"{type(error).__name__}: {error}"[:300]
    return ("passes" if _same(wanted, got) else "differs"), ""


def _varied(failing: Failing) -> Iterator[tuple[Any, Any]]:
    """Yield inputs for each call: the example, then the example with scaled floating-point values."""
    for turn in range(CALLS):
        args, kwargs = pytree.tree_map_only(
            torch.Tensor,
            lambda leaf, turn=turn: leaf * (1 + turn / 2) if leaf.is_floating_point() else leaf.clone(),
            (failing.args, failing.kwargs),
        )
        yield args, kwargs


def _with_buffer(owner: torch.nn.Module, name: str, state: Any) -> tuple[Change, str, str] | None:
    """The change of the methods that use the state, and their code before and after, or None."""
    own = [each for each in functions(owner) if isinstance(owner, each[0]) and each[1] != "__init__"]
    made = transformed(own, partial(InBuffer, name, state))
    lines = [line for *_, changed in made for line in changed]
    before, after = (list(dict.fromkeys(line[side] for line in lines)) for side in (0, 1))
    change = Change(Attempt("state", ""), {}, during=partial(replaced, made))
    start = InBuffer(name, state).made
    return (change, "\n".join(before), "\n".join((start, *after))) if made else None


def operate_sizes(request: SizesRequest, report: Report) -> None:
    """Compare a package, and one that is compiled after running `code`, with eager mode at each shape.

    Report `size_compared` for each. The code explains the failure only if the first package differs.
    """
    program = load_exported(request, report)
    before = load({"package": request["before"]}, report)
    args, kwargs = program.example_inputs
    failing = Failing(program.module(), args, kwargs, {}, None)
    for shape in request["shapes"]:
        _compare(before, failing, shape, "before", report)
    exec(request["code"], {})
    package, _ = compiled(program, request, report)
    after = load({"package": package}, report)
    for shape in request["shapes"]:
        _compare(after, failing, shape, "after", report)


def _compare(loader: Any, failing: Failing, shape: list[list[int]], when: str, report: Report) -> None:
    """Report whether a call equals eager mode, on example inputs that are repeated to this shape."""
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    tensors = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    sizes = {(n, dim): size for n, given in zip(tensors, shape) for dim, size in enumerate(given)}
    given = with_sizes(failing, sizes)
    same = False
    with torch.no_grad():
        wanted = only_tensors(failing.module(*given[0], **given[1])) if given is not None else []
        with contextlib.suppress(RuntimeError):  # the package may raise at this size
            same = compare_all(wanted, only_tensors(loader.run(only_tensors(given)))).equal
    report.event(SizeCompared(when, shape, same))
