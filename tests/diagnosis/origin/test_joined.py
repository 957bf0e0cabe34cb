"""The origin of a bad value in a diagnosis: observation, suspects, intervention, whole diagnoses."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.from_origin import with_origin
from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, SideEffects
from mcp_server.diagnosis.observe.find_origin import faults, made_good
from mcp_server.diagnosis.origin import Condition, OffendingElement, Operation, Origin
from mcp_server.diagnosis.origin.find import Fault, find_origin
from mcp_server.diagnosis.origin.values import ProbedValues, Tensor
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confirmed_by, fix_of
from mcp_server.model import Component, Fix, ModelLocation
from mcp_server.package.assertion import read_assertion
from mcp_server.package.launches import Argument, Launch
from tests.conftest import Zoo
from tests.diagnosis.support import failing, index_text, package_case, suspect, trial, worker_run
from tests.support.programs import build, recorded
from tests.support.tools import of_call
from tests.zoo.names import thorough

LEAVES = [inputs.Leaf(0, "args[0]"), inputs.Leaf(1, "args[1]")]


def element(value: object, *place: int) -> OffendingElement:
    return OffendingElement(kind="input", label="args[1]", index=list(place), value=str(value), input_index=1)


def origin(*elements: OffendingElement, condition: Condition | None = None, **more: object) -> Origin:
    known = {"launch_index": 2, "kernel": "k", "fault_launch": 4, "expression": "x * 3 - 2"}
    found = {"elements": elements, "element_count": len(elements), "condition": condition}
    return Origin.model_validate({**known, **more, **found})


def tensor(*rows: list[int] | list[bool]) -> Tensor:
    flat: list[int] = list(itertools.chain(*rows))
    width = len(rows[0])
    return Tensor((len(rows), width), (width, 1), lambda place: flat[place])


ABOVE = Condition(text="the expression is 40 for x >= 14", variable="x", label="args[1]", low=14, good=13)


CLOSED = tensor([True, False], [False, False], [False, False])
MADE_GOOD = {
    "one limit": (
        *(origin(element(17, 0, 1), condition=ABOVE), tensor([3, 17])),
        *("args[1] = args[1].clamp(max=13)", 1),
    ),
    "others are beyond it and good": (
        *(origin(element(17, 0, 1), condition=ABOVE), tensor([30, 17])),
        *("args[1][0, 1] = 13, then args[1] = args[1].clamp(max=13)", 2),
    ),
    "the condition does not hold": (
        *(origin(element(17, 0, 1), element(3, 0, 0), condition=ABOVE), tensor([30, 17])),
        *("args[1][0, 1] = 13, then args[1] = args[1].clamp(max=13)", 2),
    ),
    "one element of each masked row": (
        *(origin(element(False, 1, 0), element(False, 1, 1)), CLOSED),
        *("args[1][~args[1].any(-1), 0] = True", 2),
    ),
    "no good value": (origin(element(9.75, 2, 0)), None, "", 0),
    "no elements": (origin(), None, "", 0),
}


@pytest.mark.parametrize(("found", "held", "code", "changes"), MADE_GOOD.values(), ids=MADE_GOOD)
def test_what_makes_the_elements_good(found: Origin, held: Tensor | None, code: str, changes: int) -> None:
    """First only elements behind the fault get the nearest good value, then all that are as bad."""
    made = made_good(found, LEAVES, lambda _: held)
    assert ", then ".join(each.after_code for each in made) == code
    assert sum(len(each.changes) for each in made) == changes


ACOS = Operation(
    launch_index=2,
    op="acos",
    family="acos",
    text="acos(-1.0000001)",
    code="torch.acos(x)",
    guarded_code="torch.acos(x.clamp(-1, 1))",
    action="clamp the argument of acos to -1..1",
)


def guard(key: str) -> Intervention:
    """The guard of that operation, as if its kernel were made."""
    code: Any = {"before_code": ACOS.code, "after_code": ACOS.guarded_code, "action": ACOS.action}
    return Intervention(key, Kind.KERNEL, "the call with a guard", **code)


def test_the_fix_is_the_guard_that_ran_in_the_line_of_the_model(zoo: Zoo) -> None:
    """If one line has the operation once, that line is guarded. The fix in words is what ran, too."""
    case = package_case(zoo("ranker"))
    case.origin = origin(operation=ACOS, explanation="acos(-1.0000001) is nan, outside -1..1")
    case.origin_changes = [guard("launch:2:guard-acos")]
    lines = [ModelLocation(file="m", line=n, code=c) for n, c in enumerate(("a = torch.acos(c)", ""))]
    party = Component(kind="kernel", name="k", model_locations=lines, launch_index=2)
    plain = replace(suspect("k", "nan_or_inf"), guilty=party)
    joined = with_origin(plain, case, 4)
    case.trials["launch:2:guard-acos"] = trial(case.origin_changes[0], Effect.GONE)
    fix = fix_of(joined, case)
    assert fix is not None and fix.ran is None and fix.text == ACOS.action
    assert (fix.before, fix.after) == ("a = torch.acos(c)", "a = torch.acos(c.clamp(-1, 1))")
    bare = replace(plain, guilty=plain.guilty.model_copy(update={"model_locations": []}))
    fix = fix_of(with_origin(bare, case, 4), case)
    assert fix is not None and (fix.before, fix.after) == (ACOS.code, ACOS.guarded_code)


def test_the_line_that_made_nan_is_named_and_not_its_caller() -> None:
    """A softmax makes NaN from a mask's -inf. The line that calls its layer has a norm, which subtracts."""
    lines = [ModelLocation(file="m", line=n, code=c) for n, c in enumerate(("softmax(s)", "", "norm(x)"))]
    softmax, mask, caller = ({"file": "m", "line": n, "function": "f", "code": ""} for n in range(3))
    bad = {"event": "node_non_finite", "op": "aten", "masked": False, "node": "mask"}
    case = failing(DiagnosisState(None))
    nan = {"node": "w", "nan": True, "bad_inputs": ["mask"], "stack": [softmax, caller]}
    case.interpreted = worker_run({**bad, "nan": False, "bad_inputs": [], "stack": [mask, caller]}, bad | nan)
    case.origin = origin(operator="sub", result="value")
    party = Component(kind="kernel", name="k", launch_index=2, model_locations=lines)
    assert with_origin(replace(suspect(), guilty=party), case, 4).guilty.model_locations == lines[:1]


