"""A full disk, or one that fills during a run: a clear error, no stack, and nothing is lost."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.jobs.store import Store
from mcp_server.model import Verdict
from mcp_server.operations.arguments import DiagnoseArguments
from mcp_server.operations.work import CARD, remember
from tests.server.clients import ROOT
from tests.server.small_disk import SmallDisk, small_disk
from tests.server.test_cli import CLI, environment
from tests.server.test_stdio import serving

FLOOD = "import sys\nfor _ in range(40_000):\n    print('x' * 100)\nsys.exit(3)\n"
LIMIT_BYTES = 1 << 20

Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    """With the parameter "alone" no other directory for temporary files can be written."""
    with small_disk(tmp_path / "disk", alone=getattr(request, "param", "") == "alone") as disk:
        yield disk


@pytest.fixture
def typed(disk: SmallDisk, tmp_path: Path) -> Typed:
    """Runs a command line with the state directory on the small disk, and the temporary one as said."""

    def typed(*arguments: str, temporary: Path = disk.path) -> subprocess.CompletedProcess[str]:
        variables = {"AOTI_DEBUG_STATE": str(disk.path / "state"), "TMPDIR": str(temporary)}
        return subprocess.run(
            disk.command(disk.path, *CLI, *arguments),
            env={**environment(tmp_path), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return typed


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    """Exit status 2, nothing on standard output, and a few lines that say why."""
    assert (done.returncode, done.stdout) == (2, ""), done
    assert words in done.stderr and "Traceback" not in done.stderr and len(done.stderr) < 1_000, done.stderr


@pytest.mark.parametrize("command", ["diagnose", "run-deterministic"])
def test_output_that_the_disk_did_not_take(tmp_path: Path, command: str) -> None:
    """4 MB of output where no file may exceed 1 MiB: the reason and the remedy are in the result."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))

    (tmp_path / "flood.py").write_text(FLOOD)
    done = subprocess.run(
        [*CLI, command, "flood.py", "--json"],
        cwd=tmp_path,
        env=environment(tmp_path),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (1, 3), done.stderr
    result = json.loads(done.stdout)
    said = result["summary"] if command == "diagnose" else " ".join(result["notes"])
    assert "output of the workload is incomplete, since File too large: set AOTI_DEBUG_STATE" in said


def test_a_disk_that_the_output_fills(disk: SmallDisk, typed: Typed, tmp_path: Path) -> None:
    """4 MB of output on a disk of 1 MB: the run is judged by its end, and the result says what is missing."""
    (tmp_path / "flood.py").write_text(FLOOD)
    done = typed("run-deterministic", str(tmp_path / "flood.py"), "--repeats", "1", "--json")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    result = json.loads(done.stdout)
    assert "output of the workload is incomplete, since the disk is full" in " ".join(result["notes"])
    assert result["runs"][0]["failure"]["returncode"] == 3


def test_a_capture_on_a_disk_that_fills(disk: SmallDisk, typed: Typed, tmp_path: Path) -> None:
    """The program runs to its own end, though nothing of it can be kept; the disk is named, no stack."""
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
        ["run-deterministic", "SCRIPT"],
        ["explain-error", "--text", "boom"],
        ["doctor"],
    ],
    ids=lambda words: words[0],
)
def test_no_job_fits_on_a_full_disk(
    disk: SmallDisk, typed: Typed, tmp_path: Path, arguments: list[str]
) -> None:
    """Where the temporary directory is full too, the command says so; no part of a job is left."""
    (tmp_path / "x.py").write_text("")
    disk.fill()
    script = str(tmp_path / "x.py")
    refused(typed(*(script if word == "SCRIPT" else word for word in arguments)), "the disk is full")
    disk.free()
    assert list(disk.seen.glob("state/jobs/*")) == []


def test_the_temporary_directory_stands_in(disk: SmallDisk, typed: Typed, tmp_path: Path) -> None:
    """With room elsewhere the command does its work there, and says so."""
    disk.fill()
    done = typed("explain-error", "--text", "boom", temporary=tmp_path)
    assert done.returncode == 0 and "boom" in done.stdout, done
    assert "the disk is full" in done.stderr and f"using {tmp_path}/aoti-debug-" in done.stderr


@pytest.mark.parametrize(("command", "name"), [("report", "out"), ("bundle", "out.zip")])
def test_a_report_or_bundle_that_finds_no_room(
    disk: SmallDisk, typed: Typed, tmp_path: Path, command: str, name: str
) -> None:
    """It is refused, nothing half-written is left, the verdict stays, and once there is room it works."""
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
def test_a_job_that_is_resumed_on_a_full_disk_is_not_lost(
    disk: SmallDisk, typed: Typed, tmp_path: Path
) -> None:
    """What it was asked and what it had found stay, and it can be resumed once there is room."""
    (tmp_path / "x.py").write_text("raise RuntimeError('boom')\n")
    store = Store(disk.seen / "state")
    job = store.create("diagnose")
    remember(job.path, "diagnose", DiagnoseArguments(script=str(tmp_path / "x.py")))
    (job.path / "result.json").write_text('{"kept": true}')
    job.release()
    before = {path.name: path.read_bytes() for path in job.path.iterdir() if path.name != "running.lock"}
    assert CARD in before
    disk.fill()
    refused(typed("diagnose", "--resume", job.id), "the disk is full")
    assert {name: (job.path / name).read_bytes() for name in before} == before
    disk.free()
    assert typed("diagnose", "--resume", job.id).returncode in (1, 3)


@pytest.mark.parametrize("disk", ["alone"], indirect=True)
def test_the_server_goes_on_when_the_disk_is_full(disk: SmallDisk, tmp_path: Path) -> None:
    """A call is answered with an error that names the disk; when there is room again, the next call works."""
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
            assert speaker.ping() < 2
        assert [answer["isError"] for answer in answers] == [False, True, False]
        said = answers[1]["content"][0]["text"]
        assert "cannot store a job: the disk is full" in said and "AOTI_DEBUG_STATE" in said
        assert "Traceback" not in said
        # The first job's result is still there.
        number = speaker.ask("resources/read", {"uri": "aoti-debug://jobs"})
        while (heard := speaker.hear()).get("id") != number:
            pass
        states = [row["state"] for row in json.loads(heard["result"]["contents"][0]["text"])]
        assert states == ["finished", "finished"]
