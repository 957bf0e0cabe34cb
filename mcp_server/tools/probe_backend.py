"""Kernel I/O through launch probes, with the bounds of the indices that the launches read.

A generated kernel carries its bounds in asserts. The index arguments of an ATen operator have theirs in its
schema alone (aten/src/ATen/native/native_functions.yaml, torch 2.13): they are compared with the shape of the
indexed tensor in the same call.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from mcp_server.model import PackageWorkload
from mcp_server.package.assertion import Assertion, Candidate, generated_line
from mcp_server.package.launches import Launch, shim_operator
from mcp_server.package.symbols import plain
from mcp_server.package.terms.linear import Limit, over_loops
from mcp_server.package.terms.parts import elements
from mcp_server.package.terms.sizes import find_asserts
from mcp_server.package.view import PackageView
from mcp_server.probes.build import instrument
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import REPORT, Context, WorkerRun, stream_events
from mcp_server.tools.kernel_io import (
    ArgumentValues,
    BadElement,
    Choice,
    LaunchValues,
    last_of,
    launch_values,
    measured,
)
from mcp_server.tools.requests import run_request
from mcp_server.worker import events
from mcp_server.worker.events import Argument

# `| ~(tmp4 & xmask)` of Triton; masks of the iteration space alone leave no element out.
_CONDITION = re.compile(r"~\((?!(?:[xyzr]\d*_?mask(?: & )?)+\))")


@dataclass(frozen=True)
class IndexBound:
    """Elements of `name`, as `launch` reads it, must lie in [low, high).

    `size` names the launch's argument that the ends depend on when they are known at run time only; then
    `low` and `high` are None, and `allowed` works them out.
    """

    name: str
    launch: int
    low: int | None
    high: int | None
    size: str = ""
    allowed: Limit | None = None

    def at(self, value: int) -> IndexBound:
        """The bound for the size in this call."""
        ends = self.allowed.numbers({self.size: value}) if self.allowed else None
        if ends is None:
            return self
        size = self.size if ends[1] + 1 == value else ""
        return IndexBound(self.name, self.launch, ends[0], ends[1] + 1, size)

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}{f' = {self.size}' if self.size else ''}"


def find_bounds(view: PackageView) -> tuple[IndexBound, ...]:
    """Bounds on tensors whose elements make indices, from the kernels' asserts.

    One bound for each tensor of a launch: what all of its checks allow; and those that depend on a size.
    """
    merged: dict[tuple[str, int], IndexBound] = {}
    sized: dict[IndexBound, None] = {}
    for kernel in view.wrapper.kernels.values():
        for check in find_asserts(kernel.source):
            line = generated_line(kernel, check.line)
            assertion = Assertion(plain(check.text), line=line, kernel=kernel.name)
            for bound in filter(None, map(_bound, view.tracer.trace(assertion))):
                if bound.low is None or bound.high is None:
                    sized[bound] = None
                    continue
                other = merged.setdefault((bound.name, bound.launch), bound)
                low, high = max(bound.low, other.low or 0), min(bound.high, other.high or 0)
                merged[bound.name, bound.launch] = replace(bound, low=low, high=high)
    return (*merged.values(), *sized)


def _bound(candidate: Candidate) -> IndexBound | None:
    """The bound on all elements of the tensor that the checked value is computed from.

    None for a value behind a condition, and for one at an offset or a step (a column of a table): elements
    that are left out may hold anything.
    """
    line = candidate.kernel.source.split("\n")[candidate.check.line - 1]
    places = [over_loops(load.index) for load in elements(candidate.value)]
    whole = all(at is not None and not at.constant and [*at.factors.values()] == [1] for at in places)
    if len(candidate.sources) != 1 or _CONDITION.search(line) or not whole:
        return None
    (source,) = candidate.sources
    if source.allowed is None:
        return None
    name, launch = source.tensor, candidate.launch.index
    if (ends := source.allowed.numbers({})) is not None:
        return IndexBound(name, launch, ends[0], ends[1] + 1)
    scalars = {a.name for a in candidate.launch.arguments if not a.is_tensor}
    sizes = {*source.allowed.low.factors, *source.allowed.high.factors}
    if len(sizes) == 1 and sizes <= scalars:
        return IndexBound(name, launch, None, None, sizes.pop(), source.allowed)
    return None


INTEGERS = frozenset({"int64", "int32"})
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Indexing:
    """The elements of `index` are positions in dimension `dim` of `indexed`, which may name an argument.

    Without `dim`, `index` is a list: its n-th tensor indexes dimension n, negative ones from the end.
    """

    index: str
    indexed: str
    dim: str | int | None


_ALONG = Indexing("index", "self", "dim")
_LOOKUP = Indexing("indices", "weight", 0)
_EACH = Indexing("indices", "self", None)
# The operators whose shims' parameters are known by name (`package/calls.py`), without `_out`.
OPERATORS: dict[str, Indexing] = {
    "scatter_src": _ALONG,
    "scatter_value": _ALONG,
    "scatter_reduce_two": _ALONG,
    "index_add": _ALONG,
    "index_copy": _ALONG,
    "_embedding_bag": _LOOKUP,
    "index_put": _EACH,
    "index_Tensor": _EACH,
}


def operator_bounds(launch: Launch, seen: Sequence[ArgumentValues]) -> dict[str, IndexBound]:
    """Bounds of the index arguments of an extern launch, by variable; `seen` has the shapes of the call."""
    rule = OPERATORS.get(shim_operator(launch.kernel).removesuffix("_out"))
    if rule is None or launch.kind not in ("extern", "fallback_shim"):
        return {}
    read = {a.name: a for a in seen if a.when == "before"}
    indexed = next((a for a in launch.arguments if a.name == rule.indexed and a.target), None)
    values = read.get(indexed.target or "") if indexed is not None else None
    # The shape of a view that is made in the call is not known.
    if indexed is None or indexed.view is not None or values is None or values.shape is None:
        return {}
    dim = rule.dim
    if isinstance(dim, str):
        written = next((a.expression for a in launch.arguments if a.name == dim), "")
        number = written.strip().rstrip("L")
        if not _NUMBER.fullmatch(number):
            return {}
        dim = int(number)
    found: dict[str, IndexBound] = {}
    for argument in launch.arguments:
        name, place = argument.target, argument.element if dim is None else dim
        if argument.name != rule.index or name is None or name not in read or place is None:
            continue
        if read[name].dtype in INTEGERS and -len(values.shape) <= place < len(values.shape):
            size = values.shape[place]
            found[name] = IndexBound(name, launch.index, -size if dim is None else 0, size)
    return found


OPEN = 64  # launches that are not yet known to have ended


@dataclass(frozen=True)
class Seen:
    """What a backend saw: launches in the order of the call (read anew each time), notes, and the run.

    `stopped`: the run was ended on purpose, after a bad value.
    """

    launches: Callable[[], Iterable[LaunchValues]]
    notes: list[str]
    run: WorkerRun
    stopped: bool = False


async def observe(
    context: Context,
    workload: PackageWorkload,
    model: PackageView,
    choice: Choice,
    *,
    save: bool = False,
    stop: bool = False,
) -> Seen:
    """Rebuild and run once. Raises ProblemError when the package cannot be rebuilt."""
    instrumented = await instrument(
        workload.package, Options(), context, python=workload.python, env=workload.env
    )
    bounds = await anyio.to_thread.run_sync(find_bounds, model)
    directory = context.fresh("observe")
    request: dict[str, object] = {
        **run_request(workload),
        "package": instrumented.package,
        "skip_before": unset_arguments(model),
        "bounds": [
            {"name": bound.name, "launch": bound.launch, "low": bound.low, "high": bound.high}
            for bound in bounds
            if not bound.size
        ],
        "stop_at_first_bad": stop,
    }
    chosen = {"launches": choice.launches, "kernels": choice.kernels, "names": choice.buffers}
    request |= {name: list(value) for name, value in chosen.items() if value}
    if save:
        folder = directory / "tensors"
        folder.mkdir()
        request |= {"save": folder, "save_bytes": min(4 << 30, shutil.disk_usage(directory).free // 2)}
    done = await context.worker(
        "observe",
        request,
        directory=directory,
        workload=workload,
        env=instrumented.environment,
        streamed=(Argument,),
    )

    def launches() -> Iterator[LaunchValues]:
        arguments = stream_events(done.directory / REPORT, Argument)
        return read_launches(context, arguments, model, bounds)

    # Stopped on purpose: the call raised right after a bad value, without a signal or another launch.
    raised = stop and done.finished.ending == "exit" and done.last(events.Called) is None
    last = last_of(launches()) if raised else None
    stopped = last is not None and last.surely_bad
    skipped = [s for s in instrumented.skipped if s.model == model.package.model_name]
    notes = [
        *instrumented.notes,
        *(f"launch {s.launch} ({s.kernel}) has no probes: {s.reason}" for s in skipped),
        *(f"the observer failed: {e.about.splitlines()[-1]}" for e in done.phases("observer_failed")),
        *(f"{e.arguments} arguments were left out: too many events" for e in done.all(events.LeftOut)),
    ]
    for event in done.all(events.NotSaved):
        notes.append(f"{event.tensors} tensors were not saved: beyond {event.cap >> 20} MiB, or not dense")
    return Seen(launches, notes, done, stopped=stopped)


def unset_arguments(model: PackageView) -> dict[int, list[str]]:
    """By launch, the tensors that nothing has written before it: their values mean nothing."""
    found: dict[int, list[str]] = {}
    for launch in model.wrapper.launches:
        for name in {a.target for a in launch.tensors if a.target}:
            if model.flow.last_writers(name, launch.index):
                continue
            origin = model.flow.backward(name, launch.index)
            if not (origin.inputs or origin.constants):
                found.setdefault(launch.index, []).append(name)
    return found


def read_launches(
    context: Context, seen: Iterable[Argument], model: PackageView, bounds: Iterable[IndexBound]
) -> Iterator[LaunchValues]:
    """The worker's events, grouped by launch in the order of the call.

    Launches of concurrent runs may be mixed, at most `OPEN` of them.
    """
    by_place: dict[tuple[str, int], list[IndexBound]] = {}
    for bound in bounds:
        by_place.setdefault((bound.name, bound.launch), []).append(bound)
    opened: dict[tuple[int, int], list[Argument]] = {}
    for each in seen:
        opened.setdefault((each.run, each.sequence), []).append(each)
        if len(opened) > OPEN:
            yield _launch(context, opened.pop(next(iter(opened))), model, by_place)
    for group in opened.values():
        yield _launch(context, group, model, by_place)


def _launch(
    context: Context,
    group: list[Argument],
    model: PackageView,
    bounds: Mapping[tuple[str, int], Sequence[IndexBound]],
) -> LaunchValues:
    first = group[0]
    number = first.launch
    sizes = {each.parameter: each.value for each in group if isinstance(each.value, int)}
    seen = [_argument(context, each) for each in group]
    known = model.launch(number)
    of_operator = operator_bounds(known, seen) if known is not None else {}
    arguments = []
    for argument in seen:
        # Of several checks the first that it fails, else the last. The worker has compared the elements with
        # a bound that is known before the call. One that is a size of this call, or a shape that an operator
        # indexes, is compared with minimum and maximum here.
        for bound in bounds.get((argument.name, number), ()) if argument.role != "written" else ():
            if not bound.size:
                argument = argument.model_copy(update={"bound": bound.text})
            elif bound.size in sizes:
                argument = _compared(argument, bound.at(sizes[bound.size]))
            if argument.outside is not None:
                break
        if argument.name in of_operator and not argument.bound and argument.when == "before":
            argument = _compared(argument, of_operator[argument.name])
        arguments.append(argument)
    return launch_values(model, number, first.kernel, first.sequence, arguments)


def _compared(argument: ArgumentValues, bound: IndexBound) -> ArgumentValues:
    outside = None
    if argument.max is not None and bound.high is not None and argument.max >= bound.high:
        outside = BadElement(value=str(int(argument.max)))
    elif argument.min is not None and bound.low is not None and argument.min < bound.low:
        outside = BadElement(value=str(int(argument.min)))
    return argument.model_copy(update={"bound": bound.text, "outside": outside})


def _argument(context: Context, seen: Argument) -> ArgumentValues:
    value = "" if seen.value is None else str(seen.value)
    saved = context.artifact(Path(seen.saved), "tensor (safetensors)") if seen.saved else None
    return measured(seen, when=seen.phase, value=value, saved=saved)
