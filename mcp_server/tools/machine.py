"""What this machine has, what the tools need from it (`doctor`), and whether a package fits it."""

import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import anyio
from pydantic import Field

from mcp_server import RANGE, is_supported
from mcp_server.errors import ProblemError, argument
from mcp_server.interpreter import interpreter_help
from mcp_server.jobs.child import Command
from mcp_server.model import Category, Fix, Record
from mcp_server.package.archive import Package
from mcp_server.package.defects import LibraryError, read_library
from mcp_server.package.problems import Defect
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.worker import events

TOOLS = ("compute-sanitizer", "cuda-gdb", "gdb", "nvcc")
TOOLKITS = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
VECTOR_FLAGS = ("avx", "amx", "fma", "asimd", "sve")
PROBE_TIMEOUT_S = 120
COMPILE_TIMEOUT_S = 60
ENOUGH_TEMP_BYTES = 2 << 30

# The program throws, so that the linker cannot drop the C++ runtime.
_PROGRAM = """#include <stdexcept>
void probe() { throw std::runtime_error("probe"); }
"""
_VERSION = re.compile(r"\b(?:gcc|clang) version [\d.]+")


class Compiler(Record):
    """The compiler that Inductor would use (CXX, or g++). `links_cxx_runtime` names the C++ runtime that it
    links dynamically, "" if it links statically: CUDA packages built that way crash at load.
    """

    path: str
    version: str | None = None
    works: bool = False
    links_cxx_runtime: str | None = None
    error: str | None = None


class Interpreter(Record):
    """Facts of the interpreter. A fact that was not read is None, and `unknown` says why."""

    python_version: str | None = None
    torch: str | None = None
    torch_cuda: str | None = None
    triton: str | None = None
    cuda_available: bool | None = None
    cuda_problem: str | None = None
    driver_cuda: str | None = None
    gpus: list[events.Gpu] = Field(default_factory=list)
    unknown: list[str] = Field(default_factory=list)


class Machine(Interpreter):
    """Facts about this machine and about the interpreter `python`."""

    platform: str
    machine: str
    cpu_flags: list[str]
    temp_directory: str
    temp_free_bytes: int | None
    compiler: Compiler
    tools: dict[str, str | None]
    python: str


async def read_machine(context: Context, env: Mapping[str, str], python: Path) -> Machine:
    """Compile a probe, and ask the worker at the same time. Without torch, facts stay unknown."""
    interpreter = Interpreter()

    async def ask_worker() -> None:
        nonlocal interpreter
        try:
            run = await context.worker("probe", {}, env=env, python=python, timeout_s=PROBE_TIMEOUT_S)
            interpreter = _interpreter(run)
        except ProblemError as error:
            interpreter = Interpreter(unknown=[f"torch, triton, CUDA and GPUs: {error}"])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask_worker)
        compiler = await check_compiler(context, env)
    directory = env.get("TMPDIR") or tempfile.gettempdir()
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        free = None
    tools = {name: find_tool(name, env) for name in TOOLS}
    return Machine(
        platform=sys.platform,
        machine=platform.machine(),
        cpu_flags=sorted(flag for flag in cpu_flags() if flag.startswith(VECTOR_FLAGS)),
        temp_directory=directory,
        temp_free_bytes=free,
        compiler=compiler,
        tools={name: str(path) if path else None for name, path in tools.items()},
        python=str(python),
        **dict(interpreter),
    )


