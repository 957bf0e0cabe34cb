"""Splits generated C++ into statements, reads the expressions in them, and evaluates those of sizes.

A lexer, not a parser: for Inductor's code recognising strings, comments and brackets is enough.
Each statement has exact offsets, so that a rewriter can insert text around it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from mcp_server.package.terms import syntax

BlockKind = Literal["function", "if", "else", "loop", "scope", "lambda"]
StatementKind = Literal["simple", "open", "close", "comment", "directive", "cut"]


@dataclass(frozen=True, slots=True)
class Block:
    """A pair of braces. `header` is the text before the opening brace, `line` is 1-based."""

    kind: BlockKind
    header: str
    line: int
    parent: Block | None = None

    @property
    def path(self) -> tuple[Block, ...]:
        """The block and its enclosing blocks, outermost first."""
        return (*self.parent.path, self) if self.parent else (self,)


class Statement(NamedTuple):
    """One statement. `text` has no semicolon; `start` and `end` are offsets of the whole statement.

    Kinds `open` and `close` are the braces of a block; `cut` is an unexpected end of the text.
    """

    kind: StatementKind
    text: str
    line: int
    start: int
    end: int
    block: Block


_SPACE = re.compile(r"\s*")
_SIMPLE = re.compile(r"[^;{}\"'/#]*;")
_TOKEN = re.compile(
    r"""//[^\n]*|/\*|R"(?P<tag>[^()\\\s]{0,16})\(|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[;{}()]"""
)
_LAMBDA = re.compile(r"\[[^\[\]]*\]\s*(?:\([^()]*\)\s*)?(?:mutable\s*)?(?:->\s*[\w:<>&*]+\s*)?$")
_CONTROL = re.compile(r"(?:if|else\s+if|while|for|switch|catch)\b")
_LOOP = re.compile(r"(?:while|for|do)\b")
_PLAIN_BLOCKS: dict[str, BlockKind] = {"": "scope", "try": "scope", "else": "else", "do": "loop"}


def split_body(text: str, start: int, line: int, header: str) -> Iterator[Statement]:
    """Yield the statements of the function whose `{` lies just before `start`, on `line`.

    The last statement is the `close` of the function, or `cut` if the text ends first.
    """
    splitter = _Splitter(text, start, line, header)
    while True:
        statement = splitter.next()
        yield statement
        if statement.kind == "open":
            splitter.block = statement.block
        elif statement.kind == "close" and splitter.block.parent is not None:
            splitter.block = splitter.block.parent
        elif statement.kind in ("close", "cut"):
            return


class LineCounter:
    """Maps ascending text offsets to 1-based lines in one pass over the text."""

    def __init__(self, text: str, at: int = 0, line: int = 1) -> None:
        self.text, self.at, self.line = text, at, line

    def __call__(self, offset: int) -> int:
        if offset < self.at:
            self.at, self.line = 0, 1
        self.line += self.text.count("\n", self.at, offset)
        self.at = offset
        return self.line


class _Splitter:
    """The state of one pass: position, line and enclosing block."""

    def __init__(self, text: str, start: int, line: int, header: str) -> None:
        self.text, self.at = text, start
        self.line_at = LineCounter(text, start, line)
        self.block = Block("function", header, line)

    def next(self) -> Statement:
        if match := _SPACE.match(self.text, self.at):
            self.at = match.end()
        text, at = self.text, self.at
        if at >= len(text):
            return self._statement("cut", at, at)
        if simple := _SIMPLE.match(text, at):
            body = text[at : simple.end()]
            if body.count("(") == body.count(")"):
                return self._statement("simple", at, simple.end())
        if text[at] == "}":
            return self._statement("close", at, at + 1)
        if text[at] == "#":
            return self._statement("directive", at, self._find("\n", at))
        if text.startswith("//", at):
            return self._statement("comment", at, self._find("\n", at))
        if text.startswith("/*", at):
            return self._statement("comment", at, self._after("*/", at + 2))
        return self._scan()

    def _scan(self) -> Statement:
        """Scan to the end of a statement that contains strings, comments or braces."""
        text, start, at = self.text, self.at, self.at
        parens = braces = 0
        while match := _TOKEN.search(text, at):
            token, at = match.group(), match.end()
            if token == "(":
                parens += 1
            elif token == ")":
                parens -= 1
            elif token == "{":
                head = text[start : at - 1].rstrip()
                if (kind := _block_kind(head, parens + braces)) is not None:
                    line = self.line_at(start)
                    self.at = at
                    return Statement("open", head, line, start, at, Block(kind, head, line, self.block))
                braces += 1
            elif token == "}":
                if braces == 0:
                    return self._statement("simple", start, at - 1)
                braces -= 1
            elif token == ";" and parens <= 0 and braces == 0:
                return self._statement("simple", start, at)
            elif token == "/*":
                at = self._after("*/", at)
            elif token.startswith('R"'):
                at = self._after(f'){match["tag"]}"', at)
        return self._statement("cut", start, len(text))

    def _statement(self, kind: StatementKind, start: int, end: int) -> Statement:
        body = self.text[start:end]
        self.at = end
        if kind == "simple" and body.endswith(";"):
            body = body[:-1]
        return Statement(kind, body, self.line_at(start), start, end, self.block)

    def _find(self, wanted: str, at: int) -> int:
        end = self.text.find(wanted, at)
        return len(self.text) if end < 0 else end

    def _after(self, closing: str, at: int) -> int:
        return min(self._find(closing, at) + len(closing), len(self.text))


