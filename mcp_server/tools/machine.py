"""What this machine has, and whether a package fits it."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.jobs.types import Command
from mcp_server.model import Category, Fix, Record
from mcp_server.package.archive import Package
from mcp_server.package.defects import LibraryError, read_library
from mcp_server.package.problems import Defect
from mcp_server.tools.context import Context, Event, WorkerRun

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


# What Inductor writes into AOTI_CPU_ISA (torch/_inductor/cpu_vec_isa.py, 2.13) and the flags of
# /proc/cpuinfo that such code uses.
ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "AVX2": ("avx2", "fma"),
    "AVX512": ("avx512f", "avx512dq", "avx512vl", "avx512bw"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AMX_TILE": ("amx_tile",),
    "AMX_FP16": ("amx_fp16",),
    "ASIMD": ("asimd",),
    "NEON": ("asimd",),
    "SVE": ("sve",),
}
_ARM_NAMES = {"arm64": "aarch64"}
_PORTABLE_KERNELS = (".fatbin",)
_CXX_RUNTIME_FIX = "compile with CXX=/usr/bin/g++, or start with LD_PRELOAD=libstdc++.so.6 (the shared one)"
_SPACE_FACTOR = 1.1
# Defects that are of another category than invalid_package.
_DEFECT_CATEGORIES: dict[str, Category] = {
    "weights_not_included": "constants",
    "foreign_library": "arch_mismatch",
    "contradicted_device": "device_mismatch",
}


class Problem(Record):
    """Something that stops the package here (`certain`), or may."""

    category: Category
    what: str
    certain: bool
    fix: Fix | None = None


def defect_problem(defect: Defect) -> Problem:
    """A defect of the file as a problem."""
    return Problem(
        category=_DEFECT_CATEGORIES.get(defect.slug, "invalid_package"),
        what=defect.what,
        certain=defect.fatal,
        fix=Fix(action=defect.fix) if defect.fix else None,
    )


def find_problems(package: Package, machine: Machine, device_index: int = -1) -> list[Problem]:
    """Everything about package and machine that does not fit; certain problems first."""
    found = [
        *(defect_problem(defect) for defect in package.defects),
        *_host(package, machine),
        *_isa(package, machine),
        *_device(package, machine, device_index),
        *_libraries(package, machine),
        *_custom_ops(package),
        *_space(package, machine),
    ]
    return sorted(found, key=lambda problem: not problem.certain)


def _host(package: Package, machine: Machine) -> Iterator[Problem]:
    metadata = package.metadata
    here = _ARM_NAMES.get(machine.machine, machine.machine)
    others = [built_for for built_for in _built_for(package) if built_for != here]
    if others:
        yield _arch(f"the package was compiled for {others[0]} and this machine is {here}")
    if metadata.platform and metadata.platform != machine.platform:
        yield _arch(f"the package was compiled on {metadata.platform} and this is {machine.platform}")


def _built_for(package: Package) -> list[str]:
    """Kinds of processor: of the library itself, which decides, then what the metadata says."""
    told = [package.library.machine if package.library else None, package.metadata.machine]
    return [_ARM_NAMES.get(each, each) for each in told if each]


def _arch(what: str, certain: bool = True) -> Problem:
    action = "compile the package on a machine of this kind, or run it on one like the first"
    return Problem(category="arch_mismatch", what=what, certain=certain, fix=Fix(action=action))


def _isa(package: Package, machine: Machine) -> Iterator[Problem]:
    """The host code of a CUDA package is compiled with -march=native too, but need not use every set."""
    if not machine.cpu_flags:
        return
    flags = set(machine.cpu_flags)
    missing = [isa for isa in package.metadata.isa if not flags.issuperset(ISA_FLAGS.get(isa, ()))]
    if missing:
        what = f"the package was compiled for a CPU with {', '.join(missing)}, which this one lacks: SIGILL"
        yield _arch(what, certain=package.device_type == "cpu")


def _device(package: Package, machine: Machine, device_index: int) -> Iterator[Problem]:
    device = package.device_type
    if device == "cpu" and device_index >= 0:
        what = f"device_index {device_index} with a CPU package: the loader refuses it"
        yield Problem(
            category="device_mismatch", what=what, certain=True, fix=Fix(action="leave device_index at -1")
        )
    if device == "cuda":
        yield from _cuda(package, machine, device_index)


def _cuda(package: Package, machine: Machine, device_index: int) -> Iterator[Problem]:
    if machine.cuda_available is None:
        return
    if not machine.cuda_available:
        what = f"a CUDA package, and CUDA does not work here: {machine.cuda_problem or 'no reason given'}"
        action = "run where a driver and a GPU are visible, with a torch built for CUDA"
        yield Problem(category="environment", what=what, certain=True, fix=Fix(action=action))
        return
    gpu = next((gpu for gpu in machine.gpus if gpu.index == max(device_index, 0)), None)
    if gpu is None:
        what = f"device_index {device_index}, and {len(machine.gpus)} GPUs are visible"
        action = f"a device_index from 0 to {len(machine.gpus) - 1}"
        yield Problem(category="device_mismatch", what=what, certain=True, fix=Fix(action=action))
    else:
        yield from _capability(package, gpu)


def _capability(package: Package, gpu: Gpu) -> Iterator[Problem]:
    """A cubin runs on its own major architecture from its minor one on; a fatbin may hold PTX besides."""
    wanted = package.compute_capability
    if not (wanted and wanted.isdigit() and gpu.capability.isdigit()):
        return
    if _runs_on(wanted, gpu.capability):
        return
    portable = any(member.name.endswith(_PORTABLE_KERNELS) for member in package.files.kernel_binaries)
    yield _arch(
        f"the kernels need compute capability {wanted}; GPU {gpu.index} ({gpu.name}) has {gpu.capability}",
        certain=not portable,
    )


def _runs_on(wanted: str, here: str) -> bool:
    return wanted[:-1] == here[:-1] and int(wanted[-1]) <= int(here[-1])


def _libraries(package: Package, machine: Machine) -> Iterator[Problem]:
    library = package.library
    if library is not None and library.cxx_runtime is None:
        cuda = package.device_type == "cuda"
        what = "the library links libstdc++ statically" + (
            ": loading a CUDA package of that kind segfaults in parse_device_str" if cuda else ""
        )
        yield Problem(category="toolchain", what=what, certain=cuda, fix=Fix(action=_CXX_RUNTIME_FIX))
    if package.files.built_at_load and not machine.compiler.works:
        what = f"the package is compiled at load and {machine.compiler.path} does not work"
        yield Problem(
            category="toolchain", what=what, certain=True, fix=Fix(action="install g++, or set CXX")
        )


def _custom_ops(package: Package) -> Iterator[Problem]:
    names = dict.fromkeys(node.target for node in package.proxy_nodes if not node.target.startswith("aten::"))
    if names:
        yield Problem(
            category="custom_op",
            what=f"needs custom operators registered before the load: {', '.join(list(names)[:8])}",
            certain=False,
            fix=Fix(action="import the modules that register them first (extra_imports)"),
        )


def _space(package: Package, machine: Machine) -> Iterator[Problem]:
    """The loader extracts the whole package below the temporary directory."""
    needed = int(sum(member.size for member in package.members) * _SPACE_FACTOR)
    if package.path.is_file() and machine.temp_free_bytes is not None and machine.temp_free_bytes < needed:
        what = (
            f"loading unpacks {needed} bytes to {machine.temp_directory}, which has {machine.temp_free_bytes}"
        )
        yield Problem(
            category="environment",
            what=what,
            certain=True,
            fix=Fix(action="free space, or set TMPDIR (torch >= 2.13)"),
        )


def compiler_problems(machine: Machine) -> list[Problem]:
    """What is wrong with the compiler, for whatever is compiled here next."""
    compiler = machine.compiler
    if not compiler.works:
        what = f"the C++ compiler {compiler.path} does not work: {compiler.error}"
        return [
            Problem(category="toolchain", what=what, certain=False, fix=Fix(action="install g++, or set CXX"))
        ]
    if compiler.links_cxx_runtime == "":
        what = f"{compiler.path} links libstdc++ statically: CUDA packages that it builds segfault at load"
        return [Problem(category="toolchain", what=what, certain=False, fix=Fix(action=_CXX_RUNTIME_FIX))]
    return []
