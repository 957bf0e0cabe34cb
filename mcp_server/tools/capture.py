"""`capture`: runs the user's program once, with the hook that records the program's use of AOTInductor."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import Field

from mcp_server import worker
from mcp_server.errors import ProblemError
from mcp_server.interpreter import interpreter_help
from mcp_server.jobs.child import STACKS_SIGNAL, Command, Finished, child_environment
from mcp_server.logs.captured import Captured, read_capture, stalled_call
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.runtime.context import Context, check_interpreter
from mcp_server.runtime.failure import RankEnd, read_launcher_output

HOOK = Path(worker.__file__).parent
CAP_VARIABLE = "AOTI_DEBUG_CAPTURE_CAP"
CHANGED = "AOTI_DEBUG_CHANGED"  # names a file, and the file to run in its place

# A call that takes this long, and far longer than earlier calls, is assumed to hang.
STALLED_S = 45.0

TAIL_BYTES = 4000  # of a script's standard error

# Options of Python that exclude PYTHONPATH or `site`, and so the hook.
ISOLATED = frozenset("IES")


class Capture(Captured):
    """How the run ended, and what the hook saw. `notes` say what could not be captured, and why.

    `rank` is the first rank that failed under a launcher; then only its processes are captured. `isolated`
    means that Python was started with options that keep the hook out. `quiet_s` is the time from the last
    event that the hook saw, or else from the start, to the end of the program.
    """

    finished: Finished
    rank: RankEnd | None = None
    directory: Path
    notes: list[str] = Field(default_factory=list)
    isolated: bool = False
    quiet_s: float = 0.0


async def capture(
    context: Context,
    workload: ScriptWorkload | CommandWorkload,
    *,
    env: Mapping[str, str] | None = None,
    gpus: tuple[int, ...] | None = None,
    until_stalled: bool = False,
) -> Capture:
    """Run `workload` once under the hook, in its own directory, environment and interpreter.

    Each saved call, update and program may take an eighth of the free disk, within 64 MiB to 8 GiB, or what
    AOTI_DEBUG_CAPTURE_CAP in the workload's environment says. A failing or hanging program is a result;
    `until_stalled` ends it before its time limit if a call will clearly not return. Raise `ProblemError` if
    the script is missing, or for an interpreter without torch.
    """
    directory = context.fresh("capture")
    argv = workload_argv(context, workload)
    asked = {**workload.env, **(env or {})}
    if until_stalled:
        asked["AOTI_DEBUG_STACKS_SIGNAL"] = str(int(STACKS_SIGNAL))
    cap = max(64 << 20, min(8 << 30, shutil.disk_usage(directory).free // 8))
    command = Command(
        argv=argv,
        cwd=workload.cwd or Path.cwd(),
        env={CAP_VARIABLE: str(cap), **asked, **hook_environment(directory, asked)},
        timeout_s=workload.timeout_s,
        gpus=gpus,
        stalled=_watcher(directory) if until_stalled else None,
    )
    finished = await context.run_in(directory, command, runs=1)
    if finished.ending == "not_started":
        raise ProblemError(finished.note, value=list(argv))
    if not finished.ok and isinstance(workload, ScriptWorkload):
        text = finished.stderr.read_bytes()[-TAIL_BYTES:] if finished.stderr.exists() else b""
        if b"No module named 'torch'" in text:
            raise ProblemError(
                "torch cannot be imported (No module named 'torch')",
                value=str(context.python_for(workload)),
                next_call=interpreter_help(),
            )
    rank = read_launcher_output(finished, context.launcher).first
    seen = read_capture(directory)
    if rank is not None and any(process.rank == rank.rank for process in seen.processes):
        # Keep what the processes of this rank did, and those without a rank.
        pids = {process.pid for process in seen.processes if process.rank in ("", rank.rank)}
        kept = {name: [e for e in getattr(seen, name) if e.pid in pids] for name in Captured.model_fields}
        seen = seen.model_copy(update=kept)
    context.cost.compiles += len(seen.compiles) if not finished.reused else 0
    notes = [f"the hook failed once: {text}" for p in seen.processes for text in p.hook_failures]
    phases = [*seen.compiles, *seen.loads, *seen.updates, *seen.calls]
    notes += sorted({f"not kept: {phase.notice}" for phase in phases if phase.notice})
    if not all(phase.configs_exact for phase in seen.compiles):
        notes.append("not every option of the compile could be recorded: a compile by us may differ from it")
    if not seen.processes and _isolated(argv):
        notes.append("Python was started isolated (-I, -E or -S), where the hook is not loaded")
    elif not seen.processes:
        notes.append("no Python process compiled, loaded or called a package through torch's Python API")
    # The mtime of this file marks the start of the program, also in a resumed job.
    started = (directory / "site" / "sitecustomize.py").stat().st_mtime + finished.waited_s
    last = max((phase.t + (phase.seconds or 0.0) for phase in phases), default=started)
    checks = seen.assertions
    if finished.returncode == 0:  # then a SystemExit was not a failed comparison
        checks = [each for each in checks if each.error is None or each.error.type != "builtins.SystemExit"]
    return Capture(
        **{**dict(seen), "assertions": checks},
        finished=finished,
        directory=directory,
        rank=rank,
        notes=notes,
        isolated=_isolated(argv),
        quiet_s=max(0.0, started + finished.wall_s - last),
    )


def _watcher(directory: Path) -> Callable[[], int | None]:
    """Return a function that finds the process of a call that will not return, if no journal grows."""
    read, seen = 0.0, Captured()  # kept, because large journals take seconds to read

    def stalled() -> int | None:
        nonlocal read, seen
        journals = [(path.stat().st_mtime, path) for path in directory.glob("capture-*.jsonl")]
        newest, _ = max(journals, default=(0.0, directory))
        now = time.time()
        if not newest or now - newest < STALLED_S:
            return None
        if read != newest:
            read, seen = newest, read_capture(directory)
        call = stalled_call(seen, now, STALLED_S)
        return call.pid if call is not None else None

    return stalled


def hook_environment(directory: Path, asked: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that load the hook, by a private directory before the PYTHONPATH in effect."""
    site = directory / "site"
    site.mkdir()
    shutil.copyfile(HOOK / "capture" / "hook_site.py", site / "sitecustomize.py")
    path = child_environment(asked).get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join([str(site.resolve()), *filter(None, [path])]),
        "AOTI_DEBUG_CAPTURE": str(directory.resolve()),
        "AOTI_DEBUG_HOOK": str(HOOK),
    }


def workload_argv(context: Context, workload: ScriptWorkload | CommandWorkload) -> tuple[str, ...]:
    """Return the argument list of the user's program. Raise `ProblemError` if it cannot be started."""
    if isinstance(workload, CommandWorkload):
        return tuple(workload.argv)
    script = (workload.cwd or Path.cwd()) / workload.script
    if not script.is_file():
        raise ProblemError("no such script", value=str(script), allowed="a Python file")
    python = context.python_for(workload)
    check_interpreter(python)
    return (str(python), str(workload.script), *workload.args)


def _isolated(argv: tuple[str, ...]) -> bool:
    options = [word for word in argv[1:] if word.startswith("-") and not word.startswith("--")]
    return any(set(word[1:]) & ISOLATED for word in options[:3])
