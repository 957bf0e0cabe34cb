"""Finds what is wrong with a value, and for which values of one input element its expression goes wrong.

The domain of the element is split until the expression is monotone on each piece. Bisection then finds the
ends of the good values. A condition is verified by evaluation on both sides. Integers are examined up to
2^48: beyond, nearly every sum overflows.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mcp_server.diagnosis.origin import Condition
from mcp_server.diagnosis.origin.expression import Expression, Leaf, by_tensor, index_text, shown, tensor_of
from mcp_server.diagnosis.origin.walk import Given, value_of
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue, outside, rounded
from mcp_server.package.terms.interval import Bounds, Interval, from_ordinal, limits, ordinal
from mcp_server.package.terms.parts import SIGNS, key, parts, rebuilt
from mcp_server.package.terms.term import Apply, Element, Fold, Scalar, Term, is_float

_PIECES = 600
_WHOLE = Interval(-(1 << 48), 1 << 48)
_SAMPLES = 12

ElementKey = tuple[str, tuple[int, ...]]  # the tensor and the index of an element


# The smallest normal numbers (torch.finfo(...).tiny); float32 for the types that share its exponent.
TINY = {"float64": 2.2250738585072014e-308, "float16": 6.103515625e-05}
TINY_32 = 1.1754943508222875e-38


def between(low: Scalar | None, high: Scalar | None, dtype: str) -> Interval:
    """The allowed values, both ends included, without NaN. None means the limit of the type."""
    limit = limits(dtype)
    return Interval(limit.low if low is None else low, limit.high if high is None else high)


@dataclass(frozen=True, eq=False)
class Question:
    """A term, its varied element, and the known values of its other elements.

    `at` evaluates the term with another value of the element. Values of the element are counted by their
    rank (`ordinal`), in which neighbours differ by one.
    """

    term: Term
    variable: str
    dtype: str
    others: dict[str, Interval]
    allowed: Interval
    at: Callable[[Scalar], Scalar]

    @property
    def ends(self) -> tuple[int, int]:
        domain = _WHOLE if self.dtype == "int64" else limits(self.dtype)
        return ordinal(domain.low, self.dtype), ordinal(domain.high, self.dtype)

    def value(self, rank: int) -> Scalar:
        return self.at(from_ordinal(rank, self.dtype))

    def good(self, rank: int) -> bool:
        return self.allowed.holds(self.value(rank))


def good_ranges(question: Question) -> list[tuple[int, int]] | None:
    """The ranks for which the term is good, as disjoint ranges. None if unknown."""
    found: list[tuple[int, int]] = []
    try:
        for low, high, way in _pieces(question):
            good = _good_part(question, low, high, way)
            if good is not None and found and found[-1][1] + 1 == good[0]:
                found[-1] = (found[-1][0], good[1])
            elif good is not None:
                found.append(good)
    except UnknownValue:
        return None
    return found


def _pieces(question: Question) -> Iterator[tuple[int, int, int]]:
    """Yield the ends and the direction of pieces on which the term is monotone, or raise `UnknownValue`."""
    queue = [question.ends]
    for _ in range(_PIECES):
        if not queue:
            return
        low, high = queue.pop()
        span = Interval(from_ordinal(low, question.dtype), from_ordinal(high, question.dtype))
        bounds = Bounds({**question.others, question.variable: span})
        way = 0 if low == high else bounds.direction(question.term, question.variable)
        if way is not None:
            yield low, high, way
            continue
        middle = _middle(low, high)
        queue += [(middle + 1, high), (low, middle)]
    raise UnknownValue("the expression is too involved")


def _middle(low: int, high: int) -> int:
    """Where to split: first at zero, then between magnitudes, since small numbers matter most."""
    if low < 0 <= high:
        return -1
    sign = 1 if low >= 0 else -1
    small, large = sorted((abs(low), abs(high)))
    split = 1 << ((small.bit_length() + large.bit_length()) // 2)
    if not small <= split < large or split == small:
        split = (small + large) // 2
    return split if sign > 0 else -split - (0 if -split < high else 1)


def _good_part(question: Question, low: int, high: int, way: int) -> tuple[int, int] | None:
    """The range of ranks in a piece for which a monotone term is good, or None."""
    allowed = question.allowed
    if way == 0:
        return (low, high) if question.good(low) else None

    def first(reaches: Callable[[Scalar], bool]) -> int:
        """The first rank whose value satisfies `reaches`; `high + 1` if none does."""
        start, above = low, high + 1
        while start < above:
            middle = (start + above) // 2
            if reaches(question.value(middle)):
                above = middle
            else:
                start = middle + 1
        return start

    if way > 0:
        start, end = first(lambda value: value >= allowed.low), first(lambda value: value > allowed.high) - 1
    else:
        start, end = first(lambda value: value <= allowed.high), first(lambda value: value < allowed.low) - 1
    return (start, end) if start <= end else None


@dataclass(frozen=True)
class _Points:
    """The questions at all loop points that read the element. A good value is good at every point."""

    questions: Sequence[Question]

    @property
    def dtype(self) -> str:
        return self.questions[0].dtype

    def good(self, rank: int) -> bool:
        return all(question.good(rank) for question in self.questions)

    def value(self, rank: int) -> Scalar:
        """The worst value over all points: NaN, or the one farthest out of range."""
        values = [question.value(rank) for question in self.questions]
        bad = next((value for value in values if value != value), None)
        if bad is not None:
            return bad
        return min(values) if min(values) < self.questions[0].allowed.low else max(values)

    def ranges(self) -> list[tuple[int, int]] | None:
        """The ranks that are good at the first, second and last point. None if unknown."""
        found: list[tuple[int, int]] | None = None
        for question in dict.fromkeys((*self.questions[:2], self.questions[-1])):
            good = good_ranges(question)
            if good is None:
                return None
            if found is not None:
                both = [(max(a, c), min(b, d)) for a, b in found for c, d in good]
                good = sorted((low, high) for low, high in both if low <= high)
            found = good
        return found


def condition(questions: Sequence[Question], name: str, bad: Scalar) -> Condition | None:
    """Find the values, near the offending one, that make the expression bad. None if verification fails.

    `questions` has one for each loop point that reads the element, the faulty point first.
    """
    points = _Points(questions)
    good = points.ranges()
    if not good:
        return None
    ends, dtype, rank = questions[0].ends, points.dtype, ordinal(bad, points.dtype)
    below = max((end for _, end in good if end < rank), default=None)
    above = min((start for start, _ in good if start > rank), default=None)
    first = ends[0] if below is None else below + 1
    last = ends[1] if above is None else above - 1
    # Verify: good just outside, and bad at sampled points inside.
    outside = [each for each in (below, above) if each is not None]
    step = max(1, (last - first) // _SAMPLES)
    inside = {first, rank, last, *range(first, last, step)}
    if not all(map(points.good, outside)) or any(map(points.good, inside)):
        return None
    nearest = min(outside, key=lambda each: abs(each - rank))
    low = None if below is None else from_ordinal(first, dtype)
    high = None if above is None else from_ordinal(last, dtype)
    good_value = from_ordinal(nearest, dtype)
    tiny = TINY.get(dtype, TINY_32)
    if is_float(dtype) and 0 < abs(good_value) < tiny:
        # Use the nearest normal number instead of a denormal one, which `set_flush_denormal` treats as 0.
        normal = math.copysign(tiny, good_value)
        good_value = normal if points.good(ordinal(normal, dtype)) else good_value
    text = f"{_what(points, (first, rank, last))} for {_where(name, low, high, good_value)}"
    if not is_float(dtype):
        text = f"{text} and {shown(points.value(nearest))} for {shown(good_value)}"
    return Condition(text=text, variable=name, low=low, high=high, good=good_value)


def _what(points: _Points, ranks: tuple[int, int, int]) -> str:
    """Describe the value of the expression on the bad side; one number if it is constant there."""
    values = [points.value(rank) for rank in ranks]
    allowed = points.questions[0].allowed
    undefined = [value for value in values if value != value]
    if undefined:
        return f"the expression is {'NaN' if len(undefined) == len(values) else 'not finite'}"
    if len(set(values)) == 1:
        return f"the expression is {shown(values[0])}"
    if all(value > allowed.high for value in values):
        return f"the expression is {shown(min(values))} or more"
    if all(value < allowed.low for value in values):
        return f"the expression is {shown(max(values))} or less"
    return "the expression is out of range"


def is_next_to_0(low: Scalar | None, high: Scalar | None) -> bool:
    """Whether a range has only 0 and numbers that are too small for full precision."""
    return low is not None and high is not None and -TINY_32 < low < 0 < high < TINY_32


def _where(name: str, low: Scalar | None, high: Scalar | None, good: Scalar) -> str:
    if isinstance(good, float) and good == 0 and (low is None) != (high is None):
        return f"{name} {'<' if low is None else '>'} 0"  # 0 is clearer than the number next to it
    if is_next_to_0(low, high):
        return f"{name} = 0"
    if low is None:
        return f"{name} <= {shown(high)}" if high is not None else f"every {name}"
    if high is None:
        return f"{name} >= {shown(low)}"
    return f"{name} = {shown(low)}" if low == high else f"{name} from {shown(low)} to {shown(high)}"


def condition_of(
    expressions: Sequence[Expression], allowed: Interval, blamed: Counter[ElementKey]
) -> Condition | None:
    """Find for which values of one input element the first expression is bad, if the others stay.

    The other expressions are those of other loop points. `blamed` counts the failing points by element.
    """
    main = expressions[0]
    if any(isinstance(each, Element) and ":" in each.parameter for each in parts(main.term)):
        return None
    evaluator = main.evaluator()
    culprit = culprit_at(main.term, evaluator)  # inside a reduction, the culprit has another evaluator
    term = culprit[0] if culprit is not None and culprit[1] is evaluator else main.term
    if term is not main.term:
        expressions, allowed = [main], between(None, None, term.dtype)
    varied = [(name, leaf) for name, leaf in main.leaves.items() if is_input(leaf)]
    varied.sort(key=lambda pair: -blamed[tensor_of(pair[1], main.walker), pair[1].index or ()])
    for name, leaf in varied:
        found = condition_at(expressions, term, leaf, allowed, main.names[name], leaf.value)
        if found is not None:
            kept = OTHERS_STAY if len(varied) > 1 else ""
            label = tensor_of(leaf, main.walker)
            return found.model_copy(update={"text": f"{found.text}{kept}", "label": label})
    return None


OTHERS_STAY = ", if the other elements that it reads stay the same"


def is_input(leaf: Leaf) -> bool:
    return isinstance(leaf.source, Given) and leaf.source.kind == "input"


def condition_at(
    expressions: Sequence[Expression],
    term: Term,
    leaf: Leaf,
    allowed: Interval,
    name: str,
    bad: Scalar | None,
) -> Condition | None:
    """The condition on an element from all points that read it. At the first, `term` is examined."""
    questions = []
    for number, expression in enumerate(expressions):
        own = next((name for name, other in expression.leaves.items() if other.key == leaf.key), None)
        asked = term if number == 0 else expression.term
        found = (e.dtype for e in parts(asked) if isinstance(e, Element) and e.parameter == own)
        dtype = next(found, None)
        if own is None or dtype is None:
            continue
        others = {
            other: Interval(leaf.value, leaf.value)
            for other, leaf in expression.leaves.items()
            if other != own and leaf.value is not None and leaf.value == leaf.value
        }
        at = partial(expression.value_with, asked, own)
        questions.append(Question(asked, own, dtype, others, allowed, at))
    if not questions or questions[0].dtype == "bool" or bad is None:
        return None
    try:
        return condition(questions, name, bad)
    except (UnknownValue, OverflowError):
        return None


def _chosen(term: Term, evaluator: Evaluator) -> Term:
    """A term without the branches that its `where` rejects."""

    def change(each: Term) -> Term | None:
        if not isinstance(each, Apply) or each.op != "where":
            return None
        test = value_of(each.args[0], evaluator)
        return rebuilt(each.args[1 if test else 2], change) if test is not None else None

    return rebuilt(term, change)


_QUIET = frozenset({"where", "cast"})  # operators that pass on values of others


def culprit_at(term: Term, evaluator: Evaluator) -> tuple[Apply, Evaluator] | None:
    """The innermost operation that turned finite values into NaN or infinity, or infinities into NaN.

    NaN is preferred, because an infinity may be a mask. In a reduction, the first point with a bad value
    counts, and the evaluator of this point is returned.
    """
    found: tuple[Apply, Evaluator] | None = None
    for each in parts(_chosen(term, evaluator)):
        result = value_of(each, evaluator)
        if result is None or math.isfinite(result):
            continue
        is_nan, made = math.isnan(result), None
        if isinstance(each, Fold):
            at = _point_of(each, evaluator)
            made = culprit_at(each.body, at) if at is not None else None
        elif isinstance(each, Apply) and each.op not in _QUIET:
            given = [value_of(argument, evaluator) for argument in each.args]
            if all(value is not None and ((value == value) if is_nan else finite(value)) for value in given):
                made = each, evaluator
        if made is not None and (found is None or is_nan or not math.isnan(found[1].value(found[0]))):
            found = made
    return found


def _point_of(fold: Fold, evaluator: Evaluator) -> Evaluator | None:
    """The first point of a reduction at which its body is NaN, otherwise one where it is infinite."""
    infinite: Evaluator | None = None
    result = value_of(fold, evaluator)
    try:
        for place in evaluator.places(fold.ranges):
            at = Evaluator({**evaluator.positions, **place}, evaluator.sizes, evaluator.read)
            value = value_of(fold.body, at)
            if value is not None and math.isnan(value):
                return at
            if value is not None and math.isinf(value) and (infinite is None or value == result):
                infinite = at
    except UnknownValue:
        return None
    return infinite


def finite(value: Scalar | None) -> bool:
    return value is not None and math.isfinite(value)


def operator_of(expression: Expression) -> str:
    """The operation or reduction that first gave a non-finite value. Empty if none is known.

    A product of a value with itself is a `square`.
    """
    evaluator = expression.evaluator()
    made = culprit_at(expression.term, evaluator)
    if made is not None:
        op, args = made[0].op, made[0].args
        return "square" if op == "mul" and key(args[0]) == key(args[1]) else op
    folds = (each for each in parts(expression.term) if isinstance(each, Fold))
    infinite = (each for each in folds if not finite(value_of(each, evaluator)))
    return next(("square" if each.kind == "m2" else each.kind for each in infinite), "")


def explained(expression: Expression) -> str:
    """Say which operation first gave a non-finite value, and which mask caused it. Empty if none did."""
    made = culprit_at(expression.term, expression.evaluator())
    if made is None:
        return ""
    found, evaluator = made
    given = [value_of(argument, evaluator) for argument in found.args]
    text = f"{applied_text(found, evaluator)} is {shown(evaluator.value(found))}"
    # If an infinite operand led to the NaN, find the operation that made it infinite.
    operands = zip(found.args, given, strict=True)
    infinite = next((term for term, v in operands if v is not None and math.isinf(v)), None)
    source = culprit_at(infinite, evaluator) if infinite is not None else None
    if source is not None:
        text = f"{applied_text(*source)} is {shown(source[1].value(source[0]))}, and {text}"
    domain = outside(found.op, [value for value in given if value is not None])
    if domain is not None and math.isfinite(domain.high):
        text += f", outside {domain.words()}"
    last = found.args[-1]
    operator = last.kind if isinstance(last, Fold) else last.op if isinstance(last, Apply) else ""
    if given == [-math.inf, -math.inf] and operator in ("max", "maximum"):
        text = f"{text}: every element is -inf, and so is their maximum"
    return f"{text}; {masked}" if (masked := _masked(expression, found)) else text


def applied_text(term: Apply, evaluator: Evaluator) -> str:
    """Format an operation with its operands' values: `acos(-1.0000001)`, `0 / 0`."""
    given = [exactly(evaluator.value(argument), argument.dtype) for argument in term.args]
    sign = SIGNS.get(term.op)
    return f"{given[0]} {sign[0]} {given[1]}" if sign else f"{term.op}({', '.join(given)})"


def exactly(value: Scalar, dtype: str) -> str:
    """Format a value with enough digits to tell it from its neighbours, and without the sign of -0."""
    if not isinstance(value, float) or not math.isfinite(value):
        return shown(value)
    short = (f"{value + 0.0:.{digits}g}" for digits in range(7, 18))
    return next(text for text in short if rounded(float(text), dtype) == value)


def _masked(expression: Expression, found: Apply) -> str:
    """Describe a constant mask: `args[1][0] to [5], all 6 that decide it, are False`. Empty for others."""
    masks = (each.parameter for each in parts(found) if isinstance(each, Element) and each.dtype == "bool")
    leaves = {name: expression.leaves[name] for name in masks if name in expression.leaves}
    for tensor, names in by_tensor(leaves, expression.walker).items():
        known = sorted((leaves[name] for name in names), key=lambda leaf: leaf.index or ())
        values = {leaf.value for leaf in known}
        if len(values) == 1 and len(known) > 1 and None not in values:
            first, last = index_text(known[0]), index_text(known[-1])
            return f"{tensor}{first} to {last}, all {len(known)} that decide it, are {values.pop()}"
    return ""
