"""Arguments that were not tensors at export: the package still computes with the values of the export.

`AOTICompiledModel.__call__` drops non-tensors (torch/export/pt2_archive/_package.py, 2.8-2.15). The value
of an argument is in the exported program, not in the package, whose code has a literal in its place.
A tensor in such a place, for example a mask where the export had None, is one input too many.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mcp_server.diagnosis.components import component, seen
from mcp_server.diagnosis.interventions.source import action_of
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Category, Component, ComponentKind, Fix, PackageWorkload
from mcp_server.package.kernels import CodeNumber, literals_of, same
from mcp_server.worker.report import Attempt, TensorFacts

_Argument = partial(Suspect, category="input_mismatch", level=CausalLevel.CALL)


def detect_fixed_arguments(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect each argument whose value differs from its value in the exported program."""
    if case.exported is None:
        return
    for place, fixed in tensors_at_fixed(case):
        leaf = case.leaves[place]
        got = f"a tensor {leaf.dtype or ''}{leaf.shape or []}"
        path = _path(place, case)
        fact = f"argument {place} ({path}) is {got}; it was {fixed!r} at export"
        yield _Argument(
            guilty=_fixed_component(place, got, fixed, case),
            summary=f"Argument {place} ({path}) was {fixed!r} when the model was exported, so the "
            "package has no input for the tensor that is now passed there.",
            evidence=(seen("read_exported", f"{fact}: the package has no input for it"),),
            fix=Fix(text="export the model with a tensor there, or one package for each kind of call"),
            harmful=case.failed,
        )
    for place, fixed in case.exported.fixed:
        yield from _other_value(place, fixed, case)


@dataclass(frozen=True)
class _Fixed:
    """What a build stage silently fixed: category, component, and sentences about it."""

    category: Category
    kind: ComponentKind
    fact: str
    summary: str
    holds: Callable[[DiagnosisState], bool] = lambda case: case.failed


_FIXED = {
    "parameter": _Fixed(
        "constants",
        "constant",
        "forward changes {what}, which is not a buffer",
        "The model writes to one of its own parameters: {fact}. The compiled code returns the new values as "
        "one more output, which torch refuses when the package is called.",
    ),
    "sizes": _Fixed(
        "shape_out_of_range",
        "op",
        "the compile of {name} assumed {what}, as in the example",
        "The package computes with sizes of the example: {fact}, and the call has other sizes. The export "
        "allows them, and nothing checks them.",
    ),
    "state": _Fixed(
        "wrong_output",
        "constant",
        "forward changes {what}, which is not a registered buffer",
        "The model keeps state that a package does not have: {fact}. Each call of the package "
        "computes with the state that the export began with.",
        # The package agrees with its program, so even a script that passes may have wrong numbers.
        lambda case: bool(case.equals_eager) and all(call.outcome == "ok" for call in case.calls),
    ),
}


def detect_fixed(case: DiagnosisState) -> Iterator[Suspect]:
    """What the build fixed silently: sizes, Python state, or a parameter that forward changes."""
    stages = [tried.stage for tried in case.captured.attempts]
    for tried in case.captured.attempts:
        row, alone = _FIXED.get(tried.stage), stages.count(tried.stage) > 1
        for each in tried.attempts if row is not None else ():
            assert row is not None
            name = each.reached_code.split()[0] if row.kind == "constant" else each.action.split()[1]
            fact = row.fact.format(name=name, what=each.reached_code)
            trial = case.trials.get(f"source:{each.name}")
            yield Suspect(
                category=row.category,
                level=CausalLevel.BUILD,
                guilty=component(row.kind, name, tried.stack, value=each.reached_code),
                summary=row.summary.format(fact=fact),
                evidence=(seen("capture", fact),),
                fix=Fix(
                    text=f"{action_of(each)}{_tried(each, alone=alone)}",
                    after=(each.after if each.outcome != "differs" else "") or None,
                ),
                intervention=trial.intervention if trial is not None else None,
                harmful=row.holds(case),
            )


def _tried(attempt: Attempt, *, alone: bool) -> str:
    """How the trial of a change ended. Empty if it passed. `alone`: other changes were tried as well."""
    if attempt.outcome == "passes":
        return ""
    differs = (
        f"tried{' alone' if alone else ''}: outputs still differ"
        if attempt.outcome == "differs"
        else "not tried"
    )
    return f" (tried, and it fails: {attempt.error})" if attempt.error else f" ({differs})"


def tensors_at_fixed(case: DiagnosisState) -> list[tuple[int, object]]:
    """(place, exported value) of tensors that were not tensors at export. Empty if their number fits."""
    if all(mismatch.aspect != "count" for mismatch in case.mismatches):
        return []
    fixed = case.exported.fixed if case.exported is not None else ()
    placed = [(place, value) for place, value in fixed if place < len(case.leaves)]
    return [(place, value) for place, value in placed if case.leaves[place].kind == "tensor"]


def _path(place: int, case: DiagnosisState) -> str:
    paths = case.given.paths if case.given is not None else ()
    return paths[place] if place < len(paths) else f"argument {place}"


def _fixed_component(place: int, got: str, fixed: object, case: DiagnosisState) -> Component:
    """The argument, with the value passed in this call and the value at export."""
    value = f"{got} (exported: {fixed!r})"
    return component("input", _path(place, case), case.call_locations, value=value, index=place)


