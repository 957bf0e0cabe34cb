"""Indices out of range, and integers that a kernel divides by or overflows."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes.value_constraints import form_trials
from mcp_server.diagnosis.indices import checked_inputs, parts_of
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import bystanders, confidence
from mcp_server.package.assertion import Division, IndexSource
from mcp_server.package.launches import Launch
from mcp_server.package.mismatch import GivenTensor
from mcp_server.package.terms.term import Element, Position
from mcp_server.tools.check_devices import Given
from mcp_server.worker.events import Event, IndexValues
from mcp_server.worker.protocol import InputSlice
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    by,
    capture,
    failing,
    index_text,
    package_case,
    phase,
    run,
    trial,
    worker_run,
)
from tests.support.command import answered
from tests.zoo.names import thorough


def failed(zoo: Zoo, name: str, *tensors: GivenTensor) -> DiagnosisState:
    """Make the case after the package's only index check failed."""
    return failing(package_case(zoo(name), *tensors), index_text(zoo(name)))


def jagged(zoo: Zoo) -> DiagnosisState:
    return failed(zoo, "jagged", GivenTensor("float32", (6, 8)), GivenTensor("int64", (4,)))


def outside(part: InputSlice, value: int, count: int = 1, index: Sequence[int] = (0, 5)) -> IndexValues:
    """Make the worker's report of an input with such elements."""
    first: list[tuple[list[int], int | float]] = [(list(index), value)]
    return IndexValues(part, 48, min(value, 0), value, count, first)


def with_element(zoo: Zoo, value: int, count: int = 1) -> tuple[DiagnosisState, InputSlice]:
    """Make the ranker's failed check, after its ids were compared."""
    case = failed(zoo, "ranker", GOOD_IDS)
    (part,) = parts_of(checked_inputs(case))
    case.index_values[part] = outside(part, value, count)
    return case, part


def suspected(case: DiagnosisState) -> Suspect:
    (found,) = by("index_out_of_bounds.detect_index", case)
    return found


@pytest.mark.parametrize("value", [32, 40, -40])
def test_an_element_outside_is_guilty(zoo: Zoo, value: int) -> None:
    """The verdict has input, element, value, bound and launch. A clamp proves it; the fix has both ends."""
    case, part = with_element(zoo, value)
    assert (part.input, part.offset, part.stride, part.high) == (0, 0, 1, 31) and part.low in (0, -32)
    found = suspected(case)
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 0)
    assert (found.guilty.value or "").startswith(f"{value} at [0, 5]")
    assert found.crashing is not None and found.crashing.launch_index == 0
    assert "look_at_indices" in found.steps
    assert found.intervention is not None and found.fix is not None
    (change,) = found.intervention.changes
    assert (change.change, change.input, change.low, change.high) == ("elements", 0, part.low, part.high)
    ends = rf"if \(\(.+ < {part.low}\) \| \(.+ > {part.high}\)\)\.any\(\): raise ValueError\(.+\)"
    assert re.fullmatch(ends, found.fix.after or "")
    inside, _ = with_element(zoo, 3, count=0)  # then the check did not fail here
    assert by("index_out_of_bounds.detect_index", inside) == []


@pytest.mark.parametrize(("value", "past"), [(6, True), (7, False)])
def test_a_position_in_a_tensor_is_told_apart_from_an_id(zoo: Zoo, value: int, past: bool) -> None:
    """An index that is no table row is corrected where it is computed, by one if it is one too large."""
    case = jagged(zoo)
    (part,) = parts_of(checked_inputs(case))
    case.index_values[part] = outside(part, value, index=[2])
    found = suspected(case)
    assert found.fix is not None and found.intervention is not None
    texts = f"{found.summary} {found.fix.text} {found.intervention.not_for_shipping}"
    assert not re.search(r"unknown ids|different id|rows\b", texts)
    assert ("one past the end" in texts, "subtract 1" in texts) == (past, past)


def test_without_a_look_at_the_values_the_launch_is_told(zoo: Zoo) -> None:
    """The log gives only check and input. A symbolic bound has its number, and what it is a size of."""
    found = suspected(failed(zoo, "ranker", GOOD_IDS))
    assert "look_at_indices" not in found.steps
    assert (found.guilty.input_index, found.guilty.value) == (0, None)
    assert re.search(r"index outside (-32|0)\.\.31;", found.summary)
    symbolic = suspected(jagged(zoo)).summary
    assert re.search(r"outside (-6|0)\.\.5 \(6 is s\d+; s\d+ is the size of dim 0 of input 0", symbolic)


