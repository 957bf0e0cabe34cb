"""Replays of captured calls: the same failure in the worker, or word that it needs the program."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from mcp_server.errors import ProblemError
from mcp_server.evidence.captured import (
    Captured,
    CapturedCall,
    CapturedCompile,
    CapturedLoad,
    CapturedProcess,
)
from mcp_server.model import ScriptWorkload
from mcp_server.steps import reports
from mcp_server.steps.capture import Capture
from mcp_server.steps.replay import Replayed, replay
from mcp_server.steps.replay_plan import how_made, imports_of, is_importable, own_module, plan_replay
from tests.conftest import ZooPackage
from tests.worker.support import captured, context_in, work

LOAD = "import sys, torch\nmodel = torch._inductor.aoti_load_package(sys.argv[1])\n"
READ = "inputs = torch.load(sys.argv[2])\n"


def replayed(directory: Path, seen: Capture, **options: Any) -> Replayed:
    async def run() -> Replayed:
        return await replay(context_in(directory / "again"), seen, **options)

    return anyio.run(run)


@pytest.mark.slow
def test_an_index_assert_is_reproduced(zoo: ZooPackage, tmp_path: Path) -> None:
    """The failing call raises the same text in the worker, also when the package is gone by then."""
    package = tmp_path / "mine.pt2"
    package.write_bytes(zoo("ranker").read_bytes())
    bad = str(zoo("ranker").with_name("ranker.bad-index.pt"))
    code = LOAD + READ + "import os\nos.unlink(sys.argv[1])\nmodel(inputs[0] * 0)\nmodel(*inputs)\n"
    seen = captured(tmp_path, code, str(package), bad)
    done = replayed(tmp_path, seen)
    assert (done.verdict, done.phase) == ("reproduced", "call")
    assert "index out of bounds" in done.root and not done.notes


@pytest.mark.slow
def test_nan_from_a_strided_slice_is_reproduced(zoo: ZooPackage, tmp_path: Path) -> None:
    """A view keeps its strides and offset on the way, and the outputs have the same NaN."""
    package = zoo("logarithm")
    code = LOAD + (
        "wide = torch.rand(9, 40)\nwide[3, 20] = -1\n"
        "model(wide[1:, 2:18], wide[1:, 20:36])\nmodel(torch.rand(2, 16), torch.rand(2, 16))\n"
    )
    seen = captured(tmp_path, code, str(package))
    call = seen.suspect
    assert call is not None and call is seen.calls[0] and call.nonfinite
    assert [leaf.stride for leaf in call.leaves] == [[40, 1], [40, 1]] and call.sharing == [[0, 1]]
    done = replayed(tmp_path, seen)
    assert done.verdict == "reproduced" and "NaN" in done.reason and done.outputs is not None
    given = next(event for event in read_events(done) if event["event"] == "given")
    assert [leaf["stride"] for leaf in given["leaves"]] == [[40, 1], [40, 1]]
    assert [leaf["storage_offset"] for leaf in given["leaves"]] == [42, 60]
    assert torch.load(done.outputs, weights_only=True)[0].isnan().any()
    exported = package.with_name("logarithm.exported.pt2")
    eager = work(tmp_path, "eager", {"exported": exported, "inputs": call.file}).last("called")
    assert eager is not None and eager["outputs"][0]["nan"] == call.outputs[0].nan


def read_events(done: Replayed) -> tuple[dict[str, Any], ...]:
    return reports.read_events(done.directory / "report.jsonl")


@pytest.mark.slow
def test_stale_constants_are_replayed_in_order(zoo: ZooPackage, tmp_path: Path) -> None:
    """Updates of constants come before the call, and the compared outputs are those of the program."""
    package = zoo("logarithm")
    code = (
        LOAD
        + READ
        + (
            "model.load_constants({'out.weight': torch.ones(8, 16)}, check_full_update=False)\n"
            "torch.testing.assert_close(model(*inputs), torch.zeros(8, 8))\n"
        )
    )
    seen = captured(tmp_path, code, str(package), str(package.with_name("logarithm.inputs.pt")))
    plan = plan_replay(seen)
    assert [step["do"] for step in plan.request["steps"]] == ["constants", "call"]
    done = replayed(tmp_path, seen)
    assert done.verdict == "reproduced" and "found wrong" in done.reason


@pytest.mark.slow
def test_a_crash_in_a_custom_op_of_the_script(zoo: ZooPackage, tmp_path: Path) -> None:
    """The script is imported for its op, without running it, and the same signal ends the replay."""
    code = """
import os, sys, torch

@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    os.abort()

if __name__ == "__main__":
    print("running the program")
    torch._inductor.aoti_load_package(sys.argv[1])(*torch.load(sys.argv[2]))
"""
    package = zoo("plugin")
    seen = captured(tmp_path, code, str(package), str(package.with_name("plugin.inputs.pt")))
    assert seen.finished.signal == "SIGABRT"
    done = replayed(tmp_path, seen, cwd=tmp_path)
    assert done.verdict == "reproduced" and done.finished.signal == "SIGABRT"
    assert done.request["extra_imports"] == [str(tmp_path / "program.py")]
    assert "running the program" not in done.finished.stdout.read_text()


@pytest.mark.slow
def test_a_failure_that_depends_on_the_program(zoo: ZooPackage, tmp_path: Path) -> None:
    """A healthy call before a failure elsewhere is not called a reproduction."""
    package = zoo("ranker")
    code = LOAD + READ + "model(*inputs)\nraise ValueError('mine')\n"
    seen = captured(tmp_path, code, str(package), str(package.with_name("ranker.inputs.pt")))
    done = replayed(tmp_path, seen)
    assert done.verdict == "needs_script" and "outside" in done.reason


@pytest.mark.slow
def test_a_bare_library_is_loaded_again(zoo: ZooPackage, tmp_path: Path) -> None:
    """`aot_load` of a .so, called in a subprocess: load and call are kept, and fail alike in the worker."""
    with zipfile.ZipFile(zoo("ranker")) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".wrapper.so"))
        (tmp_path / "bare.so").write_bytes(archive.read(name))
    code = """
