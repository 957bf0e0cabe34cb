"""Puts the recorder into a package, removes it again, and finds the build ID of a package's library.

The user's file is never changed.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import anyio.to_thread
from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from mcp_server.errors import ProblemError
from mcp_server.package.archive import Package
from mcp_server.package.members import Container
from mcp_server.probes.model_build import copy_member, models_of
from mcp_server.recorder.library import RecorderOptions, build_library, exported_functions, symbols_of
from mcp_server.runtime.context import Context

ORIGINAL = ".orig"  # suffix of the library that the recorder replaces; the loader looks for .so


def is_recorded(package: Package) -> bool:
    """Whether the package's library is the recorder, with the original beside it."""
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
                "the package records already", value=str(path), allowed="--remove takes it out"
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
    """Copy the members. An original library is renamed next to the recorder, or gets its name back."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            names = {member.name for member in container.members}
            for member in container.members:
                if member.name + ORIGINAL in names:  # the recorder
                    continue
                replaced = member.name in libraries
                name = member.name + ORIGINAL if replaced else member.name.removesuffix(ORIGINAL)
                copy_member(container, member.name, archive, name)
                if replaced:
                    archive.write(libraries[member.name], member.name)
        os.link(partial, target)  # unlike a rename, it fails if somebody created the file meanwhile
    except FileExistsError as error:
        raise ProblemError("the file is there already", value=str(target), allowed="a new file") from error
    except OSError as error:
        what = f"the package cannot be written: {error.strerror}"
        raise ProblemError(what, value=str(target), allowed="a folder with room for it") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def build_id_of(package: Package) -> str:
    """The build ID of the package's own library, even behind the recorder; empty if it has none."""
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


_NOTE = struct.pack("<III", 4, 20, 3) + b"GNU\0"  # NT_GNU_BUILD_ID with 20 bytes, the linker's default


def build_id_at(page: bytes) -> str:
    """The build ID of a library from its first page in memory; empty if the page does not contain it."""
    place = page.find(_NOTE) if page.startswith(b"\x7fELF") else -1
    found = page[place + len(_NOTE) : place + len(_NOTE) + 20]
    return found.hex() if place >= 0 and len(found) == 20 else ""
