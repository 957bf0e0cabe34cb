"""`capture`: runs the user's program once, with the hook that records the program's use of AOTInductor."""

import os
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
from pydantic import Field

from mcp_server import worker
from mcp_server.errors import ProblemError
from mcp_server.interpreter import interpreter_help
from mcp_server.jobs.child import STACKS_SIGNAL, Command, Finished, child_environment
from mcp_server.logs.captured import Captured, read_capture, stalled_call
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.runtime.context import Context, check_interpreter
from mcp_server.runtime.failure import RankEnd, read_launcher_output
from mcp_server.tools.check_devices import misfits_of

HOOK = Path(worker.__file__).parent
CAP_VARIABLE = "AOTI_DEBUG_CAPTURE_CAP"
CHANGED = "AOTI_DEBUG_CHANGED"  # names a file, and the file to run in its place

# A call that takes this long, and far longer than earlier calls, is assumed to hang.
STALLED_S = 45.0

TAIL_BYTES = 4000  # bytes of a script's standard error

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
    at_limit: Callable[[int], Coroutine[None, None, None]] | None = None,
) -> Capture:
    """Run `workload` once under the hook, in its own directory, environment and interpreter.

    Each saved call, update and program may take an eighth of the free disk, within 64 MiB to 8 GiB, or what
    AOTI_DEBUG_CAPTURE_CAP in the workload's environment says. A failing or hanging program is a result;
    `until_stalled` ends it before its time limit if a call will clearly not return; `at_limit` can look at
    the process that its time limit is about to end. Raise `ProblemError` if
    the script is missing, or for an interpreter without torch.
    """
    directory = context.fresh("capture")
    command = _command(context, workload, directory, env or {}, until_stalled)
    finished = await context.run_in(directory, replace(command, gpus=gpus, at_limit=at_limit), runs=1)
    if finished.ending == "not_started":
        raise ProblemError(finished.note, value=list(command.argv))
    if isinstance(workload, ScriptWorkload):
        _check_torch(finished, context.python_for(workload))
    rank = read_launcher_output(finished, context.launcher).first
    seen = _of_rank(read_capture(directory), rank)
    context.cost.compiles += len(seen.compiles) if not finished.reused else 0
    # The mtime of this file marks the start of the program, even in a resumed job.
    started = (directory / "site" / "sitecustomize.py").stat().st_mtime + finished.waited_s
    last = max((phase.t + (phase.seconds or 0.0) for phase in seen.phases), default=started)
    checks = seen.assertions
    if finished.returncode == 0:  # then a SystemExit was not a failed comparison
        checks = [each for each in checks if each.error is None or each.error.type != "builtins.SystemExit"]
    options = [word for word in command.argv[1:] if word.startswith("-") and not word.startswith("--")]
    isolated = any(set(word[1:]) & ISOLATED for word in options[:3])
    misfits = [] if finished.ok else await anyio.to_thread.run_sync(misfits_of, seen)
    return Capture(
        **{**dict(seen), "assertions": checks, "misfits": misfits},
        finished=finished,
        directory=directory,
        rank=rank,
        notes=[*_notes(seen, isolated)],
        isolated=isolated,
        quiet_s=max(0.0, started + finished.wall_s - last),
    )


def _command(
    context: Context,
    workload: ScriptWorkload | CommandWorkload,
    directory: Path,
    env: Mapping[str, str],
    until_stalled: bool,
) -> Command:
    """The command that runs `workload` under the hook."""
    argv = workload_argv(context, workload)
    asked = {**workload.env, **env}
    if until_stalled:
        asked["AOTI_DEBUG_STACKS_SIGNAL"] = str(int(STACKS_SIGNAL))
    cap = max(64 << 20, min(8 << 30, shutil.disk_usage(directory).free // 8))
    return Command(
        argv=argv,
        cwd=workload.cwd or Path.cwd(),
        env={CAP_VARIABLE: str(cap), **asked, **hook_environment(directory, asked)},
        timeout_s=workload.timeout_s,
        stalled=_watcher(directory) if until_stalled else None,
    )


def _check_torch(finished: Finished, python: Path) -> None:
    """Raise `ProblemError` if the script failed because its interpreter has no torch."""
    if finished.ok or not finished.stderr.exists():
        return
    if b"No module named 'torch'" in finished.stderr.read_bytes()[-TAIL_BYTES:]:
        raise ProblemError(
            "torch cannot be imported (No module named 'torch')",
            value=str(python),
            next_call=interpreter_help(),
        )


def _of_rank(seen: Captured, rank: RankEnd | None) -> Captured:
    """Keep what the processes of the failed rank did, and those without a rank."""
    if rank is None or all(process.rank != rank.rank for process in seen.processes):
        return seen
    pids = {process.pid for process in seen.processes if process.rank in ("", rank.rank)}
    kept = {name: [e for e in getattr(seen, name) if e.pid in pids] for name in Captured.model_fields}
    return seen.model_copy(update=kept)


def _notes(seen: Captured, isolated: bool) -> Iterator[str]:
    """Say what the hook could not keep, and why it may have seen nothing."""
    yield from (f"the hook failed once: {text}" for p in seen.processes for text in p.hook_failures)
    yield from sorted({f"not kept: {phase.notice}" for phase in seen.phases if phase.notice})
    if not all(phase.configs_exact for phase in seen.compiles):
        yield "not every option of the compile could be recorded: a compile by us may differ from it"
    if not seen.processes and isolated:
        yield "Python was started isolated (-I, -E or -S), where the hook is not loaded"
    elif not seen.processes:
        yield "no Python process compiled, loaded or called a package through torch's Python API"


def _watcher(directory: Path) -> Callable[[], int | None]:
    """A function that finds the process of a call that will not return, if no journal grows."""
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
    """The variables that load the hook, by a private directory before the PYTHONPATH in effect."""
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
    """The argument list of the user's program. Raises `ProblemError` if it cannot be started."""
    if isinstance(workload, CommandWorkload):
        return tuple(workload.argv)
    script = (workload.cwd or Path.cwd()) / workload.script
    if not script.is_file():
        raise ProblemError("no such script", value=str(script), allowed="a Python file")
    python = context.python_for(workload)
    check_interpreter(python)
    return (str(python), str(workload.script), *workload.args)
