"""The machine and the limits of the process: architecture, open files, time, stack, and child processes.

A program that ended with an exception of its own before anything of AOTInductor was asked for.

The hook records every compile, load and call that Python makes. Where it recorded none, no package can have
computed what the program's check refused: the statement that raised is at fault, or what it was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.causes.log_text import LEVELS, evidence_of, locations_of
from mcp_server.diagnosis.causes.log_words import PARTIES
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState, RunSeen
from mcp_server.diagnosis.suspect import WRONG_ARCHITECTURE, CausalLevel, Suspect
from mcp_server.logs.captured import CapturedEnd, CapturedError, CapturedLoad, Phase
from mcp_server.logs.facts import ErrorFact
from mcp_server.logs.traceback import is_user_file
from mcp_server.model import Category, Component, ComponentKind, Evidence, Fix, ModelLocation
from mcp_server.tools.capture import Capture
from mcp_server.tools.machine import Problem
from mcp_server.tools.requests import failing_phase

# What the load asks for: `device_index` is an argument of the call that loads.
KINDS: dict[Category, ComponentKind] = {**PARTIES, "device_mismatch": "call"}


def detect_machine(case: DiagnosisState) -> Iterator[Suspect]:
    """Certain problems of package and machine; defects of the file are another detector's."""
    defects = {defect.what for defect in case.package.defects} if case.package is not None else set()
    for problem in case.problems:
        if problem.certain and problem.what not in defects:
            yield _machine_suspect(problem, case)


def _machine_suspect(problem: Problem, case: DiagnosisState) -> Suspect:
    refused = any(
        facts.root is not None and problem.category in facts.root.candidates for _, facts in case.logs
    )
    return Suspect(
        category=problem.category,
        guilty=_party(problem, case),
        summary=f"{problem.what[:1].upper()}{problem.what[1:]}.",
        level=LEVELS[problem.category],
        evidence=(Evidence(step="check_devices", fact=problem.what),),
        fix=problem.fix,
        refusal=WRONG_ARCHITECTURE if refused and problem.category == "arch_mismatch" else "",
        harmful=case.failed,
    )


def _party(problem: Problem, case: DiagnosisState) -> Component:
    kind = KINDS[problem.category]
    name = case.package.path.name if kind == "package" and case.package is not None else problem.what[:120]
    value = problem.what[:200] if name != problem.what else None
    return Component(kind=kind, name=name, value=value, model_locations=case.failing_locations)


@dataclass(frozen=True)
class _Reached:
    """A limit that was reached: its name, value, how that is known, and whether a second source says so."""

    name: str
    value: int
    fact: str
    fix: str
    second: str = ""


