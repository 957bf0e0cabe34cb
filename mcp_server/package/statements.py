"""Reads calls and references in the statements of a wrapper."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from mcp_server.package.terms.blocks import split_arguments

CHECK = "AOTI_TORCH_ERROR_CODE_CHECK"
_CALL = re.compile(r"\s*([A-Za-z_][\w:]*(?:(?:\.|->)[A-Za-z_]\w*)*)\(")
_NAME = re.compile(r"[A-Za-z_]\w*")
_CAST = re.compile(r"\((?P<type>[\w:<> ]+\*?)\)\s*\(?\s*(?P<name>[A-Za-z_]\w*)\.data_ptr\(\)\s*\)?")
_WRAP = re.compile(
    r"&?(?:wrap_with_raii_handle_if_needed|RAIIAtenTensorHandle|temporary_reference|std::move"
    r"|borrow_arrayref_tensor_as_tensor|copy_arrayref_tensor_to_tensor|convert_arrayref_tensor_to_tensor)\("
)
_TAIL = re.compile(r"\.(?:get|data|cbegin|begin)\(\)$")
_ARRAY = re.compile(r"std::array<\s*(?P<type>.+?),\s*\d+\s*>\{")
_VIEW = re.compile(r"reinterpret_tensor_wrapper\(")
# An array passed as a pointer to its first element (torch 2.14 and later).
_POINTER_TO = re.compile(r"static_cast<[\w:\s]+\*>\(")


class Call(NamedTuple):
    """A call: callee, argument offsets in the file, and whether its error code is checked."""

    callee: str
    arguments: list[tuple[int, int]]
    checked: bool


@dataclass(frozen=True, slots=True)
class View:
    """A reinterpretation of a buffer: C++ expressions of sizes, strides and offset, in elements."""

    sizes: tuple[str, ...]
    strides: tuple[str, ...]
    offset: str


@dataclass(frozen=True, slots=True)
class Reference:
    """An argument without casts: a variable, optionally a view of it or its address.

    `array` holds the offsets of the elements of an inline `std::array`.
    """

    name: str | None
    type: str = ""
    address: bool = False
    view: tuple[str, str, str] | None = None
    array: tuple[tuple[int, int], ...] | None = None


def read_call(text: str, start: int, end: int) -> Call | None:
    """Parse `text[start:end]` as a call, inside an optional error check macro; None for other text."""
    match = _CALL.match(text, start, end)
    while end > start and (text[end - 1] == ";" or text[end - 1].isspace()):
        end -= 1
    if not match or text[end - 1 : end] != ")":
        return None
    if match[1] == CHECK:
        inner = read_call(text, match.end(), end - 1)
        return inner._replace(checked=True) if inner else None
    return Call(match[1], split_arguments(text, match.end(), end - 1), False)


def read_reference(text: str, start: int, end: int) -> Reference:
    """Resolve the argument `text[start:end]`; `name` is None unless it is a single variable."""
    expression = text[start:end]
    if _NAME.fullmatch(expression):
        return Reference(expression)
    if match := _CAST.fullmatch(expression):
        return Reference(match["name"], match["type"].strip())
    if (match := _POINTER_TO.match(expression)) and expression.endswith(")"):
        return read_reference(text, start + match.end(), end - 1)
    if match := _ARRAY.match(expression):
        close = expression.rfind("}")
        places = split_arguments(text, start + match.end(), start + close) if close > 0 else []
        return Reference(None, match["type"], array=tuple(places))
    return _unwrap(expression)


def _unwrap(expression: str) -> Reference:
    """Strip wrapping calls and casts until a name or a view is left."""
    address = False
    while True:
        expression = _TAIL.sub("", expression.strip())
        if expression.startswith("&") and not expression.startswith("&temporary_reference"):
            address, expression = True, expression[1:]
        if not (match := _WRAP.match(expression)) or not expression.endswith(")"):
            break
        expression = expression[match.end() : -1]
    if _NAME.fullmatch(expression):
        return Reference(expression, address=address)
    if (view := _VIEW.match(expression)) and expression.endswith(")"):
        spans = split_arguments(expression, view.end(), len(expression) - 1)
        parts = [expression[a:b] for a, b in spans]
        if len(parts) == 5:
            return Reference(_unwrap(parts[0]).name, view=(parts[2], parts[3], parts[4]))
    return Reference(None)


def braced(text: str) -> tuple[str, ...]:
    """The elements of `{a, b}` as text."""
    open_, close = text.find("{"), text.rfind("}")
    if open_ < 0 or close < open_:
        return ()
    return tuple(text[a:b] for a, b in split_arguments(text, open_ + 1, close))


_WHOLE = re.compile(r"[0-9]{1,19}")


def whole_number(text: str) -> int | None:
    """Parse an integer; None for other text, and for more digits than 64 bits have.

    Stricter than `int`, which raises beyond 4,300 digits, and `str.isdigit`, which accepts "²".
    """
    return int(text) if _WHOLE.fullmatch(text) else None
