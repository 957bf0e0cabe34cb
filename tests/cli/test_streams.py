"""Streams and disks that are full, closed or not read."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.jobs.store import Store
from mcp_server.model import Verdict
from mcp_server.server.standard_streams import LossyStream
from tests.conftest import ROOT
from tests.jobs.support import ASKED, asked_before
from tests.server.small_disk import SmallDisk, small_disk
from tests.support.command import CLI, environment, ran
from tests.support.servers import serving
from tests.zoo.names import THOROUGH, nightly, thorough

# Streams that are full or closed, and signals.

EXPLAIN = [*CLI, "explain-error", "--text", "index out of bounds: 0 <= tmp4 < ks1"]


def shell(tmp_path: Path, redirection: str, command: list[str] = EXPLAIN) -> tuple[int, str, str]:
    """Exit status, output and errors of a command with redirected streams."""
    done = ran(["sh", "-c", f'exec "$@" {redirection}', "sh", *command], tmp_path)
    return done.returncode, done.stdout, done.stderr


def limited(kilobytes: int) -> list[str]:
    """The words before a command that may write no file larger than this."""
    return ["bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "bash"]


@pytest.mark.parametrize(
    ("redirection", "said"),
    [
        ("> /dev/full", "error: the result cannot be written to standard output: the disk is full\n"),
        (">&-", "error: standard output is closed, so nobody would see the result\n"),
    ],
)
def test_an_output_that_takes_nothing(tmp_path: Path, redirection: str, said: str) -> None:
    """A result that nobody receives is a failure with a message (2), and not a fault (1)."""
    code, _, err = shell(tmp_path, redirection)
    assert (code, err.startswith(said), "Traceback" in err) == (2, True, False)


def test_a_step_that_takes_long_is_reported_while_it_runs(tmp_path: Path) -> None:
    """Every eight seconds, a line says what is still running, and since when."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(10)\n")
    _, _, err = shell(tmp_path, "", [*CLI, "diagnose", "slow.py"])
    assert re.search(r"^\[\d+\.\d s\] step 1: .*slow.py.*, still running", err, re.MULTILINE)


@pytest.mark.parametrize("option", ["--help", *nightly("--version")])
def test_help_on_a_full_disk(tmp_path: Path, option: str) -> None:
    """Output that our own code does not print fails in the same way."""
    code, _, err = shell(tmp_path, "> /dev/full", [*CLI, option])
    assert (code, err) == (2, "error: it could not be done: the disk is full\n")


@pytest.mark.parametrize("redirection", ["2> /dev/full", *nightly("2>&-")])
def test_errors_that_reach_nobody(tmp_path: Path, redirection: str) -> None:
    """Progress that cannot be printed is no failure."""
    code, out, _ = shell(tmp_path, redirection)
    assert code == 0 and "tmp4" in out


def test_a_disk_that_takes_nothing(tmp_path: Path) -> None:
    """If no job can be stored, not even in the temporary directory, the error says so."""
    done = ran([*limited(0), *EXPLAIN], tmp_path, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 2 and "cannot store a job" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, *nightly(signal.SIGHUP)])
