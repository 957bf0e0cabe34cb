"""The call compared with what the package was compiled for: devices, dtypes, shapes, strides and order."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from mcp_server.diagnosis.causes.fixed_arguments import tensors_at_fixed
from mcp_server.diagnosis.components import (
    component,
    first_line,
    kernel_of,
    leaf_of,
    lines_reading,
    name_of,
    raising_lines,
    seen,
)
from mcp_server.diagnosis.interventions.base import (
    Effect,
    Intervention,
    Kind,
    Trial,
    change_in_words,
    trial_in_words,
)
from mcp_server.diagnosis.interventions.input import Leaf, changed, exchange, together, whole
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.logs.captured import CapturedAttempts
from mcp_server.memory_faults import Fault
from mcp_server.model import Component, Evidence, Fix, ModelLocation
from mcp_server.package.mismatch import Mismatch, order_of, without_doubt
from mcp_server.package.signature import CompiledInput
from mcp_server.plurals import capitalized, listed, quoted
from mcp_server.worker.events import GuardFailed
from mcp_server.worker.protocol import Change
from mcp_server.worker.report import TensorFacts

# Sizes as a guard names them: `x.size()[1]`, `feats['user'].size()[1]`, `rest[0].size()[0]` (torch 2.8-2.15).
_SIZE = re.compile(r"(?<![\w\]])(?P<path>\w+(?:\[[^][]+\])*)\.size\(\)\[(?P<dim>\d{1,3})\]")


def guarded(text: str, case: DiagnosisState) -> tuple[Component, int | None] | None:
    """The dimension that the text of a guard names, and its size here. None unless there is exactly one."""
    names = case.exported.names if case.exported is not None else ()
    # The export names a leaf by its path.
    found = {
        (re.sub(r"\W+", "_", match["path"]).strip("_"), int(match["dim"])) for match in _SIZE.finditer(text)
    }
    if len(found) != 1:
        return None
    name, dim = found.pop()
    if name not in names or case.given is None or len(case.given.paths) != len(names):
        return None
    place = names.index(name)
    shape = case.leaves[place].shape if place < len(case.leaves) else None
    size = int(shape[dim]) if shape is not None and dim < len(shape) else None
    index = sum(1 for each in names[:place] if each)  # number among the tensors of the call
    value = f"{size} ({text})" if size is not None else text
    lines = [*case.call_locations, *lines_reading(index, case)]
    return component("input", case.given.paths[place], lines, value=value, index=index, dim=dim), size


def refusal(case: DiagnosisState) -> Evidence | None:
    """The guard with which the exported program rejects the call. None if it accepts it."""
    event = next(iter(case.eager_events(GuardFailed)), None)
    if event is None:
        return None
    return seen("interpret", f"the exported program rejects this call: {first_line(event)}")


def detect_guard(case: DiagnosisState) -> Iterator[Suspect]:
    """A call that a guard rejects, unless the comparison of the inputs tells more."""
    refused = refusal(case)
    if refused is None or any(mismatch.severity == "fatal" for mismatch in case.mismatches):
        return
    text = refused.fact.partition(": ")[2]
    call = component("call", "the call's inputs", case.call_locations, value=text)
    guilty, size = guarded(text, case) or (call, None)
    sized = "size()" in text or "shape" in text
    fix = "pass inputs that satisfy the guard, or export with dynamic shapes that allow them"
    narrowing = case.captured.narrowing if sized else None
    if narrowing is not None:
        lines = [narrowing.stack[0], *guilty.model_locations]
        guilty = guilty.model_copy(update={"model_locations": lines})
        fix = (
            f"change line {lines[0].line} of the model, which adds this guard, or pass inputs that satisfy it"
        )
    # Whether the guard compares or limits sizes. A guard that fixes a size only repeats the compiled shape.
    compared = text.count(".size()") > 1 or any(f" {sign} " in text for sign in ("%", "<=", ">=", "<", ">"))
    yield Suspect(
        category="shape_out_of_range" if sized and compared else "input_mismatch",
        guilty=guilty,
        summary=f"The exported program rejects this call: {text}. The package drops that guard."
        f"{f' It is {size} here.' if size is not None else ''}",
        level=CausalLevel.CALL,
        evidence=(refused,),
        fix=Fix(text=fix),
        intervention=case.source_change if narrowing is not None else None,
        harmful=case.failed,
    )


MOST_PAIRS = 3


def detect_exchanged(case: DiagnosisState) -> Iterator[Suspect]:
    """Two inputs of one dtype and shape, perhaps in the wrong order. The trial exchanges them."""
    tensors = case.given.tensors if case.given is not None else ()
    if not case.plain_diverges or case.equals_eager is False or len(tensors) != len(case.compiled_inputs):
        return
    alike = [
        (a, b)
        for a, b in combinations(range(len(tensors)), 2)
        if (tensors[a].dtype, tensors[a].shape) == (tensors[b].dtype, tensors[b].shape)
    ]
    names = [name_of(each) for each in case.compiled_inputs]
    for first, second in alike[:MOST_PAIRS]:
        order = list(range(len(tensors)))
        order[first], order[second] = second, first
        test = exchange(tuple(order), tuple(names))
        trial = case.trials.get(test.key)
        if trial is not None and not trial.gone:
            continue
        both = f"{names[first]} and {names[second]}"
        yield Suspect(
            category="input_mismatch",
            guilty=component("call", "the call's inputs", case.call_locations, value=f"{both} exchanged"),
            summary=f"{both} are exchanged. Nothing rejects this, because dtype and shape are the same.",
            level=CausalLevel.CALL,
            evidence=(seen("run", "the outputs differ from the expected ones"),),
            fix=Fix(text="pass the inputs in the order of the export"),
            intervention=test,
            weak=trial is None,
        )


def detect_preparation(case: DiagnosisState) -> Iterator[Suspect]:
    """An input that may have been prepared in a wrong way. The trial prepares it in another way."""
    if not case.plain_diverges or case.equals_eager is False:
        return
    if len(case.named_leaves) != len(case.compiled_inputs):
        return
    # The inputs of launches that search in sorted values.
    pairs = [(launch, kernel_of(launch, case)) for launch in case.launches]
    texts = [(launch, kernel.source if kernel is not None else launch.callee) for launch, kernel in pairs]
    searched = {name for launch, text in texts if SEARCHES.search(text) for name in launch.reads}
    for item, (_, given) in zip(case.compiled_inputs, case.named_leaves, strict=True):
        prepared = _sorted if item.name in searched else _preparations
        for test, value, fix in prepared(leaf_of(item), given):
            trial = case.trials.get(test.key)
            if trial is not None and not trial.gone:
                continue
            yield Suspect(
                category="input_mismatch",
                guilty=component("input", name_of(item), case.call_locations, value=value, index=item.index),
                summary=f"{name_of(item)} was not prepared like the input of the expected outputs: {value}.",
                level=CausalLevel.CALL,
                evidence=(seen("run", "the outputs differ from the expected ones"),),
                fix=Fix(text=fix),
                intervention=test,
                weak=trial is None,
            )


SEARCHES = re.compile(r"bucketize|searchsorted")


def _sorted(leaf: Leaf, given: TensorFacts) -> Iterator[tuple[Intervention, str, str]]:
    """Yield the change that sorts a 1-D input, what is wrong with the input, and the fix."""
    if len(given.shape or []) == 1:
        test = changed(leaf, Change("sort", leaf.input, dim=0))
        fix = f"{leaf.name} in ascending order"
        value = "it is not sorted, and a search in it (searchsorted, bucketize) needs that"
        yield replace(test, what=f"the call with {fix}"), value, f"pass {fix}"


def _preparations(leaf: Leaf, given: TensorFacts) -> Iterator[tuple[Intervention, str, str]]:
    """Yield corrections of an image that may be wrongly prepared: the change, what is wrong, and the fix."""
    shape, low, high = given.shape or [], given.min, given.max
    if "float" not in (given.dtype or "") or len(shape) not in (3, 4) or low is None or high is None:
        return
    scale, fix = None, ""
    if low >= 0 and 1 < high <= 255:
        scale, fix = 255.0, f"{leaf.name} divided by 255"
    elif low >= 0 and high <= 1:
        scale, fix = 1 / 255, f"{leaf.name} multiplied by 255"
    if scale is not None:
        test = replace(changed(leaf, Change("divide", leaf.input, value=scale)), what=f"the call with {fix}")
        yield test, f"its values go up to {high:g}", f"pass {fix}"
    for dim in (len(shape) - 3, len(shape) - 1):
        if shape[dim] == 3:
            fix = f"the channels of {leaf.name} in reverse order (dimension {dim})"
            test = replace(changed(leaf, Change("flip", leaf.input, dim=dim)), what=f"the call with {fix}")
            yield test, "its channels are in reverse order, as BGR for RGB", f"pass {fix}"
    *first, channels, high, wide = shape
    n, held = len(first), (*first, high, wide, channels)
    parts = whole(leaf, "reshape", held), whole(leaf, "reorder", (*range(n), n + 2, n, n + 1))
    fix = f"{leaf.name} permuted from {list(held)} to {shape}"
    test = together(f"input:permuted:{leaf.input}", f"the call with {fix}", parts)
    value = "its channels are the last dimension in memory, as if it had been reshaped and not permuted"
    yield replace(test, before_code=""), value, f"pass {fix}: reshape and view keep the order in memory"


def detect_contract(case: DiagnosisState) -> Iterator[Suspect]:
    """Suspect each mismatch of the failing call. False alarms are kept as harmless suspects."""
    tried = [each for found in case.captured.attempts if found.stage == "sizes" for each in found.attempts]
    for mismatch in case.mismatches:
        explained = mismatch.aspect == "count" and tensors_at_fixed(case)
        # The compile may have fixed a size that is dynamic in the export.
        fixed = any(f".shape[{mismatch.dim}] ==" in each.reached_code for each in tried)
        if not explained and not (fixed and mismatch.aspect == "size"):
            yield _contract_suspect(mismatch, case)


# Aspects that decide where generated code reads: it does not check them, and reads other elements.
_MISREAD = frozenset({"dtype", "size", "stride"})


@dataclass(frozen=True)
class _Shown:
    """What shows that a mismatch is at fault.

    A size out of range may be a false alarm. `sure`: a rule that generated code relies on is broken, or a bad
    access is seen. Otherwise the trial decides: is the failure gone with a size within the range? If the size
    was above the range, this is only likely: the removed part may have been at fault.
    """

    test: Intervention | None
    trial: Trial | None
    fault: Fault | None
    sure: bool

    @property
    def gone(self) -> bool:
        return self.trial is not None and self.trial.gone

    @property
    def cured(self) -> bool:
        return self.gone and not self.sure


def _shown(mismatch: Mismatch, case: DiagnosisState) -> _Shown:
    test, fault = _test_of(mismatch, case), _bad_access(mismatch, case)
    elsewhere = mismatch.aspect == "device_index" and bool(case.call_fails)
    sure = mismatch.severity == "fatal" or fault is not None or elsewhere
    return _Shown(test, case.trials.get(test.key) if test is not None else None, fault, sure)


def _contract_suspect(mismatch: Mismatch, case: DiagnosisState) -> Suspect:
    index, compiled, shown = mismatch.input_index, _compiled(mismatch, case), _shown(mismatch, case)
    sentence = without_doubt(mismatch.sentence) if _answered(mismatch, shown, case) else mismatch.sentence
    # If an operator of the model raises for this size, a wider range does not help.
    refusing = raising_lines(case) if mismatch.aspect == "range" else []
    narrowing = _narrowing(mismatch, case)
    # No trial can clear or prove a size if outputs differ from those that the user expects at that size.
    differs = case.symptom.judges and case.failure_of("plain") == "differs"
    fatal = [each for each in case.mismatches if each is not mismatch and each.severity == "fatal"]
    besides = [each for each in fatal if each.input_index == index is not None]
    return Suspect(
        category=mismatch.category,
        guilty=component(
            "input" if index is not None else "call",
            name_of(compiled) if compiled is not None else "the call's inputs",
            [
                *(narrowing.stack[:1] if narrowing is not None else []),
                *case.call_locations,
                *(refusing or lines_reading(index, case)),
            ],
            value=f"{mismatch.got} (compiled: {mismatch.expected})",
            index=index,
            dim=mismatch.dim,
        ),
        summary=" ".join(f"{capitalized(each)}." for each in (sentence, *(m.sentence for m in besides[:1]))),
        level=CausalLevel.CALL,
        evidence=tuple(_evidence(mismatch, sentence, shown, case)),
        fix=_in_that_line(mismatch, refusing[0]) if refusing else _with(besides, mismatch.fix),
        intervention=shown.test,
        parts=_last_part(mismatch, case),
        harmful=case.failed or _harms(mismatch, shown, case),
        weak=not (shown.sure or shown.cured or (differs and shown.trial is not None)),
        observed=shown.sure or shown.cured,
    )


def _answered(mismatch: Mismatch, shown: _Shown, case: DiagnosisState) -> bool:
    """Whether a call that works within the range, or a bad access above it, settles the doubt."""
    reached = case.located is not None and case.located.fault is not None
    return shown.gone or (reached and _above(mismatch, case) is not None)


def _harms(mismatch: Mismatch, shown: _Shown, case: DiagnosisState) -> bool:
    """Whether a mismatch does harm in a call that did not fail."""
    if not case.ended_well and not case.handled:
        return shown.sure
    # If the program accepted its outputs, only a read outside of the elements or a trial shows harm.
    misread = mismatch.severity == "fatal" and mismatch.aspect in _MISREAD and not case.handled
    return shown.gone or shown.fault is not None or misread


def _compiled(mismatch: Mismatch, case: DiagnosisState) -> CompiledInput | None:
    index = mismatch.input_index
    return case.compiled_inputs[index] if index is not None and index < len(case.compiled_inputs) else None


def _narrowing(mismatch: Mismatch, case: DiagnosisState) -> CapturedAttempts | None:
    return case.captured.narrowing if mismatch.aspect in ("range", "size") else None


def _test_of(mismatch: Mismatch, case: DiagnosisState) -> Intervention | None:
    """The change that removes a mismatch: of the model line that narrowed a range, or of the input."""
    change = case.source_change if _narrowing(mismatch, case) is not None else None
    if mismatch.aspect == "range" and mismatch.severity != "fatal" and case.outputs_nonfinite:
        return change  # a larger size may also remove the model's own NaN (a deviation of one element)
    return change or _intervention(mismatch, case)


def _bad_access(mismatch: Mismatch, case: DiagnosisState) -> Fault | None:
    """The located access that proves that a size out of range is not a false alarm.

    Any access if the size is above the range, otherwise only an access beyond this input.
    """
    fault = case.located.fault if case.located is not None else None
    if fault is None or _above(mismatch, case) is not None:
        return fault
    compiled = _compiled(mismatch, case) if mismatch.aspect in ("range", "relation") else None
    past = compiled is not None and fault.missed is not None and fault.missed.variable == compiled.name
    return fault if past else None


def _evidence(mismatch: Mismatch, sentence: str, shown: _Shown, case: DiagnosisState) -> Iterator[Evidence]:
    """Yield what shows the mismatch: the comparison, the package's own check, a bad access, a trial."""
    yield seen("check_devices", sentence)
    for error in case.runs["checked"].log.errors if "checked" in case.runs else ():
        same_input = error.fields.get("input") in (None, str(mismatch.input_index))
        if same_input and mismatch.category in error.candidates and "input_check" in error.family.tags:
            yield seen("run_with_input_checks", quoted(error.text), f"checked:{error.line}")
            break
    refused = refusal(case) if shown.sure else None
    if refused is not None:
        yield refused
    if shown.fault is not None:
        yield seen("locate_fault", quoted(shown.fault.summary or shown.fault.text))
    if shown.cured and shown.trial is not None:
        yield seen("intervention", trial_in_words(shown.trial))


