"""What the hook records of programs that succeed, raise, crash, hang, fork, or never use AOTInductor."""

import os
import sys
from pathlib import Path

import pytest

from mcp_server.logs.captured import read_capture
from mcp_server.runtime.failure import read_output
from mcp_server.tools.capture import hook_environment
from tests.conftest import Zoo
from tests.support.command import output_of
from tests.worker.support import QUICK, captured, captured_command
from tests.zoo.names import nightly

pytestmark = pytest.mark.slow

LOAD = "import sys, torch\nmodel = torch._inductor.aoti_load_package(sys.argv[1])\n"
READ = "inputs = torch.load(sys.argv[2])\n"


def test_the_failing_call_is_kept_with_its_line_and_inputs(zoo: Zoo, tmp_path: Path) -> None:
    """The call that raised is recorded as failed, with the user's line and its inputs."""
    package = zoo("ranker")
    bad = package.with_name("ranker.bad-index.pt")
    code = LOAD + READ + "for x in (inputs[0] * 0, inputs[0]):\n    model(x)\n"
    seen = captured(tmp_path, code, str(package), str(bad))
    assert [call.outcome for call in seen.calls] == ["ok", "failed"]
    failing = seen.failing
    assert failing is seen.calls[1] and failing.file is not None and failing.file.exists()
    assert failing.location is not None and failing.location.code == "model(x)"
    assert failing.error is not None and failing.error.text.startswith("index out of bounds")
    assert failing.leaves[0].shape == [8, 6] and failing.leaves[0].dtype == "int64"
    load = seen.load_of(failing)
    assert load is not None and load.copy_path is not None
    assert load.copy_path.read_bytes() == package.read_bytes()
    assert seen.processes[0].exited and seen.finished.returncode == 1 and not seen.notes


def test_the_program_behaves_as_without_the_hook(zoo: Zoo, tmp_path: Path) -> None:
    """Output, exit status, sys.path and traceback are the same with and without the hook."""
    package = zoo("ranker")
    code = (
        LOAD
        + READ
        + """
print([entry for entry in sys.path if "site" in entry], model(inputs[0] * 0).sum())
try:
    model(*inputs)
except RuntimeError as error:
    print(str(error).splitlines()[0])
print(model.loader.run.__name__, torch._inductor.aoti_compile_and_package.__doc__[:30])
sys.exit(5)
"""
    )
    bad = str(package.with_name("ranker.bad-index.pt"))
    seen = captured(tmp_path, code, str(package), bad)
    argv = [sys.executable, "program.py", str(package), bad]
    plain = output_of(argv, cwd=tmp_path, env={**os.environ, **QUICK})
    assert (seen.finished.returncode, seen.finished.stdout.read_text()) == (plain.returncode, plain.stdout)
    assert plain.returncode == 5 and "index out of bounds" in plain.stdout


def test_every_way_of_loading_threads_and_processes(zoo: Zoo, tmp_path: Path) -> None:
    """The raw loader, load_package, threads, a subprocess and a fork are recorded, with each thread."""
    code = """
import os, subprocess, sys, threading, torch
from torch._inductor.package import load_package
inputs = torch.load(sys.argv[2])
if len(sys.argv) > 3:
    torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], "model", False, 1, -1).run(inputs)
    sys.exit()
model = load_package(sys.argv[1], run_single_threaded=True)
threads = [threading.Thread(target=model, args=inputs, name=f"worker {i}") for i in range(2)]
for thread in threads:
    thread.start()
    thread.join()
subprocess.run([sys.executable, *sys.argv, "child"], check=True)
if os.fork() == 0:
    model(*inputs)
    os._exit(0)
os.wait()
"""
    package = zoo("ranker")
    seen = captured(tmp_path, code, str(package), str(package.with_name("ranker.inputs.pt")))
    assert seen.finished.ok
    threads = sorted(call.thread_name for call in seen.calls)
    assert threads == ["MainThread", "MainThread", "worker 0", "worker 1"]
    assert all(call.outcome == "ok" for call in seen.calls)
    assert len({call.pid for call in seen.calls}) == len(seen.processes) == 3
    assert [load.options["run_single_threaded"] for load in seen.loads] == [True, False]


