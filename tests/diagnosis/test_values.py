"""Detectors for values of a call: eager mode, watched launches, located accesses."""

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.call_seen import CallSpec
from mcp_server.diagnosis.causes.nan_or_inf import first_made, guard_fix
from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.launches import silent_suspicion
from mcp_server.diagnosis.origin import Origin
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import confidence
from mcp_server.diagnosis.words import health_summary
from mcp_server.logs.log import read_log
from mcp_server.model import Artifact, Cost, PackageWorkload
from mcp_server.package.view import view_package
from mcp_server.runtime.context import decode
from mcp_server.tools.kernel_io import FirstBad, KernelIO
from mcp_server.tools.locate_fault import LocatedFault
from mcp_server.tools.trace_launches import Trace
from mcp_server.worker.report import OddElement
from tests.conftest import Zoo
from tests.diagnosis.support import (
    DIFFERS,
    REFERENCE,
    by,
    called,
    capture,
    cuda_case,
    failing,
    from_eager,
    package_case,
    phase,
    run,
    traced,
    trial,
    worker_run,
)
from tests.memory_faults.support import joined
from tests.support.programs import recorded
from tests.worker.support import here

CHECK = """Traceback (most recent call last):
  File "/app/serve.py", line 9, in main
    raise RuntimeError("not the model")
RuntimeError: not the model"""


def mismatch(op: str) -> dict[str, Any]:
    layout = {"shape": [4, 8], "dtype": "float32", "device": "cpu"}
    promised, returned = {**layout, "stride": [8, 1]}, {**layout, "stride": [1, 4]}
    event = {"event": "fake_mismatch", "op": op, "node": "n", "stack": []}
    return {**event, "promised": promised, "returned": returned}


def test_a_fake_function_that_disagrees() -> None:
    """A user's operator is named with both layouts; torch's own and higher-order operators are not."""
    case = failing(DiagnosisState(None))
    case.interpreted = worker_run(*map(mismatch, ("aten.t.default", "<cond>", "mine.op.default")))
    (found,) = by("custom_op.detect_fake_results", case)
    assert found.guilty.name == "torch.ops.mine.op.default" and found.category == "custom_op"
    assert "stride [8, 1]" in found.summary and "stride [1, 4]" in found.summary
    assert found.intervention is not None, "the promise kept in one run decides"