def _other_value(place: int, fixed: object, case: DiagnosisState) -> Iterator[Suspect]:
    """An argument of the suspect call whose value differs from the exported one."""
    leaf = case.leaves[place] if place < len(case.leaves) else TensorFacts(kind="tensor")
    got, path = str(leaf.value), _path(place, case)
    if leaf.kind == "tensor" or _same(got, fixed):
        return
    # The package does not read the argument, so the call of the package cannot fail because of it.
    of_the_call = case.failure_of("plain") in ("exception", "signal", "timeout", "out_of_memory")
    exported = f"it was {fixed!r} at export, and the package still computes with that"
    yield _Argument(
        guilty=_fixed_component(place, got, fixed, case),
        summary=f"Argument {place} ({path}) was fixed to {fixed!r} when the model was exported; the {got} "
        "that is passed now is silently ignored.",
        evidence=(seen("read_exported", f"argument {place} ({path}) is {got}; {exported}"),),
        fix=Fix(text="pass it as a tensor, or export one package for each value"),
        harmful=case.failed and not of_the_call,
    )


def _same(got: str, fixed: object) -> bool:
    """Whether the passed value, as Python writes it, equals the value at export: 1 equals 1.0."""
    if got == repr(fixed) or not isinstance(fixed, int | float):
        return got == repr(fixed)
    try:
        return float({"True": "1", "False": "0"}.get(got, got)) == fixed
    except ValueError:
        return False


MOST_LITERALS = 3  # literals that a message names


@dataclass(frozen=True)
class Scalar:
    """A leaf that is not a tensor: `value` as Python writes it, and `kind`, its type."""

    place: int
    path: str
    kind: str
    value: str

    @property
    def forms(self) -> tuple[float, ...]:
        """The numbers that the code may have for the value: itself, or its reciprocal (division on CUDA)."""
        number = float(self.value) if self.kind in ("int", "float") else None
        return () if number is None else (number, 1 / number) if number else (number,)


def detect_scalars(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect each argument that the package ignores, if there is no exported program to compare."""
    plain = case.plain_run
    judged = plain is not None and (plain.as_expected or plain.failure not in ("none", "differs"))
    if judged or case.exported is not None:
        return
    paths = case.package.signature.paths if case.package is not None else None
    wanted, scalars = len(paths or ()), _scalars(case)
    yield from _without_literal([scalar for scalar in scalars if scalar.place < wanted], case)
    for scalar in scalars:
        if scalar.place >= wanted:
            fact = f"the call has {len(case.leaves)} arguments, but the model was exported with {wanted}"
            value = f"{scalar.value} (exported: none)"
            yield _Argument(
                guilty=component("input", scalar.path, value=value, index=scalar.place),
                summary=f"{scalar.path} = {scalar.value} is an argument that the model was not exported "
                "with: the package silently drops it.",
                evidence=(seen("check_devices", fact),),
                fix=Fix(text="leave it out, or export the model with this argument"),
                observed=False,
            )


def _scalars(case: DiagnosisState) -> list[Scalar]:
    """The scalars (not None) of a call from a file, or of a call whose outputs were reported as wrong."""
    asked = isinstance(case.workload, PackageWorkload) or case.symptom.judges
    if not asked or case.given is None:
        return []
    placed = enumerate(zip(case.given.paths, case.leaves, strict=False))
    return [
        Scalar(place, path, leaf.kind, str(leaf.value))
        for place, (path, leaf) in placed
        if leaf.kind in ("int", "float", "bool", "str")
    ]


def _without_literal(scalars: Sequence[Scalar], case: DiagnosisState) -> Iterator[Suspect]:
    """Scalars whose value is not a literal in the code, each with the literals that may have replaced it."""
    kernels = case.package.wrapper.kernels.values() if case.package is not None and scalars else ()
    literals = literals_of(kernels)
    found = {
        scalar: {each.value for each in literals if any(same(each.value, form) for form in scalar.forms)}
        for scalar in scalars
    }
    taken = set().union(*found.values())
    free = [each for each in literals if each.value not in taken]
    for scalar in (scalar for scalar in scalars if not found[scalar]):
        yield _baked(scalar, free[:MOST_LITERALS] if scalar.forms else [])


def _baked(scalar: Scalar, literals: Sequence[CodeNumber]) -> Suspect:
    places = [f"{literal.value:g} in {literal.location} `{literal.code}`" for literal in literals]
    stands = f"; the code has {', '.join(places)}" if places else ""
    fact = f"{scalar.path} is {scalar.value}, which no kernel of the package has as a literal{stands}"
    exported = " or ".join(f"{literal.value:g}" for literal in literals)
    return _Argument(
        guilty=Component(
            kind="input",
            name=scalar.path,
            input_index=scalar.place,
            value=f"{scalar.value} (exported: {exported or 'not known'})",
            generated_location=literals[0].location if len(literals) == 1 else None,
            expression=literals[0].code if len(literals) == 1 else None,
        ),
        summary=f"{scalar.path} = {scalar.value} is not a tensor: the package drops it, and computes with "
        f"the exported value{stands}.",
        evidence=(seen("inspect_package", fact),),
        fix=Fix(text=f"export {scalar.path} as a tensor, or one package for each value of it"),
        weak=not literals,
        settle="Give its value at export, or the exported program.",
        observed=False,
    )
