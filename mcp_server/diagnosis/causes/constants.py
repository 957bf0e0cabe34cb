"""Constant updates against the constants that the package was compiled with.

`load_constants` copies raw bytes and compares neither dtype nor shape (torch 2.8-2.15): a narrower dtype or
another shape gives wrong numbers or overruns the constant's memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.input import cast_in_update, compiled_values
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedUpdate, Leaf
from mcp_server.model import Component, Evidence, Fix
from mcp_server.package.constants import CompiledConstant

_OF_GENERATED_NAMES = ("update_constant_buffer", "update_constant_buffer_from_cpu")  # torch 2.8-2.15
KEEP_ALL = "compile with inductor_configs={'always_keep_tensor_constants': True}"


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """Wrong dtypes, shapes and devices of given constants, and parameters that no update reaches."""
    if case.capture is None or case.package is None:
        return
    compiled = {constant.fqn: constant for constant in case.package.constants}
    for update in case.capture.updates:
        yield from _wrong(update, compiled, case)
        yield from _unreached(update, compiled, case)
        yield from _not_finite(update, case)
        yield from _partial(update, case)
        yield from _misnamed(update, case)
        yield from _named_as_in_the_model(update, case)
        yield from _idle(update, case)


def _wrong(
    update: CapturedUpdate, compiled: dict[str, CompiledConstant], case: DiagnosisState
) -> Iterator[Suspect]:
    pairs = {name: (leaf, compiled[name]) for name, leaf in update.constants.items() if name in compiled}
    load = case.capture.load_of(update) if case.capture is not None else None
    home = load.device_index if load is not None else None
    found = {
        name: _difference(*pair, update) or _elsewhere(pair[0], update, home) for name, pair in pairs.items()
    }
    wrong = {name: difference for name, difference in found.items() if difference is not None}
    for name, difference in wrong.items():
        others = [other for other in wrong if other != name and wrong[other][0] == difference[0]]
        yield _suspect(name, others, update, difference, case)


def _difference(
    given: Leaf, constant: CompiledConstant, update: CapturedUpdate
) -> tuple[str, str, str] | None:
    """What differs: (aspect, given, compiled); another device only where the update failed on it."""
    if update.outcome == "failed" and given.device.partition(":")[0] not in ("", constant.device_type):
        return "device", given.device, constant.device_type
    if given.dtype and given.dtype != constant.dtype:
        return "dtype", given.dtype, constant.dtype
    if given.shape is not None and tuple(given.shape) != constant.shape:
        return "shape", str(list(given.shape)), str(list(constant.shape))
    if given.stride is not None and constant.stride and _other_stride(given, constant):
        return "stride", str(tuple(given.stride)), str(constant.stride)
    return None


def _elsewhere(given: Leaf, update: CapturedUpdate, home: int | None) -> tuple[str, str, str] | None:
    """On another device of the right type than the package, which reads it there: nothing copies it."""
    if update.user_managed and home is not None and given.device_index not in (None, home):
        return "device", given.device, f"{given.device.partition(':')[0]}:{home}"
    return None


def _other_stride(given: Leaf, constant: CompiledConstant) -> bool:
    """Strides differ along a dimension that is stepped along."""
    assert given.stride is not None and given.shape is not None
    steps = zip(given.shape, given.stride, constant.stride, strict=False)
    return any(size > 1 and a != b for size, a, b in steps)


def _suspect(
    name: str,
    others: list[str],
    update: CapturedUpdate,
    difference: tuple[str, str, str],
    case: DiagnosisState,
) -> Suspect:
    aspect, given, compiled = difference
    fact = f"{update.how} was given {name} with {aspect} {given}; the package was compiled with {compiled}"
    also = f" The {aspect} of {', '.join(others[:4])} differs, too." if others else ""
    return Suspect(
        category="constants",
        guilty=Component(
            kind="constant",
            name=name,
            value=f"{aspect} {given} (compiled: {compiled})",
            model_locations=update.stack[:2],
        ),
        summary=f"Constant {name} was updated with {aspect} {given} where {compiled} is compiled: "
        + _consequence(aspect, update)
        + also,
        level=CausalLevel.STATE,
        evidence=(Evidence(step="capture", fact=fact, source=str(update.file or "")),),
        fix=_fix(name, aspect, compiled, update),
        intervention=_converted(name, aspect, compiled),
        harmful=case.failed,
    )


def _converted(name: str, aspect: str, compiled: str) -> Intervention | None:
    """The same updates with the constant converted; a shape cannot be changed without the user's values."""
    return cast_in_update({name: compiled}) if aspect == "dtype" else None


