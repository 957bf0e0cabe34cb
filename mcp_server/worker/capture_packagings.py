"""What the hook tells of compiled files that the program puts into a package itself."""

from __future__ import annotations

from typing import Any, Callable

from .callers import frames
from .capture_compiles import path_of
from .journal import Journal


class Packagings:
    """`inside` says whether a compile is under way, which packages its own files and has told of them."""

    def __init__(self, journal: Journal, inside: Callable[[], bool]) -> None:
        self.journal = journal
        self.inside = inside

    def packaging(self, archive: Any, aoti_files: Any = None, *_args: Any, **_kwargs: Any) -> None:
        """Tell the first file of each model, by its name; a package written to a stream has no path."""
        package = path_of(archive)
        if package is None or self.inside():
            return
        files = aoti_files if isinstance(aoti_files, dict) else {"model": aoti_files}
        named = {str(name): path_of(value) for name, value in files.items()}
        told = {name: path for name, path in named.items() if path is not None}
        self.journal.event("packaging", package=package, files=told, frames=frames())
