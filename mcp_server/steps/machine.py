"""What this machine has: CPU, compiler and tools without torch, the rest as the worker's `probe` says."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command
from mcp_server.model import Record
from mcp_server.package.elf import LibraryError, read_library
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.reports import Event

TOOLS = ("compute-sanitizer", "cuda-gdb", "gdb", "nvcc")
TOOL_DIRECTORIES = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer")
VECTOR_FLAGS = ("avx", "amx", "fma", "asimd", "sve")
PROBE_TIMEOUT_S = 120
COMPILE_TIMEOUT_S = 60

# Throws, so that the C++ runtime is needed and the linker cannot drop it.
_PROGRAM = """#include <stdexcept>
void probe() { throw std::runtime_error("probe"); }
"""
_VERSION = re.compile(r"\b(?:gcc|clang) version [\d.]+")


class Compiler(Record):
    """The compiler that Inductor would take (CXX, else g++). `links_cxx_runtime` names the C++ runtime that
    it links dynamically; empty means statically, which makes every CUDA package that it builds crash at load.
    """

    path: str
    version: str | None = None
    works: bool = False
    links_cxx_runtime: str | None = None
    error: str | None = None


class Gpu(Record):
    """A visible GPU; `capability` as digits ("90")."""

    index: int
    name: str = ""
    capability: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    error: str | None = None


class Machine(Record):
    """Facts of this machine and of the interpreter. None and `unknown` where something could not be told."""

    platform: str
    machine: str
    cpu_flags: list[str]
    temp_directory: str
    temp_free_bytes: int | None
    compiler: Compiler
    tools: dict[str, str | None]
    python: str
    python_version: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    triton: str | None = None
    cuda_available: bool | None = None
    cuda_problem: str | None = None
    driver_cuda: str | None = None
    gpus: list[Gpu] = Field(default_factory=list)
    unknown: list[str] = Field(default_factory=list)


async def read_machine(context: Context, env: Mapping[str, str], python: Path) -> Machine:
    """Compile a probe and ask the worker, side by side; an interpreter without torch leaves unknowns."""
    probe: list[WorkerRun | ProblemError] = []
    compiler: list[Compiler] = []

    async def ask_worker() -> None:
        try:
            probe.append(await context.worker("probe", {}, env=env, python=python, timeout_s=PROBE_TIMEOUT_S))
        except ProblemError as error:
            probe.append(error)

    async def try_compiler() -> None:
        compiler.append(await check_compiler(context, env))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_worker)
        tasks.start_soon(try_compiler)
    return _machine(compiler[0], probe[0], env, python)


def _machine(
    compiler: Compiler, probe: WorkerRun | ProblemError, env: Mapping[str, str], python: Path
) -> Machine:
    directory = env.get("TMPDIR") or tempfile.gettempdir()
    return Machine(
        platform=sys.platform,
        machine=platform.machine(),
        cpu_flags=sorted(flag for flag in cpu_flags() if flag.startswith(VECTOR_FLAGS)),
        temp_directory=directory,
        temp_free_bytes=_free_bytes(directory),
        compiler=compiler,
        tools={name: find_tool(name, env) for name in TOOLS},
        python=str(python),
        **(_probed(probe) if isinstance(probe, WorkerRun) else {"unknown": [_not_asked(probe)]}),
    )


def _not_asked(error: ProblemError) -> str:
    return f"torch, triton, CUDA and GPUs: {error}"


def _probed(run: WorkerRun) -> dict[str, Any]:
    build, cuda = run.last("torch_build") or {}, run.last("cuda") or {}
    facts = {
        "python_version": (run.last("python") or {}).get("version"),
        "torch": build.get("version"),
        "torch_cuda": build.get("cuda"),
        "triton": (run.last("libraries") or {}).get("triton"),
        "cuda_available": cuda.get("available"),
        "cuda_problem": cuda.get("why") or None,
        "driver_cuda": _cuda_version(cuda.get("driver_cuda")),
        "gpus": [_gpu(event) for event in run.all("gpu")],
    }
    if not run.finished.ok:
        facts["unknown"] = [f"what comes after {run.phase!r}: the probe ended by {_ending(run)}"]
    return facts


def _ending(run: WorkerRun) -> str:
    finished = run.finished
    return finished.signal or finished.note or f"{finished.ending} {finished.returncode}"


def _gpu(event: Event) -> Gpu:
    return Gpu(**{name: event[name] for name in Gpu.model_fields if name in event})


def _cuda_version(number: object) -> str | None:
    """13000 as "13.0"."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else None


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Feature flags of the first CPU: `flags` on x86, `Features` on Arm. Empty where nothing says."""
    if not path.exists():
        return frozenset()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def find_tool(name: str, env: Mapping[str, str]) -> str | None:
    """The path of a tool: PATH first, then where CUDA toolkits put theirs."""
    home = env.get("CUDA_HOME") or os.environ.get("CUDA_HOME")
    places = (*TOOL_DIRECTORIES, *((f"{home}/bin", f"{home}/compute-sanitizer") if home else ()))
    path = os.pathsep.join((env.get("PATH") or os.environ.get("PATH", ""), *places))
    return shutil.which(name, path=path)


def _free_bytes(directory: str) -> int | None:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


async def check_compiler(context: Context, env: Mapping[str, str]) -> Compiler:
    """Compile and link three lines as Inductor would, and read what the result needs."""
    argv = _compiler_argv(env)
    found = find_tool(argv[0], env)
    if found is None:
        return Compiler(path=argv[0], error="not found; Inductor and package_cpp_only need it")
    directory = context.fresh("compiler-program")
    source, library = directory / "probe.cpp", directory / "probe.so"
    source.write_text(_PROGRAM)
    command = Command(
        argv=(found, *argv[1:], "-v", "-shared", "-fPIC", str(source), "-o", str(library)),
        cwd=directory,
        env=env,
        timeout_s=COMPILE_TIMEOUT_S,
    )
    finished = await context.run(command, "compiler")
    said = finished.stderr.read_bytes()[:200_000].decode("utf-8", "replace")
    version = _VERSION.search(said)
    runtime, error = _cxx_runtime(library)
    return Compiler(
        path=found,
        version=version[0] if version else None,
        works=finished.ok,
        links_cxx_runtime=runtime,
        error=error if finished.ok else _last_line(said),
    )


def _compiler_argv(env: Mapping[str, str]) -> list[str]:
    """CXX may hold a launcher and flags (`ccache g++`)."""
    return shlex.split(env.get("CXX") or os.environ.get("CXX") or "g++") or ["g++"]


def _cxx_runtime(library: Path) -> tuple[str | None, str | None]:
    """The needed C++ runtime ("" when linked statically), and why it cannot be told."""
    try:
        with library.open("rb") as stream:
            return read_library(stream).cxx_runtime or "", None
    except (OSError, LibraryError) as error:
        return None, str(error)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "".join(char for char in (lines[-1] if lines else "no message") if char.isprintable())[:300]
