"""Runs the user's program under the hook, or looks at one that is running."""

import filecmp
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio.to_thread

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.interventions import source
from mcp_server.diagnosis.observe import DECIDES, NEEDED, Observation, limit_of
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.errors import ProblemError, argument, here
from mcp_server.jobs.child import Finished
from mcp_server.logs.captured import CapturedAttempts, CapturedCall, CapturedCompile, CapturedOverwriting
from mcp_server.logs.text import short_message
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.recorder.package import recording_environment, recordings_of
from mcp_server.recorder.replay import (
    KILLED,
    Candidate,
    TakenCall,
    candidates_in,
    death_in,
    steps_of,
    take_call,
)
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.runtime.failure import read_output
from mcp_server.tools.capture import Capture, capture
from mcp_server.tools.requests import failing_phase, package_request, plan_replay, run_request
from mcp_server.tools.running_process import look_at_process, look_for_stuck
from mcp_server.worker.events import SizeCompared
from mcp_server.worker.protocol import ReplayRequest

SHARE_OF_PROGRAM = 0.6  # of the remaining budget; the rest is for the captured call


# After this number of seconds a child prints every thread's stack, which shows where it hangs.
STACKS = "AOTI_DEBUG_STACKS_AFTER"
STACKS_AT = 0.85  # share of the run's time limit
SPARED = "AOTI_DEBUG_SPARED"  # seconds of builds that do not count against the limit
PROVENANCE = "INDUCTOR_PROVENANCE"


OUT_OF_SIGHT = (
    "the package is called by the process {}, and the hook is not in it: its inputs cannot be seen. In C++, "
    "at::from_blob copies nothing: its memory must live until the call ends, and a view keeps its strides"
)


NO_RECORDER = "the recorder could not be compiled, so calls in C++ were not kept; it needs gcc or clang"


def see(label: str, finished: Finished, worker: WorkerRun | None = None, *, process: str = "") -> RunSeen:
    """The run of a finished child with its log read, for all its processes or for one."""
    return RunSeen(label, finished, read_output(finished.output, process), worker)


class CaptureProgram(Observation, name="capture", seconds=30, best=NEEDED, alone=True):
    """Run the script or command once, and keep the call that failed or is suspect."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if isinstance(case.workload, ScriptWorkload | CommandWorkload) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert isinstance(case.workload, ScriptWorkload | CommandWorkload)
        limit = limit_of(case, share=SHARE_OF_PROGRAM)
        # A compile in this run also records the model line of each kernel (torch >= 2.9).
        provenance = {} if PROVENANCE in case.workload.env else {PROVENANCE: "1"}
        case.may_be_a_host = await anyio.to_thread.run_sync(may_be_a_host, case.workload)
        recorder = await recording_environment(context, case.workload.env) if case.may_be_a_host else {}
        if case.may_be_a_host and not recorder:
            case.notes.append(NO_RECORDER)

        async def look_before_the_end(pid: int) -> None:
            assert isinstance(case.workload, ScriptWorkload | CommandWorkload)
            with anyio.move_on_after(30):
                case.process = await look_for_stuck(context, pid, named_packages(case.workload))

        limits = {STACKS: str(limit.seconds * STACKS_AT), SPARED: str(case.clock.allowance_s)}
        seen = await capture(
            context,
            case.workload.model_copy(update={"timeout_s": limit.seconds}),
            env={**provenance, **recorder, **limits},
            gpus=gpus_of(None),
            until_stalled=True,
            at_limit=look_before_the_end if case.may_be_a_host else None,
        )
        limit.check(seen.finished, "the program")
        rank = seen.rank.rank if seen.rank else ""
        case.capture = seen
        trials = (source.trial_of(tried) for tried in seen.attempts)
        case.trials |= {trial.intervention.key: trial for trial in trials if trial is not None}
        case.runs["script"] = see("script", seen.finished, process=rank)
        log = seen.directory / "ranks" / f"{rank}.log"
        if rank and log.exists():
            case.artifacts.append(context.artifact(log, f"output of rank {rank}, which failed"))
        case.notes += seen.notes
        case.call = suspect_call(seen)
        if case.host is not None:
            case.call, case.may_be_a_host = None, True
            case.host_package = case.host.copy_path or case.host.package
        elif case.may_be_a_host and not seen.loads:
            named = await anyio.to_thread.run_sync(named_packages, case.workload)
            case.host_package = await _suspect_package(case, context, named)
        if not _waits_forever(case):
            await _take_recorded(case, context)


def _waits_forever(case: DiagnosisState) -> bool:
    """Whether the host hung in a wait, so that its recorded calls are not at fault."""
    stuck = [*case.process.deadlocked, *case.process.blocking] if case.process is not None else []
    return bool(stuck) and not stuck[0].computes


async def _take_recorded(case: DiagnosisState, context: Context) -> None:
    """Take the call of a C++ host from the recorder's files, if there are any."""
    recorded = recordings_of(context)
    if case.host_package is not None and recorded is not None:
        await _take_from_host(case, context, case.host_package, recorded)
    elif recorded is not None:
        case.taken = await anyio.to_thread.run_sync(death_in, recorded)
    if case.host is not None and case.taken is None:
        case.notes.append(OUT_OF_SIGHT.format(Path(case.host.argv[0]).name))


