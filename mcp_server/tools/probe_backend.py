"""Kernel I/O through launch probes, with the bounds of indices that the probes watch.

Index arguments of ATen's own operators, held against the tensor that they index in this very call.

Generated kernels carry their bounds in asserts (`index_bounds`); an extern launch has them in its schema
alone (aten/src/ATen/native/native_functions.yaml, torch 2.13).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcp_server.model import PackageWorkload
from mcp_server.package.archive import Package
from mcp_server.package.assertion import Assertion, Candidate, Tracer, generated_line
from mcp_server.package.kernel_code import Allowed, find_asserts
from mcp_server.package.launches import Argument, Launch, operator_name
from mcp_server.package.symbols import plain
from mcp_server.package.wrapper import Wrapper
from mcp_server.probes.build import instrument
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.tools.context import Context, Event, WorkerRun
from mcp_server.tools.first_bad import Choice, Launches, Model
from mcp_server.tools.kernel_io import ArgumentValues, BadElement, LaunchValues, bad_element, measured
from mcp_server.tools.requests import run_request

_WHOLE = re.compile(r"(?:static_cast<int64_t>\(|\()*[a-z]\w*\)*")
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
    allowed: Allowed | None = None

    def at(self, value: int) -> IndexBound:
        """The bound with the size as the call had it."""
        ends = self.allowed.numbers({self.size: value}) if self.allowed else None
        if ends is None:
            return self
        size = self.size if ends[1] + 1 == value else ""
        return IndexBound(self.name, self.launch, ends[0], ends[1] + 1, size)

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}{f' = {self.size}' if self.size else ''}"


def find_bounds(package: Package, wrapper: Wrapper) -> tuple[IndexBound, ...]:
    """Bounds on tensors whose elements make indices, from the kernels' asserts."""
    tracer = Tracer(wrapper, package.inputs, package.constants)
    found = (_bound(candidate) for candidate in _candidates(tracer, wrapper) if _takes_any(candidate))
    known = [bound for bound in dict.fromkeys(found) if bound is not None]
    return (*_narrowed(bound for bound in known if not bound.size), *(b for b in known if b.size))


def _narrowed(bounds: Iterable[IndexBound]) -> Iterator[IndexBound]:
    """One bound for each tensor of a launch: what all of its checks allow."""
    merged: dict[tuple[str, int], IndexBound] = {}
    for bound in bounds:
        other = merged.get((bound.name, bound.launch), bound)
        low, high = max(bound.low or 0, other.low or 0), min(bound.high or 0, other.high or 0)
        merged[bound.name, bound.launch] = replace(bound, low=low, high=high)
    yield from merged.values()


def _candidates(tracer: Tracer, wrapper: Wrapper) -> Iterator[Candidate]:
    for kernel in wrapper.kernels.values():
        for check in find_asserts(kernel.source):
            yield from tracer.trace(
                Assertion(
                    plain(check.text),
                    check.variable,
                    check.lower,
                    check.upper,
                    line=generated_line(kernel, check.line),
                    kernel=kernel.name,
                )
            )


def _takes_any(candidate: Candidate) -> bool:
    """Whether the checked value is computed from any element of one tensor.

    A value behind a condition is not, and neither is one at an offset or a step (a column of a table):
    elements that are left out may hold anything.
    """
    line = candidate.kernel.source.split("\n")[candidate.check.line - 1]
    return (
        len(candidate.sources) == 1
        and not _CONDITION.search(line)
        and all(_WHOLE.fullmatch(load.index.strip()) for load in candidate.trace.loads)
    )


def _bound(candidate: Candidate) -> IndexBound | None:
    (source,) = candidate.sources
    if source.allowed is None:
        return None
    name, launch = source.tensor, candidate.launch.index
    if (ends := source.allowed.numbers({})) is not None:
        return IndexBound(name, launch, ends[0], ends[1] + 1)
    scalars = {a.name for a in candidate.launch.arguments if not a.is_tensor}
    sizes = {term for end in (source.allowed.low, source.allowed.high) for term, _ in end.terms}
    if len(sizes) == 1 and sizes <= scalars:
        return IndexBound(name, launch, None, None, sizes.pop(), source.allowed)
    return None


INTEGERS = frozenset({"int64", "int32"})
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Indexing:
    """`index` holds places of `indexed`: of its argument `dim`, or of a fixed dimension.

    With `each`, `index` is a list, and its n-th tensor indexes dimension n. `wraps`: negative ones count from
    the end.
    """

    index: str
    indexed: str
    dim: str | int = "dim"
    wraps: bool = False
    each: bool = False


_ALONG = Indexing("index", "self")
_LOOKUP = Indexing("indices", "weight", 0)
_EACH = Indexing("indices", "self", wraps=True, each=True)
# The operators whose shims' parameters are known by name (`package/shims.py`), without `_out`.
OPERATORS: dict[str, Indexing] = {
    "scatter_src": _ALONG,
    "scatter_value": _ALONG,
    "scatter_reduce_two": _ALONG,
    "_embedding_bag": _LOOKUP,
    "index_put": _EACH,
    "index_Tensor": _EACH,
}


