"""Faults of the machine, the package file, limits of the process, and programs that fail without a package.

The hook records every compile, load and call that Python makes. If it recorded none, no package can have
computed what the program's check rejected: the fault is in the statement that raised, or in its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath

from mcp_server.diagnosis.causes.log_text import BY_CATEGORY, evidence_of, locations_of
from mcp_server.diagnosis.components import component, package_name, seen
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.program_seen import RunSeen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import BY_SLUG, WRONG_ARCHITECTURE, CausalLevel, Suspect
from mcp_server.logs.facts import ErrorFact, Frame
from mcp_server.model import Category, Evidence, Fix, ModelLocation
from mcp_server.plurals import capitalized, quoted
from mcp_server.recorder.remains import OF_MEMORY, Death
from mcp_server.tools.machine import defect_problem


def detect_machine(case: DiagnosisState) -> Iterator[Suspect]:
    """The certain problems of package and machine, except defects of the file (`detect_loading`)."""
    defects = {defect.what for defect in case.package.defects} if case.package is not None else set()
    for problem in case.problems:
        if not problem.certain or problem.what in defects:
            continue
        kind, level = BY_CATEGORY[problem.category]
        if problem.category == "device_mismatch":
            kind = "call"  # the loading call has the argument `device_index`
        name = problem.what[:120]
        if kind == "package" and case.package is not None:
            name = case.package.path.name
        refused = next((root for _, root in case.roots if problem.category in root.candidates), None)
        words = (seen("run", f"the system says: {quoted(refused.text, 300)}"),) if refused is not None else ()
        value = problem.what[:200] if name != problem.what else None
        yield Suspect(
            category=problem.category,
            guilty=component(kind, name, case.failing_locations, value=value),
            summary=f"{capitalized(problem.what)}.",
            level=level,
            evidence=(seen("check_devices", problem.what), *words),
            fix=problem.fix,
            refusal=WRONG_ARCHITECTURE if words and problem.category == "arch_mismatch" else "",
            harmful=case.failed,
        )


LARGE_STACK = 1 << 30  # bytes; the stack takes memory only as it grows
ON_LARGE_STACK = Intervention(
    "call:stack",
    Kind.CALL,
    f"the call on a stack of {LARGE_STACK} bytes",
    options=Options(stack_bytes=LARGE_STACK),
)


@dataclass(frozen=True)
class Limit:
    """A limit of the process. A process that reaches it dies with one of the `signals`, or gets an error.

    The limit is in the field `told` of an error with the text `text`, or of the step that repeats the call.
    `change` lifts it for the call.
    """

    name: str
    variable: str
    fix: str
    signals: tuple[str, ...] = ()
    told: str = ""
    text: str = ""
    change: Intervention | None = None


LIMITS = (
    Limit("open files", "RLIMIT_NOFILE", "close files that are not needed, or ulimit -n", told="no_files"),
    Limit(
        *("file size", "RLIMIT_FSIZE", "raise the limit (ulimit -f), or write less"),
        signals=("SIGXFSZ",),
        told="file_bytes",
        text="extract",
    ),
    Limit(
        *("processor time", "RLIMIT_CPU", "raise the limit (ulimit -t), or find out what takes so long"),
        signals=("SIGXCPU",),
    ),
    # Replayed only with a stack below `USUAL_STACK`: on a larger one, a bad pointer may pass by chance.
    Limit(
        *("stack of the calling thread", "RLIMIT_STACK"),
        fix="give the thread more stack (threading.stack_size, ulimit -s), or recurse less",
        signals=("SIGSEGV", "SIGBUS"),
        told="stack",
        change=ON_LARGE_STACK,
    ),
)


def detect_limit(case: DiagnosisState) -> Iterator[Suspect]:
    """Each limit that the program or the repeated call reached."""
    phase, steps = case.failing_phase, case.call.steps[-1:] if case.call is not None else ()
    error = phase.error if phase is not None else None
    for limit in LIMITS:
        of_call = limit.change is not None
        run = case.plain_run if of_call else case.script_run or case.runs.get("command")
        signal = run.finished.signal if run is not None else None
        values = [step.get(limit.told) for step in steps] if of_call else [getattr(error, limit.told, None)]
        size = next((value for value in values if isinstance(value, int)), None)
        by_error = not of_call and error is not None and size is not None and limit.text in error.text
        if not by_error and (signal not in limit.signals or (of_call and size is None)):
            continue
        value = f"limit {size}" if size is not None else limit.variable
        trial = case.trials.get(limit.change.key) if limit.change is not None else None
        unproven = of_call and (trial is None or not trial.proves)
        facts = [seen("run", f"{signal} ended the {run.label} run")] if run is not None and signal else []
        facts += [seen("capture", f"the {limit.name} had a {value}")] if size is not None else []
        yield Suspect(
            category="environment",
            guilty=component("environment", limit.name, phase.stack[:2] if phase else [], value=value),
            summary=f"The process had reached its limit on the {limit.name} ({value}). This limit caused the "
            "failure, whatever the error text says.",
            level=CausalLevel.SYMPTOM if unproven else CausalLevel.CALL if of_call else CausalLevel.BUILD,
            evidence=tuple(facts),
            fix=Fix(text=limit.fix),
            intervention=limit.change,
            harmful=case.failed,
            observed=not of_call,
        )


# Errors of Python's compiler. For the program's own file they are printed without a traceback.
_UNREADABLE = frozenset({"SyntaxError", "IndentationError", "TabError"})
_PLACE = re.compile(r'^\s*File "([^"\n]+)", line (\d+)\s*$', re.M)
_OF_FILES = frozenset({"FileNotFoundError", "IsADirectoryError", "NotADirectoryError"})
_OF_TORCH = re.compile(r"[/\\](?:torch|triton)[/\\]")
_TAIL_BYTES = 8192
_NOT_THE_PROGRAM = re.compile(
    r"[/\\]torch[/\\](?:_inductor|_export|export|_dynamo|_functorch|_library|_ops\.py)|[/\\]triton[/\\]"
)


def detect_outside(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect a line of the program, if its own Python raised and no process reached AOTInductor."""
    script = case.script_run
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
        # Take the line that Python's compiler rejected: the last one named without a function.
        for file, number in _PLACE.findall(_tail(script))[-1:]:
            lines = [ModelLocation(file=file, line=int(number))]
    elif exception is None or not _is_own(root, raised, frames):
        return  # a missing module, the machine, or torch is to blame
    place = f"{lines[0].file}:{lines[0].line}" if lines else "the program"
    short = f"{PurePath(lines[0].file).name}:{lines[0].line}" if lines else ""
    stopped = f"stopped at {short}" if short else "stopped"
    before = "no package was compiled, loaded or called before this line"
    yield Suspect(
        category="script_error",
        guilty=component("script", place, lines),
        summary=f"Your script {stopped}: {quoted(root.text, 200).rstrip('.')}. {capitalized(before)}.",
        level=CausalLevel.SYMPTOM,
        evidence=(evidence_of(root, "script"), seen("capture", before)),
        fix=Fix(
            text=f"correct {short or place}, or the file or value that it uses, then diagnose again",
            before=lines[0].code if lines else None,
        ),
    )


