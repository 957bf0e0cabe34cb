"""What a log says of processes: ranks that srun and torchrun started, and a call that will not come back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.logs.capture_journal import stalled_call
from mcp_server.logs.captured import Captured, CapturedCall
from mcp_server.logs.log import read_log
from mcp_server.tools.launchers import read_launcher

# As torchrun 2.13 printed it; rank 0 was told to end since rank 1 had failed.
TORCHRUN = """\
[default1]:RuntimeError: boom
W1121 03:42:52.624000 1048 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1091 closing signal SIGTERM
E1121 03:42:52.716000 1048 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 1092) of binary: /usr/bin/python3
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
"""  # noqa: E501

# As srun 22.05 printed it, without --label and with --kill-on-bad-exit.
STOPPED = """\
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
slurmstepd-n1: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-11-21T03:21:17 ***
srun: error: n1: tasks 0,2: Terminated
srun: error: n2: task 1: Exited with exit code 1
"""


@pytest.mark.parametrize(
    "text, rank, how",
    [
        (TORCHRUN, "1", "exitcode: 1"),
        (STOPPED, "1", "Exited with exit code 1"),
        ("srun: error: n1: tasks 3-5: Segmentation fault\n", "3", "Segmentation fault"),
        ("srun: error: n1: task 2: Out Of Memory\nsrun: error: n1: task 0: Killed\n", "2", "Out Of Memory"),
        ("srun: error: n1: task 4: Killed\n", "4", "Killed"),
    ],
)
def test_the_rank_that_failed_first(text: str, rank: str, how: str) -> None:
    """A rank that was stopped for the failure of another is not the one, unless there is no other."""
    first = read_launcher(text.splitlines()).first
    assert first is not None and (first.rank, first.how) == (rank, how)


def test_a_rank_cannot_speak_for_the_launcher() -> None:
    """Lines with a rank before them are the program's, whatever they say."""
    words = read_launcher(
        ["1: srun: error: n1: task 0: Killed", "0: srun: error: Unable to allocate resources"]
    )
    assert words.first is None and words.refused == ""


@pytest.mark.parametrize(
    "text, waiting, refused",
    [
        ("srun: job 7 queued and waiting for resources\n", True, False),
        (
            "srun: job 7 queued and waiting for resources\nsrun: job 7 has been allocated resources\n",
            False,
            False,
        ),
        ("srun: error: Unable to allocate resources: Invalid partition name specified\n", False, True),
        ("srun: unrecognized option '--gpu'\n", False, True),
        ("srun: error: Unable to create step\nsrun: error: n1: task 0: Killed\n", False, False),
    ],
)
def test_a_launcher_that_started_nothing(text: str, waiting: bool, refused: bool) -> None:
    """It was refused its resources or waits for them; not so once a rank ran."""
    words = read_launcher(text.splitlines())
    assert (words.waiting, bool(words.refused)) == (waiting, refused)


@given(st.lists(st.text(max_size=60)))
def test_any_text_is_read(lines: list[str]) -> None:
    """No text of a log is too odd, and what is told of it is bounded."""
    words = read_launcher([f"srun: {line}" for line in lines])
    assert len(words.refused) <= 300


def test_the_log_of_one_process() -> None:
    """Errors of the others are left out, and lines keep their numbers."""
    lines = [
        "0: RuntimeError: CUDA error: out of memory",
        "1: one",
        "1: RuntimeError: index out of bounds: 0 <= tmp2 < 32L",
    ]
    root = read_log(lines, "1").root
    assert root is not None and (root.line, root.process) == (3, "1")
    assert read_log(lines, "2").root is None


def call(n: int, seconds: float | None, *, size: int = 10, **more: Any) -> CapturedCall:
    """Call `n` of one package, begun at second `n`; one without `seconds` is under way."""
    outcome = "unfinished" if seconds is None else "ok"
    leaves = [{"dtype": "float32", "shape": [size, 2]}]
    fields = {"pid": 7, "n": n, "t": float(n), "number": n, "load": 0, "thread": 1, "leaves": leaves}
    return CapturedCall.model_validate({**fields, "outcome": outcome, "seconds": seconds, **more})


@pytest.mark.parametrize(
    ("calls", "age_s", "stalled"),
    [
        ([call(1, 0.1), call(2, None)], 46, True),
        ([call(1, 0.1), call(2, None)], 44, False),
        ([call(1, 0.1), call(2, None, size=80)], 46, True),
        ([call(1, 0.1), call(2, None, size=81)], 500, False),
        ([call(1, 0.1), call(2, 3.0), call(3, None)], 299, False),
        ([call(1, 0.1), call(2, 3.0), call(3, None)], 301, True),
        ([call(2, None)], 500, False),
        ([call(1, 0.1, load=1), call(2, None)], 500, False),
        ([call(1, 0.1, outcome="failed"), call(2, None)], 500, False),
        ([call(1, 0.1), call(2, None), call(3, None)], 500, False),
        ([call(1, 0.1), call(2, 0.1)], 500, False),
        ([call(1, 0.1), call(2, None, notice="a CUDA graph was being captured")], 500, False),
    ],
    ids=[
        "long", "short", "eight times the data", "more", "slow calls", "slower still", "first call",
        "other package", "failed before", "two threads", "all ended", "recorded",
    ],
)  # fmt: skip
def test_far_longer_than_its_like(calls: list[CapturedCall], age_s: float, stalled: bool) -> None:
    """After 45 s and a hundred times its like; who waits for whom among threads, nobody can tell."""
    found = stalled_call(Captured(calls=calls), calls[-1].t + age_s, 45)
    assert found == (calls[-1] if stalled else None)