def _block_kind(head: str, depth: int) -> BlockKind | None:
    """The kind of block that `{` opens; None for an initialiser. In parentheses only a lambda is a block."""
    control = _CONTROL.match(head)
    if head.endswith((")", "]", "mutable")) and _LAMBDA.search(head) and not control:
        return "lambda" if not head.endswith("[]") else None
    if depth:
        return None
    if head in _PLAIN_BLOCKS:
        return _PLAIN_BLOCKS[head]
    if control and head.endswith(")"):
        return "loop" if _LOOP.match(head) else "if"
    return None


_PIECE = re.compile(
    r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|(?<=[\w:])<(?:[\w:,\s*&]|<[\w:,\s*&]*>)*>|[,(){}\[\]]"""
)


def split_arguments(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Stripped (start, end) offsets of the arguments in `text[start:end]`, split at commas outside brackets.

    A trailing comma, as in `{8L, }`, adds no argument.
    """
    places = []
    depth, begin = 0, start
    for match in _PIECE.finditer(text, start, end):
        token = match.group()
        if token in "({[":
            depth += 1
        elif token in ")}]":
            depth -= 1
        elif token == "," and depth == 0:
            places.append(_stripped(text, begin, match.start()))
            begin = match.end()
    last = _stripped(text, begin, end)
    return [*places, last] if last[0] < last[1] else places


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), start + len(part.rstrip())


def closing(text: str, start: int, stop_at: str = "") -> int:
    """The offset of the bracket that closes the one open at `start`, or of a letter of `stop_at` before it.

    The length of the text if there is none.
    """
    depth = 0
    for at in range(start, len(text)):
        letter = text[at]
        if depth == 0 and (letter in ")]}" or letter in stop_at):
            return at
        depth += (letter in "([{") - (letter in ")]}")
    return len(text)


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


# Shape expressions, as `cexpr` (torch/_inductor/codegen/cpp_utils.py, 2.8-2.15) prints them: sums, products,
# rational factors (`(1.0/2.0)*n`), floor division, modulus, min and max.
_LARGEST = 1 << 256
_OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "remainder": operator.mod,
    "div_floor_integer": operator.floordiv,
    "min": min,
    "max": max,
}
_SAME_VALUE = frozenset({"static_cast", "c10::convert"})


class _Unknown(Exception):
    """The expression has a name without a value, or is not arithmetic."""


def evaluate(text: str, values: Mapping[str, int]) -> Fraction | None:
    """The exact value of a shape expression; None for an unknown name, other syntax or division by zero."""
    try:
        return _value(syntax.read_cpp(text), values)
    except (_Unknown, syntax.NotRead, ArithmeticError, RecursionError):
        return None


def evaluate_whole(text: str, values: Mapping[str, int]) -> int | None:
    """The value of a shape expression where it is a whole number; else None."""
    value = evaluate(text, values)
    return int(value) if value is not None and value.denominator == 1 else None


def _value(expression: syntax.Syntax, values: Mapping[str, int]) -> Fraction:
    match expression:
        case syntax.Literal(value=number):
            result = Fraction(number)
        case syntax.Name(name=name) if name in values:
            result = Fraction(values[name])
        case syntax.Operation(op="neg", args=(inner,)):
            result = -_value(inner, values)
        case syntax.Call(name=name, args=(inner,)) if name in _SAME_VALUE:
            result = _value(inner, values)
        case syntax.Operation(op=name, args=(left, right)) | syntax.Call(name=name, args=(left, right)) if (
            function := _OPERATORS.get(name.rpartition("::")[2])
        ):
            result = Fraction(function(_value(left, values), _value(right, values)))
        case _:
            raise _Unknown
    if abs(result) > _LARGEST:
        raise _Unknown
    return result


_WHOLE = re.compile(r"[0-9]{1,19}")


def whole_number(text: str) -> int | None:
    """Parse an integer; None for other text, and for more digits than 64 bits have.

    Stricter than `int`, which raises beyond 4,300 digits, and `str.isdigit`, which accepts "²".
    """
    return int(text) if _WHOLE.fullmatch(text) else None