@pytest.mark.parametrize("refused", [False, True])
def test_a_departure_is_harmful_where_the_script_found_the_numbers_wrong(zoo: Zoo, refused: bool) -> None:
    """If only package and program differ, it is no fault yet, but needs a closer look."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called(), *([REFERENCE] if refused else []))
    if refused:
        case.runs["script"] = case.runs["plain"]
    case.interpreted = worker_run(DIFFERS)
    (found,) = from_eager(case)
    assert (found.category, found.harmful) == ("wrong_output", refused) and "0.5" in found.summary
    assert refused or silent_suspicion(case)


def watched(zoo: Zoo, **facts: Any) -> DiagnosisState:
    """Make a call that gave NaN, and whose launches were watched."""
    case = package_case(zoo("logarithm"))
    case.runs["plain"] = run("plain", "", called(nan=1))
    first = {"what": "non_finite", "argument": "buf1", "kernel": "k", "element": OddElement(value="nan")}
    artifact = Artifact(uri="u", path=Path("p"), bytes=0, what="log")
    bad = FirstBad.model_validate({**first, "summary": "it", **facts})
    case.kernel_io = KernelIO(returned=True, first_bad=bad, log=artifact, cost=Cost())
    return case


def test_the_launch_that_made_nan_is_guilty(zoo: Zoo) -> None:
    """A kernel made NaN of good inputs. It is named with the model inputs that it depends on."""
    (found,) = detect(watched(zoo, kind="kernel", name="k", launch=1))
    assert (found.guilty.kind, found.guilty.launch_index) == ("kernel", 1)
    assert "dump_kernel_io" in found.steps and found.intervention is None
    assert any("args[1]" in evidence.fact for evidence in found.evidence)


def test_an_index_that_a_launch_computed_is_told_with_the_inputs_behind_it(zoo: Zoo) -> None:
    """An example is a running total: no element of the input is out of bounds by itself."""
    facts = {"what": "outside", "kind": "kernel", "name": "cumsum", "element": OddElement(value="261")}
    case = watched(zoo, **facts, launch=1)
    (found,) = detect(case)
    assert found.category == "index_out_of_bounds" and found.guilty.name == "cumsum"
    assert case.view is not None and all(label in found.summary for label in case.view.inputs_behind(1))


def test_nan_that_a_model_writes_itself_may_be_a_mark(zoo: Zoo) -> None:
    """It is a fault of a program that fails because of it, but not of a package alone."""
    case = watched(zoo, kind="kernel", name="k", launch=1)
    why = "the model itself writes nan where x is False"
    case.origin = Origin(launch_index=1, kernel="k", fault_launch=1, expression="x", explanation=why)
    (found,) = by("nan_or_inf.detect_bad_values", case)
    assert found.weak and why in found.summary and "it may be intended" in found.settle
    case.log = read_log(["AssertionError: Tensor-likes are not close!"])
    assert [found.weak for found in by("nan_or_inf.detect_bad_values", case)] == [False]


def test_a_program_that_succeeds_with_nan_of_its_own_model_is_healthy(zoo: Zoo) -> None:
    """Even if NaN is the symptom, the verdict only says what the model writes, and accuses nothing."""
    case = watched(zoo, kind="kernel", name="k", launch=1)
    case.symptom = Symptom(seen="nan")
    case.runs["script"] = run("script")
    case.capture = capture(calls=[phase(1, load=0, thread=1, file=Path(__file__))])
    computed, why = "0 / 0 is nan", "the model itself writes nan where x is False"
    for said, healthy in ((computed, False), (why, True)):
        case.origin = Origin(launch_index=1, kernel="k", fault_launch=1, expression="x", explanation=said)
        assert case.nan_accepted is healthy, said
    (found,) = by("nan_or_inf.detect_bad_values", case)
    assert not found.harmful and f"T{why[1:]}." in health_summary(case)


@pytest.mark.parametrize(
    ("eager", "weak", "harmful", "healthy"),
    [(None, True, True, False), (True, True, True, True), (False, False, True, False)],
)
def test_nan_after_a_good_end(zoo: Zoo, eager: bool | None, weak: bool, harmful: bool, healthy: bool) -> None:
    """Open if eager mode has NaN or was not run. A fault if eager mode has none."""
    case = watched(zoo, kind="kernel", name="k", launch=1)
    case.runs["script"] = run("script")
    case.capture = capture(calls=[phase(1, load=0, thread=1, file=Path(__file__))])
    if eager is not None:
        case.interpreted = worker_run({"event": "compared", "equal": eager})
    (found,) = by("nan_or_inf.detect_bad_values", case)
    assert (found.weak, found.harmful, case.healthy) == (weak, harmful, healthy)
    assert not healthy or "NaN in its outputs" in health_summary(case)


def test_a_program_that_ended_well_accepts_the_nan_of_its_input(zoo: Zoo) -> None:
    """Only if the call without that NaN returned finite outputs, and never if NaN is the symptom."""
    case = watched(zoo, kind="input", name="input 1 (args[1])", launch=1)
    case.runs["script"] = run("script")
    case.capture = capture(calls=[phase(1, load=0, thread=1, file=Path(__file__))])
    (found,) = by("nan_or_inf.detect_bad_values", case)
    assert (found.weak, case.healthy) == (True, False) and found.intervention is not None
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    summary = health_summary(case)
    assert [case.healthy, "all from the NaN in input 1 (args[1])" in summary] == [True, True]
    case.symptom = Symptom(seen="nan")
    assert not case.nan_accepted


def located(name: str, directory: Path, *, with_values: bool = True) -> Suspect:
    """The suspect for the bad access that memcheck saw in a recorded program."""
    fault = joined(name, directory, with_values=with_values)
    case = failing(DiagnosisState(PackageWorkload(package=directory, inputs=Path("inputs.pt"))))
    case.call = CallSpec("run", {"inputs": "inputs.pt"}, directory, Path("inputs.pt"))
    case.package = view_package(directory).package
    case.located = LocatedFault(
        found=True, tool=None, summary="", fault=fault, instrumented=True, cost=Cost()
    )
    (found,) = by("illegal_memory_access.detect_memory", case)
    assert confidence(found, case) != "proven"
    return found


@pytest.mark.parametrize("name", ["read_far", "read_negative"])
def test_an_index_from_an_input_is_clamped(tmp_path: Path, name: str) -> None:
    """If the limit is known, a clamp of the input is the test. Until it ran, nothing is proven.

    The input is named as in the user's code, in the command as well.
    """
    found = located(name, tmp_path)
    assert found.guilty.kind == "input" and found.guilty.launch_index is None
    assert found.intervention is not None
    assert found.intervention.spelling[1].startswith(f"{found.guilty.name}: ")
    (change,) = found.intervention.changes
    assert (change.input, change.low, change.high) == (found.guilty.input_index, 0, 63)


@pytest.mark.parametrize("name", ["read_far", "read_negative", "generated_assert"])
def test_what_is_not_known_to_be_outside_is_not_clamped(tmp_path: Path, name: str) -> None:
    """Without observed values, there is no intervention."""
    assert located(name, tmp_path, with_values=False).intervention is None


def test_an_empty_tensor_is_the_kernels_to_mask(tmp_path: Path) -> None:
    """No index is valid in a tensor without elements, so the kernel is guilty and not the input."""
    found = located("empty_tensor", tmp_path)
    assert (found.guilty.kind, found.intervention) == ("kernel", None)
    assert "which is empty" in found.summary


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("threw", "Error: input_handles[0]: unmatched dtype, expected: 4(at::kLong), but got: 3"),
        ("returned", "Segmentation fault"),
    ],
)
def test_the_launch_of_another_error_is_left_to_others(zoo: Zoo, how: str, text: str) -> None:
    """An error that no bad access explains is not put on memory."""
    assert list(by("illegal_memory_access.detect_last_launch", traced(zoo, how, run("plain", text)))) == []


def test_a_program_that_changes_its_input_agrees_with_its_package(zoo: Zoo, tmp_path: Path) -> None:
    """Package and program each get the original inputs, and not those that the other changed."""
    package = zoo("counter")
    request = {
        "exported": str(package.with_name("counter.exported.pt2")),
        "inputs": str(package.with_name("counter.inputs.pt")),
        "package": str(package),
    }
    case = package_case(package)
    case.interpreted = worker_run(*here(tmp_path, "interpret", request))
    assert case.equals_eager


@pytest.mark.parametrize(
    ("text", "equal", "count"),
    [(CHECK, True, 1), (CHECK, False, 0), (CHECK.replace("raise RuntimeError", "table"), True, 0)],
    ids=["a check", "departs", "no check"],
)
def test_an_input_that_changes_may_spoil_a_reference(zoo: Zoo, text: str, equal: bool, count: int) -> None:
    """If a check failed without reason, the input is possible, with the model's line that writes it."""
    case = package_case(zoo("counter"))
    case.runs["script"] = run("script", text)
    case.interpreted = worker_run({"event": "compared", "equal": equal, "outputs": []})
    found = by("concurrency.detect_changed_input", case)
    assert [(h.category, h.guilty.input_index, confidence(h, case)) for h in found] == [
        ("wrong_output", 0, "possible")
    ] * count
    assert all(h.guilty.model_locations for h in found)


