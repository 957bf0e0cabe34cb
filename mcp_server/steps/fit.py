"""Whether a package fits a machine: architecture, instruction sets, driver, libraries, space."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.model import Category, Fix, Record
from mcp_server.package.archive import Package
from mcp_server.package.problems import Defect
from mcp_server.steps.machine import Gpu, Machine

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
