"""Copies of a package with one kernel replaced: C++ by symbol interposition, Triton by its cubin.

For C++, the copy's library contains only the changed kernel and links the original library, stored next to it
under another name. The dynamic linker resolves the original's relocations to the changed kernel first. This
avoids compiling the wrapper, which takes most of the time of a rebuild. If the original does not call the
kernel through a relocation, the package is rebuilt instead.
"""

import json
import re
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import anyio
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from mcp_server.errors import ProblemError
from mcp_server.package.archive import Package
from mcp_server.package.kernels import Kernel
from mcp_server.probes import commands
from mcp_server.probes.build import DIGESTS, PACKAGE, find_tools, instrument
from mcp_server.probes.cache import MANIFEST, Cache, digest_file, digest_package, digest_values
from mcp_server.probes.commands import Options, compile_in, compile_or_raise, first_error
from mcp_server.probes.model_build import SOURCES, Tools, extract, write_package
from mcp_server.probes.rewrite import compiled_form
from mcp_server.runtime.context import Context, gpus_of
from mcp_server.worker.events import Failed
from mcp_server.worker.protocol import RecompileRequest

_ERROR = re.compile(r"^[^\n:]*:(\d+)(?::\d+)?: (?:fatal )?error: (.*)", re.M)
# The sources that determine the copy. They are part of the cache key, so a change invalidates old entries.
_OWN = tuple(
    Path(__file__).with_name(name) for name in ("changed_kernel.py", "rewrite.py", "domain_guard.py")
)


class CalledDirectlyError(Exception):
    """The library calls the kernel by its address, so the kernel cannot be interposed."""


def kernel_named(package: Package, name: str) -> Kernel:
    """The named kernel with its source. Raises `ProblemError` if name or source is missing."""
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


