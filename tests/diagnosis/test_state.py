"""What a program did to a loaded package: its constants, views of them, threads, operators."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.package.exported import ExportedFacts
from mcp_server.worker.loading import update_package
from mcp_server.worker.report import Report
from tests.conftest import Zoo
from tests.diagnosis.support import by, called, capture, failing, package_case, phase, run, trial

KEEP_ALL = "compile with inductor_configs={'always_keep_tensor_constants': True}"
GOOD = {"dtype": "float32", "device": "cpu", "shape": [32, 16], "stride": [16, 1]}


def updated(package: Any, leaf: dict[str, Any], outcome: str = "ok", *names: str) -> DiagnosisState:
    """Make a failing case whose embedding table, or constants with these names, got this tensor."""
    case = failing(package_case(package))
    given = {name: {**GOOD, **leaf} for name in names or ["table.weight"]}
    record = phase(1, load=1, how="load_constants", constants=given, outcome=outcome)
    case.capture = capture(updates=[record])
    return case


@pytest.mark.parametrize(
    ("leaf", "outcome", "value"),
    [
        ({}, "ok", None),
        ({"dtype": "float16"}, "ok", "dtype float16"),
        ({"shape": [31, 16]}, "ok", "shape [31, 16]"),
        ({"stride": [1, 32]}, "ok", "stride (1, 32)"),
        ({"device": "cuda:0"}, "ok", None),
        ({"device": "cuda:0"}, "failed", "device cuda:0"),
    ],
    ids=["good", "dtype", "shape", "stride", "copied from a device", "refused from a device"],
)
def test_constants_that_differ(zoo: Zoo, leaf: dict[str, Any], outcome: str, value: str | None) -> None:
    """The constant is named with the given value. Only a wrong dtype can be cast and tried again."""
    found = list(by("constants.detect", updated(zoo("ranker"), leaf, outcome)))
    assert len(found) == (value is not None)
    for each in found:
        assert each.category == "constants" and each.guilty.name == "table.weight"
        assert (each.guilty.value or "").startswith(value or "")
        casts = each.intervention.options.cast if each.intervention is not None else {}
        assert casts == ({"table.weight": "float32"} if "dtype" in leaf else {})
    names = ("table.weight", "hidden.weight")  # one converted alone would leave the other misread
    found = by("constants.detect", updated(zoo("ranker"), leaf, outcome, *names)) if "dtype" in leaf else []
    assert all(f"{names}" in str(each.fix) for each in found) and len(found) == ("dtype" in leaf)


@pytest.mark.parametrize(
    ("leaf", "harmful"),
    [({"shape": [31, 16]}, True), ({"dtype": "int32"}, True), ({"shape": [16, 32]}, False)],
    ids=["fewer rows", "dtype of one size", "as many elements"],
)
def test_bytes_of_another_constant_are_a_fault(zoo: Zoo, leaf: dict[str, Any], harmful: bool) -> None:
    """Rows that an update does not reach keep their old values, although nothing fails."""
    case = package_case(zoo("ranker"))
    case.capture = updated(zoo("ranker"), leaf).capture
    assert not case.failed
    (found,) = by("constants.detect", case)
    assert found.harmful == harmful


def test_a_tensor_that_the_program_manages_is_not_copied(zoo: Zoo) -> None:
    """The package reads a user-managed constant in place, so a copy of it would have to stay alive."""
    case = failing(package_case(zoo("ranker")))
    given = {"table.weight": {**GOOD, "stride": [1, 32]}}
    more = {"load": 1, "how": "load_constants", "constants": given, "arguments": [False, True, True]}
    case.capture = capture(updates=[phase(1, **more)])
    (found,) = by("constants.detect", case)
    assert "reads its memory" in found.summary and "copied" not in found.summary
    assert found.fix is not None and "alive" in found.fix.text


def test_a_folded_parameter_is_not_reached(zoo: Zoo) -> None:
    """A parameter of the exported model that the package does not have keeps its old value."""
    case = updated(zoo("ranker"), {})
    assert case.package is not None
    case.exported = ExportedFacts(state=(*[c.fqn for c in case.package.constants], "gone.weight"))
    (found,) = by("constants.detect", case)
    assert found.guilty.name == "gone.weight" and found.fix is not None
    assert found.fix.text == KEEP_ALL


def threads(single: bool, second_begins: float, second_thread: int = 2) -> DiagnosisState:
    """Make two calls of one model, the first from 1.0 to 2.0 s."""
    load = phase(0, loader="aoti_load_package", package="m.pt2", options={"run_single_threaded": single})
    first = phase(1, load=1, thread=1, thread_name="one", seconds=1.0)
    second = phase(2, load=1, thread=second_thread, thread_name="two", seconds=1.0) | {"t": second_begins}
    case = failing(DiagnosisState(None))
    case.capture = capture(loads=[load], calls=[first, second])
    return case


@pytest.mark.parametrize(
    ("single", "begins", "thread", "harmful"),
    [(True, 1.5, 2, True), (False, 1.5, 2, False), (True, 2.5, 2, False), (True, 1.5, 1, False)],
    ids=["overlapping", "synchronised", "one after the other", "one thread"],
)
def test_overlapping_unsynchronised_calls(single: bool, begins: float, thread: int, harmful: bool) -> None:
    """Two threads inside a run_single_threaded model at once are named."""
    case = threads(single, begins, thread)
    found = by("concurrency.detect_overlapping_calls", case)
    assert len(found) == harmful
    for each in found:
        assert each.category == "concurrency" and each.harmful and each.only_in_program
        assert "one" in each.evidence[0].fact and "two" in each.evidence[0].fact
        assert confidence(each, case) == "likely"


def waiting(*numbers: int) -> DiagnosisState:
    case = DiagnosisState(None)
    at = {n: {"load": 1, "thread": n, "stack": [{"file": "a.py", "line": n}]} for n in numbers}
    calls = [phase(n, thread_name=f"t{n}", outcome="unfinished", **at[n]) for n in numbers]
    case.capture = capture(calls=calls)
    case.runs["script"] = run("script", ending="timeout")
    return case


def test_threads_that_never_come_back() -> None:
    """Several calls unfinished at the time limit are a hang of calls. A single one may hang anywhere."""
    (found,) = detect(waiting(1, 2))
    assert found.category == "hang" and found.observed and "2 threads" in found.guilty.name
    assert found.fix is not None and "num_runners" in found.fix.text
    (found,) = detect(waiting(1))
    assert not found.observed and found.fix is None  # it is unknown where the call waits


def of_constants(n: int, act: str, names: list[str], call: int | None, **more: object) -> dict[str, Any]:
    """An event of constants between their update and a call, or seen at a failure after it."""
    return phase(n, storage="constant", act=act, interval="update", names=names, load=1, call=call, **more)


def test_moved_user_managed_constants() -> None:
    """If memory moves between load_constants and the call, the constant is blamed, at both lines."""
    case = failing(DiagnosisState(None))
    at = [{"file": "a.py", "line": 3}]
    update = phase(1, load=1, how="load_constants", constants={"w": GOOD}, stack=at)
    call = phase(3, load=1, thread=1, stack=[{"file": "a.py", "line": 9}])
    case.capture = capture(updates=[update], calls=[call], memory=[of_constants(2, "moved", ["w"], 1)])
    case.runs["script"] = run("script", "Segmentation fault")
    (found,) = by("shared_memory.detect_memory_log", case)
    assert (found.guilty.kind, found.guilty.name) == ("constant", "w")
    assert [place.line for place in found.guilty.model_locations] == [3, 9]
    assert found.only_in_program


@pytest.mark.parametrize("expected", [True, False])
def test_constants_that_the_program_wrote_after_it_gave_them(expected: bool) -> None:
    """It is certain if a call with the given values returns what the program expected."""
    case = DiagnosisState(None)
    update = phase(1, load=1, how="load_constants", constants={"w": GOOD, "b": GOOD})
    call = phase(3, load=1, thread=1, file="inputs.pt")
    told = of_constants(2, "written", ["w"], 1, counted=True)
    case.capture = capture(updates=[update], calls=[call], memory=[told])
    case.runs["script"] = run("script", "AssertionError: drift")
    compared = {"event": "compared_expected", "equal": True} if expected else called()
    case.runs["plain"] = run("plain", "", compared)
    found = [h.observed for h in detect(case) if h.guilty.name == "w"]
    assert found == [expected]


def test_writes_that_were_seen_at_the_check_count_for_the_call_before(zoo: Zoo) -> None:
    """Nobody could look at the call itself. A buffer that calls write themselves is not blamed."""
    for model, name, count in (("ranker", "head.weight", 1), ("counter", "seen", 0)):
        case = package_case(zoo(model))
        update = phase(1, load=1, how="load_constants", constants={name: GOOD})
        call = phase(2, load=1, thread=1, file="inputs.pt")
        told = of_constants(3, "written", [name], None)
        case.capture = capture(updates=[update], calls=[call], ends=[phase(4)], memory=[told])
        case.runs["script"] = run("script", "RuntimeError: drift")
        case.runs["plain"] = run("plain", "", {"event": "compared_expected", "equal": True})
        found = by("shared_memory.detect_memory_log", case)
        assert len(found) == count
        assert all("at the failed check" in each.evidence[0].fact for each in found)


@pytest.mark.parametrize("name", ["plugin", "ranker"])
def test_an_unregistered_operator(zoo: Zoo, name: str) -> None:
    """The operator that the load lacks is named, with what the package calls."""
    case = package_case(zoo(name))
    case.runs["plain"] = run("plain", "RuntimeError: Could not find schema for aotizoo::halve_rows.")
    (found,) = by("custom_op.detect_unregistered", case)
    assert found.guilty.name == "aotizoo::halve_rows" and found.category == "custom_op"


CHILD = {"file": "/app/pool.py", "line": 41, "code": "runner(x)"}


@pytest.mark.parametrize(("parent", "forked"), [(1, True), (7, False)])
def test_a_call_in_a_forked_process_waits_for_threads_that_are_not_there(parent: int, forked: bool) -> None:
    """The parent has the load and its threads. The parent's own stack is not blamed."""
    case = DiagnosisState(None)
    process = {"argv": ["python"], "python": "3.11"}
    case.capture = capture(
        processes=[{"pid": 1, "parent": 0, **process}, {"pid": 2, "parent": parent, **process}],
        loads=[phase(1, loader="AOTIModelPackageLoader", package="a.pt2")],
        calls=[phase(2, pid=2, load=1, thread=1, outcome="unfinished", stack=[CHILD])],
    )
    text = 'Timeout (0:00:10)!\nThread 0x1 (most recent call first):\n  File "/app/pool.py", line 50 in wait'
    case.runs["script"] = run("script", text, ending="timeout")
    (found,) = by("hang.detect_waiting_calls", case)
    assert found.category == "hang" and ("forked" in found.summary) == forked
    assert [line.line for line in found.guilty.model_locations] == ([41] if forked else [50, 41])
    assert (found.fix is not None and "spawn" in found.fix.text) == forked


