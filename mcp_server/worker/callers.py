"""Which line of the user's program is calling."""

from __future__ import annotations

import linecache
import os
import sys
from typing import Any

import torch

OURS = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
FRAMES = 8


def frames() -> list[dict[str, Any]]:
    """File, line, function and source text of the user's frames, innermost first; torch's are left out."""
    found: list[dict[str, Any]] = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < FRAMES:
        name = frame.f_code.co_filename
        if not name.startswith((OURS, TORCH)) and not name.startswith("<frozen"):
            code = linecache.getline(name, frame.f_lineno).strip()[:200]
            found.append(
                {"file": name, "line": frame.f_lineno, "function": frame.f_code.co_name, "code": code}
            )
        frame = frame.f_back  # type: ignore[assignment]
    return found
