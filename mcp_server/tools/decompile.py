"""`decompile`: writes a package as a PyTorch program, and compares the outputs of both."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.model import Artifact, PackageWorkload, Record
from mcp_server.package.launches import Argument, Launch, shim_operator
from mcp_server.package.pytorch.calls import COMMON, Place, place_of
from mcp_server.package.pytorch.launch import WrittenLaunch
from mcp_server.package.pytorch.program import OddLaunch, PytorchProgram, write_program
from mcp_server.package.pytorch.text import write_weights
from mcp_server.package.view import PackageView, view_package
from mcp_server.package.wrapper import grouped
from mcp_server.plurals import counted, is_
from mcp_server.probes.build import with_probes
from mcp_server.recorder.replay import KernelCapture
from mcp_server.runtime.context import Context
from mcp_server.tools.every_launch import LeftLaunch
from mcp_server.tools.requests import run_request
from mcp_server.worker import events
from mcp_server.worker.events import CaptureJudged, LaunchVerified, OutputVerified, Schema
from mcp_server.worker.protocol import CapturedLaunch, LaunchAlone

RANKS = ("different", "not_run", "rounding", "equal")
PROGRAM, WEIGHTS = "model.py", "weights.safetensors"
MOST_LISTED = 20
MOST_COMPARED = 60
MOST_ODD = 3


class Decompiled(Record):
    """The written files, what could not be read, and how the outputs compare."""

    summary: str
    outcome: Literal["written", "agrees", "differs", "program_failed", "package_failed"]
    program: Path
    weights: Path | None = None
    launches: int
    read: int
    not_read: list[LeftLaunch] = Field(default_factory=list)
    missing_weights: list[str] = Field(default_factory=list)
    outputs: list[OutputVerified] = Field(default_factory=list)
    by_launch: list[LaunchVerified] = Field(default_factory=list)
    error: str = ""
    code: str = ""
    artifacts: list[Artifact] = Field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """The result of running program and package. `error` comes from the program, or else the package."""

    outcome: Literal["written", "agrees", "differs", "program_failed", "package_failed"] = "written"
    outputs: tuple[OutputVerified, ...] = ()
    by_launch: tuple[LaunchVerified, ...] = ()
    error: str = ""
    odd: tuple[OddLaunch, ...] = ()

    @property
    def different(self) -> list[LaunchVerified]:
        """Launches that do not compute what their source says."""
        return [each for each in self.by_launch if each.agreement == "different"]

    @property
    def own_source(self) -> str:
        """Say that each launch that ran computes what its source says. Empty if one differs or none ran."""
        ran = [each for each in self.by_launch if each.agreement != "not_run"]
        if not ran or self.different:
            return ""
        left = len(self.by_launch) - len(ran)
        rest = f" ({counted(left, 'launch')} did not run or could not be read)" if left else ""
        return (
            f"Each launch computes what its generated code says, up to rounding{rest}. Whether that code "
            "matches the model is not known."
        )

    def __str__(self) -> str:
        return self._of_outputs() + self._of_launches()

    def _of_launches(self) -> str:
        count = Counter(each.agreement for each in self.by_launch)
        ran, equal = len(self.by_launch) - count["not_run"], count["equal"]
        if not ran:
            return ""
        told = f" Of {counted(ran, 'launch')}, each on its own inputs, {equal} {is_(equal)} equal bit for bit"
        told += f" and {count['rounding']} up to rounding"
        if not self.different:
            return f"{told}."
        first, verb = self.different[0], "differs" if len(self.different) == 1 else "differ"
        by = f" by up to {first.largest_difference:.3g}" if first.largest_difference is not None else ""
        told += (
            f"; {len(self.different)} {verb}: launch {first.launch}, {first.kernel}, in {first.tensor}{by}"
        )
        return f"{told}{': ' if first.why else ''}{first.why}."

    def _of_outputs(self) -> str:
        match self.outcome:
            case "program_failed":
                return f" It fails on these inputs: {self.error}"
            case "package_failed":
                return f" The package fails on these inputs, the program does not: {self.error}"
            case "differs" if not self.outputs:
                return " Its number of outputs differs from the package's."
            case "differs" if wrong := [each for each in self.outputs if each.agreement == "different"]:
                told = f" Output {wrong[0].output} differs by up to {wrong[0].largest_difference or 0:.3g}:"
                if self.by_launch and all(one.agreement in ("equal", "rounding") for one in self.by_launch):
                    told += (
                        " each launch agrees, so a tensor between launches is read wrongly, or an operator"
                    )
                    return f"{told} returned another layout than the compiler expected."
                return (
                    f"{told} the package does not compute what its source says, or a launch is read wrongly."
                )
            case "differs" | "agrees":
                largest = max((each.largest_difference or 0.0 for each in self.outputs), default=0.0)
                if not largest:
                    return " It gives the outputs of the package bit for bit."
                return f" Its outputs equal those of the package up to rounding (at most {largest:.2g})."
        return ""


@dataclass(frozen=True, kw_only=True)
class CapturesJudged(Comparison):
    """Launches of another run, each judged on its captured arguments."""

    view: PackageView

    def __str__(self) -> str:
        left = [each for each in self.by_launch if each.agreement == "not_run"]
        told = (
            f"{counted(len(self.by_launch), 'launch')} of torch's kernel capture read.{self._of_launches()}"
        )
        if left:
            told += f" {len(left)} not compared: launch {left[0].launch}, {left[0].why}."
        return told


@dataclass(frozen=True)
class Written:
    """A program on disk with its weights. `missing`: why a weight is missing, by its name in the wrapper."""

    view: PackageView
    program: PytorchProgram
    path: Path
    weights: Path | None
    missing: Mapping[str, str]


async def decompile(
    context: Context, workload: PackageWorkload, *, out: Path | None, launches: Sequence[int]
) -> Decompiled:
    """Write the program of a package; with inputs, run both and compare."""
    folder = new_folder(out) if out is not None else context.directory / "decompiled"
    written = await write(context, workload, folder, launches)
    program, weights = written.program, written.weights
    compared = Comparison()
    if workload.inputs is not None and not launches and not written.missing:
        compared = await compare(context, workload, written)
    names = {each.name: each.fqn for each in written.view.package.constants}
    artifacts = []
    if out is None:
        artifacts = [context.artifact(written.path, "the package as a program")]
        artifacts += [context.artifact(weights, "its weights")] if weights else []
    return Decompiled(
        summary=_summary(written) + str(compared),
        outcome=compared.outcome,
        program=written.path,
        weights=weights,
        launches=len(program.launches),
        read=len(program.launches) - len(program.not_read),
        not_read=[
            LeftLaunch(launch=each.index, kernel=each.kernel, why=each.not_read)
            for each in program.not_read[:MOST_LISTED]
        ],
        missing_weights=[f"{names[name]}: {why}" for name, why in written.missing.items()][:MOST_LISTED],
        outputs=list(compared.outputs),
        by_launch=sorted(compared.by_launch, key=lambda each: RANKS.index(each.agreement))[:MOST_COMPARED],
        error=compared.error,
        code=program.text_of(launches) if launches else "",
        artifacts=artifacts,
    )


async def write(
    context: Context, workload: PackageWorkload, folder: Path, launches: Sequence[int] = ()
) -> Written:
    """Write the program into a folder, limited to `launches` if any are given."""
    view = await anyio.to_thread.run_sync(view_package, workload.package, workload.model_name)
    if not view.package.wrapper_text:
        raise ProblemError(
            "the package does not contain the source of its wrapper",
            value=str(workload.package),
            allowed="a package as torch 2.8 and later write it, with its .wrapper.cpp",
        )
    for number in launches:
        view.known_launch(number)
    schemas = await schemas_of(context, view, workload)
    program = await anyio.to_thread.run_sync(lambda: write_program(view, schemas, launches or None))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_text(program.text)
    weights: Path | None = None
    missing: Mapping[str, str] = {}
    if not launches and any(not each.folded for each in view.package.constants):
        weights = folder / WEIGHTS
        missing = await anyio.to_thread.run_sync(write_weights, view.package, weights)
    return Written(view, program, folder / PROGRAM, weights, missing)


def _summary(written: Written) -> str:
    program, missed = written.program, written.program.not_read
    read = len(program.launches) - len(missed)
    told = f"Wrote {written.path}: {read} of {counted(len(program.launches), 'launch')} as PyTorch."
    if missed:
        told += f" Launch {missed[0].index}, {missed[0].kernel}, raises an error: {missed[0].not_read}."
    if written.missing:
        told += (
            f" The package lacks {counted(len(written.missing), 'weight')}, so nothing was run. "
            'Give the program those of the model: torch.save(model.state_dict(), "weights.pt"), then '
            'Model("weights.pt").'
        )
    return " ".join([told, *map(str, program.odd[:MOST_ODD])])


def new_folder(path: Path) -> Path:
    """Check that a folder is new or empty, and writable. Raise `ProblemError` if it is not."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        what = "the folder is not empty" if path.is_dir() else "this is a file, not a folder"
        raise ProblemError(what, value=str(path), allowed="a new folder")
    if not os.access(path.parent if not path.exists() else path, os.W_OK):
        raise ProblemError("the folder cannot be written", value=str(path), allowed="a folder of yours")
    return path


