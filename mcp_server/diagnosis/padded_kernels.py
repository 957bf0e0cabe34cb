"""The user's Triton kernels in which masked lanes reach a reduction with a wrong filler."""

from __future__ import annotations

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.own_code import changeable, line_in_script, script_text
from mcp_server.faults.padding import Padding, paddings
from mcp_server.faults.padding_repair import repaired
from mcp_server.model import ModelLocation
from mcp_server.package.launches import Launch


def padded_launches(case: Case) -> dict[str, Launch]:
    """The first launch of each such kernel that can be padded neutrally, by its name on the device."""
    return changeable(case, lambda kernel: repaired(kernel.source, kernel.symbol))


def padding_lines(kernel: str, case: Case) -> list[tuple[Padding, ModelLocation]]:
    """The reductions with their lines in the user's script, where the kernel stands there."""
    text = script_text(case)
    return [(found, line_in_script(case, text, found.load_line)) for found in paddings(text, kernel)]
