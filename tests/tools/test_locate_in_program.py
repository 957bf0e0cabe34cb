"""`locate_fault` of scripts and commands: the failing call by itself, or the program as it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_server.errors import ProblemError
from mcp_server.model import CommandWorkload, ScriptWorkload
from mcp_server.package.view import view_package
from mcp_server.probes.cache import Cache
from mcp_server.tools.fault_run import Program, ProgramTarget
from mcp_server.tools.locate_fault import LocatedFault, locate_in_program
from tests.conftest import ZooPackage
from tests.served import served
from tests.worker.support import QUICK, context_in
from tests.zoo.names import thorough
from tools.made import MADE

CODE = """
import sys, torch
model = torch._inductor.aoti_load_package(sys.argv[1])
inputs = torch.load(sys.argv[2])
model(inputs[0] * 0)
model(*inputs)
"""


def program(directory: Path, package: Path, **env: str) -> ScriptWorkload:
    script = directory / "serve.py"
    script.write_text(CODE)
    bad = package.with_name("ranker.bad-index.pt")
    return ScriptWorkload(script=script, args=[str(package), str(bad)], cwd=directory, env={**QUICK, **env})


def located(directory: Path, workload: Program, **asked: Any) -> LocatedFault:
    cache = Cache(MADE / "instrumented")
    context = context_in(directory / "job")
    return served(locate_in_program, context, workload, cache=cache, **asked)


@pytest.mark.slow
def test_the_failing_call_of_a_script_is_made_again(zoo: ZooPackage, tmp_path: Path) -> None:
    """The second call runs under AddressSanitizer: the address is known, and the script's line."""
    found = located(tmp_path, program(tmp_path, zoo("ranker")), plain_runs=0)
    assert (found.tool, found.instrumented) == ("asan", True)
    assert found.notes[0].endswith("serve.py:6")
    assert found.fault is not None and found.fault.missed is not None and found.fault.blame is not None
    assert (found.fault.missed.index, found.fault.blame.input_index) == ([32, 0], 0)


@pytest.mark.slow
@thorough
def test_a_script_whose_inputs_were_not_kept_runs_under_the_tool(zoo: ZooPackage, tmp_path: Path) -> None:
    """Above the cap nothing can be replayed: the program itself is run, launches have no addresses."""
    found = located(tmp_path, program(tmp_path, zoo("ranker"), AOTI_DEBUG_CAPTURE_CAP="100"))
    assert (found.tool, found.instrumented) == ("native", False)
    assert "not kept" in found.notes[0]
    assert found.fault is not None and found.fault.blame is not None and found.fault.launch is not None
    assert (found.fault.kind, found.fault.blame.input_index) == ("assert", 0)
    assert found.visibility is not None and found.visibility.how == "plain"


@pytest.mark.slow
def test_a_program_that_shows_no_package_needs_one(zoo: ZooPackage, tmp_path: Path) -> None:
    """A host that the hook does not see into is refused without its package, and run with it."""
    host = CommandWorkload(argv=[sys.executable, "-I", "-c", "import os; os.abort()"], cwd=tmp_path)
    with pytest.raises(ProblemError, match="no load of a package was seen"):
        located(tmp_path, host)
    found = located(tmp_path, host, package=zoo("ranker"))
    assert not found.found and [attempt.tool for attempt in found.attempts] == ["native"]


def test_what_a_graph_capture_forbids_is_left_out(zoo: ZooPackage, tmp_path: Path) -> None:
    """Without the caching allocator a capture would fail: the flag goes, others stay."""

    async def output(caching_off: bool) -> str:
        code = "import os; print(*(os.environ.get(k) for k in ('PYTORCH_NO_CUDA_MEMORY_CACHING', 'OTHER')))"
        host = CommandWorkload(argv=[sys.executable, "-c", code], cwd=tmp_path)
        target = ProgramTarget(host, view_package(zoo("ranker")), caching_off)
        env = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OTHER": "x"}
        context = context_in(tmp_path / "job")
        run = await target.run(context, context.fresh("program"), env=env)
        return run.done.finished.stdout.read_text().strip()

    assert anyio.run(output, True) == "1 x"
    assert anyio.run(output, False) == "None x"
