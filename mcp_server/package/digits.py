"""Numbers in text that nobody vouches for."""

from __future__ import annotations

import re

_WHOLE = re.compile(r"[0-9]{1,19}")


def whole_number(text: str) -> int | None:
    """The number that `text` is; None for other text, and for more digits than 64 bits have.

    `int` raises from 4,300 digits on, and `str.isdigit` takes ² for a digit.
    """
    return int(text) if _WHOLE.fullmatch(text) else None
