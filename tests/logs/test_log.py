"""Reading logs: the root error and its location, other facts, and logs as files."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from mcp_server.logs.log import MAX_ERRORS, read_log, read_log_file
from mcp_server.logs.text import read_line
from mcp_server.runtime.failure import read_launcher
from tests.logs.support import digest, gold, lines_of, read

ASSERT = (
    "/c/ab.py:40: unknown: block: [{},0,0], thread: [2,0,0] "
    "Assertion `index out of bounds: 0 <= tmp4 < ks0` failed."
)
LOGS = json.loads(Path(__file__).with_name("logs.json").read_text())
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/serve.py", line 12, in <module>',
    "    main()",
    '  File "/app/serve.py", line 9, in main',
    "    y = runner(x)",
    "        ^^^^^^^^^",
    '  File "/venv/lib/python3.12/site-packages/torch/export/pt2_archive/_package.py", line 733, in __call__',
    "    flat_outputs = self.loader.boxed_run(flat_inputs)",
)


@pytest.mark.parametrize("name", sorted(gold()))
def test_recording(name: str) -> None:
    """The facts of a recorded log equal the gold file."""
    assert digest(read_log(lines_of(name))) == gold()[name]


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["root"])
def test_root_is_the_cause(case: dict[str, Any]) -> None:
    """The error that explains the others is the root, and the others narrow its candidates.

    Of several errors of one rank, the root is in the traceback that ended the program. The CUDA status at
    teardown narrows the candidates, and so does the operator that a size assertion names. A failed check of
    the program is distinguished from a mistake in the script. `TRACEBACK` stands for its lines.
    """
    lines = (TRACEBACK if line == "TRACEBACK" else (line,) for line in case["lines"])
    root = read(*itertools.chain(*lines)).root
    assert root is not None and root.family.id == case["root"]
    assert list(root.candidates) == case.get("candidates", list(root.candidates))


def test_code_in_tracebacks_is_no_error() -> None:
    """A source line that quotes an error text is not an error."""
    facts = read(
        "Traceback (most recent call last):",
        '  File "/app/a.py", line 3, in f',
        '    raise KeyError("Constant not found: x")',
        "KeyError: 'gone'",
    )
    assert [error.family.id for error in facts.errors] == ["own_check"]


def test_crash_in_load_constants() -> None:
    """faulthandler's stack moves the category of the stage (an update of constants) to the front."""
    facts = read(
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f2b8a7fd740 (most recent call first):",
        '  File "/venv/lib/python3.12/site-packages/torch/_package.py", line 756 in load_constants',
        '  File "/app/refresh.py", line 40 in <module>',
        "",
    )
    assert facts.root is not None and facts.root.candidates[0] == "constants"
    assert [frame.file for frame in facts.frames] == ["/app/refresh.py"]


def test_ranks_are_told_apart() -> None:
    """Tracebacks of interleaved processes stay separate."""
    lines = []
    for text in (*TRACEBACK, "RuntimeError: Constant not found: a"):
        lines += [f"[rank0]: {text}", f"[rank1]: {text.replace('serve', 'other')}"]
    facts = read(*lines)
    assert set(facts.processes) == {"0", "1"}
    assert {each.user_frames[0].file for each in facts.exceptions} == {"/app/serve.py", "/app/other.py"}


@pytest.mark.parametrize(
    "lines",
    [
        TRACEBACK[1:],
        [f"      {text}" for text in TRACEBACK],
        [f"(Worker pid=913) ERROR 03-31 17:21:15 [executor.py:932] {text}" for text in TRACEBACK],
        [f"Oct 04 15:02:41 llm serve[394]: {text}" for text in TRACEBACK],
        [f"2026-01-01T10:00:03.455123456Z stderr F {text}" for text in TRACEBACK],
    ],
    ids=["without its head", "indented", "of a server", "of a journal", "of a container runtime"],
)
def test_frames_of_a_pasted_traceback(lines: list[str]) -> None:
    """A traceback is read even without its first line, if indented, or behind the prefixes of a server."""
    before = lines[-1].partition("flat_outputs")[0].removesuffix("    ")
    facts = read(*lines, f"{before}RuntimeError: expected inputs vector size to be 2, but got 1")
    assert [(frame.line, frame.code) for frame in facts.frames] == [(12, "main()"), (9, "y = runner(x)")]
    assert facts.truncated == ""


def test_frames_without_a_head_need_the_name_of_an_exception() -> None:
    """A stack printed for another reason does not make an exception of the next word."""
    facts = read("Created at:", TRACEBACK[1], TRACEBACK[2], "Done", *["step"] * 9, "Ready: yes")
    assert facts.exceptions == () and facts.truncated == ""


