"""Reads the text of kernel bodies: the numbers in it. What it computes is read in `package/terms`.

A kernel loads a number, such as a Python number of the export, in a line of its own:
`auto tmp1 = static_cast<float>(0.7);` in C++, `tmp1 = 0.7` or `tmp1 = tl.full([1], 0.7, tl.float32)` in
Triton (torch/_inductor/codegen, 2.8-2.15).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, log

from mcp_server.package.archive import Package
from mcp_server.package.kernels import Kernel

_INDIRECT = re.compile(r"\b(?:in|out|in_out)_ptr\d+(?:\[[^\]\n]*| \+ [^,;\n]*)\btmp\d+")


def indexes_unchecked(source: str) -> bool:
    """Whether a C++ kernel uses computed indices without any index check.

    This is code compiled with `assert_indirect_indexing` off.
    """
    kernels = source.split('extern "C"')[1:]
    return any(_INDIRECT.search(kernel) and "index out of bounds: " not in kernel for kernel in kernels)


_NUMBER = r"(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_CPP = re.compile(rf"auto tmp\d+ = static_cast<[\w:]+>\({_NUMBER}[LfU]*\);")
_TRITON = re.compile(rf"tmp\d+ = (?:tl\.full\(\[[^\]]*\], )?{_NUMBER}(?=$|, tl\.|\s)", re.M)
PLAIN = frozenset({0.0, 1.0, -1.0})  # these are in every kernel
CLOSE = 1e-6  # relative: a number may have been rounded to float32


@dataclass(frozen=True)
class Literal:
    """A number in a kernel: `location` is file and line of its first place, `code` that line."""

    kernel: str
    value: float
    location: str
    code: str

    @property
    def is_integer(self) -> bool:
        """Whether it is loaded as a whole number: an `int64_t` of C++, a `tl.int64` of Triton."""
        return re.search(r"\b(?:tl\.)?u?int\d+(?:_t)?\b", self.code) is not None


def literals_of(package: Package) -> list[Literal]:
    """One for each number of each kernel, in the order of the code, without those of `PLAIN`."""
    if not package.wrapper_text:
        return []
    found: dict[tuple[str, float], Literal] = {}
    for kernel in package.wrapper.kernels.values():
        lines = kernel.source.splitlines()
        for match in _pattern(kernel).finditer(kernel.source):
            value = float(match["number"])
            at = kernel.source.count("\n", 0, match.start())
            if value not in PLAIN and (kernel.name, value) not in found:
                place = f"{kernel.file}:{kernel.first_line + at}"
                found[kernel.name, value] = Literal(kernel.name, value, place, lines[at].strip())
    return list(found.values())


def with_number(kernel: Kernel, old: float, new: float) -> str:
    """The kernel's source with `new` wherever it loads the number `old`."""

    source = kernel.source
    for match in reversed(list(_pattern(kernel).finditer(source))):
        if same(float(match["number"]), old):
            source = source[: match.start("number")] + repr(new) + source[match.end("number") :]
    return source


UNLIKELY = 3.0  # as if the number were 20 times as large: it is less likely to stand for an argument
TINY = 1e-4  # below are epsilons


def forms_of(given: float) -> tuple[float, ...]:
    """What an argument may be in the code: itself, or its reciprocal (a division on CUDA)."""
    return (given, 1 / given) if given else (given,)


def likeliest_first(literals: Iterable[Literal], given: float, integer: bool = False) -> list[Literal]:
    """By how near each is to a number that is passed now, one for each value.

    Whole numbers, roots of whole numbers and epsilons come from sizes and formulas, and stand last. For an
    `integer` the whole numbers that are loaded as such stand first, and no others than whole ones are taken.
    """

    def unlikeliness(literal: Literal) -> tuple[bool, float]:
        value = literal.value
        whole = value.is_integer() or same(value**2, round(value**2)) or same(value**-2, round(value**-2))
        penalties = [whole and not float(given).is_integer(), 0 < value < TINY]
        # Differences of logarithms, for numbers that have one.
        ratios = [value / form if value * form > 0 else inf for form in forms_of(given)]
        near = min(abs(log(ratio)) for ratio in ratios) + UNLIKELY * sum(penalties)
        return integer and not literal.is_integer, near

    def may_stand(value: float) -> bool:
        return not integer or value.is_integer() or same(1 / value, round(1 / value))

    firsts: dict[float, Literal] = {}
    for literal in literals:
        if may_stand(literal.value):
            firsts.setdefault(literal.value, literal)
    return sorted(firsts.values(), key=unlikeliness)


def places_of(kernel: Kernel, value: float) -> int:
    """How often the kernel loads a number."""
    return sum(same(float(match["number"]), value) for match in _pattern(kernel).finditer(kernel.source))


def same(first: float, second: float) -> bool:
    """Whether two numbers are equal after rounding to float32."""
    return abs(first - second) <= CLOSE * max(abs(first), abs(second))


def _pattern(kernel: Kernel) -> re.Pattern[str]:
    return _CPP if kernel.kind == "cpp" else _TRITON
