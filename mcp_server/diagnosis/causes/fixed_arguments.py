"""Arguments of a call that were no tensors at export: the package computes with what they were then.

`AOTICompiledModel.__call__` drops what is no tensor (torch/export/pt2_archive/_package.py, 2.8-2.15). Which
value an argument had is in the exported program, not in the package: a literal of its code took its place.
A tensor in such a place, a mask where the export had None say, makes one input too many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from mcp_server.diagnosis.components import component, seen
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Component, Fix, PackageWorkload
from mcp_server.package.kernels import CodeNumber, forms_of, likeliest_first, literals_of, same
from mcp_server.package.signature import leaf_paths
from mcp_server.worker.capture.events import TensorFacts

_Argument = partial(Suspect, category="input_mismatch", level=CausalLevel.CALL)


def detect_fixed_arguments(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect per argument whose value differs from the one that the exported program has."""
    if case.exported is None:
        return
    for place, fixed in tensors_at_fixed(case):
        leaf = case.leaves[place]
        got = f"a tensor {leaf.dtype or ''}{leaf.shape or []}"
        path = _path(place, case)
        fact = f"argument {place} ({path}) is {got}; it was {fixed!r} at export"
        yield _Argument(
            guilty=_fixed_component(place, got, fixed, case),
            summary=f"Argument {place} ({path}) was {fixed!r} when the model was exported, so that the "
            "package has no input for the tensor that is passed there.",
            evidence=(seen("read_exported", f"{fact}: the package has no input for it"),),
            fix=Fix(text="export the model with a tensor there, or one package for each form of the call"),
            harmful=case.failed,
        )
    for place, fixed in case.exported.fixed:
        yield from _other_value(place, fixed, case)


def tensors_at_fixed(case: DiagnosisState) -> list[tuple[int, object]]:
    """In a call of too many tensors: places of tensors that were plain values at export, with the values."""
    if all(mismatch.aspect != "count" for mismatch in case.mismatches):
        return []
    fixed = case.exported.fixed if case.exported is not None else ()
    placed = [(place, value) for place, value in fixed if place < len(case.leaves)]
    return [(place, value) for place, value in placed if case.leaves[place].kind == "tensor"]


def _path(place: int, case: DiagnosisState) -> str:
    paths = case.given.paths if case.given is not None else ()
    return paths[place] if place < len(paths) else f"argument {place}"


def _fixed_component(place: int, got: str, fixed: object, case: DiagnosisState) -> Component:
    """The argument, with the value passed now and the value at export."""
    value = f"{got} (exported: {fixed!r})"
    return component("input", _path(place, case), case.call_locations, value=value, index=place)


def _other_value(place: int, fixed: object, case: DiagnosisState) -> Iterator[Suspect]:
    """A value in the suspect call that differs from the exported one."""
    leaf = case.leaves[place] if place < len(case.leaves) else TensorFacts(kind="tensor")
    got, path = str(leaf.value), _path(place, case)
    if leaf.kind == "tensor" or _same(got, fixed):
        return
    # The package does not read the argument, so its own call neither raises nor dies because of it.
    of_the_call = case.failure_of("plain") in ("exception", "signal", "timeout", "out_of_memory")
    exported = f"it was {fixed!r} at export, which the package computes with"
    yield _Argument(
        guilty=_fixed_component(place, got, fixed, case),
        summary=f"Argument {place} ({path}) was fixed to {fixed!r} when the model was exported; the {got} "
        "that is passed now is silently ignored.",
        evidence=(seen("read_exported", f"argument {place} ({path}) is {got}; {exported}"),),
        fix=Fix(text="pass it as a tensor, or export one package for each value"),
        harmful=case.failed and not of_the_call,
    )


def _same(got: str, fixed: object) -> bool:
    """Whether what was passed, as Python writes it, is what the export had: 1 is 1.0."""
    if got == repr(fixed) or not isinstance(fixed, int | float):
        return got == repr(fixed)
    try:
        return float({"True": "1", "False": "0"}.get(got, got)) == fixed
    except ValueError:
        return False


MOST_LITERALS = 3  # that are named, and tried
NUMBERS = ("int", "float")


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


def detect_scalars(case: DiagnosisState) -> Iterator[Suspect]:
    """Without an exported program: one suspect for each leaf that the package drops or has no place for."""
    plain = case.plain_run
    judged = plain is not None and (plain.as_expected or plain.failure not in ("none", "differs"))
    if judged or case.exported is not None:
        return
    for scalar, literals in _baked(case):
        yield _baked_suspect(scalar, literals, case)
    wanted = len(_exported_paths(case))
    for scalar in _scalars(case):
        if scalar.place >= wanted:
            fact = f"the call has {len(case.leaves)} arguments, and the model was exported with {wanted}"
            value = f"{scalar.value} (exported: none)"
            yield _Argument(
                guilty=component("input", scalar.path, value=value, index=scalar.place),
                summary=f"{scalar.path} = {scalar.value} is one argument more than the model was exported "
                "with: the package drops it without a word.",
                evidence=(seen("check_devices", fact),),
                fix=Fix(text="leave it out, or export the model with it"),
                observed=False,
            )


