"""Packages of unusual form are rebuilt too: folded constants, weights outside the library.

A compile takes ten seconds a form: AOTI_DEBUG_THOROUGH=1 tries them all, otherwise one.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from mcp_server.evidence.journal import read_journal_file
from mcp_server.instrument.build import instrument
from mcp_server.instrument.cache import Cache
from mcp_server.instrument.types import Options
from mcp_server.steps.context import Context, WorkerRun
from tests.conftest import CACHE, ROOT, torch_environment

pytestmark = pytest.mark.slow

THOROUGH = bool(os.environ.get("AOTI_DEBUG_THOROUGH"))
FORMS = ["folding", *(["mapped", "blob", "files"] if THOROUGH else [])]
LAUNCHES = {"folding": [2, 3, 0, 1], "mapped": [0, 1, 2], "blob": [0, 1, 2], "files": [0, 1, 2]}


def special(form: str) -> Path:
    """The package, compiled once and kept between runs."""
    package = CACHE / f"{form}.pt2"
    source = ROOT / "tests" / "zoo" / "forms.py"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{form}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not package.exists() or package.stat().st_mtime < source.stat().st_mtime:
            argv = [sys.executable, "-W", "ignore", "-m", "tests.zoo.forms", form, str(CACHE)]
            subprocess.run(argv, env=torch_environment(), cwd=ROOT, check=True)
    return package


def run(context: Context, operation: str, package: Path, inputs: Path, directory: Path) -> WorkerRun:
    """One call; its journal and its outputs go into `directory`."""
    directory.mkdir()
    request = {"package": package, "inputs": inputs, "save_outputs": directory / "outputs.pt"}
    env = {"AOTI_DEBUG_JOURNAL": str(directory / "launches.jsonl")}
    done = anyio.run(lambda: context.worker(operation, request, env=env))
    assert done.finished.ok, done.finished.stderr.read_text()[-2000:]
    return done


@pytest.mark.parametrize("form", FORMS)
def test_a_package_of_unusual_form_is_the_same_program(
    form: str, context: Context, cache: Cache, tmp_path: Path
) -> None:
    """Bit-identical outputs; journal and subscriber see every launch, those of constant folding first."""
    package = special(form)
    inputs = package.with_suffix(".inputs.pt")
    rebuilt = anyio.run(lambda: instrument(package, Options(), context, cache=cache))
    assert rebuilt.skipped == ()
    observed = run(context, "observe", rebuilt.package, inputs, tmp_path / "rebuilt")
    journal = read_journal_file(tmp_path / "rebuilt" / "launches.jsonl")
    launches = [launch.launch for launch in journal.launches]
    assert launches == LAUNCHES[form] and len(journal.calls) == 1
    assert list(dict.fromkeys(event["launch"] for event in observed.all("argument"))) == launches
    run(context, "run", package, inputs, tmp_path / "original")
    outputs = [(tmp_path / which / "outputs.pt").read_bytes() for which in ("rebuilt", "original")]
    assert outputs[0] == outputs[1]
