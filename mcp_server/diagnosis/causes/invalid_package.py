"""A package that cannot be loaded, or is not of the model that it is meant to be.

A package keeps the weights and the plain attributes of its export, whatever becomes of the module afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mcp_server.diagnosis.components import agreement, component, seen
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options, update_from
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import BY_SLUG, CausalLevel, Suspect
from mcp_server.logs.captured import (
    CapturedAssertion,
    CapturedCompile,
    CapturedEnd,
    CapturedExport,
    CapturedUpdate,
)
from mcp_server.model import ComponentKind, Evidence, Fix, PackageWorkload
from mcp_server.package.defects import same_models
from mcp_server.plurals import quoted
from mcp_server.tools.machine import defect_problem
from mcp_server.worker.capture.events import NearModule

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
    """A package that cannot be read, and fatal defects of one that can."""
    error = case.package_error
    if error is None:
        yield from _defects(case)
        return
    if case.loads:
        return  # what a reader sees of it beside that is a remark
    name = package_name(case)
    # In the words of the user, where a copy of the package was read.
    copied = case.call.package if case.call is not None else None
    what = error.what.replace(str(copied), name) if copied is not None else error.what
    yield _Unusable(
        category="invalid_package",
        guilty=component("package", name, case.failing_locations, value=error.slug),
        summary=f"The package cannot be read: {what}.",
        evidence=(seen("open_package", str(error)), *_refused(case)),
        fix=Fix(text=error.next_call or "build or copy the package again, and compare its checksum"),
        refusal=BY_SLUG.get(error.slug, "") if case.loader_words else "",
    )


def _refused(case: DiagnosisState) -> Iterator[Evidence]:
    """The loader's own words in the failing run: without them no refusal happened."""
    if case.loader_words:
        yield seen("run", f"the loader refuses it: {quoted(case.loader_words, 300)}")


def remarks_on_file(case: DiagnosisState) -> Iterator[str]:
    """What is out of order in a package that the loader took all the same: no cause of this failure."""
    if not case.loads:
        return
    if case.package_error is not None:
        yield f"The file is out of order, though the loader took it: {case.package_error.what}."
    defects = case.package.defects if case.package is not None else ()
    for defect in defects:
        if defect.fatal and defect.slug not in SEEN_IN_A_CALL:
            yield f"The file is out of order, though the loader took it: {defect.what}."


# Defects that a call shows, and not the load: the part is read when the launch that needs it runs.
SEEN_IN_A_CALL = frozenset({"missing_kernel_binary", "missing_proxy_nodes", "missing_weights"})


def _defects(case: DiagnosisState) -> Iterator[Suspect]:
    """Fatal defects; weights that are not in the package are none when the program loads them."""
    load = case.suspect_load
    loaded = any(load is None or (u.pid, u.load) == (load.pid, load.number) for u in case.updates)
    # The user's lines that load the package of the suspect call, then those that call it.
    lines = [*(load.stack[:1] if load is not None else case.failing_locations), *case.call_locations]
    for defect in case.package.defects if case.package is not None else ():
        problem = defect_problem(defect)
        missing_weights = problem.category == "constants" and not loaded
        if not missing_weights and (not defect.fatal or problem.category == "constants"):
            continue
        if case.loads and not missing_weights and defect.slug not in SEEN_IN_A_CALL:
            continue  # a remark: the loader took it
        # A load that was forgotten when the weights were given to another one.
        fed = next((u for u in case.updates if u.outcome == "ok"), None) if missing_weights else None
        if fed is not None:
            line = f"{fed.location.file}:{fed.location.line}" if fed.location is not None else "another line"
            fact = f"{fed.how} at {line} was for another load; the load of the failing call got none"
            yield _Unusable(
                category="constants",
                guilty=component("call", "load without load_constants", lines, value=defect.what),
                summary=f"The package has no weights of its own, and {fact}.",
                evidence=(seen("open_package", defect.what), seen("capture", fact)),
                fix=Fix(text="call load_constants after each load of this package, before its first call"),
                harmful=case.failed,
            )
            continue
        yield _Unusable(
            category=problem.category,
            guilty=component("package", package_name(case), lines, value=defect.slug),
            summary=f"The package cannot be used: {defect.what}.",
            evidence=(seen("open_package", defect.what), *_refused(case)),
            fix=problem.fix or Fix(text="build the package again"),
            refusal=BY_SLUG.get(defect.slug, "") if case.loader_words else "",
            harmful=case.failed,
        )


