"""Which line of the user's program is calling."""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType
from typing import Any, Iterable, Optional

import torch

from .report import Encoded
from .told import MOST, Texts

OURS = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
FRAMES = 8


_texts = Texts()
_ours: dict[CodeType, bool] = {}


def frames() -> Encoded:
    """File, line, function and source text of the user's frames, innermost first; torch's are left out.

    As JSON text, which is made once for each chain of lines: reading source lines is what takes time.
    """
    chain = tuple((frame.f_code, frame.f_lineno) for frame in callers())
    return _texts.get(chain, lambda: tell(chain))


def tell(chain: Iterable[tuple[CodeType, int]]) -> list[dict[str, Any]]:
    """File, line, function and source text of each place."""
    return [_told(*each) for each in chain]


def raised_in(error: BaseException) -> list[tuple[FrameType, int]]:
    """The user's frames through which an exception came, innermost first, with the line in each."""
    found: list[tuple[FrameType, int]] = []
    place = error.__traceback__
    while place is not None:
        if not is_ours(place.tb_frame.f_code):
            found.insert(0, (place.tb_frame, place.tb_lineno))
        place = place.tb_next
    return found[:FRAMES]


def callers() -> list[FrameType]:
    """The user's frames of the current thread, innermost first."""
    found: list[FrameType] = []
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and len(found) < FRAMES:
        if not is_ours(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found


def is_ours(code: CodeType) -> bool:
    """Whether the code is of the hook, of torch, or of the import system."""
    found = _ours.get(code)
    if found is None:
        if len(_ours) >= MOST:
            _ours.clear()
        name = code.co_filename
        found = _ours[code] = name.startswith((OURS, TORCH, "<frozen"))
    return found


def _told(code: CodeType, line: int) -> dict[str, Any]:
    text = linecache.getline(code.co_filename, line).strip()[:200]
    return {"file": code.co_filename, "line": line, "function": code.co_name, "code": text}
