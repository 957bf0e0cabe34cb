"""Tries changes of a failed export or compile until one passes and gives eager mode's numbers.

It runs inside the program, after the program has ended with the error, on the program's own module and
inputs. Nothing of the user's is changed: a rewrite is a function in memory, and is undone.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import linecache
import logging
import os
import tempfile
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils import _pytree as pytree

from ..compare import compare_all
from ..tensors import only_tensors
from .changes import Change, Failing, Place, changes, dynamic_places, functions, holds, places
from .events import Attempt

BUDGET_S = 60.0
MOST = 14
DELTAS = (0, -1, 1)  # differences to the sizes of dynamic dimensions
State = Dict[str, torch.Tensor]
Wanted = List[Tuple[int, List[torch.Tensor]]]  # eager mode's results, by the difference of the sizes


def attempts(failing: Failing) -> List[Attempt]:
    """Return what was tried, in order, until something passed. Restores the module and torch."""
    with silent():
        return _attempts(failing)


def _attempts(failing: Failing) -> List[Attempt]:
    began, found = time.monotonic(), []
    state = {name: value.detach().clone() for name, value in failing.module.state_dict().items()}
    random = torch.get_rng_state()
    try:
        known = [function for _, _, function in functions(failing.module)]
        is_told = any(holds(function, place) for function in known for place in places(failing))
        if failing.stage == "export" and not is_told:
            failing.lines = _drafted(failing)
            restore(failing.module, state)
        wanted = list(_references(failing, state))
        for change in itertools.islice(changes(failing), MOST):
            if time.monotonic() - began > BUDGET_S:
                break
            _attempt(failing, change, wanted, state)
            found.append(change.told)
            if change.told.outcome == "passes":
                change.told.again = _fails_again(failing, state)
                break
    finally:
        restore(failing.module, state)
        torch.set_rng_state(random)
    return found


def restore(module: torch.nn.Module, state: State) -> None:
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if name in state and value.shape == state[name].shape:
                value.copy_(state[name])


def _drafted(failing: Failing) -> List[Place]:
    """List the innermost line of each place where `draft_export` narrows a size or needs a value."""
    found = []
    with contextlib.suppress(Exception), torch.no_grad(), _without_trace_log():
        shapes = failing.options.get("dynamic_shapes")
        program = torch.export.draft_export(
            failing.module, failing.args, failing.kwargs or None, dynamic_shapes=shapes, strict=False
        )
        for each in program._report.failures:
            frames = reversed(each.data.get("user_stack") or each.data.get("stack") or [])
            lines = (line for frame in frames if (line := _line_of(failing, frame)) is not None)
            found += list(itertools.islice(lines, 1))
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def _without_trace_log() -> Iterator[None]:
    """Keep the log that `draft_export` leaves open in a temporary folder, then close and remove it.

    `draft_export` reads the log's name after the log has ended. Source: torch/export/_draft_export.py,
    `CaptureStructuredTrace`, torch 2.13.
    """
    module = importlib.import_module("torch.export._draft_export")
    kind = module.CaptureStructuredTrace
    leave, opened = kind.__exit__, []

    def ended(trace: Any, *error: Any) -> None:
        leave(trace, *error)
        opened.append(trace)

    before = os.environ.get("TORCH_TRACE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_TRACE"], kind.__exit__ = folder, ended
        try:
            yield
        finally:
            kind.__exit__ = leave
            for trace in opened:
                trace.close()
            del os.environ["TORCH_TRACE"]
            if before is not None:
                os.environ["TORCH_TRACE"] = before


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep torch's messages about our own attempts out of the program's log, which is read for its error."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    found = [each for name in names for each in logging.getLogger(name).handlers]
    levels = [(each, each.level) for each in found if isinstance(each, logging.StreamHandler)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for handler, _ in levels:
                handler.setLevel(logging.CRITICAL + 1)
            yield
        finally:
            for handler, level in levels:
                handler.setLevel(level)


def _line_of(failing: Failing, frame: Any) -> Optional[Place]:
    """Return the place of a frame in the report, which has a line and its code; None if unknown."""
    for _, _, function in functions(failing.module):
        place = (function.__code__.co_filename, int(frame.get("line") or 0))
        code = linecache.getline(*place).strip()
        if holds(function, place) and code and code == str(frame.get("loc") or "").strip():
            return place
    return None


def _resized(failing: Failing, delta: int) -> Optional[Tuple[Any, Any]]:
    """Return the inputs with every dynamic dimension longer by `delta`; None if that is impossible."""
    places = dynamic_places(failing) if delta else {}
    if delta and not places:
        return None
    leaves = pytree.tree_leaves((failing.args, failing.kwargs))
    sizes = {(n, dim): leaves[n].shape[dim] + delta for n, dims in places.items() for dim in dims}
    return with_sizes(failing, sizes)


def with_sizes(failing: Failing, sizes: Dict[Tuple[int, int], int]) -> Optional[Tuple[Any, Any]]:
    """Return the inputs with other sizes, given by leaf and dimension; None if that is impossible."""
    leaves, spec = pytree.tree_flatten((failing.args, failing.kwargs))
    for (number, dim), size in sizes.items():
        before = leaves[number].shape[dim]
        if size < 1 or not before:
            return None
        index = torch.arange(size, device=leaves[number].device) % before
        leaves[number] = leaves[number].index_select(dim, index)
    copies = [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args, kwargs = pytree.tree_unflatten(copies, spec)
    return args, kwargs


def _references(failing: Failing, state: State) -> Iterator[Tuple[int, List[torch.Tensor]]]:
    """Yield what eager mode returns, for the inputs and for other sizes of them."""
    for delta in DELTAS:
        given = _resized(failing, delta)
        if given is None:
            continue
        restore(failing.module, state)
        try:
            with torch.no_grad():
                yield delta, only_tensors(failing.module(*given[0], **given[1]))
        except Exception:
            continue  # eager mode does not accept this size either


def _attempt(failing: Failing, change: Change, wanted: Wanted, state: State) -> None:
    """Export (and compile) with a change and compare with eager mode at each size; record the outcome."""
    old = getattr(change.owner, change.attribute) if change.owner is not None else None
    try:
        if change.owner is not None:
            setattr(change.owner, change.attribute, change.function)
        restore(failing.module, state)
        program = exported(failing, change.options)
        if not _agrees(failing, program, wanted, change.told):
            change.told.outcome = "differs"
            return
        if failing.compile is not None:
            failing.compile(program)
        change.told.outcome = "passes"
    except Exception as error:
        change.told.error = f"{type(error).__name__}: {error}"[:300]
    finally:
        if change.owner is not None:
            setattr(change.owner, change.attribute, old)
        restore(failing.module, state)


def _agrees(failing: Failing, program: Any, wanted: Wanted, told: Attempt) -> bool:
    """Whether the program matches eager mode at one size at least, and differs at none."""
    for delta, expected in wanted:
        given = _resized(failing, delta)
        assert given is not None
        try:
            got = only_tensors(program.module()(*given[0], **given[1]))
        except Exception as error:
            if delta == 0:
                raise
            told.error = f"at another size: {error}"[:300]
            continue
        told.sizes += 1
        if not compare_all(expected, got).equal:
            return False
    return told.sizes > 0


def exported(failing: Failing, options: Dict[str, Any]) -> Any:
    export = getattr(torch.export.export, "__wrapped__", torch.export.export)
    asked = {name: value for name, value in options.items() if value is not None}
    with torch.no_grad():
        return export(failing.module, failing.args, failing.kwargs or None, **asked)


def _fails_again(failing: Failing, state: State) -> str:
    """Return the error that occurs without the change; empty if there is none."""
    restore(failing.module, state)
    try:
        program = exported(failing, failing.options)
        if failing.compile is not None:
            failing.compile(program)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


def compile_with(configs: Any) -> Callable[[Any], Any]:
    """Return a function that compiles a program into a file and removes the file."""

    def again(program: Any) -> None:
        compile_ = torch._inductor.aoti_compile_and_package
        compile_ = getattr(compile_, "__wrapped__", compile_)
        with tempfile.TemporaryDirectory() as folder:
            compile_(program, package_path=os.path.join(folder, "tried.pt2"), inductor_configs=configs)

    return again
