"""Compares the flag table with a release: what it lists is there, and does what its row says."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

from benchmarks.releases.trial import Outcome, Release, Trials
from mcp_server.flags import FLAGS, Flag

_ASK = """
import json, operator, sys
from torch._inductor import config
def value(name):
    try:
        return repr(operator.attrgetter(name)(config))
    except AttributeError:
        return None
print(json.dumps({name: value(name) for name in sys.argv[1:]}))
"""
_MANY = 1 << 24


class Flags:
    """What a release has of the flag table."""

    def __init__(self, release: Release) -> None:
        self.release = release

    def config_entry(self, flag: Flag) -> Outcome:
        """The entry exists, and the row's variable, if any, changes it."""
        off, on = self._values["off"][flag.config], self._values["on"][flag.config]
        if off is None:
            return f"torch._inductor.config has no {flag.config}"
        return "" if not flag.env or off != on else f"{flag.env} does not change {flag.config}"

    def variable(self, flag: Flag) -> Outcome:
        """Some source or library of torch names the variable."""
        return "" if self._names(flag.env) else "nothing in torch names it"

    def too_new(self, flag: Flag) -> Outcome:
        """The release lacks what the table says came later, except where `before` tells of it."""
        there = self._values["on"][flag.config] is not None if flag.config else self._names(flag.env)
        return "it is there already" if there and not flag.before else ""

    def inert(self, flag: Flag) -> Outcome:
        """No source of the compiler names it."""
        return "a source names it" if any(flag.env.encode() in text for text in self._sources) else ""

    @cached_property
    def _values(self) -> dict[str, dict[str, str | None]]:
        rows = [flag for flag in FLAGS if flag.config]
        variables = [flag for flag in rows if flag.env]
        off = {flag.env: "0" for flag in variables if flag.values.accepts("0")}
        on = {flag.env: _turned_on(flag) for flag in variables}
        return {"off": self._asked(rows, off), "on": self._asked(rows, on)}

    def _asked(self, rows: list[Flag], env: dict[str, str]) -> dict[str, str | None]:
        done = self.release.child("-c", _ASK, *(flag.config for flag in rows), env=env)
        values: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
        return values

    @cached_property
    def _home(self) -> Path:
        done = self.release.child("-c", "import importlib.util as u; print(u.find_spec('torch').origin)")
        return Path(done.stdout.strip()).parent

    @cached_property
    def _sources(self) -> list[bytes]:
        kinds = (*self._home.rglob("*.py"), *(self._home / "include").rglob("*.h"))
        return [path.read_bytes() for path in kinds]

    def _names(self, variable: str) -> bool:
        word = variable.encode()
        return any(word in text for text in self._sources) or any(
            _holds(library, word) for library in sorted((self._home / "lib").glob("lib*.so"), key=_size)
        )

    def trials(self) -> Trials:
        return {flag.name: partial(self._trial(flag), flag) for flag in FLAGS}

    def _trial(self, flag: Flag) -> Callable[[Flag], Outcome]:
        if flag.inert:
            return self.inert
        if flag.since > self.release.release:
            return self.too_new
        return self.config_entry if flag.config else self.variable


def _turned_on(flag: Flag) -> str:
    return next(value for value in ("1", "O2", "k0") if flag.values.accepts(value))


def _size(path: Path) -> int:
    return path.stat().st_size


def _holds(library: Path, word: bytes) -> bool:
    """Whether a library has these bytes; read in pieces, since one is a gigabyte."""
    with library.open("rb") as file:
        kept = b""
        while piece := file.read(_MANY):
            if word in kept + piece:
                return True
            kept = piece[-len(word) :]
    return False
