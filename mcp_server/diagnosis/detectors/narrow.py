"""A user's Triton kernel whose sum in 16 bits overflows or stops growing, seen by a run in float32."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.narrow_kernels import narrow_launches, narrow_lines
from mcp_server.diagnosis.own_code import changed_launches, kernel_of, kernel_party
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.faults.widening import narrow_pointers, narrow_sums
from mcp_server.model import Evidence, Fix
from mcp_server.package.launches import Launch
from mcp_server.steps.reduce.variant import Changed

# Of the largest value that was written: 16-bit floats round each value to 0.4 % at most (bfloat16), and a
# sum of many loses a few per cent before anyone would call it wrong.
ROUNDING = 0.05


def detect(case: Case) -> Iterator[Suspect]:
    """Kernels whose result another precision changed in this call by more than rounding."""
    launches = narrow_launches(case) if case.widened else {}
    for symbol, launch, changed in changed_launches(case.widened, launches, ROUNDING):
        yield _suspect(symbol, launch, changed, case)


def _suspect(symbol: str, launch: Launch, changed: Changed, case: Case) -> Suspect:
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