def test_a_signal_leaves_what_is_known(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and SIGHUP end a diagnosis with verdict, way to resume, 128 + n, and no process.

    `timeout` sends SIGTERM to its child, and then to the process group of both.
    """
    script = tmp_path / "slow.py"
    script.write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(300)")
    argv = [*CLI, "diagnose", "slow.py"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, cwd=tmp_path, env=environment(tmp_path), **pipes) as process:
        _until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "", process)
        process.send_signal(number)
        if number != signal.SIGINT:
            time.sleep(0.3)
            process.send_signal(number)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "Traceback" not in err and out.startswith("INCONCLUSIVE  stopped")
    assert "$ aoti-debug diagnose --resume job_" in out
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def _until(seen: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 300
    while not seen():
        assert time.monotonic() < limit and process.poll() is None
        time.sleep(0.05)


WRITES = (
    "import sys\n"
    "from mcp_server.server.standard_streams import log_briefly\n"
    "log_briefly()\n"
    "for n in range(4000): sys.stderr.write(f'line {n} ' + 'x' * 200 + '\\n')\n"
    "print('done')\n"
)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_errors_that_nobody_reads_hold_nobody_up(kind: str) -> None:
    """A process that writes a megabyte to a pipe or socket that nobody reads continues and ends."""
    ours, theirs = (end.detach() for end in socket.socketpair()) if kind == "socket" else os.pipe()
    try:
        done = subprocess.run(
            [CLI[0], "-c", WRITES], cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True
        )
        assert done.stdout == b"done\n"
        assert os.read(ours, 7) == b"line 0 "
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_was_dropped_is_counted() -> None:
    """The first line that gets through says how much is missing before it."""
    taken: list[bytes] = []
    open_now = False

    def write(data: bytes) -> int:
        if not open_now:
            raise BlockingIOError
        taken.append(data)
        return len(data)

    stream = LossyStream(2, write)
    stream.write("lost\n")
    stream.write("lost too\n")
    open_now = True
    stream.write("seen\n")
    stream.write("and this\n")
    assert b"".join(taken) == b"\n[14 bytes were dropped here: nobody read them]\nseen\nand this\n"


# A full disk.

FLOOD = "import sys\nfor _ in range(40_000):\n    print('x' * 100)\nsys.exit(3)\n"

Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    """A small disk. With the parameter "alone", no other temporary directory can be written."""
    with small_disk(tmp_path / "disk", alone=getattr(request, "param", "") == "alone") as disk:
        yield disk


@pytest.fixture
def typed(disk: SmallDisk, tmp_path: Path) -> Typed:
    """A function that runs a command line with its state on the small disk."""

    def typed(*arguments: str, temporary: Path = disk.path) -> subprocess.CompletedProcess[str]:
        variables = {"AOTI_DEBUG_STATE": str(disk.path / "state"), "TMPDIR": str(temporary)}
        return ran(disk.command(disk.path, *CLI, *arguments), tmp_path, **variables)

    return typed


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    """Check for exit status 2, no standard output, and a few lines that say why."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert words in done.stderr and "Traceback" not in done.stderr and len(done.stderr) < 1_000, done.stderr


@pytest.mark.parametrize("command", ["run-deterministic", *nightly("diagnose")])
def test_output_that_the_disk_did_not_take(tmp_path: Path, command: str) -> None:
    """If no file may exceed 1 MiB, 4 MB of output are cut, and the result has the reason and remedy."""
    (tmp_path / "flood.py").write_text(FLOOD)
    done = ran([*limited(1024), *CLI, command, "flood.py", "--json"], tmp_path)
    assert done.returncode in (1, 3), done.stderr
    result = json.loads(done.stdout)
    said = result["summary"] if command == "diagnose" else " ".join(result["notes"])
    assert command == "diagnose" or result["runs"][0]["failure"]["returncode"] == 3, "judged by its end"
    assert "output of the workload is incomplete, since File too large: set AOTI_DEBUG_STATE" in said


@thorough
def test_a_capture_on_a_disk_that_fills(disk: SmallDisk, typed: Typed, tmp_path: Path) -> None:
    """The program runs to its end although nothing can be kept. The full disk is named, without a stack."""
    done_file = tmp_path / "done"
    (tmp_path / "flood.py").write_text(FLOOD.replace("sys.exit(3)", f"open({str(done_file)!r}, 'w').close()"))
    done = typed("diagnose", str(tmp_path / "flood.py"), "--json")
    assert done_file.exists()
    assert "the disk is full" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr and "defect" not in done.stderr
    assert done.returncode in (2, 3), done


@pytest.mark.parametrize("disk", ["alone"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "SCRIPT"],
        *nightly(["run-deterministic", "SCRIPT"], ["explain-error", "--text", "boom"], ["doctor"]),
    ],
    ids=lambda words: words[0],
)
def test_no_job_fits_a_full_disk(disk: SmallDisk, typed: Typed, tmp_path: Path, arguments: list[str]) -> None:
    """If the temporary directory is full too, the command says so, and leaves no part of a job."""
    (tmp_path / "x.py").write_text("")
    disk.fill()
    script = str(tmp_path / "x.py")
    refused(typed(*(script if word == "SCRIPT" else word for word in arguments)), "the disk is full")
    disk.free()
    assert list(disk.seen.glob("state/jobs/*")) == []


