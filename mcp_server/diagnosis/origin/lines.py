"""Rewrites a model line in which an operation left its domain, as a careful engineer would.

`guarded_line` keeps any operand in its domain. Some lines have a clearer idiom: `torch.xlogy(p, p)` for `p *
p.log()`, `torch.log_softmax` for the logarithm of a softmax, a separate name for a divisor.
"""

import ast
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from mcp_server.package.terms.evaluate import DOMAINS, Domain
from mcp_server.package.terms.parts import SIGNS

_ZERO_TIMES_INFINITY = re.compile(r"(?<![\d.])0 \* -inf|-inf \* 0(?![\d.])")  # part of an explanation


@dataclass(frozen=True)
class Idiom:
    """The original line, the corrected line, and a description of the change."""

    before: str
    after: str
    text: str


def idiom_of(line: str, op: str, explanation: str) -> Idiom | None:
    """The idiom for a one-statement line whose operation `op` is at fault. None if none fits."""
    line = line.strip()
    tree = _parsed(line)
    if tree is None or len(tree.body) != 1:
        return None
    rewriter = _Rewriter(op, _ZERO_TIMES_INFINITY.search(explanation) is not None)
    made = ast.unparse(ast.fix_missing_locations(rewriter.visit(tree))).replace("1e-05", EPSILON)
    if len(rewriter.texts) != 1:
        return None
    return Idiom(line, "\n".join([*rewriter.first, made]), rewriter.texts[0])


def _parsed(line: str) -> ast.Module | None:
    try:
        return ast.parse(line)
    except (SyntaxError, ValueError, RecursionError):
        return None


@dataclass
class _Rewriter(ast.NodeTransformer):
    """Replaces each expression that has an idiom. `zero`: the NaN was 0 times an infinity.

    `texts` says what each idiom does, `first` has the statements before the line.
    """

    op: str
    zero: bool
    texts: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    def visit(self, node: ast.AST) -> ast.AST:
        return self._idiom(node) or self.generic_visit(node)

    def _idiom(self, node: ast.AST) -> ast.expr | None:
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if self.op in ("log", "log2", "log10"):
                # `a * b.log()` has the limit 0 at a = b = 0, but gives NaN as written.
                for factor, logarithm in ((left, right), (right, left)):
                    operand = _operand(logarithm, self.op)
                    same = operand is not None and ast.unparse(factor) == ast.unparse(operand)
                    if operand is not None and (self.zero or same) and _softmax(operand) is None:
                        self.texts.append("use torch.xlogy, which is 0 where its first argument is 0")
                        made, base = _call("torch.xlogy", factor, operand), self.op[3:]
                        return ast.BinOp(made, ast.Div(), ast.Name(f"math.log({base})")) if base else made
            case ast.BinOp(left=left, op=ast.Div(), right=divisor) if self.op == "div":
                if isinstance(divisor, ast.Name | ast.Attribute) or _is_number(divisor):
                    return None
                epsilon, text = with_epsilon(divisor)
                self.texts.append(text or BY_ONE)
                if epsilon:
                    return ast.BinOp(left, ast.Div(), ast.parse(epsilon, mode="eval").body)
                self.first.append(f"divisor = {ast.unparse(divisor)}")
                name = ast.Name("divisor", ast.Load())
                zero = ast.Compare(name, [ast.Eq()], [ast.Constant(0)])
                return ast.BinOp(left, ast.Div(), _call("torch.where", zero, ast.Constant(1), name))
            case ast.Call(ast.Attribute(attr="logit") as func, args, []) if self.op in ("div", "log"):
                self.texts.append("give logit an eps, which keeps its argument from 0 and 1")
                return ast.Call(func, args, [ast.keyword("eps", ast.Constant(1e-6))])
            case ast.Call() if self.op == "log" and (softmax := _softmax(_operand(node, "log"))):
                self.texts.append("use log_softmax, which does not underflow to log(0)")
                assert isinstance(softmax.func, ast.Attribute), "so it was found"
                func = ast.Attribute(softmax.func.value, "log_softmax", ast.Load())
                return ast.Call(func, softmax.args, softmax.keywords)
        return None


def _softmax(node: ast.expr | None) -> ast.Call | None:
    """The node as a call of softmax, or None."""
    match node:
        case ast.Call(func=ast.Attribute(attr="softmax")):
            return node
    return None


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.parse(name, mode="eval").body, list(arguments), [])


BY_ONE = "divide by 1 where the divisor is 0: the result there is the dividend, so check what it then means"
OF_ROOT = ("a / v.sqrt()", "a / torch.where(v == 0, 1, v.sqrt())")
BY_ROOT = "a / (v + 1e-5).sqrt()"
EPSILON = "1e-5"  # as in layer_norm
UNDER_ROOT = f"add a small number ({EPSILON}) under the root"
_TO_DEVIATION = f"add a small number ({EPSILON}) to the deviation"


