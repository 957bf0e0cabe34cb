"""What is wrong with a value: the check that fails, the operation that made a NaN, the input behind it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mcp_server.diagnosis.origin.condition import Allowed, Question, condition
from mcp_server.diagnosis.origin.expression import Closing, Expression, Leaf, index_text, shown, tensor_of
from mcp_server.diagnosis.origin.layers import Sibling, layer_of, tables_of
from mcp_server.diagnosis.origin.records import Condition, Dormant
from mcp_server.diagnosis.origin.walk import Computed, Given, Walker
from mcp_server.package.launches import Launch
from mcp_server.package.terms.evaluate import Evaluator, UnknownValue
from mcp_server.package.terms.interval import Interval, limits, ordinal
from mcp_server.package.terms.program import Check, places, used
from mcp_server.package.terms.term import Apply, Element, Fold, Range, Scalar, Term, parts
from mcp_server.package.view import PackageView

_SIGNS = {"sub": "-", "add": "+", "mul": "*", "div": "/"}
_QUIET = frozenset({"where", "cast"})
_POINTS = 512


def fails(check: Check, evaluator: Evaluator) -> bool:
    """Whether a check fails at one point. Raises `UnknownValue` where that cannot be told."""
    if check.test is not None and not evaluator.value(check.test):
        return False
    value = evaluator.value(check.value)
    low, high = check_ends(check, evaluator)
    return (low is not None and value < low) or (high is not None and value > high)


def check_ends(check: Check, evaluator: Evaluator) -> tuple[Scalar | None, Scalar | None]:
    """The least and the greatest value that pass; None where the check has no such end."""
    low = evaluator.value(check.lower) if check.lower is not None else None
    high = evaluator.value(check.upper) if check.upper is not None else None
    return low, None if high is None else int(high) - 1


def value_of(term: Term, evaluator: Evaluator) -> Scalar | None:
    """The value of a term; None when it cannot be told."""
    try:
        return evaluator.value(term)
    except UnknownValue:
        return None


def finite(value: Scalar | None) -> bool:
    return value is not None and math.isfinite(value)


def culprit_of(term: Term, evaluator: Evaluator) -> Apply | None:
    """The innermost operation that made a value that is not finite of finite ones, or a NaN of no NaN.

    A NaN counts before an infinity: that may be a mask.
    """
    found: Apply | None = None
    for each in parts(term):
        if isinstance(each, Apply) and each.op not in _QUIET and _makes_bad(each, evaluator):
            is_nan = math.isnan(evaluator.value(each))
            if found is None or is_nan or not math.isnan(evaluator.value(found)):
                found = each
    return found


def _makes_bad(term: Apply, evaluator: Evaluator) -> bool:
    result = value_of(term, evaluator)
    given = [value_of(argument, evaluator) for argument in term.args]
    if result is None or finite(result) or any(value is None for value in given):
        return False
    if result != result:
        return all(value == value for value in given)
    return all(map(finite, given))


def explained(expression: Expression) -> str:
    """Which operation first gave a value that is not finite, and the mask behind it; empty where none did."""
    evaluator = expression.evaluator()
    found = culprit_of(expression.term, evaluator)
    if found is None:
        return ""
    given = [shown(evaluator.value(argument)) for argument in found.args]
    sign = _SIGNS.get(found.op)
    made = f"{given[0]} {sign} {given[1]}" if sign else f"{found.op}({', '.join(given)})"
    text = f"{made} is {shown(evaluator.value(found))}"
    if given == ["-inf", "-inf"] and _is_maximum(found.args[-1]):
        text = f"{text}: all that the maximum is taken of is -inf"
    return f"{text}; {masked}" if (masked := _masked(expression, found)) else text


def _is_maximum(term: Term) -> bool:
    operator = term.kind if isinstance(term, Fold) else term.op if isinstance(term, Apply) else ""
    return operator in ("max", "maximum")


def _masked(expression: Expression, found: Apply) -> str:
    """`all 6 elements of args[1] that it reads are False`, where a mask leaves nothing."""
    leaves = {
        each.parameter: expression.leaves[each.parameter]
        for each in parts(found)
        if isinstance(each, Element) and each.dtype == "bool" and each.parameter in expression.leaves
    }
    tensors: dict[str, list[Leaf]] = {}
    for leaf in leaves.values():
        tensors.setdefault(tensor_of(leaf, expression.walker), []).append(leaf)
    for tensor, found_leaves in tensors.items():
        known = sorted(found_leaves, key=lambda leaf: leaf.index or ())
        values = {leaf.value for leaf in known}
        if len(values) == 1 and len(known) > 1 and None not in values:
            first, last = index_text(known[0]), index_text(known[-1])
            return f"{tensor}{first} to {last}, all {len(known)} that decide it, are {values.pop()}"
    return ""


def condition_of(
    expressions: Sequence[Expression], allowed: Allowed, blamed: Counter[tuple[str, tuple[int, ...]]]
) -> Condition | None:
    """When the first expression goes wrong as one element of an input changes, the others as they are.

    The other expressions are the same at other points of the loops: what is good has to be good for all of
    those that read that element. `blamed` counts the failing points by tensor and index: the element behind
    most of them is varied first.
    """
    main = expressions[0]
    if any(isinstance(each, Element) and ":" in each.parameter for each in parts(main.term)):
        return None
    term = culprit_of(main.term, main.evaluator()) or main.term
    if term is not main.term:
        expressions = [main]
        allowed = Allowed(limits(term.dtype).low, limits(term.dtype).high)
    varied = [
        (name, leaf)
        for name, leaf in main.leaves.items()
        if isinstance(leaf.source, Given) and leaf.source.kind == "input"
    ]
    varied.sort(key=lambda pair: -blamed[tensor_of(pair[1], main.walker), pair[1].index or ()])
    for name, leaf in varied:
        questions = _questions(expressions, term, leaf, allowed)
        found = _varying(questions, main.names[name], leaf)
        if found is not None:
            others = [main.names[other] for other, _ in varied if other != name]
            kept = f" (with {', '.join(others[:3])} as here)" if others else ""
            label = tensor_of(leaf, main.walker)
            return found.model_copy(update={"text": f"{found.text}{kept}", "label": label})
    return None


def _questions(expressions: Sequence[Expression], term: Term, leaf: Leaf, allowed: Allowed) -> list[Question]:
    """The question at every point that reads the element."""
    found = []
    for number, expression in enumerate(expressions):
        name = next((name for name, other in expression.leaves.items() if other.key == leaf.key), None)
        asked = term if number == 0 else expression.term
        question = question_of(expression, asked, name, allowed) if name else None
        if question is not None:
            found.append(question)
    return found


def _varying(questions: list[Question], name: str, leaf: Leaf) -> Condition | None:
    if not questions or questions[0].dtype == "bool":
        return None
    try:
        return condition(questions, name, leaf.value, shown)
    except (UnknownValue, OverflowError):
        return None


def question_of(expression: Expression, term: Term, name: str, allowed: Allowed) -> Question | None:
    """What a term may be as one element of it changes; None when the term does not read that element."""
    dtype = next((e.dtype for e in parts(term) if isinstance(e, Element) and e.parameter == name), None)
    if dtype is None:
        return None
    others = {
        other: Interval(leaf.value, leaf.value)
        for other, leaf in expression.leaves.items()
        if other != name and leaf.value is not None and leaf.value == leaf.value
    }
    return Question(
        term, name, dtype, others, allowed, lambda value: expression.evaluator({name: value}).value(term)
    )


def dormant_in(walker: Walker, view: PackageView, sibling: Sibling, here: Condition) -> Dormant | None:
    """The same check of the same input in another launch, with the values that pass there."""
    check, launch = sibling.check, sibling.launch
    if check is None:
        return None
    try:
        points = points_of(walker, launch, check, 1)
        low, high = check_ends(check, points[0])
        expressions = [
            Closing(walker).close(Computed(launch, check.value, each)) for each in points[:_POINTS]
        ]
    except (UnknownValue, IndexError):
        return None
    limit = limits(check.value.dtype)
    allowed = Allowed(limit.low if low is None else low, limit.high if high is None else high)
    leaf = next(
        (
            leaf
            for leaf in expressions[0].leaves.values()
            if isinstance(leaf.source, Given) and tensor_of(leaf, walker) == here.label
        ),
        None,
    )
    questions = _questions(expressions, expressions[0].term, leaf, allowed) if leaf else []
    found = condition(questions, here.label, None, shown) if questions else None
    if found is None:
        return None
    bad = here.low if here.low is not None else here.high
    return Dormant(
        launch_index=launch.index,
        layer=layer_of(view, launch, tables_of(view, launch, check)),
        passes=found.text,
        fails_here=bad is not None and not questions[0].good(ordinal(bad, questions[0].dtype)),
    )


def points_of(walker: Walker, launch: Launch, check: Check, most: int = 1 << 16) -> list[Evaluator]:
    """The points of the loops at which a check may come out differently. Raises `UnknownValue`."""
    every, _ = places(_relevant(check), walker.scalars(launch), most)
    return [walker.evaluator(launch, place) for place in every]


def points_alike(walker: Walker, launch: Launch, check: Check, point: Evaluator) -> list[Evaluator]:
    """The other points that read the same elements as one: the loops that no element depends on go round."""
    indices = [each.index for each in parts(check.value) if isinstance(each, Element)]
    fixed = {each.name for index in indices for each in used(index, check.ranges)}
    free = [each for each in _relevant(check) if each.name not in fixed]
    every, _ = places(free, walker.scalars(launch), _POINTS) if free else ([], True)
    whole = ({**point.positions, **place} for place in every)
    return [walker.evaluator(launch, place) for place in whole if place != point.positions]


def _relevant(check: Check) -> list[Range]:
    """The loops that a check depends on."""
    terms = [each for each in (check.value, check.lower, check.upper, check.test) if each is not None]
    names = {each.name for term in terms for each in used(term, check.ranges)}
    return [each for each in check.ranges if each.name in names]
