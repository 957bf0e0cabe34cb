"""What a failing kernel or check says itself, without the C++ frames and prefixes around it."""

from __future__ import annotations

import re

from mcp_server.logs.text import bound

_LONGEST = 160  # characters of a message inside a sentence

# Messages whose form torch gives them (torch/_inductor/codegen/{cpp,triton}.py and
# torch/csrc/inductor/aoti_runtime/model_base.h, 2.8-2.15): safe to quote, wherever they stand in a text.
_MESSAGES = (
    re.compile(r"index out of bounds: [-\w ()+*/<>=.]{3,100}"),
    re.compile(r"device-side assert triggered"),
    re.compile(r"an illegal memory access was encountered"),
    re.compile(r"misaligned address"),
    re.compile(r"input_handles\[\d+\]: unmatched [^\n]{3,120}"),
    re.compile(r"(?:CUDA )?out of memory"),
)
_SUFFIX = re.compile(r"(?<=\d)(?:LL|L|UL|ULL)\b")
_PREFIX = re.compile(r"^\s*(?:what\(\):\s*|(?:\w+\.)*\w*(?:Error|Exception):\s*)")


def kernel_message(text: str) -> str:
    """The message in a text of an exception or a log, bounded; empty when the text has none."""
    for message in _MESSAGES:
        found = message.search(text)
        if found:
            return _SUFFIX.sub("", bound(found[0].strip(), _LONGEST))
    return ""


def short_message(text: str) -> str:
    """The kernel's own message when there is one, else the first line without its prefix, bounded."""
    lines = [line for line in text.splitlines() if line.strip()]
    return kernel_message(text) or bound(_PREFIX.sub("", lines[0]).strip() if lines else "", _LONGEST)
