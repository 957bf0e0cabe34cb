"""Copies of a package with one kernel replaced: C++ by symbol interposition, Triton by its cubin.

C++: the copy's library contains only the changed kernel and links the original library, stored next to it
under another name. The dynamic linker resolves the original's relocations to the changed kernel first. This
avoids compiling the wrapper, most of the time of a rebuild. If the original does not call the kernel through
a relocation, the package is rebuilt instead.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import anyio
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

from mcp_server.errors import ProblemError
from mcp_server.jobs.environment import child_environment
from mcp_server.package.archive import Package, open_package
from mcp_server.package.kernels import Kernel
from mcp_server.probes import commands
from mcp_server.probes.build import DIGESTS, PACKAGE, find_toolchain, instrument
from mcp_server.probes.cache import MANIFEST, Cache, digest_file, digest_package, digest_values
from mcp_server.probes.commands import Options, Toolchain, compile_in, compile_or_raise, first_error
from mcp_server.probes.model_build import SOURCES, extract, write_package
from mcp_server.probes.rewrite import compiled_form
from mcp_server.tools.context import Context, gpus_of

_ERROR = re.compile(r"^[^\n:]*:(\d+)(?::\d+)?: (?:fatal )?error: (.*)", re.M)
# Sources that determine the copy. They are part of the cache key, so a change invalidates old entries.
_OWN = (Path(__file__), Path(__file__).with_name("rewrite.py"))


@dataclass(frozen=True)
class Interposed:
    """A copy with the changed kernel."""

    package: Path


class CalledDirectlyError(Exception):
    """The library calls the kernel by its address, so that it cannot be interposed."""


@dataclass(frozen=True)
class _Build:
    """The inputs of one build."""

    package: Package
    kernel: Kernel
    source: str
    toolchain: Toolchain
    compiler: str
    context: Context
    env: Mapping[str, str]


def kernel_named(package: Package, name: str) -> Kernel:
    """The kernel with its source. Raises `ProblemError` for an unknown name or a missing source."""
    wrapper = package.wrapper
    kernel = wrapper.kernels.get(name)
    if kernel is None:
        raise ProblemError(
            "no such kernel in the package",
            value=name,
            allowed=", ".join(wrapper.kernels) or "none: every launch is a library call",
        )
    if not kernel.source:
        raise ProblemError("the package holds no source of this kernel", value=name)
    return kernel


def launches_of(package: Package, name: str) -> tuple[int, ...]:
    return tuple(launch.index for launch in package.wrapper.run.launches if launch.kernel == name)


async def interpose(
    package: Path,
    kernel: Kernel,
    source: str,
    context: Context,
    *,
    model_name: str = "model",
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
    cache: Cache | None = None,
) -> Interposed:
    """A copy of `package` in which `source` replaces the C++ kernel `kernel`. Takes seconds unless cached.

    Raises `ProblemError` with the compiler's first error and its line.
    """
    opened = await anyio.to_thread.run_sync(open_package, package, model_name)
    env = env or {}
    recorded = commands.read_recorded(opened.kernel_text or opened.wrapper_text)
    toolchain = await find_toolchain(python or context.python, context, env)
    environ = child_environment(env)
    compiler = await anyio.to_thread.run_sync(commands.choose_compiler, None, recorded, environ)
    build = _Build(opened, kernel, source, toolchain, compiler, context, env)
    cache = cache or Cache()
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    own = [digest_file(path) for path in _OWN]
    key = digest_values(
        [content, model_name, kernel.name, source, toolchain.torch_version, compiler, recorded, own]
    )
    try:
        entry, _ = await cache.built(key, lambda work: _build_interposed(build, work, key), context.progress)
    except CalledDirectlyError:
        options = Options(probes=False, kernels=((kernel.name, kernel.source, source),))
        rebuilt = await instrument(package, options, context, python=python, env=env, cache=cache)
        return Interposed(rebuilt.package)
    return Interposed(entry / PACKAGE)


async def _build_interposed(build: _Build, work: Path, key: str) -> None:
    """Fill the cache entry. Raises `CalledDirectlyError`, and `ProblemError` for a compiler error."""
    library = build.package.files.library
    if library is None:
        raise ProblemError("the package has no library", value=build.package.model_name)
    build.context.progress(f"compiling {build.kernel.name} again")
    original = work / f"aoti-debug-{key[:24]}.original"  # unique, since ld.so identifies libraries by name
    await anyio.to_thread.run_sync(extract, build.package, library.name, original)
    if not await anyio.to_thread.run_sync(calls_through_relocation, original, build.kernel.name):
        raise CalledDirectlyError
    await _compile(build, work)
    target = work / "changed.so"
    argv = commands.link_command(build.compiler, ["kernel.o"], original, str(target))
    await compile_or_raise(build.context, argv, work, "link-kernel", build.env)
    added = {str(PurePosixPath(library.name).parent / original.name): original}
    replaced = {library.name: target}
    container = build.package.container
    await anyio.to_thread.run_sync(write_package, container, replaced, added, work / PACKAGE)
    for name in (original.name, "changed.so", "kernel.o"):
        (work / name).unlink()
    shutil.rmtree(work / SOURCES)
    (work / MANIFEST).write_text(json.dumps({"kernel": build.kernel.name}))


def calls_through_relocation(library: Path, symbol: str) -> bool:
    """Whether a relocation of the library refers to the symbol, so that it can be interposed."""
    with library.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if not isinstance(section, RelocationSection) or not section.name.startswith(".rel"):
                continue
            symbols = ELFFile(file).get_section(section["sh_link"])
            get_symbol = getattr(symbols, "get_symbol", None)
            if get_symbol is None:
                continue
            numbers = {int(relocation["r_info_sym"]) for relocation in section.iter_relocations()}
            if any(get_symbol(number).name == symbol for number in numbers if number):
                return True
    return False


async def _compile(build: _Build, work: Path) -> None:
    """Compile the changed kernel with the package's flags and its original line numbers."""
    package = build.package
    text, name = _source_file(build)
    (work / SOURCES).mkdir()
    (work / SOURCES / name).write_text(text)
    flags = commands.safe_flags(commands.read_recorded(package.kernel_text or package.wrapper_text))
    argv = commands.compile_command(
        build.compiler, flags, build.toolchain, f"{SOURCES}/{name}", "kernel.o", ("-O3",)
    )
    log = await compile_in(build.context, argv, work, "compile-kernel", build.env)
    if log is None:
        return
    what, error = first_error(log), _ERROR.search(log)
    if error is not None:
        lines, place = build.source.split("\n"), int(error[1]) - build.kernel.first_line
        code = f" ({lines[place].strip()[:200]})" if 0 <= place < len(lines) else ""
        message = "".join(char for char in error[2] if char.isprintable())[:300]
        what = f"line {error[1]}: {message}{code}"
    what = f"the changed kernel does not compile: {what}"
    raise ProblemError(what, value=name, next_call="correct the replacement")


