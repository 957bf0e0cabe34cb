"""Hypotheses that the text of a log supports by itself.

A package alone whose call an operator, or a check of the model in a kernel, refused for its values.

Its text says what is wrong with them, in no fixed words; the launch that said it is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mcp_server.diagnosis.causes.log_words import action, named
from mcp_server.diagnosis.components import launch_component, own_operators, said, users_code
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import BY_FAMILY, CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall, CapturedCompile, StoppedAt
from mcp_server.logs.facts import ErrorFact, Frame, LogFacts
from mcp_server.logs.families import BY_ID
from mcp_server.model import CATEGORIES, Category, Component, Evidence, Fix, ModelLocation, PackageWorkload
from mcp_server.package.launches import Launch
from mcp_server.package.provenance import read_stack
from mcp_server.tools.context import WORKER_MAIN
from mcp_server.tools.explain_error import as_sentence
from mcp_server.tools.requests import failing_phase

_KERNEL = re.compile(r'extern "C"\s+void\s+(\w+)\(')
_NOT_FINITE = re.compile(r"\b(?:nan|inf|finite|positive-definite|singular)\b", re.IGNORECASE)


def detect_refusal(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis that leaves the category open, for the launch that refused."""
    plain = case.runs.get("plain")
    if plain is None or plain.root is None or not refused_alone(plain.root, case):
        return
    launch = _called(plain.log, case) or _checking(plain.root, case)
    if launch is not None:
        yield _suspect(launch, plain.root, case)


def refused_alone(root: ErrorFact, case: DiagnosisState) -> bool:
    """Whether it is such a text, and no program is there of which a statement could have raised it."""
    plain = case.runs.get("plain")
    alone = isinstance(case.workload, PackageWorkload) and plain is not None and plain.failure == "exception"
    return alone and "open_refusal" in root.family.tags


def _called(facts: LogFacts, case: DiagnosisState) -> Launch | None:
    """The launch at the line of the wrapper whose call failed."""
    lines = {
        int(error.fields["line"])
        for error in facts.errors
        if error.family.id == "shim_call" and error.fields.get("line", "").isdigit()
    }
    launches = case.view.wrapper.launches if case.view is not None else ()
    return next((launch for launch in launches if launch.line in lines), None)


def _checking(root: ErrorFact, case: DiagnosisState) -> Launch | None:
    """The launch of the C++ kernel that holds the very text."""
    detail = root.fields.get("detail", "")
    source = case.package.kernel_text if case.package is not None else ""
    place = source.find(f'"{detail}"') if detail else -1
    names = _KERNEL.findall(source[:place]) if place >= 0 else []
    launches = case.view.wrapper.launches if case.view is not None and names else ()
    return next((launch for launch in launches if launch.symbol == names[-1]), None)


def _suspect(launch: Launch, root: ErrorFact, case: DiagnosisState) -> Suspect:
    assert case.view is not None
    behind = case.view.inputs_behind(launch.index)
    party = launch_component(launch.index, launch.kernel, case).model_copy(update={"value": root.text[:200]})
    depends = f", which computes from {', '.join(behind[:3])}" if behind else ""
    fits = "Shapes and dtypes fit the package, so that values are to blame: " if _fits(case) else ""
    return Suspect(
        category=_category(root, launch, case),
        guilty=party,
        summary=f"Launch {launch.index} ({party.name}){depends}, refused what it was given: "
        f"{root.text[:200].rstrip('.')}.",
        level=CausalLevel.CALL,
        evidence=(
            said(root),
            Evidence(step="inspect_package", fact=f"launch {launch.index} raised it{depends}"),
        ),
        crashing=party,
        weak=True,
        settle=f"{fits}dump_kernel_io shows what this launch got, and from where.",
    )


def _fits(case: DiagnosisState) -> bool:
    return case.given is not None and not case.mismatches


