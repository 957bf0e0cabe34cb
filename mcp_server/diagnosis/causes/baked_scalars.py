"""Arguments of a package's call that are no tensors: the package computes with what they were at export.

`AOTICompiledModel.__call__` drops them (torch/export/pt2_archive/_package.py, 2.8-2.15). Which value one had
is not in the package; a literal of its code took its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Component, Evidence, Fix, PackageWorkload
from mcp_server.package.literals import Literal, literals_of, same
from mcp_server.package.signature import leaf_paths

MOST_LITERALS = 3  # that are named, and tried
NUMBERS = ("int", "float")
SETTLE = "Give the value that it had at export, or the exported program; with expect the literals are tried."


@dataclass(frozen=True)
class Scalar:
    """A leaf that is no tensor: `value` as Python writes it, `kind` its type."""

    place: int
    path: str
    kind: str
    value: str

    @property
    def number(self) -> float | None:
        return float(self.value) if self.kind in NUMBERS else None


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect for each leaf that the package has no place for, or drops."""
    plain = case.runs.get("plain")
    judged = plain is not None and (plain.as_expected or plain.failure not in ("none", "differs"))
    if judged or case.exported is not None:
        return
    literals = literals_of(case.package) if case.package is not None and _scalars(case) else []
    for scalar in _scalars(case):
        if scalar.place >= len(_exported_paths(case)):
            yield _surplus(scalar, case)
        elif not _written_out(scalar, literals):
            yield _baked(scalar, _standing(scalar, candidates(scalar, literals), case), case)


def scalars_to_try(case: DiagnosisState) -> list[tuple[Scalar, Literal]]:
    """Numbers of the call, each with a literal that may stand for it."""
    literals = literals_of(case.package) if case.package is not None and _scalars(case) else []
    return [
        (scalar, literal)
        for scalar in _scalars(case)
        if scalar.place < len(_exported_paths(case)) and not _written_out(scalar, literals)
        for literal in candidates(scalar, literals)
    ][:MOST_LITERALS]


def candidates(scalar: Scalar, literals: list[Literal]) -> list[Literal]:
    """Literals that may stand for it: any, since the package does not say what it was."""
    return literals[:MOST_LITERALS] if scalar.number is not None else []


def _scalars(case: DiagnosisState) -> list[Scalar]:
    """Of a package that was given with a file of inputs; None in a place of an optional argument is none."""
    if not isinstance(case.workload, PackageWorkload) or case.given is None:
        return []
    placed = enumerate(zip(case.given.paths, case.leaves, strict=False))
    return [
        Scalar(place, path, str(leaf["kind"]), str(leaf.get("value", "")))
        for place, (path, leaf) in placed
        if leaf.get("kind") in (*NUMBERS, "bool", "str")
    ]


def _exported_paths(case: DiagnosisState) -> tuple[str, ...]:
    spec = case.package.signature.in_spec if case.package is not None else None
    return leaf_paths(spec) if spec is not None else ()


def _written_out(scalar: Scalar, literals: list[Literal]) -> bool:
    """Whether the code has that very number, or its reciprocal, as a division has on CUDA."""
    number = scalar.number
    forms = [number] if number is not None else []
    forms += [1 / number] if number else []
    return any(same(literal.value, form) for literal in literals for form in forms)


def _baked(scalar: Scalar, found: list[Literal], case: DiagnosisState) -> Suspect:
    places = [f"{literal.value:g} in {literal.location} `{literal.code}`" for literal in found]
    stands = f"; what stands in the code is {', or '.join(places)}" if places else ""
    facts = [f"{scalar.path} is {scalar.value}, which no kernel of the package has as a literal{stands}"]
    return Suspect(
        category="input_mismatch",
        guilty=Component(
            kind="input",
            name=scalar.path,
            input_index=scalar.place,
            value=_values(scalar, found),
            generated_location=found[0].location if found else None,
            expression=found[0].code if found else None,
        ),
        summary=f"{scalar.path} = {scalar.value} is no tensor: the package drops it, and computes with what "
        f"was exported{stands}.",
        level=CausalLevel.CALL,
        evidence=tuple(Evidence(step="inspect_package", fact=fact) for fact in facts),
        fix=Fix(action=f"export {scalar.path} as a tensor, or one package for each value of it"),
        intervention=_edit(scalar, case),
        weak=not found,
        settle=SETTLE,
        observed=False,
    )


def _values(scalar: Scalar, found: list[Literal]) -> str:
    exported = " or ".join(f"{literal.value:g}" for literal in found)
    return f"{scalar.value} (exported: {exported or 'not known'})"


def _edit(scalar: Scalar, case: DiagnosisState) -> Intervention | None:
    """The literal replaced that made the failure go, else the next to try; none of them clears the scalar."""
    made = [each for each in case.scalar_edits if each.key.startswith(edit_key(scalar, None))]
    gone = (each for each in made if each.key in case.trials and case.trials[each.key].proves)
    return next(gone, None) or next((each for each in made if each.key not in case.trials), None)


def edit_key(scalar: Scalar, literal: Literal | None) -> str:
    """The key of the intervention that puts the given value in the place of a literal."""
    tail = f"{literal.kernel}:{literal.value!r}" if literal is not None else ""
    return f"scalar:{scalar.path}:{scalar.value}:{tail}"


def _standing(scalar: Scalar, found: list[Literal], case: DiagnosisState) -> list[Literal]:
    """The literal whose replacement made the failure go, where one did; else all that may stand for it."""
    keys = {edit_key(scalar, literal): literal for literal in found}
    proven = [keys[key] for key in keys if key in case.trials and case.trials[key].proves]
    return proven or found


def _surplus(scalar: Scalar, case: DiagnosisState) -> Suspect:
    wanted = len(_exported_paths(case))
    fact = f"the call has {len(case.leaves)} arguments, and the model was exported with {wanted}"
    return Suspect(
        category="input_mismatch",
        guilty=Component(
            kind="input", name=scalar.path, input_index=scalar.place, value=f"{scalar.value} (exported: none)"
        ),
        summary=f"{scalar.path} = {scalar.value} is one argument more than the model was exported with: the "
        "package drops it without a word.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="check_devices", fact=fact),),
        fix=Fix(action="leave it out, or export the model with it"),
        observed=False,
    )
