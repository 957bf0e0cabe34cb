"""What srun and torchrun say of the processes that they started."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
