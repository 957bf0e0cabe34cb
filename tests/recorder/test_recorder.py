"""The recorder in real hosts: what it keeps when they fail, and that it never makes them fail."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_server.recorder.ring import read_recording
from tests.conftest import ROOT, Zoo, builder, example, host_of, torch_environment
from tests.support.command import CLI, answered, typed
from tests.support.tools import tool
from tests.zoo.names import nightly, thorough

pytestmark = pytest.mark.slow
HOST = ROOT / "examples" / "cpp_host" / "main.cpp"


@pytest.fixture(scope="module")
def package() -> Path:
    """The package of the demo, with `good.pt` and `bad.pt` beside it."""
    return example()


@pytest.fixture(scope="module")
def host() -> Path:
    """The server of examples/cpp_host, compiled with this interpreter's torch."""
    return host_of(HOST)


def refused(*words: str | Path) -> str:
    """The error on stderr of a command that exits with 2."""
    run = typed(*map(str, words))
    assert run.returncode == 2 and "Traceback" not in run.stderr, run.stderr
    return run.stderr


def diagnosed(folder: Path, **given: Any) -> Any:
    """The verdict as JSON, from a process with torch imported that tests share."""
    return tool("diagnose", folder / "jobs", **given).model_dump(mode="json")


@pytest.fixture(scope="module")
def recorded(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the recorder, and `good.pt` and `bad.pt` beside it."""
    folder = tmp_path_factory.mktemp("recorded")
    target = folder / "recorded.pt2"
    answered("record", package, "--out", target, "--directory", folder / "elsewhere")
    for name in ("good.pt", "bad.pt"):
        shutil.copy(package.with_name(name), folder)
    return target


def end_of(argv: list[str], kept: Path) -> int:
    """A host's exit status, negative for a signal. Each of its calls runs in its own thread."""
    around = {**torch_environment(), "OMP_NUM_THREADS": "1", "AOTI_RECORDER_DIR": str(kept)}
    around["AOTI_RUNTIME_CHECK_INPUTS"] = "1"
    return subprocess.run(argv, env=around, capture_output=True, timeout=600).returncode


def the_recording(folder: Path) -> Any:
    (ring,) = folder.glob("*.ring")
    return read_recording(ring)


@pytest.mark.parametrize(
    ("fault", "status"), [("segv", -11), ("kill", -9), *nightly(("index", -6), ("abort", -6))]
)
def test_a_host_leaves_its_calls(host: Path, recorded: Path, tmp_path: Path, fault: str, status: int) -> None:
    """Whatever ends the host, its threads' calls are kept, with the signal if it can be handled."""
    assert end_of([str(host), str(recorded), "16", "100", "--break", fault], tmp_path / "kept") == status
    found = the_recording(tmp_path / "kept")
    assert {call.thread for call in found.calls}, "no call was kept"
    assert (found.crash.signal if found.crash else 9) == -status
    assert not found.ended


def test_a_host_that_ends_as_it_should_leaves_nothing(host: Path, recorded: Path, tmp_path: Path) -> None:
    """After a run without a failing call, no file is left."""
    assert end_of([str(host), str(recorded), "4", "50"], tmp_path / "kept") == 0
    assert list((tmp_path / "kept").iterdir()) == []


@thorough
def test_an_update_under_a_call_is_named(package: Path, recorded: Path, tmp_path: Path) -> None:
    """The line of the update is named, and which updates the call began and ended after."""
    host = host_of(Path(__file__).with_name("updating.cpp"))
    assert end_of([str(host), str(recorded)], tmp_path / "kept") == -6
    found = diagnosed(tmp_path, package=package, recording=tmp_path / "kept")
    assert (found["category"], found["confidence"]) == ("concurrency", "likely"), found
    told = r"updated the weights in use at updating\.cpp:\d+ while its last call ran: .* after update \d+"
    assert re.search(told, found["summary"]) and "swap_constant_buffer" in found["fix"]["text"], found


@pytest.mark.parametrize(
    ("fault", "confidence", "told"),
    [
        ("freed", "proven", "had freed the memory of input 0"),
        *nightly(("short", "likely", "Input 0 (args[0]) is longer than the memory that the host wrote")),
    ],
)
def test_memory_that_the_host_does_not_have_is_named(
    host: Path, package: Path, tmp_path: Path, fault: str, confidence: str, told: str
) -> None:
    """The input and the line of at::from_blob are named. Freed memory is proven: kept, the host passes."""
    verdict = diagnosed(tmp_path, command=[str(host), str(package), "1", "40", "--break", fault])
    assert verdict["confidence"] == confidence and told in verdict["summary"]
    line = next(n for n, text in enumerate(HOST.read_text().splitlines(), 1) if f'"{fault}") users' in text)
    assert verdict["guilty"]["model_locations"][0]["line"] == line


@thorough
def test_a_host_that_hangs_is_looked_at_before_its_limit(host: Path, package: Path, tmp_path: Path) -> None:
    """A child that was forked after a call waits for OpenMP threads that it does not have."""
    command = [str(host), str(package), "1", "40", "--break", "fork"]
    verdict = diagnosed(tmp_path, command=command, timeout_s=20)
    assert (verdict["category"], verdict["confidence"]) == ("hang", "likely"), verdict
    assert "forked after the package was loaded" in verdict["summary"]


@thorough
def test_a_host_gets_the_verdict_of_a_script(host: Path, package: Path) -> None:
    """`diagnose ./host model.pt2` names the element, the call and the host's line."""
    verdict = answered("diagnose", "--", host, package, "4", "40", "--break", "index")
    assert (verdict["category"], verdict["confidence"]) == ("index_out_of_bounds", "proven")
    assert "1024 at [3, 5]" in json.dumps(verdict["guilty"])
    assert verdict["call"]["of"] >= verdict["call"]["number"] >= 21
    assert "number 21 of thread" in json.dumps(verdict["remarks"]), "the call in the middle of 40"
    line = 1 + HOST.read_text().splitlines().index("      model.run(inputs);")
    assert any(f"main.cpp:{line}" in each for each in verdict["remarks"])


@thorough
def test_the_recorder_can_be_taken_out(package: Path, recorded: Path, tmp_path: Path) -> None:
    """`--remove` restores every member."""
    plain = tmp_path / "plain.pt2"
    answered("record", recorded, "--remove", "--out", plain)
    before, after = zipfile.ZipFile(package), zipfile.ZipFile(plain)
    assert {n: before.read(n) for n in before.namelist()} == {n: after.read(n) for n in after.namelist()}


def core_of(host: Path, package: Path, folder: Path, fault: str, **more: str) -> Path:
    """The core file of a host that this fault ended."""
    argv = [str(host), str(package), "4", "40", "--break", fault]
    around = {**torch_environment(), "OMP_NUM_THREADS": "1", **more}
    with_core = ["bash", "-c", 'ulimit -c unlimited; exec "$@"', "bash", *argv]
    subprocess.run(with_core, cwd=folder, env=around, capture_output=True, timeout=600)
    if not any(folder.glob("core*")) and shutil.which("gdb"):  # kernel.core_pattern or a limit forbids them
        write = ("-ex", "run", "-ex", f"gcore {folder / 'core'}", "-ex", "kill", "--args", *argv)
        subprocess.run(["gdb", "-batch", *write], env=around, capture_output=True, timeout=600)
    found = next(folder.glob("core*"), None)
    if found is None:
        pytest.skip("core files go elsewhere here (kernel.core_pattern), and there is no gdb")
    return found


@pytest.fixture(scope="module")
def core(host: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core file of a host that a bad index ended."""
    return core_of(host, package, tmp_path_factory.mktemp("core"), "index")


def test_a_core_file_names_the_launch_and_the_check(core: Path, package: Path) -> None:
    """Signal, launch and generated line are found, even through libraries without frame pointers."""
    found = answered("post-mortem", core, "--package", package)
    thread = found["threads"][0]
    assert found["signal"] == "SIGABRT" and found["summary"].startswith("SIGABRT in thread")
    assert thread["launch"] == 0 and "index out of bounds: 0 <= " in thread["generated"]
    assert any("8run_impl" in frame and "wrapper.cpp:" in frame for frame in thread["frames"])
    assert not any("build" in each for each in found["remarks"]), "it is the same build"


def test_the_inputs_in_a_core_file_are_diagnosed(core: Path, package: Path, tmp_path: Path) -> None:
    """Without a recorder, the element and its limit are proven, and the host's calling line is named."""
    found = answered("post-mortem", core, "--package", package)
    assert found["inputs"] == ["int64[8]", "int64[8, 20]"]
    assert f"--recording {core}" in found["remarks"][-1]
    verdict = diagnosed(tmp_path, package=package, recording=core)
    assert (verdict["category"], verdict["confidence"]) == ("index_out_of_bounds", "proven")
    assert "1024 at [3, 5]" in json.dumps(verdict["guilty"])
    assert any("the host calls the package at" in each and "main.cpp:" in each for each in verdict["remarks"])


def test_an_exception_that_nobody_caught_leaves_the_inputs(host: Path, package: Path, tmp_path: Path) -> None:
    """The frames of the package are gone, but the call is still found and the fault proven."""
    core = core_of(host, package, tmp_path, "uncaught", AOTI_RUNTIME_CHECK_INPUTS="1")
    assert not answered("post-mortem", core, "--package", package)["crashed_inside"]
    verdict = diagnosed(tmp_path, package=package, recording=core)
    assert (verdict["category"], verdict["confidence"]) == ("input_mismatch", "proven"), verdict
    assert "args[1] as int64" in json.dumps(verdict)


def test_an_openmp_worker_is_no_call(host: Path, package: Path, tmp_path: Path) -> None:
    """A worker that died is said to be one, and the call that it worked for has the inputs."""
    core = core_of(host, package, tmp_path, "worker", OMP_NUM_THREADS="2")
    found = answered("post-mortem", core, "--package", package)
    (worker,) = found["threads"]
    assert worker["is_worker"] and "as an OpenMP worker" in found["summary"]
    assert found["inputs"] == ["int64[8]", "int64[8, 20]"]
    verdict = diagnosed(tmp_path, package=package, recording=core)
    assert "1024 at [6, 5]" in json.dumps(verdict["guilty"]) and verdict["confidence"] == "proven"


def test_core_files_of_one_fault_are_one_group(core: Path, package: Path, tmp_path: Path) -> None:
    """Core files in a folder are grouped by signal, kernel and line; unreadable files are reported."""
    for name in ("core.1", "core.2"):
        os.link(core, tmp_path / name)
    (tmp_path / "core.3").write_bytes(core.read_bytes()[:5000])
    (tmp_path / "notes.txt").write_text("no core file")
    found = answered("post-mortem", tmp_path, "--package", package)
    (group,) = found["groups"]
    assert group["count"] == 2 and group["signature"].startswith("SIGABRT in cpp_fused")
    assert "index out of bounds: 0 <= " in group["signature"]
    assert len(found["unreadable"]) == 1 and "core.3" in found["unreadable"][0]
    assert "no core file is in the folder" in refused("post-mortem", package.parent, "--package", package)


@thorough
def test_a_core_file_that_is_cut_off_accuses_nobody(core: Path, package: Path, tmp_path: Path) -> None:
    """Half of the file has no stack, which the result says. If the notes are missing, it is an error.

    In a core file of gdb, the notes are at the end.
    """
    cut = tmp_path / "cut"
    cut.write_bytes(core.read_bytes()[: core.stat().st_size // 2])
    run = typed("post-mortem", "--json", str(cut), "--package", str(package))
    assert "cut off" in run.stdout + run.stderr
    assert json.loads(run.stdout or '{"threads": []}')["threads"] == []
    cut.write_bytes(core.read_bytes()[:5000])
    assert "cut off" in refused("post-mortem", cut, "--package", package)


def test_a_damaged_core_file_is_refused_or_read(core: Path, package: Path, tmp_path: Path) -> None:
    """Wrong sizes give a clear error, never a traceback."""
    head = bytearray(core.read_bytes()[: 1 << 20])
    chance = random.Random(4)
    for number in range(6):
        bad = bytearray(head)
        for _ in range(1 + 40 * number):
            bad[chance.randrange(8192)] = chance.randrange(256)
        (tmp_path / "bad").write_bytes(bad)
        run = typed("post-mortem", str(tmp_path / "bad"), "--package", str(package))
        assert "Traceback" not in run.stderr and "defect in this tool" not in run.stderr, run.stderr


def test_what_no_post_mortem_can_be_made_of_is_said(core: Path, package: Path, zoo: Zoo) -> None:
    """The error for another package, another file, no process, or a process without a package says so."""
    assert "had not loaded this package" in refused("post-mortem", core, "--package", zoo("ranker"))
    assert "had not loaded this package" in refused("diagnose", zoo("ranker"), "--recording", core)
    assert "cannot be read" in refused("post-mortem", package, "--package", package)
    assert "there is no such process" in refused("diagnose", "--pid", "99999999")
    assert "has unpacked no package" in refused("diagnose", "--pid", str(os.getpid()))
    assert "package" in refused("post-mortem", core)


HUNG = """
import ctypes, sys, threading, time, torch
how, package, file, library = sys.argv[1:]
inside = threading.Event()
libc, first, second = ctypes.CDLL(None), ctypes.create_string_buffer(64), ctypes.create_string_buffer(64)
@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    inside.set()
    if how == "openmp":
        ctypes.CDLL(library).team()
    time.sleep({"sleep": 600, "gil": 1}.get(how, 0))
    return x[::2].clone()
model = torch._inductor.aoti_load_package(package)
inputs = torch.load(file)
if how == "loop":
    for _ in range(20):
        model(*inputs)
    print("ready", flush=True)
    model(inputs[0], torch.tensor(1 << 60))
def cross(one, other):
    libc.pthread_mutex_lock(one)
    time.sleep(1)
    libc.pthread_mutex_lock(other)
other = {
    "openmp": lambda: ctypes.CDLL(library).keep(),
    "mutex": lambda: cross(second, first),
    "extension": lambda: inside.wait() and ctypes.PyDLL(None).sleep(600),
}
threading.Thread(target=other.get(how, lambda: model(*inputs)), daemon=True).start()
if how == "openmp":
    time.sleep(1)
if how in other:
    print("ready", flush=True)
    model(*inputs)
inside.wait()
if how == "mutex":
    cross(first, second)
print("ready", flush=True)
if how == "own":
    cross(first, first)
if how == "condition":
    ctypes.CDLL(library).late()
if how == "rwlock":
    libc.pthread_rwlock_rdlock(first)
    libc.pthread_rwlock_wrlock(first)
model(*inputs)
"""
TEAM = """
#include <omp.h>
#include <pthread.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ready = PTHREAD_COND_INITIALIZER;
void late(void) { pthread_cond_signal(&ready); pthread_mutex_lock(&lock); pthread_cond_wait(&ready, &lock); }
void keep(void) { pthread_mutex_lock(&lock); sleep(600); }
void team(void) {
#pragma omp parallel num_threads(3)
  if (omp_get_thread_num() == 1) pthread_mutex_lock(&lock);
}
"""


IN_OPERATOR = "is in launch 3, aoti_torch_cpu_halve_rows: "
FOR_INSTANCE = "waits for a free instance of the model, held by thread"
HANGING: dict[str, tuple[str, tuple[str, ...], str]] = {  # package, told, guilty
    "gil": ("plugin", (f"{IN_OPERATOR}waits for the GIL, held by", FOR_INSTANCE), "2 threads"),
    "loop": ("loop", ("computes (inputs float32[8, 8], int64[]); its call began", "; earlier calls"), ""),
    "sleep": ("plugin", (f"{IN_OPERATOR}sleeps (inputs float32[8, 8])", FOR_INSTANCE), "aotizoo::halve_rows"),
    "mutex": ("plugin", ("outside of the package: waits for a mutex, held by",), "2 threads"),
    "rwlock": ("plugin", ("waits for a read-write lock", "No thread holds it for writing"), ""),
    "own": ("plugin", ("lock that it holds itself", "waits for a mutex, held by thread"), "1 thread"),
    "condition": ("plugin", ("at team.c:7: waits for a condition variable that no thread",), "outside of"),
    "extension": ("plugin", ("sleeps", "waits for it (the GIL)"), "outside of"),
    "openmp": (
        "plugin",
        (f"{IN_OPERATOR}waits for the other threads of its OpenMP team, held by", "waits for it (a mutex)"),
        "outside of",
    ),
}


def processor_time(pid: int) -> int:
    """The ticks of processor time in user mode, from /proc."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


@pytest.mark.parametrize("how", ["openmp", *nightly(*[each for each in HANGING if each != "openmp"])])
def test_a_hung_process_is_diagnosed_and_goes_on(zoo: Zoo, tmp_path: Path, how: str) -> None:
    """The verdict says which launch runs, or which thread waits for what, and who holds it.

    The package is found in the process, which continues. `loop` runs under the recorder, which knows how long
    calls take.
    """
    model, told, guilty = HANGING[how]
    package, inputs = zoo(model), zoo(model).with_name(f"{model}.inputs.pt")
    source, library = tmp_path / "team.c", tmp_path / "libteam.so"
    source.write_text(TEAM)
    subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-fopenmp", source, "-o", library], check=True)
    argv = [sys.executable, "-W", "ignore", "-c", HUNG, how, str(package), str(inputs), str(library)]
    if how == "loop":
        argv = [*CLI, "record", "--preload", "--directory", str(tmp_path / "kept"), "--", *argv]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=torch_environment()) as process:
        try:
            assert process.stdout is not None and "ready" in process.stdout.readline()
            for _ in range(6):  # its threads may not hang yet, or not yet far longer than other calls took
                found = answered("diagnose", "--pid", str(process.pid))
                said = found["summary"] + json.dumps(found["evidence"])
                if found["confidence"] == "likely" and all(each in said for each in told):
                    break
                time.sleep(2)
            before = processor_time(process.pid)
            time.sleep(0.5)
            assert process.poll() is None
            assert how != "loop" or processor_time(process.pid) > before
        finally:
            process.kill()
    assert (found["category"], found["confidence"]) == ("hang", "likely")
    assert all(each in said for each in told), found
    assert guilty in found["guilty"]["name"]
    commands = {each["command"] for each in found["evidence"] if each["step"] == "look_at_process"}
    assert commands == {f"aoti-debug diagnose --pid {process.pid}"}
    (step,) = found["next_steps"]
    if how == "loop":
        assert Path(step["arguments"]["recording"]).parent == tmp_path / "kept"
    else:  # the unpacked library is gone with the process
        assert (step["tool"], step["arguments"]) == ("record", {}) and "the .pt2" in step["why"]


PROGRAM = """
import gc, os, sys, threading, time, torch, zipfile
from pathlib import Path
from torch._inductor.package import load_package
how, package, folder = sys.argv[1:]
os.environ["AOTI_RECORDER_DIR"] = folder
torch.set_num_threads(1)
good = torch.load(Path(package).parent / "good.pt")
model = load_package(package)
model(*good)
kept = Path(folder)
if how == "cut":
    os.truncate(next(kept.glob("*.ring")), 100)
elif how == "deleted":
    for file in kept.iterdir():
        file.unlink()
elif how == "forked":
    child = os.fork()
    model(*good)
    if not child:
        model(*good)
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
elif how == "outlived":
    called, unloaded = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (model(*good), called.set(), unloaded.wait()), daemon=True)
    thread.start()
    called.wait()
    model = None
    gc.collect()
    unloaded.set()
    thread.join()
    time.sleep(0.2)  # Python does not wait for the end of the thread
    model = load_package(package)
    model(*good)
    assert sum(".ring" in line for line in open("/proc/self/maps")) == 1
elif how == "swallowed":
    other = load_package(str(Path(package).with_name("other.pt2")))
    other(*torch.load(Path(package).with_name("other.pt")))
    try:
        model(good[0] + 1000)
    except RuntimeError as error:
        assert "index out of bounds" in str(error), error
    for _ in range(400):
        model(*good)
elif how == "strided":
    model(good[0], good[1].t().contiguous().t())
    model(*good)
    os.kill(os.getpid(), 9)
elif how == "updated":
    name = "users.weight"
    model.load_constants({name: torch.zeros(500, 32)}, check_full_update=False)
    model(*good)
    os.kill(os.getpid(), 9)
elif how == "swapped":
    archive = zipfile.ZipFile(package)
    (library,) = [each for each in archive.namelist() if each.endswith(".wrapper.so")]
    archive.extractall(kept.parent, [library, f"{library}.orig"])
    runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(kept.parent / library), 1)
    names = runner.get_constant_names_to_original_fqns()
    own, found = {names[name]: name for name in names}, runner.extract_constants_map(False)
    name, weights = own["users.weight"], {own.get(key, key): value for key, value in found.items()}
    for number in (1, 2):
        runner.update_constant_buffer({**weights, name: torch.full((500, 32), 1.0 * number)}, True, True)
        runner.swap_constant_buffer()
        runner.run(good)
    runner.swap_constant_buffer()
    runner.run(good)
    os.kill(os.getpid(), 9)
for _ in range(3):
    model(*good)
"""


SERVER = """
import os, signal, sys, threading, torch
from pathlib import Path
from torch._inductor.package import load_package
how, package, folder = sys.argv[1:]
os.environ["AOTI_RECORDER_DIR"] = folder
torch.set_num_threads(2 if how == "assert" else 1)
good, bad = (torch.load(Path(package).parent / name) for name in ("good.pt", "bad.pt"))
model = load_package(package)
narrow = [torch.cat((x, x)).int().view(-1).view(torch.int64).view_as(x) for x in good]
wrong = {"index": bad, "assert": bad, "dtype": [good[0], good[1].int()], "narrow": narrow}.get(how)
right = model(*good)
def serve():
    while True:
        if not torch.allclose(model(*good), right):
            os.abort()
for _ in range(4):
    threading.Thread(target=serve, daemon=True).start()
for turn in range(200):
    if how == "swap":
        model.load_constants({"users.weight": torch.full((500, 32), float("nan"))}, check_full_update=False)
    if turn == 100 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if turn == 100 and how == "written":
        library = next(line.split()[-1] for line in open("/proc/self/maps") if ".wrapper.so.orig" in line)
        with open(library, "r+b") as file:
            file.write(bytes(os.path.getsize(library)))
    model(*(wrong if turn == 100 and wrong is not None else good))
"""


def of_python(how: str, package: Path, kept: Path, program: str = PROGRAM) -> int:
    """How a Python host ends. It is forked with torch imported, because the import takes long."""
    printed = package.with_name(f"{how or 'plain'}.{kept.parent.name}.txt")
    return builder().run("-c", (program, how, str(package), str(kept)), printed)


@dataclass(frozen=True)
class Served:
    """How a server ends, and what its recording shows: outcome, category, confidence, and a text.

    For a killed server, the moment decides whether the calls in flight were kept.
    """

    status: tuple[int, ...]
    verdict: tuple[str, str | None, str]
    told: str


INDEX = Served((-6, 1), ("fault", "index_out_of_bounds", "proven"), "1024 at [5, 19]")
DTYPE = Served((-6, 1), ("fault", "input_mismatch", "proven"), "args[1] as int64")
KILLED = ("no_fault or inconclusive", None, "possible")
OUTSIDE = ("fault", "script_error", "likely")
LEFT = ("fault", "concurrency", "likely")
SERVERS = {
    "C++ index": Served((-6,), INDEX.verdict, "its thread got the fatal signal"),
    "C++ uncaught": Served((-6,), DTYPE.verdict, "args[1] = args[1].to(at::kLong);"),
    "C++ kill": Served((-9,), KILLED, "it was killed from outside"),
    "C++ segv": Served((-11,), OUTSIDE, "at main.cpp:"),
    "C++ abort": Served((-6,), OUTSIDE, "died of SIGABRT, at main.cpp:"),
    "C++ exit": Served((-11, -6), LEFT, "Main had returned, or exit was called, and "),
    "index": INDEX,
    "assert": INDEX,
    "dtype": DTYPE,
    "narrow": Served((-6, 1), DTYPE.verdict, "read as int32, all values are in 0..499"),
    "kill": Served((-9,), KILLED, "it was killed from outside"),
    "written": Served((-11, -7, -4), ("fault", "environment", "likely"), "was written to while mapped"),
    "swap": Served((-6,), ("fault", "constants", "proven"), "users.weight with 16000 NaN"),
}


@pytest.mark.parametrize("how", ["C++ index", *nightly(*[each for each in SERVERS if each != "C++ index"])])
def test_a_servers_recording(host: Path, package: Path, recorded: Path, tmp_path: Path, how: str) -> None:
    """The call that ended the server is proven. Nothing is claimed if it passes alone."""
    kept, served = tmp_path / "kept", SERVERS[how]
    if how.startswith("C++"):
        status = end_of([str(host), str(recorded), "16", "100", "--break", how.split()[1]], kept)
    else:
        status = of_python(how, recorded, kept, SERVER)
    assert status in served.status
    found = diagnosed(tmp_path, package=package, recording=kept)
    outcome, *rest = served.verdict
    assert found["outcome"] in outcome and [found["category"], found["confidence"]] == rest, found
    assert served.told in json.dumps(found), found


@pytest.mark.parametrize("how", ["outlived", "cut", *nightly("deleted")])
def test_the_host_outlives_what_happens_to_its_recording(recorded: Path, tmp_path: Path, how: str) -> None:
    """A cut or deleted ring, changing loads, and threads that outlive a load do not end the host."""
    assert of_python(how, recorded, tmp_path / "kept") == 0


def test_a_fork_has_a_recording_of_its_own(recorded: Path, tmp_path: Path) -> None:
    """The killed child's two calls are kept; its parent, which succeeded, left nothing."""
    assert of_python("forked", recorded, tmp_path / "kept") == 0
    assert len(the_recording(tmp_path / "kept").calls) == 2


def test_a_failed_call_outlasts_the_ring(zoo: Zoo, package: Path, tmp_path: Path) -> None:
    """A host of two packages handled an error of one and continued: the failed call is proven.

    Later calls had overwritten it in the ring. The other package is not accused.
    """
    plain, recorded = zoo("ranker"), tmp_path / "recorded.pt2"
    answered("record", package, "--out", tmp_path / "other.pt2", "--ring-mb", "4")
    shutil.copy(package.with_name("good.pt"), tmp_path / "other.pt")
    answered("record", plain, "--out", recorded, "--ring-mb", "4")
    shutil.copy(plain.with_name("ranker.inputs.pt"), tmp_path / "good.pt")
    assert of_python("swallowed", recorded, tmp_path / "kept") == 0
    rings = [read_recording(path) for path in (tmp_path / "kept").glob("*.ring")]
    assert 3 not in {call.sequence for ring in rings for call in ring.calls}, "overwritten"
    found = diagnosed(tmp_path, package=plain, recording=tmp_path / "kept")
    assert (found["category"], found["confidence"]) == ("index_out_of_bounds", "proven"), found
    assert found["call"]["number"] == 2, "after the first"
    assert "args[0][0, 0] = 1003" in json.dumps(found["guilty"])
    blameless = refused("diagnose", package, "--recording", tmp_path / "kept")
    assert "the recording has no call of this package" in blameless, blameless


def test_a_call_that_does_not_fit_is_taken_earlier(package: Path, recorded: Path, tmp_path: Path) -> None:
    """If every call returned, the one with other strides than compiled is suspect."""
    assert of_python("strided", recorded, tmp_path / "kept") == -9
    found = diagnosed(tmp_path, package=package, recording=tmp_path / "kept")
    assert (found["category"], found["call"]["number"]) == ("input_mismatch", 2), found


def test_a_call_knows_the_generation_of_its_weights(recorded: Path, tmp_path: Path) -> None:
    """A call after one update records its generation, and which constants the update gave."""
    assert of_python("updated", recorded, tmp_path / "kept") == -9
    found = the_recording(tmp_path / "kept")
    assert [call.generation for call in found.calls] == [0, 1]
    (weights,) = found.models[0].weights_at(1).constants.items()
    assert weights[0] == "users_weight" and weights[1].sizes == (500, 32) and weights[1].bytes is not None
    assert not found.models[0].weights_at(0).constants


def test_a_swap_back_puts_the_earlier_weights_in_use(recorded: Path, tmp_path: Path) -> None:
    """With two buffers, each call has the values of the buffer that was in use."""
    assert of_python("swapped", recorded, tmp_path / "kept") == -9
    found = next(each for each in map(read_recording, (tmp_path / "kept").glob("*.ring")) if each.calls[1:])
    used = [found.models[0].weights_at(call.generation).constants["users_weight"] for call in found.calls]
    values = [struct.unpack("<f", each.bytes.read()[:4])[0] for each in used if each.bytes is not None]
    assert values == [1, 2, 1], "an older call has the values from before the swap back"


@thorough
def test_a_loader_that_ends_under_a_call_is_named(host: Path, package: Path, tmp_path: Path) -> None:
    """Main returned while a thread called: where the loader was destroyed, or who called as main died."""
    verdict = diagnosed(tmp_path, command=[str(host), str(package), "2", "2000", "--break", "outlive"])
    assert (verdict["category"], verdict["confidence"]) == ("concurrency", "likely"), verdict
    told = r"had destroyed the loader at main\.cpp:|exit was called, and thread \d+ still called the package"
    assert re.search(told, verdict["summary"]) and "join every thread" in verdict["fix"]["text"]


@pytest.mark.parametrize("folder", ["/dev/null", "shared", *nightly("/proc/self", "/nowhere/at/all")])
def test_an_unusable_folder_switches_the_recorder_off(recorded: Path, tmp_path: Path, folder: str) -> None:
    """The host runs without recording, even if others could place a link there for it to write through."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert of_python("", recorded, tmp_path / folder) == 0
    assert list((tmp_path / "shared").iterdir()) == []
