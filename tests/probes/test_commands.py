"""Recorded compile commands become safe argument lists, and rebuilds are shared."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import (
    Instrumented,
    Options,
    Toolchain,
    choose_compiler,
    compile_command,
    read_recorded,
    safe_flags,
)
from mcp_server.runtime.context import Context
from mcp_server.tools.trace_launches import trace_launches
from tests.conftest import ROOT, Zoo
from tests.server.clients import data_of, real_server

TOOLCHAIN = Toolchain("2.13.0", ("/t/include",), ("/c/include",))
RECORDED = (
    "g++ /old/x.wrapper.cpp -D TORCH_INDUCTOR_CPP_WRAPPER -D  USE_CUDA -O1 -DNDEBUG -march=native -fPIC "
    "-Wall -std=c++17 -fopenmp -include /old/pch.h -I/usr/include/python3.12 -I/old/torch/include -mfma "
    "-c -o /old/x.wrapper.o"
)
SOURCE = f"int x;\n// Compile cmd\n// {RECORDED}\n// Link cmd\n// g++ /old/x.o -o /old/x.so\n"


HOSTILE = [
    *("-fplugin=/tmp/evil.so", "-fplugin-arg-x=1", "@/tmp/response", "-B/tmp/tools", "-wrapper"),
    *("-specs=/tmp/specs", "-Wl,-plugin,/tmp/evil.so", "-Wp,-fplugin=/tmp/evil.so", "-Wa,--x", "-Xlinker"),
    *("-fuse-ld=/tmp/evil", "-imacros", "-include-pch", "-T/tmp/script.ld", "-dumpdir", "-save-temps"),
    *("-fdump-tree-all", "--sysroot=/tmp/evil", "-I$(touch /tmp/x)", "-D'A=`x`'", "-DA=B;touch"),
    *("-l:evil.so", "/tmp/evil.o"),
]


@pytest.mark.parametrize("word", HOSTILE)
def test_flags_that_could_run_or_load_something_never_reach_the_compiler(word: str) -> None:
    """Plugins, response files, search paths of tools, linker and preprocessor pass-through are dropped."""
    recorded = read_recorded(SOURCE.replace("-O1", f"-O1 {word}"))
    compiled = compile_command("g++", safe_flags(recorded), TOOLCHAIN, "a.cpp", "a.o")
    assert word.replace("'", "") not in compiled
    assert not [one for one in compiled if "evil" in one or "touch" in one or "/tmp" in one]


def test_what_is_not_there_is_a_problem_with_a_way_out() -> None:
    """Without a compiler or a recorded command, the error says what is allowed or what to call next."""
    with pytest.raises(ProblemError) as caught:
        choose_compiler([], {**os.environ, "CXX": "no-such-compiler-g++", "PATH": "/no/such/directory"})
    assert caught.value.allowed and caught.value.next_call
    # Only a name on PATH is used, whatever path the package records.
    assert choose_compiler(["/tmp/evil/g++"], os.environ).startswith("/usr")
    assert "evil" not in choose_compiler(["/tmp/evil-compiler"], os.environ)
    with pytest.raises(ProblemError) as caught:
        read_recorded("int main() {}")
    assert caught.value.next_call


# Compilers that are missing or chosen by the user.


COMPILER = shutil.which("g++")


def rebuilt(package: Path, context: Context, directory: Path) -> Instrumented:
    """Rebuild a package with an empty cache."""
    return anyio.run(lambda: instrument(package, Options(), context, cache=Cache(directory / "cache")))


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide all compilers, and return the only directory on PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("CXX", raising=False)
    return programs


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.mark.parametrize(
    "cxx, chosen",
    [
        ("{}/my-compiler", "{}/my-compiler"),
        ("ccache {}/my-compiler -B/opt", "{}/my-compiler"),
        ("/nonexistent/g++", ""),
        ("'", ""),
    ],
)
def test_cxx_comes_before_other_compilers_if_it_is_there(cxx: str, chosen: str, tmp_path: Path) -> None:
    """$CXX is preferred, as in torch. If it does not exist, g++ is used."""
    assert COMPILER is not None
    (tmp_path / "my-compiler").symlink_to(COMPILER)
    environ = {**os.environ, "CXX": cxx.format(tmp_path)}
    assert choose_compiler(["g++"], environ) == (chosen.format(tmp_path) or COMPILER)


@pytest.mark.slow
def test_no_compiler_is_no_crash(zoo: Zoo, context: Context, no_compiler: Path, tmp_path: Path) -> None:
    """The error says what was looked for and what works without it. No incomplete cache entry is left."""
    with pytest.raises(ProblemError, match=r"no C\+\+ compiler") as caught:
        rebuilt(zoo("ranker"), context, tmp_path)
    workload = PackageWorkload(package=zoo("ranker"), inputs=zoo("ranker").with_name("ranker.inputs.pt"))
    with pytest.raises(ProblemError, match="no C"):  # without probes there is no journal
        anyio.run(partial(trace_launches, context, workload, cache=Cache(tmp_path / "cache")))
    assert caught.value.allowed and caught.value.next_call
    assert not list((tmp_path / "cache").glob("*.building"))


# Records the words of each call and a variable of the workload. It compiles nothing, to be quick. Only
# linking fails: a failed compile would cancel the one that runs in parallel, perhaps before its call.
RECORDING = """#!/bin/sh
echo "$WORKLOAD $*" >> {calls}
case "$*" in
-print-file-name*) exec {compiler} "$@" ;;
*.o) for object; do :; done; : > "$object" && exit 0 ;;
esac
echo "error: refused by the test" >&2
exit 1
"""


@pytest.mark.slow
def test_the_workloads_compiler_builds_in_its_environment(zoo: Zoo, tmp_path: Path) -> None:
    """CXX and PATH of the workload count, not those of the server, and the compiler sees its variables."""
    assert COMPILER is not None
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    program(programs / "own-g++", RECORDING.format(calls=calls, compiler=COMPILER))
    path = f"{programs}:{os.environ['PATH']}"
    env = {"CXX": "own-g++", "PATH": path, "WORKLOAD": "mine"}
    context, cache = Context(tmp_path / "job", Path(sys.executable)), Cache(tmp_path / "cache")
    with pytest.raises(ProblemError, match="refused by the test"):
        anyio.run(lambda: instrument(zoo("ranker"), Options(), context, cache=cache, env=env))
    said = calls.read_text().splitlines()
    assert all(line.startswith("mine ") for line in said)
    assert any("-print-file-name=libstdc++.so" in line for line in said)
    assert any(".wrapper.cpp -o wrapper.o" in line for line in said)
    assert any("runtime.cpp -o runtime.o" in line for line in said)


KEY, OTHER = "a" * 64, "b" * 64


# Records the source of each compile, and after a while writes an empty object, which can be linked.
EMPTY = """#!/bin/sh
for word; do case "$word" in *.cpp) source=$word;; esac; target=$word; done
case " $* " in *" -c "*) echo "$source" >> {calls}; sleep 0.3; exec {compiler} -x c++ -c /dev/null -o "$target";; esac
exec {compiler} "$@"
"""  # noqa: E501


async def traced(state: Path, arguments: dict[str, Any], found: list[str], **env: str) -> None:
    """Ask a new server for the rebuilt package, which it returns because there are no inputs."""
    async with Client(real_server(state, **env)) as client:
        found.append(data_of(await client.call_tool("trace_launches", arguments))["package"])


def test_one_builds_and_the_other_waits(zoo: Zoo, tmp_path: Path) -> None:
    """Each source is compiled once, both get the same package, and nothing incomplete is left."""
    compiler, calls, cache = tmp_path / "own-g++", tmp_path / "calls", tmp_path / "cache"
    compiler.write_text(EMPTY.format(calls=calls, compiler=shutil.which("g++")))
    compiler.chmod(0o755)
    arguments = {"package": str(zoo("ranker")), "env": {"CXX": str(compiler)}, "wait_s": 45}
    found: list[str] = []

    env = {"AOTI_DEBUG_CACHE": str(cache), "PATH": os.environ["PATH"]}

    async def main() -> None:
        with anyio.fail_after(120):
            async with anyio.create_task_group() as tasks:
                for name in ("one", "two"):
                    tasks.start_soon(partial(traced, tmp_path / name, arguments, found, **env))

    anyio.run(main)
    sources = [Path(source).name for source in calls.read_text().split()]
    assert len(sources) == len(set(sources)) == 3
    assert found[0] == found[1] and Path(found[0]).exists()
    assert not list(cache.glob("*.building"))


BUILD = """
import sys, anyio
from pathlib import Path
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Options
from mcp_server.runtime.context import Context
package, cache, work = map(Path, sys.argv[1:])
anyio.run(lambda: instrument(package, Options(), Context(work, Path(sys.executable)), cache=Cache(cache)))
"""


def processes_below(directory: Path) -> list[str]:
    """The command names of processes whose working directory is below `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            below = (process / "cwd").readlink().is_relative_to(directory)
            if below:
                found.append((process / "comm").read_text().strip())
        except OSError:
            continue
    return found


def wait(until: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_killed_rebuild_leaves_no_compiler_and_no_entry(zoo: Zoo, tmp_path: Path) -> None:
    """After SIGKILL at a random moment, compilers end within seconds, and the cache has no entry."""
    root = tmp_path / "cache"
    argv = [sys.executable, "-c", BUILD, str(zoo("ranker")), str(root), str(tmp_path)]
    builder = subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL)
    wait(lambda: bool(processes_below(root)), 60)
    time.sleep(random.Random(0).uniform(0, 1.0))
    builder.send_signal(signal.SIGKILL)
    builder.wait()
    wait(lambda: not processes_below(root), 10)
    Cache(root).sweep()
    assert not [*root.glob("*.building"), *root.rglob("package.pt2")]
