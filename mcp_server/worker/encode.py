"""Tensors, compile options and source lines as JSON.

The text of each layout is cached: a model is called with the same layouts again and again, and encoding them
each time took most of the hook's time.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import traceback
from operator import attrgetter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Optional

import torch

from .report import Encoded, encode_frames, plain
from .report import encode as report_encode
from .tensors import alignment, is_strided, layout, nonfinite

if TYPE_CHECKING:
    from .protocol import Configs

MOST = 4096  # texts of one kind that are remembered
_layouts: dict[Any, Encoded] = {}


class Output(NamedTuple):
    """One output of a call. `odd`: not finite, or unreadable because the device failed."""

    text: Encoded
    odd: bool = False
    unreadable: bool = False


def encode_layout(tensor: torch.Tensor) -> Encoded:
    """`tensors.layout` as text."""
    if not is_strided(tensor):
        return Encoded(report_encode(layout(tensor)))
    place = (tensor.stride(), tensor.storage_offset(), tensor.is_contiguous(), alignment(tensor))
    key = (tensor.dtype, tensor.device, tensor.shape, place)
    if key not in _layouts:
        if len(_layouts) >= MOST:
            _layouts.clear()
        _layouts[key] = Encoded(report_encode(layout(tensor)))
    return _layouts[key]


def encode_output(leaf: Any, device_error: str, counted: bool) -> Output:
    """The layout and, if `counted`, the number of NaN or infinite values; unread after a `device_error`."""
    if not isinstance(leaf, torch.Tensor):
        return Output(Encoded(report_encode({"value": repr(leaf)[:200]})))
    text = encode_layout(leaf)
    if device_error:
        return Output(_extended(text, {"unreadable": device_error[:2000]}), True, True)
    if not counted:
        return Output(text)
    found = nonfinite(leaf.detach())
    return Output(_extended(text, found), bool(found["nan"] or found["inf"]))


def _extended(text: Encoded, more: Mapping[str, object]) -> Encoded:
    return Encoded(text[:-1] + ", " + report_encode(more)[1:])


def encode_all(texts: list[Encoded]) -> Encoded:
    return Encoded("[" + ", ".join(texts) + "]")


# The only option of torch._inductor.config (2.8-2.15) whose value has operators as keys.
BY_OPERATOR = "aot_inductor.custom_ops_to_c_shims"


def encode(configs: Mapping[str, Any]) -> tuple[Configs, bool]:
    """`configs` as JSON, and whether `decode` restores them exactly."""
    named = dict(configs)
    if isinstance(named.get(BY_OPERATOR), dict):
        named[BY_OPERATOR] = {str(operator): shims for operator, shims in named[BY_OPERATOR].items()}
    return plain(named), plain(named) == named


def decode(configs: Configs) -> Configs:
    """The options for torch; an operator that is not registered raises AttributeError, as in a script."""
    found, named = dict(configs), configs.get(BY_OPERATOR)
    if isinstance(named, dict):  # by `namespace.name.overload`
        found[BY_OPERATOR] = {attrgetter(name)(torch.ops): shims for name, shims in named.items()}
    return found


OURS = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
NOT_THE_USERS = (OURS, TORCH, subprocess.__file__, "<frozen")
FRAMES = 8


def frames() -> Encoded:
    """The user's frames, innermost first, as cached text, since reading source lines takes time."""
    return _frames_text(tuple((frame.f_code, frame.f_lineno) for frame in callers()))


@functools.lru_cache(MOST)
def _frames_text(chain: tuple[tuple[CodeType, int], ...]) -> Encoded:
    return Encoded(report_encode(encode_frames(chain)))


def raised_in(error: BaseException) -> list[tuple[FrameType, int]]:
    """The user's frames through which an exception came, innermost first, with the line in each."""
    places = reversed(list(traceback.walk_tb(error.__traceback__)))
    return [(frame, line) for frame, line in places if not is_ours(frame.f_code)][:FRAMES]


def callers() -> list[FrameType]:
    """The user's frames of the current thread, innermost first."""
    found: list[FrameType] = []
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and len(found) < FRAMES:
        if not is_ours(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found


@functools.lru_cache(MOST)
def is_ours(code: CodeType) -> bool:
    """Whether the code is of the hook, of torch, of the import system, or starts a process."""
    return code.co_filename.startswith(NOT_THE_USERS)