async def _suspect_package(case: DiagnosisState, context: Context, packages: Sequence[Path]) -> Path | None:
    """The only package, or the one whose recorded call failed or came last."""
    folder = recordings_of(context) if len(packages) > 1 else None
    if folder is None:
        return packages[0] if len(packages) == 1 else None
    first: dict[Path, Candidate] = {}
    for package in packages:
        with suppress(ProblemError):  # the host did not call this package
            first[package] = (await candidates_in(folder, _call_of(package, case), context))[0]
    return max(first, key=lambda each: (first[each].suspect, first[each].call.begin_ns), default=None)


def _call_of(package: Path, case: DiagnosisState) -> PackageWorkload:
    around = case.surroundings
    return PackageWorkload(
        package=package, env=dict(around["env"]), python=around["python"], cwd=around["cwd"]
    )


async def _take_from_host(case: DiagnosisState, context: Context, package: Path, folder: Path) -> None:
    """Take a non-Python host's failing call from its recording; leave a note if there is none."""
    call = _call_of(package, case)
    try:
        taken = await take_call(context, folder, call)
    except ProblemError as problem:
        case.notes.append(str(problem))
        return
    if case.failure_of("script") == "timeout":  # the time limit of this run killed it
        taken = replace(taken, facts=[each for each in taken.facts if each != KILLED])
    case.taken = taken
    case.call = recorded_call(call, taken)


def given_call(workload: PackageWorkload) -> CallSpec:
    """The call of a package. Without inputs the package is loaded, but not called."""
    inputs = workload.inputs if isinstance(workload.inputs, Path) else None
    request: ReplayRequest = {
        "package": str(workload.package),
        "model_name": workload.model_name,
        "extra_imports": workload.extra_imports,
    }
    if workload.inputs is not None:
        request.update(cast(ReplayRequest, run_request(workload)))
    return CallSpec("run", request, workload.package, inputs)


def recorded_call(package: PackageWorkload, taken: TakenCall) -> CallSpec:
    """The call of a recording, with the weights that the host gave the package."""
    if taken.inputs is None:
        return CallSpec("run", cast(ReplayRequest, package_request(package)), package.package)
    request = cast(ReplayRequest, run_request(package.model_copy(update={"inputs": taken.inputs})))
    if taken.weights is None:
        return CallSpec("run", request, package.package, taken.inputs)
    steps = steps_of(taken.inputs, taken.weights)
    return CallSpec("replay", {**request, "steps": steps}, package.package, taken.inputs)


