"""Ranks under a launcher: their lines apart, and one of them answering for the worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from mcp_server.jobs.command import Command
from mcp_server.runtime.context import Context
from mcp_server.runtime.launchers import ONLY_FIRST, launched, separate_ranks

TORCHRUN = Path(sys.executable).parent / "torchrun"
PROGRAM = "import os; print('rank', os.environ['RANK'], 'is here')"


@pytest.mark.parametrize(
    "prefix, added",
    [
        (["torchrun"], ["--no-python", "--log-dir", "d/torchrun", "--tee", "3"]),
        (["/opt/bin/torchrun", "--no-python", "--log-dir=x", "-t", "0:1"], []),
        (["srun", "--gpus=1"], ["--label"]),
        (["nice", "-n", "5"], []),
    ],
)
def test_options_are_added_once(prefix: list[str], added: list[str]) -> None:
    """Only to launchers that are known, and only where the prefix does not say otherwise."""
    assert launched(prefix, ["python", "x.py"], Path("d")) == (*prefix, *added, "python", "x.py")


def test_without_a_launcher_nothing_changes() -> None:
    """The program is run as it is."""
    assert launched([], ["python"], Path("d")) == ("python",)


def test_lines_of_each_rank(tmp_path: Path) -> None:
    """As srun labels them; lines of the launcher itself belong to nobody."""
    output = tmp_path / "output.log"
    output.write_text("0: one\n1: two\nsrun: error\n10: three\n0: four\n")
    paths = separate_ranks(output, ["srun"])
    assert [(path.name, path.read_text()) for path in paths] == [
        ("0.log", "one\nfour\n"),
        ("1.log", "two\n"),
        ("10.log", "three\n"),
    ]


def test_one_rank_needs_no_log_of_its_own(tmp_path: Path) -> None:
    """Nor does a program that numbers its lines without a launcher."""
    output = tmp_path / "output.log"
    output.write_text("0: one\n0: two\n")
    assert separate_ranks(output, ["srun"]) == []
    output.write_text("0: one\n1: two\n")
    assert separate_ranks(output, []) == [] and not (tmp_path / "ranks").exists()


@pytest.mark.parametrize("variable", ["RANK", "SLURM_PROCID", "PMI_RANK"])
def test_a_tool_runs_once(variable: str) -> None:
    """What is no run of the workload, such as a compiler, is done by the first rank alone."""
    said = [
        subprocess.check_output([*ONLY_FIRST, "echo", "two words"], env={variable: rank}, text=True)
        for rank in ("0", "1")
    ]
    assert said == ["two words\n", ""]


@pytest.mark.slow
def test_torchrun_with_two_ranks(tmp_path: Path) -> None:
    """A real launch: each rank's lines are in a file of its own."""
    prefix = (str(TORCHRUN), "--nproc-per-node", "2", "--standalone")
    context = Context(tmp_path, Path(sys.executable), launcher=prefix)
    command = Command(argv=(sys.executable, "-c", PROGRAM), cwd=tmp_path, timeout_s=120)
    finished = anyio.run(lambda: context.run(command, "both", runs=1))
    assert finished.ok
    logs = {path.name: path.read_text().strip() for path in (finished.output.parent / "ranks").iterdir()}
    assert logs == {"0.log": "rank 0 is here", "1.log": "rank 1 is here"}


@pytest.mark.slow
def test_one_rank_answers_for_the_worker(tmp_path: Path) -> None:
    """A request is carried out by rank 0 alone: the report has each event once."""
    prefix = (str(TORCHRUN), "--nproc-per-node", "2", "--standalone")
    context = Context(tmp_path, Path(sys.executable), launcher=prefix)
    done = anyio.run(lambda: context.worker("probe", {}, cwd=tmp_path))
    assert done.finished.ok and len(done.phases("finished")) == 1
