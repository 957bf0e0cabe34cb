"""A user's Triton kernel that computes wrongly: sums in 16 bits, and masked lanes in a reduction."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
from mcp_server.memory_faults.triton_reductions import (
    NarrowSum,
    Padding,
    narrow_pointers,
    narrow_sums,
    paddings,
    repaired,
    widened,
)
from mcp_server.model import Evidence, Fix, ModelLocation
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.tools.reduce.variant import Changed


def narrow_launches(case: DiagnosisState) -> dict[str, Launch]:
    """The first launch of each such kernel, by its name on the device."""
    return changeable(case, _widened)


def narrow_lines(kernel: Kernel, case: DiagnosisState) -> list[tuple[NarrowSum, ModelLocation]]:
    """The sums with their lines in the user's script, where the kernel stands there."""
    text = script_text(case)
    found = narrow_sums(text, kernel.symbol, narrow_pointers(kernel.source))
    return [(each, line_in_script(case, text, each.line)) for each in found]


def _widened(kernel: Kernel) -> str | None:
    return widened(kernel.source, kernel.symbol, narrow_pointers(kernel.source))


# Of the largest value that was written: 16-bit floats round each value to 0.4 % at most (bfloat16), and a
# sum of many loses a few per cent before anyone would call it wrong.
NARROW_ROUNDING = 0.05


def detect_narrow(case: DiagnosisState) -> Iterator[Suspect]:
    """Kernels whose result another precision changed in this call by more than rounding."""
    launches = narrow_launches(case) if case.widened else {}
    for symbol, launch, changed in changed_launches(case.widened, launches, NARROW_ROUNDING):
        yield _narrow_suspect(symbol, launch, changed, case)


def _narrow_suspect(symbol: str, launch: Launch, changed: Changed, case: DiagnosisState) -> Suspect:
    kernel = kernel_of(launch, case)
    assert kernel is not None
    first = narrow_sums(kernel.source, symbol, narrow_pointers(kernel.source))[0]
    lines = [location for _, location in narrow_lines(kernel, case)]
    read = Evidence(step="inspect_package", fact=f"{first.text} at line {first.line} is kept in 16 bits")
    tried = Evidence(
        step="try_wider",
        fact=f"launch {launch.index} alone, computed in float32, writes into {changed.parameter} what "
        f"differs by up to {changed.by:.3g} (values reach {changed.reach:.3g}), and as it is what was "
        "recorded",
    )
    return Suspect(
        category="wrong_output",
        guilty=kernel_party(symbol, launch, lines, case),
        summary=f"{symbol} sums in 16 bits, and the sum of this call does not fit there: {first.text}.",
        level=CausalLevel.FAULT_SITE,
        evidence=(read, tried),
        fix=Fix(
            action="widen what is summed to float32, and narrow the result when it is stored",
            before=first.text,
        ),
    )


def padded_launches(case: DiagnosisState) -> dict[str, Launch]:
    """The first launch of each such kernel that can be padded neutrally, by its name on the device."""
    return changeable(case, lambda kernel: repaired(kernel.source, kernel.symbol))


def padding_lines(kernel: str, case: DiagnosisState) -> list[tuple[Padding, ModelLocation]]:
    """The reductions with their lines in the user's script, where the kernel stands there."""
    text = script_text(case)
    return [(found, line_in_script(case, text, found.load_line)) for found in paddings(text, kernel)]


PADDING_ROUNDING = 1e-3  # of the largest value: what another order of additions may change in 16 bits


def detect_padding(case: DiagnosisState) -> Iterator[Suspect]:
    """Kernels whose result the padding changed in this call by more than rounding."""
    launches = padded_launches(case) if case.padding else {}
    for symbol, launch, changed in changed_launches(case.padding, launches, PADDING_ROUNDING):
        yield _padding_suspect(symbol, launch, changed, case)


def _padding_suspect(symbol: str, launch: Launch, changed: Changed, case: DiagnosisState) -> Suspect:
    kernel = kernel_of(launch, case)
    assert kernel is not None
    own = padding_lines(symbol, case)
    found = own[0][0] if own else paddings(kernel.source, symbol)[0]
    lines = [location for _, location in own]
    read = Evidence(step="inspect_package", fact=f"{found.load} at line {found.load_line}, {_reaches(found)}")
    tried = Evidence(
        step="try_padding",
        fact=f"launch {launch.index} alone, with {_literal(found.needed)} there, writes into "
        f"{changed.parameter} what differs by up to {changed.by:.3g} (values reach {changed.reach:.3g}), "
        "and with the source as it is what was recorded",
    )
    return Suspect(
        category="wrong_output",
        guilty=kernel_party(symbol, launch, lines, case),
        summary=f"Lanes that the mask of {symbol} leaves out take part in {found.reduction}: they hold "
        f"{found.filler or 'nothing in particular'}, where it needs {_literal(found.needed)}.",
        level=CausalLevel.FAULT_SITE,
        evidence=(read, tried),
        fix=Fix(action=_advice(found), before=found.load),
    )


def _reaches(found: Padding) -> str:
    return f"gives lanes beyond its mask that reach {found.reduction} at line {found.line}"


def _advice(found: Padding) -> str:
    wanted = _literal(found.needed)
    if math.isinf(found.needed):
        return f"load masked lanes as other={wanted}, and begin a running {found.operation} with it"
    return f"give masked lanes {wanted} before {found.reduction}, with tl.where(mask, …, {wanted}) say"


def _literal(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float('{value}')"
