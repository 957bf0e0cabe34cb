"""The machine, the limits of the process, files that a build finds, and what ends a program by itself.

The hook records every compile, load and call that Python makes. Where it recorded none, no package can have
computed what the program's check refused: the statement that raised is at fault, or what it was given.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePath, PurePosixPath
from typing import cast

from mcp_server.diagnosis.causes.log_text import BY_CATEGORY, WORKER, evidence_of, locations_of
from mcp_server.diagnosis.components import (
    component,
    line_in_script,
    lines_in_script,
    reported,
    script_text,
    seen,
)
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import WRONG_ARCHITECTURE, CausalLevel, Suspect
from mcp_server.diagnosis.symptom import RunSeen
from mcp_server.logs.captured import CapturedLoad, Phase
from mcp_server.logs.facts import ErrorFact, Frame, ThreadStack
from mcp_server.model import Evidence, Fix, ModelLocation, ScriptWorkload
from mcp_server.plurals import counted, quoted
from mcp_server.worker.protocol import Step


def detect_machine(case: DiagnosisState) -> Iterator[Suspect]:
    """Certain problems of package and machine; defects of the file are another detector's."""
    defects = {defect.what for defect in case.package.defects} if case.package is not None else set()
    for problem in case.problems:
        if not problem.certain or problem.what in defects:
            continue
        kind, level = BY_CATEGORY[problem.category]
        if problem.category == "device_mismatch":
            kind = "call"  # `device_index` is an argument of the call that loads
        name = problem.what[:120]
        if kind == "package" and case.package is not None:
            name = case.package.path.name
        refused = next((root for _, root in case.roots if problem.category in root.candidates), None)
        words = (seen("run", f"the system says: {quoted(refused.text, 300)}"),) if refused is not None else ()
        value = problem.what[:200] if name != problem.what else None
        yield Suspect(
            category=problem.category,
            guilty=component(kind, name, case.failing_locations, value=value),
            summary=f"{problem.what[:1].upper()}{problem.what[1:]}.",
            level=level,
            evidence=(seen("check_devices", problem.what), *words),
            fix=problem.fix,
            refusal=WRONG_ARCHITECTURE if words and problem.category == "arch_mismatch" else "",
            harmful=case.failed,
        )


_Reached = partial(Suspect, category="environment", level=CausalLevel.BUILD)


def detect_process_limits(case: DiagnosisState) -> Iterator[Suspect]:
    """A limit that was reached in the phase that failed."""
    phase = case.failing_phase
    error = phase.error if phase is not None else None
    if phase is None or error is None:
        return
    members = case.package.members if case.package is not None else ()
    loading = phase if isinstance(phase, CapturedLoad) and "extract" in error.text else None
    largest = max((member.size for member in members), default=loading.largest if loading else None)
    if error.no_files is not None:
        name, limit = "open files", error.no_files
        fact = f"when it failed, the process could open no more files: its limit is {limit}"
        fix = "close files that are not needed any more, or raise the limit on open files (ulimit -n)"
    elif loading and error.file_bytes is not None and largest is not None and largest > error.file_bytes:
        name, limit = "file size", error.file_bytes
        fact = f"no file of the process may have more than {limit} bytes; one of the package has {largest}"
        fix = "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE) before the load"
    else:
        return
    yield _Reached(
        guilty=component("environment", name, phase.stack, value=f"limit {limit}"),
        summary=f"The process had reached its limit on {name}, {limit}; the error is due to that, whatever "
        "its text says.",
        evidence=(seen("capture", fact), *_well_alone("the same", case)),
        fix=Fix(text=fix),
        harmful=case.failed,
    )


def _well_alone(what: str, case: DiagnosisState) -> Iterator[Evidence]:
    """Evidence that the call, made again in a process of its own, does not fail."""
    if case.failure_of("plain") == "none":
        yield seen("run", f"{what}, made again in a process of its own, went well")


# Signals of a limit: its name, its variable, and what to do.
LIMITS = {
    "SIGXCPU": ("processor time", "RLIMIT_CPU", "raise it (ulimit -t), or find out what takes so long"),
    "SIGXFSZ": ("file size", "RLIMIT_FSIZE", "raise it (ulimit -f), or write less"),
}