def detect_overwritten(case: DiagnosisState) -> Iterator[Suspect]:
    """Models of one package that were compiled to one path, each over the one before, then packaged.

    `aot_compile` names its path by the generated code, without the values of weights (torch 2.8-2.15).
    """
    hooked, call, load = case.captured, case.suspect_call, case.suspect_load
    if case.package is None or call is None or load is None or call.outcome != "ok":
        return
    own = [p for p in hooked.packagings if p.package == load.package and p.t < load.t]
    file = own[-1].files.get(str(load.options.get("model_name", "model"))) if own else None
    if file is None or not (case.own_check or hooked.assertions):
        return
    # Several models from one path, and several programs compiled to it since it was packaged before.
    packaged = own[-1]
    models = [name for name, other in packaged.files.items() if other == file]
    earlier = [p for p in hooked.packagings if p.pid == packaged.pid and p.n < packaged.n]
    used = max((p.n for p in earlier if file in p.files.values()), default=0)
    done = [c for c in hooked.compiles if (c.pid, c.package, c.outcome) == (packaged.pid, file, "ok")]
    wrote = [c for c in done if used < c.n < packaged.n]
    different = {frozenset(c.digests.items()) for c in wrote if c.digests}
    same_there = {case.package.model_name, *same_models(case.package)}
    if len(models) < 2 or len(different) < 2 or not same_there.issuperset(models):
        return
    names = ", ".join(models)
    compiled = f"{len(wrote)} compiles of different weights wrote {file}, before {names} were made of it"
    same = f"{names} are one and the same model in the package, byte for byte"
    lines = [*wrote[-1].stack[:2], *packaged.stack[:1]]
    yield _Unusable(
        category="invalid_package",
        guilty=component("package", package_name(case), lines, value=f"{names} are what was compiled last"),
        summary=f"The models {names} of the package are all the one that was compiled last: each compile "
        "wrote over the files of the one before, which the package then took.",
        evidence=(seen("capture", compiled), seen("open_package", same)),
        fix=Fix(text="give each compile a path of its own (options={'aot_inductor.output_path': ...})"),
        harmful=case.failed,
    )


TRAINING = "training"


@dataclass(frozen=True)
class _Comparison:
    """The failed comparison, or check, with what the package has; `how` a module is known to matter to it.

    `updates` came after the compile, and `reachable` are the constants that were not folded into the code.
    """

    failed: CapturedAssertion | CapturedEnd
    how: str
    compiled: CapturedCompile
    updates: tuple[CapturedUpdate, ...]
    reachable: frozenset[str]

    @property
    def digests(self) -> dict[str, str]:
        """As compiled, replaced by those of each update.

        Without user-managed constants: the program may have changed them since, and nobody read their values.
        """
        found = dict(self.compiled.digests)
        managed: set[str] = set()
        for update in self.updates:
            found.update({name: each for name, each in update.digests.items() if name in found})
            given = set(update.constants)
            managed = managed | given if update.user_managed else managed - given
        return {name: each for name, each in found.items() if name not in managed}

    def others(self, near: NearModule) -> list[str]:
        """The constants of the package whose values are not the module's."""
        differ = [name for name, digest in self.digests.items() if near.digests[name] != digest]
        return [name for name in differ if name in self.reachable] or ([] if self.updates else differ)


def detect_other_model(case: DiagnosisState) -> Iterator[Suspect]:
    """Hypotheses for the nearest modules that differ from what the package has."""
    compared = _comparison(case)
    if compared is None:
        return
    compiled = compared.compiled
    near = [m for m in compared.failed.modules if compiled.digests.keys() <= m.digests.keys()]
    for module in [m for m in near if compared.others(m)][:1]:
        yield _other_weights(module, compared, case)
    before = [e for e in case.captured.exports if e.pid == compiled.pid and e.n < compiled.n]
    # The last export of each module's class, with what changed since.
    exports = [next((e for e in reversed(before) if e.type == m.type), None) for m in near]
    changed = [_changed(module, export) for module, export in zip(near, exports, strict=True)]
    if exports and exports[0] is not None and all(changed):
        yield _attributes(near[0], changed[0], exports[0], compared, case)
    if before and not any(compared.others(module) for module in near):
        yield from _of_another_class(near, before[-1], compared, case)


def _comparison(case: DiagnosisState) -> _Comparison | None:
    """The failed comparison that the call made again reproduces, or a check of the program's own."""
    hooked, call, compiled = case.captured, case.suspect_call, case.suspect_compile
    if call is None or compiled is None or case.package is None:
        return None
    if any(call.outcome != "ok" for call in hooked.calls):
        return None
    # The updates between the load and the call.
    own = [u for u in hooked.updates if (u.pid, u.load, u.outcome) == (call.pid, call.load, "ok")]
    reachable = frozenset(constant.fqn for constant in case.package.constants)
    has = compiled, tuple(u for u in own if u.n < call.n), reachable
    if hooked.assertions:
        compared = _Comparison(hooked.assertions[-1], "with which it is compared", *has)
        return compared if case.plain_diverges else None
    if hooked.ends and case.own_check and not case.call_fails:
        return _Comparison(hooked.ends[-1], "which the check that failed sees", *has)
    return None


def _changed(near: NearModule, export: CapturedExport | None) -> list[tuple[str, str, str]]:
    """(name, at export, now) of each attribute with another value; a whole module's mode counts once."""
    if export is None:
        return []
    pairs = [(n, then, near.attributes.get(n, "")) for n, then in export.attributes.items()]
    differ = [pair for pair in pairs if pair[2] and pair[1] != pair[2]]
    modes = [pair for pair in differ if pair[0].rpartition(".")[2] == TRAINING]
    return [pair for pair in differ if pair not in modes] + modes[:1]


