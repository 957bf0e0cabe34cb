"""Outputs that differ: from run to run, from eager mode, or from what the program's own check expected.

A package that draws random numbers, held against a reference that drew others or none.

Alone, without program or reference, a package does not tell whether its numbers are meant: a model that
samples draws them on purpose. Dropout is another matter: a model that was exported for use has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from mcp_server.diagnosis.causes import log_text
from mcp_server.diagnosis.components import launch_component, users_code
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Component, Evidence, ExportedWorkload, Fix, PackageWorkload
from mcp_server.package.launches import Launch
from mcp_server.tools.compare_with_eager import Repeats
from mcp_server.tools.divergence import Changed, ComparedWithEager, Divergence, Kind, OtherConstant

# Operators that draw, as they stand in names of kernels and shims, and in the list of ATen operators.
DRAWS = re.compile(
    r"(?:^|[_.])(native_dropout|dropout|bernoulli|multinomial|rand(?:n|int|perm)?(?:_like)?)(?=[_.]|$)"
)
_TRAINING = ("native_dropout", "dropout")


def detect_random_numbers(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where outputs depart from a reference, or where dropout makes them differ."""
    drawing = drawing_launches(case)
    if not drawing:
        return
    op = next((name for name, _ in drawing if name in _TRAINING), drawing[0][0])
    launch = next(launch for name, launch in drawing if name == op)
    if _diverges(case):
        yield _diverging(op, launch, case)
    elif op in _TRAINING and isinstance(case.workload, PackageWorkload):
        yield _training(op, launch, case)


def _random_component(op: str, launch: Launch, case: DiagnosisState) -> Component:
    assert case.view is not None
    return Component(
        kind="op",
        name=op,
        launch_index=launch.index,
        model_locations=list(case.view.provenance(launch).locations[:3]) or case.call_locations,
    )


def _training(op: str, launch: Launch, case: DiagnosisState) -> Suspect:
    """Dropout in a package; that it is not meant is likely, and nothing in the package says so."""
    differs = bool(case.differs_in("second"))
    seen = (Evidence(step="repeat_call", fact="two calls on the same inputs return different outputs"),)
    return Suspect(
        category="wrong_output",
        guilty=_random_component(op, launch, case),
        summary=f"Launch {launch.index} drops values at random ({op}): the model was exported in training "
        f"mode{', and the same call returns different outputs each time' if differs else ''}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="inspect_package", fact=f"launch {launch.index} is {launch.kernel}"),
            *(seen if differs else ()),
        ),
        fix=_fix(op),
        weak=True,
        settle="That is the fault unless dropout is meant to stay on; one in evaluation mode settles it.",
    )


def _diverging(op: str, launch: Launch, case: DiagnosisState) -> Suspect:
    return Suspect(
        category="wrong_output",
        guilty=_random_component(op, launch, case),
        summary=f"The package draws random numbers (launch {launch.index}, {op}): its outputs differ from "
        "those of any reference that draws others or none.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="inspect_package", fact=f"launch {launch.index} is {launch.kernel}"),
            Evidence(step="run", fact="the outputs differ from what they are compared with"),
        ),
        fix=_fix(op),
        harmful=case.failed,
    )


def _fix(op: str) -> Fix:
    if op in _TRAINING:
        return Fix(action="export the model in evaluation mode", before="model", after="model.train(False)")
    return Fix(
        action=f"draw outside the model and pass the numbers as an input, instead of {op} in the model"
    )


def drawing_launches(case: DiagnosisState) -> list[tuple[str, Launch]]:
    """Launches that draw, each with its operator."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    found = [(DRAWS.search(text), launch) for launch in launches for text in (launch.kernel, *launch.atens)]
    return [(match[1], launch) for match, launch in found if match is not None]


def _diverges(case: DiagnosisState) -> bool:
    compared = case.interpreted.last("compared") if case.interpreted is not None else None
    return case.plain_diverges or (compared is not None and not compared["equal"])


COMPARE = "Compare the outputs with those of eager mode (compare_with_eager) to settle it."


def detect_unsteady(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, unless random numbers are drawn: then a difference is no surprise."""
    if case.differs_in("second"):
        if not drawing_launches(case):
            yield _unsteady(case)
    elif case.reads_unset:
        yield _unset(case)