def test_a_guard_that_changes_what_was_not_at_fault_is_not_advised(zoo: Zoo) -> None:
    """The advice stays, with what the guard did to other elements."""
    case = package_case(zoo("ranker"))
    case.origin, change = origin(operation=ACOS), guard("guard")
    case.origin_changes = [change]
    plain = replace(suspect("k", "nan_or_inf"), fix=Fix(text="guard it"))
    case.trials["guard"] = replace(trial(change, Effect.GONE), side_effects=SideEffects(elements=3))
    fix = fix_of(with_origin(plain, case, 4), case)
    assert fix is not None and (fix.text, fix.after) == ("guard it", None)
    confirmed = confirmed_by(with_origin(plain, case, 4), case)
    assert confirmed is not None and "3 output elements" in confirmed.side_effects


def test_an_index_that_a_table_of_the_package_holds_is_not_the_callers(zoo: Zoo) -> None:
    """The table is named, with the element that selects from it."""
    case = package_case(zoo("ranker"))
    held = OffendingElement(kind="constant", label="remap", index=[7], value="-1")
    chosen = element(7, 0, 3).model_copy(update={"kind": "selector"})
    case.origin = origin(held, chosen, launch_index=None, result="index", bad_value="-1")
    found = with_origin(suspect("k", "index_out_of_bounds"), case, 4)
    assert (found.guilty.kind, found.guilty.name) == ("constant", "remap") and "caller" not in found.summary
    assert "remap[7] = -1, a constant of the package, selected by args[1][0, 3] = 7" in found.summary