def _is_own(root: ErrorFact, raised: str, frames: Sequence[Frame]) -> bool:
    """Whether the program's own statement is to blame, also if it named a file that torch did not find."""
    if raised in _OF_FILES:
        return not any(_NOT_THE_PROGRAM.search(frame.file) for frame in frames)
    own = "script_error" in root.candidates and "environment" not in root.candidates
    return own and not any(_OF_TORCH.search(frame.file) for frame in frames)


_FIXES: dict[Death, str] = {
    "stack": "limit the depth of the recursion, or give the thread a larger stack",
    "file": "write the new file beside the old one and rename it, so that a mapping keeps the old contents",
    "null": "check the pointer before that line",
    "abort": "find out why that line ends the process; for a message about the heap, run the host under "
    "AddressSanitizer",
    "thrown": "handle the case for which that line throws, or catch the exception in that thread",
    "exit": "before main returns or exit is called, join every thread that calls the package: exit destroys "
    "what they use",
    "deleted": "before the loader is destroyed, join every thread that calls it, or share its ownership with "
    "them (std::shared_ptr)",
    "updated": "give new weights to the buffer that is not in use (use_inactive=true), all in one update, "
    "then call swap_constant_buffer, which waits for the calls under way",
    "other": "run the host under AddressSanitizer: memory there was freed, or never belonged to it",
}


_OF_THREADS = ("exit", "deleted", "updated")  # how another thread changed what the dead one used


def detect_crash_site(case: DiagnosisState) -> Iterator[Suspect]:
    """The place where a host died, or the input in whose memory it died."""
    site = case.taken.site if case.taken is not None else None
    if case.taken is None or site is None:
        return
    lines = [ModelLocation(file=each.file, line=each.line) for each in site.lines]
    words = capitalized(site.words)
    number = case.taken.input_at_fault
    if number is not None:
        yield Suspect(
            category="concurrency",
            guilty=component("input", f"args[{number}]", lines, index=number),
            summary=f"{words}. That is the memory of input {number} (args[{number}]) of a call in thread "
            f"{site.inside}.",
            level=CausalLevel.STATE,
            evidence=(seen("note", words),),
            fix=Fix(text=f"keep the memory of args[{number}] until the call returns; {_FIXES[site.death]}"),
        )
        return
    place = f", at {site.place}" if site.place else ""
    where = "It was in the package" if site.inside else "No call of the package was in that thread"
    category: Category = "environment" if site.inside else "script_error"
    if site.death in _OF_THREADS:
        category = "concurrency"
    if site.death == "updated":
        words, where = capitalized(replace(site, memory="").words), capitalized(site.memory)
    if site.death == "exit":
        ran = f"thread {site.inside} still called the package" if site.inside else "its thread still ran"
        where = f"Main had returned, or exit was called, and {ran}"
    yield Suspect(
        category=category,
        guilty=component("script", site.place or "the host", lines),
        summary=f"{words}{place}." + (f" {where}." if site.death != "deleted" else ""),
        level=CausalLevel.SYMPTOM,
        evidence=(seen("note", f"{words}{place}"),),
        fix=Fix(text=_FIXES[site.death]),
        weak=not site.place and site.death not in (*OF_MEMORY, *_OF_THREADS),
        settle="give a core file of the host, built with -g",
    )


