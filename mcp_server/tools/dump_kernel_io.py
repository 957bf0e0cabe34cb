"""`dump_kernel_io`: what chosen launches read and wrote, seen by probes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import anyio.to_thread

from mcp_server.model import ExportedWorkload, PackageWorkload
from mcp_server.package.view import PackageView, view_package
from mcp_server.probes.build import with_probes
from mcp_server.probes.commands import Instrumented
from mcp_server.runtime.context import REPORT, Context, WorkerRun, stream_events
from mcp_server.runtime.failure import read_failure
from mcp_server.tools.compile_with_flags import compiled_package
from mcp_server.tools.index_bounds import IndexBound, find_bounds, operator_bounds
from mcp_server.tools.kernel_io import (
    ArgumentValues,
    BadElement,
    Choice,
    KernelIO,
    LaunchValues,
    overview,
    unset_arguments,
)
from mcp_server.tools.requests import check_inputs_given, run_request
from mcp_server.worker import events
from mcp_server.worker.events import Argument

SHOWN = 24
OPEN = 64  # launches not yet known to have ended


async def dump_kernel_io(
    context: Context,
    workload: PackageWorkload | ExportedWorkload,
    *,
    launches: Sequence[int] = (),
    kernels: Sequence[str] = (),
    buffers: Sequence[str] = (),
    save: bool = False,
    stop_at_first_bad: bool = False,
    shown: int = SHOWN,
) -> KernelIO:
    """Run the call once and look at the chosen launches, by default at all.

    Launch probes see every tensor and need no recompile; an exported program is compiled first, with
    provenance. A call that fails is a result. Raise ProblemError for an invalid choice, missing inputs, or a
    package that cannot be rebuilt.
    """
    check_inputs_given(workload)
    if isinstance(workload, ExportedWorkload):
        workload = await compiled_package(context, workload)
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
    # Read everything reported in a thread, because it may be long.
    found = await anyio.to_thread.run_sync(overview, seen, model, choice, run.directory, shown)
    returned, last = run.last(events.Called) is not None, found.last
    # Stopped on purpose: the call raised right after a bad value, without a signal or another launch.
    raised = stop_at_first_bad and run.finished.ending == "exit" and not returned
    stopped = raised and last is not None and last.surely_bad
    # The launch after which nothing was seen.
    open_launch = not returned and last is not None and all(a.when == "before" for a in last.arguments)
    return KernelIO(
        returned=returned,
        stopped=stopped,
        first_bad=found.first_bad,
        last_launch=last.kernel if open_launch and last is not None else "",
        launches=found.shown,
        seen=found.count,
        left_out=max(0, found.count - shown),
        notes=_notes(instrumented, run, model),
        failure=None if stopped else read_failure(run.finished),
        table=context.artifact(found.table, "table of all launches"),
        json_file=context.artifact(found.json_file, "all launches"),
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
        outside = BadElement(value=str(int(argument.max)))
    elif argument.min is not None and bound.low is not None and argument.min < bound.low:
        outside = BadElement(value=str(int(argument.min)))
    return argument.model_copy(update={"bound": bound.text, "outside": outside})


def _argument(context: Context, seen: Argument) -> ArgumentValues:
    facts = {name: getattr(seen, name, None) for name in ArgumentValues.model_fields}
    known = {name: value for name, value in facts.items() if value is not None}
    value = "" if seen.value is None else str(seen.value)
    saved = context.artifact(Path(seen.saved), "tensor (safetensors)") if seen.saved else None
    return ArgumentValues.model_validate({**known, "when": seen.phase, "value": value, "saved": saved})
