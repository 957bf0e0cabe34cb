"""The machine, the limits and settings of the process, and what ends a program by itself.

The hook records every compile, load and call that Python makes. Where it recorded none, no package can have
computed what the program's check refused: the statement that raised is at fault, or what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from mcp_server.diagnosis.causes.log_text import BY_CATEGORY, WORKER, evidence_of, locations_of
from mcp_server.diagnosis.components import (
    component,
    line_in_script,
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


LARGE_STACK = 1 << 30  # bytes; memory is taken only as far as the stack grows
ON_LARGE_STACK = Intervention(
    "call:stack",
    Kind.CALL,
    f"the call on a stack of {LARGE_STACK} bytes",
    options=Options(stack_bytes=LARGE_STACK),
)


@dataclass(frozen=True)
class Limit:
    """A limit of the process.

    The hook tells of it under the name `seen_as`: of an error, a phase, or the call that is made again.
    `signals` end who reaches it. `change` lifts it for the call.
    """

    name: str
    variable: str
    signals: tuple[str, ...]
    seen_as: str
    fix: str
    unit: str = ""
    change: Intervention | None = None


LIMITS = (
    Limit("open files", "RLIMIT_NOFILE", (), "no_files", "close files that are not needed, or ulimit -n"),
    Limit(
        "file size",
        "RLIMIT_FSIZE",
        ("SIGXFSZ",),
        "file_bytes",
        "raise it (ulimit -f), or write less",
        " bytes",
    ),
    Limit(
        *("processor time", "RLIMIT_CPU", ("SIGXCPU",), "processor_s"),
        fix="raise it (ulimit -t), or find out what takes so long",
        unit=" s",
    ),
    # On a usual stack a crash would be no evidence: a large one may let a bad pointer pass by chance.
    Limit(
        *("stack of the calling thread", "RLIMIT_STACK", ("SIGSEGV", "SIGBUS"), "stack"),
        fix="give the thread more stack (threading.stack_size, ulimit -s), or recurse less",
        unit=" bytes",
        change=ON_LARGE_STACK,
    ),
)


def detect_limit(case: DiagnosisState) -> Iterator[Suspect]:
    """Each limit that was reached by the program, or by the call that was made again."""
    for limit in LIMITS:
        run = case.plain_run if limit.change is not None else case.script_run or case.runs.get("command")
        signal, phase = run.finished.signal if run is not None else None, _last_phase(case)
        told = _told(limit, phase, case)
        if not _reached(limit, told, run, phase, case):
            continue
        value = f"limit {told}{limit.unit}" if told is not None else limit.variable
        trial = case.trials.get(limit.change.key) if limit.change is not None else None
        level = CausalLevel.CALL if limit.change is not None else CausalLevel.BUILD
        unproven = limit.change is not None and (trial is None or not trial.proves)
        facts = [seen("run", f"{signal} ended the {run.label} run")] if run is not None and signal else []
        facts += (
            [seen("capture", f"the limit on the {limit.name} was {told}{limit.unit}")]
            if told is not None
            else []
        )
        yield Suspect(
            category="environment",
            guilty=component("environment", limit.name, phase.stack[:2] if phase else [], value=value),
            summary=f"The process had reached its limit on the {limit.name} ({value}): the failure is due to "
            "that, whatever its text says.",
            level=CausalLevel.SYMPTOM if unproven else level,
            evidence=(*facts, *_well_alone("the same", case)),
            fix=Fix(text=limit.fix),
            intervention=limit.change,
            harmful=case.failed,
            observed=limit.change is None and signal != "SIGKILL",
        )


def _told(limit: Limit, phase: Phase | None, case: DiagnosisState) -> int | None:
    """Its value, as far as the hook saw it."""
    step = case.call.steps[-1:] if case.call is not None else ()
    values = [each.get(limit.seen_as) for each in step]
    values += [getattr(each, limit.seen_as, None) for each in (phase and phase.error, phase)]
    return next((int(value) for value in values if isinstance(value, int)), None)


def _reached(
    limit: Limit, told: int | None, run: RunSeen | None, phase: Phase | None, case: DiagnosisState
) -> bool:
    """Whether its signal, or what it stopped, shows that it was reached."""
    if run is not None and run.finished.signal in limit.signals:
        return limit.change is None or told is not None
    if told is None or limit.change is not None:
        return False
    if limit.seen_as == "processor_s":  # the hard limit kills
        return run is not None and run.finished.signal == "SIGKILL" and run.finished.wall_s >= told
    if limit.seen_as == "file_bytes":
        members = case.package.members if case.package is not None else ()
        load = phase if isinstance(phase, CapturedLoad) else None
        largest = max((member.size for member in members), default=load.largest if load else None)
        extracts = load is not None and load.error is not None and "extract" in load.error.text
        return extracts and largest is not None and largest > told
    return True


def _last_phase(case: DiagnosisState) -> Phase | None:
    """What failed, else what had begun last, of what did not come back if anything did not."""
    hooked, failed = case.captured, case.failing_phase
    if failed is not None and failed.error is not None:
        return failed
    phases: list[Phase] = [*hooked.compiles, *hooked.loads, *hooked.calls]
    begun = [phase for phase in phases if phase.outcome == "unfinished"]
    return max(begun or phases, key=lambda phase: phase.t, default=None)


def _well_alone(what: str, case: DiagnosisState) -> Iterator[Evidence]:
    """That the call in a process of its own does not fail."""
    if case.failure_of("plain") == "none":
        yield seen("run", f"{what}, made again in a process of its own, went well")


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
