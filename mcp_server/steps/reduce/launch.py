"""Replays a single launch from what it was given: a script with the kernel's source and recorded inputs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_server.errors import ProblemError
from mcp_server.instrument.build import instrument
from mcp_server.instrument.types import Options
from mcp_server.jobs.types import Command, Finished
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.kernels import Kernel
from mcp_server.package.wrapper import read_wrapper
from mcp_server.steps.capture import capture
from mcp_server.steps.compiled import compiled_package
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.failure import read_failure
from mcp_server.steps.first_bad import Model, find_first_bad
from mcp_server.steps.kernel_choice import Choice
from mcp_server.steps.leases import gpus_of
from mcp_server.steps.locate_in_program import captured_call
from mcp_server.steps.probe_backend import observe, unset_arguments
from mcp_server.steps.reduce.failing import FailureShown, of_ending, of_script
from mcp_server.steps.reduce.launch_script import Recorded, Replay, files
from mcp_server.steps.reduce.outcome import ALONE, SCRIPT, SMALL, one_line
from mcp_server.steps.reduce.records import Reduced
from mcp_server.steps.reports import Event
from mcp_server.steps.requests import run_request

# A fault then ends the launch that made it, and not a later one.
BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1"}
GENERATED = ("cpp", "triton", "user_triton")


async def reduce_launch(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload, launch: int | None
) -> Reduced:
    """A script that makes launch number `launch` alone, from the values that it was given in this call.

    By default the launch that first wrote a bad value, or in which the call ended. The kernel's source is the
    package's own. Raises ProblemError for a launch that is no generated kernel, and when none is chosen and
    every launch is healthy.
    """
    called = await _package(context, workload)
    called = called.model_copy(update={"env": {**BLOCKING, **called.env}})
    package = open_package(called.package, called.model_name)
    model = Model(package, read_wrapper(package.wrapper_text, package.kernel_text))
    number = await _suspect(context, called, model) if launch is None else launch
    kernel = kernel_of(model, number)
    seen = seen_in(await record(context, called, number), model, number)
    directory = context.fresh("reproduction")
    notes = write(replay(seen, model, kernel), seen.arguments, directory)
    finished = await run_alone(context, called, directory, gpus_of(package.device_type, called.device_index))
    return _result(context, seen.failure, finished, [str(context.python_for(called))], directory, notes)


@dataclass(frozen=True)
class SeenLaunch:
    """Events of one launch's arguments, names of those that held nothing before it, and how it failed."""

    number: int
    arguments: list[Event]
    unset: frozenset[str]
    failure: FailureShown | None
    torch: str


def seen_in(done: WorkerRun, model: Model, number: int) -> SeenLaunch:
    """Launch `number` in what `record` saw."""
    arguments = [event for event in done.all("argument") if event["launch"] == number]
    written = {event["name"] for event in arguments if event["role"] == "written"}
    unset = frozenset(written.union(unset_arguments(model).get(number, ())))
    version = (done.last("torch") or {"version": ""})["version"]
    return SeenLaunch(number, arguments, unset, _failure(done, arguments, unset), str(version))


def replay(seen: SeenLaunch, model: Model, kernel: Kernel) -> Replay:
    """What a script must know to make that launch alone."""
    how = one_line(str(seen.failure or "healthy"))
    return Replay(
        title=f"Launch {seen.number} of an AOTInductor package, {kernel.name}: {how}",
        torch=seen.torch,
        kernel=kernel,
        recorded=_recorded(seen.arguments),
        unset=tuple(sorted({e["parameter"] for e in seen.arguments if e["name"] in seen.unset})),
        after=tuple(sorted({e["parameter"] for e in _saved(seen.arguments, "after")})),
        code=model.package.kernel_text or "",
    )


async def _package(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload
) -> PackageWorkload:
    if isinstance(workload, PackageWorkload):
        return workload
    if isinstance(workload, ExportedWorkload):
        return await compiled_package(context, workload, {})
    called, why = captured_call(await capture(context, workload), workload)
    if called is None:
        raise ProblemError(f"the script makes no call that could be taken: {why}", value=str(workload.script))
    return called


async def _suspect(context: Context, called: PackageWorkload, model: Model) -> int:
    """The launch that first wrote a bad value, or after whose begin nothing more was seen."""
    seen = await observe(context, called, model, Choice(), save=False, stop=False)
    bad = find_first_bad(seen.launches, model)
    if bad is not None and bad.launch is not None:
        return bad.launch
    last = seen.launches.last if seen.run.last("called") is None else None
    if last is not None and last.launch is not None:
        return last.launch
    raise ProblemError(
        "no launch of this call fails or makes a value that is not finite",
        allowed="launch=N to replay a healthy one",
        next_call="reduce with scope graph, or diagnose",
    )