async def schemas_of(context: Context, view: PackageView, workload: PackageWorkload) -> Mapping[str, Schema]:
    """The package's operators as the installed torch declares them; empty without torch."""
    nodes = [*view.wrapper.launches, *(view.wrapper.folding.launches if view.wrapper.folding else ())]
    shims = {shim_operator(each.callee) for each in nodes if each.kind in ("extern", "fallback_shim")}
    if not shims - COMMON.keys():
        return {}
    try:
        run = await context.worker("schemas", {"shims": sorted(shims)}, workload=workload)
    except ProblemError:
        return {}
    return {each.shim: each for each in run.all(Schema)}


async def compare(
    context: Context, workload: PackageWorkload, written: Written, save: Path | None = None
) -> Comparison:
    """Compare package and program on the same inputs: their outputs and, if probes can be added, each launch.

    The program's outputs are saved to `save`.
    """
    files = {"program": str(written.path), "weights": str(written.weights or ""), "save": str(save or "")}
    request = {**run_request(workload), **files}
    alone = [asked(each) for each in written.program.launches if each.alone is not None]
    env: Mapping[str, str] = {}
    try:
        probed = await with_probes(context, workload)
        request |= {"package": str(probed.package), "launches": alone}
        env = probed.environment
    except ProblemError:  # then only the outputs are compared
        pass
    run = await context.worker("verify", request, workload=workload, env=env)
    ran, returned = run.last(events.ProgramRan), run.last(events.Called)
    by_launch, odd = _by_launch(written.program, run.all(LaunchVerified)), tuple(written.program.odd)
    if ran is None or ran.error:
        error = ran.error if ran else run.finished.note
        return Comparison("program_failed", by_launch=by_launch, error=error, odd=odd)
    if returned is None:
        error = run.finished.note or "it did not return"
        return Comparison("package_failed", by_launch=by_launch, error=error, odd=odd)
    outputs = tuple(run.all(OutputVerified))
    agreements = [*(each.agreement for each in outputs), *(each.agreement for each in by_launch)]
    agrees = len(outputs) == ran.outputs and "different" not in agreements
    return Comparison("agrees" if agrees else "differs", outputs, by_launch, odd=odd)