def _interpreter(run: WorkerRun) -> Interpreter:
    build, python = run.last(events.Torch), run.last(events.Python)
    cuda, finished, unknown = run.last(events.Cuda) or events.Cuda(), run.finished, []
    driver = cuda.driver
    if not finished.ok:
        how = finished.signal or finished.note or f"{finished.ending} {finished.returncode}"
        unknown = [f"everything after {run.phase!r}: the probe died with {how}"]
    return Interpreter(
        python_version=python.version if python else None,
        torch=build.version if build else None,
        torch_cuda=build.cuda if build else None,
        triton=python.triton if python else None,
        cuda_available=cuda.available,
        cuda_problem=cuda.why or None,
        driver_cuda=f"{driver // 1000}.{driver % 1000 // 10}" if isinstance(driver, int) else None,
        gpus=run.all(events.Gpu),
        unknown=unknown,
    )


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Read the feature flags of the first CPU: `flags` on x86, `Features` on Arm. Empty if unknown."""
    if not path.exists():
        return frozenset()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(value.split())
    return frozenset()


def find_tool(name: str, env: Mapping[str, str], python: Path | None = None) -> Path | None:
    """Find the executable `name` on PATH, in a CUDA toolkit, or in `python`'s site-packages; else None."""
    environment = {**os.environ, **env}
    on_path = shutil.which(name, path=environment.get("PATH"))
    if on_path:
        return Path(on_path)
    default = Path("/usr/local")
    roots = [Path(environment[key]) for key in TOOLKITS if environment.get(key)]
    roots += [default / "cuda", *sorted(default.glob("cuda-*"), reverse=True)]
    places = [root / folder / name for root in roots for folder in ("bin", name, f"extras/{name}")]
    if python is not None:
        # nvidia-cuda-sanitizer-api installs below these, in a folder that depends on its release.
        for folder in sorted(python.parent.parent.glob("lib/python3*/site-packages/nvidia")):
            places += [*sorted(folder.glob(f"*/bin/{name}")), *sorted(folder.glob(f"**/{name}"))]
    return next((path for path in places if path.is_file() and os.access(path, os.X_OK)), None)


async def check_compiler(context: Context, env: Mapping[str, str]) -> Compiler:
    """Compile and link a small library as Inductor would, and read which C++ runtime it needs."""
    # CXX may contain a launcher and flags (`ccache g++`).
    argv = shlex.split(env.get("CXX") or os.environ.get("CXX") or "g++") or ["g++"]
    found = find_tool(argv[0], env)
    if found is None:
        return Compiler(path=argv[0], error="not found; Inductor and package_cpp_only need it")
    directory = context.fresh("compiler-program")
    source, library = directory / "probe.cpp", directory / "probe.so"
    source.write_text(_PROGRAM)
    command = Command(
        argv=(str(found), *argv[1:], "-v", "-shared", "-fPIC", str(source), "-o", str(library)),
        cwd=directory,
        env=env,
        timeout_s=COMPILE_TIMEOUT_S,
    )
    finished = await context.run(command, "compiler")
    said = finished.stderr.read_bytes()[:200_000].decode("utf-8", "replace")
    version = _VERSION.search(said)
    runtime: str | None = None
    error: str | None = None
    try:
        with library.open("rb") as stream:
            runtime = read_library(stream).cxx_runtime or ""
    except (OSError, LibraryError) as problem:
        error = str(problem)
    if not finished.ok:
        lines = [line for line in said.splitlines() if line.strip()] or ["no message"]
        error = "".join(char for char in lines[-1] if char.isprintable())[:300]
    return Compiler(
        path=str(found),
        version=version[0] if version else None,
        works=finished.ok,
        links_cxx_runtime=runtime,
        error=error,
    )


Standing = Literal["ok", "missing", "limited"]


class Need(Record):
    """Something that the tools need: for every workload if `essential`, otherwise for `for_what`."""

    name: str
    standing: Standing
    found: str
    for_what: str
    how: str = ""
    essential: bool = False


class Checkup(Record):
    """The answer of `doctor`."""

    summary: str
    needs: list[Need]
    unknown: list[str]

    @property
    def healthy(self) -> bool:
        return all(need.standing == "ok" for need in self.needs if need.essential)


def checkup(machine: Machine) -> Checkup:
    """Say what the tools need from a machine: what is there, what is missing, and how to get it."""
    needs = [_torch(machine), _compiler(machine.compiler), _space(machine), *_for_cuda(machine)]
    for name, for_what, how in _PROGRAMS:
        path = machine.tools.get(name)
        needs.append(_need(name, "ok" if path else "missing", path or "none", for_what, how))
    # Essential needs come first; a machine without a GPU is complete for CPU packages.
    wanting = {need.name: need.essential for need in needs if need.standing != "ok"}
    names = ", ".join(sorted(wanting, key=lambda name: not wanting[name]))
    summary = f"missing or limited: {names}" if wanting else "everything is there"
    if wanting and not any(wanting.values()):
        summary = f"nothing essential is missing; optional parts missing or limited here: {names}"
    if not machine.torch:  # read the rest later, from the environment with torch
        summary = "no torch: activate the environment that has your torch, then run this again"
    return Checkup(summary=summary, needs=needs, unknown=machine.unknown if machine.torch else [])


def _torch(machine: Machine) -> Need:
    version, python = machine.torch, machine.python
    tested: Standing = "ok" if version and is_supported(version) else "limited" if version else "missing"
    found = f"{version} in {python}" if version else f"none for {python}"
    install = f"or, without activating it: {interpreter_help()}"
    how = f"tested with torch {RANGE}" if version else install
    return _need("torch", tested, found, "every run and compile", how, essential=True)