VIEWS = ["head.bias", "head.weight"]


def given_views(zoo: Zoo, *calls: dict[str, Any], **more: Any) -> DiagnosisState:
    """Make a package whose constants were given as views, and that was then called."""
    case = failing(package_case(zoo("ranker")))
    update = phase(2, load=1, how="load_constants", arguments=[False, True], views=VIEWS)
    loads = [phase(1, loader="x", package="m.pt2")]
    case.capture = capture(loads=loads, updates=[{**update, **more}], calls=calls)
    return case


CALL = phase(3, load=1, thread=1, file="inputs.pt")


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ({}, 1),
        ({"views": []}, 0),
        ({"arguments": [False, True, True]}, 0),
        ({"how": "update_constant_buffer_from_cpu"}, 0),
        ({"n": 4}, 0),
        ({"n": 4, "outcome": "unfinished"}, 1),
    ],
    ids=["views", "whole", "not copied", "copied otherwise", "after the call", "not come back"],
)
def test_views_that_an_update_copies_are_named(zoo: Zoo, more: dict[str, Any], count: int) -> None:
    """Possible at first; proven if the call passes with constants in memory of their own."""
    case = given_views(zoo, CALL, **more)
    found = by("constants.detect", case)
    assert [(h.category, h.guilty.name) for h in found] == [("constants", "head.bias")] * count
    for hypothesis in found:
        assert confidence(hypothesis, case) == "possible" and hypothesis.intervention is not None
        assert hypothesis.intervention.options.copied == tuple(VIEWS)
        case.trials[hypothesis.intervention.key] = trial(hypothesis.intervention, Effect.GONE)
        assert confidence(hypothesis, case) == "proven"


def test_the_counter_test_gives_constants_memory_of_their_own(tmp_path: Path) -> None:
    """The named constants get it, with the same values."""
    block = torch.arange(12.0)
    file, got = tmp_path / "constants.pt", {}
    torch.save({"a": block[2:6], "b": block[6:]}, file)

    class Loader:
        def load_constants(self, constants: dict[str, torch.Tensor]) -> None:
            got.update(constants)

    step: Any = {"how": "load_constants", "file": str(file)}
    update_package(Loader(), step, Report(str(tmp_path / "report.jsonl")), {"copied": ["a"]})
    assert got["a"].untyped_storage().nbytes() == 16 and got["b"].untyped_storage().nbytes() == 48
    assert torch.equal(got["a"], block[2:6])
