"""Compiles the recorder, puts it into a copy of a package, and takes it out again.

The recorder replaces a package's library, or is preloaded into a host that a diagnosis runs. The user's file
is never changed. This module also finds a package's library, and its build ID, in a file and in a process.
"""

from __future__ import annotations

import os
import platform
import struct
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import anyio.to_thread
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from mcp_server.errors import ProblemError
from mcp_server.jobs.child import child_environment
from mcp_server.package.archive import Package
from mcp_server.package.members import Container
from mcp_server.probes.cache import MANIFEST, Cache, digest_file, digest_values
from mcp_server.probes.commands import choose_compiler, compile_or_raise
from mcp_server.probes.model_build import copy_member, exported_symbols, models_of
from mcp_server.recorder.remains import Remains, library_of
from mcp_server.recorder.unwind import Unwinder
from mcp_server.runtime.context import Context

ORIGINAL = ".orig"  # suffix of the library that the recorder replaces; the loader looks only for .so


def is_recorded(package: Package) -> bool:
    """Whether the package's library is the recorder, with the original library beside it."""
    library = package.files.library
    return library is not None and package.files.named(library.name + ORIGINAL) is not None


async def with_recorder(path: Path, target: Path, options: RecorderOptions, context: Context) -> list[str]:
    """Write a package with a recorder to `target`; return its models. Raise `ProblemError` on failure."""
    models = await anyio.to_thread.run_sync(models_of, path)
    libraries: dict[str, Path] = {}
    for model in models:
        member = model.files.library
        if member is None:
            raise ProblemError(
                "the package has no library to put a recorder before",
                value=model.model_name,
                allowed="a package of aoti_compile_and_package",
                next_call="aoti-debug record --preload",
            )
        if is_recorded(model):
            raise ProblemError(
                "the package records already", value=str(path), allowed="`remove` takes it out"
            )
        with model.container.open(member.name) as stream:
            headers = symbols_of(exported_functions(stream))
        libraries[member.name] = await build_library("shim.c", headers, options, context)
    await anyio.to_thread.run_sync(_write, models[0].container, libraries, target)
    return [model.model_name for model in models]


async def without_recorder(path: Path, target: Path) -> list[str]:
    """Write the package as it was before `with_recorder`. Raise `ProblemError` if it has no recorder."""
    models = await anyio.to_thread.run_sync(models_of, path)
    recorded = [model for model in models if is_recorded(model)]
    if not recorded:
        raise ProblemError(
            "no recorder is in the package", value=str(path), allowed="one that `record` wrote"
        )
    await anyio.to_thread.run_sync(_write, models[0].container, {}, target)
    return [model.model_name for model in recorded]


def _write(container: Container, libraries: Mapping[str, Path], target: Path) -> None:
    """Copy the members. `libraries` replace the originals, which stay under another name.

    Without `libraries`, the originals get their names back.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            names = {member.name for member in container.members}
            for member in container.members:
                if member.name + ORIGINAL in names:  # this member is the recorder
                    continue
                replaced = member.name in libraries
                name = member.name + ORIGINAL if replaced else member.name.removesuffix(ORIGINAL)
                copy_member(container, member.name, archive, name)
                if replaced:
                    archive.write(libraries[member.name], member.name)
        os.link(partial, target)  # fails if somebody else has created the file, unlike a rename
    except FileExistsError as error:
        raise ProblemError("the file is there already", value=str(target), allowed="a new file") from error
    except OSError as error:
        what = f"the package cannot be written: {error.strerror}"
        raise ProblemError(what, value=str(target), allowed="a folder with room for it") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def build_id_of(package: Package) -> str:
    """The build ID of the package's original library, not of a recorder. Empty if it has none."""
    library = package.files.library
    if library is None:
        return ""
    original = package.files.named(library.name + ORIGINAL) or library
    try:
        with package.container.open(original.name) as stream:
            for section in ELFFile(stream).iter_sections():
                if isinstance(section, NoteSection):
                    for note in section.iter_notes():
                        if note["n_type"] == "NT_GNU_BUILD_ID":
                            return str(note["n_desc"])
    except (ELFError, ValueError, OSError, KeyError, AttributeError):
        return ""
    return ""


