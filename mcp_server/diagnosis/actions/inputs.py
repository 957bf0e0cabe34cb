"""The inputs of the call against the package: read from files, nothing of the workload runs."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.placing import place
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.package.match import compare_inputs
from mcp_server.package.mismatch import Mismatch
from mcp_server.package.structure import compare_structure
from mcp_server.steps.context import Context
from mcp_server.steps.given import from_leaves

RAISED_LOWER = 2


class CompareInputs:
    """Describe the inputs, and compare them with what the package was compiled for."""

    name = "compare_inputs"
    seconds = 3.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        return 1.0 if case.package is not None and _asked(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        assert case.package is not None and case.call is not None
        done = await context.worker(
            "describe_inputs",
            {"inputs": _asked(case)},
            name="describe-inputs",
            **case.surroundings,
        )
        told = done.last("inputs")
        if told is None:
            return
        signature = case.package.signature
        case.leaves = list(told["leaves"])
        case.sharing = list(told.get("sharing", ()))
        case.given = from_leaves(case.leaves, signature)
        place(case)
        found = [
            *compare_inputs(signature, case.given.tensors, device_index=_loaded_on(case)),
            *compare_structure(signature, case.given.paths),
        ]
        case.mismatches = tuple(_with_user_range(mismatch, case) for mismatch in found)


def _loaded_on(case: Case) -> int | None:
    """The CUDA device of the load, as it is made again: the first where neither user nor program said."""
    assert case.package is not None and case.call is not None
    index = int(case.call.request.get("device_index", -1))
    return max(index, 0) if case.package.device_type == "cuda" else None


def _asked(case: Case) -> object:
    """The inputs of a direct run, or the file of a captured call."""
    if case.call is None:
        return None
    return str(case.call.inputs) if case.call.inputs is not None else case.call.request.get("inputs")


def _with_user_range(mismatch: Mismatch, case: Case) -> Mismatch:
    """A compiled range may be tighter than the user's, which the exported program knows."""
    bounds = _user_bounds(mismatch, case)
    if bounds is None or not mismatch.got.lstrip("-").isdigit():
        return mismatch
    low, high = bounds
    size = int(mismatch.got)
    if low == RAISED_LOWER and size < low and mismatch.severity != "fatal":
        return mismatch  # export raises the bounds of Dim.DYNAMIC and Dim.AUTO to 2 by itself
    inside = (low is None or size >= low) and (high is None or size <= high)
    if inside:
        note = (
            f"{mismatch.sentence}; the exported program allows {low}..{high}, so that this is a false alarm"
        )
        return mismatch.model_copy(update={"severity": "suspicious", "sentence": note})
    note = f"{mismatch.sentence}; the exported program allows {low}..{high}"
    return mismatch.model_copy(update={"severity": "fatal", "sentence": note})


def _user_bounds(mismatch: Mismatch, case: Case) -> tuple[int | None, int | None] | None:
    if mismatch.aspect != "range" or case.exported is None or case.package is None:
        return None
    if mismatch.input_index is None or mismatch.dim is None:
        return None
    item = case.package.inputs[mismatch.input_index]
    definition = case.package.signature.definition(item.name, mismatch.dim)
    symbol = (
        definition.symbol
        if definition and definition.solution is None
        else item.dims[mismatch.dim].expression
    )
    return case.exported.ranges.get(symbol or "")
