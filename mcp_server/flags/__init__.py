"""Every debugging flag of AOTInductor: when it acts, since which torch, what it shows and what it misses."""

from .select import FLAGS, Chosen, FlagPlan, find, parse_version, select
from .table import table_markdown
from .types import Flag, Moment

__all__ = [
    "FLAGS",
    "Chosen",
    "Flag",
    "FlagPlan",
    "Moment",
    "find",
    "parse_version",
    "select",
    "table_markdown",
]
