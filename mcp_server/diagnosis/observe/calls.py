"""Running the user's program, and making its call: plain, checked, repeated, and operator by operator."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import anyio.to_thread

from mcp_server.diagnosis.causes.concurrency import updated_in_a_copy
from mcp_server.diagnosis.causes.hang import shown_by_trace, to_be_traced
from mcp_server.diagnosis.causes.value_constraints import exact_trial
from mcp_server.diagnosis.causes.wrong_output import drawing_launches
from mcp_server.diagnosis.components import operator_missing_here
from mcp_server.diagnosis.indices import checked_inputs
from mcp_server.diagnosis.interventions import source
from mcp_server.diagnosis.observe import Observation, eager_limit, hangs, limit_of, to_be_placed
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.symptom import RunSeen, refuse_misfit
from mcp_server.errors import ProblemError, here
from mcp_server.jobs.command import Command, Finished
from mcp_server.logs.captured import CapturedCall
from mcp_server.model import CommandWorkload, PackageWorkload, ScriptWorkload
from mcp_server.probes.build import instrument
from mcp_server.probes.commands import Options
from mcp_server.recorder.host import recording_environment, recordings_of
from mcp_server.recorder.replay import take_call
from mcp_server.runtime.context import Context, WorkerRun, gpus_of
from mcp_server.runtime.failure import read_output
from mcp_server.tools.capture import Capture, capture, workload_argv
from mcp_server.tools.fault_methods import ONE_THREAD
from mcp_server.tools.requests import failing_phase, plan_replay, run_request
from mcp_server.tools.run_deterministic import CHECK_INPUTS
from mcp_server.worker.protocol import ReplayRequest

# Shares of what the budget leaves.
SHARE_OF_PROGRAM = 0.6  # the rest is for the call that was captured
SHARE = 0.45  # a call that hangs must leave time to find out where
SHARE_OF_HANG = 0.6  # once the program hung: all that is left to do is to see it again, and where

# Seconds after which a child prints every thread's stack: what a call that hangs is doing.
STACKS = "AOTI_DEBUG_STACKS_AFTER"
STACKS_AT = 0.85  # of the limit of the run
PROVENANCE = "INDUCTOR_PROVENANCE"

OUT_OF_SIGHT = (
    "the package is called by the process {}, and the hook is not in it: its inputs cannot be seen. In C++, "
    "at::from_blob copies nothing: its memory must live until the call ends, and a view keeps its strides"
)


def see(label: str, finished: Finished, worker: WorkerRun | None = None, *, process: str = "") -> RunSeen:
    """A finished child with its log read: of all its processes, or of one."""
    return RunSeen(label, finished, read_output(finished.output, process), worker)


class CaptureProgram(Observation):
    """Run the script or command once, and keep the call that failed or is suspect."""

    name = "capture"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        return 1.0 if isinstance(case.workload, ScriptWorkload | CommandWorkload) else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert isinstance(case.workload, ScriptWorkload | CommandWorkload)
        limit = limit_of(case, share=SHARE_OF_PROGRAM)
        # A compile in this run also writes which model line each kernel comes from (torch >= 2.9).
        provenance = {} if PROVENANCE in case.workload.env else {PROVENANCE: "1"}
        case.may_be_a_host = await anyio.to_thread.run_sync(may_be_a_host, case.workload)
        recorder = await recording_environment(context, case.workload.env) if case.may_be_a_host else {}
        seen = await capture(
            context,
            case.workload.model_copy(update={"timeout_s": limit.seconds}),
            env={**provenance, **recorder, STACKS: str(limit.seconds * STACKS_AT)},
            gpus=gpus_of(None),
            until_stalled=True,
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
            case.host_package = await anyio.to_thread.run_sync(named_package, case.workload)
        if case.host_package is not None:
            await _take_from_host(case, context, case.host_package)
        if case.host is not None and case.taken is None:
            case.notes.append(OUT_OF_SIGHT.format(Path(case.host.argv[0]).name))


async def _take_from_host(case: DiagnosisState, context: Context, package: Path) -> None:
    """The failing call of a host in another language, from what it recorded; a note where there is none."""
    folder = recordings_of(context)
    if folder is None:
        return
    around = case.surroundings
    call = PackageWorkload(
        package=package, env=dict(around["env"]), python=around["python"], cwd=around["cwd"]
    )
    try:
        taken = await take_call(context, folder, call)
    except ProblemError as problem:
        case.notes.append(str(problem))
        return
    case.taken = taken
    request = cast(ReplayRequest, run_request(call.model_copy(update={"inputs": taken.inputs})))
    case.call = CallSpec("run", request, package, taken.inputs)


def suspect_call(seen: Capture) -> CallSpec | None:
    """What failed or is suspect, as something that the worker can do again; None when it was not kept."""
    phase = failing_phase(seen, ended_well=seen.finished.ok)
    try:
        request = plan_replay(seen, phase)
    except ProblemError:
        return None
    assert phase is not None, "what has a plan was captured"
    # What the program compared the outputs with.
    later = [check for check in seen.assertions if check.pid == phase.pid and check.n > phase.n]
    file = next((check.file for check in later if check.file), None)
    if file is not None:
        request["actual"] = str(file)
    call = phase if isinstance(phase, CapturedCall) else None
    return CallSpec("replay", request, Path(request["package"]), call.file if call else None)


class RunAlone(Observation):
    """Run the program again that succeeded under the hook, and let inputs go that a stream might read."""

    name = "run_alone"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        seen = case.capture
        return 0.9 if seen is not None and seen.finished.ok and seen.cross_stream_frees else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        await _run_program(case, context, "alone", {})


async def _run_program(case: DiagnosisState, context: Context, label: str, env: Mapping[str, str]) -> None:
    """Run the whole program without the hook, with further variables; the result is `case.runs[label]`."""
    workload = case.workload
    assert isinstance(workload, ScriptWorkload | CommandWorkload)
    limit = limit_of(case, share=SHARE_OF_PROGRAM)
    command = Command(
        argv=workload_argv(context, workload),
        cwd=workload.cwd or here(),
        env={**workload.env, **env},
        timeout_s=limit.seconds,
        gpus=gpus_of(None),
    )
    finished = await context.run(command, label, runs=1)
    limit.check(finished, "the program")
    case.runs[label] = see(label, finished)


async def run_call(
    case: DiagnosisState,
    context: Context,
    label: str,
    *,
    env: Mapping[str, str] | None = None,
    extra: Mapping[str, object] | None = None,
    record: bool = True,
) -> RunSeen:
    """Make the case's call once in the worker; the result is also kept in `case.runs[label]`."""
    assert case.call is not None
    limit = limit_of(case, share=SHARE_OF_HANG if hangs(case) else SHARE)
    mutated = updated_in_a_copy(case)
    watched = {"tell_changes": {str(place): size for place, size in mutated.items()}} if mutated else {}
    done = await context.worker(
        case.call.operation,
        {**case.call.request, **watched, **(extra or {})},
        name=label,
        timeout_s=limit.seconds,
        gpus=gpus_of(case.device, case.device_index),
        **case.surroundings_with({STACKS: str(limit.seconds * STACKS_AT)}, env or {}),
    )
    limit.check(done.finished, "the call")
    seen = replace(see(label, done.finished, done), infinities=case.symptom.infinities)
    if record:
        case.runs[label] = seen
    return seen