def suspect_call(seen: Capture) -> CallSpec | None:
    """The failed or suspect call in a form that the worker can repeat. None if it was not kept."""
    phase = failing_phase(seen, ended_well=seen.finished.ok)
    try:
        request = plan_replay(seen, phase)
    except ProblemError:
        return None
    assert phase is not None, "what has a plan was captured"
    # The tensors that the program compared with the outputs.
    later = [check for check in seen.assertions if check.pid == phase.pid and check.n > phase.n]
    file = next((check.file for check in later if check.file), None)
    if file is not None:
        request["actual"] = str(file)
    call = phase if isinstance(phase, CapturedCall) else None
    return CallSpec("replay", request, Path(request["package"]), call.file if call else None)


class TrySizes(Observation, seconds=40, best=DECIDES, alone=True, decisive=True):
    """Compile without the operator that fixed a size, and compare at sizes that worked and that failed."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if _fixed_size(case) is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        found = _fixed_size(case)
        assert found is not None and case.call is not None
        tried, compile_ = found
        attempt = tried.attempts[0]
        request = {
            "exported": str(compile_.exported),
            "before": str(case.call.package),
            "package_path": str(context.fresh("sizes") / "model.pt2"),
            "inductor_configs": compile_.configs,
            "code": attempt.after,
            "shapes": _shapes(case),
        }
        try:
            run = await context.worker("try_sizes", request, **case.surroundings)
        except ProblemError as problem:
            case.notes.append(f"the change was not tried: {problem}")
            return
        sizes = run.all(SizeCompared)
        before, after = ([each for each in sizes if each.when == when] for when in ("before", "after"))
        attempt.error = "" if len(after) == len(before) else short_message(run.why)
        wrong = [each.shape for each in before if not each.equal]
        attempt.outcome = "differs" if any(not each.equal for each in after) else "fails"
        if wrong and after and len(after) == len(before) and attempt.outcome == "fails":
            attempt.outcome, attempt.sizes = "passes", len(after)
            attempt.again = f"other outputs than eager mode at {wrong[0]}"
        trial = source.trial_of(tried)
        if trial is not None:
            case.trials[trial.intervention.key] = trial


def _fixed_size(case: DiagnosisState) -> tuple[CapturedAttempts, CapturedCompile] | None:
    """The untried change for a size that a compile fixed, and this compile, or None."""
    tried = [each for each in case.captured.attempts if each.stage == "sizes" and each.attempts]
    compiles = [each for each in case.captured.compiles if each.exported is not None]
    if not tried or not compiles or case.call is None or tried[0].attempts[0].outcome != "untried":
        return None
    return tried[0], compiles[-1]


def _shapes(case: DiagnosisState) -> list[list[list[int]]]:
    """The shapes of the first call, the shapes of the last one, and shapes halfway."""
    calls = [case.calls[0], case.calls[-1]]
    first, last = ([list(leaf.shape or ()) for leaf in call.leaves] for call in calls)
    between = [
        [(a + b) // 2 for a, b in zip(one, other, strict=True)]
        for one, other in zip(first, last, strict=True)
    ]
    found = [first, between, last]
    return [each for number, each in enumerate(found) if each not in found[:number]]


OF_TORCH = re.compile(rb"aot_inductor|AOTIModel|AOTInductor|libtorch")
STARTS_OTHERS = re.compile(rb"\b(?:subprocess|popen|execv|posix_spawn|os\.system)", re.IGNORECASE)
MOST_TEXT = 1 << 24  # bytes of a program that are searched
SHELL_WORDS = re.compile(r"[\w./+@%-]+")
MOST_WORDS = 1000  # words of a shell script that are looked up as programs
PACKAGE_NAME = re.compile(rb"[\w./+@%-]+\.pt2\b")


def may_be_a_host(workload: ScriptWorkload | CommandWorkload) -> bool:
    """Whether a program is linked with torch, or a script's text starts other programs."""
    if isinstance(workload, ScriptWorkload):
        return STARTS_OTHERS.search(_content(workload.script)) is not None
    return any(OF_TORCH.search(_content(program)) for program in _programs(workload))