def test_the_temporary_directory_stands_in(disk: SmallDisk, typed: Typed, tmp_path: Path) -> None:
    """With room in the temporary directory, the command works there, and says so."""
    disk.fill()
    done = typed("explain-error", "--text", "boom", temporary=tmp_path)
    assert done.returncode == 3 and "boom" in done.stdout, done
    assert "the disk is full" in done.stderr and f"using {tmp_path}/aoti-debug-" in done.stderr


@pytest.mark.parametrize(("command", "name"), [("bundle", "out.zip"), *nightly(("report", "out"))])
def test_reports_without_room(disk: SmallDisk, typed: Typed, tmp_path: Path, command: str, name: str) -> None:
    """It is refused without leaving an incomplete file. The verdict stays, and with room it works."""
    verdict = tmp_path / "verdict.json"
    verdict.write_text(Verdict(outcome="no_fault", summary="Nothing is wrong.").model_dump_json())
    before = verdict.read_bytes()
    (disk.seen / "state").mkdir(mode=0o700)
    (disk.seen / "state" / "jobs").mkdir(mode=0o700)
    disk.fill()
    out = disk.path / name
    done = typed(command, str(verdict), "--out", str(out))
    refused(done, f"the {command} cannot be written: the disk is full")
    assert verdict.read_bytes() == before
    disk.free()
    done = typed(command, str(verdict), "--out", str(out))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("disk", ["alone"], indirect=True)
def test_a_job_resumed_on_a_full_disk_is_not_lost(disk: SmallDisk, typed: Typed, tmp_path: Path) -> None:
    """Its request and result stay, and it can be resumed once there is room."""
    (tmp_path / "x.py").write_text("raise RuntimeError('boom')\n")
    store = Store(disk.seen / "state")
    job = store.create("diagnose")
    asked_before(job.path, "diagnose", tmp_path, script="x.py")
    (job.path / "result.json").write_text('{"kept": true}')
    job.release()
    before = {path.name: path.read_bytes() for path in job.path.iterdir() if path.name != "running.lock"}
    assert ASKED in before
    disk.fill()
    refused(typed("diagnose", "--resume", job.id), "the disk is full")
    assert {name: (job.path / name).read_bytes() for name in before} == before
    if THOROUGH:
        disk.free()
        assert typed("diagnose", "--resume", job.id).returncode in (1, 3)


@pytest.mark.parametrize("disk", ["alone"], indirect=True)
def test_the_server_goes_on_when_the_disk_is_full(disk: SmallDisk, tmp_path: Path) -> None:
    """A call is answered with an error that names the disk. Once there is room, calls work again."""
    call = {"name": "explain_error", "arguments": {"text": "boom"}}
    variables = {"AOTI_DEBUG_STATE": str(disk.path / "state"), "TMPDIR": str(disk.path)}
    with serving(tmp_path, within=disk.command(ROOT), variables=variables) as speaker:
        answers: list[dict[str, Any]] = []
        for full in (False, True, False):
            if full:
                disk.fill()
            elif answers:
                disk.free()
            asked = speaker.ask("tools/call", call)
            while (heard := speaker.hear()).get("id") != asked:
                pass
            answers.append(heard["result"])
            assert speaker.ping() < 20
        assert [answer["isError"] for answer in answers] == [False, True, False]
        said = answers[1]["content"][0]["text"]
        assert "cannot store a job: the disk is full" in said and "AOTI_DEBUG_STATE" in said
        assert "Traceback" not in said
        # The first job's result still exists.
        number = speaker.ask("resources/read", {"uri": "aoti-debug://jobs"})
        while (heard := speaker.hear()).get("id") != number:
            pass
        states = [row["state"] for row in json.loads(heard["result"]["contents"][0]["text"])]
        assert states == ["finished", "finished"]
