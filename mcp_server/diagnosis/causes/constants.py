"""Updates of constants, against what the package was compiled with, and constants in shared memory.

`load_constants` copies raw bytes and compares neither dtype nor shape (torch 2.8-2.15): a narrower dtype or
another shape gives wrong numbers or overruns the constant's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from mcp_server.diagnosis.components import component, seen, written_storages
from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.input import compiled_values, constant_own_memory
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedCall, CapturedUpdate, Leaf
from mcp_server.model import Component, Fix
from mcp_server.package.archive import CompiledConstant
from mcp_server.plurals import counted, quoted
from mcp_server.worker import events

_OF_GENERATED_NAMES = ("update_constant_buffer", "update_constant_buffer_from_cpu")  # torch 2.8-2.15
KEEP_ALL = "compile with inductor_configs={'always_keep_tensor_constants': True}"


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """Constants given with another dtype, shape or device, with NaN, under other names, or not at all."""
    if case.package is None:
        return
    looks = (_different, _unreached, _not_finite, _partial, _misnamed, _named_as_in_the_model, _idle)
    for update in case.updates:
        for look in looks:
            for suspect in look(update, case):
                yield replace(suspect, harmful=case.failed)


def _compiled(case: DiagnosisState) -> dict[str, CompiledConstant]:
    """The package's constants by their names in the model."""
    return {each.fqn: each for each in case.package.constants} if case.package is not None else {}


_OfUpdate = partial(Suspect, category="constants", level=CausalLevel.STATE)


def _updated(name: str, update: CapturedUpdate, value: str | None = None) -> Component:
    """A constant, at the lines of the update that gave it or left it out."""
    return component("constant", name, update.stack[:2], value=value)


