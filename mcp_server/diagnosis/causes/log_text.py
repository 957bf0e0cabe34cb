"""Suspects from the text of a log alone: the component that it names, possible categories, and advice."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from mcp_server.diagnosis.components import (
    component,
    first_line,
    lines_of,
    own_code,
    own_operators,
    package_name,
    seen,
)
from mcp_server.diagnosis.interventions.source import action_of
from mcp_server.diagnosis.next_steps import open_question
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import BY_FAMILY, CausalLevel, Suspect
from mcp_server.jobs.gpus import Clock
from mcp_server.logs.captured import CapturedCompile, StoppedAt
from mcp_server.logs.facts import ErrorFact, Frame, LogFacts
from mcp_server.logs.families import BY_ID, Advice
from mcp_server.logs.roots import PACKAGE_FILE
from mcp_server.model import (
    Category,
    Component,
    ComponentKind,
    Evidence,
    Fix,
    ModelLocation,
    PackageWorkload,
    ScriptWorkload,
)
from mcp_server.package.exported import read_stack
from mcp_server.package.mismatch import taken
from mcp_server.plurals import counted, quoted
from mcp_server.runtime.context import WORKER_MAIN
from mcp_server.tools.explain_error import as_sentence, filled
from mcp_server.worker.events import GuardFailed, NodeRaised

WORKER = str(WORKER_MAIN.parent)
OF_HOOK = "-capture/site/sitecustomize.py"  # the hook, which imports the modules that it watches

# The usual component at fault for a category, and how near to the root cause it is.
BY_CATEGORY: Mapping[Category, tuple[ComponentKind, CausalLevel]] = {
    "invalid_package": ("package", CausalLevel.BUILD),
    "compile_failure": ("toolchain", CausalLevel.BUILD),
    "toolchain": ("toolchain", CausalLevel.BUILD),
    "arch_mismatch": ("package", CausalLevel.BUILD),
    "environment": ("environment", CausalLevel.BUILD),
    "device_mismatch": ("input", CausalLevel.CALL),
    "input_mismatch": ("input", CausalLevel.CALL),
    "shape_out_of_range": ("input", CausalLevel.CALL),
    "constants": ("constant", CausalLevel.STATE),
    "custom_op": ("op", CausalLevel.STATE),
    "concurrency": ("call", CausalLevel.STATE),
    "out_of_memory": ("environment", CausalLevel.STATE),
    "index_out_of_bounds": ("input", CausalLevel.BAD_VALUE),
    "nan_or_inf": ("kernel", CausalLevel.BAD_VALUE),
    "illegal_memory_access": ("kernel", CausalLevel.FAULT_SITE),
    "hang": ("call", CausalLevel.FAULT_SITE),
    "wrong_output": ("kernel", CausalLevel.SYMPTOM),
    "script_error": ("script", CausalLevel.SYMPTOM),
}

# Fields that name the component in families without `names`, the most specific first.
_FIELDS = ("operator", "op", "constant", "library", "symbol", "name", "kernel", "package")
_FIELD_KINDS: Mapping[str, ComponentKind] = {"kernel": "kernel", "op": "op", "operator": "op"}

_ACTIONS: Mapping[Advice, str] = {
    "check_inputs": "compare every input with what the package was compiled for, and convert what differs",
    "check_package": "compile the package again on this machine",
    "check_machine": "correct the machine or environment as the error text says, then run again",
    "trace_index": "keep the index within the bound of the tensor that it indexes",
    "heap": "find who writes past the end of a block: a launch of the package, a custom operator, or the "
    "program's own native code (build that with -fsanitize=address, or run it under valgrind)",
    "locate": "find the launch and the line of the access, then fix the index or the size behind it",
    "find_nan": "find the first launch whose output is not finite, and guard its operation",
    "compare": "find the first launch that differs from the reference",
    "recompile": "fix the line of the model that the compiler names, then compile again",
    "run_again": "run again with blocking launches and input checks, keeping all output",
    "read_cause": "read the error before this one: it contains the cause",
    "constants": "give every constant of the package under its own name, dtype, shape and device",
    "fix_script": "fix the statement that raised",
    "trace_hang": "find the launch or lock that does not return",
}

# A symbol of libtorch: in its C interface or in one of its C++ namespaces, as mangled by the Itanium ABI.
_OF_TORCH = re.compile(r"aoti_torch_|_Z[A-Z]*N?K?(?:3c10|2at|5torch)")
_IN_PACKAGE = re.compile(r"/data/aotinductor/|\.wrapper\.so$")  # unpacked by the loader
OF_SEVERAL = "A log alone does not tell which of these it is."
_OTHER_TORCH = (
    "if one of your custom operators defines {symbol}, load its library first. Otherwise {library} was "
    "probably built for another torch: `ldd` shows which libtorch it loads. Correct LD_LIBRARY_PATH or the "
    "rpath, or build it again with the installed torch"
)


def named(category: Category, root: ErrorFact) -> Component:
    """The component that the error names, with the value that it gives. `name` is empty if it names none."""
    kind, fields = BY_CATEGORY[category][0], root.fields
    value = fields.get("got") or fields.get("value")
    if category == "arch_mismatch" and "built_for" in fields:
        return component(
            "package", "the package", value=f"built for {fields['built_for']}, here {fields['here']}"
        )
    if category == "custom_op" and "at_function" in fields and root.family.id != "custom_op_call":
        return component("op", fields["at_function"])
    for naming in root.family.names:
        if name := filled(naming.name, root):
            return component(naming.kind or kind, name, value=filled(naming.value, root) or value)
    for field in _FIELDS:
        if fields.get(field):
            return component(_FIELD_KINDS.get(field, kind), fields[field], value=value)
    # Export and lowering fail because of the model, C++ because of the toolchain.
    lowered = root.family.stage in ("export", "compile") and not root.family.id.startswith("cpp_")
    return component("script" if category == "compile_failure" and lowered else kind, "", value=value)


def action(root: ErrorFact, category: Category) -> str:
    """The action for a fault of this category with this root error."""
    unknown = root.family.advice in ("read_cause", "compare")
    other = root.family.candidates != ("script_error",) and not unknown
    if category == "script_error" and other:
        return _ACTIONS["fix_script"]
    own = root.family.fix
    if root.family.id == "undefined_symbol" and _OF_TORCH.match(root.fields.get("symbol", "")):
        of_package = _IN_PACKAGE.search(root.fields.get("library", ""))
        own = _OTHER_TORCH.replace("{library}", "the package") if of_package else _OTHER_TORCH
    return (own and filled(own, root)) or _ACTIONS[root.family.advice]


# Exceptions that may be due to the values or lengths that a statement got, or come from C++ code.
_OF_VALUES = frozenset(
    {"IndexError", "KeyError", "TypeError", "ValueError", "ZeroDivisionError", "RuntimeError", "SystemError"}
)
_OF_DEVICE = "device type tensor to numpy"  # torch 2.8-2.15; does not depend on the tensor's values


_AT_COMPILE = (
    "The GPU failed while the package was compiled. Either an earlier kernel failed, or the compiler tried a "
    "kernel on made-up inputs, which are no valid addresses. If it was the compiler, use "
    "inductor_configs={'triton.autotune_at_compile_time': False}."
)


def detect_from_log(case: DiagnosisState) -> Iterator[Suspect]:
    """A suspect for each category that a root error of the user's own runs allows; weak if several."""
    for source, facts in case.own_logs:
        root, run = facts.root, case.runs.get(source)
        if root is None and run is not None and run.failure == "exception" and facts.tail:
            # The program exited with an error status but printed no error: its own check failed.
            line, text = facts.tail[-1]
            root = ErrorFact(BY_ID["own_check"], {}, line, text, BY_ID["own_check"].candidates)
        ours = run is not None and run.failure == "timeout" and root is not None and "limit" in root.fields
        if root is not None and not ours:  # stacks that the hook prints at the limit of a run are not errors
            yield from _of_root(root, facts, source, case)


