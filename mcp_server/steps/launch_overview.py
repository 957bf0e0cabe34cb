"""What a reader gets of all launches of a call: two files, the first bad value, and the ones to show first.

Launches are read once and let go: a call may have a hundred thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.steps.first_bad import BadSearch, Model
from mcp_server.steps.kernel_choice import Choice
from mcp_server.steps.kernel_io import FirstBad, LaunchValues
from mcp_server.steps.kernel_io_table import block


@dataclass(frozen=True)
class Launches:
    """Launches in the order of the call, read anew from a file each time that they are gone through."""

    read: Callable[[], Iterable[LaunchValues]]

    def __iter__(self) -> Iterator[LaunchValues]:
        return iter(self.read())

    @property
    def last(self) -> LaunchValues | None:
        """The last launch that was seen."""
        last = None
        for launch in self:
            last = launch
        return last


@dataclass
class Shown:
    """The first `most` launches, those with bad values before the others; `count` is of all."""

    most: int
    count: int = 0
    _bad: list[LaunchValues] = field(default_factory=list)
    _good: list[LaunchValues] = field(default_factory=list)

    def take(self, launch: LaunchValues) -> None:
        self.count += 1
        kind = self._bad if launch.bad else self._good
        if len(kind) < self.most:
            kind.append(launch)

    @property
    def launches(self) -> list[LaunchValues]:
        return [*self._bad, *self._good][: self.most]


@dataclass(frozen=True)
class Overview:
    """`table` and `json_file` hold the chosen launches; `first_bad` and `last` are of all."""

    first_bad: FirstBad | None
    last: LaunchValues | None
    shown: Shown
    table: Path
    json_file: Path


def overview(
    launches: Iterable[LaunchValues], model: Model, choice: Choice, folder: Path, most: int
) -> Overview:
    """Write `kernel_io.txt` and `kernel_io.json` into `folder`, and keep at most `most` launches."""
    search, shown, last = BadSearch(model), Shown(most), None
    paths = folder / "kernel_io.txt", folder / "kernel_io.json"
    with ExitStack() as stack:
        table, items = (stack.enter_context(path.open("w", encoding="utf-8")) for path in paths)
        items.write("[")
        for last in launches:
            search.take(last)
            chosen = choice.of(last)
            if chosen is None:
                continue
            table.write(block(chosen))
            items.write((",\n" if shown.count else "\n") + chosen.model_dump_json(indent=1))
            shown.take(chosen)
        items.write("\n]\n")
    return Overview(search.found, last, shown, *paths)