def with_epsilon(divisor: ast.expr) -> tuple[str, str]:
    """A divisor with a small number added, and the change in words.

    Both are empty unless the divisor is a root or a standard deviation.
    """
    match divisor:
        case ast.Call(func=ast.Attribute(attr="sqrt", value=ast.Name(id="torch")), args=[inner]):
            return f"torch.sqrt({ast.unparse(inner)} + {EPSILON})", UNDER_ROOT
        case ast.Call(func=ast.Attribute(attr="sqrt", value=inner), args=[]):
            return f"({ast.unparse(inner)} + {EPSILON}).sqrt()", UNDER_ROOT
        case ast.Call(func=ast.Attribute(attr="std")):
            return f"({ast.unparse(divisor)} + {EPSILON})", _TO_DEVIATION
    return "", ""


MASK_FILL = ("masked_fill(mask, float('-inf'))", "masked_fill(mask, torch.finfo(x.dtype).min)")
_MINUS_INFINITY = re.compile(
    r"(?i)float\(['\"]-inf(inity)?['\"]\)|-(float\(['\"]inf(inity)?['\"]\)|\w+\.inf)"
)


def masked_line(line: str) -> str:
    """The model line whose `masked_fill` fills in the smallest finite number. Empty if it has none."""
    line = line.strip()
    for node in ast.walk(_parsed(line) or ast.Module([], [])):
        match node:
            case ast.Call(ast.Attribute(value=x, attr="masked_fill" | "masked_fill_"), [_, filled]):
                old = ast.get_source_segment(line, filled) or ""
                if _MINUS_INFINITY.fullmatch(old) and isinstance(x, ast.Name | ast.Attribute):
                    return line.replace(old, f"torch.finfo({ast.unparse(x)}.dtype).min")
    return ""


def guarded_code(op: str, operand: str = "") -> tuple[str, str, str]:
    """A model's operation, the same with its operand kept in the domain, and the change in words."""
    domain = DOMAINS[op]
    x = operand or ("n" if domain.nonzero else "x")
    at = "" if domain.is_open else "at " if math.isinf(domain.high) else "within "
    code, action = f"torch.{op}({x})", f"keep the argument of {op} {at}{domain.words()}"
    if domain.nonzero:
        code = f"1 / {x}" if op == "reciprocal" else f"a {SIGNS[op][0]} {x}"
        action = "divide by 1 where the divisor is 0"
    elif op == "pow":
        code, action = f"torch.pow({x}, y)", f"keep the base of the power {domain.words()}"
    before, _, after = code.rpartition(x)
    return code, f"{before}{_kept(x, domain)}{after}", action


def _kept(x: str, domain: Domain) -> str:
    """The guarded operand: `torch.where(n == 0, 1, n)`, `x.clamp(-1, 1)`. Open ends are excluded."""
    if domain.nonzero:
        return f"torch.where({x} == 0, 1, {x})"
    low, high = f"{domain.low:g}", f"{domain.high:g}"
    if domain.is_open:
        half = f"torch.finfo({x}.dtype).eps / 2"
        low = f"{low} + {half}" if domain.low else f"torch.finfo({x}.dtype).tiny"
        high = f"{high} - {half}"
    return f"{x}.clamp_min({low})" if math.isinf(domain.high) else f"{x}.clamp({low}, {high})"


def guarded_lines(codes: Iterable[str], op: str) -> tuple[str, str] | None:
    """All lines in which operation `op` can leave its domain, unchanged and guarded.

    None if one of them cannot be guarded, or if no line has the operation.
    """
    before, after = [], []
    for code in dict.fromkeys(code.strip() for code in codes if may_leave_domain(code, op)):
        guarded = guarded_line(code, op)
        if not guarded:
            return None
        before.append(code)
        after.append(guarded)
    return ("\n".join(before), "\n".join(after)) if before else None


def may_leave_domain(line: str, op: str) -> bool:
    """Whether a model line has this operation on an operand that the line does not clamp."""
    operand = _only_operand(line.strip(), op)
    if operand is not None:
        return not _is_kept(operand, DOMAINS[op])
    return ("/" if op == "reciprocal" else SIGNS[op][0] if op in SIGNS else f"{op}(") in line


