"""Checks of values that only the data tells, and loops that the data keeps going."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors import endless_loop, last_launch, runtime_value
from mcp_server.diagnosis.detectors.runtime_value import limits
from mcp_server.package.symbols import Symbol
from mcp_server.steps.trace_launches import Trace
from tests.conftest import ZooPackage
from tests.diagnosis.support import failing, package_case, run


@pytest.mark.parametrize(
    ("condition", "allowed"),
    [
        ("u0 <= 6", {"high": 6}),
        ("u0 < 6", {"high": 5}),
        ("u0 >= 2", {"low": 2}),
        ("2 < u0", {"low": 3}),
        ("9 >= u0", {"high": 9}),
        ("u0 <= s77", {}),
        ("Eq(u0, 4)", {}),
    ],
)
def test_what_a_comparison_allows(condition: str, allowed: dict[str, int]) -> None:
    """Only a comparison with one number has limits; strict ones leave the number itself out."""
    assert limits(condition) == allowed


def test_a_length_made_of_data_is_put_on_its_launch(zoo: ZooPackage) -> None:
    """The length of what a launch found in the data is that launch's, with the input behind it."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected u0 <= 5 but received 9")
    (found,) = runtime_value.detect(case)
    assert (found.category, found.guilty.launch_index is not None) == ("shape_out_of_range", True)
    assert "args[0]" in found.summary and "9 where u0 <= 5" in found.summary and found.counter is None


def test_a_size_read_from_an_input_is_clamped(zoo: ZooPackage) -> None:
    """A value of an input that breaks a check is that input's, and the clamped call is the test."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected u0 <= 5 but received 9")
    assert case.view is not None and case.package is not None
    item = case.package.inputs[0]
    symbols: Any = case.view.wrapper.symbols
    symbols["u0"] = Symbol("u0", "value", "x.item<int64>()", 1, item.name)
    (found,) = runtime_value.detect(case)
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 0)
    assert found.counter is not None
    assert found.counter.changes == ({"change": "clamp", "input": 0, "high": 5},)


def test_a_check_of_sizes_that_callers_give_is_left_to_others(zoo: ZooPackage) -> None:
    """A symbol that is the size of an input belongs to the comparison of inputs with the package."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected s77 <= 5 but received 9")
    assert list(runtime_value.detect(case)) == []


def looped(zoo: ZooPackage, numbers: list[int]) -> Case:
    """A call that timed out, with these launches at the end of its journal, all of which came back."""
    case = package_case(zoo("loop"))
    case.runs["plain"] = run("plain", ending="timeout")
    base = {"call": 0, "kernel": "k", "line": 7, "state": "done", "seconds": 0.1, "arguments": []}
    rows = [{**base, "launch": number, "sequence": place} for place, number in enumerate(numbers)]
    paths = {"package": Path("m.pt2"), "environment": {}, "rebuild_s": 0.0, "cached": False}
    told = {"how": "died", "summary": "", "last": rows[-1], "launches": rows, "synchronous": True}
    case.trace = Trace.model_validate({**told, **paths, "total": 9000})
    return case


def test_a_loop_without_an_end(zoo: ZooPackage) -> None:
    """Launches of a loop in turns are a loop that does not end, and no kernel that hangs."""
    case = looped(zoo, [0, 1, 2] * 6)
    (found,) = endless_loop.detect(case)
    assert (found.category, found.guilty.launch_index) == ("hang", 0)
    assert "9000 launches" in found.summary and list(last_launch.detect(case)) == []


def test_a_launch_outside_of_loops_hangs_by_itself(zoo: ZooPackage) -> None:
    """Where the journal ends after a loop, or in its first turns, the last launch is the one."""
    for numbers in ([*[0, 1, 2] * 6, 3], [0, 1, 2]):
        case = looped(zoo, numbers)
        assert list(endless_loop.detect(case)) == [] and len(list(last_launch.detect(case))) == 1
