"""The module that a package is compared with, against the one that was exported: other weights or attributes.

A package keeps the weights and the plain attributes of its export, whatever becomes of the module afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import (
    CapturedAssertion,
    CapturedCompile,
    CapturedEnd,
    CapturedExport,
    CapturedUpdate,
    ModuleSnapshot,
)
from mcp_server.model import Component, Evidence, Fix, ModelLocation

TRAINING = "training"


@dataclass(frozen=True)
class _Held:
    """What the package of the suspect call holds: digests by name, and who gave them last.

    `reachable` are the constants that an update can replace; the others were folded into the code.
    """

    compiled: CapturedCompile
    updates: tuple[CapturedUpdate, ...]
    reachable: frozenset[str]

    @property
    def digests(self) -> dict[str, str]:
        """As compiled, with those of each update in their place.

        What the program still manages has the values that its tensors have by now, which nobody looked at.
        """
        found = dict(self.compiled.digests)
        managed: set[str] = set()
        for update in self.updates:
            found.update({name: each for name, each in update.digests.items() if name in found})
            managed = (
                managed | set(update.constants) if update.user_managed else managed - set(update.constants)
            )
        return {name: each for name, each in found.items() if name not in managed}

    @property
    def given_at(self) -> list[ModelLocation]:
        """The lines of the last update, which gave the constant a wrong value or left it out."""
        return self.updates[-1].stack[:2] if self.updates else []

    def others(self, near: ModuleSnapshot) -> list[str]:
        """The constants of the package whose values are not the module's."""
        differ = [name for name, digest in self.digests.items() if near.digests[name] != digest]
        return [name for name in differ if name in self.reachable] or ([] if self.updates else differ)

    def giver(self, name: str) -> CapturedUpdate | CapturedCompile:
        """The last update that gave this constant, else the compile."""
        return next((u for u in reversed(self.updates) if name in u.digests), self.compiled)


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """Hypotheses for the nearest modules that differ from what the package holds."""
    held, compared = _held(case), _comparison(case)
    if held is None or compared is None:
        return
    near = [m for m in compared.modules if held.compiled.digests.keys() <= m.digests.keys()]
    for module in [m for m in near if held.others(m)][:1]:
        yield _weights(module, compared, held, case)
    exports = [_export(module, held.compiled, case) for module in near]
    changed = [_changed(module, export) for module, export in zip(near, exports, strict=True)]
    if exports and exports[0] is not None and all(changed):
        yield _attributes(near[0], changed[0], exports[0], compared, case)
    if not any(held.others(module) for module in near):
        yield from _of_another_class(near, compared, held, case)


def _held(case: DiagnosisState) -> _Held | None:
    """From the compile of the suspect call's package, and the updates between its load and the call."""
    seen = case.capture
    call = seen.suspect if seen is not None else None
    load = seen.load_of(call) if seen is not None and call is not None else None
    compiled = seen.compile_of(load) if seen is not None and load is not None else None
    if seen is None or call is None or compiled is None or case.package is None:
        return None
    updates = [u for u in seen.updates if (u.pid, u.load, u.outcome) == (call.pid, call.load, "ok")]
    reachable = frozenset(constant.fqn for constant in case.package.constants)
    return _Held(compiled, tuple(u for u in updates if u.n < call.n), reachable)


def _comparison(case: DiagnosisState) -> CapturedAssertion | CapturedEnd | None:
    """The failed comparison that the call made again reproduces, or a check of the program's own."""
    seen = case.capture
    if seen is None or any(call.outcome != "ok" for call in seen.calls):
        return None
    if seen.assertions:
        return seen.assertions[-1] if case.plain_diverges else None
    return seen.ends[-1] if seen.ends and case.own_check and not case.call_fails else None


def _seen(compared: CapturedAssertion | CapturedEnd) -> str:
    """How the module is known to matter."""
    return (
        "with which it is compared"
        if isinstance(compared, CapturedAssertion)
        else "which the check that failed sees"
    )


def _export(near: ModuleSnapshot, compiled: CapturedCompile, case: DiagnosisState) -> CapturedExport | None:
    """The last export of that class before the compile."""
    exports = case.capture.exports if case.capture is not None else []
    same = [e for e in exports if (e.pid, e.type) == (compiled.pid, near.type) and e.n < compiled.n]
    return same[-1] if same else None


def _changed(near: ModuleSnapshot, export: CapturedExport | None) -> list[tuple[str, str, str]]:
    """(name, at export, now) of each attribute with another value; a whole module's mode counts once."""
    if export is None:
        return []
    pairs = [(n, then, near.attributes.get(n, "")) for n, then in export.attributes.items()]
    differ = [pair for pair in pairs if pair[2] and pair[1] != pair[2]]
    modes = [pair for pair in differ if pair[0].rpartition(".")[2] == TRAINING]
    return [pair for pair in differ if pair not in modes] + modes[:1]


