"""The call against what the package was compiled for: devices, dtypes, shapes, strides, order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.detectors.eager import refusal
from mcp_server.diagnosis.detectors.fixed_arguments import tensors_at_fixed
from mcp_server.diagnosis.hypothesis import CounterTest, Depth, Hypothesis
from mcp_server.diagnosis.parties import lines_reading
from mcp_server.model import Evidence, Party
from mcp_server.package.mismatch import Mismatch

# Families of AOTI_RUNTIME_CHECK_INPUTS (generated check_input_N and assert_size_stride, torch 2.8-2.15).
CHECK_FAMILIES = frozenset(
    {
        "input_dtype",
        "input_static_dim",
        "input_range",
        "input_stride",
        "input_device",
        "input_count",
        "size_stride_assert",
    }
)


def detect(case: Case) -> Iterator[Hypothesis]:
    """One hypothesis per mismatch of the failing call; false alarms are kept as harmless ones."""
    for mismatch in case.mismatches:
        if mismatch.aspect != "count" or not tensors_at_fixed(case):
            yield _hypothesis(mismatch, case)


def _hypothesis(mismatch: Mismatch, case: Case) -> Hypothesis:
    checked = _confirmed_by_check(mismatch, case.runs.get("checked"))
    overrun = _overrun(mismatch, case)
    elsewhere = mismatch.aspect == "device_index" and bool(case.call_fails)
    counter = _counter(mismatch, case)
    sure = mismatch.severity == "fatal" or overrun is not None or elsewhere
    mended = None if sure else _mended(mismatch, counter, case)
    refused = refusal(case) if sure else None
    seen = {"runtime check": checked, "eager": refused, "checker": overrun, "within the range": mended}
    facts = {source: fact for source, fact in seen.items() if fact is not None}
    return Hypothesis(
        category=mismatch.category,
        guilty=_party(mismatch, case),
        summary=_summary(mismatch),
        depth=Depth.CALL,
        sources=frozenset({"package and inputs", *facts}),
        evidence=(Evidence(step="check_devices", fact=mismatch.sentence), *facts.values()),
        fix=mismatch.fix,
        counter=None if mended else counter,
        harmful=(sure and not case.handled) or case.failed,
        weak=not sure and not mended,
        exact=not mended,
    )


def _mended(mismatch: Mismatch, counter: CounterTest | None, case: Case) -> Evidence | None:
    """A size above a range that may be a false alarm is harmful where the call works within the range.

    That is likely only, since what the call does without may have been at fault.
    """
    result = case.counters.get(counter.key) if counter is not None else None
    if result is None or not result.passed or not _above(mismatch, case):
        return None
    return Evidence(step="counter_test", fact=result.what)


def _overrun(mismatch: Mismatch, case: Case) -> Evidence | None:
    """A bad access in this very call: what makes a size out of range more than a false alarm."""
    fault = case.located.fault if case.located is not None else None
    if fault is None or not _above(mismatch, case):
        return None
    return Evidence(step="locate_fault", fact=(fault.summary or fault.text)[:300])


def _above(mismatch: Mismatch, case: Case) -> bool:
    """A size above its range can be read past; one below it reads too little, never too much."""
    if mismatch.aspect != "range" or mismatch.input_index is None or mismatch.dim is None:
        return False
    assert case.package is not None
    upper = case.package.inputs[mismatch.input_index].dims[mismatch.dim].upper
    return upper is not None and mismatch.got.isdigit() and int(mismatch.got) > upper


def _summary(mismatch: Mismatch) -> str:
    return f"{mismatch.sentence[:1].upper()}{mismatch.sentence[1:]}."


def _party(mismatch: Mismatch, case: Case) -> Party:
    index = mismatch.input_index
    name = "the call's inputs"
    if index is not None and case.package is not None and index < len(case.package.inputs):
        item = case.package.inputs[index]
        name = item.path or item.name
    return Party(
        kind="input" if index is not None else "call",
        name=name,
        input_index=index,
        dim=mismatch.dim,
        value=f"{mismatch.got} (compiled: {mismatch.expected})",
        model_locations=[*case.call_locations, *lines_reading(index, case)],
    )


def _confirmed_by_check(mismatch: Mismatch, run: RunSeen | None) -> Evidence | None:
    """The package's own check saying the same of the same input."""
    if run is None:
        return None
    for error in run.log.errors:
        same_input = error.fields.get("input") in (None, str(mismatch.input_index))
        if same_input and mismatch.category in error.candidates and error.family.id in CHECK_FAMILIES:
            return Evidence(
                step="run_with_input_checks",
                fact=error.text[:300],
                source=f"checked:{error.line}",
            )
    return None


