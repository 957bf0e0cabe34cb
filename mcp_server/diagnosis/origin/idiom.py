"""A line of the model as a careful engineer would write it, where an operation in it left its domain.

`guarded_line` keeps any operand in its domain. Some lines have an idiom that says more: `torch.xlogy(p, p)`
for `p * p.log()`, `torch.log_softmax` for the logarithm of a softmax, a divisor with a name of its own.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

_ZERO_TIMES_INFINITY = "0 * -inf"  # in the explanation of an origin


@dataclass(frozen=True)
class Idiom:
    """The line as it is and as it should be, and what that does in words."""

    before: str
    after: str
    text: str


def idiom_of(line: str, op: str, explanation: str) -> Idiom | None:
    """The idiom for a line of one statement whose operation `op` is at fault; None where there is none."""
    line = line.strip()
    tree = _parsed(line)
    if tree is None or len(tree.body) != 1:
        return None
    rewriter = _Rewriter(op, _ZERO_TIMES_INFINITY in explanation)
    made = ast.unparse(ast.fix_missing_locations(rewriter.visit(tree)))
    if len(rewriter.texts) != 1:
        return None
    return Idiom(line, "\n".join([*rewriter.first, made]), rewriter.texts[0])


def operand_text(line: str, op: str) -> str:
    """The operand of `op` in a line, as written there; empty unless `op` occurs exactly once."""
    tree = _parsed(line.strip())
    nodes = ast.walk(tree) if tree is not None else ()
    found = [ast.unparse(operand) for node in nodes if (operand := _called_on(node, op)) is not None]
    return found[0] if len(found) == 1 else ""


def _parsed(line: str) -> ast.Module | None:
    try:
        return ast.parse(line)
    except (SyntaxError, ValueError, RecursionError):
        return None


@dataclass
class _Rewriter(ast.NodeTransformer):
    """Puts the idiom in place of each expression that has one. `zero`: the NaN was 0 times an infinity.

    `texts` has what each idiom does, `first` the statements before the line.
    """

    op: str
    zero: bool
    texts: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    def visit(self, node: ast.AST) -> ast.AST:
        return self._idiom(node) or self.generic_visit(node)

    def _idiom(self, node: ast.AST) -> ast.expr | None:
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if self.op == "log":
                # `a * b.log()` is 0 in the limit of a = b = 0, and NaN as it is written.
                for factor, logarithm in ((left, right), (right, left)):
                    operand = _called_on(logarithm, self.op)
                    same = operand is not None and ast.unparse(factor) == ast.unparse(operand)
                    if operand is not None and (self.zero or same) and _softmax(operand) is None:
                        self.texts.append("use torch.xlogy, which is 0 where its first argument is 0")
                        return _call("torch.xlogy", factor, operand)
            case ast.BinOp(left=left, op=ast.Div(), right=divisor) if self.op == "div":
                if isinstance(divisor, ast.Name | ast.Attribute):
                    return None
                self.texts.append("divide by 1 where the divisor is 0")
                self.first.append(f"divisor = {ast.unparse(divisor)}")
                name = ast.Name("divisor", ast.Load())
                zero = ast.Compare(name, [ast.Eq()], [ast.Constant(0)])
                return ast.BinOp(left, ast.Div(), _call("torch.where", zero, ast.Constant(1), name))
            case ast.Call() if self.op == "log" and (softmax := _softmax(_called_on(node, "log"))):
                self.texts.append("use log_softmax, which does not underflow to log(0)")
                assert isinstance(softmax.func, ast.Attribute), "so it was found"
                func = ast.Attribute(softmax.func.value, "log_softmax", ast.Load())
                return ast.Call(func, softmax.args, softmax.keywords)
        return None


def _softmax(node: ast.expr | None) -> ast.Call | None:
    """The node as a call of softmax; None if it is not one."""
    match node:
        case ast.Call(func=ast.Attribute(attr="softmax")):
            return node
    return None


def _called_on(node: ast.AST | None, op: str) -> ast.expr | None:
    """The operand of `torch.log(x)` or `x.log()`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == op):
        return None
    receiver = node.func.value
    of_torch = isinstance(receiver, ast.Name) and receiver.id in ("torch", "math", "F")
    if of_torch:
        return node.args[0] if node.args else None
    return receiver


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.parse(name, mode="eval").body, list(arguments), [])
