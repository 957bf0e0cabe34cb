"""Arguments that were no tensors at export: AOTInductor computes with their values, whatever it is given.

A tensor in such a place, a mask where the export had None say, makes one input too many.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedCall
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis per argument whose value is not the exported one."""
    if case.exported is None:
        return
    for place, fixed in tensors_at_fixed(case):
        yield _surplus(place, fixed, case)
    for place, fixed in case.exported.fixed:
        given, call = _given(case, place), None
        if given is None or _same(given, fixed):
            given, call = _given_elsewhere(_path(place, case), fixed, case)
        if given is not None:
            yield _suspect(place, fixed, given, call, case)


def tensors_at_fixed(case: Case) -> list[tuple[int, object]]:
    """The places of tensors where the export had none, with what it had, in a call of too many tensors."""
    if all(mismatch.aspect != "count" for mismatch in case.mismatches):
        return []
    fixed = case.exported.fixed if case.exported is not None else ()
    placed = [(place, value) for place, value in fixed if place < len(case.leaves)]
    return [(place, value) for place, value in placed if case.leaves[place].get("kind") == "tensor"]


def _surplus(place: int, fixed: object, case: Case) -> Suspect:
    path = _path(place, case)
    leaf = case.leaves[place]
    given = f"a tensor {leaf.get('dtype', '')}{list(leaf.get('shape') or ())}"
    fact = (
        f"argument {place} ({path}) is {given}; it was {fixed!r} at export: the package has no input for it"
    )
    return Suspect(
        category="input_mismatch",
        guilty=_party(place, given, fixed, case),
        summary=f"Argument {place} ({path}) was {fixed!r} when the model was exported, so that the package "
        "has no input for the tensor that is passed there.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="read_exported", fact=fact),),
        fix=Fix(
            action=f"export the model with a tensor there (one that changes nothing stands for {fixed!r}), "
            "or one package for each form of the call"
        ),
        harmful=case.failed,
    )


def _party(place: int, given: str, fixed: object, case: Case, call: CapturedCall | None = None) -> Party:
    """The argument with what was passed, beside what it was at export."""
    return Party(
        kind="input",
        name=_path(place, case),
        input_index=place,
        value=f"{given} (exported: {fixed!r})",
        model_locations=call.stack[:2] if call is not None else case.call_locations,
    )


def _path(place: int, case: Case) -> str:
    paths = case.given.paths if case.given is not None else ()
    return paths[place] if place < len(paths) else f"argument {place}"


def _given(case: Case, place: int) -> str | None:
    """What the caller passed there, as text; None when the call's tree was not kept."""
    if place >= len(case.leaves) or case.leaves[place].get("kind") == "tensor":
        return None
    return str(case.leaves[place].get("value"))


def _given_elsewhere(path: str, fixed: object, case: Case) -> tuple[str | None, CapturedCall | None]:
    """Another value in another call of that package, and the call: a check may be of any of them."""
    seen = case.capture
    suspect = seen.suspect if seen is not None else None
    if seen is None or suspect is None:
        return None, None
    alike = [call for call in seen.calls if (call.pid, call.load) == (suspect.pid, suspect.load)]
    other = next((call for call in alike if not _same(call.plain.get(path, repr(fixed)), fixed)), None)
    return (other.plain[path], other) if other is not None else (None, None)


def _same(given: str, fixed: object) -> bool:
    """Whether what was given, as Python writes it, is what the export had: 1 is 1.0."""
    if given == repr(fixed) or not isinstance(fixed, int | float):
        return given == repr(fixed)
    try:
        return float({"True": "1", "False": "0"}.get(given, given)) == fixed
    except ValueError:
        return False


def _suspect(place: int, fixed: object, given: str, call: CapturedCall | None, case: Case) -> Suspect:
    """Of the suspect call, or of `call`."""
    path = _path(place, case)
    where = f" in call {call.number}" if call is not None else ""
    fact = (
        f"argument {place} ({path}) is {given}{where}; it was {fixed!r} at export, which the package "
        "computes with"
    )
    return Suspect(
        category="input_mismatch",
        guilty=_party(place, given, fixed, case, call),
        summary=f"Argument {place} ({path}) was fixed to {fixed!r} when the model was exported; the {given} "
        "that is passed is dropped without a word.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="read_exported", fact=fact),),
        fix=Fix(action="pass it as a tensor, or export one package for each value"),
        harmful=case.failed,
    )