def _different(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Constants given in another form than compiled."""
    load, compiled = case.captured.load_of(update), _compiled(case)
    home = load.device_index if load is not None else None
    pairs = {name: (leaf, compiled[name]) for name, leaf in update.constants.items() if name in compiled}
    compared = {name: _difference(*pair, update, home) for name, pair in pairs.items()}
    wrong = {name: difference for name, difference in compared.items() if difference is not None}
    for name, (aspect, got, wanted) in wrong.items():
        fact = f"{update.how} was given {name} with {aspect} {got}; the package was compiled with {wanted}"
        consequence = "its bytes are copied without a check."
        if aspect == "device" and update.outcome == "failed":
            consequence = "the update rejects it."
        elif aspect == "device":
            consequence = "the package reads it on that device without copying it."
        elif update.user_managed:
            consequence = "the package reads its memory as compiled, without a check."
        others = [other for other in wrong if other != name and wrong[other][0] == aspect]
        also = f" The {aspect} of {', '.join(others[:4])} differs, too." if others else ""
        yield _OfUpdate(
            guilty=_updated(name, update, f"{aspect} {got} (compiled: {wanted})"),
            summary=f"Constant {name} was given with {aspect} {got}. The package was compiled for {wanted}: "
            f"{consequence}{also}",
            evidence=(seen("capture", fact, str(update.file or "")),),
            fix=_fix(name, aspect, wanted, update),
            # A shape cannot be changed without the user's values.
            intervention=_cast(name, wanted) if aspect == "dtype" else None,
        )


def _difference(
    given: Leaf, constant: CompiledConstant, update: CapturedUpdate, home: int | None
) -> tuple[str, str, str] | None:
    """What differs: (aspect, given, compiled). `home` is the index of the package's CUDA device.

    Another type of device counts only if the update failed: nothing copies a user-managed constant.
    """
    kind = given.device.partition(":")[0]
    if update.outcome == "failed" and kind not in ("", constant.device_type):
        return "device", given.device, constant.device_type
    if given.dtype and given.dtype != constant.dtype:
        return "dtype", given.dtype, constant.dtype
    if given.shape is not None and tuple(given.shape) != constant.shape:
        return "shape", str(list(given.shape)), str(list(constant.shape))
    if given.stride is not None and given.shape is not None and constant.stride:
        # Strides count only along a dimension that is stepped along.
        steps = zip(given.shape, given.stride, constant.stride, strict=False)
        if any(size > 1 and a != b for size, a, b in steps):
            return "stride", str(tuple(given.stride)), str(constant.stride)
    if update.user_managed and home is not None and given.device_index not in (None, home):
        return "device", given.device, f"{kind}:{home}"
    return None


def _cast(name: str, dtype: str) -> Intervention:
    """The updates with this constant as compiled."""
    return Intervention(
        key=f"constant:cast:{name}",
        kind=Kind.CONSTANT,
        what=f"the update with {name} as {dtype}",
        options=Options(cast={name: dtype}),
        before_code=f'"{name}": {name}',
        after_code=f'"{name}": {name}.to(torch.{dtype})',
    )


def _fix(name: str, aspect: str, compiled: str, update: CapturedUpdate) -> Fix:
    given = f"state[{name!r}]"
    if aspect == "dtype":
        return Fix(text="convert it before the update", before=given, after=f"{given}.to(torch.{compiled})")
    if aspect == "device":
        also = "" if update.user_managed else ", or pass allow_h2d_copy=True"
        return Fix(text=f"move it to {compiled} before the update{also}")
    if aspect == "stride":
        kept = "; keep that copy alive, and copy later values into it" if update.user_managed else ""
        action = f"pass a tensor with the compiled strides{kept}"
        return Fix(text=action, after=f"{given}.contiguous()")
    return Fix(text=f"pass {name} with shape {compiled}, or export and compile again with the new shape")


def _unreached(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Parameters of the exported model that the package does not keep: an update leaves them stale."""
    if case.exported is None or update.outcome != "ok":
        return
    for name in sorted(set(case.exported.state) - set(_compiled(case))):
        fact = f"{name} is in the exported model and not among the package's constants"
        yield _OfUpdate(
            guilty=_updated(name, update),
            summary=f"Constant {name} was folded into the code when the package was compiled: "
            f"{update.how} does not reach it, so that its old value stays.",
            evidence=(seen("capture", fact),),
            fix=Fix(text=KEEP_ALL),
        )


NOT_FOLDED = "compile with inductor_configs={'joint_graph_constant_folding': False}"


def detect_folded_state(case: DiagnosisState) -> Iterator[Suspect]:
    """A buffer that the model reads and writes in every call, and that no launch of the package reads.

    Inductor takes a buffer of one element with a known value for a constant, although the model writes to it
    (pytorch issue 165444). Without that folding, calls of a package of torch 2.13 were right again.
    """
    if case.exported is None or case.view is None or case.failure_of("plain") not in ("none", "differs"):
        return
    compiled = _compiled(case)
    for name, line in case.exported.counted:
        known = compiled.get(name)
        if known is not None and case.view.readers_of_name.get(known.name):
            continue
        fact = f"the exported program reads {name} and writes it in place; no launch of the package reads it"
        yield Suspect(
            category="wrong_output",
            guilty=component("constant", name, [line], value="fixed at export"),
            summary=f"The state {name} does not advance: the model reads and writes it in each call, and the "
            "compiler took its value at export for a constant. The first call is right, later ones are not.",
            level=CausalLevel.BUILD,
            evidence=(seen("inspect_package", fact),),
            fix=Fix(
                text=f"{NOT_FOLDED}, or give {name} the shape of what it is computed with",
                before=line.code or None,
            ),
            harmful=case.failed,
            observed=case.failed,
        )


def _not_finite(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Weights that hold NaN when they are given."""
    bad = [name for name, leaf in update.constants.items() if leaf.nan]
    if not bad:
        return
    call = case.call
    replayed = call is not None and call.operation == "replay" and call.updated
    yield _OfUpdate(
        guilty=_updated(bad[0], update, "holds NaN"),
        summary=f"{update.how} was given constants that hold NaN: {', '.join(bad[:4])}.",
        evidence=(seen("capture", f"{update.constants[bad[0]].nan} values of {bad[0]} are NaN"),),
        fix=Fix(text="check the weights for values that are not finite before they are loaded"),
        intervention=compiled_values(call.steps) if call is not None and replayed else None,
    )


def _partial(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """An update that leaves constants as they were."""
    if not update.missing or not update.constants or update.outcome != "ok":
        return
    shown = ", ".join(update.missing[:4])
    left, as_it_was = ("constants", "as they were") if update.missing[1:] else ("constant", "as it was")
    tied = _tied(update, case)
    yield _OfUpdate(
        guilty=_updated(update.missing[0], update, "not given"),
        summary=f"{update.how} left {len(update.missing)} {left} {as_it_was}: {shown}{tied}.",
        evidence=(seen("capture", f"the package has {left} {shown}, not named in the update{tied}"),),
        fix=Fix(text="pass every constant, with check_full_update=True"),
        observed=case.plain_diverges and bool(tied),
    )


def _tied(update: CapturedUpdate, case: DiagnosisState) -> str:
    """Says which constant the first one left out was tied to or shared values with; empty if none."""
    compiled = case.captured.compile_of(update)
    digests = compiled.digests if compiled is not None else {}
    left = update.missing[0]
    for name in (name for name in digests if name != left and digests[name] == digests.get(left)):
        if name in update.constants:
            tied = "a tied weight is a constant of its own in a package"
            return f" (compiled with the values of {name}: {tied})"
        if name not in update.compiled:
            return f" (tied to {name} in the model: the package has the two under this name alone)"
    return ""


def _misnamed(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """An update that was refused, because it names other constants than the package has."""
    if update.outcome != "failed" or not update.compiled or update.error is None:
        return
    text = update.error.text
    name = next((n for n in (*update.unknown, *update.missing) if n in text), "")
    if not name:
        return
    groups = ((update.unknown, "given and not in the package"), (update.missing, "not given"))
    differ = "; ".join(f"{len(names)} {what}: {', '.join(names[:3])}" for names, what in groups if names)
    # The compiled name that ends like the given one is the one that was meant.
    same = [other for other in update.compiled if name.endswith(f".{other}") or other.endswith(f".{name}")]
    if len(same) == 1:
        fix = Fix(text="give the constants under the names of the export", before=name, after=same[0])
    elif case.exported is not None and name in case.exported.state:
        fix = Fix(text=f"{name} was folded into the code when the package was compiled: {KEEP_ALL}")
    else:
        fix = Fix(text=f"give exactly the package's constants: {', '.join(update.compiled[:4])}")
    value = "not given" if name in update.compiled else "not a constant of the package"
    yield _OfUpdate(
        guilty=_updated(name, update, value),
        summary=f"{update.how} was refused: {differ}.",
        evidence=(seen("capture", differ), seen("run", quoted(text))),
        fix=fix,
    )


def _named_as_in_the_model(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """A refused update by a method that takes the names of the generated code, given those of the model."""
    if update.outcome != "failed" or update.how not in _OF_GENERATED_NAMES or case.package is None:
        return
    renamed = [c for c in case.package.constants if c.name != c.fqn and not c.folded]
    first = next((c for c in renamed if c.fqn in update.constants), None)
    if first is None or any(c.name in update.constants for c in renamed):
        return
    fact = f"{update.how} takes the names of the generated code ({first.name}) and was given {first.fqn}"
    yield _OfUpdate(
        guilty=_updated(first.fqn, update, f"{first.name} in the generated code"),
        summary=f"{fact}, as the model names it.",
        evidence=(seen("capture", fact),),
        fix=Fix(
            text="give the constants with load_constants, which takes the names of the model",
            before=f"{update.how}(state, …)",
            after="load_constants(state, check_full_update=True)",
        ),
    )


def _idle(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """The last update before the call, if it filled the half of the constants that is not in use.

    The first argument after the map selects the half (torch 2.8-2.15); a package's loader cannot swap them.
    """
    call, load = case.suspect_call, case.suspect_load
    if call is None or load is None or load.loader != "AOTIModelPackageLoader":
        return
    here = [u for u in case.updates if (u.pid, u.load) == (call.pid, call.load) and u.n < call.n]
    filled_idle = update.arguments[:1] == [True] and update.outcome == "ok" and bool(update.constants)
    if not filled_idle or here[-1:] != [update]:
        return
    # The call after the same updates, all made to the half in use.
    test, steps = None, list(case.call.steps) if case.call is not None else []
    if case.call is not None and case.call.operation == "replay":
        for n, step in enumerate(steps):
            if step["do"] == "constants":
                steps[n] = {**step, "arguments": [False, *step["arguments"][1:]]}
        what = "the call after an update of the half in use"
        test = Intervention("half in use", Kind.CONSTANT, what, options=Options(steps=tuple(steps)))
    fact = f"{update.how} was called with use_inactive=True, and the call after it takes the other half"
    yield _OfUpdate(
        guilty=_updated(next(iter(update.constants)), update, "given to the half that is not in use"),
        summary=f"{update.how} filled the half of the constants that is not in use (use_inactive=True), and "
        "the loaded package has no way to swap the buffers, so calls still use the old constants.",
        level=CausalLevel.CALL,
        evidence=(seen("capture", fact),),
        fix=Fix(
            text="update the buffer that is in use, while no call is running",
            before=f"{update.how}(state, True, …)",
            after=f"{update.how}(state, False, …)",
        ),
        intervention=test,
        observed=False,
    )


# With `user_managed=True` the package reads the program's own memory (torch 2.8-2.15): it computes with what
# is written there later, through whatever view. A call that is made again gets the values as they were given:
# it shows what it would have been without the writes.
MOST_NAMED = 4


def detect_altered_constants(case: DiagnosisState) -> Iterator[Suspect]:
    """One suspect, if the call with the values as given returns what the program expected."""
    call = case.suspect_call
    changed = _changed(call, case) if call is not None else None
    if call is None or changed is None:
        return
    names, update, fact = changed
    plain = case.plain_run
    if plain is None or plain.failure != "none" or plain.worker is None:
        return
    expected = plain.last(events.ComparedExpected)
    right = expected is not None and expected.equal
    returns = "what the program expected" if right else "well"
    again = f"with the constants as originally loaded, the call returns {returns}"
    lines = [*update.stack[:1], *call.stack[:1]]
    yield _OfUpdate(
        guilty=component("constant", names[0], lines, value="written by the program after the update"),
        summary="The program changed constants that it shares with the package (user_managed=True), so that "
        f"the call computes with other values: {', '.join(names[:MOST_NAMED])}.",
        evidence=(seen("capture", fact), seen("run", again)),
        fix=Fix(
            text="give the package clones, into which nothing else is written (no views of one block)",
            after="{name: value.clone() for name, value in weights.items()}",
        ),
        harmful=case.failed,
        weak=not right,
        observed=right,
    )


def _changed(call: CapturedCall, case: DiagnosisState) -> tuple[list[str], CapturedUpdate, str] | None:
    """Constants whose values differ from their update's: names, the update, and how that was seen.

    Seen at the call if the values were read then, else by the count of writes, else at a failed check.
    """
    own = written_by_calls(case)
    if call.refilled is not None:
        names = [name for name in call.refilled if name not in own]
        fact = "{} had other values at the call than {} gave"
    elif call.altered:
        names, fact = call.altered, "{} were written in place between {} and the call"
    else:
        checks = [*case.captured.assertions, *case.captured.ends]
        after = [check for check in checks if check.pid == call.pid and check.n > call.n]
        check = min(after, key=lambda check: check.n, default=None)
        later = check.refilled.get(call.load, []) if check is not None else []
        names = [name for name in later if name not in own]
        fact = "{} had other values when the check failed than {} gave"
    same = [u for u in case.updates if (u.pid, u.load) == (call.pid, call.load) and u.n < call.n]
    update = next((u for u in reversed(same) if names and names[0] in u.constants), None)
    if update is None:
        return None
    fact = fact.format(counted(len(names), "constant"), update.how)
    return names, update, f"{fact}: {', '.join(names[:MOST_NAMED])}"


def written_by_calls(case: DiagnosisState) -> set[str]:
    """Constants that the calls themselves change, as buffers of the model; all where that is not known."""
    if case.view is None or case.package is None:
        return {name for update in case.updates for name in update.constants}
    storages, buffers = written_storages(case), case.view.wrapper.buffers
    names = {c.name for c in buffers.values() if c.kind == "constant" and c.storage in storages}
    return {constant.fqn for constant in case.package.constants if constant.name in names}


# `update_constant_buffer` copies `aoti_torch_get_storage_size` bytes from the address of a view, and reads
# the copy with the offset that the view had in its block (model_container.h of aoti_runtime, 2.8-2.15): it
# reads and writes beyond the constant, and computes with what lies further on.
COPIES = ("load_constants", "update_constant_buffer")  # by storage; what the program manages is not copied


def detect_viewed_constants(case: DiagnosisState) -> Iterator[Suspect]:
    """Views given as constants, in an update that did not come back, else in the last one before the call.

    The update may be of another package in the process: a write beyond a constant can hit any memory.
    """
    call = case.suspect_call
    given = [u for u in case.updates if u.views and u.how in COPIES and not u.user_managed]
    before = [u for u in given if call is None or (u.pid == call.pid and u.n <= call.n)]
    suspects = [u for u in given if u.outcome != "ok"] or before
    if not suspects:
        return
    update = suspects[-1]
    names, shown = update.views, ", ".join(update.views[:4])
    view = f"{names[0]!r}: view"
    fact = f"{len(names)} constants given to {update.how} are parts of larger storages: {shown}"
    yield _OfUpdate(
        guilty=_updated(names[0], update, "a view of a larger block of memory"),
        summary=f"{update.how} was given views of a larger block, and copies as many bytes as that has, from "
        f"where each view begins: {shown}.",
        evidence=(seen("capture", fact, str(update.file or "")),),
        fix=Fix(text="give each constant memory of its own", before=view, after=f"{view}.clone()"),
        intervention=constant_own_memory(names),
        observed=False,
        harmful=case.failed,
    )
