"""`dump_kernel_io`: what probes saw chosen launches read and write, and the bounds of their indices.

A generated kernel has its bounds in asserts. The index arguments of an ATen operator are bounded only by its
schema (aten/src/ATen/native/native_functions.yaml, torch 2.13): they are compared with the shape of the
indexed tensor in the same call.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.build import with_probes
from mcp_server.probes.commands import Instrumented
from mcp_server.runtime.context import REPORT, Context, WorkerRun, stream_events
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.kernel_io import (
    ArgumentValues,
    Choice,
    KernelIO,
    LaunchValues,
    Overview,
    overview,
    unset_arguments,
)
from mcp_server.tools.requests import check_inputs_given, run_request
from mcp_server.worker import events
from mcp_server.worker.events import Argument
from mcp_server.worker.report import OddElement

SHOWN = 24
OPEN = 64  # launches that may not have ended yet


async def dump_kernel_io(
    context: Context,
    workload: PackageWorkload,
    *,
    launches: Sequence[int] = (),
    kernels: Sequence[str] = (),
    buffers: Sequence[str] = (),
    save: bool = False,
    stop_at_first_bad: bool = False,
    shown: int = SHOWN,
) -> KernelIO:
    """Run the call once and look at the chosen launches, by default at all.

    Launch probes see every tensor and need no recompile. A call that fails is a result. Raise ProblemError
    for an invalid choice, missing inputs, or a package that cannot be rebuilt.
    """
    check_inputs_given(workload)
    model = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    choice = Choice(launches, kernels, buffers).checked(model)
    bounds = await anyio.to_thread.run_sync(find_bounds, model)
    instrumented = await with_probes(context, workload)
    request = {
        **run_request(workload),
        "package": instrumented.package,
        "skip_before": unset_arguments(model),
        "bounds": [
            {"name": bound.name, "launch": bound.launch, "low": bound.low, "high": bound.high}
            for bound in bounds
            if not bound.size
        ],
        "stop_at_first_bad": stop_at_first_bad,
    }
    run = await _observe(context, workload, instrumented, choice, request, save=save)
    seen = read_launches(context, stream_events(run.directory / REPORT, Argument), model, bounds)
    # Read the report in a thread, because it may be long.
    found = await anyio.to_thread.run_sync(overview, seen, model, choice, run.directory, shown)
    notes = _notes(instrumented, run, model)
    return _result(context, run, found, notes, shown=shown, stopping=stop_at_first_bad)


def _result(
    context: Context, run: WorkerRun, found: Overview, notes: list[str], *, shown: int, stopping: bool
) -> KernelIO:
    """Say how the call ended, and what was seen. `stopping`: it was to stop at the first bad value."""
    returned, last = run.last(events.Called) is not None, found.last
    # Stopped on purpose: the call raised right after a bad value, without a signal or another launch.
    raised = stopping and run.finished.ending == "exit" and not returned
    stopped = raised and last is not None and last.surely_bad
    # The call ended inside the last launch: no event followed it.
    open_launch = not returned and last is not None and all(a.when == "before" for a in last.arguments)
    return KernelIO(
        returned=returned,
        stopped=stopped,
        first_bad=found.first_bad,
        last_launch=last.kernel if open_launch and last is not None else "",
        launches=found.shown,
        seen=found.count,
        left_out=max(0, found.count - shown),
        notes=notes,
        failure=None if stopped else read_failure(run.finished),
        json_file=context.artifact(found.json_file, "the chosen launches"),
        log=context.artifact(run.finished.output, "output of the run"),
        cost=context.cost.cost(),
    )


async def _observe(
    context: Context,
    workload: PackageWorkload,
    instrumented: Instrumented,
    choice: Choice,
    request: Mapping[str, object],
    *,
    save: bool,
) -> WorkerRun:
    """Run the package with probes once; the facts about arguments stay in its report file."""
    directory = context.fresh("observe")
    chosen = {"launches": choice.launches, "kernels": choice.kernels, "names": choice.buffers}
    more: dict[str, object] = {name: list(value) for name, value in chosen.items() if value}
    if save:
        folder = directory / "tensors"
        folder.mkdir()
        more |= {"save": folder, "save_bytes": min(4 << 30, shutil.disk_usage(directory).free // 2)}
    return await context.worker(
        "observe",
        {**request, **more},
        directory=directory,
        workload=workload,
        env=instrumented.environment,
        streamed=(Argument,),
    )


def _notes(instrumented: Instrumented, run: WorkerRun, model: PackageView) -> list[str]:
    """List what the probes did not see."""
    skipped = [s for s in instrumented.skipped if s.model == model.package.model_name]
    return [
        *instrumented.notes,
        *(f"launch {s.launch} ({s.kernel}) has no probes: {s.reason}" for s in skipped),
        *(f"the observer failed: {e.about.splitlines()[-1]}" for e in run.phases("observer_failed")),
        *(f"{e.arguments} arguments were left out: too many events" for e in run.all(events.LeftOut)),
        *(
            f"{e.tensors} tensors were not saved: beyond {e.cap >> 20} MiB, or not dense"
            for e in run.all(events.NotSaved)
        ),
    ]


def read_launches(
    context: Context, seen: Iterable[Argument], model: PackageView, bounds: Iterable[IndexBound]
) -> Iterator[LaunchValues]:
    """Group the worker's events by launch, in the order of the call.

    Launches of concurrent runs may interleave, at most `OPEN` of them.
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
    tensors = {a.target for a in known.tensors if a.target} if known is not None else set()
    of_operator = operator_bounds(known, seen) if known is not None else {}
    arguments = []
    for argument in seen:
        # Of several checks, show the first that fails, else the last. The worker has compared elements with
        # bounds that are known before the call. A bound that is a size of this call, or a shape that an
        # operator indexes, is compared with minimum and maximum here.
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
    return LaunchValues(
        kernel=first.kernel,
        sequence=first.sequence,
        launch=number,
        arguments=arguments,
        not_shown=sorted(tensors - {a.name for a in arguments}),
        locations=model.locations(number),
    )