def _consequence(aspect: str, update: CapturedUpdate) -> str:
    if aspect == "device":
        return (
            "the update rejects it."
            if update.outcome == "failed"
            else "the package reads it on that device without copying it."
        )
    if update.user_managed:
        return "the package reads its memory as compiled, without a check."
    return "its bytes are copied without a check."


def _fix(name: str, aspect: str, compiled: str, update: CapturedUpdate) -> Fix:
    if aspect == "dtype":
        return Fix(
            action="convert it before the update",
            before=f"state[{name!r}]",
            after=f"state[{name!r}].to(torch.{compiled})",
        )
    if aspect == "device":
        also = "" if update.user_managed else ", or pass allow_h2d_copy=True"
        return Fix(action=f"move it to {compiled} before the update{also}")
    if aspect == "stride":
        kept = "; keep that copy alive, and copy later values into it" if update.user_managed else ""
        return Fix(
            action=f"pass a tensor with the compiled strides{kept}", after=f"state[{name!r}].contiguous()"
        )
    return Fix(action=f"pass {name} with shape {compiled}, or export and compile again with the new shape")


def _unreached(
    update: CapturedUpdate, compiled: dict[str, CompiledConstant], case: DiagnosisState
) -> Iterator[Suspect]:
    """Parameters of the exported model that the package does not keep: an update leaves them stale."""
    if case.exported is None or update.outcome != "ok":
        return
    for name in sorted(set(case.exported.state) - set(compiled)):
        yield Suspect(
            category="constants",
            guilty=Component(kind="constant", name=name, model_locations=update.stack[:2]),
            summary=f"Constant {name} was folded into the code when the package was compiled: "
            f"{update.how} does not reach it, so that its old value stays.",
            level=CausalLevel.STATE,
            evidence=(
                Evidence(
                    step="capture",
                    fact=f"{name} is in the exported model and not among the package's constants",
                ),
            ),
            fix=Fix(action=KEEP_ALL),
            harmful=case.failed,
        )


def _not_finite(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Weights that hold NaN when they are given."""
    bad = [name for name, leaf in update.constants.items() if leaf.nan]
    if not bad:
        return
    shown = ", ".join(bad[:4])
    yield Suspect(
        category="constants",
        guilty=Component(kind="constant", name=bad[0], value="holds NaN", model_locations=update.stack[:2]),
        summary=f"{update.how} was given constants that hold NaN: {shown}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="capture", fact=f"{update.constants[bad[0]].nan} values of {bad[0]} are NaN"),
        ),
        fix=Fix(action="check the weights for values that are not finite before they are loaded"),
        intervention=_without_updates(case),
        harmful=case.failed,
    )


def _without_updates(case: DiagnosisState) -> Intervention | None:
    """The call with the constants as they were compiled."""
    call = case.call
    steps = call.request.get("steps", ()) if call is not None and call.operation == "replay" else ()
    return compiled_values(steps) if any(step["do"] == "constants" for step in steps) else None


def _partial(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """An update that leaves some of the model's constants at what they were."""
    if not update.missing or not update.constants or update.outcome != "ok":
        return
    shown = ", ".join(update.missing[:4])
    left, as_it_was = ("constants", "as they were") if update.missing[1:] else ("constant", "as it was")
    tied = _tied(update, case)
    yield Suspect(
        category="constants",
        guilty=Component(
            kind="constant", name=update.missing[0], value="not given", model_locations=update.stack[:2]
        ),
        summary=f"{update.how} left {len(update.missing)} {left} {as_it_was}: {shown}{tied}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="capture", fact=f"the package has {left} {shown}, not named in the update{tied}"),
        ),
        fix=Fix(action="pass every constant, with check_full_update=True"),
        harmful=case.failed,
        observed=case.plain_diverges,
    )


def _tied(update: CapturedUpdate, case: DiagnosisState) -> str:
    """That the first constant left out was compiled with the values of one that was given, where it was."""
    seen = case.capture
    load = seen.load_of(update) if seen is not None else None
    compiled = seen.compile_of(load) if seen is not None and load is not None else None
    digests = compiled.digests if compiled is not None else {}
    left = update.missing[0]
    same = [name for name in digests if name != left and digests.get(left) == digests[name]]
    for name in same:
        if name in update.constants:
            return (
                f" (compiled with the values of {name}: a tied weight is a constant of its own in a package)"
            )
        if name not in update.compiled:
            return f" (tied to {name} in the model: the package has the two under this name alone)"
    return ""


