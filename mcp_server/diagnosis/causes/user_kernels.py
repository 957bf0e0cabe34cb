"""A user's Triton kernel that computes wrongly: sums in 16 bits, and masked lanes in a reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mcp_server.diagnosis.causes.common import seen
from mcp_server.diagnosis.components import (
    changeable,
    changed_launches,
    kernel_of,
    kernel_party,
    line_in_script,
    script_text,
)
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.memory_faults.masked_lanes import Padding, paddings, repaired
from mcp_server.memory_faults.widening import narrow_pointers, narrow_sums, widened
from mcp_server.model import Fix
from mcp_server.package.launches import Launch
from mcp_server.tools.reduce.variant import Changed

# Of the largest value that was written: 16-bit floats round each value to 0.4 % at most (bfloat16), and a
# sum of many loses a few per cent before anyone would call it wrong.
NARROW_ROUNDING = 0.05
PADDING_ROUNDING = 1e-3  # of the largest value: what another order of additions may change in 16 bits


def narrow_launches(case: DiagnosisState) -> dict[str, Launch]:
    """The first launch of each kernel that can sum in more bits, by its name on the device."""
    return changeable(
        case, lambda kernel: widened(kernel.source, kernel.symbol, narrow_pointers(kernel.source))
    )


def padded_launches(case: DiagnosisState) -> dict[str, Launch]:
    """The first launch of each kernel that can be padded neutrally, by its name on the device."""
    return changeable(case, lambda kernel: repaired(kernel.source, kernel.symbol))


def detect_narrow(case: DiagnosisState) -> Iterator[Suspect]:
    """Kernels whose result another precision changed in this call by more than rounding."""
    launches = narrow_launches(case) if case.widened else {}
    text = script_text(case) if launches else ""
    for symbol, launch, changed in changed_launches(case.widened, launches, NARROW_ROUNDING):
        kernel = kernel_of(launch, case)
        assert kernel is not None
        pointers = narrow_pointers(kernel.source)
        first = narrow_sums(kernel.source, symbol, pointers)[0]
        # The sums in the user's script, where the kernel stands there.
        own = narrow_sums(text, kernel.symbol, pointers)
        lines = [line_in_script(case, text, each.line) for each in own]
        yield Suspect(
            category="wrong_output",
            guilty=kernel_party(symbol, launch, lines, case),
            summary=f"{symbol} sums in 16 bits, and the sum of this call does not fit there: {first.text}.",
            level=CausalLevel.FAULT_SITE,
            evidence=(
                seen("inspect_package", f"{first.text} at line {first.line} is kept in 16 bits"),
                seen(
                    "try_wider",
                    f"launch {launch.index} alone, computed in float32, {_writes(changed)}, and as it is "
                    "what was recorded",
                ),
            ),
            fix=Fix(
                action="widen what is summed to float32, and narrow the result when it is stored",
                before=first.text,
            ),
        )


def _writes(changed: Changed) -> str:
    return (
        f"writes into {changed.parameter} what differs by up to {changed.by:.3g} (values reach "
        f"{changed.reach:.3g})"
    )


def detect_padding(case: DiagnosisState) -> Iterator[Suspect]:
    """Kernels whose result the padding changed in this call by more than rounding."""
    launches = padded_launches(case) if case.padding else {}
    text = script_text(case) if launches else ""
    for symbol, launch, changed in changed_launches(case.padding, launches, PADDING_ROUNDING):
        kernel = kernel_of(launch, case)
        assert kernel is not None
        own = paddings(text, symbol)
        found = (own or paddings(kernel.source, symbol))[0]
        lines = [line_in_script(case, text, each.load_line) for each in own]
        needed = _literal(found.needed)
        reaches = f"gives lanes beyond its mask that reach {found.reduction} at line {found.line}"
        yield Suspect(
            category="wrong_output",
            guilty=kernel_party(symbol, launch, lines, case),
            summary=f"Lanes that the mask of {symbol} leaves out take part in {found.reduction}: they hold "
            f"{found.filler or 'nothing in particular'}, where it needs {needed}.",
            level=CausalLevel.FAULT_SITE,
            evidence=(
                seen("inspect_package", f"{found.load} at line {found.load_line}, {reaches}"),
                seen(
                    "try_padding",
                    f"launch {launch.index} alone, with {needed} there, {_writes(changed)}, and with the "
                    "source as it is what was recorded",
                ),
            ),
            fix=Fix(action=_advice(found), before=found.load),
        )


def _advice(found: Padding) -> str:
    needed = _literal(found.needed)
    if math.isinf(found.needed):
        return f"load masked lanes as other={needed}, and begin a running {found.operation} with it"
    return f"give masked lanes {needed} before {found.reduction}, with tl.where(mask, …, {needed}) say"


def _literal(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
