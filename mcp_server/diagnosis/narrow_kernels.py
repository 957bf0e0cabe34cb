"""The user's Triton kernels that keep sums in 16 bits."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.own_code import changeable, line_in_script, script_text
from mcp_server.faults.widening import NarrowSum, narrow_pointers, narrow_sums, widened
from mcp_server.model import ModelLocation
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch


def narrow_launches(case: Case) -> dict[str, Launch]:
    """The first launch of each such kernel, by its name on the device."""
    return changeable(case, _widened)


def narrow_lines(kernel: Kernel, case: Case) -> list[tuple[NarrowSum, ModelLocation]]:
    """The sums with their lines in the user's script, where the kernel stands there."""
    text = script_text(case)
    found = narrow_sums(text, kernel.symbol, narrow_pointers(kernel.source))
    return [(each, line_in_script(case, text, each.line)) for each in found]


def _widened(kernel: Kernel) -> str | None:
    return widened(kernel.source, kernel.symbol, narrow_pointers(kernel.source))
