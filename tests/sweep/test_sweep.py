"""Sweeps on this machine: verdicts are kept and taken up again, lost cases are tried again."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from mcp_server.cli.app import exit_of
from mcp_server.cli.main import Exit
from mcp_server.sweep import Local, Results, Sweep, as_markdown, sweep
from tests.sweep.support import killer, plan


def swept(directory: Path, text: str, retries: int = 1) -> Sweep:
    return anyio.run(
        lambda: sweep(plan(directory, text), Results(directory / "out"), lambda: Local(2), retries=retries)
    )


LOGS = """
    cases:
      - {name: index, log: index.log}
      - {name: gone, package: missing.pt2}
"""


def test_verdicts_are_taken_up_again(tmp_path: Path) -> None:
    """A second sweep has the verdict from the first, and asks again about what was refused."""
    (tmp_path / "index.log").write_text("RuntimeError: index out of bounds: 0 <= tmp2 < 32L\n")
    first, second = swept(tmp_path, LOGS), swept(tmp_path, LOGS)
    assert [case.ended for case in first.cases] == ["verdict", "refused"]
    assert (first.reused, second.reused) == (0, 1)
    assert second.cases[0] == first.cases[0]
    assert "does not exist" in second.cases[1].attempts[0].why
    assert exit_of(second) == Exit.PROBLEM


@pytest.mark.slow
def test_a_lost_case_is_tried_again_and_told(tmp_path: Path) -> None:
    """The death of the process that diagnoses costs one attempt, and the report says of what."""
    text = f"cases: [{{script: {killer(tmp_path)}, gpus: 0, timeout_s: 60}}]"
    found = swept(tmp_path, text)
    (case,) = found.cases
    assert [attempt.ended for attempt in case.attempts] == ["lost", "verdict"]
    assert "SIGKILL" in case.attempts[0].why and "SIGKILL" in as_markdown(found)


@pytest.mark.slow
def test_without_retries_a_lost_case_stays_lost(tmp_path: Path) -> None:
    """It has no verdict, and the next sweep tries it."""
    text = f"cases: [{{script: {killer(tmp_path)}, gpus: 0, timeout_s: 60}}]"
    assert swept(tmp_path, text, retries=0).cases[0].ended == "lost"
    assert swept(tmp_path, text, retries=0).cases[0].ended == "verdict"


def test_gpus_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are visible, one lane for each."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert Local().gpus == ["3", "GPU-5"] and Local().lanes == 2


def test_the_kept_file_is_plain_json(tmp_path: Path) -> None:
    """Anyone can read a verdict without this program."""
    (tmp_path / "index.log").write_text("RuntimeError: index out of bounds: 0 <= tmp2 < 32L\n")
    swept(tmp_path, "cases: [{log: index.log}]")
    (path,) = (tmp_path / "out" / "results").glob("*.json")
    assert json.loads(path.read_text())["verdict"]["category"] == "index_out_of_bounds"
