"""Has `torch.export` write down every line of the user's model, not those of `forward` alone."""

from __future__ import annotations

import functools
import re
import traceback
from typing import Any

import torch

from .callers import OURS, TORCH

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<|[/\\]lib[/\\]python\d")


def keep_lines(tracer: Any = None) -> None:
    """From now on the stack of a node has the frames of methods and functions that `forward` calls, too.

    torch keeps frames that are named `forward`, so that a fault in a helper would be told at the line that
    calls it. Releases that have no such filter are left alone.
    """
    tracer = torch.fx.proxy.TracerBase if tracer is None else tracer
    chosen = getattr(tracer, "_filter_traceback_frames", None)
    if chosen is None or hasattr(chosen, "__aoti_debug__"):
        return

    @functools.wraps(chosen)
    def choose(self: Any, summary: traceback.StackSummary) -> traceback.StackSummary:
        frames = chosen(self, summary)
        return with_own(frames, summary) if frames else frames

    choose.__aoti_debug__ = True  # type: ignore[attr-defined]
    tracer._filter_traceback_frames = choose


def with_own(frames: traceback.StackSummary, summary: traceback.StackSummary) -> traceback.StackSummary:
    """The chosen frames with those of the user's own files that the first of them called, outermost first."""
    chosen = {id(frame) for frame in frames}
    start = next((i for i, frame in enumerate(summary) if id(frame) in chosen), len(summary))
    return traceback.StackSummary.from_list(
        [frame for frame in summary[start:] if id(frame) in chosen or _own(frame.filename)]
    )


def _own(file: str) -> bool:
    return not file.startswith((OURS, TORCH)) and not _INSTALLED.search(file)