def _with(besides: Sequence[Mismatch], fix: Fix) -> Fix:
    """Add the fix of another mismatch of the same input."""
    return fix.model_copy(update={"text": "; ".join([fix.text, *(each.fix.text for each in besides[:1])])})


def _in_that_line(mismatch: Mismatch, line: ModelLocation) -> Fix:
    """The fix for a size that a line of the model rejects, so that a wider `Dim` is not enough."""
    where = f"{Path(line.file).name}:{line.line}"
    text = f"split or pad the batch to {mismatch.expected}, or change {where}, which rejects {mismatch.got}"
    return Fix(text=f"{text}. A wider Dim alone does not help", before=line.code)


def _above(mismatch: Mismatch, case: DiagnosisState) -> int | None:
    """The upper end of the range if the size is above it, where reads may go too far. None otherwise."""
    if mismatch.aspect != "range" or mismatch.input_index is None or mismatch.dim is None:
        return None
    upper = case.compiled_inputs[mismatch.input_index].dims[mismatch.dim].upper
    above = upper is not None and mismatch.got.isdigit() and int(mismatch.got) > upper
    return upper if above else None


def size_is_open(case: DiagnosisState) -> bool:
    """Whether a size outside its range may explain what launches compute, because no trial cleared it."""
    for mismatch in case.mismatches:
        if mismatch.aspect == "range" and mismatch.severity == "fatal":
            tests = (_intervention(mismatch, case), *_last_part(mismatch, case))
            trials = [case.trials.get(test.key) for test in tests if test is not None]
            if not trials or any(trial is None or trial.effect is not Effect.SAME for trial in trials):
                return True
    return False


