"""Requests to the worker: from workloads, and from captured calls that are replayed."""

import ast
from pathlib import Path
from typing import cast

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
from mcp_server.model import CommandWorkload, ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.worker.protocol import MadeBy, ReplayRequest, RunRequest, Step, TensorSpec

INPUTS_HELP = """a file of torch.save, or specs such as '[{"shape": [8, 64], "dtype": "float32"}]'"""


def package_request(workload: PackageWorkload) -> RunRequest:
    """What all worker requests about a package's call have in common; `inputs` may be None."""
    inputs = workload.inputs
    return {
        "package": str(workload.package),
        "model_name": workload.model_name,
        "device_index": workload.device_index,
        "inputs": str(inputs) if isinstance(inputs, Path) else cast("list[TensorSpec] | None", inputs),
        "extra_imports": workload.extra_imports,
    }


def run_request(workload: PackageWorkload) -> RunRequest:
    """The worker's `run` request for a package. Raises `ProblemError` if there are no inputs."""
    check_inputs_given(workload)
    return package_request(workload)


def check_inputs_given(workload: PackageWorkload | ExportedWorkload) -> None:
    """Raise `ProblemError` for a workload without inputs."""
    if workload.inputs is None:
        raise ProblemError("a call of a package needs inputs", allowed=INPUTS_HELP)


# Options of a captured loader that the worker's own loading accepts under the same name.
OPTIONS = ("model_name", "run_single_threaded", "num_runners", "device_index")

USUAL_STACK = 8 << 20  # bytes; the default for a thread on Linux

# After a file's name in `extra_imports`: take only the operators that the file registers (imports.py).
OPERATORS = "#operators"


def failing_phase(seen: Captured, *, ended_well: bool = False) -> Phase | None:
    """Return where the program failed inside AOTInductor; if it did not, return the suspect call.

    With `ended_well` the program itself succeeded: later compiles and loads replaced those that failed.
    """
    # If the first attempt of a load fails, torch retries in another way (`load_package`, 2.8-2.15).
    good = {(load.pid, load.package): load.n for load in seen.loads if load.outcome == "ok"}
    loads = [load for load in seen.loads if good.get((load.pid, load.package), -1) < load.n]
    phases: list[Phase] = [*seen.compiles, *loads]
    failed = [phase for phase in phases if phase.outcome != "ok" and not _overcome(phase, seen, ended_well)]
    failed += [update for update in seen.updates if update.outcome != "ok"]
    return seen.failing or (failed[-1] if failed else seen.suspect)


def _overcome(phase: Phase, seen: Captured, ended_well: bool) -> bool:
    """Whether the program went on without this failed phase, so that the user does not ask about it.

    It did if later calls of the same process returned, and then one of the program's checks failed. If the
    program succeeded, one returned call of the process, or one later call of its parent, is enough.
    """
    good = [c for c in seen.calls if c.outcome == "ok"]
    parents = {process.pid: process.parent for process in seen.processes}
    parent = parents.get(phase.pid)
    if ended_well and parent in parents and any(c.pid == parent and c.t > phase.t for c in good):
        return True
    if ended_well and phase.outcome == "failed" and any(c.pid == phase.pid for c in good):
        return True
    later = [c for c in good if c.pid == phase.pid and c.n > phase.n]
    return bool(later) and any(a.pid == phase.pid and a.n > phase.n for a in seen.assertions)


def plan_replay(seen: Captured, phase: Phase | None) -> ReplayRequest:
    """Plan how to repeat the load of `phase`, its updates and its call, in the captured order.

    Raise `ProblemError` for a phase that has no load, or if the capture lacks something that it needs.
    """
    if isinstance(phase, CapturedCall) and phase.file is None:
        raise ProblemError("the inputs of that call were not kept", value=phase.notice)
    load = seen.load_of(phase) if isinstance(phase, CapturedCall | CapturedUpdate) else phase
    if not isinstance(load, CapturedLoad):
        what = "the run was captured without a load or call to replay"
        raise ProblemError(what, next_call="run the program itself")
    package = str(load.copy_path or load.package)
    options = {name: load.options[name] for name in OPTIONS if name in load.options}
    request: ReplayRequest = {"package": package, "steps": [], "extra_imports": imports_of(seen, load)}
    request.update(cast(ReplayRequest, options))
    if load.loader != "AOTIModelPackageLoader":
        cuda = load.loader.endswith("Cuda")
        request["library"] = package
        request["device"] = str(load.options.get("device") or ("cuda" if cuda else "cpu"))
    if load.device_index:  # the device that the load used, if only as current device; 0 is the default
        request["device_index"] = load.device_index
    if not isinstance(phase, CapturedCall | CapturedUpdate):
        return request
    steps: list[CapturedUpdate | CapturedCall] = [
        update
        for update in seen.updates
        if (update.pid, update.load) == (phase.pid, phase.load) and update.n <= phase.n
    ]
    if isinstance(phase, CapturedCall):
        steps.append(phase)
        if phase.current_device is not None:
            request["current_device"] = phase.current_device  # the CUDA device of the calling thread
    request["steps"] = [_step(each) for each in steps if each.file]
    return request


def called_package(
    request: ReplayRequest, inputs: Path, workload: ScriptWorkload | CommandWorkload
) -> PackageWorkload:
    """The call of a replay as a workload, without earlier steps, in the program's environment."""
    return PackageWorkload(
        package=Path(request["package"]),
        inputs=inputs,
        extra_imports=request["extra_imports"],
        model_name=request.get("model_name", "model"),
        device_index=request.get("device_index", -1),
        **workload.model_dump(include={"cwd", "env", "python", "timeout_s"}),
    )


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
    """The worker's request for the program that the script itself compiled (worker/loading.py).

    None if it is not an exported program, or if a child process of the script compiled it.
    """
    first = next((process for process in seen.processes if process.pid == compiled.pid), None)
    script = (workload.cwd or Path.cwd()) / workload.script
    own = first is not None and any(Path(word).name == script.name for word in first.argv)
    if not (compiled.program and own):
        return None
    before = [c for c in seen.compiles if c.pid == compiled.pid and c.n < compiled.n]
    return {"script": str(script), "args": list(workload.args), "compile": len(before)}


def imports_of(seen: Captured, phase: Phase) -> list[str]:
    """List what a replay imports for the program's custom ops: the libraries it loaded, then its module."""
    process = next((process for process in seen.processes if process.pid == phase.pid), None)
    own = own_module(process) if process else None
    made = seen.load_of(phase) if isinstance(phase, CapturedCall | CapturedUpdate) else phase
    libraries = made.libraries if isinstance(made, CapturedLoad | CapturedCompile) else []
    return [*(str(path) for path in libraries if path.is_file()), *([own] if own else [])]


def own_module(process: CapturedProcess) -> str | None:
    """Return the program's module or file. If importing the file would run it, mark it with OPERATORS."""
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
    """Whether the file runs its program only under a top-level `if __name__ == "__main__"`."""
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