@dataclass(frozen=True)
class Place:
    """The variable `name` holds indices in [low, high) of a dimension of this call."""

    name: str
    low: int
    high: int

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}"


def operator_bounds(launch: Launch, seen: Sequence[ArgumentValues]) -> dict[str, Place]:
    """Bounds of the index arguments of an extern launch, by variable; `seen` has the shapes of the call."""
    if launch.kind not in ("extern", "fallback_shim"):
        return {}
    rule = OPERATORS.get(operator_name(launch.kernel).removesuffix("_out"))
    if rule is None:
        return {}
    shapes = {a.name: a.shape for a in seen if a.when == "before" and a.shape is not None}
    whole = {a.name for a in seen if a.when == "before" and a.dtype in INTEGERS}
    return {place.name: place for place in _places(launch, rule, shapes) if place.name in whole}


def _places(launch: Launch, rule: Indexing, shapes: Mapping[str, list[int]]) -> Iterator[Place]:
    indexed = next((a for a in launch.arguments if a.name == rule.indexed and a.target), None)
    shape = _shape(indexed, shapes)
    for argument in launch.arguments:
        if argument.name != rule.index or argument.target is None or shape is None:
            continue
        dim = argument.element if rule.each else _dimension(rule, launch)
        if dim is not None and -len(shape) <= dim < len(shape):
            size = shape[dim]
            yield Place(argument.target, -size if rule.wraps else 0, size)


def _shape(argument: Argument | None, shapes: Mapping[str, list[int]]) -> list[int] | None:
    """A tensor's shape in this call; None for a view made in the call, whose shape nobody told."""
    if argument is None or argument.view is not None:
        return None
    return shapes.get(argument.target or "")


def _dimension(rule: Indexing, launch: Launch) -> int | None:
    if isinstance(rule.dim, int):
        return rule.dim
    given = next((a.expression for a in launch.arguments if a.name == rule.dim), "")
    number = given.strip().rstrip("L")
    return int(number) if _NUMBER.fullmatch(number) else None


OPEN = 64  # launches that are not yet known to have ended


@dataclass(frozen=True)
class Seen:
    """What a backend saw: launches in the order of the call, what it cannot show, and the run.

    `stopped`: the run was ended on purpose, after a bad value.
    """

    launches: Launches
    notes: list[str]
    run: WorkerRun
    last_launch: str = ""
    stopped: bool = False


async def observe(
    context: Context, workload: PackageWorkload, model: Model, choice: Choice, *, save: bool, stop: bool
) -> Seen:
    """Rebuild and run once. Raises ProblemError when the package cannot be rebuilt."""
    python = context.python_for(workload)
    instrumented = await instrument(workload.package, Options(), context, python=python, env=workload.env)
    bounds = find_bounds(model.package, model.wrapper)
    directory = context.fresh("observe")
    done = await context.worker(
        "observe",
        {
            **run_request(workload),
            **_chosen(choice),
            "package": instrumented.package,
            "skip_before": unset_arguments(model),
            "bounds": [_request(bound) for bound in bounds if not bound.size],
            **({"save": _folder(directory), "save_bytes": _cap(directory)} if save else {}),
            "stop_at_first_bad": stop,
        },
        directory=directory,
        env={**workload.env, **_preload(instrumented)},
        python=python,
        cwd=workload.cwd,
        timeout_s=workload.timeout_s,
        streamed=("argument", "non_finite"),
    )
    launches = Launches(lambda: read_launches(context, done.streamed("argument"), model, bounds))
    notes = _notes(instrumented, done, model.package.model_name)
    return Seen(launches, notes, done, stopped=stop and _was_stopped(done, launches))


def _was_stopped(done: WorkerRun, launches: Launches) -> bool:
    """The call raised right after a bad value: no signal, and no launch after that one."""
    raised = done.finished.ending == "exit" and done.last("called") is None
    last = launches.last if raised else None
    return last is not None and last.surely_bad


def _request(bound: IndexBound) -> dict[str, Any]:
    return {"name": bound.name, "launch": bound.launch, "low": bound.low, "high": bound.high}


def _chosen(choice: Choice) -> dict[str, Any]:
    """Only what is asked for is a restriction."""
    asked = {"launches": choice.launches, "kernels": choice.kernels, "names": choice.buffers}
    return {name: list(value) for name, value in asked.items() if value}