OF_INPUTS = ("input_mismatch", "shape_out_of_range")


class PlainRun(Observation):
    """Make the call as it is."""

    name = "run"
    seconds = 6.0

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # the launches tell more of a call that hangs, and whether it does by itself
        # What outputs of a wrong shape come from is known first.
        waits = to_be_placed(case) or (case.symptom.expect is not None and case.inputs)
        if waits and "compare_inputs" not in case.done:
            return 0.0
        return 0.9 if case.call is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        try:
            seen = await run_call(case, context, "plain", extra=case.symptom.request(), record=False)
            # Inputs that the package does not take may well give outputs of a wrong shape.
            if not any(suspect.harmful and suspect.category in OF_INPUTS for suspect in case.suspects):
                refuse_misfit(seen, case.symptom)
        except ProblemError as problem:
            if problem.value in (str(case.symptom.expect), " ".join(case.symptom.check) or None):
                case.unfit = problem
            raise
        missing = operator_missing_here(seen, case)
        if not missing:
            case.runs["plain"] = seen
            return
        case.call = None
        case.notes.append(missing)


class CheckedRun(Observation):
    """Make the call with AOTInductor's own input checks: a second, independent view of a bad input."""

    name = "run_with_input_checks"
    seconds = 6.0

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        if case.call is None or "plain" not in case.runs:
            return 0.0
        if "look_at_indices" not in case.done and checked_inputs(case):
            return 0.0  # looking at the indices is cheaper, and tells more of an index assertion
        if case.runs["plain"].failure == "timeout" and not case.mismatches:
            return 0.0  # it would hang again
        contract = {"input_mismatch", "device_mismatch", "shape_out_of_range", "custom_op"}
        return 0.8 if any(h.category in contract for h in open_suspects) or not case.mismatches else 0.3

    async def act(self, case: DiagnosisState, context: Context) -> None:
        await run_call(case, context, "checked", env={**CHECK_INPUTS, **ONE_THREAD})


