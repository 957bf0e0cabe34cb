"""Rebuilds one model of a package (rewrite, compile, link), and writes packages with files replaced.

The rebuilt library links the original one, which stays next to it under a name that loaders ignore. So C++
kernels keep their machine code, weights need not pass through a compiler, and dependencies are found as
before.
"""

import json
import re
import shutil
import struct
import zipfile
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import anyio
from elftools.elf.elffile import ELFFile

from mcp_server.errors import ProblemError
from mcp_server.package.archive import Package, open_package
from mcp_server.package.members import Container, DirectoryContainer
from mcp_server.package.wrapper import Wrapper
from mcp_server.probes import commands
from mcp_server.probes.cache import MANIFEST, Cache, digest_file, digest_values
from mcp_server.probes.commands import Options, Skipped, Toolchain, compile_in, compile_or_raise
from mcp_server.probes.rewrite import Rewritten, compiled_form, numbered, replaced, rewrite
from mcp_server.runtime.context import Context

NATIVE = Path(__file__).with_name("native")
# Our native sources with their optimisation level: the runtime is hot, std::regex is not.
OBJECTS = {"runtime.cpp": "-O2", "regex.cpp": "-O0"}

ATTEMPTS = 4
SOURCES = "sources"
# Reports must name sources without the build directory, which no longer exists by then.
MAP = f"-ffile-prefix-map={SOURCES}/="

_ERROR = re.compile(r"\.wrapper\.cpp:(\d+)(?::\d+)?: (?:fatal )?error: (.*)")
_ASSERT = re.compile(r'AOTI_TORCH_CHECK\((?:[^;"]*),\s*"index out of bounds[^"]*"\s*\);')
SANITIZE_FLAGS = {
    "address": (
        *("-fsanitize=address", "-fno-omit-frame-pointer", "-g1", "-O1"),
        *("-include", str(NATIVE / "masked_access.h")),
    ),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-g1", "-O1"),
}

COPIED = 1 << 22  # bytes copied at a time
_MAPPED_HEADER = struct.Struct("<Q")
_MAP_ALIGNMENT = 0x4000  # model_base.h, _get_constants_start: the appended weights start at 16 KiB
# The constants under the symbols that model_base.h declares.
_CONSTANTS_ASSEMBLY = """\
.section .lrodata,"a",@progbits
.balign 64
.globl _binary_constants_bin_start
_binary_constants_bin_start:
.incbin "constants.bin"
.globl _binary_constants_bin_end
_binary_constants_bin_end:
.section .note.GNU-stack,"",@progbits
"""
STEM = "package"  # the top folder of a new archive
# What torch.export.pt2_archive looks for in an archive (torch 2.8-2.15).
_MARKS = {"archive_format": "pt2", "archive_version": "0", "byteorder": "little", ".data/version": "6\n"}


@dataclass(frozen=True)
class Rebuilt:
    """One rebuilt model. `files` replace members of the package, or are added, by name."""

    files: dict[str, Path]
    probed: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Tools:
    """What all models of a package share for their rebuild. `env` holds the workload's own variables."""

    options: Options
    toolchain: Toolchain
    compiler: str
    cache: Cache
    context: Context
    env: Mapping[str, str]


