"""Detectors of calls that do not fit their package: mismatches, fixed arguments, refused guards."""

from dataclasses import replace

import pytest

from mcp_server.diagnosis.causes.input_mismatch import guarded
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect, SideEffects
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence, confirmed_by, fix_of
from mcp_server.memory_faults import Fault, MissedArgument
from mcp_server.model import Category, Cost, Fix
from mcp_server.package.exported import ExportedFacts
from mcp_server.package.mismatch import GivenTensor, Mismatch
from mcp_server.tools.check_devices import Given
from mcp_server.tools.locate_fault import LocatedFault
from mcp_server.worker.protocol import Change
from mcp_server.worker.report import TensorFacts
from tests.conftest import Zoo
from tests.diagnosis.support import (
    GOOD_IDS,
    GUARD,
    REFERENCE,
    by,
    called,
    failing,
    from_eager,
    package_case,
    run,
    trial,
    worker_run,
)

X, SCALE = GivenTensor("float32", (8, 16)), GivenTensor("float32", (8, 16))


CHANGES: tuple[tuple[GivenTensor, Category, Change], ...] = (
    (replace(X, dtype="float64"), "input_mismatch", Change("cast", input=0, dtype="float32")),
    (replace(X, stride=(1, 8)), "input_mismatch", Change("contiguous", input=0)),
    (replace(X, device="cuda:0"), "device_mismatch", Change("move", input=0, device="cpu")),
    (replace(X, shape=(8, 15)), "input_mismatch", Change("resize", input=0, dim=1, size=16)),
    (replace(X, shape=(65, 16)), "shape_out_of_range", Change("resize", input=0, dim=0, size=64)),
)


def test_a_mismatch_brings_the_test_that_mends_it(zoo: Zoo) -> None:
    """Each kind of mismatch names its input and the change that removes it. A matching input has none."""
    for given, category, change in CHANGES:
        case = failing(package_case(zoo("logarithm"), given, SCALE))
        found = [h for h in by("input_mismatch.detect_contract", case) if h.guilty.input_index == 0]
        (one,) = found
        assert (one.category, one.intervention and one.intervention.changes[0]) == (category, change)
    assert list(by("input_mismatch.detect_contract", failing(package_case(zoo("ranker"), GOOD_IDS)))) == []


def test_an_image_that_was_reshaped_is_permuted(zoo: Zoo) -> None:
    """Its channels come last in memory. Reshaped back and permuted, it gives the expected outputs."""
    case = package_case(zoo("logarithm"))
    case.given = Given((), ("args[0]", "args[1]"))
    case.leaves = [TensorFacts(dtype="float32", shape=[1, 4, 8, 6], min=-1.0, max=1.0), TensorFacts()]
    case.runs["plain"] = run("plain", "", called(), REFERENCE)
    (found,) = by("input_mismatch.detect_preparation", case)
    assert found.intervention is not None and found.weak
    reshaped, reordered = found.intervention.changes
    assert (reshaped.shape, reordered.order) == ((1, 8, 6, 4), (0, 3, 1, 2))


def test_the_packages_own_check_is_a_second_observation(zoo: Zoo) -> None:
    """The package's check or the program's refusal confirms a mismatch, if it names the same input."""
    case = failing(package_case(zoo("ranker"), replace(GOOD_IDS, dtype="int32")))
    for place, confirmed in ((1, False), (0, True)):
        text = f"Error: input_handles[{place}]: unmatched dtype, expected: 4(at::kLong), but got: 3"
        case.runs["checked"] = run("checked", text)
        (found,) = by("input_mismatch.detect_contract", case)
        assert ("run_with_input_checks" in found.steps) == confirmed
    case.interpreted = worker_run({**GUARD, "text": "Guard failed: dtype"})
    assert list(from_eager(case)) == []
    (found,) = by("input_mismatch.detect_contract", case)
    assert "interpret" in found.steps
    assert "self.table(ids)" in found.guilty.model_locations[0].code


def test_a_size_that_the_model_itself_refuses_is_not_allowed_by_a_wider_range(zoo: Zoo) -> None:
    """If an operator of the exported program raises for the size, its line is shown, and not a wider Dim."""
    case = failing(package_case(zoo("ranker"), replace(GOOD_IDS, shape=(65, 6))))
    (found,) = by("input_mismatch.detect_contract", case)
    assert found.fix is not None and "export again with a range that includes 65" in found.fix.text
    line = {"file": "rank.py", "line": 11, "function": "forward", "code": "torch.topk(s, self.k)"}
    raised = {"event": "node_raised", "node": "topk", "op": "aten.topk.default", "stack": [line]}
    case.interpreted = worker_run({**raised, "text": "selected index k out of range", "type": "RuntimeError"})
    (found,) = by("input_mismatch.detect_contract", case)
    assert found.fix is not None and (found.fix.before, found.fix.after) == (line["code"], None)
    assert "rank.py:11, which rejects 65" in found.fix.text


