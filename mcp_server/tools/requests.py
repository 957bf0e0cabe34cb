"""Requests to the worker: from workloads, and from captured calls that are replayed."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from mcp_server.errors import ProblemError
from mcp_server.logs.captured import (
    Captured,
    CapturedCall,
    CapturedCompile,
    CapturedLoad,
    CapturedProcess,
    CapturedUpdate,
    Phase,
)
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.worker.protocol import (
    CompileRequest,
    MadeBy,
    ReplayRequest,
    RunRequest,
    Step,
    TensorSpec,
)

INPUTS_HELP = (
    "a file written by torch.save, or a list of specs such as {'shape': [8, 64], 'dtype': 'float32'}"
)


def run_request(workload: PackageWorkload) -> RunRequest:
    """The worker's `run` of a package; raises `ProblemError` when there are no inputs."""
    if workload.inputs is None:
        raise ProblemError("running a package needs inputs", allowed=INPUTS_HELP)
    inputs = workload.inputs
    return {
        "package": str(workload.package),
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "inputs": str(inputs) if isinstance(inputs, Path) else cast(list[TensorSpec], inputs),
        "extra_imports": workload.extra_imports,
    }


Operation = Literal["replay", "compile"]

# Options of a captured loader that the worker's own loading takes under the same name.
OPTIONS = ("model_name", "run_single_threaded", "num_runners", "device_index")

USUAL_STACK = 8 << 20  # bytes, of a thread on Linux unless somebody says otherwise
MOST_EARLIER = 2  # kept calls that are made again before the one to look at

# After a file's name in `extra_imports`: only the operators that it registers (worker/imports.py).
OPERATORS = "#operators"


@dataclass(frozen=True)
class ReplayPlan:
    """A request for the worker. `notes` say how it differs from what the program did."""

    operation: Operation
    request: ReplayRequest | CompileRequest
    phase: Literal["compile", "load", "update", "call"]
    imports: list[str]
    notes: list[str]

    @property
    def steps(self) -> list[Step]:
        """The updates of constants and the calls of a replay."""
        return cast(ReplayRequest, self.request).get("steps", [])


def failing_phase(seen: Captured, *, ended_well: bool = False) -> Phase | None:
    """Where the program failed inside AOTInductor; the call to suspect when it failed nowhere there.

    With `ended_well` the program itself succeeded: compiles and loads that failed were replaced by others.
    """
    # torch itself tries a load again in another way (`load_package`, 2.8-2.15).
    good = {(load.pid, load.package): load.n for load in seen.loads if load.outcome == "ok"}
    loads = [load for load in seen.loads if good.get((load.pid, load.package), -1) < load.n]
    phases: list[Phase] = [*seen.compiles, *loads]
    failed = [phase for phase in phases if phase.outcome != "ok" and not _overcome(phase, seen, ended_well)]
    failed += [update for update in seen.updates if update.outcome != "ok"]
    return seen.failing or (failed[-1] if failed else seen.suspect)


def _overcome(phase: Phase, seen: Captured, ended_well: bool) -> bool:
    """Whether the program went on without it: to calls that came back, then to its end or another failure.

    What failed in a process that a program started, to try something out say, is overcome by calls of that
    program itself.
    """
    good = [c for c in seen.calls if c.outcome == "ok"]
    parents = {process.pid: process.parent for process in seen.processes}
    parent = parents.get(phase.pid)
    if ended_well and parent in parents and any(c.pid == parent and c.t > phase.t for c in good):
        return True
    later = [c for c in good if c.pid == phase.pid and c.n > phase.n]
    return bool(later) and (ended_well or any(a.pid == phase.pid and a.n > phase.n for a in seen.assertions))


def plan_replay(seen: Captured, phase: Phase | None = None, *, previous: bool = False) -> ReplayPlan:
    """How to do `phase` (default: the failing one) again; `previous` also repeats kept earlier calls.

    Raises `ProblemError` when the capture lacks something that it needs.
    """
    phase = phase or failing_phase(seen)
    if isinstance(phase, CapturedCompile):
        if phase.exported is None:
            raise ProblemError("the exported program was not kept", value=phase.notice)
        asked: CompileRequest = {"exported": str(phase.exported), "inductor_configs": phase.configs}
        notes = [] if phase.configs_exact else ["some options of the compile could not be kept"]
        return ReplayPlan("compile", asked, "compile", imports_of(seen, phase), notes)
    if isinstance(phase, CapturedLoad):
        request, notes = _load(phase)
        return ReplayPlan("replay", request, "load", imports_of(seen, phase), notes)
    if isinstance(phase, CapturedUpdate):
        return _on_load(seen, phase, "update", [])
    if isinstance(phase, CapturedCall):
        if phase.file is None:
            raise ProblemError("the inputs of that call were not kept", value=phase.notice)
        same = [c for c in seen.calls if (c.pid, c.load) == (phase.pid, phase.load) and c.file]
        earlier = [c for c in same if c.n < phase.n][-MOST_EARLIER:] if previous else []
        return _on_load(seen, phase, "call", [*earlier, phase])
    raise ProblemError(
        "the run was captured without a compile, load or call to replay", next_call="run the program itself"
    )


