"""Packages of unusual form are rebuilt too: folded constants, weights outside the library.

A compile takes ten seconds a form: AOTI_DEBUG_THOROUGH=1 tries them.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from mcp_server.logs.journal import read_journal_file
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.tools.context import Context, WorkerRun
from tests.conftest import CACHE, compiled_once
from tests.served import served
from tests.zoo.names import THOROUGH

pytestmark = pytest.mark.slow

FORMS = ["folding", "mapped", "blob", "files", "hidden"] if THOROUGH else []
LAUNCHES = {"folding": [2, 3, 0, 1]}
USUAL = [0, 1, 2]

# A linker that exports what the loader asks for, and neither kernels nor constants.
HIDING = """#!/bin/sh
for word in "$@"; do
  [ "$word" = -shared ] && exec /usr/bin/g++ "$@" -Wl,--version-script="$(dirname "$0")/exports.map"
done
exec /usr/bin/g++ "$@"
"""
EXPORTS = "{ global: AOTInductor*; local: *; };"


def hiding_compiler(directory: Path) -> dict[str, str]:
    """The environment in which torch compiles with it."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "exports.map").write_text(EXPORTS)
    (directory / "g++").write_text(HIDING)
    (directory / "g++").chmod(0o755)
    return {"CXX": str(directory / "g++")}


def special(form: str) -> Path:
    """The package, compiled once and kept between runs."""
    more = hiding_compiler(CACHE / "hiding") if form == "hidden" else {}
    return compiled_once(CACHE / f"{form}.pt2", "tests.zoo.forms", form, more=more)


def run(context: Context, operation: str, package: Path, inputs: Path, directory: Path) -> WorkerRun:
    """One call; its journal goes into `directory`."""
    directory.mkdir()
    request = {"package": package, "inputs": inputs}
    env = {"AOTI_DEBUG_JOURNAL": str(directory / "launches.jsonl")}
    done = served(Context.worker, context, operation, request, env=env)
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
    assert launches == LAUNCHES.get(form, USUAL) and len(journal.calls) == 1
    assert list(dict.fromkeys(event["launch"] for event in observed.all("argument"))) == launches
    original = run(context, "run", package, inputs, tmp_path / "original")
    called = [done.last("called") for done in (observed, original)]
    digests = [[output["checksum"] for output in each["outputs"]] for each in called if each is not None]
    assert len(digests) == 2 and digests[0] == digests[1] != []
