"""Calls whose outputs vary, that do not return, or that fail the check of their program."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.diagnose import detect
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.diagnosis.verdict import checked_call, conclude, confidence
from mcp_server.diagnosis.words import eager_of, headline_of, health_evidence, health_summary
from mcp_server.model import ScriptWorkload
from mcp_server.runtime.context import Context
from mcp_server.tools.check_devices import Given
from mcp_server.worker.report import TensorFacts
from tests.conftest import Zoo
from tests.diagnosis.support import (
    Line,
    by,
    called,
    capture,
    look,
    package_case,
    phase,
    run,
    traced,
    worker_run,
)
from tests.support.command import answered


def repeated(second: bool, filled: bool) -> tuple[Line, ...]:
    """Make the worker's events of repeated calls: whether their outputs were the same."""
    told = {"second": second, "filled": filled}
    return tuple({"event": "repeated", "run": kind, "equal": same} for kind, same in told.items())


def case_of(package: Path, second: bool, filled: bool) -> DiagnosisState:
    """Make a package on the CPU whose call succeeded and was repeated."""
    case = package_case(package)
    case.runs["plain"] = run("plain", "", called())
    case.repeated = worker_run(*repeated(second, filled))
    return case


def writes(kind: str, *checksums: str) -> list[Line]:
    """Make the events of a watched run in which each launch wrote one tensor."""
    made = ({"launch": n, "sequence": n, "kernel": f"k{n}", "name": f"buf{n}"} for n in range(len(checksums)))
    seen = [{"event": "rerun", "run": kind, **each} for each in made]
    told = [{**event, "checksum": text} for event, text in zip(seen, checksums, strict=True)]
    return [{"event": "outputs", "run": kind, "checksums": [checksums[-1]]}, *told]


def test_outputs_that_follow_what_new_memory_holds(zoo: Zoo) -> None:
    """The first launch whose result changes with the bytes of new memory is guilty, as likely."""
    case = case_of(zoo("plugin"), second=True, filled=False)
    (found,) = detect(case)
    assert (found.guilty.kind, confidence(found, case)) == ("package", "likely")
    assert look("watch_repeats").gain(case, []) > 0
    case.repeated_watched = worker_run(*writes("first", "a", "b", "c"), *writes("filled", "a", "x", "y"))
    (found,) = detect(case)
    assert (found.category, found.guilty.launch_index) == ("wrong_output", 1)
    assert (found.weak, confidence(found, case)) == (False, "likely")


def test_a_call_that_repeats_is_healthy_and_says_so(zoo: Zoo) -> None:
    """Equal repeats are evidence of health, but the verdict says that the numbers have no reference."""
    case = case_of(zoo("plugin"), second=True, filled=True)
    assert list(detect(case)) == [] and look("watch_repeats").gain(case, []) == 0
    assert [e.step for e in health_evidence(case)].count("repeat_call") == 2
    summary = health_summary(case)
    assert all(each in summary for each in ("To check the numbers", "halve_rows", "Only the author knows"))


def test_what_a_package_alone_does_not_show_is_said(zoo: Zoo, tmp_path: Path) -> None:
    """A good call of a package alone is possibly healthy: numbers, arguments and state are unknown."""
    case = case_of(zoo("logarithm"), second=True, filled=True)
    case.given = Given((), ("args[0]", "args[1]"))
    case.leaves = [TensorFacts(kind="int", value="5"), TensorFacts(kind="NoneType", value="None")]
    found = conclude([], case, Context(tmp_path, Path("python")))
    assert (found.outcome, found.confidence) == ("no_fault", "possible")
    assert "args[0] = 5" in found.summary and "args[1]" not in found.summary
    program, slow = found.next_steps
    assert "diagnose that program" in program.why and slow.arguments["symptom"] == "slow"


