"""A check of the program's own that failed: whom it clears, and inputs in each other's place."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_server.diagnosis.causes import log_text, wrong_output
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import checked_call, confidence
from mcp_server.model import ScriptWorkload
from tests.diagnosis.support import called, capture, phase, run, worker_run

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
    """A program whose check failed, with a call that is compared with its exported program."""
    case = DiagnosisState(ScriptWorkload(script="serve.py"))  # type: ignore[arg-type]
    case.capture = capture(calls=[phase(1, **CALL, outcome=outcome)], ends=[phase(2, **end)] if end else [])
    case.runs["script"] = run("script", text)
    case.runs["plain"] = run("plain", "", called())
    case.interpreted = worker_run({"event": "compared", "equal": equal, "outputs": []})
    return case


def test_a_check_over_a_right_call_is_the_programs() -> None:
    """With the package and its program in agreement the script is left, at the line that raises or exits.

    `sys.exit` prints no traceback: the hook tells where it stands. It is never proven.
    """
    for case, line in ((checked(), 9), (checked("accuracy 0.52 is below 0.90", **EXITED), 12)):
        (found,) = wrong_output.detect_own_check(case)
        assert (found.category, found.guilty.name) == ("script_error", f"serve.py:{line}")
        assert any("agree" in evidence.fact for evidence in found.evidence)
        assert confidence(found, case) in ("possible", "likely")


@pytest.mark.parametrize("other", [{"equal": False}, {"outcome": "failed"}])
def test_other_calls_clear_nothing(other: dict[str, Any]) -> None:
    """A package that diverges, or a call that raised, is looked at itself."""
    assert not list(wrong_output.detect_own_check(checked(**other)))


def test_the_call_that_a_check_names_is_the_suspect() -> None:
    """It is looked at before one with infinities and before the last; not where its inputs are gone."""
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
    """Whose frame raised decides: an eager embedding of the program's, not the package before it."""
    (found,) = log_text.detect_from_log(checked(EMBEDDING))
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
    """The model's `__call__` in Python refuses keyword arguments before the call that the hook sees."""
    (found,) = log_text.detect_from_log(checked(KEYWORDS))
    assert found.category == "input_mismatch"
