"""Changes a kernel so that operands stay inside the domain of their operation.

A guard leaves an operand inside the domain unchanged, so only results that were NaN or infinite change. In
C++ one template serves numbers and vectors; integers and NaN stay as they are.
"""

import ast
import math
import re
import textwrap
from collections.abc import Iterable, Iterator

from mcp_server.errors import ProblemError
from mcp_server.package.kernels import Kernel
from mcp_server.package.terms.evaluate import DOMAINS, Domain
from mcp_server.package.terms.syntax import NotRead, Syntax, cpp_spans, read_python
from mcp_server.package.terms.translate import operation_of
from mcp_server.package.terms.triton_calls import parsed

_VALUE = re.compile(r"^\s*(?:const\s+)?(?:auto|float|double)\s+\w+ = (?P<value>[^;]+);$", re.M)
_TINY, _HALF_EPSILON = 1.1754943508222875e-38, 2.0**-24  # float32: the smallest steps up from 0, down from 1

HELPERS = (
    "template <typename T> inline T aoti_debug_nonzero(T x) { "
    "if constexpr (std::is_integral_v<T>) { return x; } "
    "else if constexpr (std::is_floating_point_v<T>) { return x == T(0) ? T(1) : x; } "
    "else if constexpr (std::is_integral_v<typename T::value_type>) { return x; } "
    "else { return T::blendv(x, T(1), x == T(0)); } } "
    "template <typename T> inline T aoti_debug_end(double end, double inside) { "
    "T nearest = std::nextafter(T(end), T(inside)); "
    "return end == 0 ? std::numeric_limits<T>::min() : nearest; } "
    "template <typename T> inline T aoti_debug_within(T x, double low, double high, bool open) { "
    "if constexpr (std::is_integral_v<T>) { return x; } "
    "else if constexpr (std::is_floating_point_v<T>) { "
    "T least = open ? aoti_debug_end<T>(low, high) : T(low); "
    "T most = open && high < 1e300 ? aoti_debug_end<T>(high, low) : T(high); "
    "return x < least ? least : x > most ? most : x; } "
    "else if constexpr (std::is_integral_v<typename T::value_type>) { return x; } "
    "else { using V = typename T::value_type; "
    "T least(open ? aoti_debug_end<V>(low, high) : V(low)); "
    "T most(open && high < 1e300 ? aoti_debug_end<V>(high, low) : V(high)); "
    "T kept = T::blendv(x, least, x < least); return T::blendv(kept, most, kept > most); } } "
)
"""The functions that the guards of C++ kernels call, on one line."""
GUARDED = re.compile(r"aoti_debug_(?:nonzero|within)\(")


def with_domain_guarded(kernel: Kernel, family: str) -> str:
    """The kernel's source with all operations of `family` guarded. Raises `ProblemError` if none."""
    guards = _cpp_guards(kernel, family) if kernel.kind == "cpp" else _triton_guards(kernel, family)
    text, found = kernel.source, sorted(guards, reverse=True)
    if not found:
        ops = ", ".join(op for op, domain in DOMAINS.items() if domain.family == family)
        raise ProblemError(f"{kernel.name} has no operation to guard", value=family, allowed=f"one of {ops}")
    for place, inserted in found:
        text = text[:place] + inserted + text[place:]
    return text


_EXPONENTS = (
    (re.compile(r"\b(tmp\d+)\.exp\(\)"), r"(\1 - decltype(\1)({shift})).exp()"),
    (re.compile(r"\bstd::exp\((tmp\d+)\)"), r"std::exp(\1 - decltype(\1)({shift}))"),
    (re.compile(r"\b(libdevice|tl_math)\.exp\((tmp\d+)\)"), r"\1.exp(\2 - {shift})"),
)


def with_exponents_shifted(kernel: Kernel, shift: float) -> str:
    """The kernel's source with `shift` subtracted from the argument of every exponential.

    The value of a softmax stays the same. Raise `ProblemError` if the kernel has no exponential.
    """
    text = kernel.source
    for pattern, replacement in _EXPONENTS:
        text = pattern.sub(replacement.format(shift=float(shift)), text)
    if text == kernel.source:
        raise ProblemError(f"{kernel.name} has no exponential", value=kernel.name)
    return text


def _cpp_guards(kernel: Kernel, family: str) -> Iterator[tuple[int, str]]:
    """Yield the texts to insert into a C++ kernel, with their positions."""
    for match in _VALUE.finditer(kernel.source):
        try:
            spans = cpp_spans(match["value"])
        except (NotRead, RecursionError):
            continue
        places = {id(part): (start, end) for part, start, end in spans}
        base = match.start("value")
        parts = {id(part): part for part, _, _ in spans}  # without repeated parts
        # If two operations share an operand, such as x in `1 / std::sqrt(x)`, the outer one decides.
        guarded = {id(operand): (domain, operand) for domain, operand in _guarded(parts.values(), family)}
        for domain, first in guarded.values():
            # A remainder is `a - div_floor_floating_vec(a, b) * b`: guard every occurrence of its divisor.
            same = [part for part in parts.values() if part == first] if "_floating" in match[0] else [first]
            before, after = "aoti_debug_nonzero(", ")"
            if not domain.nonzero:
                ends = f"{domain.low}, {domain.high}".replace("inf", "INFINITY")
                before, after = "aoti_debug_within(", f", {ends}, {str(domain.is_open).lower()})"
            for start, end in (places[id(each)] for each in same):
                yield base + start, before
                yield base + end, after


def _guarded(parts: Iterable[Syntax], family: str) -> Iterator[tuple[Domain, Syntax]]:
    """Yield the operands that decide whether an operation of a family is defined."""
    for part in parts:
        op, operands = operation_of(part)
        domain = DOMAINS.get(op)
        if domain is not None and domain.family == family and domain.operand < len(operands):
            yield domain, operands[domain.operand]


def _triton_guards(kernel: Kernel, family: str) -> Iterator[tuple[int, str]]:
    """Yield texts to insert into a Triton kernel, with positions. `%` and `//` stay as they are."""
    tree = parsed(kernel.source)
    if tree is None:
        return
    starts, place = [], 0  # starts of lines, after the indentation that all lines share
    dedented = textwrap.dedent(kernel.source).split("\n")
    for line, short in zip(kernel.source.split("\n"), dedented, strict=True):
        starts.append(place + len(line) - len(short))
        place += len(line) + 1
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp | ast.Call):
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv):
            continue
        try:
            syntax = read_python(node)
        except NotRead:
            continue
        op, _ = operation_of(syntax)
        domain = DOMAINS.get(op)
        operands = [node.left, node.right] if isinstance(node, ast.BinOp) else node.args
        if domain is None or domain.family != family or domain.operand >= len(operands):
            continue
        operand = operands[domain.operand]
        start = starts[operand.lineno - 1] + operand.col_offset
        end = starts[(operand.end_lineno or 1) - 1] + (operand.end_col_offset or 0)
        before, after = _triton_guard(domain, kernel.source[start:end])
        yield start, before
        yield end, after


def _triton_guard(domain: Domain, x: str) -> tuple[str, str]:
    """The text to put before the operand `x`, and the text to put after it."""
    if domain.nonzero:
        return f"tl.where({x} == 0, 1.0, ", ")"
    low, high = domain.low, domain.high
    if domain.is_open:
        low = low + _HALF_EPSILON if low else _TINY
        high -= _HALF_EPSILON
    before, after = f"tl.where({x} < {low!r}, {low!r}, ", ")"
    if high < math.inf:
        before, after = f"tl.where({x} > {high!r}, {high!r}, {before}", f"{after})"
    return before, after