def _category(root: ErrorFact, launch: Launch, case: DiagnosisState) -> Category:
    """The first to suspect: what is not finite, whole numbers out of a range, or other values of inputs."""
    if _NOT_FINITE.search(root.text):
        return "nan_or_inf"
    assert case.view is not None and case.package is not None
    names = case.view.flow.backward_from(launch.index).inputs
    dtypes = [item.dtype or "" for item in case.package.inputs if item.name in names]
    return "index_out_of_bounds" if any(d.startswith(("int", "uint")) for d in dtypes) else "input_mismatch"


def uncompiled(root: ErrorFact, case: DiagnosisState) -> StoppedAt | None:
    """That operator, where `root` is the very error of the compile that failed; None for several."""
    seen = case.capture
    phase = failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None
    if not isinstance(phase, CapturedCompile) or phase.error is None or root.family.stage != "compile":
        return None
    text = phase.error.text.partition("\n")[0]
    at = phase.error.stopped_at
    return at[0] if text and text in root.text and len({each.operator for each in at}) == 1 else None


def lines_of(at: StoppedAt) -> list[ModelLocation]:
    """The program's own lines that made it, innermost first."""
    own = [frame for frame in reversed(read_stack(at.stack)) if not frame.library]
    return [ModelLocation(file=frame.file, line=frame.line, code=frame.code) for frame in own]


def name_of(at: StoppedAt) -> str:
    """`desk::longest_run`, of `desk.longest_run.default`."""
    return "::".join(at.operator.split(".")[:2])


LEVELS: dict[Category, CausalLevel] = {
    "invalid_package": CausalLevel.BUILD,
    "compile_failure": CausalLevel.BUILD,
    "toolchain": CausalLevel.BUILD,
    "arch_mismatch": CausalLevel.BUILD,
    "environment": CausalLevel.BUILD,
    "device_mismatch": CausalLevel.CALL,
    "input_mismatch": CausalLevel.CALL,
    "shape_out_of_range": CausalLevel.CALL,
    "constants": CausalLevel.STATE,
    "custom_op": CausalLevel.STATE,
    "concurrency": CausalLevel.STATE,
    "out_of_memory": CausalLevel.STATE,
    "index_out_of_bounds": CausalLevel.BAD_VALUE,
    "nan_or_inf": CausalLevel.BAD_VALUE,
    "illegal_memory_access": CausalLevel.FAULT_SITE,
    "hang": CausalLevel.FAULT_SITE,
    "wrong_output": CausalLevel.SYMPTOM,
    "script_error": CausalLevel.SYMPTOM,
}

WORKER = str(WORKER_MAIN.parent)