def _compiler(compiler: Compiler) -> Need:
    works: Standing = "ok" if compiler.links_cxx_runtime else "limited"
    found = f"{compiler.path} {compiler.version or compiler.error or ''}".strip()
    other = "compile with CXX set to a g++ that links libstdc++.so.6, such as /usr/bin/g++"
    how = other if compiler.works else "apt-get install g++, or set CXX"
    standing = works if compiler.works else "missing"
    return _need(
        "C++ compiler", standing, found, "compiling, and instrumenting packages", how, essential=True
    )


def _space(machine: Machine) -> Need:
    free = machine.temp_free_bytes
    found = "free space unknown" if free is None else f"{free >> 20} MiB free"
    return _need(
        "temporary space",
        "ok" if free is None or free >= ENOUGH_TEMP_BYTES else "limited",
        f"{machine.temp_directory}, {found}",
        "loading packages",
        "set TMPDIR to a directory with at least 2 GiB free",
    )


def _for_cuda(machine: Machine) -> Iterator[Need]:
    gpus = ", ".join(gpu.name for gpu in machine.gpus)
    yield _need(
        "GPU",
        "ok" if gpus else "missing",
        gpus or machine.cuda_problem or "no GPU is visible",
        "CUDA packages",
        "on a GPU machine: its driver, and a torch built for CUDA; not needed for CPU packages",
    )
    yield _need(
        "triton",
        "ok" if machine.triton else "missing",
        machine.triton or "none",
        "compiling for CUDA",
        "pip install triton, in the same environment as torch" if machine.torch else "",
    )


_PROGRAMS = (
    (
        "compute-sanitizer",
        "locating illegal accesses on a GPU",
        "CUDA toolkit, or conda install -c nvidia cuda-sanitizer-api",
    ),
    ("cuda-gdb", "reading GPU core dumps", "CUDA toolkit, or conda install -c nvidia cuda-gdb"),
    ("gdb", "native stacks of crashed and hung processes", "apt-get install gdb"),
)


def _need(
    name: str, standing: Standing, found: str, for_what: str, how: str, *, essential: bool = False
) -> Need:
    """Build a need. `how` says how to get it, and is dropped if the need is met."""
    how = "" if standing == "ok" else how
    return Need(name=name, standing=standing, found=found, for_what=for_what, how=how, essential=essential)


# Values of AOTI_CPU_ISA (torch/_inductor/cpu_vec_isa.py, 2.13), and the flags of /proc/cpuinfo that their
# instructions need.
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
_CXX_RUNTIME_FIX = "compile with CXX=/usr/bin/g++, or start with LD_PRELOAD=libstdc++.so.6 (the shared one)"
_COMPILER_FIX = "install g++, or set CXX"
_SPACE_FACTOR = 1.1
# Defects whose category is not invalid_package.
_DEFECT_CATEGORIES: dict[str, Category] = {
    "weights_not_included": "constants",
    "foreign_library": "arch_mismatch",
    "contradicted_device": "device_mismatch",
}


class Problem(Record):
    """Something that stops the package here (`certain`), or may stop it."""

    category: Category
    what: str
    certain: bool
    fix: Fix | None = None


def _problem(category: Category, what: str, action: str, certain: bool = True) -> Problem:
    return Problem(category=category, what=what, certain=certain, fix=Fix(text=action) if action else None)


def defect_problem(defect: Defect) -> Problem:
    category = _DEFECT_CATEGORIES.get(defect.slug, "invalid_package")
    return _problem(category, defect.what, defect.fix, defect.fatal)


