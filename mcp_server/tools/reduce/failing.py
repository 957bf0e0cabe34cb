"""How a workload fails, and what a reduction of it returns."""

from __future__ import annotations

import shlex
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command, Finished
from mcp_server.logs.captured import CapturedCall, CapturedCompile, CapturedUpdate
from mcp_server.logs.families import BY_ID
from mcp_server.model import Artifact, Cost, ExportedWorkload, ModelLocation, Record, ScriptWorkload
from mcp_server.package.exported import exported_device
from mcp_server.tools.capture import Capture, capture
from mcp_server.tools.context import WORKER_ENV, Context, Event, WorkerRun, gpus_of
from mcp_server.tools.failure import Failure, read_failure
from mcp_server.tools.requests import failing_phase, how_made, imports_of

Kind = Literal["crash", "error", "not_finite", "departs"]

# Exit status of a reproduction (worker/reduction/show.py).
STATUS: dict[Kind, int] = {"error": 1, "not_finite": 3, "departs": 4}
# Events of the worker's `attempt` that begin a phase of AOTInductor's.
PHASES = {"compiling": "compiling", "loading": "loading", "loaded": "loading", "calling": "calling"}


class FailureShown(Record):
    """`kind` is crash (killed by `signal`), error (an exception, in `phase`), not_finite (`nan`: also NaN) or
    departs (from eager). `family` and `text` are of the root error, where there is one.
    """

    kind: Kind
    phase: str = ""
    signal: str | None = None
    family: str = ""
    text: str = ""
    nan: bool = False

    def __str__(self) -> str:
        if self.kind == "not_finite":
            return "NaN in an output" if self.nan else "infinity in an output"
        if self.kind == "departs":
            return "an output that departs from eager"
        how = f"killed by {self.signal}" if self.kind == "crash" else f"an exception while {self.phase}"
        return f"{how}: {self.text}" if self.text else how

    def same_as(self, other: FailureShown | None) -> bool:
        """Whether `other` is of the same class."""
        if other is None or (self.kind, self.signal, self.family) != (other.kind, other.signal, other.family):
            return False
        return other.nan or not self.nan

    def same_cause_as(self, other: FailureShown | None) -> bool:
        """Whether the same error was met: a caller may have caught what ends a bare launch's process."""
        known = bool(self.family) and other is not None and self.family == other.family
        return known or self.same_as(other)

    def request(self) -> dict[str, object]:
        """The class as the worker takes it (worker/reduction/sameness.py)."""
        family = BY_ID.get(self.family)
        return {
            "kind": self.kind,
            "signal": int(signal.Signals[self.signal]) if self.signal else 0,
            "phase": self.phase,
            "patterns": [pattern.pattern for pattern in family.patterns] if family else [],
            # Families of the compiler's errors are wide: any operator without a lowering, any missing name.
            "essence": "" if family and self.phase != "compiling" else self.text,
            "nan": self.nan,
        }


def of_attempt(done: WorkerRun) -> FailureShown | None:
    """How the worker's `attempt` failed; None when the program is healthy.

    Raises `ProblemError` for a run that did not end in time, or that failed before the compile.
    """
    judged = done.last("judged")
    called = done.last("called")
    failure = read_failure(done.finished)
    if judged is None and called is not None:  # eager failed where the package did not: judge the package
        bad = [output for output in called["outputs"] if output.get("nan") or output.get("inf")]
        judged = {"not_finite": bool(bad), "nan": any(o.get("nan") for o in bad), "departs": False}
    if judged is not None:
        return _of_values(bool(judged["not_finite"]), bool(judged["nan"]), bool(judged["departs"]))
    assert failure is not None
    phase = next((PHASES[e["event"]] for e in reversed(done.events) if e["event"] in PHASES), "")
    if not phase:
        raise ProblemError(
            "the program cannot be loaded: " + failure.text,
            allowed="extra_imports for its operators; script, which needs no saved program",
            next_call="diagnose",
        )
    return of_ending(done.finished, failure, phase)


def of_script(finished: Finished) -> FailureShown | None:
    """How a reproduction failed, from its exit status and its output."""
    text = finished.output.read_text(encoding="utf-8", errors="replace") if finished.output.exists() else ""
    if finished.ok or finished.returncode == 5:
        return None
    if finished.returncode in (STATUS["not_finite"], STATUS["departs"]):
        found = [line for line in text.splitlines() if line.startswith("not finite: ")]
        nan = any(" 0 nan " not in line for line in found)
        return _of_values(finished.returncode == STATUS["not_finite"], nan, True)
    said = [line for line in text.splitlines() if line.startswith("phase: ")]
    failure = read_failure(finished)
    return of_ending(finished, failure, said[-1].removeprefix("phase: ") if said else "") if failure else None


