"""Kernel I/O through launch probes: the package rebuilt from its own wrapper, then observed in one run."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_server.instrument.build import instrument
from mcp_server.instrument.types import Instrumented, Options
from mcp_server.model import PackageWorkload
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.first_bad import Model
from mcp_server.steps.index_bounds import IndexBound, find_bounds
from mcp_server.steps.kernel_choice import Choice
from mcp_server.steps.kernel_io import ArgumentValues, BadElement, LaunchValues, bad_element, measured
from mcp_server.steps.launch_overview import Launches
from mcp_server.steps.operator_bounds import Place, operator_bounds
from mcp_server.steps.reports import Event
from mcp_server.steps.requests import run_request

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
