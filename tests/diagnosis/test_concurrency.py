"""An input that a call updates, in place or in a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes import concurrency
from mcp_server.diagnosis.causes.concurrency import updated_in_a_copy
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.observe.intervene import by_changed_input
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import confidence
from mcp_server.logs.captured import Leaf
from mcp_server.worker.protocol import Change
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, cuda_case, package_case, phase, run, worker_run

OWN_CHECK = """Traceback (most recent call last):
  File "serve.py", line 9, in <module>
    raise RuntimeError(f"stored state is off by {drift:.3f}")
RuntimeError: stored state is off by 0.144"""


def counting(tmp_path: Path, alignment: int = 4, check: str = OWN_CHECK, **facts: Any) -> DiagnosisState:
    """A program whose check failed over a call of the recorded `counter`, which doubles an input in place."""
    case = cuda_case("counter", tmp_path)
    leaf = Leaf(dtype="float32", device="cuda:0", shape=[4, 8], storage_offset=513, alignment=alignment)
    call = phase(1, load=1, thread=1, leaves=[leaf], file=str(tmp_path))
    case.capture = capture(calls=[call])
    case.runs["script"] = run("script", check)
    inputs = [{"input": 0, "misaligned": True, "changed": False, **facts}]
    case.runs["plain"] = run("plain", "", {"event": "changed_inputs", "inputs": inputs})
    return case


def test_only_a_misaligned_input_that_is_written_counts(tmp_path: Path, zoo: ZooPackage) -> None:
    """By the address that the captured call had; of a call from a file the address shows when it is made."""
    assert updated_in_a_copy(counting(tmp_path)) == {0: 16}
    assert updated_in_a_copy(counting(tmp_path, alignment=16)) == {}
    assert updated_in_a_copy(cuda_case("counter", tmp_path)) == {0: 16}
    (tmp_path / "other").mkdir()
    assert updated_in_a_copy(cuda_case("scatter", tmp_path / "other")) == {}
    assert updated_in_a_copy(package_case(zoo("counter"))) == {}


@pytest.mark.parametrize("changed", [True, False])
def test_a_lost_update_is_likely_and_an_aligned_copy_decides(tmp_path: Path, changed: bool) -> None:
    """The input is named with its address; the call on an aligned copy changes that copy, or nothing."""
    case = counting(tmp_path)
    (found,) = concurrency.detect_lost_update(case)
    assert (found.category, found.guilty.input_index) == ("input_mismatch", 0)
    assert "offset 513" in found.summary and confidence(found, case) == "likely"
    test = found.intervention
    assert test is not None and test.changes == (Change("align", input=0),)
    aligned = {"input": 0, "misaligned": False, "changed": changed}
    plain = case.runs["plain"]
    with_copy = run("c", "", {"event": "changed_inputs", "inputs": [aligned]})
    case.trials[test.key] = by_changed_input(test, plain, with_copy, plain)
    assert (confidence(found, case) == "proven") == changed
    assert (case.trials[test.key].effect is Effect.SAME) != changed


LOOK_ALIKES: list[dict[str, Any]] = [
    {"changed": True},
    {"misaligned": False},
    {"alignment": 64},
    {"check": "RuntimeError: CUDA error: an illegal memory access was encountered"},
]


@pytest.mark.parametrize("other", LOOK_ALIKES, ids=lambda other: next(iter(other)))
def test_look_alikes_accuse_nobody(tmp_path: Path, other: dict[str, Any]) -> None:
    """An update that arrived, aligned memory, and a program that failed over something else."""
    assert list(concurrency.detect_lost_update(counting(tmp_path, **other))) == []


@pytest.mark.parametrize(("changed", "count"), [(False, 0), (True, 1)])
def test_an_input_that_stays_as_it_was_is_not_called_changed(
    tmp_path: Path, changed: bool, count: int
) -> None:
    """The other view of inputs that are written in place: the reference then gets other values."""
    case = counting(tmp_path, changed=changed)
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": []})
    assert len(list(concurrency.detect_changed_input(case))) == count