BUCKETS = """
import torch

class Buckets(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 8)

    def forward(self, x):
        return self.table((x.clamp(0, 1) * 15).long()).sum(1)

x = torch.rand(6, 4)
package = torch._inductor.aoti_compile_and_package(torch.export.export(Buckets(), (x,)), package_path="b.pt2")
x[2, 1] = float("nan")
torch._inductor.aoti_load_package(package)(x)
"""


@thorough
def test_nan_in_an_input_is_named_for_the_index_computed_from_it(tmp_path: Path) -> None:
    """The element behind the index is proven by another number in its place."""
    script = tmp_path / "buckets.py"
    script.write_text(BUCKETS)
    seen = answered("diagnose", script, "--cwd", tmp_path)
    assert (seen["category"], seen["confidence"]) == ("index_out_of_bounds", "proven"), seen["summary"]
    assert "args[0][2, 1] = nan" in seen["summary"]


OF_ATEN = (
    "/pytorch/aten/src/ATen/native/cuda/EmbeddingBag.cu:94: EmbeddingBag_updateOutputKernel_sum_mean: "
    "block: [0,0,0], thread: [3,0,0] Assertion `0 <= input_idx && input_idx < numRows` failed."
)


def test_a_kernel_of_aten_on_the_device_names_the_element_of_its_operator(zoo: Zoo) -> None:
    """The assertion names no launch, so the operator with the index gives the limit. Good values clear it."""
    given = GivenTensor("int64", (12,)), GivenTensor("int64", (4,))
    case = failing(package_case(zoo("bags"), *given), OF_ATEN)
    part = InputSlice(0, 0, 1, 0, 49)
    case.index_values[part] = outside(part, -50, index=[5])
    (found,) = by("index_out_of_bounds.detect_operator_index", case)
    assert (found.guilty.kind, found.guilty.input_index) == ("input", 0)
    assert found.guilty.elements == ["args[0][5] = -50"] and "0 to 49 are allowed" in found.summary
    assert found.intervention is not None and found.crashing is not None
    case.index_values[part] = outside(part, 3, count=0)
    assert not by("index_out_of_bounds.detect_operator_index", case)


def test_the_first_offset_of_bags_must_be_0(zoo: Zoo) -> None:
    """The element is named, and the fix says what offsets mean."""
    case = failing(
        package_case(zoo("bags"), GivenTensor("int64", (12,)), GivenTensor("int64", (4,))),
        "RuntimeError: offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
        "position 0. However, got 5",
    )
    part = InputSlice(1, 0, 1, 0, 0, end=1)
    case.index_values[part] = outside(part, 5, index=[0])
    (found,) = by("index_out_of_bounds.detect_operator_index", case)
    assert found.guilty.elements == ["args[1][0] = 5"] and "must be 0" in found.summary
    assert found.fix is not None and found.fix.text.startswith("let args[1] say where each bag starts")


SAID = "Error: inductor_cpu_throw_if_integer_div_error, cpp_prefix.h:827, ZeroDivisionError"
LAUNCH = Launch(2, "cpp_fused", "cpp_fused", "cpp", "cpp_fused", (), 1, 0, 0)
ELEMENT, LABEL = Element("in_ptr1", Position("x0"), "int64", 3), "input 1 (args[1])"
SOURCE = IndexSource(ELEMENT, "arg1_1", "input", LABEL, (), (LABEL,))
DIVIDED = Division(LAUNCH, "kernel.cpp:9", "auto tmp2 = tmp0 / tmp1;", (SOURCE,), plain=True)
PART = InputSlice(1, 0, 1, 0, 0, unlike=0)


def case_of(monkeypatch: pytest.MonkeyPatch, found: Division = DIVIDED) -> DiagnosisState:
    """Make a failed call of a package with this one division."""
    case = DiagnosisState(None)
    paths = ((n, f"args[{n}]") for n in (0, 1))
    inputs = [SimpleNamespace(index=n, label=f"input {n} ({p})", path=p, dtype="int64") for n, p in paths]
    package: Any = SimpleNamespace(inputs=inputs, constants=(), wrapper_text="")
    case.package = package
    case.call = CallSpec("run", {}, Path("m.pt2"))
    case.given = Given(())
    case.runs["plain"] = run("plain", SAID)
    one_division = "mcp_server.diagnosis.causes.value_constraints.failed_divisions"
    monkeypatch.setattr(one_division, lambda _case: (found,))
    return case


