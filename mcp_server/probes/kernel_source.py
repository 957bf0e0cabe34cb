"""Changes the text of a generated kernel: replaces one expression, or applies a known repair."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mcp_server.errors import ProblemError
from mcp_server.package.kernel_code import copied_name, definition_above, find_asserts
from mcp_server.package.kernels import Kernel

# Pure functions that a C++ replacement may call besides those that the kernel calls itself.
_CPP_FUNCTIONS = re.compile(
    r"abs|acos|asin|atan2?|bool|ceil|clamp(?:_max|_min)?|convert|copysign|cosh?|decltype|double|erfc?|exp2?|expm1"
    r"|fabs|float|floor|fma|fmax|fmin|fmod|hypot|infinity|int(?:32_t|64_t)?|isfinite|isinf|isnan|log(?:10|1p|2)?"
    r"|lowest|max(?:_propagate_nan|imum)?|min(?:_propagate_nan|imum)?|nearbyint|numeric_limits|pow|quiet_NaN"
    r"|reciprocal|round|rsqrt|sigmoid|sinh?|sizeof|sqrt|static_cast|tanh?|trunc|Vectorized|blendv"
)
TRITON_MODULES = frozenset({"tl", "libdevice", "tl_math", "triton_helpers", "math"})
_TRITON_EFFECTS = re.compile(r"store|atomic_\w+|device_\w+|inline_asm\w*|debug_barrier")
FINITE_FILL = "-1e30f"  # exp of its difference to any score is 0, and equal ones give equal shares

_ASSIGNS = re.compile(r"(?<![=<>!])=(?!=)|\+\+|--")
_CALL = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^<>()]*(?:<[^<>()]*>[^<>()]*)*>)?\s*\(")
_INDIRECT = re.compile(r"[)\]]\s*\(")
_KEYWORDS = re.compile(r"\b(?:new|delete|throw|asm|goto|return|co_await|co_yield)\b")
_INFINITY = re.compile(
    r"(auto \w+ = [^;\n]*?)-\s*std::numeric_limits<float>::infinity\(\)([^;\n]*;)"
    r"|(tl\.full\([^\n]*?)float\([\"']-inf[\"']\)"
)
_STORED = re.compile(r"^(?P<head>\s*(?!in_out)\w*ptr\d+\[[^;\n]*\] = )(?P<value>\w+);", re.M)
_STORE_CALL = re.compile(r"^(?P<head>\s*)(?P<value>\w+)(?P<tail>\.store\((?!in_out)\w*ptr\d+[^;\n]*;)", re.M)
_ASSERT = re.compile(r'^[ \t]*AOTI_TORCH_CHECK\((?:[^;"]*),\s*"index out of bounds[^"]*"\s*\);', re.M)

_KEEP_IN_BOUNDS = (
    "template <typename T> inline T aoti_debug_keep(T value, int64_t low, int64_t bound) "
    "{ return value < T(low) ? T(low) : value < T(bound) ? value : T(bound - 1); } "
)


def compiled_form(source: str) -> str:
    """The kernel with the definition of the helper that it may call, on the same lines."""
    return _KEEP_IN_BOUNDS + source if "aoti_debug_keep(" in source else source


def replaced_once(kernel: Kernel, old: str, new: str) -> str:
    """The kernel's source with its only occurrence of `old` replaced by the expression `new`.

    Raises `ProblemError` if `old` does not occur exactly once (with the lines), or if `new` is not a pure
    expression of numbers.
    """
    if not old.strip():
        raise ProblemError("the text to replace is empty", allowed=f"a text out of {kernel.name}")
    places = list(_places(kernel.source, old))
    if len(places) != 1:
        raise _not_once(kernel, old, places)
    check_expression(kernel, old, new)
    start = places[0]
    return kernel.source[:start] + new + kernel.source[start + len(old) :]


def _places(text: str, old: str) -> Iterator[int]:
    at = text.find(old)
    while at >= 0:
        yield at
        at = text.find(old, at + 1)


def _not_once(kernel: Kernel, old: str, places: list[int]) -> ProblemError:
    if not places:
        return ProblemError(
            f"this text does not occur in {kernel.name}{_same_with_other_spaces(kernel, old)}",
            value=old,
            allowed="a text that occurs once, with its spaces",
            next_call=f"inspect_package with kernel={kernel.name} prints the source",
        )
    lines = [f"line {_line(kernel, place)}: {_text_of_line(kernel.source, place)}" for place in places[:6]]
    return ProblemError(
        f"this text occurs {len(places)} times in {kernel.name}: {'; '.join(lines)}",
        value=old,
        allowed="a text that occurs once: add what stands beside it",
    )


def _same_with_other_spaces(kernel: Kernel, old: str) -> str:
    """Where it occurs with other spaces."""
    pattern = r"\s*".join(re.escape(part) for part in re.findall(r"\w+|[^\w\s]", old))
    match = re.search(pattern, kernel.source)
    return f" (with other spaces on line {_line(kernel, match.start())}: {match[0]})" if match else ""


def _line(kernel: Kernel, place: int) -> int:
    """The line of an offset, in the file that holds the kernel."""
    return max(kernel.first_line, 1) + kernel.source.count("\n", 0, place)


def _text_of_line(text: str, place: int) -> str:
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    return text[start : end if end >= 0 else len(text)].strip()[:160]


def check_expression(kernel: Kernel, old: str, new: str) -> None:
    """Raise `ProblemError` unless `new` only computes a value: no assignment, no unknown function."""
    if not new.strip():
        raise ProblemError("the replacement is empty", allowed="an expression")
    if kernel.kind == "cpp":
        _check_cpp(kernel, old, new)
    else:
        _check_python(new)


def _check_cpp(kernel: Kernel, old: str, new: str) -> None:
    kept = (
        "only the right-hand side is replaced; a trailing ';' stays where it is"
        if ";" in old or _ASSIGNS.search(old)
        else "an expression of numbers: operators, casts, functions of the kernel and of std"
    )
    for sign in (*";{}#\"'\\", "//", "/*"):
        if sign in new:
            raise ProblemError(
                f"the replacement holds {sign!r}, which no expression needs", value=new, allowed=kept
            )
    if _ASSIGNS.search(new):
        raise ProblemError("the replacement assigns a value, a side effect", value=new, allowed=kept)
    if _KEYWORDS.search(new):
        raise ProblemError("the replacement is more than an expression", value=new, allowed=kept)
    if _INDIRECT.search(new):
        raise ProblemError("the replacement calls a parenthesised or indexed name", value=new, allowed=kept)
    known = set(_CALL.findall(kernel.source)) - {kernel.name, "store", "AOTI_TORCH_CHECK"}
    called = [name for name in _CALL.findall(new) if not _CPP_FUNCTIONS.fullmatch(name)]
    unknown = [name for name in called if name not in known]
    if unknown:
        raise ProblemError(
            f"the replacement calls {unknown[0]}, an unknown function that may have side effects",
            value=new,
            allowed=kept,
        )


def _check_python(new: str) -> None:
    try:
        tree = ast.parse(new.strip(), mode="eval")
    except SyntaxError as error:
        raise ProblemError(
            f"the replacement is no expression: {error.msg}", value=new, allowed="a Triton expression"
        ) from None
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Lambda):
            raise ProblemError("the replacement is more than a value", value=new)
        if isinstance(node, ast.Call) and not _pure(node):
            raise ProblemError(
                f"the replacement calls {ast.unparse(node.func)}, which may have side effects",
                value=new,
                allowed="functions of tl, libdevice and triton_helpers, and what the kernel calls itself",
            )


def _pure(call: ast.Call) -> bool:
    """Whether a call only computes a value: `tl.where(...)`, `float(...)`, `tmp0.to(...)`."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in ("float", "int", "min", "max", "abs")
    if not isinstance(function, ast.Attribute) or _TRITON_EFFECTS.fullmatch(function.attr):
        return False
    base = function.value
    module = base.id if isinstance(base, ast.Name) else ""
    return module in TRITON_MODULES or function.attr in ("to", "exp", "sum", "max", "min")