_ON_ALL = {"dtype": "cast", "device": "move", "device_index": "move"}


def _on_all(aspect: str, case: DiagnosisState) -> Intervention | None:
    """Change all inputs with this mismatch together, because each one that is left may make the call fail."""
    alike = [m for m in case.mismatches if m.aspect == aspect and m.input_index is not None]
    leaves = [leaf_of(case.compiled_inputs[m.input_index or 0]) for m in alike]
    parts = [whole(leaf, _ON_ALL[aspect], m.expected) for leaf, m in zip(leaves, alike, strict=True)]
    if not parts[1:]:
        return parts[0] if parts else None
    changes = listed([change_in_words(part.what).removeprefix("with ") for part in parts])
    return together(aspect, f"the call with {changes}", parts)


def _intervention(mismatch: Mismatch, case: DiagnosisState) -> Intervention | None:
    """The call with this input changed to what the package was compiled for."""
    aspect, index = mismatch.aspect, mismatch.input_index
    if aspect in _ON_ALL:
        return _on_all(aspect, case)
    if aspect == "structure":
        # If only the order differs, put the leaves in the exported order.
        want, got = mismatch.expected.split(", "), mismatch.got.split(", ")
        same = sorted(want) == sorted(got)
        return exchange(tuple(got.index(path) for path in want), tuple(want)) if same else None
    if index is None or case.package is None:
        return None
    leaf = leaf_of(case.compiled_inputs[index])
    if aspect == "stride":
        if (mismatch.fix.after or "").endswith(".contiguous()"):
            return whole(leaf, "contiguous")
        parts = [part.strip() for part in mismatch.expected.strip("()[]").split(",") if part.strip()]
        known = all(part.lstrip("-").isdigit() for part in parts)
        return whole(leaf, "restride", tuple(map(int, parts))) if known else whole(leaf, "contiguous")
    if aspect == "rank":
        shape = _of_rank(index, case)
        return whole(leaf, "reshape", shape) if shape is not None else None
    if aspect == "size" and mismatch.dim is None and case.given is not None:
        return whole(leaf, "reorder", order_of(case.compiled_inputs[index], case.given.tensors[index].shape))
    if aspect in ("size", "range") and mismatch.dim is not None:
        return _resized(mismatch, leaf, mismatch.dim, case)
    return None


