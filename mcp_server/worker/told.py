"""What the journal tells of tensors, as JSON text that is made once for each layout.

A model is called with the same layouts again and again: making their text anew took most of the hook's time.
"""

from __future__ import annotations

from typing import Any, Callable, Hashable, NamedTuple

import torch

from .report import Encoded, encode
from .tensors import alignment, layout, nonfinite

FINITE = ', "nan": 0, "inf": 0}'
MOST = 4096  # texts of one kind that are remembered


class Texts:
    """JSON text by key; a full memory begins anew."""

    def __init__(self) -> None:
        self.texts: dict[Hashable, Encoded] = {}

    def get(self, key: Hashable, make: Callable[[], Any]) -> Encoded:
        text = self.texts.get(key)
        if text is None:
            if len(self.texts) >= MOST:
                self.texts.clear()
            text = self.texts[key] = Encoded(encode(make()))
        return text


_layouts = Texts()


class Output(NamedTuple):
    """One output of a call. `odd`: not finite, or not readable since the device failed."""

    text: Encoded
    odd: bool = False
    unreadable: bool = False


def tell_layout(tensor: torch.Tensor) -> Encoded:
    """`tensors.layout` as text."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return Encoded(encode(layout(tensor)))
    key = (
        *(tensor.dtype, tensor.device, tensor.shape, tensor.stride()),
        *(tensor.storage_offset(), alignment(tensor)),
    )
    return _layouts.get(key, lambda: layout(tensor))


def tell_output(leaf: Any, device_error: str, counted: bool) -> Output:
    """Layout, and unless `counted` is false how many values are NaN or infinite.

    `device_error` is what the device said when it was waited for; its memory then cannot be read.
    """
    if not isinstance(leaf, torch.Tensor):
        return Output(Encoded(encode({"value": repr(leaf)[:200]})))
    text = tell_layout(leaf)
    if device_error:
        return Output(_with(text, {"unreadable": device_error[:2000]}), True, True)
    if not counted:
        return Output(text)
    found = nonfinite(leaf.detach())
    if not any(found.values()):
        return Output(Encoded(text[:-1] + FINITE))
    return Output(_with(text, found), True)


def _with(text: Encoded, more: "dict[str, Any]") -> Encoded:
    """An object's text with more members."""
    return Encoded(text[:-1] + ", " + encode(more)[1:])


def tell_all(texts: "list[Encoded]") -> Encoded:
    """A list of what is encoded already."""
    return Encoded("[" + ", ".join(texts) + "]")