def test_inputs_that_are_alike_are_tried_in_each_others_place(zoo: Zoo) -> None:
    """If outputs are wrong, similar inputs are exchanged: proven if that gives the expected outputs."""
    case = package_case(zoo("logarithm"), X, SCALE)
    assert not by("input_mismatch.detect_exchanged", case), "nobody said that the outputs are wrong"
    case.runs["plain"] = run("plain", "", called(), REFERENCE)
    (found,) = by("input_mismatch.detect_exchanged", case)
    assert found.weak and found.intervention is not None
    assert found.intervention.changes == (Change("permute", order=(1, 0)),)
    for effect, sure in ((Effect.GONE, ["proven"]), (Effect.SAME, [])):
        case.trials[found.intervention.key] = trial(found.intervention, effect)
        assert [confidence(each, case) for each in by("input_mismatch.detect_exchanged", case)] == sure
    other = package_case(zoo("logarithm"), X, replace(SCALE, dtype="float64"))
    other.runs["plain"] = run("plain", "", called(), REFERENCE)
    assert not by("input_mismatch.detect_exchanged", other)


def test_inputs_of_one_wrong_dtype_are_cast_together(zoo: Zoo) -> None:
    """With only one input cast, the call would still fail because of the other, and clear a wrong input."""
    wide = [replace(each, dtype="float64") for each in (X, SCALE)]
    found = list(by("input_mismatch.detect_contract", failing(package_case(zoo("logarithm"), *wide))))
    tried = {each.intervention.key: each.intervention for each in found if each.intervention is not None}
    (made,) = tried.values()
    assert len(found) == 2 and made.changes == tuple(Change("cast", n, dtype="float32") for n in (0, 1))


@pytest.mark.parametrize(("rows", "sure"), [(65, True), (1, False)])
def test_a_bad_access_makes_only_a_size_above_its_range_sure(zoo: Zoo, rows: int, sure: bool) -> None:
    """Memory read past its end is a sign of a size that is too large; past that input, of any wrong size.

    Until something fails, such a size is weak and harmless, because compiled ranges give false alarms.
    """
    case = package_case(zoo("ranker"), replace(GOOD_IDS, shape=(rows, 6)))
    case.mismatches = tuple(m.model_copy(update={"severity": "suspicious"}) for m in case.mismatches)
    (found,) = by("input_mismatch.detect_contract", case)
    assert found.weak and not found.harmful
    fault = Fault(tool="asan", kind="heap-buffer-overflow", text="READ of size 4", kernel="k")
    seen = {"found": True, "tool": None, "summary": "", "instrumented": False, "cost": Cost()}
    case.located = LocatedFault.model_validate({**seen, "fault": fault})
    (found,) = by("input_mismatch.detect_contract", case)
    assert ("locate_fault" in found.steps, not found.weak) == (sure, sure)
    name = case.compiled_inputs[0].name
    missed = MissedArgument(parameter="in_ptr1", variable=name, label="input 0", kind="input")
    case.located = case.located.model_copy(update={"fault": fault.model_copy(update={"missed": missed})})
    (found,) = by("input_mismatch.detect_contract", case)
    assert "locate_fault" in found.steps and not found.weak
    case.runs |= {"script": run("script"), "plain": run("plain")}  # it succeeded, and reported nothing
    (found,) = by("input_mismatch.detect_contract", case)
    assert found.harmful


def test_a_cast_to_what_was_compiled_is_a_fix_though_right_outputs_are_others(zoo: Zoo) -> None:
    """All outputs of the failing call were computed from bytes of another dtype. This excuses only a cast."""
    case = failing(package_case(zoo("ranker"), replace(GOOD_IDS, dtype="float64")))
    (found,) = by("input_mismatch.detect_contract", case)
    assert found.intervention is not None and found.intervention.keeps_values
    gone = replace(trial(found.intervention, Effect.GONE), side_effects=SideEffects(elements=6))
    case.trials[found.intervention.key] = gone
    fix, confirmed = fix_of(found, case), confirmed_by(found, case)
    assert fix is not None and fix.ran is not None
    assert confirmed is not None and confirmed.side_effects.startswith("6 other output elements changed as")
    other = replace(found, category="nan_or_inf")
    fix = fix_of(other, case)
    assert fix is not None and fix.ran is None


@pytest.mark.parametrize(
    ("rows", "passed", "sure"), [(65, True, "proven"), (65, None, "possible"), (1, True, "proven")]
)
def test_a_call_within_the_range_proves_it(zoo: Zoo, rows: int, passed: bool | None, sure: str) -> None:
    """A batch above its range is cut, and both ends must pass. A batch below it is filled up."""
    case = failing(package_case(zoo("ranker"), replace(GOOD_IDS, shape=(rows, 6))))
    case.mismatches = tuple(m.model_copy(update={"severity": "suspicious"}) for m in case.mismatches)
    (before,) = by("input_mismatch.detect_contract", case)
    assert before.intervention is not None
    if passed is not None:
        for tried in (before.intervention, *before.parts):
            case.trials[tried.key] = trial(tried, Effect.GONE if passed else Effect.SAME)
    (found,) = by("input_mismatch.detect_contract", case)
    assert confidence(found, case) == sure