def _weights(
    near: ModuleSnapshot, compared: CapturedAssertion | CapturedEnd, held: _Held, case: DiagnosisState
) -> Suspect:
    others = held.others(near)
    shown = ", ".join(others[:4])
    giver = held.giver(others[0])
    fact = (
        f"{len(others)} of {len(held.digests)} constants of {near.name} ({near.type}) have other values in "
        f"the package: {shown}"
    )
    return Suspect(
        category="constants",
        guilty=Component(
            kind="constant",
            name=others[0],
            value=_mistaken(others[0], near, held),
            model_locations=[*held.given_at, *giver.stack[:1], *compared.stack[:2]],
        ),
        summary=f"The package has the weights of its {_named(giver)}, and {near.name}, "
        f"{_seen(compared)}, has others: {shown}.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="capture", fact=fact, source=str(near.file or "")),),
        fix=Fix(
            action="give the package the weights with load_constants after they change, or compile it again",
            after=f"package.load_constants({near.name}.state_dict(), check_full_update=False)",
        )
        if not held.updates
        else Fix(action=f"give each constant of the package the tensor that {near.name} has under its name"),
        intervention=_reloaded(near, case),
        harmful=case.failed,
        observed=False,
    )


def _named(giver: CapturedUpdate | CapturedCompile) -> str:
    return "compile" if isinstance(giver, CapturedCompile) else f"last {giver.how}"


def _mistaken(name: str, near: ModuleSnapshot, held: _Held) -> str:
    """Whose values the package has under this name, where they are another constant's."""
    digest = held.digests[name]
    owner = next((other for other, each in near.digests.items() if each == digest), None)
    return f"holds the values of {owner}" if owner else f"not the values of {near.name}"


def _reloaded(near: ModuleSnapshot, case: DiagnosisState) -> Intervention | None:
    """The call after the package was given the module's weights."""
    if near.file is None or case.call is None or case.call.operation != "replay":
        return None
    step = {
        "do": "constants",
        "file": near.file,
        "how": "load_constants",
        "arguments": [False, False],
        "only_known": True,
    }
    steps = list(case.call.request.get("steps", ()))
    steps.insert(max(len(steps) - 1, 0), step)
    what = f"the call after the package was given the weights of {near.name}"
    return Intervention(f"weights:{near.file.name}", Kind.CONSTANT, what, options=Options(steps=tuple(steps)))


def _attributes(
    near: ModuleSnapshot,
    changed: list[tuple[str, str, str]],
    exported: CapturedExport,
    compared: CapturedAssertion | CapturedEnd,
    case: DiagnosisState,
) -> Suspect:
    name, then, now = changed[0]
    told = "; ".join(f"{n} was {a} and is {b}" for n, a, b in changed[:4])
    agrees = bool(case.equals_eager)
    return Suspect(
        category="wrong_output",
        guilty=Component(
            kind="script",
            name=f"{near.type}.{name}",
            value=f"{now} (at export: {then})",
            model_locations=[*exported.stack[:1], *compared.stack[:2]],
        ),
        summary=f"The package keeps what {near.type} held when it was exported, and {near.name}, "
        f"{_seen(compared)}, differs: {told}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="capture", fact=f"between the export and the comparison, {told}"),
            *((Evidence(step="interpret", fact="package and exported program agree"),) if agrees else ()),
        ),
        fix=Fix(action=_remedy(name)),
        harmful=case.failed,
        observed=agrees,
    )


def _of_another_class(
    near: list[ModuleSnapshot], compared: CapturedAssertion | CapturedEnd, held: _Held, case: DiagnosisState
) -> Iterator[Suspect]:
    """A module with the package's weights, which is of another class than what was exported.

    Unless the package is an old one, the other class may be a reference that was written on purpose: then
    whatever is found at a launch or in the state explains more than that there are two.
    """
    judged = [module for module in near if module.named] or near
    exported = _last_export(held.compiled, case)
    if not judged or exported is None or exported.type in {module.type for module in judged}:
        return
    module, old = judged[0], _loaded_before(held.compiled, case)
    agrees = bool(case.equals_eager)
    fact = f"the package was built from {exported.type}; {module.name}, {_seen(compared)}, is a {module.type}"
    yield Suspect(
        category="invalid_package" if old else "wrong_output",
        guilty=Component(
            kind="package" if old else "script",
            name=str(held.compiled.package) if old else module.type,
            value=f"built from {exported.type}",
            model_locations=[*compared.stack[:1], *held.compiled.stack[:1], *exported.stack[:1]],
        ),
        summary=f"The package and the reference are different models: {fact}"
        f"{', with the same weights' if held.digests else ''}"
        f"{'. An earlier load of the package was reused' if old else ''}.",
        level=CausalLevel.STATE if old else CausalLevel.SYMPTOM,
        evidence=(
            Evidence(step="capture", fact=fact),
            *((Evidence(step="interpret", fact="package and exported program agree"),) if agrees else ()),
        ),
        fix=Fix(
            action=f"export and compile {module.type}, and keep packages apart by the code of their model"
        ),
        harmful=case.failed,
        observed=agrees,
    )


def _last_export(compiled: CapturedCompile, case: DiagnosisState) -> CapturedExport | None:
    exports = case.capture.exports if case.capture is not None else []
    return next((e for e in reversed(exports) if e.pid == compiled.pid and e.n < compiled.n), None)


def _loaded_before(compiled: CapturedCompile, case: DiagnosisState) -> bool:
    """Whether the load of the suspect call was not the first of that package."""
    loads = case.capture.loads if case.capture is not None else []
    return sum(1 for load in loads if load.package == compiled.package and load.outcome == "ok") > 1


def _remedy(name: str) -> str:
    if name.rpartition(".")[2] == TRAINING:
        return "export the model in evaluation mode (Module.eval), and compare with it in the same mode"
    return f"make {name} a buffer or an input of the model, or export again after it changes"
