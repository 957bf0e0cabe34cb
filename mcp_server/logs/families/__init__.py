"""The table of all error families, in order of precedence: if two rows match a line, the first one counts."""

import difflib

from . import compiling, device, host, inputs, loading
from .kinds import Advice, Family, Naming, Rank, Stage

_TABLES = (
    *(device.TABLE, inputs.TABLE, loading.TABLE),
    *(host.RESOURCES, compiling.TABLE, host.CHECKS, host.TABLE),
)
FAMILIES: tuple[Family, ...] = tuple(family for table in _TABLES for family in table.rows)
BY_ID: dict[str, Family] = {family.id: family for family in FAMILIES}

_ALIKE = 0.6  # difflib's default ratio; texts below it share little but common words
_COMPARED = 300

__all__ = [
    "BY_ID",
    "FAMILIES",
    "Advice",
    "Family",
    "Naming",
    "Rank",
    "Stage",
    "closest_family",
    "find_family",
]


def find_family(text: str, families: tuple[Family, ...] = FAMILIES) -> tuple[Family, dict[str, str]] | None:
    """The first of `families` that matches one line, with its named fields. None if none matches."""
    for family in families:
        fields = family.match(text)
        if fields is not None:
            return family, fields
    return None


def closest_family(text: str) -> Family | None:
    """The family whose example is most similar to `text`. None if no example is similar enough."""
    examples = {family.example.lower(): family for family in FAMILIES}
    found = difflib.get_close_matches(text[:_COMPARED].lower(), examples, n=1, cutoff=_ALIKE)
    return examples[found[0]] if found else None