MOST_JUDGED = 256


async def judge_captures(
    context: Context, workload: PackageWorkload, found: Sequence[KernelCapture]
) -> CapturesJudged:
    """Run captured launches as PyTorch on their captured arguments, and compare with later captures."""
    written = await write(context, workload, context.directory / "as-pytorch")
    belong = _launches_of(found[:MOST_JUDGED], written.view)
    alone = {each.index: asked(each) for each in written.program.launches if each.alone is not None}
    captures = [
        CapturedLaunch(
            launch=alone[launch.index],
            file=str(capture.path),
            tensors=[(each.variable, each.turn) for each in places_of(launch)],
            numbers=[each.expression for each in launch.arguments if each.kind in ("symbol", "scalar")],
            sizes=_sizes(launch, written.view),
            later=list(_later(launch, capture, belong, written.view)),
        )
        for capture, launch in belong.items()
        if launch.index in alone
    ]
    if not captures:
        raise ProblemError(
            "no kernel capture is of a launch of this package",
            value=", ".join(sorted({each.kernel for each in found})[:8]),
            allowed=", ".join(sorted({each.callee for each in written.view.wrapper.launches})[:8]),
        )
    files = {"program": str(written.path), "weights": str(written.weights or "")}
    request = {**files, "captures": captures, "launches": []}
    on_cpu = {"CUDA_VISIBLE_DEVICES": ""}  # captured arguments are copied to the CPU
    run = await context.worker("judge_captures", request, workload=workload, env=on_cpu)
    kernels = {each.index: each.kernel for each in written.program.launches}
    judged = [replace(each, kernel=kernels[each.launch]) for each in run.all(CaptureJudged)]
    return CapturesJudged(by_launch=tuple(judged), view=written.view)


