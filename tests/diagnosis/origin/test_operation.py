"""The operation that left its domain: inside a reduction, behind an infinity, in a line of the model."""

from __future__ import annotations

import math

import pytest
import torch

from mcp_server.diagnosis.origin.condition import applied_text, culprit_at, culprit_of
from mcp_server.diagnosis.origin.of_model import Sibling, difference, guarded_line, guarded_lines, outside_of
from mcp_server.diagnosis.origin.values import ProbedValues
from mcp_server.diagnosis.origin.walk import Computed, Walker
from mcp_server.package.terms.evaluate import Evaluator
from mcp_server.package.terms.term import Element, Fold, Number, Position, Range, Scalar, Term, key
from mcp_server.package.terms.translate import operator
from mcp_server.package.view import view_package
from tests.diagnosis.origin.test_origins import build
from tests.zoo.names import thorough

X, N = Position("x"), Number(0, "int64")
ROW = Element("row", X, "float32")
FOUR = (Range("x", N, Number(4, "int64")),)


def evaluator(*row: float) -> Evaluator:
    return Evaluator({}, {}, lambda _element, offset: row[offset])


def test_the_point_of_a_reduction_at_which_a_quotient_is_not_a_number() -> None:
    """The sum is NaN for its third term; the operation has the values of that point."""
    total = Fold("sum", FOUR, operator("div", (ROW, ROW)), "float32")
    made = culprit_at(operator("mul", (total, Number(2.0, "float32"))), evaluator(1.0, 2.0, -0.0, 3.0))
    assert made is not None and applied_text(*made) == "0 / 0"
    assert made[1].positions == {"x": 2}
    outer = evaluator(1.0, 2.0, 0.0, 3.0)
    assert culprit_of(total, outer) is None, "a condition cannot vary what differs from point to point"
    assert culprit_at(total, evaluator(1.0, 2.0, 4.0, 3.0)) is None


@pytest.mark.parametrize(
    ("value", "text"), [(-1.0000001192092896, "acos(-1.0000001)"), (1.5, "acos(1.5)"), (-2.0, "acos(-2)")]
)
def test_an_operand_is_told_from_its_neighbours(value: float, text: str) -> None:
    """As many digits as the type needs: the float32 below -1 is not shown as -1."""
    made = culprit_at(operator("acos", (Element("row", N, "float32"),)), evaluator(value))
    assert made is not None and applied_text(*made) == text


def found_in(term: Term, *row: float) -> str:
    """The operation outside of its domain in a term of some launch."""
    view = view_package(build("buckets"))
    launch = next(each for each in view.wrapper.launches if each.kernel in view.wrapper.kernels)
    found = outside_of(Walker(view, ProbedValues()), Computed(launch, term, evaluator(*row)))
    return applied_text(found.applied, found.evaluator) if found is not None else ""


@thorough
@pytest.mark.slow
def test_an_infinity_is_followed_to_its_maker() -> None:
    """0 * rsqrt(0) is NaN for the root; a mask and an overflow are nobody's domain."""
    first = Element("row", N, "float32")
    root = operator("rsqrt", (first,))
    assert found_in(operator("mul", (first, root)), 0.0) == "rsqrt(0)"
    mask = Number(-math.inf, "float32")
    assert found_in(operator("sub", (mask, mask)), 0.0) == ""
    grown = operator("exp", (first,))
    assert found_in(operator("div", (grown, grown)), 1000.0) == ""


@pytest.mark.parametrize(
    ("line", "op", "guarded"),
    [
        ("mean = total / count", "div", "mean = total / torch.where(count == 0, 1, count)"),
        (
            "return (a + b) / n.sum(1)",
            "div",
            "return (a + b) / torch.where((divisor := n.sum(1)) == 0, 1, divisor)",
        ),
        ("angle = torch.acos(u * v)", "acos", "angle = torch.acos((u * v).clamp(-1, 1))"),
        ("r = (x * x).sum(-1).sqrt()", "sqrt", "r = (x * x).sum(-1).clamp(min=0).sqrt()"),
        ("y = torch.log(p)", "log", "y = torch.log(p.clamp(min=torch.finfo(p.dtype).tiny))"),
        ("y = a / b / c", "div", ""),
        ("y = total.mean(1)", "div", ""),
        ("y = torch.where(", "div", ""),
    ],
)
def test_a_line_of_the_model_is_guarded_where_it_is_clear_which_operation(
    line: str, op: str, guarded: str
) -> None:
    """One such operation in a whole line; else nothing is said."""
    assert guarded_line(line, op) == guarded


def test_every_line_of_a_kernel_is_guarded_or_none() -> None:
    """One guard in a kernel stands for all its divisions: a fix of one line alone was not what ran."""
    mean, spread = "mean = s / n", "var = (x ** 2).sum(-1) / n"
    both = guarded_lines([mean, "y = relu(x)", spread, mean], "div")
    assert both is not None and both[0].splitlines() == [mean, spread]
    assert both[1].count("torch.where(n == 0, 1, n)") == 2
    assert guarded_lines([mean, "var = (a / b) / n"], "div") is None
    assert guarded_lines(["y = relu(x)"], "div") is None


def test_a_line_with_its_guard_computes_the_same_but_for_the_fault() -> None:
    """The text is code that runs, and changes the element at fault alone."""
    names = {"torch": torch, "n": torch.tensor([2, 0, 4]), "a": torch.tensor([1.0, 0.0, 2.0])}
    assert eval(guarded_line("a / n", "div"), names).tolist() == [0.5, 0.0, 0.5]
    x = names["x"] = torch.tensor([-1.0, 0.25, 1.0, -3.0], dtype=torch.float64)
    for op in ("log1p", "atanh", "rsqrt", "acosh"):
        kept, plain = eval(guarded_line(f"torch.{op}(x)", op), names), getattr(torch, op)(x)
        assert kept.isfinite().all() and torch.equal(kept[plain.isfinite()], plain[plain.isfinite()])


def layer(value: Scalar) -> Term:
    return operator("add", (ROW, Number(value, "float32")))


@pytest.mark.parametrize(
    ("others", "odd"),
    [
        ((1e-5, 1e-5, 1e-5), (1e-50, 1e-5)),
        ((1e-5, 1e-5, 1e-3), (1e-50, 1e-5)),
        ((1e-5, 1e-4, 1e-3), None),
        ((1e-5, 1e-50), None),
        ((1e-5,), None),
    ],
)
def test_the_constant_that_most_layers_have(others: tuple[float, ...], odd: object) -> None:
    """Of layers with values of their own, or of one other layer alone, none is usual."""
    (launch, *_) = view_package(build("buckets")).wrapper.launches
    siblings = [Sibling(launch, layer(each), key(layer(each))[1]) for each in others]
    found = difference(layer(1e-50), siblings, ())
    assert ((found.old, found.new) if found.odd else None) == odd