def _cap(directory: Path) -> int:
    """Bytes that tensors may take: at most half of what the disk has free."""
    return min(4 << 30, shutil.disk_usage(directory).free // 2)


def _folder(directory: Path) -> Path:
    folder = directory / "tensors"
    folder.mkdir()
    return folder


def _preload(instrumented: Instrumented) -> dict[str, str]:
    return {"LD_PRELOAD": " ".join(instrumented.preload)} if instrumented.preload else {}


def unset_arguments(model: Model) -> dict[int, list[str]]:
    """By launch, the tensors that nothing has written before it: what they hold means nothing."""
    found: dict[int, list[str]] = {}
    for launch in model.wrapper.launches:
        for name in {a.target for a in launch.tensors if a.target}:
            if _is_unset(name, launch.index, model):
                found.setdefault(launch.index, []).append(name)
    return found


def _is_unset(name: str, launch: int, model: Model) -> bool:
    if model.flow.last_writers(name, launch):
        return False
    origin = model.flow.backward(name, launch)
    return not (origin.inputs or origin.constants)


def read_launches(
    context: Context, events: Iterable[Event], model: Model, bounds: Iterable[IndexBound]
) -> Iterator[LaunchValues]:
    """The worker's events, grouped by launch in the order of the call.

    Launches of runs side by side may be mixed, at most `OPEN` of them.
    """
    by_place: dict[tuple[str, int], list[IndexBound]] = {}
    for bound in bounds:
        by_place.setdefault((bound.name, bound.launch), []).append(bound)
    for group in _grouped(events):
        yield _launch(context, group, model, by_place)


def _grouped(events: Iterable[Event]) -> Iterator[list[Event]]:
    """Events of one launch each, in the order of the first ones."""
    opened: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        opened.setdefault((event["run"], event["sequence"]), []).append(event)
        if len(opened) > OPEN:
            yield opened.pop(next(iter(opened)))
    yield from opened.values()


def _launch(
    context: Context,
    events: list[Event],
    model: Model,
    bounds: Mapping[tuple[str, int], Sequence[IndexBound]],
) -> LaunchValues:
    first = events[0]
    number = int(first["launch"])
    sizes = {e["parameter"]: e["value"] for e in events if isinstance(e.get("value"), int)}
    seen = [_argument(context, e) for e in events]
    known = model.launch(number)
    places = operator_bounds(known, seen) if known is not None else {}
    arguments = [_held_by_all(a, bounds.get((a.name, number), ()), sizes) for a in seen]
    arguments = [_placed(a, places.get(a.name)) for a in arguments]
    tensors = {a.target for a in known.tensors if a.target} if known else set()
    return LaunchValues(
        kernel=str(first["kernel"]),
        sequence=int(first["sequence"]),
        launch=number,
        arguments=arguments,
        not_shown=sorted(tensors - {a.name for a in arguments}),
        locations=model.locations(number),
    )


def _held_by_all(
    argument: ArgumentValues, bounds: Sequence[IndexBound], sizes: Mapping[str, int]
) -> ArgumentValues:
    """The argument with its bound; of several checks the first that it fails, else the last."""
    for bound in bounds:
        argument = _held(argument, bound, sizes)
        if argument.outside is not None:
            break
    return argument


def _held(argument: ArgumentValues, bound: IndexBound, sizes: Mapping[str, int]) -> ArgumentValues:
    """The argument with one bound. One that is a size of this call is held against minimum and maximum here:
    the worker could not know it.
    """
    if argument.role == "written" or (bound.size and bound.size not in sizes):
        return argument
    if not bound.size:
        return argument.model_copy(update={"bound": bound.text})
    known = bound.at(sizes[bound.size])
    return argument.model_copy(update={"bound": known.text, "outside": _beyond(argument, known)})


def _placed(argument: ArgumentValues, place: Place | None) -> ArgumentValues:
    """The argument of an operator that holds places of another one."""
    if place is None or argument.bound or argument.when == "after":
        return argument
    return argument.model_copy(update={"bound": place.text, "outside": _beyond(argument, place)})


def _beyond(argument: ArgumentValues, bound: IndexBound | Place) -> BadElement | None:
    if argument.max is not None and bound.high is not None and argument.max >= bound.high:
        return BadElement(value=str(int(argument.max)))
    if argument.min is not None and bound.low is not None and argument.min < bound.low:
        return BadElement(value=str(int(argument.min)))
    return None


def _argument(context: Context, event: Event) -> ArgumentValues:
    saved = event.get("saved")
    return ArgumentValues(
        name=event["name"],
        when=event["phase"],
        role=event["role"],
        parameter=event["parameter"],
        value=str(event.get("value", "")),
        outside=bad_element(event.get("outside")),
        saved=context.artifact(Path(saved), "tensor (safetensors)") if saved else None,
        **measured(event),
    )


def _notes(instrumented: Instrumented, done: WorkerRun, model: str) -> list[str]:
    """What was not seen, and why."""
    skipped = [
        f"launch {s.launch} ({s.kernel}) has no probes: {s.reason}"
        for s in instrumented.skipped
        if s.model == model
    ]
    failed = [f"the observer failed: {e['text'].splitlines()[-1]}" for e in done.all("observer_failed")]
    left = [f"{e['arguments']} arguments were left out: too many events" for e in done.all("left_out")]
    unsaved = [
        f"{e['tensors']} tensors were not saved: beyond {e['cap'] >> 20} MiB, or not dense"
        for e in done.all("not_saved")
    ]
    return [*instrumented.notes, *skipped, *failed, *left, *unsaved]
