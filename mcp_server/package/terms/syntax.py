"""Expressions of generated kernels as one small syntax, whether they are C++ or Triton's Python.

C++ is as torch/_inductor/codegen/cpp.py writes it (2.8 to 2.15): comparisons stand between spaces, template
arguments directly behind a name.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_LONGEST = 4000


class NotRead(Exception):
    """Text that is no expression of generated code."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: bool | int | float
    dtype: str


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call, a method call (`receiver` set), or an operator; `template` holds the text between < and >."""

    name: str
    args: tuple[Syntax, ...]
    template: str = ""
    receiver: Syntax | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """`base[index]`."""

    base: Syntax
    index: Syntax


Syntax = Literal | Name | Call | Item

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0x[0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?P<suffix>[uUlLfF]*)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>::|->|<=|>=|==|!=|&&|\|\||<<|>>|[-+*/%&|^~!?:,()\[\]{}.<>]))"
)
_LEVELS = ("?", "||", "&&", "|", "^", "&", "== !=", "< > <= >=", "<< >>", "+ -", "* / %")
_BINDING = {sign: binding for binding, signs in enumerate(_LEVELS, 1) for sign in signs.split()}
_UNARY = 12


def read_cpp(text: str) -> Syntax:
    """A C++ expression. Raises `NotRead`."""
    if len(text) > _LONGEST:
        raise NotRead("too long")
    return _Cpp(text).whole()


class _Cpp:
    """A Pratt parser over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> Syntax:
        result = self.expression(0)
        if self.peek():
            raise NotRead(self.text[self.at :])
        return result

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            if self.text[self.at :].strip():
                raise NotRead(self.text[self.at :])
            return ""
        return match.group().strip()

    def take(self, wanted: str = "") -> str:
        match = _TOKEN.match(self.text, self.at)
        token = match.group().strip() if match else ""
        if match is None or (wanted and token != wanted):
            raise NotRead(self.text[self.at :])
        self.at = match.end()
        return token

    def expression(self, least: int) -> Syntax:
        left = self.prefix()
        while (sign := self.peek()) in _BINDING and _BINDING[sign] > least:
            self.take()
            if sign == "?":
                first = self.expression(0)
                self.take(":")
                left = Call("?", (left, first, self.expression(0)))
            else:
                left = Call(sign, (left, self.expression(_BINDING[sign])))
        return left

    def prefix(self) -> Syntax:
        token = self.take()
        if token in ("-", "+", "!", "~", "*"):
            inner = self.expression(_UNARY - 1)
            return inner if token in "+*" else Call(f"unary {token}", (inner,))
        if token == "&":
            return self.prefix()
        if token == "(":
            inner = self.expression(0)
            self.take(")")
            return self.postfix(inner)
        if token == "{":
            return Call("{}", self.arguments("}"))
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return _number(token)
        if not token[0].isalpha() and token[0] != "_":
            raise NotRead(token)
        return self.postfix(self.named(token))

    def named(self, name: str) -> Syntax:
        """A name with its qualifiers and template arguments; a call when an argument list follows."""
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
        """Take the text of `<...>` that starts here; empty when it is no list of types or numbers."""
        if not self.text.startswith("<", self.at):
            return ""
        depth = 0
        for position in range(self.at, min(len(self.text), self.at + 200)):
            letter = self.text[position]
            depth += (letter == "<") - (letter == ">")
            if depth == 0:
                start, self.at = self.at + 1, position + 1
                return self.text[start:position]
            if not (letter.isalnum() or letter in "_:,<> *"):
                break
        return ""

    def postfix(self, base: Syntax) -> Syntax:
        while (sign := self.peek()) in (".", "->", "[", "("):
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


_PYTHON_SIGNS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "py%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.USub: "unary -",
    ast.Invert: "unary ~",
    ast.Not: "unary !",
}


def read_python(node: ast.expr) -> Syntax:
    """An expression of a Triton kernel. Raises `NotRead`."""
    match node:
        case ast.Constant(value=bool() as value):
            return Literal(value, "bool")
        case ast.Constant(value=int() as value):
            return Literal(value, "int32")
        case ast.Constant(value=float() as value):
            return Literal(value, "float32")
        case ast.Constant(value=str() as value):
            return Name(value)
        case ast.Constant(value=None):
            return Name("None")
        case ast.Name(id=name):
            return Name(name)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _PYTHON_SIGNS:
            return Call(_PYTHON_SIGNS[type(op)], (read_python(operand),))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _PYTHON_SIGNS:
            return Call(_PYTHON_SIGNS[type(op)], (read_python(left), read_python(right)))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _PYTHON_SIGNS:
            return Call(_PYTHON_SIGNS[type(op)], (read_python(left), read_python(right)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return Call("?", (read_python(test), read_python(body), read_python(orelse)))
        case ast.Subscript(value=value):
            return read_python(value)  # [:, None] only changes the shape of a block
        case ast.Attribute():
            return Name(ast.unparse(node))
        case ast.Call(func=function, args=args, keywords=keywords):
            return _python_call(function, args, keywords)
    raise NotRead(ast.unparse(node))


_LIBRARY = re.compile(r"(?:tl|tl_math|libdevice|triton_helpers|math)(?:\.\w+)+")


def _python_call(function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]) -> Syntax:
    known = [read_python(argument) for argument in args if not isinstance(argument, ast.List | ast.Tuple)]
    named = {k.arg: k.value for k in keywords if k.arg in ("other", "mask")}
    if "mask" in named:
        known.append(read_python(named["mask"]))
    if "other" in named:
        known.append(Call("other", (read_python(named["other"]),)))
    name = ast.unparse(function)
    if isinstance(function, ast.Attribute) and not _LIBRARY.fullmatch(name):
        return Call(function.attr, tuple(known), receiver=read_python(function.value))
    return Call(name, tuple(known))
