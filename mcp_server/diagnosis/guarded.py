"""Which dimension of which input the guard of an exported program is about."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcp_server.diagnosis.case import Case

# As the guard names it: `x.size()[1]`, `feats['user'].size()[1]`, `rest[0].size()[0]` (torch 2.8-2.15).
_SIZE = re.compile(r"(?<![\w\]])(?P<path>\w+(?:\[[^][]+\])*)\.size\(\)\[(?P<dim>\d{1,3})\]")


@dataclass(frozen=True)
class Guarded:
    """A dimension of an input: its place among the tensors, its path, and its size in this call."""

    index: int
    path: str
    dim: int
    size: int | None


def guarded(text: str, case: Case) -> Guarded | None:
    """The one dimension that the guard's text names; None where it names several, or none that is known."""
    names = case.exported.names if case.exported is not None else ()
    found = {(_placeholder(match["path"]), int(match["dim"])) for match in _SIZE.finditer(text)}
    if len(found) != 1:
        return None
    name, dim = found.pop()
    if name not in names or case.given is None or len(case.given.paths) != len(names):
        return None
    place = names.index(name)
    shape = case.leaves[place].get("shape") if place < len(case.leaves) else None
    size = int(shape[dim]) if shape is not None and dim < len(shape) else None
    return Guarded(sum(1 for each in names[:place] if each), case.given.paths[place], dim, size)


def _placeholder(path: str) -> str:
    """The name that export gives the leaf at that path."""
    return re.sub(r"\W+", "_", path).strip("_")
