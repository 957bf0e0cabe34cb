"""The package file itself: unreadable, incomplete, or of another kind."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.refusals import BY_SLUG
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedUpdate
from mcp_server.model import Evidence, Fix, ModelLocation, PackageWorkload, Party
from mcp_server.steps.fit import defect_problem


def detect(case: Case) -> Iterator[Suspect]:
    """A package that cannot be read, and fatal defects of one that can."""
    if case.package_error is not None:
        yield _unreadable(case)
    elif case.package is not None:
        yield from _defects(case)


def _unreadable(case: Case) -> Suspect:
    error = case.package_error
    assert error is not None
    name = package_name(case)
    return Suspect(
        category="invalid_package",
        guilty=Party(kind="package", name=name, value=error.slug, model_locations=case.failing_locations),
        summary=f"The package cannot be read: {_as_given(error.what, name, case)}.",
        level=CausalLevel.BUILD,
        evidence=(Evidence(step="open_package", fact=str(error)),),
        fix=Fix(action=error.next_call or "build or copy the package again, and compare its checksum"),
        refusal=BY_SLUG.get(error.slug, ""),
    )


def _as_given(what: str, name: str, case: Case) -> str:
    """The sentence with the package as the user named it, where a copy of it was read."""
    copied = case.call.package if case.call is not None else None
    return what.replace(str(copied), name) if copied is not None else what


def _defects(case: Case) -> Iterator[Suspect]:
    """Fatal defects; weights that are not in the package are none when the program loads them."""
    assert case.package is not None
    loaded = _constants_given(case)
    for defect in case.package.defects:
        problem = defect_problem(defect)
        missing_weights = problem.category == "constants" and not loaded
        if not missing_weights and (not defect.fatal or problem.category == "constants"):
            continue
        fed = _fed_elsewhere(case) if missing_weights else None
        if fed is not None:
            yield _unfed(fed, defect.what, case)
            continue
        yield Suspect(
            category=problem.category,
            guilty=Party(
                kind="package", name=package_name(case), value=defect.slug, model_locations=_load_lines(case)
            ),
            summary=f"The package cannot be used: {defect.what}.",
            level=CausalLevel.BUILD,
            evidence=(Evidence(step="open_package", fact=defect.what),),
            fix=problem.fix or Fix(action="build the package again"),
            refusal=BY_SLUG.get(defect.slug, "") if case.call_fails or case.failed else "",
            harmful=case.failed,
        )


def _fed_elsewhere(case: Case) -> CapturedUpdate | None:
    """The weights that the program gave to another load than that of the suspect call."""
    seen = case.capture
    return (
        next((update for update in seen.updates if update.outcome == "ok"), None)
        if seen is not None
        else None
    )


def _unfed(fed: CapturedUpdate, what: str, case: Case) -> Suspect:
    """A load that was forgotten when the weights were given."""
    line = f"{fed.location.file}:{fed.location.line}" if fed.location is not None else "another line"
    fact = f"{fed.how} at {line} was for another load; the load of the failing call got none"
    return Suspect(
        category="constants",
        guilty=Party(
            kind="call", name="load without load_constants", value=what, model_locations=_load_lines(case)
        ),
        summary=f"The package has no weights of its own, and {fact}.",
        level=CausalLevel.BUILD,
        evidence=(Evidence(step="open_package", fact=what), Evidence(step="capture", fact=fact)),
        fix=Fix(action="call load_constants after each load of this package, before its first call"),
        harmful=case.failed,
    )


def _load_lines(case: Case) -> list[ModelLocation]:
    """The user's lines that load the package of the suspect call, then those that call it."""
    seen = case.capture
    call = seen.suspect if seen is not None else None
    load = seen.load_of(call) if seen is not None and call is not None else None
    return [*(load.stack[:1] if load is not None else case.failing_locations), *case.call_locations]


def _constants_given(case: Case) -> bool:
    """Whether the program gave this very model its weights."""
    seen = case.capture
    if seen is None:
        return False
    call = seen.suspect
    load = seen.load_of(call) if call is not None else None
    return any(load is None or (u.pid, u.load) == (load.pid, load.number) for u in seen.updates)


def package_name(case: Case) -> str:
    """The package as the user named it."""
    seen = case.capture
    if seen is not None and seen.loads:
        copied = case.call.package if case.call is not None else None
        same = [load for load in seen.loads if copied in (load.copy_path, load.package)]
        return str((same or seen.loads)[-1].package)
    return str(case.package.path) if case.package is not None else _workload_package(case)


def _workload_package(case: Case) -> str:
    return str(case.workload.package) if isinstance(case.workload, PackageWorkload) else "the package"