# The origin of a bad value.

MASK = {"node": "masked_fill", "op": "aten.masked_fill.Scalar", "masked": True, "bad_inputs": []}
SOFTMAX = {"node": "softmax", "op": "aten.softmax.int", "masked": False, "bad_inputs": ["masked_fill"]}


def made(**facts: Any) -> dict[str, Any]:
    return {"event": "node_non_finite", "stack": [], "dtype": "float32", "nan": True, **facts}


def interpreted(*events: dict[str, Any]) -> DiagnosisState:
    case = failing(DiagnosisState(None))
    case.interpreted = worker_run(*events)
    return case


def test_who_made_the_first_bad_value() -> None:
    """A mask is no fault, nor is NaN from outside. A logarithm's minus infinity is its own."""
    log = made(node="log", op="aten.log.default", masked=True, bad_inputs=[])
    mul = made(node="mul", op="aten.mul.Tensor", masked=False, bad_inputs=["log"])
    outside = made(**{**SOFTMAX, "bad_inputs": ["placeholder"]})
    for events, maker in (
        ((made(**MASK), made(**SOFTMAX)), "softmax"),
        ((made(**MASK),), None),
        ((log, mul), "log"),
        ((outside,), None),
    ):
        event = first_made(interpreted(*events))
        assert (event.node if event is not None else None) == maker
        assert maker != "softmax" or (event is not None and "masked" in guard_fix(event).text)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"op": "aten.sum.dim_IntList", "dtype": "float16", "nan": False}, "too large for float16"),
        ({"op": "aten.div.Tensor", "dtype": "float16", "nan": False}, "epsilon"),
        ({"op": "aten.log.default", "dtype": "float32", "nan": True}, "argument of log above 0"),
        ({"op": "aten.rsqrt.default", "dtype": "float32", "nan": False}, "argument of sqrt positive"),
        ({"op": "aten.log_softmax.int", "dtype": "float32", "nan": True}, "in its domain"),
        ({"op": "aten.sum.dim_IntList", "dtype": "bfloat16", "nan": False}, "wider type"),
        ({"op": "aten.sub.Tensor", "dtype": "float16", "nan": True}, "wider type"),
    ],
)
def test_the_advice_is_of_the_operator(facts: dict[str, Any], words: str) -> None:
    """If an operator without a pole overflows a dtype of small range, the fix is a wider dtype."""
    event: Any = decode(made(node="n", masked=False, bad_inputs=[], **facts))
    assert words in guard_fix(event).text