def features(*order: str) -> Mismatch:
    paths = [f"args[0][{name!r}]" for name in order]
    expected = ["args[0]['age']", "args[0]['item']", "args[0]['user']"]
    return Mismatch(
        category="input_mismatch",
        aspect="structure",
        severity="fatal",
        sentence="the structure differs",
        expected=", ".join(expected),
        got=", ".join(paths),
        fix=Fix(text="pass the exported keys"),
    )


@pytest.mark.parametrize(
    ("order", "expected"), [("user age item", [1, 2, 0]), ("age item other", None)], ids=["turned", "renamed"]
)
def test_a_wrong_order_is_tried_in_the_right_one(zoo: Zoo, order: str, expected: list[int] | None) -> None:
    """Leaves in another order are permuted back. Other names cannot be corrected."""
    case = package_case(zoo("logarithm"))
    case.mismatches = (features(*order.split()),)
    (found,) = detect(case)
    order_of = found.intervention.changes[0].order if found.intervention is not None else None
    assert order_of == (None if expected is None else tuple(expected))


def test_a_tensor_where_the_export_had_none(zoo: Zoo) -> None:
    """A mask that was None at export is named, and not only the number of inputs."""
    case = package_case(zoo("ranker"), GOOD_IDS, X)
    case.exported = ExportedFacts(fixed=((1, None),), names=("ids", ""))
    case.leaves = [TensorFacts(kind="tensor"), TensorFacts(kind="tensor", dtype="bool", shape=[8, 6])]
    case.given = Given((GOOD_IDS, X), ("args[0]", "args[1]"))
    (found,) = by("fixed_arguments.detect_fixed_arguments", failing(case))
    assert (found.guilty.name, found.guilty.value) == ("args[1]", "a tensor bool[8, 6] (exported: None)")
    assert [m.aspect for m in case.mismatches] == ["count"]
    assert not by("input_mismatch.detect_contract", case)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("Guard failed: feats['user'].size()[1] % 4 == 0", (1, "args[1]['user']", 1, 9)),
        (
            "Guard failed: 2 * feats['user'].size()[1] - feats['user'].size()[1] > 5",
            (1, "args[1]['user']", 1, 9),
        ),
        ("Guard failed: x.size()[0] == feats['user'].size()[1]", None),
        ("Guard failed: other.size()[0] > 2", None),
        ("Guard failed: x.dtype == torch.float32", None),
    ],
)
def test_the_dimension_that_a_guard_is_about(text: str, place: tuple[int, str, int, int] | None) -> None:
    """A guard on the size of one input names the input as the caller does, with its size in this call."""
    case = DiagnosisState(None)
    case.exported = ExportedFacts(names=("x", "", "feats_user"))
    case.given = Given((), ("args[0]", "args[2]", "args[1]['user']"))
    case.leaves = [TensorFacts(shape=[3]), TensorFacts(), TensorFacts(shape=[3, 9])]
    found = guarded(text, case)
    party, size = found if found is not None else (None, None)
    seen = (party.input_index, party.name, party.dim, size) if party is not None else None
    assert seen == place


@pytest.mark.parametrize(("op", "level"), [("own.bin.default", "BAD_VALUE"), ("aten.sort", "FAULT_SITE")])
def test_an_operator_of_the_user_computes_its_index(op: str, level: str) -> None:
    """It is as close to the root cause as the assertion that ATen prints, which names no operator."""
    case = failing(DiagnosisState(None))
    text = "aten.scatter_add_.default: index 20 at [2, 17] is out of bounds for dimension 1 with size 20"
    case.interpreted = worker_run({**GUARD, "event": "node_raised", "op": op, "overflowed": [], "text": text})
    (found,) = from_eager(case)
    assert (found.guilty.name, found.level.name) == (op, level)


GUARDS: list[tuple[str, Category]] = [
    ("Guard failed: x.size()[0] <= 64", "shape_out_of_range"),
    ("Guard failed: x.size()[0] % 2 == 0", "shape_out_of_range"),
    ("Guard failed: x.dtype == torch.float32", "input_mismatch"),
]


@pytest.mark.parametrize(("text", "category"), GUARDS)
def test_a_refused_guard_names_its_category(text: str, category: Category) -> None:
    """A guard on sizes means shape_out_of_range, any other guard a mismatch."""
    case = failing(DiagnosisState(None))
    case.interpreted = worker_run({**GUARD, "text": text})
    (found,) = from_eager(case)
    assert found.category == category and found.steps == {"interpret"}
