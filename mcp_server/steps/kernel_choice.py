"""Which launches, kernels, model lines and buffers of a package are asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from mcp_server.errors import ProblemError
from mcp_server.steps.first_bad import Model
from mcp_server.steps.kernel_io import LaunchValues

MODEL_LINE = re.compile(r"(?:(?P<file>.*[^:]):)?(?P<line>\d+)")


@dataclass(frozen=True)
class Choice:
    """What to look at; nothing given means everything, and of several kinds each restricts the others.

    `kernels` are whole names in any case, or lines of the user's model: `FILE.py:LINE`, `LINE`.
    """

    launches: Sequence[int] = ()
    kernels: Sequence[str] = ()
    buffers: Sequence[str] = ()

    def checked(self, model: Model) -> Choice:
        """The same with launches for model lines, and names as the wrapper spells them.

        Raises ProblemError for an unknown launch or name, and for a line of which no launch is known to come.
        """
        launches = model.wrapper.launches
        for number in self.launches:
            if not 0 <= number < len(launches):
                raise ProblemError("no such launch", value=number, allowed=f"0 to {len(launches) - 1}")
        kernels = {launch.kernel for launch in launches}
        buffers = {a.target for launch in launches for a in launch.tensors if a.target}
        lines = [name for name in self.kernels if MODEL_LINE.fullmatch(name)]
        names = Choice(
            self.launches,
            [_spelled(name, kernels, "kernel") for name in self.kernels if name not in lines],
            [_spelled(name, buffers, "buffer") for name in self.buffers],
        )
        return names._at_lines(lines, model) if lines else names

    def _at_lines(self, lines: Sequence[str], model: Model) -> Choice:
        """With the launches of model lines, beside those of the kernels that are named, as launch numbers."""
        at = {number for line in lines for number in launches_at(line, model)}
        at |= {launch.index for launch in model.wrapper.launches if launch.kernel in self.kernels}
        wanted = at & set(self.launches) if self.launches else at
        if not wanted:
            raise ProblemError("none of these launches is of that line", value=", ".join(lines))
        return replace(self, launches=sorted(wanted), kernels=())

    def of(self, launch: LaunchValues) -> LaunchValues | None:
        """The launch with the chosen buffers only; None when it is not chosen."""
        return self._cut(launch) if self._takes(launch) else None

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


def launches_at(line: str, model: Model) -> list[int]:
    """Numbers of the launches that come from `FILE:LINE` or `LINE`; FILE may be the end of a path.

    Raises ProblemError when there is none, with lines that launches come from.
    """
    asked = MODEL_LINE.fullmatch(line)
    assert asked is not None, "only model lines are looked up"
    places = [
        (launch.index, place) for launch in model.wrapper.launches for place in model.locations(launch.index)
    ]
    file, number = asked["file"] or "", int(asked["line"])
    found = [index for index, place in places if place.line == number and _ends(place.file, file)]
    if found:
        return list(dict.fromkeys(found))
    known = list(dict.fromkeys(f"{place.file}:{place.line}" for _, place in places))
    raise ProblemError(
        "no launch is known to come from that line",
        value=line,
        allowed=", ".join(known[:8]) or "compile with INDUCTOR_PROVENANCE=1 (torch >= 2.9) to know lines",
    )


def _ends(path: str, asked: str) -> bool:
    return not asked or path == asked or path.endswith(f"/{asked.removeprefix('./')}")