def detect_limit_signals(case: DiagnosisState) -> Iterator[Suspect]:
    """A limit whose signal ended the program's run; SIGKILL may come from the hard processor limit."""
    run = case.script_run or case.runs.get("command")
    if run is None:
        return
    signal, ran = run.finished.signal, run.finished.wall_s
    hooked = case.captured
    phases: list[Phase] = [*hooked.compiles, *hooked.loads, *hooked.calls]
    begun = [phase for phase in phases if phase.outcome == "unfinished"]
    phase = max(begun or phases, key=lambda phase: phase.t, default=None)
    seconds = phase.processor_s if phase is not None else None
    kind = signal
    if signal == "SIGKILL" and seconds is not None and ran >= seconds:
        kind = "SIGXCPU"
    if kind is None or kind not in LIMITS:
        return
    name, variable, advice = LIMITS[kind]
    fix = f"the limit is {variable}: {advice}"
    seconds = seconds if kind == "SIGXCPU" else None
    facts = [seen("run", f"{signal} ended the program after {ran:.1f} s")]
    if seconds is not None:
        saw = f"the hook saw a limit of {seconds} s on the processor time of the process ({variable})"
        facts.append(seen("capture", saw))
    lines, limit = phase.stack[:2] if phase is not None else [], variable
    if seconds is not None:
        limit, variable = f"limit {seconds} s", f"{variable}, {seconds} s"
    yield _Reached(
        guilty=component("environment", name, lines, value=limit),
        summary=f"The process was ended by {signal}: it had reached its limit on {name} ({variable}).",
        evidence=(*facts, *_well_alone("the call", case)),
        fix=Fix(text=fix),
        observed=signal in LIMITS,
    )


LARGE_STACK = 1 << 30  # bytes; memory is taken only as far as the stack grows
ON_LARGE_STACK = Intervention(
    "call:stack",
    Kind.CALL,
    f"the call on a stack of {LARGE_STACK} bytes",
    options=Options(stack_bytes=LARGE_STACK),
)


def detect_small_stack(case: DiagnosisState) -> Iterator[Suspect]:
    """A call that dies again on a stack smaller than usual; a large stack is tried.

    On a usual stack that would be no evidence: a large one may let a bad pointer pass by chance.
    """
    plain, call = case.plain_run, case.call
    signal = plain.finished.signal if plain is not None else None
    if signal not in ("SIGSEGV", "SIGBUS") or call is None or call.operation != "replay":
        return
    size = next((step["stack"] for step in call.steps[-1:] if "stack" in step), None)
    if size is None:
        return
    died, trial = case.captured.failing, case.trials.get(ON_LARGE_STACK.key)
    lines, value = died.stack[:2] if died is not None else [], f"{size} bytes"
    yield Suspect(
        category="environment",
        guilty=component("environment", "stack of the calling thread", lines, value=value),
        summary=f"The call died of {signal} because it needs more stack than its thread has, "
        f"{size} bytes: no pointer is bad.",
        level=CausalLevel.CALL if trial is not None and trial.proves else CausalLevel.SYMPTOM,
        evidence=(seen("capture", f"the thread of the call had a stack of {size} bytes"),),
        fix=Fix(text="give the thread more stack (threading.stack_size, ulimit -s), or recurse less"),
        intervention=ON_LARGE_STACK,
        observed=False,
    )


# Errors of Python's compiler. For the program's own file they are printed without a traceback.
_UNREADABLE = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PLACE = re.compile(rb'^\s*File "([^"\n]+)", line (\d+)\s*$', re.M)
_OF_FILES = frozenset({"FileNotFoundError", "IsADirectoryError", "NotADirectoryError"})
_REFUSED = re.compile(r"^(?P<program>[^\s:]+): error: (?P<what>.+)$", re.M)  # argparse, which ends with 2
REFUSED_STATUS = 2
_OF_TORCH = re.compile(r"[/\\](?:torch|triton)[/\\]")
_TAIL_BYTES = 8192