def _of_rank(index: int, case: DiagnosisState) -> tuple[int, ...] | None:
    """The shape with dimensions of size 1 removed or added to fit the compiled rank. None if none fits."""
    given = case.given.tensors[index].shape if case.given is not None else ()
    sizes = [each.size for each in case.compiled_inputs[index].dims]
    ones = [place for place, size in enumerate(given) if size == 1]
    if len(given) > len(sizes):
        left_out = combinations(ones, len(given) - len(sizes))
        shapes = [tuple(size for at, size in enumerate(given) if at not in places) for places in left_out]
    else:
        added = combinations(range(len(sizes)), len(sizes) - len(given))
        shapes = [_with_ones(given, places, len(sizes)) for places in added]
    fitting = (s for s in shapes if all(want in (None, got) for want, got in zip(sizes, s, strict=True)))
    return next(fitting, None)


def _with_ones(shape: tuple[int, ...], places: tuple[int, ...], rank: int) -> tuple[int, ...]:
    sizes = iter(shape)
    return tuple(1 if place in places else next(sizes) for place in range(rank))


def _resized(mismatch: Mismatch, leaf: Leaf, dim: int, case: DiagnosisState) -> Intervention | None:
    """Set the dimension, and all dynamic ones of the same length, to the nearest compiled size."""
    compiled = case.compiled_inputs[leaf.input].dims[dim]
    size = compiled.size if compiled.size is not None else compiled.upper
    known = mismatch.got.lstrip("-").isdigit() and compiled.lower is not None
    if compiled.size is None and known and int(mismatch.got) < (compiled.lower or 0):
        size = compiled.lower
    if size is None:
        return None
    inputs = case.compiled_inputs
    return together(
        f"size:{leaf.input}:{dim}:{size}",
        f"{leaf.name} resized to {size} elements in dimension {dim}",
        tuple(
            whole(leaf_of(inputs[place]), "resize", at, size) for place, at in _as_long(leaf.input, dim, case)
        ),
    )