@thorough
def test_of_many_launches_the_one_that_was_seen_to_fail_counts() -> None:
    """Every layer has the check. Its launches are candidates, until the origin names one."""
    package = build("layers")
    case = failing(package_case(package), index_text(package))
    several = list(detect(case))
    assert len(several) > 1 and all(each.weak for each in several)
    assert len(faults(case)) == 12
    value: Any = {"bad_value": "16", "allowed": "0 to 15", "result": "index"}
    case.origin = origin(element(70, 1), launch_index=16, fault_launch=16, **value)
    (found,) = [each for each in detect(case) if not each.weak]
    assert found.crashing is not None and found.crashing.launch_index == 16
    assert not found.weak and found.observed and found.guilty.elements == ["args[1][1] = 70"]


@pytest.mark.slow
def test_an_index_that_a_launch_computed_is_proven(tmp_path: Path) -> None:
    """Through a sort and a gather, the index leads to its launch, expression, element and change."""
    found = of_call(tmp_path, build("carried"), "bad")
    assert (found.category, found.confidence) == ("index_out_of_bounds", "proven"), found.summary
    assert found.guilty is not None and found.guilty.launch_index == 2
    assert (found.guilty.elements, found.guilty.expression) == (["args[1][2, 5] = 17"], "x * 3 - 2")
    assert found.fix is not None and "clamp" not in (found.fix.after or "") and found.fix.ran is None
    assert found.confirmed is not None and not found.confirmed.side_effects, "it returned nothing before"


@thorough
def test_an_expression_that_leaves_its_table_is_corrected(tmp_path: Path) -> None:
    """The kernel is the cause, and its expression the fix. The input's element shows the same."""
    found = of_call(tmp_path, build("buckets"), "bad")
    assert (found.category, found.confidence) == ("index_out_of_bounds", "proven"), found.summary
    assert found.guilty is not None and found.guilty.kind == "kernel"
    assert found.guilty.elements == ["args[1][2] = 731"] and (found.guilty.value or "").startswith("64 ")
    assert found.fix is not None and found.fix.ran is None and found.confirmed is not None
    assert any("args[1] above 499 replaced by 499" in each.fact for each in found.evidence)


@thorough
def test_a_fully_masked_row_is_proven(tmp_path: Path) -> None:
    """The mask's elements are named. With one of them set, no other row changes."""
    found = of_call(tmp_path, build("masked"), "bad")
    assert (found.category, found.confidence) == ("nan_or_inf", "proven"), found.summary
    assert found.guilty is not None and found.guilty.elements[0] == "args[1][2, 0] = False"
    assert found.confirmed is not None and found.confirmed.what == "args[1][2, 0] set to True"
    assert found.fix is not None and "softmax" in found.fix.text and found.fix.after is None
    assert found.confirmed.side_effects == "no output element that was finite changed"


@thorough
def test_a_weight_of_zeros_is_the_cause_of_a_divisor_that_it_makes_zero(tmp_path: Path) -> None:
    """The weight is named, not the division in which the zero shows."""
    found = of_call(tmp_path, build("zeroed"), "bad")
    assert (found.category, found.confidence) == ("constants", "proven"), found.summary
    assert found.guilty is not None and found.guilty.name == "weight" and len(found.causes) == 1
    assert "holds only zeros, so that 0 / 0 is nan" in found.summary


# Recorded CUDA packages.


