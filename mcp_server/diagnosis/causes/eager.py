"""What the model itself does with the same inputs, operator by operator: an oracle beside the package."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mcp_server.diagnosis.causes.common import launch_lines, seen
from mcp_server.diagnosis.components import lines_reading
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.value_sources import first_made, of_mask, overflows, told
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.tools.context import Event

INDEX_TEXTS = (
    "index out of range",
    "out of bounds",
    "index_select",
    "indices should be",
    "out of range in self",
    "valid range [",
    "< index_size to be true",
)


def detect(case: DiagnosisState) -> Iterator[Suspect]:
    """Hypotheses from the interpretation of the exported program."""
    if case.interpreted is None:
        return
    yield from _guard(case)
    yield from _raised(case)
    yield from _non_finite(case)
    yield from _compared(case)


def lines_of(event: Event) -> list[ModelLocation]:
    """The model's lines of an operator, innermost first."""
    stack: Sequence[dict[str, Any]] = event.get("stack", ())
    return [ModelLocation(file=f["file"], line=int(f["line"]), code=f["code"]) for f in stack[:3]]


def first_line(event: Event) -> str:
    """Of the error text in an event."""
    return str(event["text"]).splitlines()[0][:300]


def raising_lines(case: DiagnosisState) -> list[ModelLocation]:
    """The model's lines of the operator that raised in eager mode."""
    return [line for event in told(case, "node_raised")[:1] for line in lines_of(event)]


# As the guard names it: `x.size()[1]`, `feats['user'].size()[1]`, `rest[0].size()[0]` (torch 2.8-2.15).
_SIZE = re.compile(r"(?<![\w\]])(?P<path>\w+(?:\[[^][]+\])*)\.size\(\)\[(?P<dim>\d{1,3})\]")


@dataclass(frozen=True)
class Guarded:
    """A dimension of an input: its place among the tensors, its path, and its size in this call."""

    index: int
    path: str
    dim: int
    size: int | None


def guarded(text: str, case: DiagnosisState) -> Guarded | None:
    """The one dimension that the guard's text names; None where it names several, or none that is known."""
    names = case.exported.names if case.exported is not None else ()
    # Export names a leaf after its path.
    found = {
        (re.sub(r"\W+", "_", match["path"]).strip("_"), int(match["dim"])) for match in _SIZE.finditer(text)
    }
    if len(found) != 1:
        return None
    name, dim = found.pop()
    if name not in names or case.given is None or len(case.given.paths) != len(names):
        return None
    place = names.index(name)
    shape = case.leaves[place].get("shape") if place < len(case.leaves) else None
    size = int(shape[dim]) if shape is not None and dim < len(shape) else None
    return Guarded(sum(1 for each in names[:place] if each), case.given.paths[place], dim, size)


def refusal(case: DiagnosisState) -> Evidence | None:
    """The guard by which the exported program refuses the call."""
    for event in told(case, "guard_failed")[:1]:
        return seen("interpret", f"the exported program refuses this call: {first_line(event)}")
    return None


def _guard(case: DiagnosisState) -> Iterator[Suspect]:
    """A refused call, where the comparison of the inputs does not say more exactly what is wrong."""
    refused = refusal(case)
    if refused is None or any(mismatch.severity == "fatal" for mismatch in case.mismatches):
        return
    text = refused.fact.partition(": ")[2]
    place = guarded(text, case)
    size = place.size if place is not None else None
    guilty = Component(kind="call", name="the call's inputs", value=text, model_locations=case.call_locations)
    if place is not None:
        guilty = Component(
            kind="input",
            name=place.path,
            input_index=place.index,
            dim=place.dim,
            value=f"{size} ({text})" if size is not None else text,
            model_locations=[*case.call_locations, *lines_reading(place.index, case)],
        )
    sized = "size()" in text or "shape" in text
    compared = any(sign in text for sign in (" % ", " <= ", " >= ", " < ", " > "))
    yield Suspect(
        category="shape_out_of_range" if sized and compared else "input_mismatch",
        guilty=guilty,
        summary=f"The exported program refuses this call: {text}. The package drops that guard."
        f"{f' It is {size} here.' if size is not None else ''}",
        level=CausalLevel.CALL,
        evidence=(refused,),
        fix=Fix(action="pass what the guard asks for, or export with dynamic shapes that allow this call"),
        harmful=case.failed,
    )


def _raised(case: DiagnosisState) -> Iterator[Suspect]:
    """An index that the model refuses in eager mode too: the fault is in the model or its inputs."""
    for event in told(case, "node_raised")[:1]:
        text = first_line(event)
        if not any(part in text for part in INDEX_TEXTS) or "tuple index" in text:
            continue
        yield Suspect(
            category="index_out_of_bounds",
            guilty=Component(kind="op", name=str(event["op"]), value=text, model_locations=lines_of(event)),
            summary=f"{event['op']} gets an index outside its tensor, in eager mode too: {text}.",
            level=CausalLevel.FAULT_SITE,
            evidence=(seen("interpret", f"{event['node']} ({event['op']}) raised: {text}"),),
        )