def test_a_crash_inside_the_call_is_told_from_one_after_it(zoo: Zoo, tmp_path: Path) -> None:
    """A call that never returned is the failing one. If the process dies later, no call is."""
    package = zoo("plugin")
    inputs = str(package.with_name("plugin.inputs.pt"))
    op = """
import os
@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    if sys.argv[3] == "inside":
        os.kill(os.getpid(), 11)
    return x[::2] + x[1::2]
"""
    code = "import sys, torch\n" + op + LOAD + READ + "model(*inputs)\nos.kill(os.getpid(), 11)\n"
    inside = captured(tmp_path, code, str(package), inputs, "inside")
    assert inside.finished.signal == "SIGSEGV" and inside.failing is not None
    assert inside.failing.outcome == "unfinished" and inside.failing.file is not None
    after = captured(tmp_path, code, str(package), inputs, "after")
    assert after.finished.signal == "SIGSEGV" and after.failing is None
    assert [call.outcome for call in after.calls] == ["ok"] and not after.processes[0].exited
    stacks = [thread for thread in read_output(after.finished.output).threads if thread.current]
    assert [frame.function for frame in stacks[0].frames] == ["<module>"]


def test_a_call_that_takes_far_longer_than_its_like_ends_the_run(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If requested, the program prints its stacks and is ended long before the time limit."""
    monkeypatch.setattr("mcp_server.tools.capture.STALLED_S", 4.0)
    monkeypatch.setattr("mcp_server.logs.captured.SLOWER", 2.0)  # the first call is slow on a busy machine
    package = zoo("plugin")
    op = """
import time
waits = iter([0, 600])
@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    time.sleep(next(waits))
    return x[::2].clone()
"""
    code = "import sys, torch\n" + op + LOAD + READ + "model(*inputs)\nmodel(*inputs)\n"
    inputs = str(package.with_name("plugin.inputs.pt"))
    seen = captured(tmp_path, code, str(package), inputs, timeout_s=300, until_stalled=True)
    assert (seen.finished.ending, seen.finished.wall_s < 200) == ("timeout", True)
    assert [call.outcome for call in seen.calls] == ["ok", "unfinished"]
    assert seen.failing is seen.calls[1] and seen.failing.file is not None
    assert "in halve_rows" in seen.finished.output.read_text()


def test_constants_and_a_failed_comparison(zoo: Zoo, tmp_path: Path) -> None:
    """An update is recorded with given and missing names, a failed assert_close with both sides."""
    package = zoo("logarithm")
    code = (
        LOAD
        + READ
        + (
            "model.load_constants({'inp.weight': torch.zeros(16, 16)}, check_full_update=False)\n"
            "torch.testing.assert_close(model(*inputs), torch.zeros(8, 8))\n"
        )
    )
    seen = captured(tmp_path, code, str(package), str(package.with_name("logarithm.inputs.pt")))
    (update,) = seen.updates
    assert update.outcome == "ok" and update.how == "load_constants" and update.arguments[1] is False
    assert update.constants["inp.weight"].shape == [16, 16] and "out.weight" in update.missing
    assert not update.unknown and update.file is not None
    (assertion,) = seen.assertions
    assert assertion.error is not None and "not close" in assertion.error.text
    assert assertion.file is not None and assertion.location is not None and assertion.location.line == 5


@pytest.mark.parametrize(("value", "kept", "exact"), [("3", 3, True), *nightly(("{3}", "{3}", False))])
def test_failed_compiles_are_kept(zoo: Zoo, tmp_path: Path, value: str, kept: int | str, exact: bool) -> None:
    """Program and options are recorded although the compile raised. A note names inexact options."""
    exported = zoo("ranker").with_name("ranker.exported.pt2")
    code = f"""
import sys, torch
program = torch.export.load(sys.argv[1])
options = {{"no_such_option": {value}}}
torch._inductor.aoti_compile_and_package(program, package_path="m.pt2", inductor_configs=options)
"""
    seen = captured(tmp_path, code, str(exported))
    (compile_,) = seen.compiles
    assert compile_.outcome == "failed" and compile_.exported is not None and compile_.exported.exists()
    assert compile_.configs == {"no_such_option": kept} and compile_.configs_exact is exact
    assert any("not every option" in note for note in seen.notes) is not exact
    assert compile_.package == tmp_path / "m.pt2"


def test_a_failed_export_that_the_program_handles_is_kept(tmp_path: Path) -> None:
    """The line of the export and its error are recorded, and the program goes on."""
    code = """import torch
class Branch(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x
try:
    torch.export.export(Branch(), (torch.ones(3),))
except Exception:
    print("handled")
"""
    seen = captured(tmp_path, code)
    (failed,) = seen.failed_exports
    assert seen.finished.ok and failed.location is not None and failed.location.line == 6
    assert failed.error is not None and "data-dependent" in failed.error.text


def test_programs_without_aoti(tmp_path: Path) -> None:
    """A program without torch, or without AOTInductor, leaves no journal, and the notes say so."""
    for code in ("print('hello')\n", "import torch\ntorch.ones(2).sum()\n"):
        seen = captured(tmp_path, code)
        assert seen.finished.ok and not seen.compiles and not seen.loads and not seen.processes
        assert "no Python process compiled, loaded or called" in seen.notes[0]


def test_an_isolated_interpreter_is_noted(tmp_path: Path) -> None:
    """`python -I` excludes the hook, and the notes say so."""
    seen = captured_command(tmp_path, [sys.executable, "-I", "-c", "import torch"])
    assert seen.finished.ok and "isolated" in seen.notes[0]


def test_a_module_run_with_m_and_the_users_own_sitecustomize(tmp_path: Path) -> None:
    """The user's sitecustomize runs after the hook's, and `-m` programs see no difference."""
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.USER_SITE = __name__\n")
    (tmp_path / "program").mkdir()
    code = "import sys\nprint(USER_SITE, sys.modules['sitecustomize'])\n"
    (tmp_path / "program" / "__main__.py").write_text(code)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    hooked = {**env, **hook_environment(tmp_path, {"PYTHONPATH": str(tmp_path)})}
    argv = [sys.executable, "-m", "program"]
    runs = [output_of(argv, cwd=tmp_path, env=each, check=True) for each in (env, hooked)]
    assert runs[0].stdout == runs[1].stdout and runs[0].stdout.startswith("sitecustomize")
    assert not runs[1].stderr


def test_too_large_inputs_are_left_out_with_a_notice(zoo: Zoo, tmp_path: Path) -> None:
    """Inputs above the cap are not saved, the call continues, and the notice says why."""
    package = zoo("ranker")
    env = {"AOTI_DEBUG_CAPTURE_CAP": "100"}
    inputs = str(package.with_name("ranker.inputs.pt"))
    seen = captured(tmp_path, LOAD + READ + "model(*inputs)\n", str(package), inputs, env=env)
    assert seen.finished.ok and seen.calls[0].file is None
    assert "the cap is 100" in seen.calls[0].notice and any("the cap is 100" in note for note in seen.notes)


def test_a_journal_cut_by_a_crash_is_still_read(tmp_path: Path) -> None:
    """A truncated line at the end, and lines that are not events, are ignored."""
    process = '{"event": "process", "n": 1, "t": 1, "pid": 7, "parent": 1, "argv": [], "python": "3.11"}'
    lines = [process, "[1]", '{"ev']
    (tmp_path / "capture-7.jsonl").write_text("\n".join(lines))
    seen = read_capture(tmp_path)
    assert [process.pid for process in seen.processes] == [7] and not seen.processes[0].exited


def test_the_hook_loads_nothing_before_torch(tmp_path: Path) -> None:
    """A Python that never imports torch gets only modules of the import system."""
    code = "import sys, importlib.machinery, __future__; print(*sys.modules)"
    argv = [sys.executable, "-c", code]

    def modules(environment: dict[str, str]) -> set[str]:
        done = output_of(argv, env=environment, check=True)
        return set(done.stdout.split())

    hooked = modules({**os.environ, **hook_environment(tmp_path, {})})
    extra = hooked - modules({**os.environ}) - {"sitecustomize"}
    assert not {name for name in extra if not name.startswith("importlib")}