def raised_by_program(root: ErrorFact, source: str, case: DiagnosisState) -> bool:
    """Whether the program's own statement raised the error, and no compile, load or call had failed before.

    False for a device error, which a kernel may have caused long before, and for an error raised by the
    package's own Python code before the call, for example about unknown keyword arguments.
    """
    if case.plain_diverges:
        return False  # the repeated call also fails this comparison
    if root.exception is not None and any(PACKAGE_FILE.search(f.file) for f in root.exception.frames):
        return False
    if source != "script" or root.exception is None or root.family.late:
        return False
    if not case.captured.phases:  # the program itself may raise the text of a torch error
        frames = root.exception.frames
        return bool(frames) and frames[-1].user and frames[-1].code.startswith("raise ")
    return bool(case.calls) and all(phase.outcome == "ok" for phase in case.captured.phases)


def _own_error(root: ErrorFact, source: str, case: DiagnosisState) -> Suspect:
    """The program's statement that raised, and whether package calls had returned before."""
    assert root.exception is not None
    lines = locations_of(root.exception.user_frames)
    place = f"{lines[0].file}:{lines[0].line}" if lines else ""
    calls = f"{counted(len(case.calls), 'call')} of the package returned before it"
    calls = calls if case.calls else "it had not loaded or called a package"
    return Suspect(
        category="script_error",
        guilty=component("script", place, lines, value=quoted(root.text, 200)),
        summary=f"The program's own statement raised {quoted(root.text, 200).rstrip('.')}; {calls}.",
        level=BY_CATEGORY["script_error"][1],
        evidence=(evidence_of(root, source), seen("capture", calls)),
        fix=Fix(text="correct the statement, or check its values: one may come from the package"),
        harmful=case.failed,
    )


