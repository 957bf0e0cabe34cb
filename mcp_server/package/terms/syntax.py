"""Expressions of generated kernels in one small syntax, whether they are C++ or Triton's Python.

C++ has the form that torch/_inductor/codegen/cpp.py writes (2.8 to 2.15): comparisons have spaces around
them, template arguments directly follow a name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from mcp_server.package.terms.term import whole_dtype

_LONGEST = 4000


class NotRead(Exception):
    """The text is not an expression of generated code."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | float
    dtype: str


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call, or a method call (`receiver` set). `template` is the text between < and >.

    `node` is the call in Python.
    """

    name: str
    args: tuple[Syntax, ...]
    template: str = ""
    receiver: Syntax | None = None
    named: tuple[tuple[str, Syntax], ...] = ()
    node: ast.Call | None = field(default=None, compare=False, repr=False)

    def argument(self, name: str, position: int) -> Syntax | None:
        """An argument by name or by position. None if absent."""
        by_name = dict(self.named).get(name)
        return by_name if by_name is not None else self.args[position] if len(self.args) > position else None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator, by the name that terms use (`add`). `where` is the conditional operator."""

    op: str
    args: tuple[Syntax, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """`base[index]`."""

    base: Syntax
    index: Syntax


Syntax = Literal | Name | Call | Operation | Item

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<suffix>[uUlLfF]*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>::|->|<=|>=|==|!=|&&|\|\||<<|>>|[-+*/%&|^~!?:,()\[\]{}.<>]))"
)
_LEVELS = (
    {"?": "where"},
    {"||": "or"},
    {"&&": "and"},
    {"|": "bitor"},
    {"^": "bitxor"},
    {"&": "bitand"},
    {"==": "eq", "!=": "ne"},
    {"<": "lt", ">": "gt", "<=": "le", ">=": "ge"},
    {"<<": "shl", ">>": "shr"},
    {"+": "add", "-": "sub"},
    {"*": "mul", "/": "div", "%": "remainder"},
)
"""Binary operators of C++, weakest first."""
_BINARY = {sign: (binding, op) for binding, signs in enumerate(_LEVELS, 1) for sign, op in signs.items()}
_UNARY = {"-": "neg", "!": "not", "~": "bitnot", "+": "", "*": "deref"}


def read_cpp(text: str) -> Syntax:
    """Parse a C++ expression. Raise `NotRead` if it is not understood."""
    if len(text) > _LONGEST:
        raise NotRead("too long")
    return cpp_spans(text)[-1][0]


def cpp_spans(text: str) -> list[tuple[Syntax, int, int]]:
    """List the parts of a C++ expression with their start and end in the text. May raise `NotRead`."""
    parser = _Cpp(text)
    parser.expression(0)
    if parser.peek():
        raise NotRead(text[parser.at :])
    return parser.spans


