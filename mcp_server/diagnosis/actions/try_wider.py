"""A launch whose kernel keeps sums in 16 bits, beside the same in float32."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.actions.watch_launches import as_package
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.diagnosis.narrow_kernels import narrow_launches
from mcp_server.diagnosis.own_code import kernel_of
from mcp_server.faults.widening import narrow_pointers, widened
from mcp_server.steps.context import Context
from mcp_server.steps.reduce.variant import launch_variant

MOST = 2  # kernels that are tried


class TryWider:
    """Whether the kernel writes something else in this call when it computes in float32."""

    name = "try_wider"
    seconds = 25.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Hypothesis]) -> float:
        plain = case.runs.get("plain")
        if case.call is None or case.device != "cuda" or plain is None or case.ended_well:
            return 0.0
        return 0.4 if plain.failure in ("none", "differs") and narrow_launches(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        for symbol, launch in list(narrow_launches(case).items())[:MOST]:
            kernel = kernel_of(launch, case)
            assert kernel is not None
            pointers = narrow_pointers(kernel.source)

            def wider(source: str, symbol: str = symbol, pointers: frozenset[str] = pointers) -> str:
                return widened(source, symbol, pointers) or source

            case.widened[symbol] = await launch_variant(context, as_package(case), launch.index, wider)
