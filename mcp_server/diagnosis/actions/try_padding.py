"""A launch whose kernel lets masked lanes into a reduction, beside the same with neutral fillers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mcp_server.diagnosis.actions.watch_launches import as_package
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.diagnosis.padded_kernels import padded_launches
from mcp_server.faults.padding_repair import repaired
from mcp_server.steps.context import Context
from mcp_server.steps.reduce.variant import launch_variant

MOST = 2  # kernels that are tried


class TryPadding:
    """Whether what the masked lanes hold gets into what the kernel writes in this call."""

    name = "try_padding"
    seconds = 25.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Hypothesis]) -> float:
        plain = case.runs.get("plain")
        if case.call is None or case.device != "cuda" or plain is None or case.ended_well:
            return 0.0
        return 0.4 if plain.failure in ("none", "differs") and padded_launches(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        for kernel, launch in list(padded_launches(case).items())[:MOST]:
            repair = partial(_repaired, kernel=kernel)
            case.padding[kernel] = await launch_variant(context, as_package(case), launch.index, repair)


def _repaired(source: str, kernel: str) -> str:
    return repaired(source, kernel) or source