def _launches_of(found: Sequence[KernelCapture], view: PackageView) -> dict[KernelCapture, Launch]:
    """The launch of each capture, found by line or handle, or by the order of the tags."""
    belong: dict[KernelCapture, Launch] = {}
    for name, captures in grouped((each.kernel, each) for each in found).items():
        launches = [
            each
            for each in view.wrapper.launches
            if name in (each.callee, f"proxy_executor_{each.proxy_index}")
        ]
        marks = {str(mark): each for each in launches for mark in (each.line, each.handle)}
        tags = sorted({each.tag for each in captures}, key=lambda tag: (len(tag), tag))
        if not set(tags) <= marks.keys():  # capturing adds lines to a wrapper, which changes line numbers
            marks = dict(zip(tags, launches, strict=False)) if len(tags) == len(launches) else {}
        belong |= {each: marks[each.tag] for each in captures if each.tag in marks}
    return belong


def places_of(launch: Launch) -> list[Place]:
    """The tensors in a capture of the launch, in their order. Arrays are omitted."""
    return [place_of(launch, each) for each in launch.tensors if each.element is None]


def _sizes(launch: Launch, view: PackageView) -> dict[str, tuple[int, int]]:
    """The symbols that are sizes of the launch's tensors, each with the tensor and the dimension."""
    names = [each.variable for each in places_of(launch)]
    sized = [
        each for each in view.wrapper.run.symbols.values() if each.kind == "size" and each.tensor in names
    ]
    return {each.name: (names.index(each.tensor or ""), each.dim or 0) for each in sized}


def _later(
    launch: Launch, capture: KernelCapture, belong: Mapping[KernelCapture, Launch], view: PackageView
) -> Iterator[tuple[tuple[str, int], str, int]]:
    """Yield each tensor that a launch writes, and its place in the next capture of the same request that has
    it. The search ends at the next launch that writes the tensor.
    """
    same = [(other.index, each) for each, other in belong.items() if each.request == capture.request]
    for argument in launch.tensors:
        storage = _memory(argument, view)
        if argument.role == "read" or storage is None:
            continue
        place, writers = place_of(launch, argument), view.writers.get(storage, ())
        ends = next((n for n in writers if n > launch.index), len(view.wrapper.launches))
        for number, other in sorted(same, key=lambda pair: pair[0]):
            tensors = [_memory(each, view) for each in belong[other].tensors if each.element is None]
            if launch.index < number <= ends and storage in tensors:
                yield (place.variable, place.turn), str(other.path), tensors.index(storage)
                break


def _memory(argument: Argument, view: PackageView) -> int | None:
    """The storage of an argument. None if the argument is a view of it."""
    buffer = view.wrapper.buffers.get(argument.target or "")
    whole = buffer is not None and buffer.kind in ("allocated", "moved", "returned")
    return buffer.storage if buffer is not None and whole and argument.view is None else None


def asked(launch: WrittenLaunch) -> LaunchAlone:
    """A launch in the form in which the worker runs it alone."""
    alone = launch.alone
    assert alone is not None, "only of a launch that was read"
    takes = {name: (place.variable, place.turn) for name, place in alone.takes.items()}
    assumed = [((place.variable, place.turn), text) for place, text in alone.assumed.items()]
    gives = list(alone.gives)
    return LaunchAlone(
        launch=launch.index, expression=alone.expression, takes=takes, gives=gives, assumed=assumed
    )


def _by_launch(written: PytorchProgram, seen: Sequence[LaunchVerified]) -> tuple[LaunchVerified, ...]:
    """Each launch of the program; for a launch that ran several times, the worst run."""
    worst: dict[int, LaunchVerified] = {}
    for each in sorted(seen, key=lambda each: RANKS.index(each.agreement)):
        worst.setdefault(each.launch, each)
    found = []
    for launch in written.launches:
        missed = "it folds constants" if launch.folds else "the call did not come to it with probes"
        not_run = LaunchVerified(why=launch.not_read or missed, launch=launch.index)
        of = not_run if launch.folds else worst.get(launch.index, not_run)
        found.append(replace(of, kernel=launch.kernel))
    return tuple(found)
