"""Which launches, kernels and buffers of a package are asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from mcp_server.errors import ProblemError
from mcp_server.package.wrapper import Wrapper
from mcp_server.steps.kernel_io import LaunchValues


@dataclass(frozen=True)
class Choice:
    """What to look at; nothing given means everything. Kernel names are whole names, in any case."""

    launches: Sequence[int] = ()
    kernels: Sequence[str] = ()
    buffers: Sequence[str] = ()

    def checked(self, wrapper: Wrapper) -> Choice:
        """The same with names as the wrapper spells them; raises ProblemError for an unknown one."""
        count = len(wrapper.launches)
        for number in self.launches:
            if not 0 <= number < count:
                raise ProblemError("no such launch", value=number, allowed=f"0 to {count - 1}")
        kernels = {launch.kernel for launch in wrapper.launches}
        buffers = {a.target for launch in wrapper.launches for a in launch.tensors if a.target}
        return Choice(
            self.launches,
            [_spelled(name, kernels, "kernel") for name in self.kernels],
            [_spelled(name, buffers, "buffer") for name in self.buffers],
        )

    def of(self, launches: Iterable[LaunchValues]) -> list[LaunchValues]:
        """The chosen launches, with the chosen buffers only."""
        return [self._cut(launch) for launch in launches if self._takes(launch)]

    def _takes(self, launch: LaunchValues) -> bool:
        if self.launches and launch.launch not in self.launches:
            return False
        if self.kernels and launch.kernel not in self.kernels:
            return False
        return not self.buffers or any(a.name in self.buffers for a in launch.arguments)

    def _cut(self, launch: LaunchValues) -> LaunchValues:
        if not self.buffers:
            return launch
        kept = [a for a in launch.arguments if a.name in self.buffers]
        return launch.model_copy(update={"arguments": kept})


def _spelled(name: str, known: Collection[str], what: str) -> str:
    lower = {one.lower(): one for one in known}
    if name.lower() in lower:
        return lower[name.lower()]
    near = get_close_matches(name.lower(), lower, n=5, cutoff=0.4) or sorted(lower)[:5]
    raise ProblemError(
        f"no such {what} in the package", value=name, allowed=", ".join(lower[n] for n in near)
    )
