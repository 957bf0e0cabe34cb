"""A user's Triton kernel whose masked lanes take part in a reduction, seen by a run with neutral fillers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.own_code import changed_launches, kernel_of, kernel_party
from mcp_server.diagnosis.padded_kernels import padded_launches, padding_lines
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.faults.padding import Padding, paddings
from mcp_server.model import Evidence, Fix
from mcp_server.package.launches import Launch
from mcp_server.steps.reduce.variant import Changed

ROUNDING = 1e-3  # of the largest value: what another order of additions may change in 16 bits


def detect(case: Case) -> Iterator[Suspect]:
    """Kernels whose result the padding changed in this call by more than rounding."""
    launches = padded_launches(case) if case.padding else {}
    for symbol, launch, changed in changed_launches(case.padding, launches, ROUNDING):
        yield _suspect(symbol, launch, changed, case)


def _suspect(symbol: str, launch: Launch, changed: Changed, case: Case) -> Suspect:
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