def _tail(run: RunSeen) -> str:
    return run.finished.output.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")


_REFUSED = re.compile(r"^(?P<program>[^\s:]+): error: (?P<what>.+)$", re.M)  # as argparse prints it
REFUSED_STATUS = 2


def detect_refused_arguments(case: DiagnosisState) -> Iterator[Suspect]:
    """A program that rejected its own arguments, as `argparse` does."""
    script = case.script_run
    if script is None or script.finished.returncode != REFUSED_STATUS or not case.never_reached:
        return
    for found in list(_REFUSED.finditer(_tail(script)))[-1:]:
        yield Suspect(
            category="script_error",
            guilty=component("script", found["program"]),
            summary="Your script stopped before it called a package, and rejected its arguments, "
            f"{quoted(found['what'], 200).rstrip('.')}. Give them after --.",
            level=CausalLevel.SYMPTOM,
            evidence=(seen("read_log", quoted(found[0], 200), "script"),),
            fix=Fix(text="give the arguments that the script asks for, after --"),
        )


# Package files that cannot be loaded or used.

_Unusable = partial(Suspect, level=CausalLevel.BUILD)


def detect_loading(case: DiagnosisState) -> Iterator[Suspect]:
    """A package that cannot be read, and fatal defects of a readable package."""
    error = case.package_error
    if error is None:
        yield from _defects(case)
        return
    if case.loads:
        return  # the loader accepted the file: other irregularities are remarks
    name = package_name(case)
    # Name the user's file, even if a copy was read.
    copied = case.call.package if case.call is not None else None
    what = error.what.replace(str(copied), name) if copied is not None else error.what
    yield _Unusable(
        category="invalid_package",
        guilty=component("package", name, case.failing_locations, value=error.slug),
        summary=f"The package cannot be read: {what}.",
        evidence=(seen("open_package", str(error)), *_refused(case)),
        fix=Fix(text=error.next_call),
        refusal=BY_SLUG.get(error.slug, "") if case.loader_words else "",
    )


def _refused(case: DiagnosisState) -> Iterator[Evidence]:
    """The loader's error text in the failing run, as evidence. Empty if the loader rejected nothing."""
    if case.loader_words:
        yield seen("run", f"the loader rejects it: {quoted(case.loader_words, 300)}")


def remarks_on_file(case: DiagnosisState) -> Iterator[str]:
    """Irregularities of a package that the loader accepted, and a failed build that the program handled."""
    if not case.loads:
        return
    builds = sorted([*case.captured.failed_exports, *case.captured.compiles], key=lambda each: each.t)
    last, load = next(reversed(builds), None), case.suspect_load
    if last is not None and last.error is not None and last.stack and load is not None and load.t > last.t:
        at, said = last.stack[0], last.error.text.partition("\n")[0]
        place = f"{PurePath(at.file).name}:{at.line}"
        yield f"The last build failed at {place} ({quoted(said, 120)}), and an older package was loaded then."
    if case.package_error is not None:
        yield f"The file is damaged, although the loader accepted it: {case.package_error.what}."
    defects = case.package.defects if case.package is not None else ()
    for defect in defects:
        if defect.fatal and defect.slug not in SEEN_IN_A_CALL:
            yield f"The file is damaged, although the loader accepted it: {defect.what}."


# Defects that show only in a call, because the part is not read before its launch runs.
SEEN_IN_A_CALL = frozenset({"missing_kernel_binary", "missing_proxy_nodes", "missing_weights"})


def _defects(case: DiagnosisState) -> Iterator[Suspect]:
    """Fatal defects. Missing weights are not a defect if the program loads them."""
    load = case.suspect_load
    loaded = any(load is None or (u.pid, u.load) == (load.pid, load.number) for u in case.updates)
    # The user's lines that load the package of the suspect call, then the lines that call it.
    lines = [*(load.stack[:1] if load is not None else case.failing_locations), *case.call_locations]
    for defect in case.package.defects if case.package is not None else ():
        problem = defect_problem(defect)
        missing_weights = problem.category == "constants" and not loaded
        if not missing_weights and (not defect.fatal or problem.category == "constants"):
            continue
        if case.loads and not missing_weights and defect.slug not in SEEN_IN_A_CALL:
            continue  # the loader accepted the file, so this is a remark
        yield _Unusable(
            category=problem.category,
            guilty=component("package", package_name(case), lines, value=defect.slug),
            summary=f"The package cannot be used: {defect.what}.",
            evidence=(seen("open_package", defect.what), *_refused(case)),
            fix=problem.fix or Fix(text="build the package again"),
            refusal=BY_SLUG.get(defect.slug, "") if case.loader_words else "",
            harmful=case.failed,
        )