def _of_invalid_package(root: ErrorFact, case: DiagnosisState) -> str:
    """Say that the package takes another number of inputs than the text says. Empty if not, or if unknown."""
    if root.family.id != "input_count" or case.package is None or not case.package.signature.known:
        return ""
    takes = len(case.package.signature.inputs)
    gone = "the loaded model was destroyed or overwritten when it was called, or it is another package"
    return "" if root.fields.get("expected") == str(takes) else f" But it takes {takes}: {gone}."


def _of_root(root: ErrorFact, facts: LogFacts, source: str, case: DiagnosisState) -> Iterator[Suspect]:
    if "script_error" not in root.candidates and raised_by_program(root, source, case):
        yield _own_error(root, source, case)
        return
    folder = folder_of_library(case) if root.family.id == "library_missing" else None
    admitted = _admitted(root, source, folder, case)
    several = len(admitted) > 1
    survived = case.workload is None and _may_go_on(root, facts)
    alone = case.workload is None and (several or survived)
    invalid = _of_invalid_package(root, case)
    # The kernel that the text names, if any.
    kernel = root.fields.get("kernel") or (facts.last_launch.kernel if facts.last_launch else "")
    place = next(iter(facts.locations), None)
    # A rejection that names no component is no proof of guilt.
    unread = root.family.id == "input_count" and case.package is None
    shows = not several and case.workload is not None and not (invalid or unread)
    for category in admitted:
        guilty = _party(category, root, facts, case)
        at = _stopped_at(root, case) if category == "compile_failure" else None
        compiler_at = [seen("capture", f"the compiler was at {_operator(at)} when it failed")] if at else []
        advice = _advice(category, root, folder, case)
        suspect = Suspect(
            category=category,
            guilty=guilty,
            summary=_summary(root, invalid, several, alone, case),
            level=BY_CATEGORY[category][1] if category == admitted[0] else CausalLevel.SYMPTOM,
            evidence=(evidence_of(root, source), *compiler_at, *_in_eager(root, case)),
            crashing=Component(kind="kernel", name=kernel, generated_location=place) if kernel else None,
            fix=Fix(text=advice) if not several else None,
            refusal=BY_FAMILY.get(root.family.id, "") if guilty.name and shows else "",
            harmful=case.failed,
            weak=several or survived or bool(invalid) or refused_alone(root, case),
            settle="" if not alone else OF_SEVERAL if several else open_question(case),
            observed=len(root.candidates) == 1 or folder is not None,
        )
        yield _with_change(suspect, advice, root, case)


