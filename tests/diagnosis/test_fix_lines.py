"""Fixes as code: the idiom for a line, an argument changed where the call is made, a change in a proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_server.diagnosis.interventions.base import Intervention, Kind, Options
from mcp_server.diagnosis.interventions.input import Leaf, cast, exchange, keep_in_range, replace_element
from mcp_server.diagnosis.kept_files import change_code
from mcp_server.diagnosis.origin.lines import idiom_of
from mcp_server.diagnosis.words import at_call_site
from mcp_server.model import Fix
from mcp_server.worker.protocol import Change

ZERO = "log(0) is -inf, and 0 * -inf is nan"
DIVISION = "divisor = p.sum(-1)\ny = p / torch.where(divisor == 0, 1, divisor)"


@pytest.mark.parametrize(
    ("line", "op", "explanation", "after"),
    [
        ("h = -(p * p.log()).sum(-1)", "log", ZERO, "h = -torch.xlogy(p, p).sum(-1)"),
        ("h = torch.log(q) * p", "log", ZERO, "h = torch.xlogy(p, q)"),
        ("h = p * p.log()", "log", "log(0) is -inf", "h = torch.xlogy(p, p)"),
        ("h = p * q.log()", "log", "log(0) is -inf", None),
        ("h = p * p.log() + q * q.log()", "log", ZERO, None),
        ("y = torch.log(torch.softmax(x, -1))", "log", "log(0) is -inf", "y = torch.log_softmax(x, -1)"),
        ("y = x.softmax(-1).log()", "log", "log(0) is -inf", "y = x.log_softmax(-1)"),
        ("y = p / p.sum(-1)", "div", "0 / 0 is nan", DIVISION),
        ("y = p / n", "div", "0 / 0 is nan", None),
        ("y = (", "log", ZERO, None),
    ],
)
def test_the_idiom_of_a_line(line: str, op: str, explanation: str, after: str | None) -> None:
    """Where one expression of the line has one; a factor 0 makes the difference for xlogy."""
    found = idiom_of(line, op, explanation)
    assert (found.after if found is not None else None) == after


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("out = run(amount, features)", "out = run(amount.to(torch.float32), features)"),
        ("print(run(a + b, features))", "print(run((a + b).to(torch.float32), features))"),
        ("out = run(*batch)", None),
        ("out = f(a, run(b, c))", None),
        ("out = run(", None),
    ],
)
def test_an_argument_is_changed_where_the_call_is_made(line: str, after: str | None) -> None:
    """In the only call with as many arguments; else the fix stays as it is."""
    fix = Fix(text="convert it", before="args[0]", after="args[0].to(torch.float32)")
    expected = fix.model_copy(update={"before": line, "after": after}) if after else fix
    assert at_call_site(fix, line, 2) == expected
    assigned = fix.model_copy(update={"after": "args[0] = args[0].to(torch.float32)"})
    assert at_call_site(assigned, line, 2).after == (after or assigned.after)


IDS = Leaf(0, "args[0]")


@pytest.mark.parametrize(
    ("tried", "code"),
    [
        (keep_in_range(IDS, 0, 31), "args[0] = args[0].clamp(0, 31)"),
        (replace_element(IDS, (2, 0), 1), "args[0][2, 0] = 1"),
        (cast(IDS, "float32"), "args[0] = args[0].to(torch.float32)"),
        (exchange((1, 0), ("args[0]", "args[1]")), "args[0], args[1] = args[1], args[0]"),
        (Intervention("k", Kind.KERNEL, "", options=Options(package=Path("b.pt2"))), "package = 'b.pt2'"),
        (Intervention("k", Kind.ENVIRONMENT, "", options=Options(env={"A": "1"})), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="args[0]: own-memory"), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="import os"), ""),
        (Intervention("k", Kind.INPUT, "", (Change("align", 0),), after_code="args[0] = load(x)"), ""),
    ],
)
def test_a_change_is_code_or_there_is_no_proof(tried: Intervention, code: str) -> None:
    """Of the call's arguments and torch only; a spelling of `try-fix` is not Python."""
    assert change_code(tried) == code
