"""The machine, the limits of the process, and what ends a program outside AOTInductor.

The hook records every compile, load and call that Python makes. Where it recorded none, no package can have
computed what the program's check refused: the statement that raised is at fault, or what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from mcp_server.diagnosis.causes.common import component, seen
from mcp_server.diagnosis.causes.log_text import BY_CATEGORY, evidence_of, locations_of
from mcp_server.diagnosis.interventions.call import large_stack
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import WRONG_ARCHITECTURE, CausalLevel, Suspect
from mcp_server.logs.captured import CapturedEnd, CapturedLoad, Phase
from mcp_server.logs.traceback import is_user_file
from mcp_server.model import Component, Fix, ModelLocation
from mcp_server.tools.capture import Capture
from mcp_server.tools.requests import failing_phase


def detect_machine(case: DiagnosisState) -> Iterator[Suspect]:
    """Certain problems of package and machine; defects of the file are another detector's."""
    defects = {defect.what for defect in case.package.defects} if case.package is not None else set()
    texts = [facts.root.candidates for _, facts in case.logs if facts.root is not None]
    for problem in case.problems:
        if not problem.certain or problem.what in defects:
            continue
        kind, level = BY_CATEGORY[problem.category]
        if problem.category == "device_mismatch":
            kind = "call"  # `device_index` is an argument of the call that loads
        name = problem.what[:120]
        if kind == "package" and case.package is not None:
            name = case.package.path.name
        refused = any(problem.category in candidates for candidates in texts)
        yield Suspect(
            category=problem.category,
            guilty=component(
                kind, name, case.failing_locations, value=problem.what[:200] if name != problem.what else None
            ),
            summary=f"{problem.what[:1].upper()}{problem.what[1:]}.",
            level=level,
            evidence=(seen("check_devices", problem.what),),
            fix=problem.fix,
            refusal=WRONG_ARCHITECTURE if refused and problem.category == "arch_mismatch" else "",
            harmful=case.failed,
        )


_Reached = partial(Suspect, category="environment", level=CausalLevel.BUILD)


def detect_process_limits(case: DiagnosisState) -> Iterator[Suspect]:
    """A limit that was reached in the phase that failed."""
    capture = case.capture
    phase = failing_phase(capture, ended_well=capture.finished.ok) if capture is not None else None
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
        fact = (
            f"no file of the process may be larger than {limit} bytes, and one in the package has {largest}"
        )
        fix = "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE) before the load"
    else:
        return
    facts = [seen("capture", fact)]
    if case.failure_of("plain") == "none":
        facts.append(seen("run", "the same, made again in a process of its own, went well"))
    yield _Reached(
        guilty=Component(kind="environment", name=name, value=f"limit {limit}", model_locations=phase.stack),
        summary=f"The process had reached its limit on {name}, {limit}; the error is due to that, whatever "
        "its text says.",
        evidence=tuple(facts),
        fix=Fix(action=fix),
        harmful=case.failed,
    )


# Signals of a limit: its name, its variable, and what to do.
LIMITS = {
    "SIGXCPU": (
        "processor time",
        "RLIMIT_CPU",
        "raise the limit on processor time (ulimit -t, RLIMIT_CPU), or find out what takes so long",
    ),
    "SIGXFSZ": (
        "file size",
        "RLIMIT_FSIZE",
        "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE), or write less",
    ),
}


def detect_limit_signals(case: DiagnosisState) -> Iterator[Suspect]:
    """A limit whose signal ended the program's own run.

    SIGKILL counts if the run took at least as long as the hard limit on processor time allows one thread.
    """
    run = case.runs.get("script") or case.runs.get("command")
    if run is None:
        return
    signal, ran = run.finished.signal, run.finished.wall_s
    capture = case.capture
    phases: list[Phase] = [*capture.compiles, *capture.loads, *capture.calls] if capture is not None else []
    begun = [phase for phase in phases if phase.outcome == "unfinished"]
    phase = max(begun or phases, key=lambda phase: phase.t, default=None)
    seconds = phase.processor_s if phase is not None else None
    kind = signal
    if signal == "SIGKILL" and seconds is not None and ran >= seconds:
        kind = "SIGXCPU"
    if kind is None or kind not in LIMITS:
        return
    name, variable, fix = LIMITS[kind]
    seconds = seconds if kind == "SIGXCPU" else None
    facts = [seen("run", f"{signal} ended the program after {ran:.1f} s")]
    if seconds is not None:
        saw = f"the hook saw a limit of {seconds} s on the processor time of the process ({variable})"
        facts.append(seen("capture", saw))
    if case.failure_of("plain") == "none":
        facts.append(seen("run", "the call, made again in a process of its own, went well"))
    yield _Reached(
        guilty=component(
            "environment",
            name,
            phase.stack[:2] if phase is not None else [],
            value=f"limit {seconds} s" if seconds is not None else variable,
        ),
        summary=f"The process was ended by {signal}: it had reached its limit on {name} "
        f"({variable}{f', {seconds} s' if seconds is not None else ''}).",
        evidence=tuple(facts),
        fix=Fix(action=fix),
        observed=signal in LIMITS,
    )