def kernel_of(model: Model, number: int) -> Kernel:
    """The kernel of a launch. Raises `ProblemError` for no such launch, or none with a source."""
    launch = model.launch(number)
    if launch is None:
        raise ProblemError("no such launch", value=number, allowed=f"0 to {len(model.wrapper.launches) - 1}")
    if launch.kind not in GENERATED or launch.kernel not in model.wrapper.kernels:
        raise ProblemError(
            f"launch {number} calls {launch.callee}, which has no source in the package",
            allowed="a launch of a generated or user-written kernel",
            next_call="reduce with scope graph",
        )
    return model.wrapper.kernels[launch.kernel]


async def record(context: Context, called: PackageWorkload, number: int) -> WorkerRun:
    """Run once more and save what the launch is given and what it leaves."""
    python = context.python_for(called)
    rebuilt = await instrument(called.package, Options(), context, python=python, env=called.env)
    directory = context.fresh("record")
    tensors = directory / "tensors"
    tensors.mkdir()
    preload = {"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {}
    request = {
        **run_request(called),
        "package": rebuilt.package,
        "launches": [number],
        "unset_too": True,
        "save": tensors,
    }
    return await context.worker(
        "observe",
        request,
        directory=directory,
        env={**called.env, **preload},
        python=python,
        cwd=called.cwd,
        timeout_s=called.timeout_s,
    )


def _saved(arguments: Sequence[Event], phase: str) -> list[Event]:
    return [event for event in arguments if event["phase"] == phase and event.get("saved")]


def _recorded(arguments: Sequence[Event]) -> tuple[Recorded, ...]:
    """The arguments before the launch. Raises `ProblemError` when the launch was never reached."""
    before = [event for event in arguments if event["phase"] == "before"]
    if not before:
        raise ProblemError("the call ended before that launch", next_call="trace_launches")
    return tuple(_argument(event) for event in before)


def _argument(event: Event) -> Recorded:
    if "value" in event:
        return Recorded(event["parameter"], number=str(event["value"]))
    if not event.get("saved"):
        raise ProblemError("a tensor of the launch was too large to be saved", value=event["name"])
    layout = tuple(event["shape"]), tuple(event["stride"])
    return Recorded(event["parameter"], "", *layout, device=str(event["device"]))


def _failure(done: WorkerRun, arguments: Sequence[Event], unset: Collection[str]) -> FailureShown | None:
    """How this launch failed in the call; None when it did not."""
    after = [event for event in arguments if event["phase"] == "after"]
    failure = read_failure(done.finished)
    if not after and failure is not None:
        return of_ending(done.finished, failure, "calling")
    was = {e["name"] for e in arguments if e["phase"] == "before" and e["name"] not in unset and _bad(e)}
    new = [event for event in after if _bad(event) and event["name"] not in was]
    nan = any(event.get("nan") for event in new)
    return FailureShown(kind="not_finite", phase="calling", nan=nan) if new else None


def _bad(event: Event) -> bool:
    return bool(event.get("nan") or event.get("inf"))


def write(replay: Replay, arguments: Sequence[Event], directory: Path) -> list[str]:
    """Write the script with its files; what was assumed, and what is large."""
    texts, notes = files(replay)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    inputs = directory / "inputs"
    inputs.mkdir()
    for event in arguments:
        if event.get("saved"):
            shutil.copyfile(event["saved"], inputs / f"{event['parameter']}-{event['phase']}.safetensors")
    size = sum(path.stat().st_size for path in inputs.iterdir())
    notes.append("the folder inputs holds values of the workload")
    return [*notes, f"the recorded values take {size} bytes"] if size > SMALL else notes


async def run_alone(
    context: Context, called: PackageWorkload, directory: Path, gpus: tuple[int, ...] | None
) -> Finished:
    """Run the script in `directory`."""
    argv = (str(context.python_for(called)), SCRIPT)
    command = Command(argv=argv, cwd=directory, env=ALONE, timeout_s=called.timeout_s, gpus=gpus)
    return await context.run(command, "reproduction-run", runs=1)


def _result(
    context: Context,
    failure: FailureShown | None,
    finished: Finished,
    python: list[str],
    directory: Path,
    notes: list[str],
) -> Reduced:
    shown = of_script(finished)
    same = failure.same_cause_as(shown) if failure is not None else shown is None
    return Reduced(
        outcome="reduced" if same and failure else "replayed" if same else "not_reduced",
        scope="launch",
        summary=_summary(failure, shown, same),
        failure=failure,
        command=shlex.join([*python, str(directory / SCRIPT)]),
        exit_status=finished.returncode,
        files=[context.artifact(path, path.name) for path in sorted(directory.rglob("*")) if path.is_file()],
        notes=notes,
        log=context.artifact(finished.output, "output of the reproduction"),
        cost=context.cost.cost(),
    )


def _summary(failure: FailureShown | None, shown: FailureShown | None, same: bool) -> str:
    if failure is None:
        return (
            "The launch writes the same values again; nothing is wrong that it shows by itself."
            if same
            else (f"The launch was healthy in the call, and replayed it is not: {shown}.")
        )
    if same:
        return f"The launch alone fails in the same way: {str(shown).rstrip('.')}."
    return f"The launch failed in the call ({failure}), but replayed alone it shows {shown or 'no fault'}."