def test_a_length_made_of_data_is_put_on_its_launch(zoo: Zoo) -> None:
    """The launch that found the length in the data is named, with the input behind it."""
    case = failing(package_case(zoo("unbacked")), "Error: Expected u0 <= 5 but received 9")
    (found,) = by("value_constraints.detect_size", case)
    assert (found.category, found.guilty.launch_index is not None) == ("shape_out_of_range", True)
    assert "args[0]" in found.summary and "is 9, but at most 5 is assumed" in found.summary
    assert found.intervention is None


def test_a_size_read_from_an_input_is_put_on_the_input(tmp_path: Path) -> None:
    """The input is named with the value that failed the check. A value in range is the test."""
    read = "    int64_t u0;\n    aoti_torch_item_int64(arg1_1, &u0);\n"
    case = failing(cuda_case("counter", tmp_path), "Error: Expected u0 <= 5 but received 9")
    case.package = recorded("counter", tmp_path, {"    inputs.clear();\n": read}).package
    (found,) = by("value_constraints.detect_size", case)
    assert (found.category, found.guilty.input_index) == ("shape_out_of_range", 0)
    assert found.summary.endswith("as a number. It is 9, but at most 5 is assumed.")
    assert found.intervention is not None and found.intervention.changes[0].high == 5


def looped(zoo: Zoo, numbers: list[int]) -> DiagnosisState:
    """Make a call that timed out. Its journal ends with these launches, which all returned."""
    case = package_case(zoo("loop"))
    case.runs["plain"] = run("plain", ending="timeout")
    base = {"call": 0, "kernel": "k", "line": 7, "state": "done", "seconds": 0.1, "arguments": []}
    rows = [{**base, "launch": number, "sequence": place} for place, number in enumerate(numbers)]
    paths = {"package": Path("m.pt2"), "environment": {}, "rebuild_s": 0.0, "cached": False}
    facts = {"how": "died", "summary": "", "last": rows[-1], "launches": rows}
    case.trace = Trace.model_validate({**facts, **paths, "total": 9000})
    return case


def test_a_launch_outside_of_loops_hangs_by_itself(zoo: Zoo) -> None:
    """If the journal ends after a loop or in its first iterations, the last launch is named."""
    for numbers in ([*[0, 1, 2] * 6, 3], [0, 1, 2]):
        case = looped(zoo, numbers)
        assert not by("hang.detect_endless_loop", case)
        assert len(by("illegal_memory_access.detect_last_launch", case)) == 1
