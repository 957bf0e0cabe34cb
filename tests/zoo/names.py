"""Names of the zoo's models that compile on the CPU; no torch needed to know them.

Each compile takes five seconds of a core, and each rebuild as long: `make test` tries some of them, and
AOTI_DEBUG_THOROUGH=1 all.
"""

import os
from typing import Any

import pytest

THOROUGH = bool(os.environ.get("AOTI_DEBUG_THOROUGH"))

CPU_MODELS = (
    "attention",
    "bags",
    "branch",
    "conv",
    "counter",
    "jagged",
    "logarithm",
    "loop",
    "norms",
    "patches",
    "plugin",
    "ranker",
    "scatter",
    "select",
    "unbacked",
    "views",
)

thorough = pytest.mark.skipif(not THOROUGH, reason="minutes of compiling: make test-thorough")
"""Marks what `make test-thorough` runs, every night, and `make test` leaves out."""


def nightly(*rows: Any) -> list[Any]:
    """Rows of a table that `make test-thorough` tries as well."""
    return [pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=thorough) for row in rows]


def few(examples: int) -> int:
    """So many examples of Hypothesis at night, and a quarter in `make test`."""
    return examples if THOROUGH else max(5, examples // 4)


TRIED = CPU_MODELS if THOROUGH else ("loop", "plugin", "ranker")
"""The models on which a claim about all of them is tried."""
