"""The value printer's level 3: names of launches before and after each, in a stream of lines."""

from __future__ import annotations

import re

from mcp_server.evidence.facts import LastLaunch
from mcp_server.evidence.text import Line, bound

_LAUNCH = re.compile(r"\[ (?P<when>before|after)_launch: (?P<kernel>[^\[\]]+?) \]")


class LaunchTracker:
    """Counts finished launches and remembers the one that is open, for each process."""

    def __init__(self) -> None:
        self.finished = 0
        self._open: dict[str, LastLaunch] = {}

    def feed(self, line: Line) -> bool:
        """Take a line; True when it holds nothing but launch names."""
        alone = _LAUNCH.fullmatch(line.text)
        found = [alone] if alone else list(_LAUNCH.finditer(line.text))
        for launch in found:
            self._take(line, launch["when"], bound(launch["kernel"], 300))
        return alone is not None or (bool(found) and not _LAUNCH.sub("", line.text).strip())

    def _take(self, line: Line, when: str, kernel: str) -> None:
        if when == "before":
            self._open[line.process] = LastLaunch(kernel, line.number, self.finished, line.process)
        else:
            self.finished += 1
            self._open.pop(line.process, None)

    def open_launch(self) -> LastLaunch | None:
        """The launch announced last that was not announced as ended."""
        return max(self._open.values(), key=lambda launch: launch.line, default=None)
