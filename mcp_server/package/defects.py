"""Finds missing, damaged or inconsistent parts of a readable package, and reads ELF headers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from mcp_server.package.members import ZipContainer
from mcp_server.package.problems import Defect

if TYPE_CHECKING:
    from mcp_server.package.archive import Package


_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_PPC64": "ppc64le", "EM_386": "i386"}
_CXX_RUNTIMES = ("libstdc++.so", "libc++.so")
_MMAP_HEADER = struct.Struct("<qq")


class LibraryError(ValueError):
    """The bytes are not a readable ELF library."""


@dataclass(frozen=True)
class Library:
    """Facts about a shared library. Offsets and sizes are in bytes.

    `constants_offset` and `constants_bytes` locate the blob between `_binary_constants_bin_start` and `_end`.
    `mapped_weights_bytes` counts weights after the ELF image, which the loader maps.
    """

    machine: str
    needed: tuple[str, ...]
    constants_offset: int | None
    constants_bytes: int | None
    mapped_weights_bytes: int | None

    @property
    def cxx_runtime(self) -> str | None:
        """The dynamically linked C++ runtime. None if it is linked statically."""
        return next((name for name in self.needed if name.startswith(_CXX_RUNTIMES)), None)


# The first bytes of shared libraries from other systems.
_FOREIGN = (
    (b"\x7fELF\x01", "a library for 32-bit processors"),
    (b"\xcf\xfa\xed\xfe", "a macOS library (Mach-O)"),
    (b"\xca\xfe\xba\xbe", "a macOS library (Mach-O, universal)"),
    (b"MZ", "a Windows library (PE)"),
)
# pyelftools trusts offsets and names; a damaged file can raise any of these.
_DAMAGE = (
    *(ELFError, ArithmeticError, LookupError, AttributeError, ValueError, TypeError, AssertionError),
    struct.error,
)


def read_library(stream: BinaryIO) -> Library:
    """Read the sections of a seekable ELF stream, never the weights. Raise `LibraryError` if unreadable."""
    try:
        return _elf_library(stream)
    except _DAMAGE as error:
        raise LibraryError(f"not a readable ELF library: {error or type(error).__name__}") from error


def _elf_library(stream: BinaryIO) -> Library:
    size = stream.seek(0, 2)
    stream.seek(0)
    elf: Any = ELFFile(stream)
    dynamic = elf.get_section_by_name(".dynamic")
    tags = list(dynamic.iter_tags()) if dynamic is not None else []
    start, end = _address(elf, "_binary_constants_bin_start"), _address(elf, "_binary_constants_bin_end")
    offset = next(map(int, elf.address_offsets(start)), None) if start is not None else None
    length = end - start if start is not None and end is not None else None
    # The image ends with its last section or with its section table.
    ends = [s["sh_offset"] + s["sh_size"] for s in elf.iter_sections() if s["sh_type"] != "SHT_NOBITS"]
    trailing = size - max(elf["e_shoff"] + elf["e_shnum"] * elf["e_shentsize"], *ends, 0)
    mapped = None
    if offset is not None and length == _MMAP_HEADER.size and trailing > 0:
        # `force_mmap_weights` puts the weights after the image, and (their size + 8, magic) in the section.
        stream.seek(offset)
        announced, _magic = _MMAP_HEADER.unpack(stream.read(_MMAP_HEADER.size))
        mapped = announced - 8 if 8 < announced <= trailing else None
    return Library(
        machine=_MACHINES.get(elf["e_machine"], str(elf["e_machine"])),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        constants_offset=offset,
        constants_bytes=length,
        mapped_weights_bytes=mapped,
    )


def _address(elf: Any, name: str) -> int | None:
    """Return a symbol's address. Try the hash table first: a symbol table may have 100,000 rows."""
    table = elf.get_section_by_name(".gnu.hash")
    symbol = table.get_symbol(name) if table is not None else None
    if symbol is None:
        static = elf.get_section_by_name(".symtab")
        symbol = next(iter(static.get_symbol_by_name(name) or ()), None) if static is not None else None
    if symbol is None or symbol.entry.st_shndx == "SHN_UNDEF":
        return None
    return int(symbol.entry.st_value)


_LOAD_KERNEL = re.compile(r'loadKernel\(\s*"([^"]+)"')
_CHECKED_BYTES = 64 << 20
_PROXY_CALL = "aoti_torch_proxy_executor_call_function("
_DEVICE_TYPE = re.compile(r"device_type_(cpu|cuda)\b")
_DEVICE_FIX = "leave AOTI_DEVICE_KEY of the metadata at {device}, as the compile wrote it, or compile again"
_RECOMPILE = "compile the package again"
_FOR_THIS = "compile the package on a machine of the kind that loads it"


def find_defects(package: Package) -> Iterator[Defect]:
    """Yield all defects. Reads the wrapper, the library's headers and, in an archive, small members."""
    container = package.container
    if isinstance(container, ZipContainer):
        # Large members are skipped: reading gigabytes would be slow.
        small = [member.name for member in package.files.members if member.size <= _CHECKED_BYTES]
        for name in small:
            if not container.checksum_holds(name):
                what = f"{PurePosixPath(name).name} is damaged: its checksum is not the recorded one"
                yield Defect("damaged_member", what, fatal=True, fix="copy or compile the package again")
        yield from _folder(container)
    yield from _library(package)
    yield from _metadata(package)
    yield from _other_parts(package)
    if package.files.wrapper_source is None:
        what = "no wrapper.cpp: inputs and launches cannot be read"
        yield Defect("missing_wrapper_source", what, fatal=False)
    else:
        for problem in package.signature.problems:
            yield Defect("unread_signature", problem, fatal=False)


