"""Splits generated C++ into statements and blocks.

For Inductor's code, it is enough to recognise strings, comments and brackets. Each statement has exact
offsets, so that a rewriter can insert text around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

BlockKind = Literal["function", "if", "else", "loop", "scope", "lambda"]
StatementKind = Literal["simple", "open", "close", "comment", "directive", "cut"]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A pair of braces. `header` is the text before the opening brace; `line` is 1-based."""

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

    The kinds `open` and `close` are the braces of a block; `cut` is an unexpected end of the text.
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
    """Yield the statements of the function whose `{` is just before `start`, on `line`.

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
    """The kind of block that `{` opens. None for an initialiser or a non-lambda in parentheses."""
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
    """Split `text[start:end]` at top-level commas. Return each argument's offsets, without blanks.

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


def closing(text: str, start: int) -> int:
    """The offset of the bracket that closes the one open at `start`, or the length of the text."""
    depth = 0
    for at in range(start, len(text)):
        letter = text[at]
        if depth == 0 and letter in ")]}":
            return at
        depth += (letter in "([{") - (letter in ")]}")
    return len(text)


@dataclass(eq=False)
class Node:
    """A block with the statements and blocks in it, in source order."""

    block: Block
    items: list[Statement | Node] = field(default_factory=list)


def tree(source: str) -> Node:
    """Build the nested blocks of a function's text, or of a bare list of statements, without comments."""
    opening = re.match(r"\s*(?:extern|static|inline|void)\b[^{]*\{", source)
    start = opening.end() if opening else 0
    statements = split_body(source, start, 1 + source.count("\n", 0, start), source[:start])
    nodes: dict[Block, Node] = {}

    def node_of(block: Block) -> Node:
        if block not in nodes:
            nodes[block] = Node(block)
            if block.parent is not None:
                node_of(block.parent).items.append(nodes[block])
        return nodes[block]

    for statement in statements:
        node = node_of(statement.block)
        if statement.kind in ("simple", "cut"):
            node.items.append(statement)
    return next(node for block, node in nodes.items() if block.parent is None)
