"""Expressions with a bad value: at which operation, and for which operands."""

import pytest
import torch

from mcp_server.diagnosis.origin.condition import Question, condition
from mcp_server.diagnosis.origin.lines import guarded_line, guarded_lines, masked_line
from mcp_server.diagnosis.origin.of_model import why_of_model
from mcp_server.package.terms.interval import Interval
from mcp_server.package.terms.term import Number, Position, Scalar, Term
from tests.package.terms.made import read, value

X, N = Position("x"), Number(0, "int64")


@pytest.mark.parametrize(
    ("line", "op", "guarded"),
    [
        ("mean = total / count", "div", "mean = total / torch.where(count == 0, 1, count)"),
        ("y = (a + b) / n.sum()", "div", "y = (a + b) / torch.where((divisor := n.sum()) == 0, 1, divisor)"),
        ("y = c / var.sqrt()", "div", "y = c / (var + 1e-5).sqrt()"),
        ("y = c / torch.sqrt(c.var(-1))", "div", "y = c / torch.sqrt(c.var(-1) + 1e-5)"),
        ("y = c / c.std(-1)", "div", "y = c / (c.std(-1) + 1e-5)"),
        ("angle = torch.acos(u * v)", "acos", "angle = torch.acos((u * v).clamp(-1, 1))"),
        ("r = (x * x).sum(-1).sqrt()", "sqrt", "r = (x * x).sum(-1).clamp_min(0).sqrt()"),
        ("y = torch.log(p)", "log", "y = torch.log(p.clamp_min(torch.finfo(p.dtype).tiny))"),
        ("y = a / b / c", "div", ""),
        ("y = total.mean(1)", "div", ""),
        ("y = torch.where(", "div", ""),
    ],
)
def test_a_line_is_guarded_where_it_is_clear_which_operation(line: str, op: str, guarded: str) -> None:
    """The line is guarded if it is complete and has one such operation."""
    assert guarded_line(line, op) == guarded


@pytest.mark.parametrize("infinity", ["float('-inf')", '-float("inf")', "-torch.inf", "-math.inf"])
def test_a_mask_of_the_model_is_filled_with_a_finite_number(infinity: str) -> None:
    """The fix is the user's own line; a fill that is finite already, or of no named tensor, stays."""
    line = "w = score.masked_fill(empty, {}).softmax(-1)"
    assert masked_line(line.format(infinity)) == line.format("torch.finfo(score.dtype).min")
    assert not masked_line(line.format("-1e9"))
    assert not masked_line(line.format(infinity).replace("score", "(a @ b)"))


def test_every_line_of_a_kernel_is_guarded_or_none() -> None:
    """A guard in a kernel guards all its divisions, so a fix of one line was not tested."""
    mean, spread = "mean = s / n", "var = (x ** 2).sum(-1) / n"
    both = guarded_lines([mean, "y = relu(x)", spread, mean], "div")
    assert both is not None and both[0].splitlines() == [mean, spread]
    assert both[1].count("torch.where(n == 0, 1, n)") == 2
    assert guarded_lines([mean, "var = (a / b) / n"], "div") is None
    assert guarded_lines(["y = relu(x)"], "div") is None
    # A division with a clamp needs no guard, unless the clamp allows zero.
    clamped = "y = x / n.clamp(min=1)[:, None]"
    assert guarded_lines([mean, clamped], "div") == (mean, "mean = s / torch.where(n == 0, 1, n)")
    assert guarded_lines([clamped], "div") is None
    assert guarded_lines([mean, "y = x / n.clamp(min=0)"], "div") != guarded_lines([mean], "div")
    both = guarded_lines(["y = x.clamp_min(1e-6).log()", "z = w.log()"], "log")
    assert both == guarded_lines(["z = w.log()"], "log")


FINITE = Interval(-3.4028234663852886e38, 3.4028234663852886e38)


def question(term: Term, dtype: str, allowed: Interval) -> Question:
    return Question(term, "x", dtype, {}, allowed, lambda x: value(term, x))


FAR = "std::log(c10::convert<float>(x) / 16.0f) / 2.0794415f * 16.0f"
CLAMPED = (
    "static_cast<int64_t>(std::floor(std::sqrt((c10::convert<float>(min_propagate_nan(max_propagate_nan("
    "x, 1), 500)) - 1.0f) / 499.0f) * 64.0f))"
)
CONDITIONS: dict[str, tuple[str, Scalar, Interval, str, str]] = {
    "clamped": (CLAMPED, 731, Interval(0, 63), "int64", "is 64 for x >= 500 and 63 for 499"),
    "parted by a choice": (
        f"x < 16 ? x : 16 + static_cast<int64_t>({FAR})",
        *(200, Interval(0, 31), "int64", "is 32 or more for x >= 128 and 31 for 127"),
    ),
    "log": ("std::log(x)", -1.0, FINITE, "float32", "is not finite for x <= 0"),
    "sqrt": ("std::sqrt(x)", -1.0, FINITE, "float32", "is NaN for x < 0"),
    "exp": ("std::exp(x)", 100.0, FINITE, "float32", "is inf for x >= 88.72284"),
    "wraps far outside": ("x * 4 + 4", 5, Interval(0, 19), "int64", "is 20 or more for x >= 4 and 16 for 3"),
    "not monotone": (
        "static_cast<int64_t>(std::sin(c10::convert<float>(x)) * 10.0f)",
        *(2, Interval(0, 5), "int64", ""),
    ),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_the_condition_of_a_bad_value(name: str) -> None:
    """The condition says where the expression leaves its range, with the last good value. It is no guess."""
    text, bad, allowed, dtype, told = CONDITIONS[name]
    found = condition([question(read(text, dtype), dtype, allowed)], "x", bad)
    assert (found.text if found else "") == (f"the expression {told}" if told else "")
    if name == "log":
        assert found is not None and found.good == torch.finfo(torch.float32).tiny, "no denormal number"


BIN = "static_cast<int64_t>(std::floor(x * 32.0f)) + 1L"
GAP = "c10::div_floor_integer(at::vec::minimum(std::abs(x), 96L), 2L)"
STEPS = "c10::div_floor_integer(x + 1L, 2L) - 1L"


@pytest.mark.parametrize(
    ("text", "dtype", "value", "made_here", "why"),
    [
        (BIN, "float32", 33, "", "one past the end, and nothing limits it"),
        (BIN, "float32", 161, "", ""),
        (GAP, "int64", 35, "", "up to 48 by its own limits"),
        (STEPS, "int64", 33, "buf5", "one past the end of buf5"),
        (STEPS, "int64", 40, "buf5", ""),
        (STEPS, "int64", 33, "", ""),
    ],
)
def test_expressions_are_accused_rightly(text: str, dtype: str, value: int, made_here: str, why: str) -> None:
    """The expression's limits, an inclusive end or a model's size are its own. Values far beyond are not."""
    found = why_of_model(read(text, dtype), value, Interval(0, 32), made_here)
    assert why in found and bool(found) == bool(why)