def of_ending(finished: Finished, failure: Failure, phase: str) -> FailureShown:
    """A child that was killed or raised. Raises `ProblemError` for any other end."""
    if finished.ending not in ("exit", "signal"):
        raise ProblemError(
            f"it ended with {finished.ending}, which smaller programs cannot be held against",
            value=failure.text,
            allowed="a crash, an exception, an output that is not finite or departs from eager",
            next_call="trace_launches",
        )
    kind: Kind = "crash" if finished.signal else "error"
    return FailureShown(
        kind=kind, phase=phase, signal=finished.signal, family=failure.family, text=failure.text[:300]
    )


def _of_values(not_finite: bool, nan: bool, departs: bool) -> FailureShown | None:
    if not_finite:
        return FailureShown(kind="not_finite", phase="calling", nan=nan)
    return FailureShown(kind="departs", phase="calling") if departs else None


class ReducedNode(Record):
    """One operator of the reproduction, and the model's lines that it comes from."""

    name: str
    operator: str
    locations: list[ModelLocation] = Field(default_factory=list)


class Reduced(Record):
    """A reproduction, seen to fail in the same way under a plain interpreter; or why there is none.

    `replayed` is a launch that was healthy in the call, and is alone.

    `files` are the script and what must lie beside it. `real` names tensors that hold values of the workload,
    `seeded` those that the script makes. `complete` is False when the time was over before everything was
    tried. Exit status of the script: 0 no fault, 1 an exception, 3 an output is not finite, 4 it departs from
    eager (for one launch: what it wrote is not what was recorded), 5 it cannot be exported.
    """

    outcome: Literal["reduced", "replayed", "not_reduced"]
    scope: Literal["graph", "launch"] = "graph"
    summary: str
    failure: FailureShown | None
    command: str = ""
    exit_status: int | None = None
    files: list[Artifact] = Field(default_factory=list)
    nodes: list[ReducedNode] = Field(default_factory=list)
    nodes_before: int = 0
    real: list[str] = Field(default_factory=list)
    seeded: list[str] = Field(default_factory=list)
    candidates: int = 0
    complete: bool = True
    notes: list[str] = Field(default_factory=list)
    log: Artifact
    cost: Cost


HELP = "an exported program (torch.export.save) with inputs, or the script that compiles it"


@dataclass(frozen=True)
class Target:
    """`imports` register custom operators; of a captured program they are tried only if it needs them.

    `made_by` says how the script makes the program (worker/taken.py), should no file give it back; with
    `taken` it is taken from there.
    """

    workload: ExportedWorkload
    configs: Mapping[str, Any]
    imports: tuple[str, ...] = ()
    made_by: Mapping[str, Any] | None = None
    taken: bool = False

    @property
    def source(self) -> Mapping[str, Any]:
        """Where the worker gets the program from."""
        return {"made_by": self.made_by} if self.taken else {"exported": self.workload.exported}


async def find_target(context: Context, workload: ExportedWorkload | ScriptWorkload) -> Target:
    """The program to reduce. Raises `ProblemError` for a script that compiles none, or whose is not kept."""
    if isinstance(workload, ExportedWorkload):
        return Target(workload, {})
    seen = await capture(context, workload)
    call, compiled = _call_and_compile(seen)
    made_by = how_made(seen, compiled, workload) if compiled is not None else None
    if compiled is None or (compiled.exported is None and made_by is None):
        what, allowed = "the script compiles no exported program whose call could be taken", HELP
        if compiled is not None and compiled.notice:
            what = f"the program that the script compiles could not be kept: {compiled.notice}"
            allowed = "a script that compiles an exported program in its own process"
        raise ProblemError(what, value=str(workload.script), allowed=allowed)
    shared = workload.model_dump(include={"env", "python", "cwd", "timeout_s"})
    inputs = call.file if call is not None else None
    return Target(
        ExportedWorkload(exported=compiled.exported or workload.script, inputs=inputs, **shared),
        compiled.configs,
        tuple(imports_of(seen, compiled)),
        made_by,
        taken=compiled.exported is None,
    )