def _last_part(mismatch: Mismatch, case: DiagnosisState) -> tuple[Intervention, ...]:
    """For a size above its range, keep only the last elements. If that fails too, the size is not a cause."""
    index, dim, size = mismatch.input_index, mismatch.dim, _above(mismatch, case)
    if index is None or dim is None or size is None:
        return ()
    rows = tuple(range(int(mismatch.got) - size))
    places = _as_long(index, dim, case)
    drops = tuple(Change("drop_rows", input=place, dim=at, rows=rows) for place, at in places)
    what = f"the last {size} elements of {leaf_of(case.compiled_inputs[index]).name} in dimension {dim}"
    return (Intervention(f"tail:{index}:{dim}:{size}", Kind.INPUT, what, drops),)


def _as_long(index: int, dim: int, case: DiagnosisState) -> list[tuple[int, int]]:
    """Return inputs and dynamic dimensions of the same length, which must be changed together.

    This includes dimensions with another symbol: a kernel may loop over one input and read another.
    """
    shapes = [tensor.shape for tensor in case.given.tensors] if case.given is not None else []
    same = [
        (item.index, each.index)
        for item in case.compiled_inputs
        for each in item.dims
        if each.size is None
        and item.index < len(shapes)
        and each.index < len(shapes[item.index])
        and shapes[item.index][each.index] == shapes[index][dim]
    ]
    return same if (index, dim) in same else [(index, dim)]