class ModelBuild:
    """The state of one rebuild: sources and objects in `work`, commands for one toolchain."""

    def __init__(self, package: Package, tools: Tools, work: Path) -> None:
        self.package, self.tools, self.work = package, tools, work
        self.flags = commands.safe_flags(commands.read_recorded(package.wrapper_text))
        self.notes = [f"flag left out: {flag}" for flag in self.flags.dropped]

    async def build(self) -> Rebuilt:
        """Rebuild the model. Raise `ProblemError` if that is impossible."""
        source, library = self.package.files.wrapper_source, self.package.files.library
        if source is None or library is None:
            raise ProblemError(
                "the package has no wrapper.cpp with its library, so it cannot be rebuilt",
                value=self.package.model_name,
                next_call="compile_with_flags on the exported program",
            )

        def original() -> Path:
            path = self.work / "original.so"
            extract(self.package, library.name, path)
            # The name has a digest, because ld.so takes two libraries with the same name for one.
            return path.rename(self.work / f"aoti-debug-{digest_file(path)[:24]}.original")

        old = await anyio.to_thread.run_sync(original)
        wrapper = await anyio.to_thread.run_sync(lambda: self.package.wrapper)
        rewritten: list[Rewritten] = []

        async def compile_wrapper() -> None:
            rewritten.append(await self._wrapper(wrapper, source.name))

        options = self.tools.options
        # Kernels whose symbols the old library does not export are compiled too.
        names = [name for name, kernel in wrapper.kernels.items() if kernel.kind == "cpp"]
        anew = missing_symbols(old, names) or options.sanitize or options.kernels
        works: list[Callable[[], Awaitable[None]]] = [compile_wrapper]
        works += [self._support] if options.probes else []
        works += [self._kernels] if self.package.kernel_text and names and anew else []
        if missing_symbols(old, ["_binary_constants_bin_start"]):
            works.append(partial(self._constants, old))
        await commands.together(*works)
        rebuilt = await self._link(old, library.name)
        sources = self.work / SOURCES / Path(source.name).name
        beside = str(PurePosixPath(library.name).parent / old.name)
        files = {library.name: rebuilt, source.name: sources, beside: old}
        return Rebuilt(files, rewritten[0].probed, rewritten[0].skipped, tuple(self.notes))

    async def _wrapper(self, wrapper: Wrapper, member: str) -> Rewritten:
        """Compile the rewritten wrapper, dropping the probes of launches where the compiler rejects them."""
        options = self.tools.options
        separate = options.sanitize == "address" or options.separate_weights
        probes = ("-include", str(NATIVE / "probes.h")) if options.probes else ()
        rewritten = Rewritten(replaced(wrapper, dict(options.statements)), (), ())
        refused: dict[int, str] = {}
        log: str | None = None
        for _ in range(ATTEMPTS):
            if options.probes:
                name = self.package.model_name
                rewritten = rewrite(wrapper, name, refused, separate_weights=separate)
            placed = self._place(member, rewritten.text)
            # Headers dominate the compile time of a wrapper; -O0 saves a quarter of it.
            level = "-O1" if options.statements else "-O0"  # packages with new statements are kept for use
            argv = commands.compile_command(
                self.tools.compiler,
                self.flags,
                self.tools.toolchain,
                placed,
                "wrapper.o",
                (level, *probes, MAP),
            )
            log = await compile_in(self.tools.context, argv, self.work, "compile-wrapper", self.tools.env)
            if log is None:
                return rewritten
            news = blame(log, wrapper, refused)
            if not news:
                break
            refused.update(news)
        raise ProblemError(
            "the wrapper does not compile with this interpreter's torch: " + commands.first_error(log or ""),
            value=f"torch {self.tools.toolchain.torch_version}, {self.tools.compiler}",
            allowed="the torch version that built the package",
            next_call="pass `python` of an environment with that torch, or recompile the model",
        )

    def _place(self, member: str, text: str) -> str:
        """Write a source under its own name, which errors and reports show. Return its path below `work`."""
        path = self.work / SOURCES / Path(member).name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return f"{SOURCES}/{path.name}"

    async def _support(self) -> None:
        """Provide the objects that rebuilds with this compiler share: the probe runtime and std::regex."""
        tools = self.tools
        # The language standard and the library's ABI determine symbol names.
        kept = [f for f in self.flags.kept if f.startswith(("-std=", "-D_GLIBCXX"))]
        cuda = ["-DAOTI_DEBUG_CUDA"] if "USE_CUDA" in self.flags.defines else []
        fixed = (*cuda, *commands.collection_flags(tools.compiler), "-fPIC", "-fvisibility=hidden", "-w")
        made: dict[str, tuple[str, ...]] = {}
        for source, level in OBJECTS.items():
            files = ("-c", str(NATIVE / source), "-o", f"{Path(source).stem}.o")
            made[source] = (tools.compiler, *kept, level, *fixed, *files)
        stamp = Path(tools.compiler).resolve().stat().st_mtime_ns
        digests = {path.name: digest_file(path) for path in sorted(NATIVE.iterdir())}
        key = digest_values(["support", made, stamp, digests])

        async def build(work: Path) -> None:
            # Compile one after the other: the wrapper compiles meanwhile, and there is often no third core.
            for source, argv in made.items():
                await compile_or_raise(tools.context, argv, work, f"compile-{Path(source).stem}", tools.env)
            (work / MANIFEST).write_text(json.dumps({"objects": list(OBJECTS)}))

        directory, _ = await tools.cache.built(key, build, tools.context.progress)
        for path in directory.glob("*.o"):
            shutil.copyfile(path, self.work / path.name)

    async def _kernels(self) -> None:
        text = self.package.kernel_text
        if not self.tools.options.index_asserts:
            text = _ASSERT.sub(";", text)
        for _name, source, changed in self.tools.options.kernels:
            text = text.replace(source, compiled_form(changed))
        assert self.package.files.kernel_source is not None
        placed = self._place(self.package.files.kernel_source.name, text)
        flags = commands.safe_flags(commands.read_recorded(text))
        sanitize = SANITIZE_FLAGS[self.tools.options.sanitize] if self.tools.options.sanitize else ("-O3",)
        compiler, toolchain = self.tools.compiler, self.tools.toolchain
        argv = commands.compile_command(compiler, flags, toolchain, placed, "kernels.o", (*sanitize, MAP))
        await self._make(argv, "compile-kernels")

    async def _constants(self, old: Path) -> None:
        """Embed a copy of the constants by assembly, because the old library does not export their symbol."""
        if not dump_constants(self.package, old, self.work / "constants.bin"):
            raise ProblemError("the package's library hides its constants", value=old.name)
        (self.work / "constants.S").write_text(_CONSTANTS_ASSEMBLY)
        argv = (self.tools.compiler, "-c", "constants.S", "-o", "constants.o")
        await self._make(argv, "assemble-constants")

    async def _make(self, argv: Sequence[str], name: str) -> None:
        await compile_or_raise(self.tools.context, argv, self.work, name, self.tools.env)

    async def _link(self, old: Path, member: str) -> Path:
        target = self.work / "rebuilt" / Path(member).name
        target.parent.mkdir()
        sanitize = SANITIZE_FLAGS[self.tools.options.sanitize][:1] if self.tools.options.sanitize else ()
        objects = [path.name for path in sorted(self.work.glob("*.o"))]
        argv = commands.link_command(self.tools.compiler, [*objects, *sanitize], old, str(target))
        await self._make(argv, "link")
        await anyio.to_thread.run_sync(append_mapped_weights, self.package, old, target)
        return target


