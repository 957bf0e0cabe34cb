"""A package that cannot be loaded, or holds another model than intended.

Models of one package that were compiled to one path, each over the one before, and packaged afterwards.

The path of `aot_compile` is named by the generated code, in which the values of weights do not count (torch
2.8-2.15): models of one architecture share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import BY_SLUG, CausalLevel, Suspect
from mcp_server.logs.captured import Captured, CapturedCompile, CapturedPackaging, CapturedUpdate
from mcp_server.model import Component, Evidence, Fix, ModelLocation, PackageWorkload
from mcp_server.package.defects import same_models
from mcp_server.tools.machine import defect_problem


def detect_loading(case: DiagnosisState) -> Iterator[Suspect]:
    """A package that cannot be read, and fatal defects of one that can."""
    if case.package_error is not None:
        yield _unreadable(case)
    elif case.package is not None:
        yield from _defects(case)


def _unreadable(case: DiagnosisState) -> Suspect:
    error = case.package_error
    assert error is not None
    name = package_name(case)
    return Suspect(
        category="invalid_package",
        guilty=Component(kind="package", name=name, value=error.slug, model_locations=case.failing_locations),
        summary=f"The package cannot be read: {_as_given(error.what, name, case)}.",
        level=CausalLevel.BUILD,
        evidence=(Evidence(step="open_package", fact=str(error)),),
        fix=Fix(action=error.next_call or "build or copy the package again, and compare its checksum"),
        refusal=BY_SLUG.get(error.slug, ""),
    )


def _as_given(what: str, name: str, case: DiagnosisState) -> str:
    """The sentence with the package as the user named it, where a copy of it was read."""
    copied = case.call.package if case.call is not None else None
    return what.replace(str(copied), name) if copied is not None else what


def _defects(case: DiagnosisState) -> Iterator[Suspect]:
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
            guilty=Component(
                kind="package", name=package_name(case), value=defect.slug, model_locations=_load_lines(case)
            ),
            summary=f"The package cannot be used: {defect.what}.",
            level=CausalLevel.BUILD,
            evidence=(Evidence(step="open_package", fact=defect.what),),
            fix=problem.fix or Fix(action="build the package again"),
            refusal=BY_SLUG.get(defect.slug, "") if case.call_fails or case.failed else "",
            harmful=case.failed,
        )


def _fed_elsewhere(case: DiagnosisState) -> CapturedUpdate | None:
    """The weights that the program gave to another load than that of the suspect call."""
    seen = case.capture
    return (
        next((update for update in seen.updates if update.outcome == "ok"), None)
        if seen is not None
        else None
    )


def _unfed(fed: CapturedUpdate, what: str, case: DiagnosisState) -> Suspect:
    """A load that was forgotten when the weights were given."""
    line = f"{fed.location.file}:{fed.location.line}" if fed.location is not None else "another line"
    fact = f"{fed.how} at {line} was for another load; the load of the failing call got none"
    return Suspect(
        category="constants",
        guilty=Component(
            kind="call", name="load without load_constants", value=what, model_locations=_load_lines(case)
        ),
        summary=f"The package has no weights of its own, and {fact}.",
        level=CausalLevel.BUILD,
        evidence=(Evidence(step="open_package", fact=what), Evidence(step="capture", fact=fact)),
        fix=Fix(action="call load_constants after each load of this package, before its first call"),
        harmful=case.failed,
    )


def _load_lines(case: DiagnosisState) -> list[ModelLocation]:
    """The user's lines that load the package of the suspect call, then those that call it."""
    seen = case.capture
    call = seen.suspect if seen is not None else None
    load = seen.load_of(call) if seen is not None and call is not None else None
    return [*(load.stack[:1] if load is not None else case.failing_locations), *case.call_locations]


def _constants_given(case: DiagnosisState) -> bool:
    """Whether the program gave this very model its weights."""
    seen = case.capture
    if seen is None:
        return False
    call = seen.suspect
    load = seen.load_of(call) if call is not None else None
    return any(load is None or (u.pid, u.load) == (load.pid, load.number) for u in seen.updates)


def package_name(case: DiagnosisState) -> str:
    """The package as the user named it."""
    seen = case.capture
    if seen is not None and seen.loads:
        copied = case.call.package if case.call is not None else None
        same = [load for load in seen.loads if copied in (load.copy_path, load.package)]
        return str((same or seen.loads)[-1].package)
    return str(case.package.path) if case.package is not None else _workload_package(case)


def _workload_package(case: DiagnosisState) -> str:
    return str(case.workload.package) if isinstance(case.workload, PackageWorkload) else "the package"


@dataclass(frozen=True)
class _Overwritten:
    """Models that were packaged from the output of one path, and the compiles that wrote it by then."""

    packaged: CapturedPackaging
    names: tuple[str, ...]
    compiles: tuple[CapturedCompile, ...]


def detect_overwritten(case: DiagnosisState) -> Iterator[Suspect]:
    """One hypothesis, where a check refused what a call of such a model gave, and the package shows it."""
    seen = case.capture
    if seen is None or case.package is None or not (case.own_check or seen.assertions):
        return
    found = _overwritten(seen)
    same = {case.package.model_name, *same_models(case.package)}
    if found is not None and same.issuperset(found.names):
        yield _suspect(found, case)


def _overwritten(seen: Captured) -> _Overwritten | None:
    """Of the suspect call's package: several models from one path, and several programs compiled to it."""
    call = seen.suspect
    load = seen.load_of(call) if call is not None else None
    if call is None or load is None or call.outcome != "ok":
        return None
    packaged = next(
        (p for p in reversed(seen.packagings) if p.package == load.package and p.t < load.t),
        None,
    )
    file = packaged.files.get(str(load.options.get("model_name", "model"))) if packaged is not None else None
    if packaged is None or file is None:
        return None
    names = tuple(name for name, other in packaged.files.items() if other == file)
    before = [p.n for p in seen.packagings if p.pid == packaged.pid and p.n < packaged.n]
    used = max((p.n for p in seen.packagings if p.n in before and file in p.files.values()), default=0)
    wrote = tuple(
        c
        for c in seen.compiles
        if (c.pid, c.package, c.outcome) == (packaged.pid, file, "ok") and used < c.n < packaged.n
    )
    different = {frozenset(c.digests.items()) for c in wrote if c.digests}
    return _Overwritten(packaged, names, wrote) if len(names) > 1 and len(different) > 1 else None


def _suspect(found: _Overwritten, case: DiagnosisState) -> Suspect:
    names = ", ".join(found.names)
    count = len(found.compiles)
    compiled = (
        f"{count} compiles, of different weights, wrote {found.compiles[-1].package} one after the other, "
        f"before {names} were packaged from it"
    )
    same = f"{names} are one and the same model in the package, byte for byte"
    return Suspect(
        category="invalid_package",
        guilty=Component(
            kind="package",
            name=package_name(case),
            value=f"{names} are the model that was compiled last",
            model_locations=_lines(found),
        ),
        summary=f"The models {names} of the package are all the one that was compiled last: each compile "
        "wrote over the files of the one before, which the package then took.",
        level=CausalLevel.BUILD,
        evidence=(Evidence(step="capture", fact=compiled), Evidence(step="open_package", fact=same)),
        fix=Fix(
            action="give each compile a path of its own (options={'aot_inductor.output_path': ...}), or "
            "package each before the next is compiled"
        ),
        harmful=case.failed,
    )


def _lines(found: _Overwritten) -> list[ModelLocation]:
    """Those of the last compile, then that which packages."""
    return [*found.compiles[-1].stack[:2], *found.packaged.stack[:1]]