import subprocess, sys, torch
if len(sys.argv) == 3:
    sys.exit(subprocess.run([sys.executable, *sys.argv, "child"]).returncode)
torch._export.aot_load(sys.argv[1], "cpu")(*torch.load(sys.argv[2]))
"""
    bad = str(zoo("ranker").with_name("ranker.bad-index.pt"))
    seen = captured(tmp_path, code, str(tmp_path / "bare.so"), bad)
    assert [load.loader for load in seen.loads] == ["AOTIModelContainerRunnerCpu"]
    assert seen.failing is not None and seen.failing.location is not None
    assert seen.failing.location.code.startswith("torch._export.aot_load")
    done = replayed(tmp_path, seen)
    assert done.verdict == "reproduced" and "index out of bounds" in done.root


@pytest.mark.slow
def test_a_truncated_package_fails_to_load_again(zoo: ZooPackage, tmp_path: Path) -> None:
    """A failing load is replayed from the copy of the file as it was."""
    package = tmp_path / "cut.pt2"
    package.write_bytes(zoo("ranker").read_bytes()[:5000])
    seen = captured(tmp_path, LOAD, str(package))
    assert seen.failing is None and seen.loads[-1].outcome == "failed"
    package.unlink()
    done = replayed(tmp_path, seen)
    assert (done.verdict, done.phase) == ("reproduced", "load")


@pytest.mark.slow
def test_a_failing_compile_is_replayed(zoo: ZooPackage, tmp_path: Path) -> None:
    """The exported program is compiled again with the captured options, and fails alike."""
    exported = zoo("ranker").with_name("ranker.exported.pt2")
    code = """
import sys, torch
program = torch.export.load(sys.argv[1])
torch._inductor.aoti_compile_and_package(program, package_path="m.pt2", inductor_configs={"no_such": 3})
"""
    done = replayed(tmp_path, captured(tmp_path, code, str(exported)))
    assert (done.verdict, done.operation) == ("reproduced", "compile")


@pytest.mark.slow
def test_nothing_to_replay(tmp_path: Path) -> None:
    """A program that never used AOTInductor leaves nothing to replay, and that is said."""
    with pytest.raises(ProblemError, match="without a compile, load or call"):
        plan_replay(captured(tmp_path, "print(1)"))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os\nif __name__ == '__main__':\n    os.abort()\n", True),
        ("if '__main__' == __name__: pass", True),
        ("def main():\n    if __name__ == '__main__':\n        pass\nmain()\n", False),
        ("print('at once')", False),
        ("this is no Python", False),
    ],
)
def test_which_scripts_may_be_imported(tmp_path: Path, code: str, expected: bool) -> None:
    """Only a file whose top level asks for `__main__` is imported; of another one, only its operators are."""
    script = tmp_path / "program.py"
    script.write_text(code)
    assert is_importable(script) is expected
    process = CapturedProcess(pid=1, parent=0, argv=["python", "-u", str(script), "x.pt"], python="3.11")
    assert own_module(process) == (str(script) if expected else f"{script}#operators")


def test_libraries_that_the_program_had_loaded(tmp_path: Path) -> None:
    """Operators in C++ come from the libraries that were loaded by then, and are still there."""
    (tmp_path / "ops.so").write_bytes(b"")
    libraries = [tmp_path / "ops.so", tmp_path / "gone.so"]
    load = CapturedLoad(pid=1, n=1, number=0, loader="l", package=tmp_path / "m.pt2", libraries=libraries)
    call = CapturedCall(pid=1, n=2, number=1, load=0, thread=1)
    process = CapturedProcess(pid=1, parent=0, argv=["python", "-c", "…"], python="3.11")
    seen = Captured(processes=[process], loads=[load], calls=[call])
    assert imports_of(seen, call) == [str(tmp_path / "ops.so")]


def test_a_module_is_imported_by_its_name() -> None:
    """A program started with `-m` is imported under its own name."""
    process = CapturedProcess(pid=1, parent=0, argv=["python", "-m", "package.serve"], python="3.11")
    assert own_module(process) == "package.serve"


@pytest.mark.parametrize(
    ("pid", "program", "expected"), [(7, True, 1), (7, False, None), (8, True, None)], ids=str
)
def test_how_a_script_makes_its_program(pid: int, program: bool, expected: int | None) -> None:
    """By the number of the compile in the script's own process; not of what is no exported program, or made
    in a process that it started.
    """
    argv = {7: ["python", "train.py", "--fast"], 8: ["python", "-c", "work()"]}
    processes = [CapturedProcess(pid=p, parent=1, argv=a, python="3.11") for p, a in argv.items()]
    compiles = [CapturedCompile(pid=7, n=1, number=0, how="aot_compile", program=True)]
    compiles.append(CapturedCompile(pid=pid, n=5, number=3, how="aot_compile", program=program))
    seen = Captured(processes=processes, compiles=compiles)
    workload = ScriptWorkload(script=Path("train.py"), args=["--fast"], cwd=Path("/job"))
    made = how_made(seen, compiles[1], workload)
    wanted = {"script": Path("/job/train.py"), "args": ["--fast"], "compile": expected}
    assert made == (None if expected is None else wanted)