def find_problems(package: Package, machine: Machine, device_index: int = -1) -> list[Problem]:
    """List everything about package and machine that does not fit; certain problems first."""
    found = [
        *(defect_problem(defect) for defect in package.defects),
        *_host_problems(package, machine),
        *_device_problems(package, machine, device_index),
    ]
    if package.library is not None and package.library.cxx_runtime is None:
        cuda = package.device_type == "cuda"
        what = "the library links libstdc++ statically"
        what += ": loading a CUDA package of that kind segfaults in parse_device_str" if cuda else ""
        found.append(_problem("toolchain", what, _CXX_RUNTIME_FIX, certain=cuda))
    if package.files.built_at_load and not machine.compiler.works:
        what = f"the package is compiled at load and {machine.compiler.path} does not work"
        found.append(_problem("toolchain", what, _COMPILER_FIX))
    ops = dict.fromkeys(target for target in package.proxy_nodes if not target.startswith("aten::"))
    if ops:
        what = f"needs custom operators registered before the load: {', '.join(list(ops)[:8])}"
        action = f"import the modules that register them first ({argument('extra_imports')})"
        found.append(_problem("custom_op", what, action, certain=False))
    # The loader extracts the whole package below the temporary directory.
    needed, free = int(sum(m.size for m in package.members) * _SPACE_FACTOR), machine.temp_free_bytes
    if package.path.is_file() and free is not None and free < needed:
        what = f"loading unpacks {needed} bytes to {machine.temp_directory}, which has {free}"
        found.append(_problem("environment", what, "free space, or set TMPDIR (torch >= 2.13)"))
    return sorted(found, key=lambda problem: not problem.certain)


def _host_problems(package: Package, machine: Machine) -> Iterator[Problem]:
    metadata = package.metadata
    here = _ARM_NAMES.get(machine.machine, machine.machine)
    # If neither fits, the machine of the library is named.
    recorded = [package.library.machine if package.library else None, metadata.machine]
    built_for = [_ARM_NAMES.get(each, each) for each in recorded if each]
    others = [name for name in built_for if name != here]
    if others:
        yield _arch(f"the package was compiled for {others[0]}, but this machine is {here}")
    if metadata.platform and metadata.platform != machine.platform:
        yield _arch(f"the package was compiled on {metadata.platform}, but this is {machine.platform}")
    flags = set(machine.cpu_flags)
    missing = [isa for isa in metadata.isa if not flags.issuperset(ISA_FLAGS.get(isa, ()))]
    if flags and missing:
        what = f"the package was compiled for a CPU with {', '.join(missing)}, which this one lacks"
        # The host code of a CUDA package also gets -march=native, but need not use every instruction set.
        yield _arch(what, certain=package.device_type == "cpu")


def _arch(what: str, certain: bool = True) -> Problem:
    action = "compile the package again on this machine, or run it on one like that where it was compiled"
    return _problem("arch_mismatch", what, action, certain)


def _device_problems(package: Package, machine: Machine, device_index: int) -> Iterator[Problem]:
    if package.device_type == "cpu" and device_index >= 0:
        what = f"device_index {device_index} with a CPU package: the loader rejects it"
        yield _problem("device_mismatch", what, "leave device_index at -1")
    if package.device_type != "cuda" or machine.cuda_available is None:
        return
    if not machine.cuda_available:
        what = f"a CUDA package, but CUDA does not work here: {machine.cuda_problem or 'no reason given'}"
        action = "run where a driver and a GPU are visible, with a torch built for CUDA"
        yield _problem("environment", what, action)
        return
    gpu = next((gpu for gpu in machine.gpus if gpu.index == max(device_index, 0)), None)
    if gpu is None:
        what = f"device_index {device_index}, and {len(machine.gpus)} GPUs are visible"
        yield _problem("device_mismatch", what, f"a device_index from 0 to {len(machine.gpus) - 1}")
        return
    wanted, here = package.compute_capability, gpu.capability
    if not (wanted and wanted.isdigit() and here.isdigit()):
        return
    # A cubin needs a GPU of the same major compute capability, and the same or a later minor one. A fatbin
    # may have PTX.
    if wanted[:-1] != here[:-1] or int(wanted[-1]) > int(here[-1]):
        portable = any(member.name.endswith(".fatbin") for member in package.files.kernel_binaries)
        built_for, own = (f"{number[:-1]}.{number[-1]}" for number in (wanted, here))
        what = f"the kernels were compiled for compute capability {built_for}, but that of GPU {gpu.index}"
        yield _arch(f"{what} ({gpu.name}) is {own}", certain=not portable)


def compiler_problems(machine: Machine) -> list[Problem]:
    """List problems of the compiler that would affect the next compile."""
    compiler = machine.compiler
    if not compiler.works:
        what = f"the C++ compiler {compiler.path} does not work: {compiler.error}"
        return [_problem("toolchain", what, _COMPILER_FIX, certain=False)]
    if compiler.links_cxx_runtime == "":
        what = f"{compiler.path} links libstdc++ statically: CUDA packages that it builds segfault at load"
        return [_problem("toolchain", what, _CXX_RUNTIME_FIX, certain=False)]
    return []
