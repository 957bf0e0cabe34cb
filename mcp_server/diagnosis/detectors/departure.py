"""The launch at which a package leaves its exported program."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, ExportedWorkload, Fix, Party
from mcp_server.steps.eager_records import Changed, ComparedWithEager, Departure, Kind, OtherConstant

FIXES: dict[Kind, str] = {
    "error": "cut the program down to this launch with reduce and report it; until then keep its operators "
    "out of one kernel, or try another version of torch",
    "tf32": "forbid TF32 where the numbers matter: torch.set_float32_matmul_precision('highest') before the "
    "compile, or compare with the tolerance that TF32 needs",
    "nondeterministic": "make the operator deterministic (torch.use_deterministic_algorithms), or compare "
    "with a tolerance that covers its spread",
    "uninitialised": "let the operator write all of its result: later launches read what nothing wrote",
}


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, when a launch by launch comparison was made and found a departure."""
    found = case.with_eager
    if found is None or found.first is None:
        return
    if found.other_constants:
        yield _constants(found.other_constants[0], found, case)
    first = found.first
    yield Suspect(
        category="wrong_output",
        guilty=_party(found, first, case),
        summary=f"The package departs from its own exported program: {first.summary}.",
        level=CausalLevel.FAULT_SITE if first.launch is None else CausalLevel.BAD_VALUE,
        evidence=(Evidence(step="compare_with_eager", fact=first.summary, source=_source(found)),),
        fix=Fix(action=FIXES[first.kind]),
        harmful=case.failed or isinstance(case.workload, ExportedWorkload),
    )


def _constants(other: OtherConstant, found: ComparedWithEager, case: Case) -> Suspect:
    """The package was made from other weights: stale, or one of several that share them by mistake."""
    assert found.first is not None
    lines = (
        list(case.view.provenance(case.view.wrapper.launches[other.launch]).locations) if case.view else []
    )
    return Suspect(
        category="constants",
        guilty=Party(kind="constant", name=other.name, launch_index=other.launch, model_locations=lines[:3]),
        summary=f"The package was not made from this program's weights: {other.told}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="compare_with_eager", fact=other.told, source=_source(found)),
            Evidence(step="compare_with_eager", fact=found.first.summary),
        ),
        fix=Fix(
            action="compile the package from this program again, alone: models of one structure that are "
            "compiled for one package share the last one's weights; or load its weights with load_constants"
        ),
        harmful=case.failed or isinstance(case.workload, ExportedWorkload),
    )


def _party(found: ComparedWithEager, first: Departure, case: Case) -> Party:
    """Where runs part, for a difference between runs; else the first launch that departs."""
    apart = _apart(found, first)
    launch, kernel = (apart.launch, apart.kernel) if apart else (first.launch, first.kernel)
    if launch is None:
        return Party(kind="package", name=case.package.path.name if case.package else "the package")
    lines = first.locations
    if apart is not None and case.view is not None:
        lines = list(case.view.provenance(case.view.wrapper.launches[launch]).locations)
    return Party(kind="kernel", name=kernel, launch_index=launch, model_locations=lines[:3])


def _apart(found: ComparedWithEager, first: Departure) -> Changed | None:
    if first.kind == "nondeterministic":
        return found.varies_from
    return found.unset_from if first.kind == "uninitialised" else None


def _source(found: ComparedWithEager) -> str:
    return found.json_file.uri if found.json_file is not None else ""