def detect_process_limits(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for the phase that failed; that it goes well in a process of its own confirms it."""
    seen = case.capture
    phase = failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None
    reached = _reached(phase, phase.error, case) if phase is not None and phase.error is not None else None
    if phase is not None and reached is not None:
        yield _limit_suspect(phase, reached, case)


def _reached(phase: Phase, error: CapturedError, case: DiagnosisState) -> _Reached | None:
    if error.no_files is not None:
        fact = f"when it failed, the process could open no more files: its limit is {error.no_files}"
        fix = "close files that are not needed any more, or raise the limit on open files (ulimit -n)"
        return _Reached("open files", error.no_files, fact, fix)
    if isinstance(phase, CapturedLoad) and "extract" in error.text:
        return _unpacked(phase, error.file_bytes, case)
    return None


def _unpacked(load: CapturedLoad, limit: int | None, case: DiagnosisState) -> _Reached | None:
    """A member of the package that the loader may not unpack."""
    members = case.package.members if case.package is not None else ()
    largest = max((member.size for member in members), default=load.largest)
    if limit is None or largest is None or largest <= limit:
        return None
    fact = f"no file of the process may be larger than {limit} bytes, and one in the package has {largest}"
    fix = "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE) before the load"
    return _Reached("file size", limit, fact, fix, "package file")


def _limit_suspect(phase: Phase, reached: _Reached, case: DiagnosisState) -> Suspect:
    plain = case.runs.get("plain")
    alone = plain is not None and plain.failure == "none"
    party = Component(
        kind="environment",
        name=reached.name,
        value=f"limit {reached.value}",
        model_locations=phase.stack,
    )
    return Suspect(
        category="environment",
        guilty=party,
        summary=f"The process had reached its limit on {reached.name}, {reached.value}; the error is due to "
        "that, whatever its text says.",
        level=CausalLevel.BUILD,
        evidence=(
            Evidence(step="capture", fact=reached.fact),
            *((Evidence(step="run", fact=_ALONE),) if alone else ()),
        ),
        fix=Fix(action=reached.fix),
        harmful=case.failed,
    )


_ALONE = "the same, made again in a process of its own, went well"


FILE_SIZE = "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE), or write less"
TIME = "raise the limit on processor time (ulimit -t, RLIMIT_CPU), or find out what takes so long"


@dataclass(frozen=True)
class _Limit:
    name: str
    variable: str
    fix: str


LIMITS = {
    "SIGXCPU": _Limit("processor time", "RLIMIT_CPU", TIME),
    "SIGXFSZ": _Limit("file size", "RLIMIT_FSIZE", FILE_SIZE),
}


def detect_limit_signals(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the program's own run was ended by such a signal."""
    run = case.runs.get("script") or case.runs.get("command")
    if run is None:
        return
    phase = _inside(case)
    limit = LIMITS.get(run.finished.signal or "")
    if limit is not None:
        yield _signal_suspect(limit, run, phase, case)
    elif run.finished.signal == "SIGKILL" and phase is not None and _used_up(phase, run):
        yield _signal_suspect(LIMITS["SIGXCPU"], run, phase, case)


def _inside(case: DiagnosisState) -> Phase | None:
    """What the program was at, as far as the hook saw it."""
    seen = case.capture
    phases: list[Phase] = [*seen.compiles, *seen.loads, *seen.calls] if seen is not None else []
    begun = [phase for phase in phases if phase.outcome == "unfinished"]
    return max(begun or phases, key=lambda phase: phase.t, default=None)


def _used_up(phase: Phase, run: RunSeen) -> bool:
    """Whether it ran for so long that a hard limit, which kills, may be used up: of one thread at least."""
    return phase.processor_s is not None and run.finished.wall_s >= phase.processor_s


def _signal_suspect(limit: _Limit, run: RunSeen, phase: Phase | None, case: DiagnosisState) -> Suspect:
    seconds = phase.processor_s if phase is not None and limit is LIMITS["SIGXCPU"] else None
    plain = case.runs.get("plain")
    alone = plain is not None and plain.failure == "none"
    sure = run.finished.signal in LIMITS
    value = f"limit {seconds} s" if seconds is not None else limit.variable
    where = phase.stack[:2] if phase is not None else []
    signal = run.finished.signal
    facts = [Evidence(step="run", fact=f"{signal} ended the program after {run.finished.wall_s:.1f} s")]
    if seconds is not None:
        told = f"the hook saw a limit of {seconds} s on the processor time of the process ({limit.variable})"
        facts.append(Evidence(step="capture", fact=told))
    if alone:
        facts.append(Evidence(step="run", fact="the call, made again in a process of its own, went well"))
    return Suspect(
        category="environment",
        guilty=Component(kind="environment", name=limit.name, value=value, model_locations=where),
        summary=f"The process was ended by {signal}: it had reached its limit on {limit.name} "
        f"({limit.variable}{f', {seconds} s' if seconds is not None else ''}).",
        level=CausalLevel.BUILD,
        evidence=tuple(facts),
        fix=Fix(action=limit.fix),
        observed=sure,
    )


LARGE = 1 << 30  # bytes; memory is taken only as far as the stack grows
SIGNALS = frozenset({"SIGSEGV", "SIGBUS"})
KEY = "large-stack"


def detect_small_stack(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for a call that dies again on a stack smaller than usual, to be tried with a large one.

    Not on a usual one: a large one may let a bad pointer pass by chance, and nothing else speaks for it.
    """
    plain, call = case.runs.get("plain"), case.call
    if plain is None or plain.finished.signal not in SIGNALS or call is None or call.operation != "replay":
        return
    size = next((step["stack"] for step in call.request.get("steps", ())[-1:] if "stack" in step), None)
    if size is not None:
        yield _stack_suspect(plain.finished.signal or "", size, case)


def _stack_suspect(signal: str, size: int, case: DiagnosisState) -> Suspect:
    died = case.capture.failing if case.capture is not None else None
    trial = case.trials.get(KEY)
    passed = trial is not None and trial.proves
    fact = f"the thread of the call had a stack of {size} bytes"
    return Suspect(
        category="environment",
        guilty=Component(
            kind="environment",
            name="stack of the calling thread",
            value=f"{size} bytes",
            model_locations=died.stack[:2] if died is not None else [],
        ),
        summary=f"The call died of {signal} because it needs more stack than its thread has, "
        f"{size} bytes: no pointer is bad.",
        level=CausalLevel.CALL if passed else CausalLevel.SYMPTOM,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action="give the thread more stack (threading.stack_size, ulimit -s), or make what recurses "
            "there, or keeps large arrays, use less"
        ),
        intervention=Intervention(
            KEY, Kind.CALL, f"the call on a stack of {LARGE} bytes", options=Options(stack_bytes=LARGE)
        ),
        observed=False,
    )


# A check of the child's own may have found what a package computed wrongly.
_CHECK = re.compile(r"(?:raise|assert)\b|self\.fail\(|sys\.exit\(")


def detect_child_end(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the calls of that process went well and the program's own failure came later."""
    seen, script = case.capture, case.runs.get("script")
    if seen is None or script is None or script.failure != "exception" or _raised_itself(script):
        return
    found = [(end, _line(end)) for end in _ends(seen, told=script.family == "child_failed")]
    for end, line in [(end, line) for end, line in found if line is not None][-1:]:
        yield _child_end_suspect(end, line)


def _ends(seen: Capture, *, told: bool) -> list[CapturedEnd]:
    """Ends of children, or with `told` of any process, whose phases went well and were the program's last.

    A program that went on to other phases got over the end of that child.
    """
    pids = {process.pid for process in seen.processes}
    children = {process.pid for process in seen.processes if told or process.parent in pids}
    phases = [*seen.compiles, *seen.loads, *seen.updates, *seen.calls, *seen.assertions]
    failed = {phase.pid for phase in phases if phase.outcome != "ok"}
    last = max((phase.t for phase in phases), default=0.0)
    return [end for end in seen.ends if end.own and end.t > last and end.pid in children - failed]


def _raised_itself(script: RunSeen) -> bool:
    """Whether the traceback of another error than a check or the report of a child is there."""
    root = script.root
    return root is not None and root.exception is not None and "own_report" not in root.family.tags


def _line(end: CapturedEnd) -> ModelLocation | None:
    """The program's own line that raised, if it was no check."""
    own = next((line for line in end.stack if is_user_file(line.file)), None)
    return own if own is not None and not _CHECK.match(own.code) else None


def _child_end_suspect(end: CapturedEnd, line: ModelLocation) -> Suspect:
    raised = (
        f"{end.error.type.removeprefix('builtins.')}: {end.error.text}"
        if end.error is not None
        else "an error"
    )
    place = f"{line.file}:{line.line}"
    fact = f"process {end.pid}, which the program started, ended with {raised[:200]}, at {place}"
    return Suspect(
        category="script_error",
        guilty=Component(kind="script", name=place, model_locations=end.stack[:3]),
        summary=f"A process that the program started ended with {raised[:200]}, at {place}, after its calls "
        "of the package had returned; that is why the program failed.",
        level=CausalLevel.SYMPTOM,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(action="fix the statement that raised", before=line.code or None),
    )


# Errors of Python's compiler. For the program's own file they are printed without a traceback.
_UNREADABLE = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PLACE = re.compile(rb'^\s*File "([^"\n]+)", line (\d+)\s*$', re.M)
_OF_TORCH = re.compile(r"[/\\](?:torch|triton)[/\\]")
_TAIL_BYTES = 8192


def detect_outside(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where the program's own Python raised and no process reached AOTInductor."""
    script = case.runs.get("script")
    if script is None or script.root is None or script.failure != "exception":
        return
    if not case.never_reached or (case.capture is not None and case.capture.isolated):
        return
    root = script.root
    if _raised(root) in _UNREADABLE:
        yield _hypothesis(root, _place_of(script) or _locations(root), "Python cannot read the program")
    elif _is_own(root):
        yield _hypothesis(root, _locations(root), "The program ended with an exception of its own")


def _raised(root: ErrorFact) -> str:
    return root.exception.type if root.exception is not None else root.text.partition(":")[0].strip()


def _is_own(root: ErrorFact) -> bool:
    """Whether a statement raised, outside of torch, for which no missing module or machine is to blame."""
    if root.exception is None or "script_error" not in root.candidates or "environment" in root.candidates:
        return False
    return not any(_OF_TORCH.search(frame.file) for frame in root.exception.frames)


def _locations(root: ErrorFact) -> list[ModelLocation]:
    return locations_of(tuple(f for f in root.exception.frames if f.user)) if root.exception else []


def _place_of(script: RunSeen) -> list[ModelLocation]:
    """The line that Python's compiler refused: the last that it names without a function."""
    places = _PLACE.findall(script.finished.output.read_bytes()[-_TAIL_BYTES:])
    return [ModelLocation(file=file.decode("utf-8", "replace"), line=int(line)) for file, line in places[-1:]]


def _hypothesis(root: ErrorFact, locations: list[ModelLocation], what: str) -> Suspect:
    place = f"{locations[0].file}:{locations[0].line}" if locations else "the program"
    before = "nothing was compiled, loaded or called before that"
    return Suspect(
        category="script_error",
        guilty=Component(kind="script", name=place, model_locations=locations),
        summary=f"{what}, at {place}: {root.text[:200].rstrip('.')}; AOTInductor was not reached.",
        level=CausalLevel.SYMPTOM,
        evidence=(evidence_of(root, "script"), Evidence(step="capture", fact=before)),
        fix=Fix(action="fix that line or its input", before=locations[0].code if locations else None),
    )