OF_TORCH = re.compile(rb"aot_inductor|AOTIModel|AOTInductor|libtorch")
STARTS_OTHERS = re.compile(rb"\b(?:subprocess|popen|execv|posix_spawn|os\.system)", re.IGNORECASE)
MOST_TEXT = 1 << 24  # bytes of a program that are searched
SHELL_WORDS = re.compile(r"[\w./+@%-]+")
MOST_WORDS = 1000  # of a shell script that are looked for as programs
PACKAGE_NAME = re.compile(rb"[\w./+@%-]+\.pt2\b")


class CheckedProgram(Observation):
    """Run the whole program with AOTInductor's own input checks.

    A host in another language that the program starts is not watched, and its calls cannot be made again:
    the package itself says there what it was not compiled for.
    """

    name = "run_program_with_input_checks"
    seconds = 30.0
    alone = True

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        capture = case.capture
        if capture is None or capture.finished.ending == "timeout":
            return 0.0
        if capture.finished.ok and not (case.host_package and isinstance(case.workload, CommandWorkload)):
            return 0.0
        if case.call is not None and case.failure_of("plain") != "none":
            return 0.0  # the call that fails is known, or is still to be made
        # Of a host's values nothing is known: an index that is out of its bound may be one of another dtype.
        known = any(each.harmful and not each.weak for each in open_suspects) and case.host_package is None
        return 0.5 if case.may_be_a_host and not known else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        await _run_program(case, context, "checked", CHECK_INPUTS)


def may_be_a_host(workload: ScriptWorkload | CommandWorkload) -> bool:
    """Whether a program is linked with torch, or the text of a script starts other programs."""
    if isinstance(workload, ScriptWorkload):
        return STARTS_OTHERS.search(_content(workload.script)) is not None
    return any(OF_TORCH.search(_content(program)) for program in _programs(workload))


def _programs(workload: CommandWorkload) -> list[Path]:
    """The file of the program, and the files beside a shell script that its words name."""
    name, folder = workload.argv[0], workload.cwd or here()
    file = folder / name if "/" in name else Path(shutil.which(name) or "")
    text = _content(file)
    words = SHELL_WORDS.findall(text.decode("utf-8", "replace")) if text.startswith(b"#!") else []
    folders = {file.parent, folder}
    paths = {folder / word for word in words[:MOST_WORDS] for folder in folders}
    return [file, *sorted(path for path in paths if path.is_file())]


def _content(file: Path) -> bytes:
    """The beginning of a file; empty where it cannot be read."""
    try:
        with file.open("rb") as program:
            return program.read(MOST_TEXT)
    except OSError:
        return b""


def named_package(workload: ScriptWorkload | CommandWorkload) -> Path | None:
    """The package that a program is started with, or that a host names, if it is only one."""
    words = workload.args if isinstance(workload, ScriptWorkload) else workload.argv[1:]
    folders = [workload.cwd or here()]
    # Also as the value of an option: --model=ranker.pt2.
    names = [word.rpartition("=")[2] for word in words if word.endswith(".pt2")]
    if not names and isinstance(workload, CommandWorkload):
        programs = _programs(workload)
        folders += [program.parent for program in programs]
        names = [name.decode() for program in programs for name in PACKAGE_NAME.findall(_content(program))]
    found = {path.resolve() for name in names for folder in folders if (path := folder / name).is_file()}
    return found.pop() if len(found) == 1 else None