def detect_outside(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect, where the program's own Python raised and no process reached AOTInductor."""
    script = case.script_run
    root = script.root if script is not None else None
    if script is None or script.failure != "exception":
        return
    if not case.never_reached or (case.capture is not None and case.capture.isolated):
        return
    if script.finished.returncode == REFUSED_STATUS:
        yield from _refused_arguments(script)
    if root is None:
        return
    exception = root.exception
    frames = exception.frames if exception is not None else ()
    lines = locations_of(tuple(frame for frame in frames if frame.user))
    raised = exception.type if exception is not None else root.text.partition(":")[0].strip()
    if raised in _UNREADABLE:
        # The line that its compiler refused: the last that it names without a function.
        output = script.finished.output.read_bytes()[-_TAIL_BYTES:]
        for file, number in _PLACE.findall(output)[-1:]:
            lines = [ModelLocation(file=file.decode("utf-8", "replace"), line=int(number))]
    elif exception is None or not _is_own(root, raised, frames):
        return  # a missing module, the machine, or torch is to blame
    place = f"{lines[0].file}:{lines[0].line}" if lines else "the program"
    short = f"{PurePath(lines[0].file).name}:{lines[0].line}, " if lines else ""
    before = "nothing was compiled, loaded or called before that"
    yield Suspect(
        category="script_error",
        guilty=component("script", place, lines),
        summary=f"Your script stopped before it called a package: {short}"
        f"{quoted(root.text, 200).rstrip('.')}. Fix that, then run diagnose again.",
        level=CausalLevel.SYMPTOM,
        evidence=(evidence_of(root, "script"), seen("capture", before)),
        fix=Fix(text="fix that line or its input", before=lines[0].code if lines else None),
    )


def _is_own(root: ErrorFact, raised: str, frames: Sequence[Frame]) -> bool:
    """Whether the program's own statement is to blame, also for a file that torch did not find."""
    if raised in _OF_FILES:
        return not any(_NOT_THE_PROGRAM.search(frame.file) for frame in frames)
    own = "script_error" in root.candidates and "environment" not in root.candidates
    return own and not any(_OF_TORCH.search(frame.file) for frame in frames)


def _refused_arguments(script: RunSeen) -> Iterator[Suspect]:
    """One suspect, where the program refused its own arguments, as `argparse` does."""
    output = script.finished.output.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")
    for found in list(_REFUSED.finditer(output))[-1:]:
        yield Suspect(
            category="script_error",
            guilty=component("script", found["program"]),
            summary=f"Your script stopped before it called a package: it refused its arguments, "
            f"{quoted(found['what'], 200).rstrip('.')}. Give them after --.",
            level=CausalLevel.SYMPTOM,
            evidence=(seen("read_log", quoted(found[0], 200), "script"),),
            fix=Fix(text="give the script the arguments that it asks for, after --"),
        )


# Signals of the instruction that was running. SIGABRT is not one: the C library's own checks of the heap end
# a process with it, at a place that says nothing of who damaged it.
_AT_THE_LINE = frozenset({"SIGSEGV", "SIGBUS", "SIGFPE"})
_NOT_THE_PROGRAM = re.compile(
    r"[/\\]torch[/\\](?:_inductor|_export|export|_dynamo|_functorch|_library|_ops\.py)|[/\\]triton[/\\]"
)
# Statements that may end a package, so that its own C++ code was running.
_RELEASES = re.compile(r"del\b|gc\.collect\(|.*=\s*None$|with\b")


def detect_crash_outside(case: DiagnosisState) -> Iterator[Suspect]:
    """The user's line that died while no compile, load, update or call was open; the last call is sound."""
    script, hooked = case.script_run, case.captured
    if script is None or case.capture is None or script.finished.signal not in _AT_THE_LINE:
        return
    phases: list[Phase] = [*hooked.compiles, *hooked.loads, *hooked.updates, *hooked.calls]
    is_open = any(phase.outcome == "unfinished" for phase in phases)
    if is_open or case.failure_of("plain") not in (None, "none"):
        return
    if any(error.family.id == "heap_corruption" for error in script.log.errors):
        return
    stack = next((thread for thread in script.log.threads if thread.current), None)
    lines = _lines(stack, case) if stack is not None else []
    files = [frame.file for frame in stack.frames] if stack is not None else []
    if not lines or any(_NOT_THE_PROGRAM.search(file) or file.startswith(WORKER) for file in files):
        return
    signal, place, calls = script.finished.signal, f"{lines[0].file}:{lines[0].line}", len(hooked.calls)
    before = f" after {counted(calls, 'call')} that came back" if calls else ""
    nothing = f"no compile, load, update or call was open{before}"
    facts = [seen("read_log", f"{signal} ended the program at {place}"), seen("capture", nothing)]
    late = " An earlier call that had written beyond its memory could show as this; nothing points to that."
    yield Suspect(
        category="script_error",
        guilty=component("script", place, lines),
        summary=f"The program died of {signal} at {place}, in code of its own: no compile, load or call of "
        f"AOTInductor was running.{late if calls else ''}",
        level=CausalLevel.SYMPTOM,
        evidence=(*facts, *_well_alone("the last call", case)),
        fix=Fix(
            text="see what memory that line reads or writes: what owns it (a mapping, a buffer, a file, a "
            "C library) has to stay open until then, or the tensor has to be a copy",
        ),
        harmful=case.failed,
        observed=not _RELEASES.match(lines[0].code),
    )


def _lines(stack: ThreadStack, case: DiagnosisState) -> list[ModelLocation]:
    """The user's lines, innermost first, with the code of the script, which the stack of a crash lacks."""
    text = script_text(case)
    script = case.workload.script.name if isinstance(case.workload, ScriptWorkload) else ""
    return [
        line_in_script(case, text, frame.line)
        if PurePath(frame.file).name == script and 0 < frame.line <= len(text.splitlines())
        else ModelLocation(file=frame.file, line=frame.line)
        for frame in reversed(stack.frames_of_user[-3:])
    ]


# GCC and Clang search the directories of these variables besides their own (GCC manual, "Environment
# Variables Affecting GCC"): one bad file in them breaks every compile after the variable was set.
_OF_LINKER: tuple[str, ...] = ("LIBRARY_PATH", "LD_LIBRARY_PATH")
_OF_COMPILER: tuple[str, ...] = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_SEARCHED = dict.fromkeys(("cpp_error", "cpp_undeclared", "cpp_headers"), _OF_COMPILER)
_SEARCHED["link_file"] = _OF_LINKER
_FIRST_LINES = 3  # an error here says that the file as a whole is no C++


def detect_searched_file(case: DiagnosisState) -> Iterator[Suspect]:
    """A library or header that the failed compile refused, from a directory that a variable brought in."""
    failed = [each for each in case.captured.compiles if each.outcome == "failed"]
    for source, root in case.own_roots if failed else ():
        file = root.fields.get("file", "")
        folders = PurePosixPath(posixpath.normpath(file)).parents
        places = (
            (variable, entry)
            for variable in _SEARCHED.get(root.family.id, ())
            for entry in filter(None, failed[-1].flags.get(variable, "").split(os.pathsep))
            if file and PurePosixPath(posixpath.normpath(entry)) in folders
        )
        variable, directory = next(places, ("", ""))
        if not variable:
            continue
        linked, line = root.family.id == "link_file", root.fields.get("line")
        detail = root.fields.get("detail", quoted(root.text, 200))
        who, what = ("linker", "library") if linked else ("compiler", "header")
        whole = linked or int(line or "0") <= _FIRST_LINES
        fact = f"{variable} had {directory} when the compile began"
        value = f"{detail}; found through {variable}"
        yield Suspect(
            category="toolchain",
            guilty=component("toolchain", file, failed[-1].stack[:2], value=value),
            summary=f"The {who} found {file} through {variable}, and cannot read it "
            f"{f'as a {what}' if whole else f'line {line}'}: {detail.rstrip('.')}.",
            level=CausalLevel.BUILD,
            evidence=(reported(root, source), seen("capture", fact)),
            fix=Fix(text=f"take {directory} out of {variable} for the compile, or put a real {what} there"),
            harmful=case.failed,
            observed=whole,
        )


# The functions and attributes of torch that change a numerical setting of the process (2.8-2.15).
_SETTING = {
    "float32_matmul_precision": re.compile(r"set_float32_matmul_precision|allow_tf32|fp32_precision"),
    "deterministic_algorithms": re.compile(r"use_deterministic_algorithms"),
}


def detect_settings(case: DiagnosisState) -> Iterator[Suspect]:
    """A numerical setting of the process in effect during the call, which is also tried without it.

    A torch operator that the package calls follows the current setting, not the one at compile time.
    """
    call = case.suspect_call
    steps = list(case.call.steps) if case.call is not None else []
    if call is None or not call.settings or not steps or "settings" not in steps[-1]:
        return
    name, value = next(iter(call.settings.items()))
    lines = lines_in_script(case, _SETTING[name])
    usual = {key: each for key, each in steps[-1].items() if key != "settings"}
    without = Intervention(
        key=f"call:settings:{name}",
        kind=Kind.CALL,
        what=f"the call with {name} as in a new process",
        options=Options(steps=(*steps[:-1], cast(Step, usual))),
        before_code=lines[0].code if lines else "",
        after_code=f"# without it: {name} as in a new process",
    )
    trial = case.trials.get(without.key)
    proves = trial is not None and trial.proves
    yield Suspect(
        category="nan_or_inf" if case.outputs_nonfinite else "wrong_output",
        guilty=component("environment", name, [*lines, *case.call_locations[:1]], value=str(value)),
        summary=f"The program had set {name} to {value} for the whole process when it made the call: the "
        "operators that the package calls follow it.",
        level=CausalLevel.CALL if proves else CausalLevel.SYMPTOM,
        evidence=(seen("capture", f"{name} was {value} at the call"),),
        fix=Fix(
            text=f"leave {name} as it is in a new process around the call",
            before=lines[0].code if lines else None,
        ),
        intervention=without,
        observed=False,
        weak=not proves,
    )