def _admitted(root: ErrorFact, source: str, folder: Path | None, case: DiagnosisState) -> list[Category]:
    """The categories that the text allows and that no observation rules out."""
    admitted = [c for c in root.candidates if not _excluded(c, case)]
    if not admitted and "unclassified" in root.family.tags:
        return []
    admitted = ["toolchain"] if folder is not None else admitted or [*root.candidates]
    if source == "script" and case.died_outside and "script_error" not in admitted:
        admitted.append("script_error")  # a kernel damaged memory, or native code of the program failed
    return admitted


def _may_go_on(root: ErrorFact, facts: LogFacts) -> bool:
    """Whether a log with this error does not show that the program ended, or that the statement is wrong."""
    raised, of_values = root.exception, False
    if root.family.id == "script_exception" and raised is not None:
        # The statement may have got a wrong result from a package, which a log cannot tell.
        of_torch = raised.type in _OF_VALUES or raised.type.startswith("torch.")
        of_values = of_torch and _OF_DEVICE not in raised.message
    return not facts.fatal or of_values


def _summary(root: ErrorFact, invalid: str, several: bool, alone: bool, case: DiagnosisState) -> str:
    if several and not alone:
        unnamed = "The error text alone does not name the cause."
        return _AT_COMPILE if case.only_compiled and root.family.late else unnamed
    late = root.family.stage == "export" and isinstance(case.failing_phase, CapturedCompile)
    ended = " This is the cause if this error ended the program." if alone and not several else ""
    return f"{'The export passed. ' if late else ''}{as_sentence(root)}{invalid}{ended}"


def _advice(category: Category, root: ErrorFact, folder: Path | None, case: DiagnosisState) -> str:
    if folder is not None:
        return PRESENT.format(library=root.fields["library"], folder=folder)
    inputs = case.compiled_inputs if root.family.id == "input_count" else ()
    takes = f". The package takes {taken(inputs)}" if inputs else ""
    return f"{action(root, category)}{takes}"


def _with_change(suspect: Suspect, advice: str, root: ErrorFact, case: DiagnosisState) -> Suspect:
    """The suspect with the change of the program that was seen to help, or got furthest, if any."""
    of_model = ("compile_failure", "custom_op", "shape_out_of_range" if case.captured.narrowing else "")
    corrected = case.users_changes.get(("", root.family.id))
    change = case.source_change if suspect.category in of_model else corrected
    if change is not None:
        fix = Fix(text=advice, before=change.before_code or None, after=change.after_code or None)
        if change.is_experiment:
            fix = Fix(text=_with_attempts(advice, case))
        return replace(suspect, intervention=change, fix=fix if change.after_code else suspect.fix)
    if suspect.category == "compile_failure" and suspect.fix is not None:
        return replace(suspect, fix=Fix(text=_with_attempts(suspect.fix.text, case)))
    return suspect


PRESENT = (
    "link what needs {library} with -Wl,-rpath,{folder}, where it is and the loader does not search "
    "(or -Wl,-rpath,$ORIGIN/..., which can be moved), or set LD_LIBRARY_PATH={folder} before the start"
)
MOST_FOLDERS = 2000


def folder_of_library(case: DiagnosisState) -> Path | None:
    """The folder of a library that the loader does not find, if it is below that of the script or the run."""
    names = {root.fields["library"] for _, root in case.own_roots if root.family.id == "library_missing"}
    if not names or not isinstance(case.workload, ScriptWorkload):
        return None
    folders = (case.workload.script.resolve().parent, Path(case.workload.cwd or ".").resolve())
    return _folder_with(frozenset(names), tuple(dict.fromkeys(folders)), case.clock)


@lru_cache(maxsize=1)
def _folder_with(names: frozenset[str], folders: tuple[Path, ...], _diagnosis: Clock) -> Path | None:
    """Search once for each diagnosis (identified by its clock), because the files may change later."""
    walked = islice(chain.from_iterable(map(os.walk, folders)), MOST_FOLDERS)
    return next((Path(folder) for folder, _, files in walked if names.intersection(files)), None)


