"""Measurements of what the project promises; each module says what it prints and keeps here."""

import json
from pathlib import Path
from typing import Any

WIDTH = 1000
RESULTS = Path(__file__).with_name("results.json")


def kept(name: str) -> dict[str, Any]:
    """What the benchmark of this name, or a person, last wrote."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")).get(name, {})
    return found


def keep(name: str, found: dict[str, Any]) -> None:
    """Replace what the benchmark of this name wrote before."""
    written = {**json.loads(RESULTS.read_text(encoding="utf-8")), name: found}
    RESULTS.write_text(in_rows(written) + "\n", encoding="utf-8")


def in_rows(value: Any) -> str:
    """JSON in which a value that fits into a line gets one line."""
    row = json.dumps(value, separators=(",", ":"))
    if len(row) <= WIDTH or not value or not isinstance(value, (dict, list)):
        return row
    if isinstance(value, list):
        parts = [in_rows(each) for each in value]
    else:
        parts = [f"{json.dumps(name)}:{in_rows(each)}" for name, each in value.items()]
    return "\n".join((row[0], ",\n".join(parts), row[-1]))
