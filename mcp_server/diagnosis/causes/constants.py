"""Constants of the package and of updates: odd values, other names or layouts, views.

`load_constants` copies raw bytes and compares neither dtype nor shape (torch 2.8-2.15): a narrower dtype or
another shape gives wrong numbers or overruns the constant's memory.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from math import log10, prod

from mcp_server.diagnosis.components import component, launch_lines, seen
from mcp_server.diagnosis.interventions.base import (
    Effect,
    Intervention,
    Kind,
    Options,
    known_only,
    update_from,
)
from mcp_server.diagnosis.interventions.input import compiled_values, constant_own_memory
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import REFUSED_NAMES, CausalLevel, Suspect
from mcp_server.logs.captured import CapturedUpdate, Leaf
from mcp_server.model import Component, Fix
from mcp_server.package.archive import CompiledConstant
from mcp_server.package.pytorch.text import ConstantValues
from mcp_server.plurals import counted, listed, quoted
from mcp_server.recorder.replay import TakenCall
from mcp_server.worker.protocol import OwnConstant, Step

MOST_NAMED = 8
KEEP_ALL = "compile with inductor_configs={'always_keep_tensor_constants': True}"


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """Constants given in another form, with NaN, as views, misnamed or not at all; odd weights."""
    # A rejected update names all constants, so `_misnamed` needs no package.
    looks = (
        (_different, _unreached, _values, _partial, _misnamed, _mixed, _viewed)
        if case.package
        else (_misnamed,)
    )
    for update in case.updates:
        for look in looks:
            for suspect in look(update, case):
                yield replace(suspect, harmful=case.failed or suspect.harmful)
    if case.package is not None:
        yield from _own_values(case)
    if case.taken is not None and case.taken.updates and case.taken.weights is None:
        yield replace(_of_host(case.taken), harmful=case.failed or case.script_run is None)


MOST_ALTERNATIVES = 200


def detect_exchanged(case: DiagnosisState) -> Iterator[Suspect]:
    """Weights of the same shape that may have each other's names. The trial exchanges them."""
    call = case.call
    if not case.plain_diverges or call is None or case.package is None:
        return
    options = _exchanges_of_updates(case) if call.updated else _exchanges_of_package(case)
    if not options:
        return
    test = Intervention(
        key="constant:exchanged",
        kind=Kind.CONSTANT,
        what="the call with these weights exchanged",
        options=Options(alternatives=tuple(options[:MOST_ALTERNATIVES])),
    )
    trial = case.trials.get(test.key)
    if trial is not None and not trial.gone:
        return
    facts = trial.after.facts if trial is not None else None
    names = facts.constants if facts is not None else ()
    which = " and ".join(names[:2]) or "two weights of one shape"
    more = f", and so are those of {counted(len(names) // 2 - 1, 'other pair')}" if names[2:] else ""
    given = case.updates[-1] if call.updated and case.updates else None
    guilty = component("constant", names[0] if names else "weights", given.stack[:2] if given else [])
    yield Suspect(
        category="constants",
        guilty=guilty.model_copy(update={"value": "the values of another weight"}),
        summary=f"The values of {which} are exchanged{more}. Nothing rejects this, because dtype and shape "
        "are the same.",
        level=CausalLevel.STATE,
        evidence=(seen("run", "the outputs differ from the expected ones"),),
        fix=Fix(
            text="correct the names where weights are renamed or copied, then load or compile them again"
        ),
        intervention=test,
        weak=trial is None,
    )


def _exchanges_of_updates(case: DiagnosisState) -> list[dict[str, object]]:
    leaves = {name: leaf for update in case.updates for name, leaf in update.constants.items()}
    alike = {name: (leaf.dtype, tuple(leaf.shape or ())) for name, leaf in leaves.items()}
    return [{"exchanged": each} for each in _exchanges(alike)]


def _exchanges_of_package(case: DiagnosisState) -> list[dict[str, object]]:
    read = {each.constant.fqn: each for each in case.constants_read or ()}
    alike = {name: (each.constant.dtype, each.constant.shape) for name, each in read.items()}
    return [
        {"exchanged": each, "updates": [_own(read[source], name, 1.0) for name, source in each.items()]}
        for each in _exchanges(alike)
    ]


