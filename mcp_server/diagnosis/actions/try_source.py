"""A launch of a user's kernel as it was, beside the same with another source: does that change its result?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from mcp_server.diagnosis.actions.watch_launches import as_package
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.narrow_kernels import narrow_launches
from mcp_server.diagnosis.own_code import kernel_of
from mcp_server.diagnosis.padded_kernels import padded_launches
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.faults.padding_repair import repaired
from mcp_server.faults.widening import narrow_pointers, widened
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.steps.context import Context
from mcp_server.steps.reduce.variant import Variant, launch_variant

MOST = 2  # kernels that are tried


class _TrySource(ABC):
    """Makes the first launch of each kernel that can be rewritten, in the call of the case."""

    name: str
    seconds = 25.0
    alone = True

    @abstractmethod
    def launches(self, case: Case) -> Mapping[str, Launch]:
        """The launches to try, by the kernel's name on the device."""

    @abstractmethod
    def change(self, kernel: Kernel) -> Callable[[str], str]:
        """What is done to the text in which the kernel stands."""

    @abstractmethod
    def results(self, case: Case) -> dict[str, Variant]:
        """Where the results are kept."""

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        plain = case.runs.get("plain")
        if case.call is None or case.device != "cuda" or plain is None or case.ended_well:
            return 0.0
        return 0.4 if plain.failure in ("none", "differs") and self.launches(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        for symbol, launch in list(self.launches(case).items())[:MOST]:
            kernel = kernel_of(launch, case)
            assert kernel is not None
            tried = await launch_variant(context, as_package(case), launch.index, self.change(kernel))
            self.results(case)[symbol] = tried


class TryPadding(_TrySource):
    """Whether what the masked lanes hold gets into what the kernel writes: neutral fillers in their place."""

    name = "try_padding"

    def launches(self, case: Case) -> Mapping[str, Launch]:
        return padded_launches(case)

    def change(self, kernel: Kernel) -> Callable[[str], str]:
        return partial(_or_as_it_is, lambda source: repaired(source, kernel.symbol))

    def results(self, case: Case) -> dict[str, Variant]:
        return case.padding


class TryWider(_TrySource):
    """Whether the kernel writes something else when it computes in float32."""

    name = "try_wider"

    def launches(self, case: Case) -> Mapping[str, Launch]:
        return narrow_launches(case)

    def change(self, kernel: Kernel) -> Callable[[str], str]:
        pointers = narrow_pointers(kernel.source)
        return partial(_or_as_it_is, lambda source: widened(source, kernel.symbol, pointers))

    def results(self, case: Case) -> dict[str, Variant]:
        return case.widened


def _or_as_it_is(change: Callable[[str], str | None], source: str) -> str:
    return change(source) or source