def _counter(mismatch: Mismatch, case: Case) -> CounterTest | None:
    """The call with that input mended."""
    if mismatch.aspect == "device_index":
        return _gathered(mismatch, case)
    change = _change(mismatch, case)
    if change is None:
        return None
    key = f"{mismatch.aspect}:{mismatch.input_index}:{mismatch.dim}"
    return CounterTest(
        key, f"the call with {mismatch.fix.action if mismatch.fix else 'the input mended'}", (change,)
    )


def _gathered(mismatch: Mismatch, case: Case) -> CounterTest | None:
    """The call with every input on the device of the load: it may not survive one that is elsewhere."""
    strays = [m for m in case.mismatches if m.aspect == "device_index" and m.input_index is not None]
    moves = [{"change": "move", "input": m.input_index, "device": m.expected} for m in strays]
    what = f"the call with every input on {mismatch.expected}"
    return CounterTest("device_index", what, tuple(moves)) if moves else None


def _change(mismatch: Mismatch, case: Case) -> dict[str, Any] | None:
    index = mismatch.input_index
    if mismatch.aspect == "structure":
        return _permutation(mismatch)
    if index is None or case.package is None:
        return None
    if mismatch.aspect == "dtype":
        return {"change": "cast", "input": index, "dtype": mismatch.expected}
    if mismatch.aspect == "device":
        return {"change": "move", "input": index, "device": mismatch.expected}
    if mismatch.aspect == "stride":
        return _restride(mismatch)
    if mismatch.aspect in ("size", "range") and mismatch.dim is not None:
        return _resize(mismatch, case)
    return None


def _permutation(mismatch: Mismatch) -> dict[str, Any] | None:
    """The leaves in the exported order, where only the order differs."""
    want, got = mismatch.expected.split(", "), mismatch.got.split(", ")
    if sorted(want) != sorted(got):
        return None
    return {"change": "permute", "order": [got.index(path) for path in want]}


def _restride(mismatch: Mismatch) -> dict[str, Any]:
    stride = _numbers(mismatch.expected)
    if stride is None:
        return {"change": "contiguous", "input": mismatch.input_index}
    return {"change": "restride", "input": mismatch.input_index, "stride": stride}


def _numbers(text: str) -> Sequence[int] | None:
    parts = [part.strip() for part in text.strip("()[]").split(",") if part.strip()]
    return [int(part) for part in parts] if all(part.lstrip("-").isdigit() for part in parts) else None


def _resize(mismatch: Mismatch, case: Case) -> dict[str, Any] | None:
    """To the compiled size, or to the nearest end of the compiled range."""
    assert case.package is not None and mismatch.input_index is not None and mismatch.dim is not None
    dim = case.package.inputs[mismatch.input_index].dims[mismatch.dim]
    got = int(mismatch.got) if mismatch.got.lstrip("-").isdigit() else None
    if dim.size is not None:
        target: int | None = dim.size
    elif got is not None and dim.lower is not None and got < dim.lower:
        target = dim.lower
    else:
        target = dim.upper
    if target is None:
        return None
    return {"change": "resize", "input": mismatch.input_index, "dim": mismatch.dim, "size": target}