def _compared(argument: ArgumentValues, bound: IndexBound) -> ArgumentValues:
    outside = None
    if argument.max is not None and bound.high is not None and argument.max >= bound.high:
        outside = OddElement(value=str(int(argument.max)))
    elif argument.min is not None and bound.low is not None and argument.min < bound.low:
        outside = OddElement(value=str(int(argument.min)))
    return argument.model_copy(update={"bound": bound.text, "outside": outside})


def _argument(context: Context, seen: Argument) -> ArgumentValues:
    facts = {name: getattr(seen, name, None) for name in ArgumentValues.model_fields}
    known = {name: value for name, value in facts.items() if value is not None}
    value = "" if seen.value is None else str(seen.value)
    saved = context.artifact(Path(seen.saved), "tensor (safetensors)") if seen.saved else None
    return ArgumentValues.model_validate({**known, "when": seen.phase, "value": value, "saved": saved})


# `| ~(tmp4 & xmask)` of Triton. A mask of the iteration space alone excludes no element.
_CONDITION = re.compile(r"~\((?!(?:[xyzr]\d*_?mask(?: & )?)+\))")


@dataclass(frozen=True)
class IndexBound:
    """Elements of `name`, as read by `launch`, must lie in [low, high).

    If the ends are known only at run time, `size` names the launch's argument that they depend on; then `low`
    and `high` are None, and `allowed` computes them.
    """

    name: str
    launch: int
    low: int | None
    high: int | None
    size: str = ""
    allowed: Limit | None = None

    def at(self, value: int) -> IndexBound:
        """The bound if the size is `value`."""
        ends = self.allowed.numbers({self.size: value}) if self.allowed else None
        if ends is None:
            return self
        size = self.size if ends[1] + 1 == value else ""
        return IndexBound(self.name, self.launch, ends[0], ends[1] + 1, size)

    @property
    def text(self) -> str:
        return f"{self.low} <= index < {self.high}{f' = {self.size}' if self.size else ''}"


def find_bounds(view: PackageView) -> tuple[IndexBound, ...]:
    """Find bounds on tensors whose elements determine indices, from the kernels' asserts.

    Each tensor of a launch gets one bound that fits all its checks, plus those that depend on a size.
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
    """The bound on all elements of the tensor from which the checked value is computed.

    None for a value behind a condition, or at an offset or a step (such as a column of a table): the elements
    in between may have any value.
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
    """The elements of `index` are positions in dimension `dim` of `indexed`. An argument may give `dim`.

    If `dim` is None, `index` is a list: its n-th tensor indexes dimension n, negative ones from the end.
    """

    index: str
    indexed: str
    dim: str | int | None


_ALONG = Indexing("index", "self", "dim")
_LOOKUP = Indexing("indices", "weight", 0)
_EACH = Indexing("indices", "self", None)
# The operators whose shim parameters are known by name (`package/calls.py`), without `_out`.
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
    """Bounds for an extern launch's index arguments, by variable; `seen` has the call's shapes."""
    rule = OPERATORS.get(shim_operator(launch.kernel).removesuffix("_out"))
    if rule is None or launch.kind not in ("extern", "fallback_shim"):
        return {}
    read = {a.name: a for a in seen if a.when == "before"}
    indexed = next((a for a in launch.arguments if a.name == rule.indexed and a.target), None)
    values = read.get(indexed.target or "") if indexed is not None else None
    # The shape of a view created in the call is not known.
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