def _unset(case: DiagnosisState) -> Suspect:
    """What the last call found in new memory shows in its outputs."""
    where = _parted(case, "filled")
    fact = "the same call returns different outputs when fresh memory is filled with different bytes"
    at = f", first in what launch {where.launch} ({where.kernel}) writes" if where is not None else ""
    return Suspect(
        category="wrong_output",
        guilty=_unsteady_component(where, case),
        summary=f"The outputs depend on uninitialised memory{at}.",
        level=CausalLevel.BAD_VALUE,
        evidence=(
            Evidence(step="repeat_call", fact="repeated without a change, the call returns the same outputs"),
            Evidence(step="repeat_call", fact=fact + at),
        ),
        fix=Fix(
            action="make it write all of its result and read only within its arguments; torch.empty does not "
            "return zeros"
        ),
    )


def _unsteady(case: DiagnosisState) -> Suspect:
    """The outputs differ from call to call, for a reason that the package does not show."""
    where = _parted(case, "second")
    at = f" from launch {where.launch} ({where.kernel}) on" if where is not None else ""
    return Suspect(
        category="wrong_output",
        guilty=_unsteady_component(where, case),
        summary=f"The same call returns different outputs each time{at}, and no launch of the package draws "
        "random numbers.",
        level=CausalLevel.BAD_VALUE,
        evidence=(Evidence(step="repeat_call", fact=f"two calls on the same inputs differ{at}"),),
        fix=Fix(action="make it depend only on its arguments: no hidden state, race or uninitialised memory"),
        weak=True,
        settle=COMPARE,
    )


def _parted(case: DiagnosisState, run: str) -> Changed | None:
    """The first tensor that differs between the first run and that one."""
    done = case.repeated_watched
    return Repeats(done).change("first", run) if done is not None else None


def _unsteady_component(where: Changed | None, case: DiagnosisState) -> Component:
    """The launch at which the outputs part; the package where that is not known."""
    if where is None:
        return Component(kind="package", name=case.package.path.name if case.package else "the package")
    return launch_component(where.launch, where.kernel, case)


FIXES: dict[Kind, str] = {
    "error": "cut the program down to this launch with reduce and report it; until then keep its operators "
    "out of one kernel, or try another version of torch",
    "tf32": "forbid TF32 where the numbers matter: torch.set_float32_matmul_precision('highest') before the "
    "compile, or compare with the tolerance that TF32 needs",
    "nondeterministic": "make the operator deterministic (torch.use_deterministic_algorithms), or compare "
    "with a tolerance that covers its spread",
    "uninitialised": "let the operator write all of its result: later launches read what nothing wrote",
}