def _misnamed(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """An update that was refused, because it names other constants than the package has."""
    if update.outcome != "failed" or not update.compiled or not (update.unknown or update.missing):
        return
    text = update.error.text if update.error is not None else ""
    name = next((n for n in (*update.unknown, *update.missing) if n in text), "")
    if not name:
        return
    known = name in update.compiled
    yield Suspect(
        category="constants",
        guilty=Component(
            kind="constant",
            name=name,
            value="not given" if known else "not a constant of the package",
            model_locations=update.stack[:2],
        ),
        summary=f"{update.how} was refused: {_names_differ(update)}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="capture", fact=_names_differ(update)),
            Evidence(step="run", fact=text[:300]),
        ),
        fix=_renaming(name, update, case),
        harmful=case.failed,
    )


def _named_as_in_the_model(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """A refused update by a method that takes the names of the generated code, given those of the model."""
    constants = case.package.constants if case.package is not None else ()
    renamed = [c for c in constants if c.name != c.fqn and not c.folded]
    if update.outcome != "failed" or update.how not in _OF_GENERATED_NAMES or not renamed:
        return
    given = set(update.constants)
    if any(c.name in given for c in renamed) or not any(c.fqn in given for c in renamed):
        return
    first = next(c for c in renamed if c.fqn in given)
    fact = f"{update.how} takes the names of the generated code ({first.name}) and was given {first.fqn}"
    yield Suspect(
        category="constants",
        guilty=Component(
            kind="constant",
            name=first.fqn,
            value=f"{first.name} in the generated code",
            model_locations=update.stack[:2],
        ),
        summary=f"{fact}, as the model names it.",
        level=CausalLevel.STATE,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action="give the constants with load_constants, which takes the names of the model",
            before=f"{update.how}(state, …)",
            after="load_constants(state, check_full_update=True)",
        ),
        harmful=case.failed,
    )


def _idle(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """An update of the half of the constants that is not in use; a package's loader cannot swap the halves.

    The first argument after the map says so (torch 2.8-2.15).
    """
    idle = update.arguments[:1] == [True] and update.outcome == "ok" and bool(update.constants)
    if not idle or not _stands_at_the_call(update, case):
        return
    fact = f"{update.how} was called with use_inactive=True, and the call after it takes the other half"
    yield Suspect(
        category="constants",
        guilty=Component(
            kind="constant",
            name=next(iter(update.constants)),
            value="given to the half that is not in use",
            model_locations=update.stack[:2],
        ),
        summary=f"{update.how} filled the half of the constants that is not in use (use_inactive=True), and "
        "the loaded package has no way to swap the buffers, so calls still use the old constants.",
        level=CausalLevel.CALL,
        evidence=(Evidence(step="capture", fact=fact),),
        fix=Fix(
            action="update the buffer that is in use, while no call is running",
            before=f"{update.how}(state, True, …)",
            after=f"{update.how}(state, False, …)",
        ),
        intervention=_in_use(case),
        harmful=case.failed,
        observed=False,
    )


def _stands_at_the_call(update: CapturedUpdate, case: DiagnosisState) -> bool:
    """Whether the suspect call is of the same loaded package, later, with no other update between."""
    seen = case.capture
    call, load = (seen.suspect, seen.load_of(update)) if seen is not None else (None, None)
    if seen is None or call is None or load is None or load.loader != "AOTIModelPackageLoader":
        return False
    here = [u for u in seen.updates if (u.pid, u.load) == (call.pid, call.load) and u.n < call.n]
    return bool(here) and here[-1] == update


def _in_use(case: DiagnosisState) -> Intervention | None:
    """The call after the same updates, all of the half in use."""
    if case.call is None or case.call.operation != "replay":
        return None
    steps = [
        {**step, "arguments": [False, *step["arguments"][1:]]} if step["do"] == "constants" else step
        for step in case.call.request.get("steps", ())
    ]
    what = "the call after an update of the half in use"
    return Intervention("half in use", Kind.CONSTANT, what, options=Options(steps=tuple(steps)))


def _names_differ(update: CapturedUpdate) -> str:
    parts = [
        f"{len(names)} {what}: {', '.join(names[:3])}"
        for names, what in ((update.unknown, "given and not in the package"), (update.missing, "not given"))
        if names
    ]
    return "; ".join(parts)


def _renaming(name: str, update: CapturedUpdate, case: DiagnosisState) -> Fix:
    """The compiled name that ends like the given one, where there is one."""
    same = [other for other in update.compiled if name.endswith(f".{other}") or other.endswith(f".{name}")]
    if len(same) == 1:
        return Fix(action="give the constants under the names of the export", before=name, after=same[0])
    if case.exported is not None and name in case.exported.state:
        return Fix(action=f"{name} was folded into the code when the package was compiled: {KEEP_ALL}")
    return Fix(action=f"give exactly the package's constants: {', '.join(update.compiled[:4])}")
