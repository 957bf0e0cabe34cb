"""Which call gave the tensors that a check of the program's own looked at.

A program may make many calls, keep what they gave, and look at it in the end: the check then fails over a
call that is not the last.
"""

from __future__ import annotations

import ast
import weakref
from collections import deque
from types import FrameType
from typing import Any, Iterator

import torch

from .capture_aliases import address_of
from .source_at import innermost, variable

MOST = 4096  # outputs that are remembered


class Returned:
    """Remembers the outputs of the latest calls, as long as the program keeps them."""

    def __init__(self) -> None:
        self.outputs: deque[tuple[int, Any]] = deque(maxlen=MOST)

    def keep(self, call: int, outputs: Any) -> None:
        self.outputs.extend((call, weakref.ref(each)) for each in outputs if isinstance(each, torch.Tensor))

    def calls(self, tensors: list[torch.Tensor]) -> list[int]:
        """The calls whose outputs these are, or show a part of, each once.

        Memory that several calls gave, a constant's or an input's, names none of them.
        """
        owners: dict[int, set[int]] = {}
        for call, reference in list(self.outputs):
            output = reference()
            if output is not None:
                owners.setdefault(address_of(output), set()).add(call)
        found = [owners.get(address_of(tensor), set()) for tensor in tensors if address_of(tensor)]
        return list(dict.fromkeys(call for each in found if len(each) == 1 for call in each))


def looked_at(places: "list[tuple[FrameType, int]]") -> list[torch.Tensor]:
    """The tensors that the check at the innermost of these lines names.

    Not all that its frames hold: those may be of calls that it does not look at.
    """
    for frame, line in places:
        found = [value for node in _tested(frame, line) for value in _tensors(node, frame)]
        if found:
            return found
    return []


def _tested(frame: FrameType, line: int) -> Iterator[ast.AST]:
    """The expressions that the innermost `if` or `assert` around this line tests."""
    check = innermost(frame, line, (ast.If, ast.Assert))
    if isinstance(check, (ast.If, ast.Assert)):
        yield from ast.walk(check.test)


def _tensors(node: ast.AST, frame: FrameType) -> Iterator[torch.Tensor]:
    value = _value(node, frame)
    if isinstance(value, torch.Tensor):
        yield value


def _value(node: ast.AST, frame: FrameType) -> Any:
    """Of a variable, or of `outputs[k]`: what needs no code of the program's."""
    if isinstance(node, ast.Name):
        return variable(node.id, frame)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Subscript):
        holder, key = _value(node.value, frame), _value(node.slice, frame)
        fits = type(holder) in (list, tuple) and type(key) is int and -len(holder) <= key < len(holder)
        known = type(holder) is dict and type(key) in (int, str)
        return holder[key] if fits else holder.get(key) if known else None
    return None
