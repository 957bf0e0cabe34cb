"""Measurements of what the project promises; each module says what it prints, and what it keeps here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.json")


def kept(name: str) -> dict[str, Any]:
    """What the benchmark of this name, or a person, wrote last."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")).get(name, {})
    return found


def keep(name: str, found: dict[str, Any]) -> None:
    """Write `found` in the place of what the benchmark wrote before."""
    written = {**json.loads(RESULTS.read_text(encoding="utf-8")), name: found}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