def detect_small_stack(case: DiagnosisState) -> Iterator[Suspect]:
    """A call that dies again on a stack smaller than usual; a large stack is tried.

    Not for a usual stack: a large one may let a bad pointer pass by chance, and nothing else would be
    evidence.
    """
    plain, call = case.runs.get("plain"), case.call
    signal = plain.finished.signal if plain is not None else None
    if signal not in ("SIGSEGV", "SIGBUS") or call is None or call.operation != "replay":
        return
    size = next((step["stack"] for step in call.steps[-1:] if "stack" in step), None)
    if size is None:
        return
    died = case.capture.failing if case.capture is not None else None
    test = large_stack()
    trial = case.trials.get(test.key)
    yield Suspect(
        category="environment",
        guilty=component(
            "environment",
            "stack of the calling thread",
            died.stack[:2] if died is not None else [],
            value=f"{size} bytes",
        ),
        summary=f"The call died of {signal} because it needs more stack than its thread has, "
        f"{size} bytes: no pointer is bad.",
        level=CausalLevel.CALL if trial is not None and trial.proves else CausalLevel.SYMPTOM,
        evidence=(seen("capture", f"the thread of the call had a stack of {size} bytes"),),
        fix=Fix(
            action="give the thread more stack (threading.stack_size, ulimit -s), or make what recurses "
            "there, or keeps large arrays, use less"
        ),
        intervention=test,
        observed=False,
    )


# A check of the child's own may have found what a package computed wrongly.
_CHECK = re.compile(r"(?:raise|assert)\b|self\.fail\(|sys\.exit\(")


def detect_child_end(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the calls of that process went well and the program's own failure came later."""
    script = case.runs.get("script")
    if case.capture is None or script is None or script.failure != "exception":
        return
    root = script.root
    if root is not None and root.exception is not None and "own_report" not in root.family.tags:
        return  # the traceback is of another error than a check or the report of a child
    for end in reversed(_ends(case.capture, reported=script.family == "child_failed")):
        line = next((line for line in end.stack if is_user_file(line.file)), None)
        if line is None or _CHECK.match(line.code):
            continue
        raised = "an error"
        if end.error is not None:
            raised = f"{end.error.type.removeprefix('builtins.')}: {end.error.text}"[:200]
        place = f"{line.file}:{line.line}"
        fact = f"process {end.pid}, which the program started, ended with {raised}, at {place}"
        yield Suspect(
            category="script_error",
            guilty=Component(kind="script", name=place, model_locations=end.stack[:3]),
            summary=f"A process that the program started ended with {raised}, at {place}, after its calls "
            "of the package had returned; that is why the program failed.",
            level=CausalLevel.SYMPTOM,
            evidence=(seen("capture", fact),),
            fix=Fix(action="fix the statement that raised", before=line.code or None),
        )
        return


def _ends(capture: Capture, *, reported: bool) -> list[CapturedEnd]:
    """Ends of children whose phases all went well and were the last ones; with `reported`, of any process.

    If the program went on to other phases, the end of that child did not matter to it.
    """
    pids = {process.pid for process in capture.processes}
    children = {process.pid for process in capture.processes if reported or process.parent in pids}
    phases = [*capture.compiles, *capture.loads, *capture.updates, *capture.calls, *capture.assertions]
    failed = {phase.pid for phase in phases if phase.outcome != "ok"}
    last = max((phase.t for phase in phases), default=0.0)
    return [end for end in capture.ends if end.own and end.t > last and end.pid in children - failed]


# Errors of Python's compiler. For the program's own file they are printed without a traceback.
_UNREADABLE = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PLACE = re.compile(rb'^\s*File "([^"\n]+)", line (\d+)\s*$', re.M)
_OF_TORCH = re.compile(r"[/\\](?:torch|triton)[/\\]")
_TAIL_BYTES = 8192


def detect_outside(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the program's own Python raised and no process reached AOTInductor."""
    script = case.runs.get("script")
    root = script.root if script is not None else None
    if script is None or root is None or script.failure != "exception":
        return
    if not case.never_reached or (case.capture is not None and case.capture.isolated):
        return
    exception = root.exception
    frames = exception.frames if exception is not None else ()
    lines = locations_of(tuple(frame for frame in frames if frame.user))
    raised = exception.type if exception is not None else root.text.partition(":")[0].strip()
    if raised in _UNREADABLE:
        what = "Python cannot read the program"
        # The line that its compiler refused: the last that it names without a function.
        output = script.finished.output.read_bytes()[-_TAIL_BYTES:]
        for file, number in _PLACE.findall(output)[-1:]:
            lines = [ModelLocation(file=file.decode("utf-8", "replace"), line=int(number))]
    elif (
        exception is not None
        and "script_error" in root.candidates
        and "environment" not in root.candidates
        and not any(_OF_TORCH.search(frame.file) for frame in frames)
    ):
        what = "The program ended with an exception of its own"
    else:
        return  # a missing module, the machine, or torch is to blame
    place = f"{lines[0].file}:{lines[0].line}" if lines else "the program"
    before = "nothing was compiled, loaded or called before that"
    yield Suspect(
        category="script_error",
        guilty=Component(kind="script", name=place, model_locations=lines),
        summary=f"{what}, at {place}: {root.text[:200].rstrip('.')}; AOTInductor was not reached.",
        level=CausalLevel.SYMPTOM,
        evidence=(evidence_of(root, "script"), seen("capture", before)),
        fix=Fix(action="fix that line or its input", before=lines[0].code if lines else None),
    )
