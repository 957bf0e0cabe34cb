"""Encodes tensors, compile options and source lines as JSON, and writes and reads the file of a call.

The text of each layout is cached: a model is called with the same layouts again and again, and encoding them
each time took most of the hook's time.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import traceback
from operator import attrgetter
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple

import torch
from torch.utils import _pytree

from .report import Encoded, Refused, Report, encode_frames, plain
from .report import encode as report_encode
from .tensors import alignment, cut_out, describe, is_strided, layout, nonfinite, span, storage_bytes

if TYPE_CHECKING:  # the hook imports this file into every program
    from .protocol import CallRecord, Configs, RebuildRequest, RecordedTensor


MOST = 4096  # entries of each cache
_layouts: dict[Any, Encoded] = {}


class Output(NamedTuple):
    """One output as JSON. `odd`: it is not finite, or `unreadable` because the device failed."""

    text: Encoded
    odd: bool = False
    unreadable: bool = False


def encode_layout(tensor: torch.Tensor) -> Encoded:
    """`tensors.layout` as JSON."""
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
    """Encode the layout and, if `counted`, how many values are NaN or infinite."""
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
    """The options for torch. Raises AttributeError for an unregistered operator, as a script would."""
    found, named = dict(configs), configs.get(BY_OPERATOR)
    if isinstance(named, dict):  # its keys are `namespace.name.overload`
        found[BY_OPERATOR] = {attrgetter(name)(torch.ops): shims for name, shims in named.items()}
    return found


OURS = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))
INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<|[/\\]lib[/\\]python\d")
NOT_THE_USERS = (OURS, TORCH, subprocess.__file__, "<frozen")
FRAMES = 8


def frames() -> Encoded:
    """The user's frames as JSON, innermost first. Cached, because reading source lines takes time."""
    return _frames_text(tuple((frame.f_code, frame.f_lineno) for frame in callers()))


@functools.lru_cache(MOST)
def _frames_text(chain: tuple[tuple[CodeType, int], ...]) -> Encoded:
    return Encoded(report_encode(encode_frames(chain)))


def raised_in(error: BaseException) -> list[tuple[FrameType, int]]:
    """The user's frames through which an exception passed, innermost first, with the line in each."""
    places = reversed(list(traceback.walk_tb(error.__traceback__)))
    return [(frame, line) for frame, line in places if not is_ours(frame.f_code)][:FRAMES]


def callers() -> list[FrameType]:
    """The user's frames of the current thread, innermost first."""
    found: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < FRAMES:
        if not is_ours(frame.f_code):
            found.append(frame)
        frame = frame.f_back
    return found


@functools.lru_cache(MOST)
def is_ours(code: CodeType) -> bool:
    """Whether the code is of the hook, torch, the import system or `subprocess`."""
    return code.co_filename.startswith(NOT_THE_USERS)


# A call is restored with the same strides, offsets and aliasing: `torch.save` keeps whole storages and which
# tensors share them. If the storages exceed the cap, each tensor is cut to the span that it touches.
CALL_FORMAT = "aoti-debug-call-1"
PLAIN = (int, float, bool, str, type(None))


class TooLarge(Exception):
    """The leaves need more bytes than the cap allows."""


_dumped: list[tuple[Any, str]] = []  # the last tree and its text; most calls of a model have the same


def pack(args: Any, kwargs: Any, cap: int) -> CallRecord:
    """A record for `torch.save`, with at most `cap` bytes of tensors. May raise `TooLarge`."""
    leaves, spec = _pytree.tree_flatten((args, kwargs))
    if not _dumped or _dumped[0][0] != spec:
        try:
            text = str(_pytree.treespec_dumps(spec))
        except Exception:
            text = ""
        _dumped[:] = [(spec, text)]
    return {"format": CALL_FORMAT, "leaves": pack_leaves(leaves, cap), "spec": _dumped[0][1]}


def pack_leaves(leaves: list[Any], cap: int) -> list[Any]:
    """Detach tensors. Plain values become `{"value": v}`, other leaves `{"repr": text}`."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    whole = storage_bytes(tensors)
    cut = whole > cap
    if cut and sum(span(tensor.shape, tensor.stride()) * tensor.element_size() for tensor in tensors) > cap:
        raise TooLarge("{} bytes of inputs, the cap is {}".format(whole, cap))

    def packed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return cut_out(leaf.detach()) if cut else leaf.detach()
        return {"value": leaf} if isinstance(leaf, PLAIN) else {"repr": repr(leaf)[:300]}

    return [packed(leaf) for leaf in leaves]


def restore(record: CallRecord) -> tuple[list[Any], tuple[Any, Any] | None]:
    """The leaves, and (args, kwargs), or None if the tree or a leaf could not be saved."""
    leaves = [
        leaf["value"] if isinstance(leaf, dict) and "value" in leaf else leaf for leaf in record["leaves"]
    ]
    if not record.get("spec") or any(isinstance(leaf, dict) for leaf in leaves):
        return leaves, None
    args, kwargs = _pytree.tree_unflatten(leaves, _pytree.treespec_loads(record["spec"]))
    return leaves, (tuple(args), dict(kwargs))


def _recorded(asked: RecordedTensor) -> torch.Tensor:
    """A recorded tensor on its device. Raises `Refused` if the recording lacks a part of it."""
    dtype: Any = getattr(torch, asked["dtype"])
    sizes, strides = asked["sizes"], asked["strides"]
    needed = span(sizes, strides) * torch.empty(0, dtype=dtype).element_size()
    if needed != asked["length"]:
        raise Refused("the bytes that were kept are not those of the layout", asked["length"], str(needed))
    if not needed:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=asked["device"])
    with open(asked["file"], "rb") as file:
        file.seek(asked["offset"])
        memory = bytearray(file.read(needed))
    if len(memory) != needed:
        raise Refused("the recording was cut", len(memory), str(needed))
    return torch.frombuffer(memory, dtype=dtype).to(asked["device"]).as_strided(sizes, strides)


def operate_rebuild(request: RebuildRequest, report: Report) -> None:
    """Write the tensors to `out` as a captured call, or, with `names`, as weights, and report these."""
    report.phase("rebuilding")
    leaves = [_recorded(each) for each in request["tensors"]]
    if request["names"]:
        from .events import Inputs  # the hook does not need it

        report.event(Inputs([describe(leaf) for leaf in leaves]))
        torch.save(dict(zip(request["names"], leaves)), request["out"])
    else:
        torch.save({"format": CALL_FORMAT, "leaves": leaves, "spec": ""}, request["out"])
