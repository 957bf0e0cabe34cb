"""A process that died or hangs, from outside: its threads, its mapped files and its memory.

Of a core file (NT_PRSTATUS, NT_FILE and the dumped pages) or of a process that runs (/proc/PID). x86-64 only.
"""

from __future__ import annotations

import os
import signal
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.construct import ConstructError
from elftools.elf.elffile import ELFFile

from mcp_server.errors import ProblemError
from mcp_server.recorder.stack import Mapping, read_maps

MOST_SEGMENTS = 200_000
LARGEST_NOTES = 64 << 20  # bytes
LARGEST_READ = 1 << 20  # bytes of memory at a time
_REGISTERS = struct.Struct("<27Q")  # user_regs_struct, sys/user.h
_RBP, _RIP, _RSP = 4, 16, 19
_AT_SIGNAL, _AT_THREAD, _AT_REGISTERS = 12, 32, 112  # elf_prstatus, linux/elfcore.h
WAITS = {
    "0": "reads a file or a pipe",
    "7": "waits for a descriptor",
    "23": "waits for a descriptor",
    "35": "sleeps",
    "61": "waits for a child",
    "202": "waits for another thread",
    "230": "sleeps",
    "232": "waits for a descriptor",
    "281": "waits for a descriptor",
}
"""What a thread does in a system call, by its number (x86-64, asm/unistd_64.h)."""


@dataclass(frozen=True)
class ThreadState:
    """Where a thread is. `signal` is what ended the process, 0 without; `frame` is register rbp, if known."""

    number: int
    pc: int
    sp: int
    frame: int | None = None
    signal: int = 0
    waits: str = ""


@dataclass(frozen=True)
class Remains:
    """The threads, the one that got the signal first. `read` gives fewer bytes where memory is not there.

    `running` are threads of a live process that are in no system call: where they are is not known.
    `is_cut`: the core file ends before its last page.
    """

    threads: tuple[ThreadState, ...]
    maps: tuple[Mapping, ...]
    read: Callable[[int, int], bytes]
    running: tuple[int, ...] = ()
    is_cut: bool = False

    def mapping(self, address: int) -> Mapping | None:
        return next((each for each in self.maps if each.start <= address < each.end), None)


@contextmanager
def open_core(path: Path) -> Iterator[Remains]:
    """What a core file holds. Raises `ProblemError` for another file, or one that is cut off."""
    if not path.is_file():
        raise ProblemError("there is no such core file", value=str(path))
    try:
        with path.open("rb") as file:
            yield _core(file, path)
    except (ELFError, ConstructError, struct.error, ValueError, KeyError, AttributeError, OSError) as error:
        what = "the core file cannot be read: it is damaged, or cut off"
        raise ProblemError(
            what, value=f"{path}: {error}"[:400], allowed="a core of Linux on x86-64 (ulimit -c unlimited)"
        ) from error


def _core(file: BinaryIO, path: Path) -> Remains:
    elf = ELFFile(file)
    if elf["e_type"] != "ET_CORE" or elf["e_machine"] != "EM_X86_64":
        raise ProblemError(
            "this is no core file of x86-64", value=str(path), allowed=f"ET_CORE, found {elf['e_type']}"
        )
    if elf.num_segments() > MOST_SEGMENTS:
        raise ProblemError("the core file has too many segments", value=str(elf.num_segments()))
    size = os.fstat(file.fileno()).st_size
    pages: list[tuple[int, int, int]] = []  # address, bytes, place in the file
    threads: list[ThreadState] = []
    maps: list[Mapping] = []
    is_cut = False
    for segment in elf.iter_segments():
        header = segment.header
        if header["p_type"] == "PT_LOAD":
            there = max(0, min(header["p_filesz"], size - header["p_offset"]))
            is_cut = is_cut or there < header["p_filesz"]
            pages.append((header["p_vaddr"], there, header["p_offset"]))
        elif header["p_type"] == "PT_NOTE":
            if header["p_filesz"] > LARGEST_NOTES or header["p_offset"] + header["p_filesz"] > size:
                raise ValueError("its notes end behind the file")
            for note in segment.iter_notes():
                if note["n_type"] == "NT_PRSTATUS":
                    threads.append(_thread(note["n_descdata"]))
                elif note["n_type"] == "NT_FILE":
                    maps += _files(note["n_desc"])
    if not threads:
        raise ValueError("it has no thread")
    pages.sort()
    return Remains(
        tuple(threads), tuple(maps), lambda at, count: _dumped(file, pages, at, count), is_cut=is_cut
    )


def _thread(raw: bytes) -> ThreadState:
    registers = _REGISTERS.unpack_from(raw, _AT_REGISTERS)
    (number,) = struct.unpack_from("<i", raw, _AT_THREAD)
    (received,) = struct.unpack_from("<h", raw, _AT_SIGNAL)
    return ThreadState(number, registers[_RIP], registers[_RSP], registers[_RBP], received)


def _files(notes: object) -> Iterator[Mapping]:
    unit = notes["page_size"]  # type: ignore[index]
    for entry, name in zip(notes["Elf_Nt_File_Entry"], notes["filename"], strict=False):  # type: ignore[index]
        path = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
        yield Mapping(entry["vm_start"], entry["vm_end"], entry["page_offset"] * unit, path)


def _dumped(file: BinaryIO, pages: list[tuple[int, int, int]], address: int, count: int) -> bytes:
    number = bisect_right(pages, (address, 1 << 64, 0)) - 1
    if number < 0:
        return b""
    start, there, offset = pages[number]
    left = min(count, LARGEST_READ, start + there - address)
    if left <= 0:
        return b""
    file.seek(offset + address - start)
    return file.read(left)


@contextmanager
def open_process(pid: int) -> Iterator[Remains]:
    """A process that runs, which goes on. Raises `ProblemError` where it may not be looked at."""
    root = Path("/proc", str(pid))
    try:
        memory = os.open(root / "mem", os.O_RDONLY)
    except FileNotFoundError as error:
        raise ProblemError("there is no such process", value=str(pid)) from error
    except OSError as error:
        raise _refused(pid) from error
    try:
        maps = read_maps((root / "maps").read_text(errors="replace"))
        states = [_state(task) for task in sorted((root / "task").iterdir(), key=lambda each: int(each.name))]
        known = tuple(each for each in states if isinstance(each, ThreadState))
        running = tuple(each for each in states if isinstance(each, int))
        yield Remains(known, maps, lambda at, count: _mapped(memory, at, count), running)
    except (PermissionError, ProcessLookupError) as error:
        raise _refused(pid) from error
    finally:
        os.close(memory)


def _refused(pid: int) -> ProblemError:
    return ProblemError(
        "this process may not be looked at",
        value=str(pid),
        allowed="one of the same user, with kernel.yama.ptrace_scope 0 or CAP_SYS_PTRACE (docker: --cap-add)",
    )


def _state(task: Path) -> ThreadState | int:
    """From `202 0x7f.. 0x80 ... SP PC`; the number of a thread that runs, whose place nobody says."""
    words = (task / "syscall").read_text().split()
    number = int(task.name)
    if len(words) < 3:
        return number
    return ThreadState(number, int(words[-1], 16), int(words[-2], 16), waits=WAITS.get(words[0], ""))


def _mapped(memory: int, address: int, count: int) -> bytes:
    try:
        return os.pread(memory, min(count, LARGEST_READ), address)
    except (OSError, OverflowError):
        return b""


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if number else ""