def _folder(container: ZipContainer) -> Iterator[Defect]:
    """Check the first two members: they tell the loader the package's folder (tried with torch 2.13)."""
    names = [member.name for member in container.members]
    tops = [name.partition("/")[0] for name in names[:2]]
    if len(set(tops)) > 1 and not any(name.startswith("data/") for name in names):
        what = (
            f"its first two members, {names[0]} and {names[1]}, are in different folders. The loader "
            "takes the folder of the package from them, so it finds no model"
        )
        fix = "add further members to the archive after the package's own"
        yield Defect("mixed_folders", what, fatal=True, fix=fix)


def _library(package: Package) -> Iterator[Defect]:
    files = package.files
    if files.built_at_load:
        what = "sources only (package_cpp_only): the loader compiles them with g++ at every load"
        yield Defect("built_at_load", what, fatal=False, fix="compile without aot_inductor.package_cpp_only")
    elif files.library is None:
        yield Defect("missing_library", "no wrapper.so in the package", fatal=True, fix=_RECOMPILE)
    elif package.library is None:
        name = files.library.name
        with package.container.open(name) as stream:
            head = stream.read(8)
        if kind := next((kind for magic, kind in _FOREIGN if head.startswith(magic)), ""):
            yield Defect("foreign_library", f"{name} is {kind}", fatal=True, fix=_FOR_THIS)
        else:
            yield Defect("damaged_library", f"{name} is not a readable ELF file", fatal=True, fix=_RECOMPILE)
    libraries = sum(member.name.endswith(".wrapper.so") for member in files.members)
    if libraries > 1:
        what = f"{libraries} wrapper libraries for one model; torch >= 2.13 refuses that"
        yield Defect("several_libraries", what, fatal=True, fix=_RECOMPILE)


def _metadata(package: Package) -> Iterator[Defect]:
    """Check the metadata: the loader needs `<stem>_metadata.json` for each source, with the correct device.

    This holds for torch 2.7-2.15. A CUDA library links libtorch_cuda; its wrapper creates CUDA tensors.
    """
    files, library, declared = package.files, package.library, package.metadata.device
    if package.path.suffix != ".so":  # a runner loads a bare .so without metadata
        sources = [each for each in (files.wrapper_source, files.kernel_source) if each is not None]
        for name in (source.name.removesuffix(".cpp") + "_metadata.json" for source in sources):
            if files.named(name) is None:
                what = f"no {PurePosixPath(name).name}: the loader cannot tell the device"
                yield Defect("missing_metadata", what, fatal=True, fix=_RECOMPILE)
        if files.metadata is not None and declared is None:
            what = "the metadata names no AOTI_DEVICE_KEY"
            yield Defect("damaged_metadata", what, fatal=True, fix=_RECOMPILE)
    linked = [name for name in library.needed if name.startswith("libtorch")] if library else []
    if not linked or declared not in ("cpu", "cuda"):
        return
    device = "cuda" if any(name.startswith("libtorch_cuda") for name in linked) else "cpu"
    if device != declared and declared not in _DEVICE_TYPE.findall(package.wrapper_text):
        what = f"the metadata says that the package is for {declared}, and its library is for {device}"
        yield Defect("contradicted_device", what, fatal=True, fix=_DEVICE_FIX.format(device=device))


def _other_parts(package: Package) -> Iterator[Defect]:
    """Check the kernel binaries that the wrapper loads, the nodes of its proxy calls, and the weights."""
    wrapper = package.wrapper_text
    present = {PurePosixPath(m.name).name for m in package.files.kernel_binaries}
    loaded = (PurePosixPath(m[1].replace("\\", "/")).name for m in _LOAD_KERNEL.finditer(wrapper))
    missing = [name for name in dict.fromkeys(loaded) if name not in present]
    if missing:
        what = f"{len(missing)} kernel binaries that the wrapper loads are missing: {', '.join(missing[:3])}"
        yield Defect("missing_kernel_binary", what, fatal=True, fix=_RECOMPILE)
    run_impl = max(wrapper.find("::run_impl("), 0)
    if package.files.proxy_nodes is None and wrapper.find(_PROXY_CALL, run_impl) >= 0:
        what = "the wrapper calls the proxy executor, and its node list (wrapper.json) is missing"
        yield Defect("missing_proxy_nodes", what, fatal=True, fix=_RECOMPILE)
    listed, weights = package.listed_weight_names or (), package.listed_weights or ()
    if len(weights) < len(listed):
        what = f"{len(listed) - len(weights)} of {len(listed)} weight files are missing"
        yield Defect("missing_weights", what, fatal=True, fix=_RECOMPILE)
    elif package.weights.place == "absent":
        what = "the package holds no weights: a run before load_constants() segfaults"
        fix = "call load_constants(state, check_full_update=True) first, or compile with the constants"
        yield Defect("weights_not_included", what, fatal=False, fix=fix)