def detect_from_log(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis for each category that a root error admits; several candidates are weak ones.

    Only what the user saw counts here: a check that we switched on may raise a false alarm.
    """
    for source, facts in case.own_logs:
        root = facts.root or _last_words(facts, source, case)
        if root is not None:
            yield from _of_root(root, facts, source, case)


def _last_words(facts: LogFacts, source: str, case: DiagnosisState) -> ErrorFact | None:
    """What a program said that ended itself with an error status, and no error: a check of its own."""
    run = case.runs.get(source)
    if run is None or run.failure != "exception" or not facts.tail:
        return None
    line, text = facts.tail[-1]
    family = BY_ID["own_check"]
    return ErrorFact(family, {}, line, text, family.candidates)


def _of_root(root: ErrorFact, facts: LogFacts, source: str, case: DiagnosisState) -> Iterator[Suspect]:
    open_ones = [category for category in root.candidates if not excluded(category, case)] or [
        *root.candidates
    ]
    several = len(open_ones) > 1
    survived = case.workload is None and (not facts.fatal or _of_values(root))
    alone = case.workload is None and (several or survived)
    for place, category in enumerate(open_ones):
        guilty = _party(category, root, facts, case)
        named_by = root.family.id if guilty.name and not several and case.workload is not None else ""
        yield Suspect(
            category=category,
            guilty=guilty,
            summary=_of_a_log(root, open_ones) if alone else _summary(category, root, several),
            level=CausalLevel.SYMPTOM if place else LEVELS[category],
            evidence=(evidence_of(root, source), *_compiler_at(category, root, case)),
            crashing=_crashing(root, facts),
            fix=Fix(action=action(root, category)) if not several else None,
            refusal=BY_FAMILY.get(named_by, ""),  # a refusal that names nobody proves nobody guilty
            harmful=case.failed,
            weak=several or survived or refused_alone(root, case),
            settle=case.open_question if alone else "",
            observed=len(root.candidates) == 1,
        )


# Exceptions of a statement that may be due to the values and lengths which it was given, or come from the C++
# that it called.
_OF_VALUES = frozenset(
    {"IndexError", "KeyError", "TypeError", "ValueError", "ZeroDivisionError", "RuntimeError", "SystemError"}
)
_OF_DEVICE = "device type tensor to numpy"  # torch 2.8-2.15; whatever the values of that tensor are


def _of_values(root: ErrorFact) -> bool:
    """Whether the statement that raised may have got what a package computed wrongly: a log cannot tell."""
    exception = root.exception
    if root.family.id != "script_exception" or exception is None or _OF_DEVICE in exception.message:
        return False
    return exception.type in _OF_VALUES or exception.type.startswith("torch.")


CONTRACT: frozenset[Category] = frozenset({"input_mismatch", "device_mismatch", "shape_out_of_range"})


def excluded(category: Category, case: DiagnosisState) -> bool:
    """Whether what was observed rules a candidate of an ambiguous text out."""
    if category in CONTRACT:
        compared = case.given is not None and "run_with_input_checks" in case.done
        return compared and not any(m.category == category for m in case.mismatches) and not _refused(case)
    if category == "custom_op":
        return case.package is not None and not own_operators(case)
    if category == "constants":
        return case.package is not None and case.capture is not None and not case.capture.updates
    if category == "nan_or_inf":
        return case.plain is not None and "plain" in case.runs and not case.outputs_nonfinite
    if category == "script_error":
        return _fails_without_script(case) or _fails_in_compile(case)
    if category == "concurrency":
        return _one_thread(case)
    if category == "index_out_of_bounds":
        return _calls_came_back(case)
    if category == "wrong_output":
        return _agrees_with_eager(case)
    return False


def _fails_without_script(case: DiagnosisState) -> bool:
    """Whether the call fails by itself, so that no statement of the user's is needed for the failure."""
    plain = case.runs.get("plain")
    return plain is not None and plain.failure not in ("none", "differs")


def _fails_in_compile(case: DiagnosisState) -> bool:
    """Whether what failed last is a compile that the program asked for."""
    compiles = case.capture.compiles if case.capture is not None else []
    last = compiles[-1] if compiles else None
    return last is not None and last.outcome == "failed" and not case.handled and not case.ended_well


def _one_thread(case: DiagnosisState) -> bool:
    """Whether every call was made by the main thread on one stream, and nothing changed under one."""
    if case.capture is None or not case.capture.calls:
        return False
    main = all(call.thread_name == "MainThread" for call in case.capture.calls)
    return main and not any(_disturbed(call) for call in case.capture.calls)


def _disturbed(call: CapturedCall) -> bool:
    """Whether something beside the call acts on its memory, or may: another stream, or a graph's replays."""
    seen = call.raced or call.rewritten or call.moved
    return bool(seen or call.streams or call.in_graph)


def _calls_came_back(case: DiagnosisState) -> bool:
    """Whether no call of the program refused an index, nor does the suspect one when it is made again."""
    plain = case.runs.get("plain")
    captured = case.capture is not None and all(call.outcome == "ok" for call in case.capture.calls)
    return captured and plain is not None and plain.failure == "none"


def _agrees_with_eager(case: DiagnosisState) -> bool:
    """Whether the call gives what its exported program gives, and the script compared it with no other.

    What the user's own kernels and operators compute is in both.
    """
    uncompared = case.capture is not None and not case.capture.assertions
    return bool(case.equals_eager) and uncompared and not users_code(case)


def _refused(case: DiagnosisState) -> bool:
    return case.interpreted is not None and case.interpreted.last("guard_failed") is not None


def evidence_of(root: ErrorFact, source: str) -> Evidence:
    """The line that says it, and how often it came."""
    times = f" ({root.count} times)" if root.count > 1 else ""
    return Evidence(step="read_log", fact=root.text[:400] + times, source=f"{source}:{root.line}")


def _party(category: Category, root: ErrorFact, facts: LogFacts, case: DiagnosisState) -> Component:
    who = named(category, root)
    index = root.fields.get("input", "")
    locations = (
        [*_raised_at(root), *locations_of(facts.frames)] or case.failing_locations or case.exit_locations
    )
    at = uncompiled(root, case) if category == "compile_failure" and not who.name else None
    if at is not None:
        return Component(
            kind="op", name=name_of(at), model_locations=[*lines_of(at), *locations], value=who.value
        )
    return Component(
        kind=who.kind,
        name=who.name or _place(category, locations),
        input_index=int(index) if index.isdigit() and who.kind == "input" else None,
        model_locations=[*_of_kernel(root, case), *locations],
        value=who.value,
    )


def _compiler_at(category: Category, root: ErrorFact, case: DiagnosisState) -> Iterator[Evidence]:
    """At which operator the hook saw the compiler fail."""
    at = uncompiled(root, case) if category == "compile_failure" else None
    if at is not None:
        yield Evidence(step="capture", fact=f"the compiler was at {name_of(at)} when it failed")


def _of_kernel(root: ErrorFact, case: DiagnosisState) -> list[ModelLocation]:
    """The line of the user's Triton kernel that could not be compiled, where it was found."""
    kernel = case.generated
    if kernel is None or root.family.id != "triton_compile" or kernel.name != root.fields.get("function"):
        return []
    return [ModelLocation(file=str(kernel.file), line=kernel.line, code=kernel.code)]


def _raised_at(root: ErrorFact) -> list[ModelLocation]:
    """The line of the program's own below which an exception or a crash came, where C++ was in between."""
    if "at_file" not in root.fields:
        return []
    return [ModelLocation(file=root.fields["at_file"], line=int(root.fields["at_line"]))]


# Categories that a line of the user's program stands for when no text names the party.
BY_LINE: frozenset[Category] = frozenset({"script_error", "compile_failure", "concurrency"})


def _place(category: Category, locations: list[ModelLocation]) -> str:
    return f"{locations[0].file}:{locations[0].line}" if category in BY_LINE and locations else ""


def _crashing(root: ErrorFact, facts: LogFacts) -> Component | None:
    """The kernel that the text names, if it names one."""
    kernel = root.fields.get("kernel") or (facts.last_launch.kernel if facts.last_launch else "")
    if not kernel:
        return None
    at = facts.locations[0] if facts.locations else None
    return Component(kind="kernel", name=kernel, generated_location=f"{at.file}:{at.line}" if at else None)


def locations_of(frames: tuple[Frame, ...]) -> list[ModelLocation]:
    """The user's frames, innermost first."""
    own = [frame for frame in frames if not frame.file.startswith((WORKER, "<"))]
    return [ModelLocation(file=f.file, line=f.line, code=f.code) for f in reversed(own[-3:])]


def _of_a_log(root: ErrorFact, admitted: Sequence[Category]) -> str:
    """What a text says that leaves several categories open, or that the program may have outlived."""
    if len(admitted) > 1:
        return f"{as_sentence(root)} That admits {', '.join(admitted[:4])}."
    return f"{as_sentence(root)} That is {admitted[0]}, if it is what ended the program."


def _summary(category: Category, root: ErrorFact, several: bool) -> str:
    if not several:
        return as_sentence(root)
    return f"The text admits several causes; one is {category}: {CATEGORIES[category]}."