def _source_file(build: _Build) -> tuple[str, str]:
    """Text and name of a source with this kernel changed and the others blanked; line numbers stay."""
    package, kernel = build.package, build.kernel
    changed = compiled_form(build.source)
    if kernel.source not in package.kernel_text:
        head = f"#include <torch/csrc/inductor/cpp_prefix.h>\n#line {kernel.first_line}\n"
        return head + changed, "wrapper.kernel.cpp"
    text = package.kernel_text
    for other in package.wrapper.kernels.values():
        if other.name != kernel.name and other.kind == "cpp" and other.source in text:
            text = text.replace(other.source, "\n" * other.source.count("\n"))
    member = package.files.kernel_source
    assert member is not None
    return text.replace(kernel.source, changed), PurePosixPath(member.name).name


async def recompile_triton(
    package: Path,
    kernel: Kernel,
    source: str,
    context: Context,
    *,
    model_name: str = "model",
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
    cache: Cache | None = None,
) -> Interposed:
    """A copy of `package` with the Triton kernel `kernel` compiled from `source`, on the target GPU.

    The wrapper launches the new binary with the same grid, warps and shared memory. Raises `ProblemError` if
    the package has no separate binary of the kernel, without a GPU, on a compiler error, and if the original
    configuration is unknown.
    """
    opened = await anyio.to_thread.run_sync(open_package, package, model_name)
    binaries = [member.name for member in opened.members if member.name.endswith(f"/{kernel.cubin}")]
    if not kernel.cubin or not binaries:
        raise ProblemError(
            "the package holds no binary of this kernel that could be replaced",
            value=kernel.name,
            allowed="a package whose cubins are next to its library (embed_kernel_binary off)",
            next_call="compile_with_flags on the exported program",
        )
    cache = cache or Cache()
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    key = digest_values(["triton", content, model_name, kernel.name, source])

    async def build(work: Path) -> None:
        await _build_triton(opened, kernel, source, binaries[0], work, context, python, env or {})

    entry, _ = await cache.built(key, build, context.progress)
    return Interposed(entry / PACKAGE)


async def _build_triton(
    package: Package,
    kernel: Kernel,
    source: str,
    member: str,
    work: Path,
    context: Context,
    python: Path | None,
    env: Mapping[str, str],
) -> None:
    """Fill the cache entry; `member` is the kernel's binary in the package."""
    context.progress(f"compiling {kernel.name} again")
    files = {"original": work / "original.py", "changed": work / "changed.py"}
    files["original"].write_text(textwrap.dedent(kernel.source))
    files["changed"].write_text(textwrap.dedent(source))
    extract(package, member, work / "original.cubin")
    request = {
        **files,
        "kernel": kernel.symbol,
        "binary": work / "original.cubin",
        "target": work / "changed.cubin",
        "num_warps": kernel.num_warps,
        "shared": kernel.shared_bytes,
    }
    done = await context.worker(
        "recompile_triton", request, python=python, env=env, gpus=gpus_of("cuda"), timeout_s=300
    )
    if done.last("recompiled") is None:
        failed = done.last("failed")
        text = str(failed["text"])[:400] if failed else f"it ended in {done.phase}"
        raise ProblemError(f"the changed kernel does not compile: {text}", value=kernel.name)
    await anyio.to_thread.run_sync(
        write_package, package.container, {member: work / "changed.cubin"}, {}, work / PACKAGE
    )
    for path in (*files.values(), work / "original.cubin", work / "changed.cubin"):
        path.unlink()
    (work / MANIFEST).write_text(json.dumps({"kernel": kernel.name}))