def _with_attempts(text: str, case: DiagnosisState) -> str:
    """The change with which export or compile gets furthest, and where it then stops, or else `text`."""
    for tried in case.captured.attempts:
        text = tried.advice or text
        further = [each for each in tried.attempts if each.reached]
        if further and all(each.outcome != "passes" for each in tried.attempts):
            best = max(further, key=lambda each: len(each.more_lines))
            line = f"line {best.more_lines[-1] if best.more_lines else best.line}"
            after = best.after.rpartition("\n")[2]
            stops = f"then stops at line {best.reached}: {best.reached_code}"
            then = f". There, {tried.advice}" if tried.advice else ""
            text = f"{action_of(best)}. With `{after}` the {tried.stage} gets past {line}, {stops}{then}"
    return text


def _excluded(category: Category, case: DiagnosisState) -> bool:
    """Whether the observations rule out a candidate of an ambiguous text."""
    capture, calls, alone = case.capture, case.calls, case.failure_of("plain")
    fails_alone = alone not in (None, "none", "differs")
    match category:
        case "input_mismatch" if case.only_compiled or case.captured.narrowing:
            return True
        case "input_mismatch" | "device_mismatch" | "shape_out_of_range":
            compared = case.given is not None and "run_with_input_checks" in case.done
            refused = bool(case.eager_events(GuardFailed))
            return compared and not refused and all(m.category != category for m in case.mismatches)
        case "custom_op":
            return case.package is not None and not own_operators(case)
        case "constants":
            return case.package is not None and capture is not None and not case.updates
        case "nan_or_inf":
            return alone is not None and not case.outputs_nonfinite
        case "script_error":
            # The call fails by itself, or the last failure is a compile that the program requested.
            not_compiled = any(each.outcome == "failed" for each in case.captured.compiles[-1:])
            return fails_alone or (not_compiled and not case.handled and not case.ended_well)
        case "compile_failure" if isinstance(case.workload, PackageWorkload):
            return True
        case "toolchain" | "compile_failure":
            # All compiles and loads succeeded, and the package was called.
            phases = (*case.captured.compiles, *case.captured.loads)
            return bool(calls) and all(phase.outcome == "ok" for phase in phases)
        case "concurrency":
            # The main thread made every call on one stream, and nothing changed during a call.
            disturbed = bool(case.captured.memory) or any(c.streams or c.in_graph for c in calls)
            return bool(calls) and not disturbed and all(c.thread_name == "MainThread" for c in calls)
        case "index_out_of_bounds":
            # No call of the program rejected an index, nor does the repeated suspect call.
            came_back = capture is not None and all(call.outcome == "ok" for call in calls)
            return came_back and alone == "none"
        case "wrong_output":
            # The capture saw no comparison by the script, and eager mode returns the same. That does not
            # clear the user's kernels and operators, which also run in eager mode.
            uncompared = capture is not None and not capture.assertions
            return fails_alone or (bool(case.equals_eager) and uncompared and not own_code(case))
    return False


def evidence_of(root: ErrorFact, source: str) -> Evidence:
    """The log line of the error, and how often it occurred."""
    times = f" ({root.count} times)" if root.count > 1 else ""
    place = source if Path(source).suffix else f"output of {source}"  # a log file, or a run
    return seen("read_log", root.text[:400] + times, f"{place}, line {root.line}")


# Categories for which a line of the user's program is at fault if the text names no component.
_BY_LINE: frozenset[Category] = frozenset({"script_error", "compile_failure", "concurrency"})


