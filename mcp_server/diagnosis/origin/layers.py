"""Which layer a launch belongs to, and how what it computes differs from the other layers.

Layers are compared by their expressions, not by the text of their kernels: around the same expression each
fused kernel holds something else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcp_server.package.kernel_code import find_asserts
from mcp_server.package.kernels import Kernel
from mcp_server.package.launches import Launch
from mcp_server.package.terms.program import Check, Store, indexed_by, read_program
from mcp_server.package.terms.term import Apply, Fold, Number, Scalar, Term, key, number, parts
from mcp_server.package.view import PackageView

_LAYER = re.compile(r"^(.*\.\d+)(?:\.|$)")
_NEAR = 3
_FEW = 2  # layers that say what is usual
_MOST = 256
# Functions that stand by name in the text of every kernel that computes them: the others need not be read.
_NAMED_IN_TEXT = frozenset({"sqrt", "exp", "log", "log1p", "floor", "ceil", "tanh", "sin", "cos", "erf"})
_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "floordiv": "//",
    "mod": "%",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


def layer_of(view: PackageView, launch: Launch, tables: Sequence[str] = ()) -> str:
    """The launch's layer: from the weights of `tables`, or that it reads, else from its neighbours."""
    names = {constant.name: constant.fqn for constant in view.package.constants if constant.fqn}
    own = [names[name] for name in (*tables, *launch.reads) if name in names]
    if own:
        return _owner(own[0])
    places = [launch.index + sign * distance for distance in range(1, _NEAR + 1) for sign in (-1, 1)]
    launches = [view.wrapper.launches[n] for n in places if 0 <= n < len(view.wrapper.launches)]
    near = (names[name] for each in launches for name in each.reads if name in names)
    return next((_owner(fqn) for fqn in near), "")


def _owner(fqn: str) -> str:
    """`layers.7` of `layers.7.bias.weight`; the module of the weight where nothing is numbered."""
    match = _LAYER.match(fqn)
    return match[1] if match else fqn.rpartition(".")[0] or fqn


def tables_of(view: PackageView, launch: Launch, check: Check) -> list[str]:
    """The variables that a checked index addresses."""
    kernel = view.wrapper.kernels[launch.kernel]
    assertion = next((each for each in find_asserts(kernel.source) if each.line == check.line), None)
    if assertion is None:
        return []
    tensors = {argument.name: argument.target or "" for argument in launch.tensors}
    return list(dict.fromkeys(tensors[name] for _, name in indexed_by(kernel, assertion, tensors)))


@dataclass(frozen=True, eq=False)
class Sibling:
    """A launch that computes a term of the same shape; `check` is set where that is what it checks."""

    launch: Launch
    term: Term
    constants: tuple[Scalar, ...]
    check: Check | None = None


def siblings(
    view: PackageView, launch: Launch, term: Term, checked: bool, *, inside: bool = False
) -> list[Sibling]:
    """The other launches that compute (`checked`: check) a term of the same shape, or have it `inside`."""
    shape, _ = key(term)
    words = {each.op for each in parts(term) if isinstance(each, Apply) and each.op in _NAMED_IN_TEXT}
    found: list[Sibling] = []
    for other in view.wrapper.launches:
        kernel = view.wrapper.kernels.get(other.kernel)
        if other.index == launch.index or kernel is None or len(found) >= _MOST:
            continue
        if not all(word in kernel.source for word in words):
            continue
        for candidate, check in _terms(kernel, term, checked, inside):
            here, constants = key(candidate)
            if here == shape:
                found.append(Sibling(other, candidate, constants, check))
                break
    return found


def _terms(kernel: Kernel, term: Term, checked: bool, inside: bool) -> Iterator[tuple[Term, Check | None]]:
    """What a kernel computes or checks, or the parts `inside` of that with the operator of `term`."""
    program = read_program(kernel) if kernel.source else None
    found: Sequence[Check | Store] = ()
    if program is not None:
        found = program.checks if checked else program.stores
    for each in found:
        check = each if isinstance(each, Check) else None
        if not inside:
            yield each.value, check
            continue
        for part in parts(each.value):
            if isinstance(part, Apply) and isinstance(term, Apply) and part.op == term.op:
                yield part, check


@dataclass(frozen=True)
class Difference:
    """How a term differs from its siblings, in words; `old` where one constant decides that none of them has.

    `new` is what most of the `others` have there, namely `alike` of them.
    """

    text: str = ""
    old: Scalar | None = None
    new: Scalar | None = None
    others: int = 0
    alike: int = 0

    @property
    def unanimous(self) -> bool:
        """Whether all siblings have the same constant there."""
        return self.old is not None and self.alike == self.others

    @property
    def odd(self) -> bool:
        """Whether the siblings are enough, and enough of them alike, to say what is usual."""
        return self.old is not None and self.others >= _FEW and 2 * self.alike > self.others


def of_bound(others: Sequence[Sibling], check: Check) -> list[Sibling]:
    """The siblings whose check allows as much."""

    def bound(of: Check | None) -> Scalar | None:
        return of.upper.value if of is not None and isinstance(of.upper, Number) else None

    own = bound(check)
    return [each for each in others if own is not None and bound(each.check) == own]


def difference(term: Term, others: Sequence[Sibling], atens: Sequence[str], which: str = "") -> Difference:
    """The constants that no sibling has; empty when there are none. `which` siblings these are."""
    own = key(term)[1] if others else ()
    theirs = [Counter(sibling.constants[place] for sibling in others) for place in range(len(own))]
    found = [place for place in range(len(own)) if own[place] not in theirs[place]]
    if not found:
        return Difference()
    place, *more = found
    usual = theirs[place].most_common(8)
    sign, dtype = _context(term, place)
    operators = {each.rpartition(".")[2].rstrip("_0123456789") for each in atens}
    there = ", ".join(number(each, dtype, operators) for each in sorted(value for value, _ in usual))
    who = "the other layer{} has" if len(others) == 1 else f"the {len(others)} other layers{{}} have"
    who = who.format(f" {which}" if which else "")
    text = f"{sign}{number(own[place], dtype, operators)} where {who} {there}"
    if more:
        return Difference(f"{text} (and {len(more)} more constants)")
    (new, alike), *_ = usual
    return Difference(text, own[place], new, len(others), alike)


def _context(term: Term, place: int) -> tuple[str, str]:
    """The operator in front of a constant, by its number in `key`, and the constant's type."""
    numbers: list[tuple[str, str]] = []

    def visit(each: Term) -> None:
        if len(numbers) > place:
            return
        match each:
            case Apply(op=op, args=args):
                for position, argument in enumerate(args):
                    if isinstance(argument, Number):
                        sign = f"{_SIGNS[op]} " if op in _SIGNS and position else ""
                        numbers.append((sign, argument.dtype))
                    else:
                        visit(argument)
            case Number(dtype=dtype):
                numbers.append(("", dtype))
            case Fold(body=body):
                visit(body)

    visit(term)
    return numbers[place] if place < len(numbers) else ("", "float64")