# Functions that a model may call where a kernel computes the operation.
_NORMS = ("normalize", "layer_norm", "batch_norm", "group_norm", "rms_norm", "cosine_similarity")
_SOFTMAX = ("softmax", "log_softmax", "logsumexp", "cross_entropy")
_DEVIATIONS = ("std", "var", "std_mean", "var_mean", "norm", *_NORMS)
_SUMS = ("sum", "mean", "cumsum", "einsum", "matmul", "mm", "bmm")
_CALLED = {
    "exp": (*_SOFTMAX, "sigmoid", "softplus"),
    "sub": (*_SOFTMAX, *_DEVIATIONS),
    "div": (*_SOFTMAX, *_DEVIATIONS, "mean", "true_divide", "logit"),
    "log": (*_SOFTMAX, "binary_cross_entropy", "kl_div", "logit"),
    "sqrt": (*_DEVIATIONS, "cdist", "dist"),
    "rsqrt": _NORMS,
    "square": (*_DEVIATIONS, "pow", "mse_loss", "cdist", "dist"),
    "sum": _SUMS,
    "mean": _SUMS,
}
_WRITTEN = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "square": "**"}


def may_compute(line: str, op: str) -> bool:
    """Whether a line of the model may have an operation: by its sign, or by a call that computes with it."""
    calls = "|".join(map(re.escape, (op, *_CALLED.get(op, ()))))
    sign = re.escape(_WRITTEN.get(op, op))
    return re.search(rf"(?<![a-zA-Z_])(?:{calls})\(|(?<=[\w)\]]) {sign} ", line) is not None


def guarded_line(line: str, op: str) -> str:
    """The model line with the operand of its only operation `op` in the domain. Empty if unsure."""
    domain, line = DOMAINS[op], line.strip()
    operand = _only_operand(line, op)
    if operand is None or not line.isascii():
        return ""
    x = ast.unparse(operand)
    if not domain.nonzero and isinstance(operand, ast.BinOp | ast.UnaryOp):
        x = f"({x})"
    kept = _kept(x, domain)
    if domain.nonzero and (epsilon := with_epsilon(operand)[0]):
        kept = epsilon
    elif domain.nonzero and not isinstance(operand, ast.Name | ast.Attribute):
        kept = f"torch.where((divisor := {x}) == 0, 1, divisor)"
    return f"{line[: operand.col_offset]}{kept}{line[operand.end_col_offset :]}"


def operand_text(line: str, op: str) -> str:
    """The operand of `op` as written in the line. Empty unless it calls `op` exactly once."""
    operand = _only_operand(line.strip(), op, ast.Call)
    return ast.unparse(operand) if operand is not None else ""


def _only_operand(line: str, op: str, kind: type[ast.AST] = ast.AST) -> ast.expr | None:
    """The only operand of operation `op` in a line. None unless there is exactly one."""
    nodes = (node for node in ast.walk(_parsed(line) or ast.Module([], [])) if isinstance(node, kind))
    found = [each for node in nodes if (each := _operand(node, op)) is not None]
    return found[0] if len(found) == 1 else None


_MOVES = frozenset({"unsqueeze", "squeeze", "view", "reshape", "expand", "transpose", "contiguous"})


def _is_kept(operand: ast.expr, domain: Domain) -> bool:
    """Whether an operand is already clamped to the domain: `count.clamp(min=1)[:, None]`."""
    match operand:
        case ast.Subscript(value=inner):
            return _is_kept(inner, domain)
        case ast.Call(func=ast.Attribute(attr=name, value=inner)) if name in _MOVES:
            return _is_kept(inner, domain)
        case ast.Call(func=ast.Attribute(attr="clamp" | "clamp_min"), args=args, keywords=named):
            low = next((each.value for each in named if each.arg == "min"), args[0] if args else None)
            if not isinstance(low, ast.Constant) or not isinstance(low.value, int | float):
                return False
            if domain.nonzero:
                return low.value > 0
            above = low.value > domain.low if domain.is_open else low.value >= domain.low
            return above and math.isinf(domain.high)
    return False


def _is_number(node: ast.expr) -> bool:
    """Whether an expression consists of numbers, such as `24**0.5`."""
    return not any(isinstance(each, ast.Name | ast.Attribute | ast.Call) for each in ast.walk(node))


def _operand(node: ast.AST | None, op: str) -> ast.expr | None:
    """The operand that decides whether an operation is defined. None for another operation."""
    match node:
        case ast.BinOp(op=ast.Div(), right=right) if op in ("div", "reciprocal"):
            return None if _is_number(right) else right
        case ast.BinOp(op=ast.Mod() | ast.FloorDiv(), right=right) if op in ("floordiv", "mod", "remainder"):
            return None if _is_number(right) else right
        case ast.BinOp(op=ast.Pow(), left=left, right=right) if op == "pow":
            return None if _is_number(left) or ast.unparse(right).lstrip("-").isdigit() else left
        case ast.Call(func=ast.Attribute(attr=name, value=receiver), args=args) if name == op:
            module = isinstance(receiver, ast.Name) and receiver.id in ("torch", "math", "F")
            operands = args if module else [receiver, *args]
            place = DOMAINS[op].operand if op in DOMAINS else 0
            return operands[place] if place < len(operands) else None
    return None