async def with_kernel(
    package: Package,
    kernel: Kernel,
    source: str,
    context: Context,
    *,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Path:
    """Write a copy of `package` in which `source` replaces `kernel`. Takes seconds unless cached.

    Raise `ProblemError` with the compiler's first error and its line. A Triton kernel is compiled on the
    target GPU and launched with the same grid, warps and shared memory; `ProblemError` is also raised if the
    package has no separate binary of it, if there is no GPU, or if its configuration is unknown.
    """
    cache = Cache()
    content = await anyio.to_thread.run_sync(digest_package, package.path, cache.root / DIGESTS)
    changed = [content, package.model_name, kernel.name, source]
    if kernel.kind != "cpp":
        binaries = [member.name for member in package.members if member.name.endswith(f"/{kernel.cubin}")]
        if not kernel.cubin or not binaries:
            raise ProblemError(
                "the package holds no binary of this kernel that could be replaced",
                value=kernel.name,
                allowed="a package whose cubins are next to its library (embed_kernel_binary off)",
                next_call="compile_with_flags on the exported program",
            )

        async def build(work: Path) -> None:
            target = await _recompiled(package, kernel, source, binaries[0], work, context, python, env)
            await _finish(package, kernel, {binaries[0]: target}, work)

        entry, _ = await cache.built(digest_values(["triton", *changed]), build, context.progress)
        return entry / PACKAGE
    command = package.kernel_text or package.wrapper_text
    tools = await find_tools(command, Options(), context, python=python, cache=cache, env=env)
    own = [digest_file(path) for path in _OWN]
    version, recorded = tools.toolchain.torch_version, commands.read_recorded(command)
    key = digest_values([*changed, version, tools.compiler, recorded, own])

    async def build_interposed(work: Path) -> None:
        await _build_interposed(package, kernel, source, tools, work, key)

    try:
        entry, _ = await cache.built(key, build_interposed, context.progress)
    except CalledDirectlyError:
        options = Options(probes=False, kernels=((kernel.name, kernel.source, source),))
        rebuilt = await instrument(package.path, options, context, python=python, env=env, cache=cache)
        return rebuilt.package
    return entry / PACKAGE


async def _finish(package: Package, kernel: Kernel, files: Mapping[str, Path], work: Path) -> None:
    """Write the package with these files, and delete everything else in `work`."""
    await anyio.to_thread.run_sync(write_package, package.container, files, work / PACKAGE)
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != PACKAGE:
            path.unlink()
    (work / MANIFEST).write_text(json.dumps({"kernel": kernel.name}))


async def _build_interposed(
    package: Package, kernel: Kernel, source: str, tools: Tools, work: Path, key: str
) -> None:
    """Fill the cache entry. Raise `CalledDirectlyError`, or `ProblemError` for a compiler error."""
    context, library = tools.context, package.files.library
    if library is None:
        raise ProblemError("the package has no library", value=package.model_name)
    original = work / f"aoti-debug-{key[:24]}.original"  # unique, since ld.so identifies libraries by name
    await anyio.to_thread.run_sync(extract, package, library.name, original)
    if not await anyio.to_thread.run_sync(calls_through_relocation, original, kernel.name):
        raise CalledDirectlyError
    await _compile(package, kernel, source, tools, work)
    target = work / "changed.so"
    argv = commands.link_command(tools.compiler, ["kernel.o"], original, str(target))
    await compile_or_raise(context, argv, work, "link-kernel", tools.env)
    beside = str(PurePosixPath(library.name).parent / original.name)
    await _finish(package, kernel, {library.name: target, beside: original}, work)


def calls_through_relocation(library: Path, symbol: str) -> bool:
    """Whether a relocation of the library refers to the symbol, so that it can be interposed."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        for section in elf.iter_sections():
            symbols = elf.get_section(section["sh_link"]) if isinstance(section, RelocationSection) else None
            if isinstance(symbols, SymbolTableSection):
                numbers = {int(relocation["r_info_sym"]) for relocation in section.iter_relocations()}
                if any(symbols.get_symbol(number).name == symbol for number in numbers if number):
                    return True
    return False


async def _compile(package: Package, kernel: Kernel, source: str, tools: Tools, work: Path) -> None:
    """Compile only the changed kernel, with the package's flags and its original line numbers."""
    text, changed, member = package.kernel_text, compiled_form(source), package.files.kernel_source
    if member is None or kernel.source not in text:
        name = "wrapper.kernel.cpp"
        text = f"#include <torch/csrc/inductor/cpp_prefix.h>\n#line {kernel.first_line}\n{changed}"
    else:
        name = PurePosixPath(member.name).name
        for other in package.wrapper.kernels.values():
            if other.name != kernel.name and other.kind == "cpp":
                text = text.replace(other.source, "\n" * other.source.count("\n"))
        text = text.replace(kernel.source, changed)
    (work / SOURCES).mkdir()
    (work / SOURCES / name).write_text(text)
    flags = commands.safe_flags(commands.read_recorded(package.kernel_text or package.wrapper_text))
    file = f"{SOURCES}/{name}"
    argv = commands.compile_command(tools.compiler, flags, tools.toolchain, file, "kernel.o", ("-O3",))
    log = await compile_in(tools.context, argv, work, "compile-kernel", tools.env)
    if log is None:
        return
    what, error = first_error(log), _ERROR.search(log)
    if error is not None:
        lines, place = source.split("\n"), int(error[1]) - kernel.first_line
        code = f" ({lines[place].strip()[:200]})" if 0 <= place < len(lines) else ""
        message = "".join(char for char in error[2] if char.isprintable())[:300]
        what = f"line {error[1]}: {message}{code}"
    what = f"the changed kernel does not compile: {what}"
    raise ProblemError(what, value=name, next_call="correct the replacement")


async def _recompiled(
    package: Package,
    kernel: Kernel,
    source: str,
    member: str,
    work: Path,
    context: Context,
    python: Path | None,
    env: Mapping[str, str] | None,
) -> Path:
    """Compile a Triton kernel and return its new binary; `member` is its binary in the package."""
    names = ("original.py", "changed.py", "original.cubin", "changed.cubin")
    original, changed, binary, target = (work / name for name in names)
    original.write_text(textwrap.dedent(kernel.source))
    changed.write_text(textwrap.dedent(source))
    extract(package, member, binary)
    request: RecompileRequest = {
        "original": str(original),
        "changed": str(changed),
        "kernel": kernel.symbol,
        "binary": str(binary),
        "target": str(target),
        "num_warps": kernel.num_warps,
        "shared": kernel.shared_bytes,
        "blocks": kernel.block_sizes,
    }
    gpus = gpus_of("cuda")
    done = await context.worker("recompile_triton", request, python=python, env=env or {}, gpus=gpus)
    if not done.phases("recompiled"):
        failed = done.last(Failed)
        text = failed.text[:400] if failed else f"it ended in {done.phase}"
        raise ProblemError(f"the changed kernel does not compile: {text}", value=kernel.name)
    return target