def blame(log: str, wrapper: Wrapper, refused: dict[int, str]) -> dict[int, str]:
    """Return launches whose lines have compile errors, each with the first error. Omit those in `refused`."""
    errors: dict[int, str] = {}
    for line, text in _ERROR.findall(log):
        errors.setdefault(int(line), text[:200])
    lines = {}
    for number, launch in numbered(wrapper):
        last = launch.line + wrapper.text.count("\n", launch.start, launch.end)
        lines.update(dict.fromkeys(range(launch.line, last + 1), number))
    blamed = {lines[at]: text for at, text in errors.items() if at in lines}
    news = {number: text for number, text in blamed.items() if number not in refused}
    return {number: f"the compiler refuses its probes: {text}" for number, text in news.items()}


def models_of(path: Path) -> list[Package]:
    return [open_package(path, name) for name in open_package(path).models]


def extract(package: Package, member: str, target: Path) -> None:
    with package.container.open(member) as stream, target.open("wb") as file:
        shutil.copyfileobj(stream, file, COPIED)


def exported_symbols(library: BinaryIO) -> set[str]:
    table = ELFFile(library).get_section_by_name(".dynsym")
    return {s.name for s in table.iter_symbols() if s["st_shndx"] != "SHN_UNDEF"} if table else set()


def missing_symbols(library: Path, names: Iterable[str]) -> tuple[str, ...]:
    with library.open("rb") as file:
        exported = exported_symbols(file)
    return tuple(name for name in names if name not in exported)


def append_mapped_weights(package: Package, original: Path, rebuilt: Path) -> None:
    """Copy the weights after the ELF image (`force_mmap_weights`). The constants begin with their size."""
    facts = package.library
    if facts is None or facts.mapped_weights_bytes is None or facts.constants_offset is None:
        return
    with original.open("rb") as source, rebuilt.open("ab") as target:
        source.seek(facts.constants_offset)
        (size,) = _MAPPED_HEADER.unpack(source.read(_MAPPED_HEADER.size))
        source.seek(source.seek(0, 2) - size)
        target.write(b"\0" * (-target.tell() % _MAP_ALIGNMENT))
        shutil.copyfileobj(source, target, COPIED)


def dump_constants(package: Package, library: Path, target: Path) -> bool:
    """Write the library's constants section to `target`. Return False if its location is unknown."""
    facts = package.library
    if facts is None or facts.constants_offset is None or facts.constants_bytes is None:
        return False
    left = facts.constants_bytes
    with library.open("rb") as source, target.open("wb") as file:
        source.seek(facts.constants_offset)
        while left > 0 and (chunk := source.read(min(left, COPIED))):
            left -= file.write(chunk)
    return left == 0


def write_package(container: Container, files: Mapping[str, Path], target: Path) -> None:
    """Copy `container` to the zip `target`; `files` replace the members with their names, or are added."""
    names = {member.name for member in container.members}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for member in container.members:
            if member.name not in files:
                copy_member(container, member.name, archive, _archive_name(container, member.name))
        for name, path in files.items():
            archive.write(path, _archive_name(container, name))
        if isinstance(container, DirectoryContainer):
            for name, text in _MARKS.items():
                if name not in names:
                    archive.writestr(f"{STEM}/{name}", text)


def copy_member(container: Container, member: str, archive: zipfile.ZipFile, name: str) -> None:
    with container.open(member) as source, archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:
        shutil.copyfileobj(source, file, COPIED)


def _archive_name(container: Container, name: str) -> str:
    if not isinstance(container, DirectoryContainer):
        return name
    if "/" in name or name in _MARKS:
        return f"{STEM}/{name}"
    return f"{STEM}/data/aotinductor/model/{name}"