def _exchanges(alike: Mapping[str, object]) -> list[dict[str, str]]:
    """Exchanges of constants whose names differ in one part, the largest exchange first.

    Each exchanges one pair, all pairs of a layer that differ in the same way, or all pairs that do.
    """
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for a, b in combinations(alike, 2):
        one, other = a.split("."), b.split(".")
        differ = [at for at, (x, y) in enumerate(zip(one, other, strict=False)) if x != y]
        if alike[a] != alike[b] or len(one) != len(other) or len(differ) != 1:
            continue
        (at,) = differ
        for owner in ("", ".".join(one[:at]), f"{a} {b}"):
            groups[owner, one[at], other[at]].append((a, b))
    found = [tuple(pairs) for pairs in groups.values()]
    ordered = sorted(dict.fromkeys(found), key=len, reverse=True)
    return [{name: source for a, b in pairs for name, source in ((a, b), (b, a))} for pairs in ordered]


def _compiled(case: DiagnosisState) -> dict[str, CompiledConstant]:
    return {each.fqn: each for each in case.package.constants} if case.package is not None else {}


def _of_host(taken: TakenCall) -> Suspect:
    """The updated weights of a recorded host, if the recording lacks some of their values."""
    times = counted(taken.updates, "time")
    return Suspect(
        category="constants",
        guilty=Component(kind="constant", name="the host's weights", model_locations=taken.lines),
        summary=f"The host updated or swapped the weights {times}. The recording does not have all of their "
        "values, and the call was repeated with those of the package.",
        level=CausalLevel.STATE,
        evidence=(seen("note", f"the host updated or swapped the weights {times}"),),
        fix=Fix(
            text="check that each update names all weights, that memory given as user-managed stays alive, "
            "and that no call runs between the parts of an update"
        ),
        weak=True,
        settle="Repeat the call with the updated weights: save them in the host as a state_dict.",
    )