def with_bounds_kept(kernel: Kernel) -> str:
    """The kernel with every checked index clamped into its bounds at its definition.

    Raises `ProblemError` for a kernel without such checks, or with an index whose definition is not found.
    """
    asserts = find_asserts(kernel.source)
    if kernel.kind != "cpp" or not asserts:
        raise ProblemError(
            f"{kernel.name} has no index check in C++ that says the bound",
            value=kernel.kind,
            allowed="a C++ kernel with an index check",
            next_call="--kernel NAME --replace OLD NEW",
        )
    lines = kernel.source.split("\n")
    for check in asserts:
        number = _definition_line(lines, check.variable, check.line)
        if number is None or check.upper is None:
            raise ProblemError(f"the definition of the index is not found: {check.text}", value=kernel.name)
        lines[number - 1] = _clamped(lines[number - 1], check.lower or "0", check.upper.rstrip("L"))
    return "\n".join(lines)


def _clamped(line: str, low: str, bound: str) -> str:
    """The definition with its value clamped to [low, bound). Raises `ProblemError` if it spans lines."""
    head, sign, value = line.partition(" = ")
    if value.startswith("aoti_debug_keep("):
        return line
    if not sign or not value.endswith(";"):
        raise ProblemError("the definition of the index spans lines", value=line.strip())
    return f"{head} = aoti_debug_keep({value[:-1]}, {low}, {bound});"


def _definition_line(lines: list[str], variable: str, below: int) -> int | None:
    """The line that computes the original value of which the variable is a copy."""
    found = None
    definition = definition_above(lines, variable, below)
    while definition is not None:
        found = definition.line
        name = copied_name(definition)
        definition = definition_above(lines, name, definition.line) if name else None
    return found


def with_finite_mask(kernel: Kernel) -> str:
    """The kernel with the minus infinity of masked scores replaced by a large finite number.

    Raises `ProblemError` if there is none.
    """
    if kernel.kind == "cpp":
        text, count = _INFINITY.subn(rf"\g<1>{FINITE_FILL}\g<2>", kernel.source)
    else:
        text, count = re.subn(r"float\([\"']-inf[\"']\)", FINITE_FILL.rstrip("f"), kernel.source)
    if not count:
        raise ProblemError(
            f"{kernel.name} fills nothing with minus infinity",
            allowed="a kernel with -std::numeric_limits<float>::infinity() or float('-inf')",
        )
    return text


def with_zeros(kernel: Kernel) -> str:
    """The kernel computes as before and stores 0 in place of its results; what it adds in place stays.

    Its index checks go, since nothing is made of what they guard. Raises `ProblemError` where no store is
    found.
    """
    if kernel.kind != "cpp":
        raise ProblemError("only a C++ kernel can be made to store zeros", value=kernel.name)
    text, first = _STORED.subn(r"\g<head>decltype(\g<value>)(0);", kernel.source)
    text, second = _STORE_CALL.subn(r"\g<head>decltype(\g<value>)(0)\g<tail>", text)
    if not first + second:
        raise ProblemError(f"no store of {kernel.name} is found that could be made 0", value=kernel.name)
    return text