class Interpret(Observation):
    """See which operator of the model raises, makes NaN, or breaks its fake function's promise."""

    name = "interpret"
    seconds = 4.0

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        if case.ran_out_of_memory:
            return 0.0  # eager keeps every value between operators, and so needs more
        if to_be_traced(case) or shown_by_trace(case):
            return 0.0  # eager may hang alike
        return 1.0 if case.program_path is not None and case.inputs is not None else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        assert case.call is not None
        checked = case.symptom.expect or case.call.request.get("actual")
        more = {"expect": str(checked)} if checked else {}
        case.interpreted = await interpret(case, context, **more)
        if (trial := exact_trial(case)) is not None:
            case.trials[trial.intervention.key] = trial


async def interpret(case: DiagnosisState, context: Context, **more: str) -> WorkerRun:
    """The worker's run of the exported program on that call; `more` is added to its request."""
    assert case.call is not None
    request = case.call.request
    # The program has the constants of the export: a package whose constants were updated computes others.
    as_exported = not (case.call.updated or request.get("library"))
    loading = {"package", "model_name", "device_index"} if as_exported else set()
    return await context.worker(
        "interpret",
        {
            "exported": case.program_path,
            "inputs": case.inputs,
            "extra_imports": request.get("extra_imports", []),
            **{name: value for name, value in request.items() if name in loading},
            **more,
        },
        **case.surroundings,
        timeout_s=eager_limit(case),
    )


LONGEST_CALL_S = 15.0
MOST_BYTES = 1 << 30  # of a package that is loaded four times


class RepeatCall(Observation):
    """Make a call that succeeded three times, each in a fresh load, the last with new memory filled anew."""

    name = "repeat_call"
    seconds = 5.0

    def gain(self, case: DiagnosisState, open_suspects: Sequence[Suspect]) -> float:
        plain, call = case.plain_run, case.call
        if plain is None or plain.failure != "none" or call is None:
            return 0.0
        # A package on the CPU, whose memory the C library gives, and which is soon loaded and called again.
        on_cpu = isinstance(case.workload, PackageWorkload) and case.device == "cpu"
        if not on_cpu or plain.finished.wall_s >= LONGEST_CALL_S or call.package.stat().st_size >= MOST_BYTES:
            return 0.0
        return 0.0 if any(h.harmful and not h.weak for h in open_suspects) else 0.25

    async def act(self, case: DiagnosisState, context: Context) -> None:
        case.repeated = await _repeat(case, context, "repeats", {}, {})


class WatchRepeats(Observation):
    """The same with every launch watched, to see where the outputs part."""

    name = "watch_repeats"
    seconds = 14.0
    alone = True

    def gain(self, case: DiagnosisState, _open: Sequence[Suspect]) -> float:
        unexplained = case.differs_in("second") and not drawing_launches(case)
        return 0.7 if unexplained or case.reads_unset else 0.0

    async def act(self, case: DiagnosisState, context: Context) -> None:
        workload = case.package_call
        python = context.python_for(workload)
        rebuilt = await instrument(workload.package, Options(), context, python=python, env=workload.env)
        env = {"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {}
        more = {"package": rebuilt.package, "probes": True}
        case.repeated_watched = await _repeat(case, context, "repeats-watched", more, env)


async def _repeat(
    case: DiagnosisState, context: Context, name: str, more: Mapping[str, object], env: Mapping[str, str]
) -> WorkerRun:
    assert case.call is not None
    limit = limit_of(case)
    done = await context.worker(
        "repeat",
        {**case.call.request, **more},
        name=name,
        timeout_s=limit.seconds,
        **case.surroundings_with({}, env),
    )
    limit.check(done.finished, "the repeated call")
    context.cost.runs += len(done.phases("calling")) - 1 if not done.finished.reused else 0
    return done