def test_an_element_that_is_zero_is_likely_until_it_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divisors in an input are compared first. If one is zero, a call without zeros is the test."""
    case = case_of(monkeypatch)
    assert not by("value_constraints.detect_division", case)
    case.done.append("look_at_indices")
    case.index_values[PART] = IndexValues(PART, 4, outside=1, first=[([2], 0)])
    (found,) = by("value_constraints.detect_division", case)
    told = (found.category, found.guilty.name, found.guilty.value)
    assert told == ("input_mismatch", "args[1]", "0 at [2]") and confidence(found, case) == "likely"
    assert found.crashing is not None and found.crashing.generated_location == "kernel.cpp:9"
    monkeypatch.setattr("mcp_server.diagnosis.causes.value_constraints.may_hide_infinity", lambda _case: True)
    (found,) = by("value_constraints.detect_division", case)
    assert (found.category, confidence(found, case)) == ("nan_or_inf", "possible")
    case.index_values[PART] = IndexValues(PART, 4)
    assert not by("value_constraints.detect_division", case), "all were seen to be other numbers"


def test_a_computed_divisor_is_proven_by_a_call_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names no launch. A call without zeros that passes is proof, one that fails proves nothing."""
    case = case_of(monkeypatch, replace(DIVIDED, plain=False))
    (found,) = by("value_constraints.detect_division", case)
    assert "computed from input 1" in found.summary and confidence(found, case) == "likely"
    assert found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    (again,) = by("value_constraints.detect_division", case)
    assert again.intervention is None and confidence(again, case) == "likely"


OF_SCRIPT = """Traceback (most recent call last):
  File "serve.py", line 3, in <module>
    share = total // count
ZeroDivisionError: integer division or modulo by zero"""


@pytest.mark.parametrize("text", ["Error: Integer floor division by zero", "Segmentation fault", OF_SCRIPT])
def test_other_failures_are_no_such_division(text: str) -> None:
    """Checked sizes, a bad access and a statement of the script are not such a division."""
    case = DiagnosisState(None)
    case.runs["plain"] = run("plain", text)
    assert not by("value_constraints.detect_division", case)


CHECK = """Traceback (most recent call last):
  File "/app/invoice.py", line 9, in <module>
    raise ValueError(text)
ValueError: books do not balance"""
AGREES = {"event": "compared", "equal": True, "outputs": []}


OVERFLOW = {
    "event": "node_overflow",
    "node": "mul",
    "op": "aten.mul.Tensor",
    "stack": [],
    "dtype": "int32",
    "index": [0],
    "value": -5,
    "exact": 4294967291,
    "count": 1,
    "modular": False,
}


def interpreted(*events: Event | dict[str, Any], text: str = CHECK) -> DiagnosisState:
    """Make a program that ended in `text` after a good call, with the interpretation's events."""
    case = DiagnosisState(None)
    case.capture = capture(calls=[phase(1, load=0, thread=1)])
    case.runs["script"], case.runs["plain"] = run("script", text), run("plain")
    case.interpreted = worker_run(*events)
    case.trials |= {trial.intervention.key: trial for trial in form_trials(case)}
    return case


def test_a_failed_check_with_an_overflow() -> None:
    """Likely without a reference, possible for a hash, proven if the exact result passes, else cleared."""
    exact: list[list[bool] | None] = [None, None, [False, True, False], [False] * 3]
    expected = ("likely", "possible", "proven", "")
    for modular, compared, sure in zip((False, True, False, False), exact, expected, strict=True):
        more = [{"event": "compared_form", "form": "int64", "equal": compared}] if compared else []
        case = interpreted(AGREES, {**OVERFLOW, "modular": modular}, *more)
        (found,) = by("value_constraints.detect_form", case)
        assert (found.category, found.guilty.name) == ("wrong_output", "aten.mul.Tensor")
        assert len(bystanders([found], case)) == (not sure)
        assert not sure or confidence(found, case) == sure
    for passes in (True, False):  # package and program differ, as two runs of the program do
        form = {"event": "compared_form", "form": "int64", "equal": [False, passes, False]}
        case = interpreted({**AGREES, "equal": False}, OVERFLOW, form)
        made = by("value_constraints.detect_form", case)
        assert [confidence(each, case) for each in made] == ["proven"] * passes