def library_in(package: Package, folder: Path) -> Path:
    """Extract the package's own library to a file. Raise `ProblemError` if it has none."""
    member = package.files.library
    if member is None:
        raise ProblemError("the package has no library (.so)", value=str(package.path))
    original = package.files.named(member.name + ORIGINAL) or member
    target = folder / PurePosixPath(member.name).name
    with package.container.open(original.name) as stream, target.open("wb") as file:
        while part := stream.read(1 << 20):
            file.write(part)
    return target


_NOTE = struct.pack("<III", 4, 20, 3) + b"GNU\0"  # NT_GNU_BUILD_ID with 20 bytes, the linker's default


def build_id_at(page: bytes) -> str:
    """The build ID of a library from its first page in memory. Empty if the page does not contain it."""
    place = page.find(_NOTE) if page.startswith(b"\x7fELF") else -1
    found = page[place + len(_NOTE) : place + len(_NOTE) + 20]
    return found.hex() if place >= 0 and len(found) == 20 else ""


@dataclass(frozen=True)
class LoadedLibrary:
    """A package's library in a process. `file` is its copy on disk, to read what is not in memory."""

    file: Path
    remains: Remains

    def is_at(self, path: str) -> bool:
        """Whether a mapped file is the library or, in its place, the recorder."""
        return library_of(path).removesuffix(ORIGINAL) == self.file.name

    @cached_property
    def starts(self) -> list[int]:
        """Where the library begins in memory, once for each loader."""
        return [each.start for each in self.remains.maps if each.offset == 0 and self.is_at(each.path)]

    def check_loaded(self) -> None:
        """Raise `ProblemError` if the process had not loaded the package: its tensors belong to another."""
        if self.starts:
            return
        loaded = {library_of(each.path) for each in self.remains.maps if ".wrapper.so" in each.path}
        raise ProblemError(
            "the process had not loaded this package",
            value=self.file.name,
            allowed=", ".join(sorted(loaded)[:8]) or "a process with a package loaded",
            next_call="the same with the package that the process has loaded",
        )

    @property
    def build_ids(self) -> list[str]:
        """The build IDs that its first pages contain, each once."""
        pages = (self.remains.read(start, 4096) for start in self.starts)
        return list(dict.fromkeys(filter(None, map(build_id_at, pages))))

    @cached_property
    def unwinder(self) -> Unwinder:
        return Unwinder(self.remains, lambda path: self.file if self.is_at(path) else Path(path))


NATIVE = Path(__file__).with_name("native")
PRELOAD = "librecorder.so"
RUNS = {
    "AOTInductorModelContainerRun": "RUN_DEFAULT",
    "AOTInductorModelContainerRunSingleThreaded": "RUN_SINGLE",
}
PREFIX = "AOTInductor"
# Functions that change a model's weights, or end it (torch/csrc/inductor/aoti_runtime/interface.h, 2.8-2.13).
UPDATES = tuple(f"AOTInductorModelContainer{name}" for name in ("Update", "Swap", "Delete"))

# How a function jumps through the table entry at `{offset}`, by machine type.
JUMPS = {
    "x86_64": "jmp *recorder_jumps+{offset}(%rip)",
    "aarch64": "adrp x16, recorder_jumps+{offset}\\n ldr x16, [x16, :lo12:recorder_jumps+{offset}]\\n br x16",
}


SLOTS = 64  # the number of threads that can record at the same time


