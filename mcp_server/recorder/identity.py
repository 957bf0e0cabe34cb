"""Which build a library is: the GNU build id that the linker wrote into it."""

from __future__ import annotations

import struct

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from mcp_server.package.archive import Package
from mcp_server.recorder.package import ORIGINAL


def build_id_of(package: Package) -> str:
    """Of the package's own library, also where the recorder lies in front of it; empty if it has none."""
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
    """Of a library whose first page this is, as it lies in memory; empty where it is not there."""
    place = page.find(_NOTE) if page.startswith(b"\x7fELF") else -1
    found = page[place + len(_NOTE) : place + len(_NOTE) + 20]
    return found.hex() if place >= 0 and len(found) == 20 else ""