def _non_finite(case: DiagnosisState) -> Iterator[Suspect]:
    """The first operator that makes NaN from finite values."""
    event = first_made(case)
    ends = case.interpreted.last("interpreted") if case.interpreted is not None else None
    if event is None or ends is None or not any(out.get("nan") or out.get("inf") for out in ends["outputs"]):
        return
    plain = case.runs.get("plain")
    if plain is not None and plain.failure in ("none", "differs") and not case.outputs_nonfinite:
        return  # the package gives finite values all the same: no failure is due to those of eager mode
    kernel = case.kernel_io.first_bad if case.kernel_io is not None else None
    known = kernel if kernel is not None and kernel.kind == "kernel" else None
    yield Suspect(
        category="nan_or_inf",
        guilty=Component(
            kind="kernel" if known is not None else "op",
            name=known.name if known is not None else str(event["op"]),
            launch_index=known.launch if known is not None else None,
            model_locations=lines_of(event),
        ),
        summary=f"{event['op']} makes the first value that is not finite, in eager mode too: the model's own "
        "arithmetic does it on these inputs.",
        level=CausalLevel.BAD_VALUE,
        harmful=not case.nan_accepted,
        evidence=(making(event),),
        fix=guard_fix(event),
    )


def making(event: Event) -> Evidence:
    """That this operator is the first to make such a value, and of what."""
    of = "the minus infinity of a mask" if of_mask(event) else "finite inputs"
    return seen(
        "interpret", f"{event['node']} ({event['op']}) is the first whose result is not finite, from {of}"
    )


_GUARD = "guard that operation: an epsilon under a root or a division, a clamp before log or exp"
_GUARDS = (
    (r"aten\.(?:true_)?div|aten\.reciprocal", "keep the divisor from zero, with an epsilon say"),
    (
        r"aten\.log(?!_softmax|ical|sumexp)",
        "keep the argument of the logarithm above zero, with a clamp say",
    ),
    (r"aten\.r?sqrt", "keep what is under the root above zero, with an epsilon or a clamp say"),
    (r"aten\.exp", "clamp the argument of the exponential, or take the largest one from all first"),
)


def guard_fix(event: Event) -> Fix:
    """What keeps that operator's results finite."""
    if of_mask(event):
        guard = "guard rows of which everything is masked: leave an element unmasked, or replace their result"
    elif overflows(event):
        guard = f"compute it in float32, or scale its arguments: the result is too large for {event['dtype']}"
    else:
        guard = next((text for form, text in _GUARDS if re.search(form, str(event["op"]))), _GUARD)
    lines = lines_of(event)
    return Fix(action=guard, before=lines[0].code if lines else None)


def _agreeing(compared: Event) -> bool:
    """Whether the outputs are equal but for NaN of eager mode alone, which is no reference: it overflowed."""

    def overflowed(pair: Event) -> bool:
        in_eager, in_package = pair.get("nan", (0, 0))
        same = bool(pair.get("equal")) or 0 < pair.get("differing", 0) <= in_eager - in_package
        return same and len({tuple(shape) for shape in pair.get("shape", ())}) == 1

    pairs = compared.get("outputs", ())
    return bool(compared["equal"]) or (bool(pairs) and all(overflowed(pair) for pair in pairs))


def _compared(case: DiagnosisState) -> Iterator[Suspect]:
    """Other numbers than the exported program's; or the same, and the script's reference has others."""
    compared = case.interpreted.last("compared") if case.interpreted is not None else None
    if compared is None:
        return
    if _agreeing(compared):
        if case.plain_diverges:
            yield _other_reference(case)
        return
    worst = max((pair.get("max_abs", 0.0) for pair in compared["outputs"]), default=0.0)
    yield Suspect(
        category="wrong_output",
        guilty=Component(kind="package", name=str(case.package.path.name) if case.package else "the package"),
        summary=f"The package diverges from its own exported program on this call (by up to {worst:.3g}).",
        level=CausalLevel.SYMPTOM,
        evidence=(seen("interpret", f"outputs differ from the exported program by up to {worst:.3g}"),),
        fix=Fix(action="find the first launch that diverges with compare_with_eager"),
        harmful=case.failed,
        observed=False,
    )


def _other_reference(case: DiagnosisState) -> Suspect:
    own = own_code(case)
    name = own[0] if len(own) == 1 else "the exported model"
    launches = case.view.wrapper.launches if case.view is not None else ()
    number = next((x.index for x in launches if name in (x.symbol, x.kernel)), None)
    why = (
        f"{name}, the model's own kernel, computes something else."
        if len(own) == 1
        else "the model was exported with other weights or in another mode, or the reference is another "
        "model, or it was computed from other inputs."
    )
    return Suspect(
        category="wrong_output",
        guilty=Component(
            kind="kernel" if len(own) == 1 else "script",
            name=name,
            model_locations=launch_lines(number, case) or case.call_locations,
        ),
        summary="The package gives what its exported program gives, and the reference differs from both: "
        f"{why}",
        level=CausalLevel.FAULT_SITE,
        evidence=(
            seen("interpret", "package and exported program agree on the failing call"),
            seen("run", "the outputs differ from what the script compares them with"),
        ),
        fix=Fix(action=f"compare {name} with a plain implementation on the failing inputs"),
        observed=len(own) == 1,
    )


def own_code(case: DiagnosisState) -> list[str]:
    """User Triton kernels and operators outside torch that the package launches."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    user = [x.symbol or x.kernel for x in launches if x.kind in ("user_triton", "proxy_executor")]
    return list(dict.fromkeys(user))
