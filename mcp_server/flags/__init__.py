"""Table of AOTInductor debugging flags: when each acts, since which torch, what it shows and misses."""

from .select import FLAGS, Chosen, FlagPlan, find, parse_version, select
from .types import Flag, Moment, table_markdown

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
