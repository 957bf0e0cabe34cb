"""Copies of a package in which one kernel is another: C++ by a library in front, Triton by its binary.

A copy of a package in which one C++ kernel is another: one small library in front of the original one.

The copy's library holds the changed kernel alone and needs the original library, which lies beside it under
another name. The loader's handle covers both, its own symbols first: calls of the kernel in the original,
which go through its relocations, come to the changed one. The wrapper is not compiled again, which is most of
a rebuild; where the original does not call the kernel through a relocation, it is.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
import time
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
from mcp_server.package.wrapper import read_wrapper
from mcp_server.probes import commands
from mcp_server.probes.build import DIGESTS, PACKAGE, find_toolchain, instrument
from mcp_server.probes.cache import MANIFEST, Cache
from mcp_server.probes.commands import Options, Toolchain, compile_in, compile_or_raise, first_error
from mcp_server.probes.contents import digest_file, digest_package, digest_values, write_package
from mcp_server.probes.kernel_source import compiled_form
from mcp_server.tools.context import Context, gpus_of

_ERROR = re.compile(r"^[^\n:]*:(\d+)(?::\d+)?: (?:fatal )?error: (.*)", re.M)
_OWN = (Path(__file__), Path(__file__).with_name("kernel_source.py"))


@dataclass(frozen=True)
class Interposed:
    """The copy with the changed kernel. `seconds` is what making it took."""

    package: Path
    kernel: str
    launches: tuple[int, ...]
    cached: bool
    seconds: float


class CalledDirectlyError(Exception):
    """The library calls the kernel by its address: nothing can take its place but another wrapper."""


@dataclass(frozen=True)
class _Making:
    """What one copy is made of, and with what."""

    package: Package
    kernel: Kernel
    source: str
    toolchain: Toolchain
    compiler: str
    context: Context
    env: Mapping[str, str]


def kernel_named(package: Package, name: str) -> Kernel:
    """The kernel with its source. Raises `ProblemError` for an unknown name, or one without a source."""
    wrapper = read_wrapper(package.wrapper_text, package.kernel_text)
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
    wrapper = read_wrapper(package.wrapper_text, package.kernel_text)
    return tuple(launch.index for launch in wrapper.run.launches if launch.kernel == name)


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
    """A copy of `package` with `source` as the text of the C++ kernel `kernel`; seconds, or from the cache.

    Raises `ProblemError` with the compiler's first error and its line.
    """
    started = time.monotonic()
    opened = open_package(package, model_name)
    env = env or {}
    environ = child_environment(env)
    recorded = commands.read_recorded(opened.kernel_text or opened.wrapper_text)
    toolchain = await find_toolchain(python or context.python, context, env)
    compiler = await anyio.to_thread.run_sync(commands.choose_compiler, None, recorded, environ)
    making = _Making(opened, kernel, source, toolchain, compiler, context, env)
    cache = cache or Cache()
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    own = [digest_file(path) for path in _OWN]
    key = digest_values(
        [content, model_name, kernel.name, source, toolchain.torch_version, compiler, recorded, own]
    )
    launches = launches_of(opened, kernel.name)
    async with cache.locked(key, context.progress):
        entry = cache.find(key)
        cached = entry is not None
        if entry is None:
            context.progress(f"compiling {kernel.name} anew")
            work = cache.building(key)
            try:
                await _make_interpose(making, work, key)
            except CalledDirectlyError:
                shutil.rmtree(work)
            else:
                entry = cache.finish(key, work)
    if entry is not None:
        seconds = round(time.monotonic() - started, 3)
        return Interposed(entry / PACKAGE, kernel.name, launches, cached, seconds)
    options = Options(probes=False, kernels=((kernel.name, kernel.source, source),))
    rebuilt = await instrument(package, options, context, python=python, env=env, cache=cache)
    seconds = round(time.monotonic() - started, 3)
    return Interposed(rebuilt.package, kernel.name, launches, rebuilt.cached, seconds)


async def _make_interpose(making: _Making, work: Path, key: str) -> None:
    library = making.package.files.library
    if library is None:
        raise ProblemError("the package has no library", value=making.package.model_name)
    original = work / f"aoti-debug-{key[:24]}.original"  # one for each copy: ld.so knows libraries by name
    await anyio.to_thread.run_sync(_extract, making.package, library.name, original)
    if not await anyio.to_thread.run_sync(calls_through_relocation, original, making.kernel.name):
        raise CalledDirectlyError
    await _compile(making, work)
    target = work / "changed.so"
    argv = commands.link_command(making.compiler, ["kernel.o"], original, str(target))
    await compile_or_raise(making.context, argv, work, "link-kernel", making.env)
    place = PurePosixPath(library.name).parent
    await anyio.to_thread.run_sync(
        write_package,
        making.package.container,
        {library.name: target},
        {str(place / original.name): original},
        work / PACKAGE,
    )
    for name in (original.name, "changed.so", "kernel.o"):
        (work / name).unlink()
    shutil.rmtree(work / "sources")
    (work / MANIFEST).write_text(json.dumps({"kernel": making.kernel.name}))


def _extract(package: Package, member: str, target: Path) -> None:
    with package.container.open(member) as stream, target.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 22)


def calls_through_relocation(library: Path, symbol: str) -> bool:
    """Whether the library looks the symbol up by name when it is loaded."""
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


async def _compile(making: _Making, work: Path) -> None:
    """Compile the one kernel, with the flags of the package, on the lines that it has there."""
    text, name = _text(making)
    source = work / "sources" / name
    source.parent.mkdir()
    source.write_text(text)
    flags = commands.safe_flags(
        commands.read_recorded(making.package.kernel_text or making.package.wrapper_text)
    )
    argv = commands.compile_command(
        making.compiler, flags, making.toolchain, f"sources/{name}", "kernel.o", ("-O3",)
    )
    log = await compile_in(making.context, argv, work, "compile-kernel", making.env)
    if log is not None:
        raise ProblemError(_does_not_compile(log, making), value=name, next_call="correct the replacement")


def _does_not_compile(log: str, making: _Making) -> str:
    match = _ERROR.search(log)
    if match is None:
        return f"the changed kernel does not compile: {first_error(log)}"
    line = int(match[1])
    lines = making.source.split("\n")
    place = line - making.kernel.first_line
    code = f" ({lines[place].strip()[:200]})" if 0 <= place < len(lines) else ""
    told = "".join(char for char in match[2] if char.isprintable())[:300]
    return f"the changed kernel does not compile: line {line}: {told}{code}"


def _text(making: _Making) -> tuple[str, str]:
    """The file with this kernel changed and the others left out; every line where it was."""
    package, kernel = making.package, making.kernel
    changed = compiled_form(making.source)
    if kernel.source not in package.kernel_text:
        head = f"#include <torch/csrc/inductor/cpp_prefix.h>\n#line {kernel.first_line}\n"
        return head + changed, "wrapper.kernel.cpp"
    text = package.kernel_text
    wrapper = read_wrapper(package.wrapper_text, text)
    for other in wrapper.kernels.values():
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
    """A copy of `package` with the Triton kernel `kernel` compiled from `source`, on the GPU that it is for.

    The wrapper launches the new binary as it did the old one: with the same grid, warps and shared memory.
    Raises `ProblemError`: the package has no binary of its own for the kernel, no GPU, an error of the
    compiler, a configuration that cannot be told.
    """
    started = time.monotonic()
    opened = open_package(package, model_name)
    member = _binary(opened, kernel)
    cache = cache or Cache()
    content = await anyio.to_thread.run_sync(digest_package, package, cache.root / DIGESTS)
    key = digest_values(["triton", content, model_name, kernel.name, source])
    async with cache.locked(key, context.progress):
        entry = cache.find(key)
        cached = entry is not None
        if entry is None:
            context.progress(f"compiling {kernel.name} anew")
            work = cache.building(key)
            await _make_triton_kernel(opened, kernel, source, member, work, context, python, env or {})
            entry = cache.finish(key, work)
    seconds = round(time.monotonic() - started, 3)
    return Interposed(entry / PACKAGE, kernel.name, launches_of(opened, kernel.name), cached, seconds)


def _binary(package: Package, kernel: Kernel) -> str:
    found = [member.name for member in package.members if member.name.endswith(f"/{kernel.cubin}")]
    if not kernel.cubin or not found:
        raise ProblemError(
            "the package holds no binary of this kernel that could be replaced",
            value=kernel.name,
            allowed="a package whose cubins lie beside its library (embed_kernel_binary off)",
            next_call="compile_with_flags on the exported program",
        )
    return found[0]


async def _make_triton_kernel(
    package: Package,
    kernel: Kernel,
    source: str,
    member: str,
    work: Path,
    context: Context,
    python: Path | None,
    env: Mapping[str, str],
) -> None:
    files = {"original": work / "original.py", "changed": work / "changed.py"}
    files["original"].write_text(textwrap.dedent(kernel.source))
    files["changed"].write_text(textwrap.dedent(source))
    with package.container.open(member) as stream, (work / "original.cubin").open("wb") as file:
        shutil.copyfileobj(stream, file)
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