def _call_and_compile(seen: Capture) -> tuple[CapturedCall | None, CapturedCompile | None]:
    """The failing or suspect call with the compile of its package; a compile alone when that failed."""
    phase = failing_phase(seen)
    if isinstance(phase, CapturedCompile):
        return None, phase
    call = phase if isinstance(phase, CapturedCall) else seen.suspect
    if call is None or call.file is None or isinstance(phase, CapturedUpdate):
        return None, None
    load = seen.load_of(call)
    return call, seen.compile_of(load) if load is not None else None


SCRIPT = "repro.py"
VERIFIED = 3  # reproductions that are tried under a plain interpreter, the smallest first
ALONE = {**WORKER_ENV, "PYTHONDONTWRITEBYTECODE": "1"}
SMALL = 1 << 20  # bytes that are easily passed on


async def report(context: Context, target: Target, failure: FailureShown, done: WorkerRun) -> Reduced:
    """Run what the worker held, smallest first, until one fails in the same way under a plain interpreter."""
    told = done.last("reduced") or {"units": 0, "complete": False}
    shared: dict[str, Any] = {
        "failure": failure,
        "nodes_before": told["units"],
        "candidates": len(done.all("candidate")),
        "complete": bool(told["complete"]),
        "log": context.artifact(done.finished.output, "output of the reduction"),
    }
    context.cost.compiles += shared["candidates"]
    notes: list[str] = []
    for held in done.all("held")[: -VERIFIED - 1 : -1]:
        directory = _kept(context, Path(held["directory"]))
        finished = await run_script(context, target.workload, directory)
        if failure.same_as(of_script(finished)):
            shared["notes"] = [*notes, *_limits(held)]
            shared["command"] = shlex.join(
                [str(context.python_for(target.workload)), str(directory / SCRIPT)]
            )
            return _reduced(context, shared, held, directory, finished)
        notes.append(f"a reproduction of {held['operators']} operators did not fail by itself")
    limit = "" if shared["complete"] else " in this time (budget_s)"
    return Reduced(
        outcome="not_reduced",
        summary=f"The program fails ({failure}), but no part of it, cut out and exported again, did{limit}.",
        notes=[*notes, *_why(done)],
        cost=context.cost.cost(),
        **shared,
    )


def _kept(context: Context, held: Path) -> Path:
    """A copy of a reproduction under a name that says what it is."""
    directory = context.fresh("reproduction")
    shutil.copytree(held, directory, ignore=shutil.ignore_patterns("output.log"), dirs_exist_ok=True)
    return directory


async def run_script(context: Context, workload: ExportedWorkload, directory: Path) -> Finished:
    """Run the reproduction as anybody would: the interpreter and the script."""
    python = context.python_for(workload)
    gpus = gpus_of(exported_device(workload.exported))
    argv = (str(python), SCRIPT)
    command = Command(argv=argv, cwd=directory, env=ALONE, timeout_s=workload.timeout_s, gpus=gpus)
    return await context.run(command, "reproduction-run", runs=1)


def _reduced(
    context: Context, shared: dict[str, Any], held: Event, directory: Path, finished: Finished
) -> Reduced:
    counts = f"{held['operators']} of {shared['nodes_before']} operators"
    return Reduced(
        outcome="reduced",
        summary=f"{counts} still fail in the same way: {str(shared['failure']).rstrip('.')}.",
        exit_status=finished.returncode,
        files=[_file(context, path) for path in sorted(directory.iterdir()) if path.is_file()],
        nodes=[_node(node) for node in held["nodes"]],
        real=held["real"],
        seeded=held["made"],
        cost=context.cost.cost(),
        **shared,
    )


def _file(context: Context, path: Path) -> Artifact:
    return context.artifact(path, "reproduction" if path.name == SCRIPT else "needed beside it")


def _node(told: Event) -> ReducedNode:
    lines = [ModelLocation(file=f["file"], line=f["line"], code=f["code"]) for f in told["stack"]]
    return ReducedNode(name=told["node"], operator=told["op"], locations=lines)


def _limits(held: Event) -> list[str]:
    """What a reader must know before passing it on."""
    notes = ["inputs.pt holds values of the workload"] if held["real"] else []
    if held["bytes"] > SMALL:
        notes.append(f"the failure needs {held['bytes']} bytes of real values")
    return notes


def _why(done: WorkerRun) -> list[str]:
    reasons = [f"not cut: {event['reason']}" for event in done.all("uncuttable")]
    ends = [f"a candidate ended otherwise: {one_line(event['tail'])}" for event in done.all("candidate")]
    return [*dict.fromkeys([*reasons, *ends])][:5]


def one_line(text: str) -> str:
    """Bounded, and safe in the docstring of a script."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())[:200]