def test_late_cause_finds_room() -> None:
    """A cause is kept even if the list of errors is full of less important ones."""
    lines = [f"ValueError: number {number} is odd" for number in range(MAX_ERRORS * 2)]
    facts = read(*lines, ASSERT.format(1))
    assert facts.root is not None and facts.root.family.id == "device_assert_index"
    assert len(facts.errors) == MAX_ERRORS and facts.dropped_errors == MAX_ERRORS + 1


# Logs as files, and the prefixes of their lines.

FIRST = "RuntimeError: input_handles[0]: unmatched dtype, expected: 6(at::kFloat) but got: 4(at::kInt)\n"
LAST = "RuntimeError: index out of bounds: 0 <= tmp4 < 32L\n"


def test_an_error_in_the_middle_of_a_large_log_is_found(tmp_path: Path) -> None:
    """Errors at both ends, and in the middle, are found with their line numbers."""
    path = tmp_path / "run.log"
    steps = "step\n" * 250_000
    path.write_text(FIRST + steps + "MemoryError: no memory\n" + steps + LAST)
    facts = read_log_file(path)
    assert [error.line for error in facts.errors] == [1, 250_002, 500_003]
    assert facts.lines == 500_003 and facts.truncated == ""


@pytest.mark.parametrize(
    ("raw", "process", "text"),
    [
        ("[rank3]: boom", "3", "boom"),
        ("[default0]:boom", "0", "boom"),
        ("12: boom", "12", "boom"),
        ("[1,4]<stderr>: boom", "1", "boom"),
        ("2026-11-20T19:30:31.5288136Z boom", "", "boom"),
        ("[rank1]:[E1120 18:36:05.165533282 c_shim_cuda.cpp:1273] boom", "1", "boom"),
        ("1024 things", "", "1024 things"),
        ("2025-03-05T19:01:56.823872 - boom", "", "boom"),
        ("Oct 04 15:02:41 llm sd-webui-forge-start[394]: boom", "", "boom"),
        ("Oct 04 things", "", "Oct 04 things"),
        ("(EngineCore_0 pid=4121) boom", "4121", "boom"),
        ("(Worker pid=913) ERROR 03-31 17:21:15 [multiproc_executor.py:932] boom", "913", "boom"),
        ("(train pid=77, ip=10.0.0.4) boom", "77", "boom"),
        ("(a remark) boom", "", "(a remark) boom"),
        ("api-1  | boom", "", "boom"),
    ],
)
def test_prefixes(raw: str, process: str, text: str) -> None:
    """Prefixes of launchers and loggers are separated from the text."""
    line = read_line(raw, 1)
    assert (line.process, line.text) == (process, text)


# Logs of several ranks.

# Printed by torchrun 2.13. Rank 0 was stopped because rank 1 had failed.
TORCHRUN = """\
[default1]:RuntimeError: boom
W1121 03:42:52.624000 1048 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 1091 closing signal SIGTERM
E1121 03:42:52.716000 1048 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 1 (pid: 1092) of binary: /usr/bin/python3
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
"""  # noqa: E501

# Printed by srun 22.05 without --label and with --kill-on-bad-exit.
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
    """A rank that was stopped because another failed is named only if there is no other."""
    first = read_launcher(text.splitlines()).first
    assert first is not None and (first.rank, first.how) == (rank, how)


def test_a_rank_cannot_speak_for_the_launcher() -> None:
    """A line with a rank prefix belongs to the program, even if it looks like one of the launcher."""
    lines = ["1: srun: error: n1: task 0: Killed", "0: srun: error: Unable to allocate resources"]
    words = read_launcher(lines)
    assert words.first is None and words.refused == ""


QUEUED = "srun: job 7 queued and waiting for resources\n"


@pytest.mark.parametrize(
    "text, waiting, refused",
    [
        (QUEUED, True, False),
        (f"{QUEUED}srun: job 7 has been allocated resources\n", False, False),
        ("srun: error: Unable to allocate resources: Invalid partition name specified\n", False, True),
        ("srun: unrecognized option '--gpu'\n", False, True),
        ("srun: error: Unable to create step\nsrun: error: n1: task 0: Killed\n", False, False),
    ],
)
def test_a_launcher_that_started_nothing(text: str, waiting: bool, refused: bool) -> None:
    """Resources were refused, or are waited for; neither is reported once a rank has run."""
    words = read_launcher(text.splitlines())
    assert (words.waiting, bool(words.refused)) == (waiting, refused)


def test_the_log_of_one_process() -> None:
    """Errors of other processes are left out, and line numbers stay the same."""
    lines = [
        "0: RuntimeError: CUDA error: out of memory",
        "1: one",
        "1: RuntimeError: index out of bounds: tmp2 < 32L",  # of an index that cannot be negative
    ]
    root = read_log(lines, "1").root
    assert root is not None and (root.line, root.process, root.fields["bound"]) == (3, "1", "32")
    assert read_log(lines, "2").root is None