def _party(category: Category, root: ErrorFact, facts: LogFacts, case: DiagnosisState) -> Component:
    who, fields = named(category, root), root.fields
    if category == "invalid_package" and case.package_error is not None:
        who = component("package", package_name(case))  # the loader rejected the same file
    lines = locations_of(facts.frames)
    if "at_file" in fields:
        # The program's line from which an exception or crash came, perhaps through C++.
        lines.insert(0, ModelLocation(file=fields["at_file"], line=int(fields["at_line"])))
    of_model = category in ("compile_failure", "shape_out_of_range" if case.captured.narrowing else "")
    if of_model:
        told = [line for tried in case.captured.attempts for line in tried.stack]
        lines = [*told, *_changed(case), *lines]
    event = _raised_in_eager(root, case)
    if event is not None and not who.name:
        who = component("op", event.op)
    lines = (lines_of(event) if event is not None else []) + lines
    lines = lines or case.failing_locations or case.exit_locations
    at = _stopped_at(root, case) if category == "compile_failure" and not who.name else None
    if at is not None:
        own = [frame for frame in reversed(read_stack(at.stack)) if frame.user]
        made = [ModelLocation(file=frame.file, line=frame.line, code=frame.code) for frame in own]
        return component("op", _operator(at), [*made, *lines], value=who.value)
    by_line = f"{lines[0].file}:{lines[0].line}" if (of_model or category in _BY_LINE) and lines else ""
    kernel, of_kernel = case.users_kernel, []
    if kernel is not None and root.family.id == "triton_compile" and kernel.name == fields.get("function"):
        of_kernel = [ModelLocation(file=str(kernel.file), line=kernel.line, code=kernel.code)]
    number = fields.get("input", "")
    index = int(number) if number.isdigit() and who.kind == "input" else None
    kind = "script" if of_model and not who.name else who.kind
    return component(kind, who.name or by_line, [*of_kernel, *lines], value=who.value, index=index)


def _raised_in_eager(root: ErrorFact, case: DiagnosisState) -> NodeRaised | None:
    """The model's operator that raises this error in eager mode. Numbers in the text may differ."""
    event = next(iter(case.eager_events(NodeRaised)), None)
    same = event is not None and (first_line(event) in root.text or root.family.match(event.text) is not None)
    return event if same else None


def _in_eager(root: ErrorFact, case: DiagnosisState) -> list[Evidence]:
    event = _raised_in_eager(root, case)
    return [seen("interpret", f"{event.op} raises it in eager mode, too")] if event is not None else []


def _changed(case: DiagnosisState) -> list[ModelLocation]:
    """The line whose change made the export or compile pass, as an error may name only the call of torch."""
    every = (each for tried in case.captured.attempts for each in tried.attempts)
    passed = (each for each in every if each.outcome == "passes" and each.line)
    lines = ((each.file, each.line, each.before.partition("\n")[0]) for each in passed)
    return [ModelLocation(file=file, line=line, code=code) for file, line, code in lines][:1]


def _stopped_at(root: ErrorFact, case: DiagnosisState) -> StoppedAt | None:
    """The operator at which `root` ended the compile. None if it is unknown, or if there are several."""
    phase = case.failing_phase
    if not isinstance(phase, CapturedCompile) or phase.error is None or root.family.stage != "compile":
        return None
    text = phase.error.text.partition("\n")[0]
    at = phase.error.stopped_at
    return at[0] if text and text in root.text and len({each.operator for each in at}) == 1 else None


def _operator(at: StoppedAt) -> str:
    """Convert `desk.longest_run.default` to `desk::longest_run`."""
    return "::".join(at.operator.split(".")[:2])


def is_ours(file: str) -> bool:
    """Whether a file belongs to the worker or the hook."""
    return file.startswith(WORKER) or file.endswith(OF_HOOK)


def locations_of(frames: tuple[Frame, ...]) -> list[ModelLocation]:
    """The user's frames, innermost first."""
    own = [frame for frame in frames if not frame.file.startswith("<") and not is_ours(frame.file)]
    return [ModelLocation(file=f.file, line=f.line, code=f.code) for f in reversed(own[-3:])]


def refused_alone(root: ErrorFact, case: DiagnosisState) -> bool:
    """Whether an operator or a kernel's check rejected the values of a call, if the workload is a package.

    False for programs, whose own statements may raise the same error.
    """
    refused = isinstance(case.workload, PackageWorkload) and case.failure_of("plain") == "exception"
    return refused and "open_refusal" in root.family.tags