class _Cpp:
    """A Pratt parser for the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.end = text, 0, 0
        self.spans: list[tuple[Syntax, int, int]] = []

    def peek(self) -> str:
        """The next token; empty at the end of the text."""
        match = _TOKEN.match(self.text, self.at)
        if match is None and self.text[self.at :].strip():
            raise NotRead(self.text[self.at :])
        self.end = match.end() if match else self.at
        return match.group().strip() if match else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise NotRead(self.text[self.at :])
        self.at = self.end
        return token

    def expression(self, least: int) -> Syntax:
        begin = self.following()
        left = self.prefix()
        while (sign := self.peek()) in _BINARY and _BINARY[sign][0] > least:
            start = self.at
            self.take()
            binding, op = _BINARY[sign]
            operands = [left, self.expression(0 if sign == "?" else binding)]
            if sign == "?":
                self.take(":")
                operands.append(self.expression(0))
            self.spans.append((left, begin, start))
            left = Operation(op, tuple(operands))
        self.spans.append((left, begin, self.at))
        return left

    def following(self) -> int:
        """Where the next token begins."""
        return self.end - len(token) if (token := self.peek()) else self.at

    def prefix(self) -> Syntax:
        begin = self.following()
        token = self.take()
        if token in _UNARY:
            inner = self.expression(len(_LEVELS))
            return Operation(_UNARY[token], (inner,)) if _UNARY[token] else inner
        if token == "&":
            return Operation("address", (self.prefix(),))
        if token == "(":
            inner = self.expression(0)
            self.take(")")
            return self.postfix(inner, begin)
        if token == "{":
            return Call("{}", self.arguments("}"))
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return _number(token)
        if not token[0].isalpha() and token[0] != "_":
            raise NotRead(token)
        return self.postfix(self.named(token), begin)

    def named(self, name: str) -> Syntax:
        """Parse a name with its qualifiers and template arguments; a call if an argument list follows."""
        template = ""
        while True:
            template = self.bracketed() or template
            if name == "decltype":
                self.take("(")
                inner = self.arguments(")")
                template = inner[0].name if len(inner) == 1 and isinstance(inner[0], Name) else ""
            if not self.text.startswith("::", self.at):
                break
            self.at += 2
            name = f"{name}::{self.take()}"
        if self.peek() == "(":
            self.take()
            return Call(name, self.arguments(")"), template)
        return Literal(name == "true", "bool") if name in ("true", "false") else Name(name)

    def bracketed(self) -> str:
        """Take the text of `<...>` that starts here. Empty if it is not a list of types or numbers."""
        if not self.text.startswith("<", self.at):
            return ""
        depth = 0
        for position in range(self.at, min(len(self.text), self.at + 200)):
            letter = self.text[position]
            depth += (letter == "<") - (letter == ">")
            if depth == 0:
                start, self.at = self.at + 1, position + 1
                return self.text[start:position]
            if not (letter.isalnum() or letter in "_:,<> *()"):
                break
        return ""

    def postfix(self, base: Syntax, begin: int) -> Syntax:
        while (sign := self.peek()) in (".", "->", "[", "("):
            self.spans.append((base, begin, self.at))
            self.take()
            if sign == "(":
                base = Call("()", (base, *self.arguments(")")))
            elif sign == "[":
                index = self.expression(0)
                self.take("]")
                base = Item(base, index)
            else:
                name = self.take()
                if name == "template":
                    name = self.take()
                template = self.bracketed()
                if self.peek() == "(":
                    self.take()
                    base = Call(name, self.arguments(")"), template, base)
                else:
                    base = Call(f".{name}", (), template, base)
        return base

    def arguments(self, closing: str) -> tuple[Syntax, ...]:
        found: list[Syntax] = []
        while self.peek() != closing:
            found.append(self.expression(0))
            if self.peek() == ",":
                self.take()
        self.take(closing)
        return tuple(found)


def _number(token: str) -> Literal:
    digits = token.rstrip("uUlL")
    if digits.startswith("0x"):
        return Literal(int(digits, 16), "int64")
    if digits[-1] in "fF":
        return Literal(float(digits[:-1]), "float32")
    if digits.isdigit():
        return Literal(int(digits), "int64" if token != digits else "int32")
    return Literal(float(digits), "float64")


_PYTHON: dict[type[ast.AST], str] = {
    **{getattr(ast, name): name.lower() for name in ("Add", "Sub", "FloorDiv", "Div", "Mod", "Not")},
    **{getattr(ast, name): name.lower() for name in ("BitAnd", "BitOr", "BitXor", "Lt", "Gt", "Eq")},
    ast.Mult: "mul",
    ast.LShift: "shl",
    ast.RShift: "shr",
    ast.LtE: "le",
    ast.GtE: "ge",
    ast.NotEq: "ne",
    ast.USub: "neg",
    ast.Invert: "bitnot",
}
_LIBRARY = re.compile(r"(?:tl|tl_math|libdevice|triton|triton_helpers|math)(?:\.\w+)+")


def read_python(node: ast.expr) -> Syntax:
    """Convert an expression of a Triton kernel. Raise `NotRead` if it is not understood."""
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            if type(value) is int:
                return Literal(value, whole_dtype(value))
            return Literal(value, "bool" if isinstance(value, bool) else "float32")
        case ast.Constant(value=str() | None as value):
            return Name(str(value))
        case ast.Name(id=name):
            return Name(name)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _PYTHON:
            return Operation(_PYTHON[type(sign)], (read_python(operand),))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON:
            return Operation(_PYTHON[type(op)], (read_python(left), read_python(right)))
        case ast.BoolOp(op=op, values=[first, *others]):
            read, name = read_python(first), "and" if isinstance(op, ast.And) else "or"
            for other in others:
                read = Operation(name, (read, read_python(other)))
            return read
        case ast.Compare(ast.Attribute(value=value, attr="dtype"), [ast.Is()], [ast.Attribute() as dtype]):
            return Operation("has_dtype", (read_python(value), read_python(dtype)))
        case ast.Compare(left=left, ops=[test], comparators=[right]) if type(test) in _PYTHON:
            return Operation(_PYTHON[type(test)], (read_python(left), read_python(right)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return Operation("where", (read_python(test), read_python(body), read_python(orelse)))
        case ast.Subscript(value=value, slice=ast.Tuple(elts=axes)):
            # `[:, None]` puts a range on an axis of a block.
            kept = [axis for axis, each in enumerate(axes) if isinstance(each, ast.Slice)]
            inner = read_python(value)
            return Operation("axis", (inner, Literal(kept[0], "int32"))) if len(kept) == 1 else inner
        case ast.Subscript(value=value):
            return read_python(value)
        case ast.Attribute():
            return Name(ast.unparse(node))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return Call("[]", tuple(map(read_python, items)))
        case ast.Call(func=function, args=args, keywords=keywords) as node:
            known = tuple(map(read_python, args))
            named = tuple((word.arg, read_python(word.value)) for word in keywords if word.arg)
            receiver, name = None, ast.unparse(function)
            if isinstance(function, ast.Attribute) and not _LIBRARY.fullmatch(name):
                receiver, name = read_python(function.value), function.attr
            return Call(name, known, receiver=receiver, named=named, node=node)
    raise NotRead(ast.unparse(node))
