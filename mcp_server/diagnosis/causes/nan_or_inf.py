"""NaN and infinity: the first bad value of a watched call, and NaN used as an index."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mcp_server.diagnosis.causes.value_constraints import EXTREME, is_extreme
from mcp_server.diagnosis.causes.wrong_output import FIXES, MOST_EXTREME
from mcp_server.diagnosis.components import (
    component,
    input_component,
    leaf_of,
    lines_of,
    name_of,
    operator_of,
    seen,
)
from mcp_server.diagnosis.from_origin import OPEN_MASK, with_origin
from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.interventions.input import replace_where, together
from mcp_server.diagnosis.interventions.kernel import eager_key, in_eager
from mcp_server.diagnosis.origin.lines import guarded_line, idiom_of
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.errors import argument
from mcp_server.model import ComponentKind, Evidence, Fix, rejecting
from mcp_server.package.signature import CompiledInput
from mcp_server.package.terms.evaluate import DOMAINS
from mcp_server.tools.kernel_io import FirstBad
from mcp_server.worker import events
from mcp_server.worker.protocol import Where
from mcp_server.worker.report import TensorFacts

# Only logarithms compute minus infinity from finite values (0). Others only fill it in, as in a mask.
_ATEN_LOGARITHM = re.compile(r"\baten\.log(?:2|10|1p|_)?\.")
# `log` as an operator: log_softmax and logical operators have other characters around it.
_LOGARITHM = re.compile(r"(?<![a-z])log(?:2|10|it)?(?![a-z0-9]|_softmax|_sigmoid)")
_KINDS: dict[str, ComponentKind] = {"kernel": "kernel", "input": "input", "constant": "constant"}


def detect_bad_values(case: DiagnosisState) -> Iterator[Suspect]:
    """The source of the first bad value, and inputs with a few infinite or extreme elements."""
    first = case.first_bad
    if case.outputs_nonfinite and case.failed and not case.nan_accepted:
        # Inputs with a few infinities or extreme numbers. A mask has many; a trial decides.
        leaves = dict(case.named_leaves)
        for item in case.compiled_inputs:
            held = leaves.get(item.path or item.name)
            if held is None or (first is not None and _input_index(first, case) == item.index):
                continue
            if 0 < (held.inf or 0) <= MOST_EXTREME:
                yield _with_ordinary(item, Where(non_finite=True), _ordinary(held), "infinite", case)
            elif is_extreme(held):
                where = Where(below=-EXTREME, above=EXTREME)  # 1 is neither extreme nor a zero divisor
                yield _with_ordinary(item, where, 1.0, f"beyond ±{EXTREME:g}", case)
    if first is None:
        return
    if case.harmless is not None and case.harmless.kind == "input":
        yield _bringer(case.harmless, case)
    found = with_origin(_bringer(first, case), case, first.launch)
    yield _of_package_alone(found, case) if finite_in_eager(case) else found


def _ordinary(held: TensorFacts | None) -> float:
    """The middle of the finite values, because 0 may be a divisor or below all allowed values."""
    if held is None or held.min is None or held.max is None or is_extreme(held):
        return 1.0
    return float(f"{(held.min + held.max) / 2:.3g}")


def _with_ordinary(
    item: CompiledInput, where: Where, value: float, what: str, case: DiagnosisState
) -> Suspect:
    """An input with unusual elements. A call with ordinary ones in their place proves or clears it."""
    fill, name = replace_where(leaf_of(item), where, value), name_of(item)
    trial = case.trials.get(fill.key)
    facts = trial.after.facts if trial is not None and trial.gone else None
    few = [each for each in (facts.inputs if facts is not None else ()) if each.changed <= MOST_EXTREME]
    places = [f"{name}{list(place.index)} = {place.before}" for each in few for place in each.first]
    of = places[0] if places else f"{name} has elements that are {what}"
    made = first_made(case)  # where an extreme value overflows
    lines = lines_of(made) if made is not None else []
    check = "{0}.isfinite()" if where.non_finite else f"({{0}}.abs() <= {EXTREME:g})"
    return Suspect(
        category="nan_or_inf",
        guilty=input_component(item, lines or case.call_locations, what).model_copy(
            update={"elements": places[:MOST_EXTREME]}
        ),
        summary=f"{of}{f', which is {what}' if places else ''}. Outputs that depend on it are not finite.",
        level=CausalLevel.CALL,
        evidence=(seen("check_devices", of),),
        fix=Fix(
            text=f"keep {what} values out of {name} where it is produced",
            after=rejecting(f"not {check.format(name)}.all()", f"{name} has {what} values"),
        ),
        intervention=fill,
        weak=not few,
        settle="To decide, repeat the call with ordinary values there.",
    )


def finite_in_eager(case: DiagnosisState) -> bool:
    """Whether the exported program gives finite outputs for this call, but the package does not."""
    ends = case.interpreted.last(events.Interpreted) if case.interpreted is not None else None
    if ends is None or case.equals_eager is not False or not case.outputs_nonfinite:
        return False
    return not any(output.not_finite for output in ends.outputs)


def _of_package_alone(suspect: Suspect, case: DiagnosisState) -> Suspect:
    """The suspect for a launch that is finite in eager mode, without a guard, which would hide it."""
    wrong = {each.launch: each for each in case.wrong_launches}
    launch = wrong.get(suspect.guilty.launch_index if suspect.guilty.launch_index is not None else -1)
    evidence, removal = suspect.evidence, None
    if case.with_eager is not None and launch is not None:
        evidence = (*evidence, seen("compare_with_eager", case.with_eager.every_launch.summary))
        removal = in_eager(launch.launch, launch.kernel) if eager_key(launch.launch) in case.trials else None
    return replace(
        suspect,
        summary=f"{suspect.summary} The exported program returns finite values, so the launch does not "
        "compute what the model computes.",
        evidence=evidence,
        fix=Fix(text=FIXES["error"]),
        intervention=removal,
        parts=(),
    )


def first_made(case: DiagnosisState) -> events.NodeNonFinite | None:
    """The first operator that makes NaN or +inf from finite values or a mask's -inf (a fully masked row).

    If a logarithm made that -inf, return the logarithm. None if an input or constant already had the value.
    """
    masks: dict[str, events.NodeNonFinite] = {}
    for event in case.eager_events(events.NodeNonFinite):
        if not set(event.bad_inputs) <= masks.keys():
            continue
        if event.masked:
            masks[event.node] = event
            continue
        # Find the operators that produced the minus infinity for this one.
        names = list(event.bad_inputs)
        for name in names:
            names += [other for other in masks[name].bad_inputs if other not in names]
        roots = [masks[name] for name in names if not masks[name].bad_inputs]
        return next((root for root in roots if _ATEN_LOGARITHM.search(root.op)), event)
    return None


def _bringer(first: FirstBad, case: DiagnosisState) -> Suspect:
    """The source of a non-finite value, or of an index out of bounds."""
    made = first.launch if first.kind == "kernel" else None
    inputs = case.view.inputs_behind(made) if made is not None and case.view is not None else []
    behind = f"; it computes from {', '.join(inputs)}" if 0 < len(inputs) <= 3 and case.origin is None else ""
    op = operator_of(made, case) if made is not None else ""
    # The operator that makes the value in eager mode if known, else all lines of the kernel.
    in_eager = first_made(case) if first.what == "non_finite" else None
    lines = (lines_of(in_eager) if in_eager is not None else []) or first.locations[:6]
    if first.kind == "input":  # the model's lines do not show where the value comes from
        lines = case.call_locations or lines
    at = f" at {first.element.index}" if first.element.index else ""
    by = f", by the values of {inputs[0]}" if len(inputs) == 1 else ""
    found = Suspect(
        category="index_out_of_bounds",
        guilty=component(
            "op" if op else _KINDS.get(first.kind, "kernel"),
            op or first.name,
            lines or case.call_locations,
            value=f"{first.element.value}{at}",
            index=_input_index(first, case),
            launch=made,
        ),
        summary=f"The first out-of-bounds index: {first.summary}{behind}.",
        level=CausalLevel.BAD_VALUE,
        evidence=tuple(_evidence(first, made, inputs, case)),
        fix=Fix(text=f"keep what {first.name} makes within the bound of the tensor that it indexes{by}"),
    )
    return _not_finite(found, first, behind, case) if first.what == "non_finite" else found


def _evidence(
    first: FirstBad, made: int | None, inputs: Sequence[str], case: DiagnosisState
) -> Iterator[Evidence]:
    launches = case.kernel_io.json_file if case.kernel_io is not None else None
    yield seen("dump_kernel_io", first.summary, launches.uri if launches is not None else "")
    if inputs:
        yield seen("inspect_package", f"launch {made} depends on {', '.join(inputs[:6])}")
    own = case.by_source.by_launch if case.by_source is not None else ()
    if any(each.launch == made and each.agreement in ("equal", "rounding") for each in own):
        same = "translated to PyTorch, the source gives the same values on the same inputs, including NaN"
        yield seen("decompile", f"the kernel matches its source: {same}")


def _not_finite(found: Suspect, first: FirstBad, behind: str, case: DiagnosisState) -> Suspect:
    """The suspect for a value that is not finite. It is weak if the value may be intended."""
    # Minus infinity may be intended, as in a mask, if nothing failed because of it.
    asked = case.nan_asked
    complained = asked or case.outputs_nan or (case.failed and case.outputs_nonfinite)
    meant = first.perhaps_intended and not complained
    # A program succeeded with these values, and no eager run shows if the model intends them.
    unjudged = case.nan_unjudged or (case.ended_well and case.equals_eager is None and not asked)
    # A logarithm in the launch may have made minus infinity from a zero.
    launch = next((each for each in case.launches if each.index == first.launch), None)
    unjudged = unjudged or (bool(case.nan_written) and case.outputs_nan and not asked and not case.own_roots)
    takes_logarithm = launch is not None and _LOGARITHM.search(" ".join((launch.kernel, *launch.atens)))
    return replace(
        found,
        category="nan_or_inf",
        summary=f"The first value that is not finite: {first.summary}{behind}.",
        fix=_fix(first, case),
        intervention=_fill(first, case),
        observed=first.kind != "unset",
        weak=meant or unjudged,
        harmful=case.nan_questioned and (not meant or bool(takes_logarithm)),
        settle=(MASK if meant else ENDED_WELL).format(argument("symptom")) if meant or unjudged else "",
    )


MASK = "This is not a fault if the model intends it, as in a mask. If it is a fault, prove it with {} nan."
ENDED_WELL = "No check rejected it, so it may be intended. If it is a fault, prove it with {} nan."


def _input_index(first: FirstBad, case: DiagnosisState) -> int | None:
    if first.kind != "input":
        return None
    return next((i.index for i in case.compiled_inputs if first.name in (i.label, i.name)), None)


def _fill(first: FirstBad, case: DiagnosisState) -> Intervention | None:
    """Replace all non-finite values here, and NaN in every input, because one NaN could hide another."""
    index = _input_index(first, case)
    if index is None or first.what != "non_finite":
        return None
    with_nan = {path for path, leaf in case.named_leaves if leaf.nan}
    held = dict(case.named_leaves)
    items = [item for item in case.compiled_inputs if item.index == index or item.path in with_nan]
    fills = tuple(
        replace_where(leaf_of(item), Where(non_finite=True), _ordinary(held.get(item.path or item.name)))
        for item in items
    )
    if len(fills) == 1:
        return fills[0]
    names = ", ".join(leaf_of(item).name for item in items)
    return together(f"fill:{index}", f"the values of {names} that are not finite replaced", fills)


def _fix(first: FirstBad, case: DiagnosisState) -> Fix:
    if first.kind == "input":
        index = _input_index(first, case)
        leaf = next((leaf_of(each) for each in case.compiled_inputs if each.index == index), None)
        given = leaf.name if leaf is not None else first.name if "[" in first.name else ""
        check = rejecting(f"not {given}.isfinite().all()", f"{given} must be finite") if given else None
        return Fix(
            text=f"keep values that are not finite out of {first.name} where it is produced", after=check
        )
    if first.kind == "constant":
        return Fix(text=f"the weight {first.name} contains NaN or infinities: load correct weights")
    made = first_made(case)
    if made is not None:
        return guard_fix(made)
    explanation = case.origin.explanation if case.origin is not None else ""
    operation = re.match(r"\w+(?=\()|.* (?=/ )", explanation)  # the `exp` in `exp(110) is inf`
    op = "" if operation is None else "div" if operation[0].endswith(" ") else operation[0]
    op = "where" if case.nan_written else op
    return _fix_of_line(op, first.locations[0].code if first.locations else "")


def _fix_of_line(op: str, line: str) -> Fix:
    """A fix that keeps `aten.op` finite: an edit of the model line if it has the operator exactly once."""
    advice = next((text for form, text in _GUARDS if re.search(form, f"aten.{op}")), _GUARD)
    idiom = idiom_of(line, op, "") if op in DOMAINS else None
    if idiom is not None:
        return Fix(text=idiom.text, before=idiom.before, after=idiom.after)
    guarded = guarded_line(line, op) if op in DOMAINS else ""
    return Fix(text=advice, before=line or None, after=guarded or None)


def detect_made_in_eager(case: DiagnosisState) -> Iterator[Suspect]:
    """The first operator that makes NaN from finite values, or one whose overflow another operator hides."""
    event = first_made(case)
    ends = case.interpreted.last(events.Interpreted) if case.interpreted is not None else None
    if event is None or ends is None:
        return
    finite = case.failure_of("plain") in ("none", "differs") and not case.outputs_nonfinite
    hidden = finite and case.own_check and bool(case.equals_eager) and _overflows(event)
    # If only the package is finite, NaN in eager mode explains no failure.
    if not hidden and (finite or not any(out.not_finite for out in ends.outputs)):
        return
    guilty = component("op", event.op, lines_of(event))
    known = case.first_bad
    if known is not None and known.kind == "kernel":
        guilty = component("kernel", known.name, lines_of(event), launch=known.launch)
    hides = f" Later operators turn it into wrong finite numbers.{_nearer(case)}" if hidden else ""
    yield Suspect(
        category="wrong_output" if hidden else "nan_or_inf",
        guilty=guilty,
        summary=f"{event.op} produces the first non-finite value, in eager mode too: the value comes from "
        f"the model's own arithmetic on these inputs.{hides}",
        level=CausalLevel.BAD_VALUE,
        harmful=hidden or case.nan_questioned,
        weak=not hidden and case.nan_unjudged,
        settle=ENDED_WELL.format(argument("symptom")) if case.nan_unjudged else "",
        evidence=(making(event),),
        fix=guard_fix(event),
    )


def _nearer(case: DiagnosisState) -> str:
    """Say how far both sides are from float64, if the package is nearer, as it keeps values in float32."""
    outputs = case.rounding.outputs if case.rounding is not None else []
    away = [(float(each.eager_error or 0.0), float(each.error or 0.0)) for each in outputs]
    eager, package = max(away, default=(0.0, 0.0))
    if eager <= MUCH * package:
        return ""
    return f" Eager mode is off by up to {eager:.2g}, the package by {package:.2g}."


def making(event: events.NodeNonFinite) -> Evidence:
    """Evidence that this operator has the first non-finite result, and from which inputs."""
    of = "the minus infinity of a mask" if event.bad_inputs else "finite inputs"
    what = f"{event.node} ({event.op})"
    return seen("interpret", f"{what} is the first operator with a non-finite result, computed from {of}")


MUCH = 10  # times the package's own error
# Operators that make an infinity from ordinary numbers; others overflow in half precision.
_POLE = re.compile(r"\baten\.(?:log|div|true_div|reciprocal|r?sqrt|pow|float_power|tan|atanh|erfinv)")
_GUARD = (
    "look at its operands: if one is too large for its type, scale it or compute it in a wider type; if the "
    "operation has no value for one, keep that one in its domain"
)
_GUARDS = (
    (r"aten\.(?:true_)?div|aten\.reciprocal", "keep the divisor away from 0, for example with an epsilon"),
    (r"aten\.log(?!_softmax|ical|sumexp)", "keep the argument of log above 0: clamp_min before the log"),
    (r"aten\.r?sqrt", "keep the argument of sqrt positive, for example with an epsilon"),
    (r"aten\.exp", "subtract the largest argument before the exponential, as torch.softmax does"),
    (r"aten\.(?:where|masked_fill|full)", "see why its condition holds here, or write another value there"),
)


_POWER = re.compile(r"\bpow\((?:\w+, )?\d|\*\* ?\d")  # a positive exponent has no pole


def _overflows(event: events.NodeNonFinite) -> bool:
    code = next((each.code or "" for each in lines_of(event)), "")
    made = _POLE.search(event.op) is None or (".pow." in event.op and _POWER.search(code) is not None)
    return event.dtype == "float16" and not event.nan and made


def guard_fix(event: events.NodeNonFinite) -> Fix:
    if event.bad_inputs:  # its inputs are finite, except for a mask's minus infinity
        guard = OPEN_MASK
    elif _overflows(event):
        guard = f"compute it in float32, or scale its arguments: the result is too large for {event.dtype}"
    else:
        lines = lines_of(event)
        return _fix_of_line(operator_name(event.op), lines[0].code if lines else "")
    return Fix(text=guard)


def operator_name(op: str) -> str:
    """`log` for `aten.log.default`, and `div` also for `aten.true_divide.Tensor`."""
    name = op.removeprefix("aten.").partition(".")[0]
    return "div" if name.startswith(("div", "true_div")) else name
