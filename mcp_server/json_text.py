"""JSON from outside: text that is nested too deeply is as wrong as text that is no JSON."""

from __future__ import annotations

import json
from typing import Any


def read_json(text: str | bytes) -> Any:
    """The value of `text`. Raises `ValueError`, also where the parser runs out of stack."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("JSON is nested too deeply") from error