class Drawing:
    """The detector, with a package whose first launch draws random numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, case: DiagnosisState, op: str) -> None:
        assert case.view is not None
        launch = case.view.wrapper.launches[0]
        drawing = "mcp_server.diagnosis.causes.wrong_output.drawing_launches"
        monkeypatch.setattr(drawing, lambda _case: [(op, launch)])
        self.case = case

    def found(self) -> list[Suspect]:
        return list(detect(self.case))


def test_dropout_in_a_package_is_suspected(zoo: Zoo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package with dropout is not called healthy. The verdict names it, and what would settle it."""
    case = case_of(zoo("logarithm"), second=False, filled=False)
    found = Drawing(monkeypatch, case, "native_dropout").found()
    verdict = conclude(found, case, Context(tmp_path, Path("python")))
    assert verdict.outcome == "inconclusive" and verdict.guilty is not None
    assert (verdict.guilty.name, verdict.guilty.launch_index) == ("native_dropout", 0)
    assert "export in evaluation mode to see" in verdict.summary


def test_dropout_of_a_script_that_ends_well_is_its_own(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successful program with dropout, and a model that samples, are not suspected."""
    case = case_of(zoo("logarithm"), second=False, filled=False)
    assert Drawing(monkeypatch, case, "randn").found() == []
    case.workload = ScriptWorkload(script=Path("a.py"))
    assert Drawing(monkeypatch, case, "native_dropout").found() == []


def test_the_journal_names_the_kernel_of_a_hang(zoo: Zoo) -> None:
    """If the journal names a launch, the call as a whole is not accused of the hang."""
    case = traced(zoo, "died", run("plain", ending="timeout"))
    assert by("hang.detect_hanging_call", case) == []
    (found,) = by("illegal_memory_access.detect_last_launch", case)
    assert (found.category, found.guilty.launch_index) == ("hang", 1)
    case.trace = None
    (found,) = by("hang.detect_hanging_call", case)
    assert found.guilty.kind == "call"


RAISED = """Traceback (most recent call last):
  File "serve.py", line 9, in <module>
    assert scores.max() < 1, "risk above 1"
AssertionError: risk above 1"""
EXITED: dict[str, Any] = {
    "error": {"type": "builtins.SystemExit", "text": "1"},
    "stack": [{"file": "serve.py", "line": 12, "code": "sys.exit(1)"}],
}
CALL = {"load": 0, "thread": 1}


def checked(text: str = RAISED, *, equal: bool = True, outcome: str = "ok", **end: Any) -> DiagnosisState:
    """Make a program whose check failed, with a call that is compared with its exported program."""
    case = DiagnosisState(ScriptWorkload(script="serve.py"))  # type: ignore[arg-type]
    case.capture = capture(calls=[phase(1, **CALL, outcome=outcome)], ends=[phase(2, **end)] if end else [])
    case.runs["script"] = run("script", text)
    case.runs["plain"] = run("plain", "", called())
    case.interpreted = worker_run({"event": "compared", "equal": equal, "outputs": []})
    return case


def test_a_check_over_a_right_call_is_the_programs() -> None:
    """If package and program agree, the script is guilty, at the line that raises or exits.

    `sys.exit` prints no traceback, so the hook gives its line. The verdict is never proven.
    """
    for case, line in ((checked(), 9), (checked("accuracy 0.52 is below 0.90", **EXITED), 12)):
        (found,) = by("wrong_output.detect_own_check", case)
        assert (found.category, found.guilty.name) == ("script_error", f"serve.py:{line}")
        assert any("agree" in evidence.fact for evidence in found.evidence)
        assert confidence(found, case) in ("possible", "likely")


@pytest.mark.parametrize("by_rounding", [0.0, 7e-7])
def test_a_check_that_allows_no_rounding_is_told(by_rounding: float) -> None:
    """The largest difference is named, with the tolerance that the check needs. Equal bits need neither."""
    case = checked()
    output = {"output": 0, "elements": 4, "by": by_rounding}
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": [output]})
    (found,) = by("wrong_output.detect_own_check", case)
    assert found.fix is not None
    told = ("up to 7e-07" in found.summary, "tolerance" in found.fix.text)
    assert told == (by_rounding > 0, by_rounding > 0)


@pytest.mark.parametrize(
    ("op", "code", "named"),
    [("mul.Tensor", "", 1), ("pow.Tensor_Scalar", "x.pow(2)", 1), ("pow.Scalar", "1 / x", 0)],
)
def test_an_overflow_that_a_later_operator_hides_is_named(op: str, code: str, named: int) -> None:
    """It explains finite outputs that the program's check rejects."""
    case, agrees = checked(), {"event": "compared", "equal": False, "outputs": []}
    far = {
        "event": "rounding",
        "outputs": [{"error": 0.5, "eager_error": 8.0, "within": True}],
        "narrow": True,
    }
    line = {"file": "a.py", "line": 3, "function": "forward", "code": code}
    made = {"node": "x", "op": f"aten.{op}", "stack": [line], "nan": False, "dtype": "float16"}
    made |= {"event": "node_non_finite", "bad_inputs": [], "masked": False}
    case.interpreted = worker_run(made, agrees, far, {"event": "interpreted", "outputs": []})
    found = by("nan_or_inf.detect_made_in_eager", case)
    told = [(each.category, confidence(each, case), each.summary[-58:]) for each in found]
    text = " Eager mode is off by up to 8, the package by 0.5."
    assert [(*e[:2], e[2].endswith(text)) for e in told] == [("wrong_output", "likely", True)] * named


@pytest.mark.parametrize(("same", "eager", "told"), [(True, "not_known", False), (False, "varies", True)])
def test_a_program_that_varies_does_not_accuse_its_package(same: bool, eager: str, told: bool) -> None:
    """If eager mode gives other numbers in each run, one comparison does not accuse the compiler."""
    case = checked()
    ran = {"event": "eager_ran", "same": same, "left_out": 0}
    case.interpreted = worker_run(ran, {"event": "compared", "equal": False, "outputs": []})
    (found,) = by("wrong_output.detect_compared", case)
    assert eager_of("wrong_output", case) == eager
    assert found.fix is not None
    assert ("in each run" in found.summary, "only once" in found.fix.text) == (told, told)


def test_nan_in_another_call_is_remarked(tmp_path: Path) -> None:
    """The verdict on one call names the other call, which returned NaN."""
    case = checked()
    nan = {"path": "out[0]", "kind": "tensor", "nan": 1}
    case.capture = capture(calls=[phase(1, **CALL, outputs=[nan]), phase(2, **CALL, outcome="failed")])
    verdict = conclude(list(detect(case)), case, Context(tmp_path, Path("python")))
    assert any("Call 1 of 2 returned NaN" in remark for remark in verdict.remarks)


LATE = RAISED.replace("assert scores.max() < 1", "assert took < 5").replace("risk above 1", "9 ms a request")


def test_a_check_of_time_is_told_as_cost() -> None:
    """Loads that took longer than all calls are the cause. Without them, it is unknown what is slow."""
    case = checked(LATE)
    (found,) = by("wrong_output.detect_own_check", case)
    assert (found.category, confidence(found, case)) == ("cost", "possible")
    at = {"loader": "l", "package": "m.pt2", "stack": [{"file": "serve.py", "line": 4}]}
    loads = [phase(n, seconds=0.2, **at) for n in range(3, 7)]
    case.capture = capture(calls=[phase(1, **CALL, seconds=0.1)], loads=loads)
    (found,) = by("wrong_output.detect_own_check", case)
    assert (found.category, confidence(found, case)) == ("cost", "likely")
    assert found.guilty.model_locations[0].line == 4
    assert "4 loads of m.pt2 took 0.8 s, and 1 call 0.1 s" in found.summary
    assert headline_of("cost", found.guilty, case, known=True) == "too slow or too large"


def test_a_check_of_memory_names_what_is_kept() -> None:
    """Kept outputs, or a loader for each request, are the cause. Otherwise it is unknown what grows."""
    grown = RAISED.replace("risk above 1", "grew by 728 MB")
    for kept, sure in ((150, "likely"), (1, "possible")):
        case = checked(grown, kept_outputs=kept, kept_bytes=kept * 5_000_000)
        (found,) = by("wrong_output.detect_own_check", case)
        assert (found.category, confidence(found, case)) == ("cost", sure)
        assert ("150 blocks of memory, 750 MB" in found.summary) == (kept == 150)
    at = {"loader": "l", "package": "m.pt2", "bytes": 32_000_000, "stack": [{"file": "serve.py", "line": 4}]}
    case.capture = capture(calls=[phase(1, **CALL)], loads=[phase(n, **at) for n in range(3, 15)])
    (found,) = by("wrong_output.detect_own_check", case)
    assert (found.category, found.guilty.name, confidence(found, case)) == ("cost", "m.pt2", "likely")
    assert "m.pt2 (32 MB) was loaded 12 times" in found.summary
    assert found.guilty.model_locations[0].line == 4


@pytest.mark.parametrize("other", [{"equal": False}, {"outcome": "failed"}])
def test_other_calls_clear_nothing(other: dict[str, Any]) -> None:
    """A package that diverges, or a call that raised, is suspected itself."""
    assert not by("wrong_output.detect_own_check", checked(**other))


def test_the_call_that_a_check_names_is_the_suspect() -> None:
    """The call is preferred to one with infinities and to the last, unless its inputs were not kept."""
    infinite = {"outputs": [{"inf": 1}]}
    calls = [phase(n, **CALL, **({"file": "i.pt"} if n != 3 else {})) | {"number": n} for n in range(1, 6)]
    calls[0] |= infinite
    seen = capture(calls=calls, assertions=[phase(9, calls=[2])])
    assert seen.suspect is seen.calls[1]
    case = DiagnosisState(None, capture=seen)
    assert ["call 2 of 5" in evidence.fact for evidence in checked_call(case)] == [True]
    lost = capture(calls=calls, assertions=[phase(9, calls=[3])])
    assert lost.suspect is lost.calls[0]


EMBEDDING = """Traceback (most recent call last):
  File "serve.py", line 21, in main
    extra = table(ids)
  File "/env/lib/python3.11/site-packages/torch/nn/functional.py", line 2542, in embedding
    return torch.embedding(weight, input, padding_idx, scale_grad_by_freq, sparse)
IndexError: index out of range in self"""


def test_an_error_of_the_programs_own_after_good_calls_is_not_the_packages() -> None:
    """The innermost frame decides: an eager embedding of the program, and not the package before it."""
    (found,) = detect(checked(EMBEDDING))
    assert (found.category, found.guilty.name) == ("script_error", "serve.py:21")
    assert "1 call of the package returned before it" in found.summary


KEYWORDS = """Traceback (most recent call last):
  File "serve.py", line 35, in main
    scores = model(question=ids)
  File "/env/lib/python3.11/site-packages/torch/export/pt2_archive/_package.py", line 1012, in __call__
    flat_inputs = pytree.tree_flatten((args, reorder_kwargs(kwargs, in_spec)))[0]
  File "/env/lib/python3.11/site-packages/torch/export/_tree_utils.py", line 56, in reorder_kwargs
    raise ValueError(
ValueError: Ran into a kwarg keyword mismatch: Got the following keywords ['question'] but expected ['query']"""  # noqa: E501


def test_a_call_that_never_reached_the_loader_is_not_the_programs() -> None:
    """`__call__` rejects keyword arguments in Python, before the loader's call that the hook sees."""
    (found,) = detect(checked(KEYWORDS))
    assert found.category == "input_mismatch"


STATEFUL = """\
import torch

model, (x,) = torch._inductor.aoti_load_package({package!r}), torch.load({inputs!r})
torch.save([model(x.clone())], {first!r})
model(x.clone())
"""


def test_a_buffer_that_each_call_changes_is_named(zoo: Zoo, tmp_path: Path) -> None:
    """The second call gives other numbers than the first. Made alone, it gives the first call's."""
    names = {name: str(tmp_path / f"{name}.pt") for name in ("inputs", "first")}
    torch.save([torch.ones(4, 8)], names["inputs"])
    torch.save([torch.full((4, 8), 3.0)], names["first"])
    script = tmp_path / "serve.py"
    script.write_text(STATEFUL.format(package=str(zoo("counter")), **names))
    found = answered("diagnose", script, "--symptom", "wrong-output", "--expect", names["first"])
    assert (found["outcome"], found["category"], found["confidence"]) == ("fault", "wrong_output", "likely")
    assert found["guilty"]["name"] == "seen" and "each call changes" in found["summary"]