class KnownValues(ProbedValues):
    """Tensors of a call by launch, variable and phase."""

    def __init__(
        self, tensors: Mapping[tuple[int, str, Any], torch.Tensor], sizes: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(())
        self.tensors, self.sizes = tensors, sizes or {}

    def tensor(self, launch: int, argument: Argument, when: Any) -> Tensor | None:
        known = self.tensors.get((launch, argument.target or "", when))
        if known is None:
            return None
        flat = known.flatten().tolist()
        return Tensor(tuple(known.shape), tuple(known.stride()), lambda place: flat[place])

    def scalars(self, launch: Launch) -> Mapping[str, int]:
        return {**self.sizes, **super().scalars(launch)}


def test_a_computed_index(tmp_path: Path) -> None:
    """The device assertion of a Triton kernel leads to `x * 2 + 1`, and to the id that is too large."""
    view = recorded("computed_index", tmp_path)
    ids = torch.arange(12)
    ids[7] = 30
    assertion = read_assertion("Assertion `index out of bounds: 0 <= tmp8 < 40` failed.")
    assert assertion is not None
    (candidate,) = view.tracer.trace(assertion)
    known = KnownValues({(candidate.launch.index, "arg3_1", "before"): ids}, {"ynumel": 12})
    found = find_origin(view, Fault.of_candidate(candidate), known)
    assert found is not None
    assert (found.expression, found.bad_value) == ("x * 2 + 1", "61")
    assert found.allowed == "0 to 39 (the rows of table.weight)"
    assert [each.text() for each in found.elements] == ["args[0][7] = 30"]
    assert found.condition is not None
    assert (found.condition.low, found.condition.good) == (20, 19)


@thorough
def test_an_index_that_its_own_launch_wrote() -> None:
    """The launch reads the ids from memory in which it put them together: the input's element is named."""
    package = build("joined")
    view, assertion = package_case(package).view, read_assertion(index_text(package))
    assert view is not None and assertion is not None
    given = zip(view.package.inputs, torch.load(package.with_name("joined.bad.pt")), strict=True)
    known = KnownValues({(0, each.name, "before"): value for each, value in given})
    found = find_origin(view, Fault.of_candidate(view.tracer.trace(assertion)[0]), known)
    assert found is not None
    assert (found.expression, found.bad_value) == ("int(x * 0.7)", "84")
    assert [each.text() for each in found.elements] == ["args[1][2] = 120"]


def test_a_logarithm_of_a_negative_number(tmp_path: Path) -> None:
    """The logarithm of a fused kernel makes the NaN, and not the product. It is finite only above zero."""
    view = recorded("logarithm", tmp_path)
    launch = next(each for each in view.wrapper.launches if "log" in each.kernel)
    tensors = {a.name: a.target or "" for a in launch.tensors}
    scale = torch.rand(8, 16, generator=torch.Generator().manual_seed(0)) + 0.1
    scale[2, 3] = -1.0
    result = torch.zeros(8, 16)
    result[2, 3] = float("nan")
    known = KnownValues(
        {
            (launch.index, tensors["in_ptr0"], "before"): torch.ones(16),
            (launch.index, tensors["in_out_ptr0"], "before"): torch.ones(8, 16),
            (launch.index, tensors["in_ptr1"], "before"): scale,
            (launch.index, tensors["in_out_ptr0"], "after"): result,
        },
        {"xnumel": 128},
    )
    fault = Fault(launch.index, "value", buffer=tensors["in_out_ptr0"], element=(2, 3), when="after")
    found = find_origin(view, fault, known)
    assert found is not None
    assert found.explanation == "log(-1) is nan"
    assert found.operation is not None and found.operation.launch_index == launch.index
    assert (found.operation.family, found.operation.text) == ("log", "log(-1)")
    assert "log(" in found.expression and found.bad_value == "nan"
    assert found.condition is not None and found.condition.text.startswith("the expression is not finite for")
    assert found.condition.high == 0


@pytest.mark.parametrize("bad", [float("nan"), 1.0])
def test_a_sum_of_atomic_additions(bad: float, tmp_path: Path) -> None:
    """Row 5 is the sum of two values. The one that is not finite is named."""
    view = recorded("scatter", tmp_path)
    launch = next(e for e in view.wrapper.launches if "index_put" in e.kernel and len(e.reads) > 1)
    tensors = {a.name: a.target or "" for a in launch.tensors}
    added, result = torch.ones(8), torch.ones(12)
    added[3], result[5] = bad, float("nan")
    known = KnownValues(
        {
            (launch.index, tensors["in_ptr0"], "before"): torch.tensor([0, 5, 2, 5, 4, 1, 6, 7]),
            (launch.index, tensors["in_ptr1"], "before"): added,
            (launch.index, tensors["out_ptr0"], "after"): result,
        },
        {"xnumel": 8},
    )
    fault = Fault(launch.index, "value", buffer=tensors["out_ptr0"], element=(5,), when="after")
    found = find_origin(view, fault, known)
    if math.isfinite(bad):
        assert found is None
    else:
        assert found is not None and found.bad_value == "nan"
        assert [(each.index, each.value) for each in found.elements] == [([3], "nan")]