def _other_weights(near: NearModule, compared: _Comparison, case: DiagnosisState) -> Suspect:
    others, digests = compared.others(near), compared.digests
    first, shown = others[0], ", ".join(others[:4])
    last = next((u for u in reversed(compared.updates) if first in u.digests), None)
    # The lines of the last update, which gave the constant a wrong value or left it out, then its giver's.
    updated = [line for update in compared.updates[-1:] for line in update.stack[:2]]
    giver = (last or compared.compiled).stack[:1]
    # Another constant's values may stand under this name.
    owner = next((other for other, each in near.digests.items() if each == digests[first]), None)
    of_module = f"{len(digests)} constants of {near.name} ({near.type})"
    fact = f"{len(others)} of {of_module} have other values in the package: {shown}"
    value = f"holds the values of {owner}" if owner else f"not the values of {near.name}"
    fix = Fix(text=f"give each constant of the package the tensor that {near.name} has under its name")
    if not compared.updates:
        fix = Fix(
            text="give the package the weights with load_constants after they change, or compile it again",
            after=f"package.load_constants({near.name}.state_dict(), check_full_update=False)",
        )
    return Suspect(
        category="constants",
        guilty=component("constant", first, [*updated, *giver, *compared.failed.stack[:2]], value=value),
        summary=f"The package has the weights of its {f'last {last.how}' if last else 'compile'}, and "
        f"{near.name}, {compared.how}, has others: {shown}.",
        level=CausalLevel.STATE,
        evidence=(seen("capture", fact, str(near.file or "")),),
        fix=fix,
        intervention=_reloaded(near, case),
        harmful=case.failed,
        observed=False,
    )


def _reloaded(near: NearModule, case: DiagnosisState) -> Intervention | None:
    """The call after the package was given the module's weights."""
    if near.file is None or case.call is None or case.call.operation != "replay":
        return None
    steps = list(case.call.steps)
    file = Path(near.file)
    steps.insert(max(len(steps) - 1, 0), update_from(file))
    what = f"the call after the package was given the weights of {near.name}"
    return Intervention(f"weights:{file.name}", Kind.CONSTANT, what, options=Options(steps=tuple(steps)))


def _attributes(
    near: NearModule,
    changed: list[tuple[str, str, str]],
    exported: CapturedExport,
    compared: _Comparison,
    case: DiagnosisState,
) -> Suspect:
    name, then, now = changed[0]
    shown = "; ".join(f"{n} was {a} and is {b}" for n, a, b in changed[:4])
    lines = [*exported.stack[:1], *compared.failed.stack[:2]]
    fix = f"make {name} a buffer or an input of the model, or export again after it changes"
    if name.rpartition(".")[2] == TRAINING:
        fix = "export the model in evaluation mode (Module.eval), and compare with it in the same mode"
    return Suspect(
        category="wrong_output",
        guilty=component("script", f"{near.type}.{name}", lines, value=f"{now} (at export: {then})"),
        summary=f"The package keeps what {near.type} held when it was exported, and {near.name}, "
        f"{compared.how}, differs: {shown}.",
        level=CausalLevel.STATE,
        evidence=(seen("capture", f"between the export and the comparison, {shown}"), *agreement(case)),
        fix=Fix(text=fix),
        harmful=case.failed,
        observed=bool(case.equals_eager),
    )


def _of_another_class(
    near: list[NearModule], exported: CapturedExport, compared: _Comparison, case: DiagnosisState
) -> Iterator[Suspect]:
    """A module with the package's weights, of another class than the exported one: perhaps on purpose."""
    judged = [module for module in near if module.named] or near
    if not judged or exported.type in {module.type for module in judged}:
        return
    module, compiled = judged[0], compared.compiled
    loads = [load for load in case.captured.loads if load.outcome == "ok"]
    # The load of the suspect call was not the first of that package.
    old = len([load for load in loads if load.package == compiled.package]) > 1
    fact = f"the package was built from {exported.type}; {module.name}, {compared.how}, is a {module.type}"
    kind: ComponentKind = "package" if old else "script"
    name, same = str(compiled.package) if old else module.type, ""
    if compared.digests:
        same = ", with the same weights"
    lines = [*compared.failed.stack[:1], *compiled.stack[:1], *exported.stack[:1]]
    yield Suspect(
        category="invalid_package" if old else "wrong_output",
        guilty=component(kind, name, lines, value=f"built from {exported.type}"),
        summary=f"The package and the reference are different models: {fact}"
        f"{same}{'. An earlier load of the package was reused' if old else ''}.",
        level=CausalLevel.STATE if old else CausalLevel.SYMPTOM,
        evidence=(seen("capture", fact), *agreement(case)),
        fix=Fix(text=f"export and compile {module.type}; keep packages apart by the code of their model"),
        harmful=case.failed,
        observed=bool(case.equals_eager),
    )