def detect_divergence(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, when a launch by launch comparison was made and found a departure."""
    found = case.with_eager
    if found is None or found.first is None:
        return
    if found.other_constants:
        yield _constants(found.other_constants[0], found, case)
    first = found.first
    yield Suspect(
        category="wrong_output",
        guilty=_divergence_component(found, first, case),
        summary=f"The package diverges from its own exported program: {first.summary}.",
        level=CausalLevel.FAULT_SITE if first.launch is None else CausalLevel.BAD_VALUE,
        evidence=(Evidence(step="compare_with_eager", fact=first.summary, source=_source(found)),),
        fix=Fix(action=FIXES[first.kind]),
        harmful=case.failed or isinstance(case.workload, ExportedWorkload),
    )


def _constants(other: OtherConstant, found: ComparedWithEager, case: DiagnosisState) -> Suspect:
    """The package was made from other weights: stale, or one of several that share them by mistake."""
    assert found.first is not None
    lines = (
        list(case.view.provenance(case.view.wrapper.launches[other.launch]).locations) if case.view else []
    )
    return Suspect(
        category="constants",
        guilty=Component(
            kind="constant", name=other.name, launch_index=other.launch, model_locations=lines[:3]
        ),
        summary=f"The package was not made from this program's weights: {other.sentence}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="compare_with_eager", fact=other.sentence, source=_source(found)),
            Evidence(step="compare_with_eager", fact=found.first.summary),
        ),
        fix=Fix(
            action="compile the package from this program again, alone: models of one structure that are "
            "compiled for one package share the last one's weights; or load its weights with load_constants"
        ),
        harmful=case.failed or isinstance(case.workload, ExportedWorkload),
    )


def _divergence_component(found: ComparedWithEager, first: Divergence, case: DiagnosisState) -> Component:
    """Where runs part, for a difference between runs; else the first launch that departs."""
    apart = _apart(found, first)
    launch, kernel = (apart.launch, apart.kernel) if apart else (first.launch, first.kernel)
    if launch is None:
        return Component(kind="package", name=case.package.path.name if case.package else "the package")
    lines = first.locations
    if apart is not None and case.view is not None:
        lines = list(case.view.provenance(case.view.wrapper.launches[launch]).locations)
    return Component(kind="kernel", name=kernel, launch_index=launch, model_locations=lines[:3])


def _apart(found: ComparedWithEager, first: Divergence) -> Changed | None:
    if first.kind == "nondeterministic":
        return found.varies_from
    return found.unset_from if first.kind == "uninitialised" else None


def _source(found: ComparedWithEager) -> str:
    return found.json_file.uri if found.json_file is not None else ""


def detect_own_check(case: DiagnosisState) -> Iterator[Suspect]:
    """What the log says of the program, with what clears AOTInductor of it; nothing while that is open."""
    if not _cleared(case):
        return
    for suspect in log_text.detect_from_log(case):
        if suspect.category == "script_error":
            yield _of_program(suspect, case)


def _cleared(case: DiagnosisState) -> bool:
    """Whether all calls came back, and the last, made again, gives what the exported program gives.

    Not where the program held tensors of that layout, and none that this call gives: another one was checked.
    Nor where both run kernels or operators of the user's, which nothing was held against.
    """
    seen, plain = case.capture, case.runs.get("plain")
    if seen is None or plain is None or not case.own_check or seen.assertions:
        return False
    if users_code(case):
        return False
    came_back = all(call.outcome == "ok" for call in seen.calls)
    looked_at = not plain.held or any(plain.held.values())
    return came_back and plain.failure == "none" and bool(case.equals_eager) and looked_at


def _of_program(told: Suspect, case: DiagnosisState) -> Suspect:
    """The same, cleared of the other causes that a check may have."""
    return replace(
        told,
        summary=f"{told.summary.rstrip('.')}. For the call before, the package matches its exported "
        "program. Look for the error in the expected values of the check, in the inputs, or in the model.",
        evidence=(
            *told.evidence,
            Evidence(
                step="interpret", fact="package and exported program agree on the call before the check"
            ),
            *_modules(case),
        ),
        fix=Fix(
            action="look at the inputs of that call and at what the check expects; the compilation is correct"
        ),
    )


def _modules(case: DiagnosisState) -> Iterator[Evidence]:
    """The module that the check sees, where it has the very weights that were compiled."""
    assert case.capture is not None
    known = [compiled.digests for compiled in case.capture.compiles if compiled.digests]
    near = case.capture.ends[-1].modules if case.capture.ends else []
    for module in near[:1]:
        if any(one.items() <= module.digests.items() for one in known):
            fact = f"{module.name} ({module.type}) has the weights that were compiled"
            yield Evidence(step="capture", fact=fact)
