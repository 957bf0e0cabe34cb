"""What a verdict says before its evidence: the failure in a few words, which call it was, and eager mode."""

from __future__ import annotations

from mcp_server.diagnosis.interventions.base import Intervention
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.model import CallNumber, Category, Component, Eager
from mcp_server.package.mismatch import Aspect
from mcp_server.worker import events

# What a reader knows a failure by. Outputs and inputs tell more: `headline_of`.
HEADLINES: dict[Category, str] = {
    "device_mismatch": "wrong device",
    "input_mismatch": "inputs do not fit the package",
    "shape_out_of_range": "size outside the compiled range",
    "index_out_of_bounds": "index out of bounds",
    "illegal_memory_access": "illegal memory access",
    "nan_or_inf": "NaN or infinity",
    "wrong_output": "wrong numbers",
    "custom_op": "custom operator {op}",
    "constants": "wrong weights",
    "invalid_package": "broken package",
    "arch_mismatch": "package for other hardware",
    "toolchain": "compiler or linker fails",
    "compile_failure": "compilation fails",
    "out_of_memory": "out of memory",
    "hang": "hang",
    "concurrency": "calls that disturb each other",
    "environment": "machine or environment",
    "script_error": "error in the script",
}


# What differs about an input.
ASPECTS: dict[Aspect, str] = {
    "count": "wrong number of inputs",
    "structure": "inputs of another structure",
    "order": "inputs in the wrong order",
    "device": "wrong device",
    "device_index": "wrong GPU",
    "dtype": "wrong dtype",
    "rank": "wrong number of dimensions",
    "size": "wrong size",
    "range": "size outside the compiled range",
    "relation": "sizes that contradict each other",
    "stride": "wrong strides",
}


def headline_of(category: Category, guilty: Component, case: DiagnosisState, *, known: bool) -> str:
    """The failure in a few words, such as `NaN in output 0`; without a `known` cause only what was seen."""
    if not known:
        return _non_finite(case) or "cause not known"
    words = HEADLINES[category].format(op=guilty.name if guilty.kind == "op" else "").rstrip()
    if category == "nan_or_inf":
        return _non_finite(case) or words
    of_input = (each for each in case.mismatches if each.category == category)
    aspect = next((each.aspect for each in of_input if each.input_index == guilty.input_index), None)
    return ASPECTS[aspect] if aspect is not None else words


def _non_finite(case: DiagnosisState) -> str:
    """What the first output with such values holds, one with NaN before others; empty where none was seen."""
    outputs = case.plain_run.outputs if case.plain_run is not None else []
    with_nan = [place for place, each in enumerate(outputs) if each.nan]
    infinite = [place for place, each in enumerate(outputs) if each.inf]
    if with_nan:
        return f"NaN in output {with_nan[0]}"
    return f"infinity in output {infinite[0]}" if infinite else ""


def call_of(case: DiagnosisState) -> CallNumber | None:
    """Which call of its process was examined; None where the program was not followed."""
    if case.taken is not None:
        return case.taken.number
    call = case.suspect_call
    if call is None:
        return None
    calls = [each for each in case.calls if each.pid == call.pid]
    return CallNumber(number=calls.index(call) + 1, of=len(calls))


# Categories in which the model itself may be at fault, so that eager mode can fail in the same way.
OF_MODEL: frozenset[Category] = frozenset({"index_out_of_bounds", "nan_or_inf", "wrong_output"})


def eager_of(category: Category, case: DiagnosisState) -> Eager:
    """Whether the model fails in the same way in eager mode, as far as its exported program was run."""
    plain = case.failure_of("plain")
    if case.interpreted is None or category not in OF_MODEL:
        return "not_known"
    ends = case.interpreted.last(events.Interpreted)
    if plain == "nonfinite" and ends is not None:
        return "same" if any(output.not_finite for output in ends.outputs) else "differs"
    if plain in ("exception", "signal"):
        refused = bool(case.eager_events(events.NodeRaised))
        return "same" if refused else "differs" if ends is not None else "not_known"
    if plain == "differs" and case.equals_eager is not None:
        return "same" if case.equals_eager else "differs"
    return "not_known"


# What would be wrong if a change that only confirms were shipped, by how the worker makes it.
NOT_SHIPPED = {
    "elements": "Do not ship that: the values were made up to show the cause.",
    "resize": "Do not ship that: rows were left out or repeated to show the cause.",
    "pad": "Do not ship that: rows were made up to show the cause.",
    "drop_rows": "Do not ship that: rows were left out to show the cause.",
}
GENERATED = "That was done in a copy of the generated code, which the next compile writes anew."


def not_for_shipping(tried: Intervention) -> str:
    """Why a change that removed the failure is not the fix; empty where it is."""
    if tried.not_for_shipping or not tried.is_experiment:
        return tried.not_for_shipping
    made = next((NOT_SHIPPED[each.change] for each in tried.changes if each.change in NOT_SHIPPED), "")
    return made or GENERATED