@dataclass(frozen=True)
class RecorderOptions:
    """The recorder's settings, which AOTI_RECORDER_* variables of the host override.

    In `directory` each process keeps a ring of `ring_mb`, shared equally by its threads, and the inputs of
    failing calls. `budget_mb` limits the total size of all files there.
    """

    directory: str
    mode: str = "adaptive"
    ring_mb: int = 64
    budget_mb: int = 1024

    def values(self) -> dict[str, str]:
        """The settings by name: RECORDER_* in the source, AOTI_RECORDER_* in the host's environment."""
        return {
            "DIR": self.directory,
            "MODE": self.mode,
            "SLOT_KB": str(max(64, self.ring_mb * 1024 // SLOTS)),
            "BUDGET_MB": str(self.budget_mb),
        }


def exported_functions(library: BinaryIO) -> list[str]:
    """List the names that a package's library exports for its loader. Raise `ProblemError` on failure."""
    try:
        names = exported_symbols(library)
    except (ELFError, ValueError, OSError, AttributeError) as error:
        raise ProblemError(f"the package's library cannot be read: {error}") from error
    found = sorted({name for name in names if name.startswith(PREFIX) and name.isidentifier()})
    if not set(RUNS) & set(found):
        raise ProblemError(
            "the package's library exports no function that runs it", allowed=" or ".join(RUNS)
        )
    return found


def symbols_of(names: list[str]) -> dict[str, str]:
    """The texts of two headers: which functions exist, and how each jumps to the original library."""
    counted = [name for name in names if name.startswith(UPDATES)]
    jumping = [name for name in names if name not in counted and name not in RUNS]
    machine = platform.machine()
    if machine not in JUMPS:
        raise ProblemError(
            "the recorder has no code for this machine", value=machine, allowed=", ".join(JUMPS)
        )
    rows = [f"#define {RUNS[name]}" for name in names if name in RUNS]
    rows += [f"#define {kind}(X) " + " ".join(f"X({n})" for n in some) for kind, some in
             (("JUMPS", jumping), ("COUNTED", counted))]  # fmt: skip
    jumps = [
        f'__asm__(".text\\n.globl {name}\\n.type {name},%function\\n{name}: '
        f'{JUMPS[machine].format(offset=8 * number)}\\n.size {name},.-{name}\\n");'
        for number, name in enumerate(jumping)
    ]
    return {"symbols.h": "\n".join(rows) + "\n", "jumps.h": "\n".join(jumps) + "\n"}


async def build_library(
    source: str,
    headers: Mapping[str, str],
    options: RecorderOptions,
    context: Context,
    env: Mapping[str, str] | None = None,
) -> Path:
    """Compile `source` of native/, once per set of headers and options. Raise `ProblemError` on failure."""
    cache, environ = Cache(), child_environment(env or {})
    compiler = await anyio.to_thread.run_sync(choose_compiler, (), environ)
    sources = [digest_file(path) for path in sorted(NATIVE.iterdir())]
    key = digest_values(["recorder", source, headers, asdict(options), compiler, sources])

    async def build(work: Path) -> None:
        context.progress("compiling the recorder")
        for name, text in headers.items():
            (work / name).write_text(text)
        argv = (
            *(compiler, "-x", "c", "-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"),
            *(f'-DRECORDER_{name}="{value}"' for name, value in options.values().items()),
            *("-I", str(work), "-I", str(NATIVE), str(NATIVE / source), "-o", str(work / PRELOAD)),
            *("-ldl", "-lpthread"),
        )
        await compile_or_raise(context, argv, work, "compile-recorder", env or {})
        (work / MANIFEST).write_text("{}")

    entry, _ = await cache.built(key, build, context.progress)
    return entry / PRELOAD


FOLDER = "recordings"
# A host may take longer in a diagnosis than in production, and its failing call must be recorded completely.
MODE, RING_MB, BUDGET_MB = "full", 128, 8192


async def recording_environment(
    context: Context, env: Mapping[str, str], folder: str = FOLDER, *, keep_freed: bool = False
) -> dict[str, str]:
    """Variables that make a host record its calls in this job's directory. Empty if there is no compiler."""
    options = RecorderOptions(str(context.directory / folder), MODE, RING_MB, BUDGET_MB)
    headers = {"sites.h": "", **({"keep.h": ""} if keep_freed else {})}
    try:
        library = await build_library("preload.c", headers, RecorderOptions(""), context, env)
    except ProblemError:
        return {}
    before = child_environment(env).get("LD_PRELOAD", "")
    preload = os.pathsep.join(filter(None, [str(library), before]))
    variables = {f"AOTI_RECORDER_{name}": value for name, value in options.values().items()}
    return {"LD_PRELOAD": preload, "AOTI_RECORDER_STACKS": "1", "AOTI_RECORDER_KEEP": "1", **variables}


def recordings_of(context: Context) -> Path | None:
    """The folder with the host's recordings. None if the host loaded no package."""
    folder = context.directory / FOLDER
    return folder if folder.is_dir() and any(folder.glob("*.ring")) else None