def _own_values(case: DiagnosisState) -> Iterator[Suspect]:
    """Weights of the package that are not finite, zero throughout, or far larger than most.

    A call with finite or scaled values shows whether they are the cause.
    """
    read = case.constants_read or ()
    typical = sorted(each.largest for each in read if each.bad is None and each.zeros < each.elements)
    usual = min([*typical[(len(typical) - 1) // 2 :][:1], 1.0])  # at most 1, as few trained weights exceed it
    for each in read:
        if each.bad is not None and case.outputs_nonfinite:
            yield _of_package(each, f"{each.bad_value} at {list(each.bad)}", [_changed(each, None)], case)
        elif not (case.plain_diverges or case.outputs_nonfinite):
            continue
        elif each.zeros == each.elements:
            shown = _shown_as(each, case)
            if shown or (case.plain_diverges and _odd_as_zero(each, read)):
                yield _of_package(each, "only zeros", [_changed(each, 1.0)] if shown else [], case)
        elif each.largest > LARGE and each.largest > LARGE * usual:
            power = round(log10(each.largest / max(usual, 1e-3)))
            factors = [10.0**-k for k in (power, power + 1, power - 1) if k > 0]
            yield _of_package(
                each, f"values up to {each.largest:.3g}", [_changed(each, f) for f in factors], case
            )


def _odd_as_zero(zero: ConstantValues, read: Sequence[ConstantValues]) -> bool:
    """Whether a constant with only zeros is odd. A matrix or weight always is.

    Biases and running means start as zeros. One of them is odd if there are similar constants (of other
    layers, or with the same last name), and none has only zeros.
    """
    name, ranks = zero.constant.fqn, {each.constant.fqn: len(each.constant.shape) for each in read}
    layer, _, last = name.rpartition(".")
    if len(zero.constant.shape) > 1 or last == "weight":
        return True
    # The bias of a norm starts as zeros; the bias of a linear layer does not.
    norms = ranks.get(f"{layer}.weight")
    others = [
        each
        for each in read
        if each is not zero and ranks.get(f"{each.constant.fqn.rpartition('.')[0]}.weight") == norms
    ]
    layers = [each for each in others if _in_any_layer(each.constant.fqn) == _in_any_layer(name)]
    named = [each for each in others if each.constant.fqn.rpartition(".")[2] == last]
    alike = layers or (named if len(named) > 1 else [])
    return bool(alike) and all(each.zeros < each.elements for each in alike)


def _in_any_layer(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _of_package(
    read: ConstantValues, what: str, changes: Sequence[Intervention], case: DiagnosisState
) -> Suspect:
    name = read.constant.fqn  # if program and package agree, they have the same values
    of_program = programs_values([name], case) if not case.equals_eager else None
    changes = [*([of_program] if of_program is not None else []), *changes]
    trials = [case.trials.get(each.key) for each in changes]
    cured = next((t for t in trials if t is not None and t.gone), None)
    open_ones = [each for each, trial in zip(changes, trials, strict=True) if trial is None]
    chosen = cured.intervention if cured is not None else next(iter(open_ones), None)
    launch = next((each.index for each in case.launches if read.constant.name in each.reads), None)
    return Suspect(
        category="constants",
        guilty=component("constant", name, launch_lines(launch, case), value=what, launch=launch),
        summary=f"The weight {name} of the package holds {what}{_shown_as(read, case)}.",
        level=CausalLevel.STATE if cured is not None else CausalLevel.FAULT_SITE,
        evidence=(seen("open_package", f"{name} holds {what}"),),
        fix=Fix(text=f"compile the package again from good weights, or load them: {name} holds {what}"),
        intervention=chosen,
        observed=cured is not None,
        harmful=case.failed,
    )


def _shown_as(read: ConstantValues, case: DiagnosisState) -> str:
    """The operation that is undefined because this constant is 0, and its place. Empty if it is not known."""
    origin = case.origin
    if origin is None or all((e.kind, e.label) != ("constant", read.constant.fqn) for e in origin.elements):
        return ""
    return f", so that {origin.explanation} in launch {origin.launch_index}"


def programs_values(names: Sequence[str], case: DiagnosisState) -> Intervention | None:
    """The call with the exported program's values of these constants. None if there is no program."""
    if case.program_path is None:
        return None
    step: Step = {**update_from(case.program_path), "program": True, "names": list(names)}
    of = names[0] if len(names) == 1 else f"{len(names)} constants"
    return Intervention(
        key=f"constant:of-program:{','.join(sorted(names))}",
        kind=Kind.CONSTANT,
        what=f"the call with the exported program's values of {of}",
        options=Options(updates=(step,)),
        smallest=len(names) > 1,
        after_code="package.load_constants(exported.state_dict, check_full_update=False)",
    )


def _changed(read: ConstantValues, factor: float | None) -> Intervention:
    """The call with a weight of the package made finite or scaled or, if it has only zeros, filled."""
    constant = read.constant
    how = "with 0 where it is NaN or infinite" if factor is None else f"times {factor:g}"
    how = how if read.zeros < read.elements else "filled with other numbers than 0"
    return Intervention(
        key=f"constant:changed:{constant.fqn}:{factor}",
        kind=Kind.CONSTANT,
        what=f"the call with {constant.fqn} {how}",
        options=Options(updates=(_own(read, constant.fqn, factor),)),
        not_for_shipping="The correct values are those of the trained model.",
    )


def _own(read: ConstantValues, name: str, factor: float | None) -> Step:
    """The update that gives the constant `name` the values of `read`, changed as in `_changed`."""
    constant = read.constant
    own: OwnConstant = {
        "name": name,
        "device": constant.device_type,
        "dtype": constant.dtype,
        "shape": list(constant.shape),
        "stride": list(constant.stride),
        "factor": factor,
    }
    return {**update_from(read.file), "own": own}


LARGE = 100.0  # magnitude that few trained weights exceed


_OfUpdate = partial(Suspect, category="constants", level=CausalLevel.STATE, harmful=False)


def _updated(name: str, update: CapturedUpdate, value: str | None = None) -> Component:
    """A constant, with the lines of the update that gave or omitted it."""
    return component("constant", name, update.stack[:2], value=value)


def _different(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    load, compiled = case.captured.load_of(update), _compiled(case)
    home = load.device_index if load is not None else None
    pairs = {name: (leaf, compiled[name]) for name, leaf in update.constants.items() if name in compiled}
    compared = {name: _difference(*pair, update, home) for name, pair in pairs.items()}
    wrong = {name: difference for name, difference in compared.items() if difference is not None}
    for name, (aspect, got, wanted) in wrong.items():
        alike = [each for each, found in wrong.items() if found[::2] == ("dtype", wanted)]
        if name in alike[1:]:
            continue  # this constant is converted with the first one
        fact = f"{update.how} was given {name} with {aspect} {got}, but the package expects {wanted}"
        consequence = "The loader copies the bytes without a check."
        if aspect == "device" and update.outcome == "failed":
            consequence = "The update rejects it."
        elif aspect == "device":
            consequence = "The package reads it on that device without copying it."
        elif update.user_managed:
            consequence = "The package reads its memory as compiled, without a check."
        others = [other for other in wrong if other != name and wrong[other][0] == aspect]
        also = f" The {aspect} of {', '.join(others[:4])} also differs." if others else ""
        # A shape cannot be changed without the user's values.
        cast = _cast(alike, wanted) if alike else None
        yield _OfUpdate(
            guilty=_updated(name, update, f"{aspect} {got} (compiled: {wanted})"),
            summary=f"{fact}. {consequence}{also}",
            evidence=(seen("capture", fact, str(update.file or "")),),
            fix=Fix(text=cast.action, before=cast.before_code or None, after=cast.after_code)
            if cast is not None
            else _fix(name, aspect, wanted, update),
            # Part of the constant is stale, or memory behind it is overwritten, even if the program accepted
            # its outputs.
            harmful=update.outcome == "ok" and _misread(aspect, *pairs[name]),
            intervention=cast,
        )


def _misread(aspect: str, given: Leaf, constant: CompiledConstant) -> bool:
    """Whether the given bytes cannot be the compiled constant: another dtype, or another size."""
    return aspect == "dtype" or (aspect == "shape" and prod(given.shape or ()) != prod(constant.shape))


def _difference(
    given: Leaf, constant: CompiledConstant, update: CapturedUpdate, home: int | None
) -> tuple[str, str, str] | None:
    """The difference as (aspect, given, compiled). `home` is the index of the package's CUDA device.

    Another device type counts only if the update failed, another index only without a copy (user-managed).
    """
    device = given.device or ""
    kind = device.partition(":")[0]
    if update.outcome == "failed" and kind not in ("", constant.device_type):
        return "device", device, constant.device_type
    if given.dtype and given.dtype != constant.dtype:
        return "dtype", given.dtype, constant.dtype
    if given.shape is not None and tuple(given.shape) != constant.shape:
        return "shape", str(list(given.shape)), str(list(constant.shape))
    if given.stride is not None and given.shape is not None and constant.stride:
        # Strides count only along a dimension with more than one element.
        steps = zip(given.shape, given.stride, constant.stride, strict=False)
        if any(size > 1 and a != b for size, a, b in steps):
            return "stride", str(tuple(given.stride)), str(constant.stride)
    if update.user_managed and home is not None and given.device_index not in (None, home):
        return "device", device, f"{kind}:{home}"
    return None


def _cast(names: Sequence[str], dtype: str) -> Intervention:
    """The update with all these constants converted: one alone would leave the others misread."""
    given, listed_names = f"state[{names[0]!r}]", listed(names[:MOST_NAMED])
    several = f"state.update({{n: state[n].to(torch.{dtype}) for n in {tuple(names)}}})"
    return Intervention(
        key=f"constant:cast:{','.join(names)}",
        kind=Kind.CONSTANT,
        what=f"{'constants' if names[1:] else 'constant'} {listed_names} as {dtype}",
        options=Options(cast=dict.fromkeys(names, dtype)),
        before_code="" if names[1:] else given,
        after_code=several if names[1:] else f"{given}.to(torch.{dtype})",
        action=f"convert {listed_names} to {dtype} before the update",
    )


def _fix(name: str, aspect: str, compiled: str, update: CapturedUpdate) -> Fix:
    given = f"state[{name!r}]"
    if aspect == "device":
        also = "" if update.user_managed else ", or pass allow_h2d_copy=True"
        return Fix(text=f"move {name} to {compiled} before the update{also}")
    if aspect == "stride":
        kept = "; keep that copy alive, and copy later values into it" if update.user_managed else ""
        action = f"pass a tensor with the compiled strides{kept}"
        return Fix(text=action, after=f"{given}.contiguous()")
    return Fix(text=f"pass {name} with shape {compiled}, or export and compile again with the new shape")


def _unreached(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Parameters that the compile wrote into the code, which no update changes."""
    if case.exported is None or update.outcome != "ok":
        return
    for name in sorted(set(case.exported.state) - set(case.exported.idle) - set(_compiled(case))):
        fact = f"{name} is in the exported model but not among the package's constants"
        yield _OfUpdate(
            guilty=_updated(name, update),
            summary=f"Constant {name} was folded into the code when the package was compiled: "
            f"{update.how} does not change it, and it keeps its old value.",
            evidence=(seen("capture", fact),),
            fix=Fix(text=KEEP_ALL),
        )


def _values(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Values of an update that are not finite, or that make the outputs wrong."""
    given = update.constants
    bad = [name for name, leaf in given.items() if leaf.not_finite]
    plain = case.failure_of("plain")
    wrong = plain == "nonfinite" or (plain == "differs" and case.plain_diverges)
    if not bad and not (wrong and update.outcome == "ok" and given):
        return
    call = case.call
    replayed = call is not None and call.operation == "replay" and call.updated
    omitting = compiled_values(sorted(given)) if replayed else None
    trial = case.trials.get(omitting.key) if omitting is not None else None
    if plain == "differs" and not bad and trial is not None and trial.effect is Effect.SAME:
        return  # the expected outputs are those of the new weights: with the old ones, the call fails anyway
    facts = trial.after.facts if trial is not None and trial.gone else None
    enough = facts.constants if facts is not None else ()
    name = next(iter((*enough, *bad)), "")
    if not name:
        name = max(given, key=lambda each: _oddity(given[each]))
    place = next(iter(facts.bad_places), ()) if facts is not None and enough else ()
    what = _oddity_in_words(given[name])
    value = f"{what} at {list(place)}" if place else what
    known = bad or enough
    more = f" So do {', '.join(bad[1:4])}." if bad[1:] and name == bad[0] else ""
    cure = f"; with the compiled values of {', '.join(enough[:4])} the outputs are correct" if enough else ""
    yield _OfUpdate(
        guilty=_updated(name, update, value or "other values"),
        summary=f"{update.how} was given {name} with {value or 'values unlike the compiled ones'}.{more}"
        if known
        else f"The outputs are wrong after {update.how}: the values that it was given may be wrong.",
        evidence=(seen("capture", f"{update.how} set {name} to {value or 'other values'}{cure}"),),
        fix=Fix(text=f"give {name} the intended weights: compare with those of the model"),
        intervention=omitting,
        weak=not known,
        settle="The call with the compiled values settles it.",
    )


def _oddity(leaf: Leaf) -> tuple[int, float]:
    """A rank of how odd the values are (2 or more: not finite, 1: all zero), and the largest."""
    zero = leaf.zero is not None and leaf.shape is not None and leaf.zero == prod(leaf.shape)
    return 2 * int(leaf.not_finite) + int(zero), max(abs(leaf.min or 0), abs(leaf.max or 0))


def _oddity_in_words(leaf: Leaf) -> str:
    """Describe what is odd in the values of a constant. Empty if nothing is."""
    level, largest = _oddity(leaf)
    if level == 1:
        return "only zeros"
    if leaf.not_finite:
        counts = ((leaf.nan, "NaN"), (leaf.inf, "infinite"))
        return " and ".join(f"{count} {what}" for count, what in counts if count)
    return f"values up to {largest:.3g}" if largest > LARGE else ""


def _partial(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    if not update.missing or not update.constants or update.outcome != "ok":
        return
    shown = ", ".join(update.missing[:4])
    parameters = {each.fqn for each in _compiled(case).values() if each.kind == "Parameter"}
    unset = [name for name in update.missing if name in parameters] if update.arguments[:1] == [True] else []
    if unset:  # see _is_tensor_constant_or_buffer_type in model_container.h, 2.8-2.15
        told = f"{update.how} gave {len(update.constants)} of {len(update.compiled)} constants to the buffer"
        yield _OfUpdate(
            guilty=_updated(unset[0], update, "not given"),
            summary=f"{told} that was not in use. There, {', '.join(unset[:4])} never got values, and a call "
            "after the swap reads them.",
            evidence=(seen("note", f"parameters that the update does not name: {', '.join(unset[:4])}"),),
            fix=Fix(text="pass every constant to the buffer that is not in use, or update the one in use"),
            harmful=case.taken is not None and bool(case.taken.open),  # whether the host died
        )
        return
    left, as_it_was = ("constants", "as they were") if update.missing[1:] else ("constant", "as it was")
    yield _OfUpdate(
        guilty=_updated(update.missing[0], update, "not given"),
        summary=f"{update.how} left {len(update.missing)} {left} {as_it_was}: {shown}.",
        evidence=(seen("capture", f"the package has {left} {shown}, which the update does not name"),),
        fix=Fix(text="pass every constant, with check_full_update=True", after=full_update("model")),
        observed=False,
    )


def full_update(model: str) -> str:
    """Code that gives all that the package has, and nothing that its graph does not use."""
    return f"package.load_constants({known_only(f'{model}.state_dict()')}, check_full_update=True)"


def _misnamed(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """An update that was rejected because its names differ from those in the package."""
    if update.outcome != "failed" or not update.compiled or update.error is None:
        return
    text = update.error.text
    name = next((n for n in (*update.unknown, *update.missing) if n in text), "")
    if not name:
        return
    groups = ((update.unknown, "given but not in the package"), (update.missing, "not given"))
    differ = "; ".join(f"{len(names)} {what}: {_shown(names)}" for names, what in groups if names)
    value = "not given" if name in update.compiled else "not a constant of the package"
    extra, lacking = _prefixes(update, case)
    if extra:
        differ = f"all {len(update.unknown)} unknown names begin with {extra!r}. {differ}"
    elif lacking:
        differ = f"the package's names begin with {lacking!r}, the given names do not. {differ}"
    yield _OfUpdate(
        guilty=_updated(name, update, value),
        summary=f"{update.how} was rejected: {differ}.",
        evidence=(seen("capture", differ), seen("run", quoted(text))),
        fix=_renamed(name, extra, lacking, update, case),
        refusal=REFUSED_NAMES,
    )


def _mixed(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """The last update, if the failed check shows that it gave weights under the names of other weights."""
    drift = next((each for each in case.captured.drifts if each.taken), None)
    if drift is None or update is not case.updates[-1] or update.outcome != "ok":
        return
    pairs = [f"{source} under the name {name}" for name, source in sorted(drift.taken.items())]
    fact = f"{update.how} was given the values of {_shown(pairs)}"
    name = min(drift.taken)
    yield _OfUpdate(
        guilty=_updated(name, update, f"the values of {drift.taken[name]}"),
        summary=f"{fact}. Nothing rejects this, because dtype and shape are the same.",
        evidence=(seen("capture", fact, str(update.file or "")),),
        fix=Fix(text="give each weight under its own name", after=full_update(drift.of or "model")),
        observed=True,
    )


def _shown(names: Sequence[str]) -> str:
    """The first names, and the number of others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _absent(
    names: Sequence[str], update: CapturedUpdate, case: DiagnosisState
) -> tuple[list[str], list[str]]:
    """Names that the package lacks: those folded into the code, and those that the graph does not use.

    Without the exported graph, small constants may be either, and count as folded.
    """
    made, exported = case.captured.compile_of(update), case.exported
    keeps = made is not None and bool(made.configs.get("always_keep_tensor_constants"))
    if exported is not None:
        used = set(exported.state) - set(exported.idle)
        return [n for n in names if n in used and not keeps], [n for n in names if n in exported.idle]
    shapes = {name: leaf.shape for name, leaf in update.constants.items() if leaf.shape is not None}
    small = [n for n in names if n in shapes and len(shapes[n]) < 2 and prod(shapes[n]) <= MOST_INLINED]
    return ([], small) if keeps else (small, [])


def _prefixes(update: CapturedUpdate, case: DiagnosisState) -> tuple[str, str]:
    """The prefix that only unknown names have, and the prefix that only known names have; one is empty."""
    state = case.exported.state if case.exported is not None else ()
    known = [*update.compiled, *state]
    for first in update.unknown:
        for other in known:
            extra = first.removesuffix(other) if first.endswith(f".{other}") else ""
            lacking = other.removesuffix(first) if other.endswith(f".{first}") else ""
            # A small parameter may be folded into the code, so most names must be known, but not all.
            if extra and all(n.startswith(extra) for n in update.unknown):
                meant = [n.removeprefix(extra) in known for n in update.unknown]
                return (extra, "") if 2 * sum(meant) > len(meant) else ("", "")
            if lacking and 2 * sum(f"{lacking}{n}" in known for n in update.unknown) > len(update.unknown):
                return "", lacking
    return "", ""


def _renamed(name: str, extra: str, lacking: str, update: CapturedUpdate, case: DiagnosisState) -> Fix:
    """The fix for an update with names that the package does not have."""
    also = f"; give {_shown(update.missing)} as well" if update.missing else ""
    if len(update.unknown) > 1 and (extra or lacking):
        given = (f"{lacking}{n.removeprefix(extra)}" for n in update.unknown)
        folded, unused = _absent([n for n in given if n not in update.compiled], update, case)
        key = f"name.removeprefix({extra!r})" if extra else f"{lacking!r} + name"
        text = f"rename the weights before {update.how}"
        after = f"{{{key}: value for name, value in weights.items()}}"
        if folded or unused:
            text += f"; {_without(folded, unused, case)}"
            after = known_only("weights", key)
        return Fix(text=text, after=after)
    # The compiled name with the ending of the given name is the intended one.
    same = [other for other in update.compiled if name.endswith(f".{other}") or other.endswith(f".{name}")]
    if len(same) == 1:
        return Fix(text="give the constants under the names of the export", before=name, after=same[0])
    folded, unused = _absent(update.unknown, update, case)
    if case.exported is None:  # a given name may be a misspelt missing one
        lost = {each.rpartition(".")[2] for each in update.missing}
        folded = [each for each in folded if each.rpartition(".")[2] not in lost]
    if update.unknown and len(folded) + len(unused) == len(update.unknown):
        code = known_only("weights") if unused else None
        code = full_update("model") if update.missing else code
        return Fix(text=_without(folded, unused, case) + also, after=code)
    return Fix(text=f"give exactly the package's constants: {_shown(update.compiled)}")


def _without(folded: Sequence[str], unused: Sequence[str], case: DiagnosisState) -> str:
    """What to do about constants that the package lacks."""
    why = f"weights of up to {MOST_INLINED} elements are written into the code, where no update reaches them"
    if folded and case.exported is None:
        why += ", unless the model does not use them: then leave them out"
    parts = [f"{KEEP_ALL}: {_shown(folded)} is not in the package, since {why}"] if folded else []
    if unused:
        parts.append(f"leave out {_shown(unused)}, which the exported graph does not use")
    return "; ".join(parts)


# Most elements of a 1-D tensor that Inductor writes into the code as numbers (graph.py, can_inline_constant,
# 2.8-2.15).
MOST_INLINED = 8


# Updates that copy by storage, unless the program manages the constants. `update_constant_buffer` copies
# `aoti_torch_get_storage_size` bytes from the address of a view, and reads the copy with the offset that the
# view had in its block (model_container.h of aoti_runtime, 2.8-2.15): it reads and writes beyond the
# constant, and computes with the memory behind it.
COPIES = ("load_constants", "update_constant_buffer")


def _viewed(update: CapturedUpdate, case: DiagnosisState) -> Iterator[Suspect]:
    """Views given as constants by an update that did not return, or that preceded the call.

    The update may concern another package in the process: a write beyond a constant can hit any memory.
    """
    if not update.views or update.how not in COPIES or update.user_managed:
        return
    call = case.suspect_call
    if update.outcome == "ok" and call is not None and (update.pid != call.pid or update.n > call.n):
        return
    # Try only copies of the compiled shape. Another shape still fails, which would clear the view.
    wanted = {name: constant.shape for name, constant in _compiled(case).items()}
    shapes = {name: tuple(leaf.shape or ()) for name, leaf in update.constants.items()}
    views = [
        name for name in update.views if name not in shapes or shapes[name] == wanted.get(name, shapes[name])
    ]
    if not views:
        return
    shown, view = ", ".join(views[:4]), f"{views[0]!r}: view"
    fact = f"{len(views)} constants given to {update.how} are parts of larger storages: {shown}"
    yield _OfUpdate(
        guilty=_updated(views[0], update, "a view of a larger block of memory"),
        summary=f"{update.how} was given views of a larger block of memory. From the start of each view, it "
        f"copies as many bytes as the whole block has: {shown}.",
        evidence=(seen("capture", fact, str(update.file or "")),),
        fix=Fix(text="give each constant its own memory", before=view, after=f"{view}.clone()"),
        intervention=constant_own_memory(views),
        observed=False,
    )