def _load(load: CapturedLoad) -> tuple[ReplayRequest, list[str]]:
    """The request to make this load again, and how it differs."""
    package = str(load.copy_path or load.package)
    options = {name: load.options[name] for name in OPTIONS if name in load.options}
    request: ReplayRequest = {"package": package, "steps": []}
    request.update(cast(ReplayRequest, options))
    if load.loader != "AOTIModelPackageLoader":
        cuda = load.loader.endswith("Cuda")
        request["library"] = package
        request["device"] = load.options.get("device") or ("cuda" if cuda else "cpu")
    if load.device_index:  # a load that took the current CUDA device names it, unless it is the first
        request["device_index"] = load.device_index
    return request, [] if load.copy_path else [
        "the package is the file as it is now, not a copy from the run"
    ]


def called_package(
    plan: ReplayPlan, inputs: Path, workload: ScriptWorkload | CommandWorkload
) -> PackageWorkload:
    """The call of a plan without its history, in the surroundings of the program."""
    surroundings = workload.model_dump(include={"cwd", "env", "python", "timeout_s"})
    return PackageWorkload(
        package=Path(plan.request["package"]),
        inputs=inputs,
        extra_imports=plan.imports,
        model_name=plan.request.get("model_name", "model"),
        device_index=plan.request.get("device_index", -1),
        **surroundings,
    )


def _on_load(
    seen: Captured,
    phase: CapturedCall | CapturedUpdate,
    kind: Literal["update", "call"],
    calls: list[CapturedCall],
) -> ReplayPlan:
    """The load of `phase`, the updates up to it and `calls`, in the captured order."""
    load = seen.load_of(phase)
    if load is None:
        raise ProblemError("the load of that model was not captured")
    updates = [u for u in seen.updates if (u.pid, u.load) == (phase.pid, phase.load) and u.n <= phase.n]
    request, notes = _load(load)
    notes += [f"an update of constants was not kept: {u.notice}" for u in updates if u.file is None]
    steps: list[CapturedUpdate | CapturedCall] = [*updates, *calls]
    steps.sort(key=lambda each: each.n)
    request["steps"] = [_step(each) for each in steps if each.file]
    if isinstance(phase, CapturedCall) and phase.current_device is not None:
        request["current_device"] = phase.current_device  # the CUDA device of the thread that called
    return ReplayPlan("replay", request, kind, imports_of(seen, load), notes)


def _step(each: CapturedUpdate | CapturedCall) -> Step:
    if isinstance(each, CapturedUpdate):
        return {"do": "constants", "file": str(each.file), "how": each.how, "arguments": each.arguments}
    step: Step = {"do": "call", "file": str(each.file), "threads": each.threads}
    if each.headroom is not None and each.outcome == "failed":
        step["headroom"] = each.headroom
    if each.outcome == "unfinished" and (each.stack_bytes or USUAL_STACK) < USUAL_STACK:
        step["stack"] = each.stack_bytes or USUAL_STACK
    return step


def how_made(seen: Captured, compiled: CapturedCompile, workload: ScriptWorkload) -> MadeBy | None:
    """The worker's request for the program that the script itself compiled, saved or not (worker/taken.py).

    None for what is no exported program, and for a compile in a process that the script started.
    """
    first = next((process for process in seen.processes if process.pid == compiled.pid), None)
    script = (workload.cwd or Path.cwd()) / workload.script
    own = first is not None and any(Path(word).name == script.name for word in first.argv)
    if not (compiled.program and own):
        return None
    before = [c for c in seen.compiles if c.pid == compiled.pid and c.n < compiled.n]
    return {"script": str(script), "args": list(workload.args), "compile": len(before)}


def imports_of(seen: Captured, phase: Phase) -> list[str]:
    """What a replay imports for the program's custom ops: the libraries that it loaded, then its module."""
    process = next((process for process in seen.processes if process.pid == phase.pid), None)
    own = own_module(process) if process else None
    made = seen.load_of(phase) if isinstance(phase, CapturedCall | CapturedUpdate) else phase
    libraries = made.libraries if isinstance(made, CapturedLoad | CapturedCompile) else []
    return [*(str(path) for path in libraries if path.is_file()), *([own] if own else [])]


def own_module(process: CapturedProcess) -> str | None:
    """The program's own module or file; of a file that importing would run, only its operators."""
    arguments = process.argv[1:]
    if "-m" in arguments[:-1]:
        return arguments[arguments.index("-m") + 1]
    script = next((word for word in arguments if word.endswith(".py")), None)
    if script is None:
        return None
    file = Path(process.cwd, script)
    if is_importable(file):
        return str(file)
    return f"{file}{OPERATORS}" if file.is_file() else None


def is_importable(script: Path) -> bool:
    """Whether the file runs its program only under `if __name__ == "__main__"`, at the top level."""
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            sides = (node.test.left, *node.test.comparators)
            if any(isinstance(side, ast.Constant) and side.value == "__main__" for side in sides):
                return True
    return False
