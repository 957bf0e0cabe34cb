"""A package that cannot be loaded, or that belongs to a different model than intended.

A package keeps the weights and plain attributes of its export, whatever happens to the module later.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from mcp_server.diagnosis.components import component, seen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import BY_SLUG, CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, PackageWorkload
from mcp_server.plurals import quoted
from mcp_server.tools.machine import defect_problem

_Unusable = partial(Suspect, level=CausalLevel.BUILD)


def package_name(case: DiagnosisState) -> str:
    """The package as the user named it."""
    loads, copied = case.captured.loads, case.call.package if case.call is not None else None
    if loads:
        same = [load for load in loads if copied in (load.copy_path, load.package)]
        return str((same or loads)[-1].package)
    if case.package is not None:
        return str(case.package.path)
    return str(case.workload.package) if isinstance(case.workload, PackageWorkload) else "the package"


def detect_loading(case: DiagnosisState) -> Iterator[Suspect]:
    """A package that cannot be read, and fatal defects of a readable package."""
    error = case.package_error
    if error is None:
        yield from _defects(case)
        return
    if case.loads:
        return  # anything else that a reader sees is a remark
    name = package_name(case)
    # In the user's words, if a copy of the package was read.
    copied = case.call.package if case.call is not None else None
    what = error.what.replace(str(copied), name) if copied is not None else error.what
    yield _Unusable(
        category="invalid_package",
        guilty=component("package", name, case.failing_locations, value=error.slug),
        summary=f"The package cannot be read: {what}.",
        evidence=(seen("open_package", str(error)), *_refused(case)),
        fix=Fix(
            text=error.next_call or "copy the package again, or build it again if the original is damaged too"
        ),
        refusal=BY_SLUG.get(error.slug, "") if case.loader_words else "",
    )


def _refused(case: DiagnosisState) -> Iterator[Evidence]:
    """The loader's error text in the failing run, as evidence. Empty if the loader rejected nothing."""
    if case.loader_words:
        yield seen("run", f"the loader rejects it: {quoted(case.loader_words, 300)}")


def remarks_on_file(case: DiagnosisState) -> Iterator[str]:
    """Irregularities of a package that the loader nevertheless accepted: they did not cause this failure."""
    if not case.loads:
        return
    if case.package_error is not None:
        yield f"The file is damaged, although the loader accepted it: {case.package_error.what}."
    defects = case.package.defects if case.package is not None else ()
    for defect in defects:
        if defect.fatal and defect.slug not in SEEN_IN_A_CALL:
            yield f"The file is damaged, although the loader accepted it: {defect.what}."


# Defects that show in a call but not in the load: the part is read when the launch that needs it runs.
SEEN_IN_A_CALL = frozenset({"missing_kernel_binary", "missing_proxy_nodes", "missing_weights"})


def _defects(case: DiagnosisState) -> Iterator[Suspect]:
    """Fatal defects. Missing weights are no defect if the program loads them."""
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
            continue  # a remark: the loader accepted it
        yield _Unusable(
            category=problem.category,
            guilty=component("package", package_name(case), lines, value=defect.slug),
            summary=f"The package cannot be used: {defect.what}.",
            evidence=(seen("open_package", defect.what), *_refused(case)),
            fix=problem.fix or Fix(text="build the package again"),
            refusal=BY_SLUG.get(defect.slug, "") if case.loader_words else "",
            harmful=case.failed,
        )