def _programs(workload: CommandWorkload) -> list[Path]:
    """The program's file. For a shell script, also the files beside it that it names."""
    name, folder = workload.argv[0], workload.cwd or here()
    file = folder / name if "/" in name else Path(shutil.which(name) or "")
    text = _content(file)
    words = SHELL_WORDS.findall(text.decode("utf-8", "replace")) if text.startswith(b"#!") else []
    folders = {file.parent, folder}
    paths = {folder / word for word in words[:MOST_WORDS] for folder in folders}
    return [file, *sorted(path for path in paths if path.is_file())]


def _content(file: Path) -> bytes:
    """The beginning of a file. Empty if it cannot be read."""
    try:
        with file.open("rb") as program:
            return program.read(MOST_TEXT)
    except OSError:
        return b""


def named_packages(workload: ScriptWorkload | CommandWorkload) -> list[Path]:
    """List the packages that a program is started with, or those that the host names."""
    words = workload.args if isinstance(workload, ScriptWorkload) else workload.argv[1:]
    folders = [workload.cwd or here()]
    # The package may be the value of an option: --model=ranker.pt2.
    found = _packages_at([word.rpartition("=")[2] for word in words], folders)
    if not found and isinstance(workload, CommandWorkload):
        programs = _programs(workload)
        folders += [program.parent for program in programs]
        names = [name.decode() for program in programs for name in PACKAGE_NAME.findall(_content(program))]
        found = _packages_at(names, folders)
    return sorted(found)


def _packages_at(names: Sequence[str], folders: Sequence[Path]) -> set[Path]:
    """The packages that words name, and those in folders that they name."""
    found: set[Path] = set()
    for path in (folder / name for name in names if name for folder in folders):
        with suppress(OSError):  # the word is too long for a name
            files = path.glob("*.pt2") if path.is_dir() else [path]
            found |= {each.resolve() for each in files if each.suffix == ".pt2" and each.is_file()}
    return found


def put_back(case: DiagnosisState) -> list[str]:
    """Restore the packages that runs of the program overwrote. Return one sentence for each.

    Compiles under the hook add debug information, so they write other packages than the user's own run. The
    hook keeps a copy of each file that is about to be overwritten (`events.Overwriting`).

    A package that did not exist before is kept. Nothing is done for runs of an earlier job that are reused:
    the user's file may be newer.
    """
    if case.capture is None or case.capture.finished.reused:
        return []
    first: dict[Path, CapturedOverwriting] = {}
    for each in case.captured.overwritings:
        first.setdefault(each.path, each)
    return [told for each in first.values() if (told := _restored(each))]


def _restored(file: CapturedOverwriting) -> str:
    """Say what happened to one file. Empty if the run did not write it."""
    name = file.path.name
    if file.kept is None:
        if file.notice:
            return f"{name} was overwritten by a build with debug information, without a copy: {file.notice}."
        new = f"The diagnosis created {name}, with debug information: build it again before you deploy it."
        return new if file.path.is_file() else ""
    try:
        if file.path.is_file() and filecmp.cmp(file.path, file.kept, shallow=False):
            return ""
        partial = file.path.with_name(f".{name}.{os.getpid()}")
        shutil.copy2(file.kept, partial)
        partial.replace(file.path.resolve())
    except OSError as error:
        return f"{name} could not be restored ({error}); the original is {file.kept}."
    return f"{name} was restored after the run. To keep what the run wrote, use {argument('in_place')}."


class LookAtProcess(Observation, seconds=6, best=NEEDED):
    """Look several times at a running process: which threads stay in the package, and what they wait for."""

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return self.best if case.attached is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.attached is not None
        try:
            case.process = await look_at_process(context, case.attached)
        except ProblemError as problem:  # nothing else can be observed
            case.unfit = problem
            return
        case.package, case.parsed = case.process.view.package, case.process.view
