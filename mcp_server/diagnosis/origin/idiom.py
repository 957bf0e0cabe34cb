"""A line of the model as a careful engineer would write it, where an operation in it left its domain.

`guarded_line` keeps any operand in its domain. Some lines have an idiom that says more: `torch.xlogy(p, p)`
for `p * p.log()`, `torch.log_softmax` for the logarithm of a softmax, a divisor with a name of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

_LOGARITHM = frozenset({"log"})
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
    try:
        tree = ast.parse(line)
    except (SyntaxError, ValueError, RecursionError):
        return None
    if len(tree.body) != 1:
        return None
    zero = _ZERO_TIMES_INFINITY in explanation
    for rewrite in (_log_softmax, _xlogy if zero else _xlogy_of_itself, _named_divisor):
        found = rewrite(tree, op)
        if found is not None:
            after, text = found
            return Idiom(line, after, text)
    return None


def operand_text(line: str, op: str) -> str:
    """The operand that `op` has in a line, as it is written there; empty unless there is just one."""
    try:
        tree = ast.parse(line.strip())
    except (SyntaxError, ValueError, RecursionError):
        return ""
    found = [ast.unparse(operand) for node in ast.walk(tree) if (operand := _called_on(node, op)) is not None]
    return found[0] if len(found) == 1 else ""


def _xlogy_of_itself(tree: ast.Module, op: str) -> tuple[str, str] | None:
    """`a * a.log()`, whose factor is 0 wherever its logarithm is not finite."""
    return _xlogy(tree, op, of_itself=True)


def _xlogy(tree: ast.Module, op: str, of_itself: bool = False) -> tuple[str, str] | None:
    """`a * b.log()` is 0 in the limit of a = b = 0, and NaN as it is written."""
    if op not in _LOGARITHM:
        return None

    def rewritten(node: ast.AST) -> ast.expr | None:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
            return None
        for factor, logarithm in ((node.left, node.right), (node.right, node.left)):
            operand = _called_on(logarithm, op)
            if operand is not None and not (of_itself and ast.unparse(factor) != ast.unparse(operand)):
                return _call("torch.xlogy", factor, operand)
        return None

    after = _once(tree, rewritten)
    return (after, "use torch.xlogy, which is 0 where its first argument is 0") if after else None


def _log_softmax(tree: ast.Module, op: str) -> tuple[str, str] | None:
    """The logarithm of a softmax underflows where `log_softmax` does not."""
    if op not in _LOGARITHM:
        return None

    def rewritten(node: ast.AST) -> ast.expr | None:
        operand = _called_on(node, op)
        if not (isinstance(operand, ast.Call) and isinstance(operand.func, ast.Attribute)):
            return None
        if operand.func.attr != "softmax":
            return None
        func = ast.Attribute(operand.func.value, "log_softmax", ast.Load())
        return ast.Call(func, operand.args, operand.keywords)

    after = _once(tree, rewritten)
    return (after, "use log_softmax, which does not underflow to log(0)") if after else None


def _named_divisor(tree: ast.Module, op: str) -> tuple[str, str] | None:
    """A divisor that is an expression gets a line of its own, and is 1 where it would be 0."""
    if op != "div":
        return None
    divisors: list[str] = []

    def rewritten(node: ast.AST) -> ast.expr | None:
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
            return None
        if isinstance(node.right, ast.Name | ast.Attribute):
            return None
        divisors.append(ast.unparse(node.right))
        name = ast.Name("divisor", ast.Load())
        zero = ast.Compare(name, [ast.Eq()], [ast.Constant(0)])
        return ast.BinOp(node.left, ast.Div(), _call("torch.where", zero, ast.Constant(1), name))

    after = _once(tree, rewritten)
    return (f"divisor = {divisors[0]}\n{after}", "divide by 1 where the divisor is 0") if after else None


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


class _Rewriter(ast.NodeTransformer):
    """Puts what `rewrite` gives in place of each node for which it gives anything, and counts these."""

    def __init__(self, rewrite: Callable[[ast.AST], ast.expr | None]) -> None:
        self.rewrite, self.count = rewrite, 0

    def visit(self, node: ast.AST) -> ast.AST:
        made = self.rewrite(node)
        if made is None:
            return self.generic_visit(node)
        self.count += 1
        return made


def _once(tree: ast.Module, rewrite: Callable[[ast.AST], ast.expr | None]) -> str:
    """The statement with its only such expression rewritten; empty for none, or more than one."""
    copy, rewriter = ast.parse(ast.unparse(tree)), _Rewriter(rewrite)
    made = ast.fix_missing_locations(rewriter.visit(copy))
    return ast.unparse(made) if rewriter.count == 1 else ""