def scalars_to_try(case: DiagnosisState) -> list[tuple[Scalar, CodeNumber, float]]:
    """Numbers of the call, each with a literal that may stand for it, and what to put there."""
    found = [
        (scalar, literal, form)
        for scalar, literals in _baked(case)
        if scalar.number is not None
        for literal in literals
        for form in forms_of(scalar.number)[: 1 if case.device == "cpu" else 2]
    ]
    return found[:MOST_LITERALS]


def _scalars(case: DiagnosisState) -> list[Scalar]:
    """The scalars of a call from a file, or of a call whose outputs were called wrong; None is no scalar."""
    asked = isinstance(case.workload, PackageWorkload) or case.symptom.judges
    if not asked or case.given is None:
        return []
    placed = enumerate(zip(case.given.paths, case.leaves, strict=False))
    return [
        Scalar(place, path, leaf.kind, str(leaf.value))
        for place, (path, leaf) in placed
        if leaf.kind in (*NUMBERS, "bool", "str")
    ]


def _exported_paths(case: DiagnosisState) -> tuple[str, ...]:
    spec = case.package.signature.in_spec if case.package is not None else None
    return leaf_paths(spec) if spec is not None else ()


def _baked(case: DiagnosisState) -> Iterator[tuple[Scalar, list[CodeNumber]]]:
    """Scalars whose value is no literal of the code, each with the literals that may stand for it.

    The code of a division on CUDA has the reciprocal.
    """
    scalars = [scalar for scalar in _scalars(case) if scalar.place < len(_exported_paths(case))]
    kernels = case.package.wrapper.kernels.values() if case.package is not None and scalars else ()
    literals = literals_of(kernels)
    taken: set[float] = set()  # by numbers that are in the code as they are passed
    unknown = []
    for scalar in scalars:
        forms = forms_of(scalar.number) if scalar.number is not None else ()
        found = {each.value for each in literals if any(same(each.value, form) for form in forms)}
        taken |= found
        unknown += [scalar] if not found else []
    free = [literal for literal in literals if literal.value not in taken]
    for scalar in unknown:
        number = scalar.number
        likely = likeliest_first(free, number, scalar.kind == "int") if number is not None else []
        yield scalar, likely[:MOST_LITERALS]


def edit_key(scalar: Scalar, literal: CodeNumber | None, form: float | None = None) -> str:
    """The key of the intervention that puts a form of the given value in the place of a literal."""
    tail = f"{literal.kernel}:{literal.value!r}:{form!r}" if literal is not None else ""
    return f"scalar:{scalar.path}:{scalar.value}:{tail}"


def _baked_suspect(scalar: Scalar, literals: list[CodeNumber], case: DiagnosisState) -> Suspect:
    # The literal whose replacement removed the failure, if one did; else all that may stand for the scalar.
    forms = forms_of(scalar.number) if scalar.number is not None else ()
    keys = {edit_key(scalar, literal, form): literal for literal in literals for form in forms}
    proven = [keys[key] for key in keys if key in case.trials and case.trials[key].proves]
    found = proven or literals
    places = [f"{literal.value:g} in {literal.location} `{literal.code}`" for literal in found]
    stands = f"; the code has {', '.join(places)}" if places else ""
    fact = f"{scalar.path} is {scalar.value}, which no kernel of the package has as a literal{stands}"
    # The replacement that removed the failure, else the next to try; no replacement clears the scalar.
    edits = [each for each in case.scalar_edits if each.key.startswith(edit_key(scalar, None))]
    gone = [each for each in edits if each.key in case.trials and case.trials[each.key].proves]
    untried = [each for each in edits if each.key not in case.trials]
    exported = " or ".join(f"{literal.value:g}" for literal in found)
    return _Argument(
        guilty=Component(
            kind="input",
            name=scalar.path,
            input_index=scalar.place,
            value=f"{scalar.value} (exported: {exported or 'not known'})",
            generated_location=found[0].location if found else None,
            expression=found[0].code if found else None,
        ),
        summary=f"{scalar.path} = {scalar.value} is no tensor: the package drops it, and computes with what "
        f"was exported{stands}.",
        evidence=(seen("inspect_package", fact),),
        fix=Fix(text=f"export {scalar.path} as a tensor, or one package for each value of it"),
        intervention=gone[0] if gone else untried[0] if untried else None,
        weak=not found,
        settle="Give its value at export, or the exported program; with expect the literals are tried.",
        observed=False,
    )
