"""Reads the recorder's files (native/recorder.h): the ring with the newest calls, and the crash file.

A file may be cut, of another version, or written by a hostile process. Sizes are checked against the file
before anything is read, and nothing in it is executed. A ring may be read while its process writes to it; a
record that is being written is left out.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mcp_server.errors import ProblemError
from mcp_server.logs.journal import DEVICES, DTYPES
from mcp_server.plurals import counted

MAGIC, VERSION, HEADER_BYTES, MOST_SLOTS, MOST_MODELS = b"AOTIREC2", 4, 1 << 16, 64, 64
MOST_RING, MOST_CRASH = 64 << 30, 16 << 30  # bytes; both files are mapped, not read
MOST_INPUTS, MOST_DIM, MOST_FRAMES, MOST_ENTRIES, SITES = 4096, 32, 64, 100_000, 4
MOST_CONSTANTS, LONGEST_NAME, MOST_SWAPS = 1 << 16, 4096, 4
LOOK = 64  # calls between two checks of the process's memory by the recorder

_HEADER = struct.Struct("<8sIIIIQQQIIII")
_SLOT = struct.Struct("<IIQQ40x")
_MODEL = struct.Struct("<512s64sIIQQQQII4I")
_RECORD = struct.Struct("<IIQQQIIiIIIIIQQIHHQ")
_INPUT = struct.Struct("<BBhhhIIQQ")
_ENTRY = struct.Struct("<IIQQQIIIIQ")
_RECORD_MAGIC, _ENTRY_MAGIC = 0xA0710CA2, 0xA0710CE2
_LINE = 64

ENDED, EXITS = 1, 2
MODES = ("adaptive", "ints", "full", "redact")
Kept = Literal["no", "before the call", "at failure"]

_FATAL, _PAYLOAD, _MAPS, _STACK, _FAILED, _WEIGHTS, _CHANGED = range(1, 8)
_PATTERN = b"\xa5"  # the filler that a copy from the device overwrites


@dataclass(frozen=True)
class Bytes:
    """The location of a tensor's bytes: file, offset and length."""

    file: Path
    offset: int
    length: int

    def read(self) -> bytes:
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


@dataclass(frozen=True)
class RecordedInput:
    """One input of a recorded call. `bytes` locates its memory, from its first element to its last.

    `kept` says when the bytes were copied. If `at failure`, the call may have changed the input in place.
    """

    dtype: str
    device: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    span: int
    kept: Kept
    bytes: Bytes | None = None
    address: int = 0

    @property
    def form(self) -> str:
        """Dtype and sizes, as `int64[8, 20]`."""
        return f"{self.dtype}{list(self.sizes)}"


@dataclass(frozen=True)
class RecordedCall:
    """One call. `end_ns` is None while it is in flight; `code` is what `Run` returned, 0 for success.

    `generation` counts weight updates and swaps before the call, `generation_after` also those that began
    before its end.
    """

    slot: int
    sequence: int
    thread: int
    model: int
    begin_ns: int
    end_ns: int | None
    code: int | None
    generation: int
    generation_after: int | None
    on_device: bool
    total_inputs: int
    inputs: tuple[RecordedInput, ...]
    stack: tuple[int, ...] = ()  # return addresses, innermost first
    number: int = 0  # number among all calls of the model in its process; 0 if unknown
    host_sp: int = 0  # stack pointer of the host's calling function; 0 if unknown
    sites: tuple[tuple[int, ...], ...] = ()  # for each input: return addresses of at::from_blob, or zeros
    blocks: tuple[int, ...] = ()  # for each input: the bytes of its memory block, or 0

    @property
    def complete(self) -> bool:
        """Whether the values of all inputs were kept."""
        return self.total_inputs == len(self.inputs) and all(i.bytes or not i.span for i in self.inputs)


@dataclass(frozen=True)
class Change:
    """Memory that the host wrote while a call read it, or `before` the call: a constant by `name`, or an
    input, from byte `offset` on.
    """

    slot: int
    sequence: int
    thread: int
    input: int
    name: str
    before: bool
    offset: int


@dataclass(frozen=True)
class RecordedWeights:
    """One update of a model's weights. `number` counts updates and swaps.

    `inactive`: the weights went to the buffer that was not in use then. `side` is the buffer, 0 or 1. `stack`
    has the return addresses of the update.
    """

    number: int
    inactive: bool
    constants: dict[str, RecordedInput]
    side: int = 0
    stack: tuple[int, ...] = ()


@dataclass(frozen=True)
class RecordedModel:
    path: str
    build_id: str
    updates: int  # weight updates, also unfinished ones
    calls: int = 0
    weights: tuple[RecordedWeights, ...] = ()

    memory_before: int = 0  # resident bytes of the process when the recorder first looked
    memory_last: int = 0
    deleted_ns: int = (
        0  # when the host destroyed the loader, by thread `deleted_by` at the stack `deleted_at`
    )
    deleted_by: int = 0
    side: int = 0  # the buffer of weights in use
    swaps: tuple[int, ...] = ()  # the newest swaps, by their number
    deleted_at: tuple[int, ...] = ()

    @property
    def memory(self) -> str:
        """Describe how much the process's memory grew. Empty if no growth was seen."""
        if self.memory_last < 1.5 * self.memory_before or not self.memory_before:
            return ""
        first, last = (f"{each / 2**20:.0f} MiB" for each in (self.memory_before, self.memory_last))
        return (
            f"between call {LOOK} and one of the last of {self.calls} calls, the memory of the process grew "
            f"from {first} to {last}: look for tensors that the host keeps"
        )

    def weights_at(self, generation: int) -> RecordedWeights:
        """The weights after `generation` updates and swaps: the newest values in the buffer then in use.

        Empty if the number of swaps since then is not known.
        """
        side = (self.side + sum(each > generation for each in self.swaps)) % 2
        known = len(self.swaps) < MOST_SWAPS or generation >= min(self.swaps)
        used = [e for e in self.weights if known and e.number <= generation and e.side == side]
        used.sort(key=lambda each: each.number)
        constants = {name: value for each in used for name, value in each.constants.items()}
        stack = used[-1].stack if used else ()
        return RecordedWeights(generation, bool(used) and used[-1].inactive, constants, stack=stack)


@dataclass(frozen=True)
class Crash:
    """The record of a fatal signal's handler: the signal's number, the address, the thread.

    `alive` are the slots of other threads that had called the package and still lived, as bits.
    """

    signal: int
    address: int
    thread: int
    sp: int = 0
    stack: tuple[int, ...] = ()
    said: str = ""  # the last message of libc
    alive: int = 0


@dataclass(frozen=True)
class Recording:
    """One process: its models, and in order of start, the calls that failed or are still in the ring."""

    path: Path
    pid: int
    started_ns: int
    ended: bool
    mode: str
    missed: int
    models: tuple[RecordedModel, ...]
    calls: tuple[RecordedCall, ...]
    crash: Crash | None = None
    maps: str = ""
    exits: bool = False  # main had returned, or exit was called
    changes: tuple[Change, ...] = ()
    cut: int = 0  # threads whose part of the ring is not, or not all, in the file

    @property
    def alive(self) -> bool:
        """Whether a process with this id is running. It may be a later process."""
        return not self.ended and Path(f"/proc/{self.pid}").exists()

    @property
    def loss(self) -> str:
        """What is missing because the file is cut. Empty if nothing is."""
        return (
            f"the ring file is cut: calls of {counted(self.cut, 'thread')} may be missing" if self.cut else ""
        )


def refused(what: str, path: Path) -> ProblemError:
    return ProblemError(
        f"this recording cannot be read: {what}",
        value=str(path),
        allowed="a .ring file of `aoti-debug record`, or a folder of them",
    )


@contextmanager
def mapped(path: Path, least: int, most: int) -> Iterator[mmap.mmap]:
    """Map the file into memory. Raise `ProblemError` if it is too small, too large, or not a regular file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise refused(error.strerror or "it cannot be opened", path) from error
    try:
        size = os.fstat(handle).st_size
        if not least <= size <= most:
            raise refused(f"it has {size} bytes, and a recording has {least} to {most}", path)
        with mmap.mmap(handle, 0, prot=mmap.PROT_READ) as memory:
            yield memory
    except (ValueError, OSError) as error:
        raise refused(str(error), path) from error
    finally:
        os.close(handle)


def read_recording(path: Path) -> Recording:
    """Read the ring at `path` and the crash file beside it. Raise `ProblemError` if that fails."""
    crash_path = path.with_suffix(".crash")
    entries = read_crash(crash_path) if crash_path.is_file() and crash_path.stat().st_size else CrashFile()
    with mapped(path, HEADER_BYTES, MOST_RING) as memory:
        magic, version, header, pid, slots, slot_bytes, started, missed, models, ended, mode, _ = (
            _HEADER.unpack_from(memory, 0)
        )
        if not any(magic):
            raise refused("the process ended while the recorder was still making it", path)
        if magic == MAGIC and version != VERSION:
            other = f"version {version} of the file, and this aoti-debug reads version {VERSION}"
            raise refused(f"it has {other}: use the release that recorded it", path)
        if magic != MAGIC:
            raise refused(f"its first bytes are {bytes(magic)!r}", path)
        if header != HEADER_BYTES or not 0 < slots <= MOST_SLOTS or slot_bytes % _LINE or mode >= len(MODES):
            raise refused("its header is damaged", path)
        left = [max(0, min(slot_bytes, len(memory) - HEADER_BYTES - s * slot_bytes)) for s in range(slots)]
        calls = [c for s, n in enumerate(left) for c in _calls(memory, path, s, slot_bytes, n, entries)]
        cut = sum(n < slot_bytes and _newest(memory, s) > 0 for s, n in enumerate(left))
        found = tuple(_model(memory, n, entries) for n in range(min(models, MOST_MODELS)))
    calls += _overwritten(crash_path, entries, {(call.slot, call.sequence) for call in calls})
    calls = [call for call in calls if call.model < len(found)]
    return Recording(
        path, pid, started, ended == ENDED, MODES[mode], missed, found,
        tuple(sorted(calls, key=lambda call: call.begin_ns)),
        entries.crash, entries.maps, ended == EXITS, tuple(entries.changes), cut,
    )  # fmt: skip


def _newest(memory: mmap.mmap, slot: int) -> int:
    """The number of the newest call in a slot. 0 if no thread used it."""
    return int(_SLOT.unpack_from(memory, _HEADER.size + slot * _SLOT.size)[-1])


def _overwritten(path: Path, crash: CrashFile, known: Collection[tuple[int, int]]) -> Iterator[RecordedCall]:
    """Yield the failed calls that later calls overwrote in the ring."""
    lost = {key: place for key, place in crash.failed.items() if key not in known}
    if not lost:
        return
    with mapped(path, 1, MOST_CRASH) as memory:
        for (slot, sequence), (start, length, end) in lost.items():
            head = _RECORD.unpack_from(memory, start)
            if head[0] == _RECORD_MAGIC and head[1] == length and head[2] == sequence:
                call = _call(memory, path, slot, start, (*head[:4], end, *head[5:]), crash)
                yield from [call] if call is not None else []


def _model(memory: mmap.mmap, number: int, crash: CrashFile) -> RecordedModel:
    at = _HEADER.size + MOST_SLOTS * _SLOT.size + number * _MODEL.size
    path, build_id, generation, begun, calls, before, last, deleted, by, side, *swaps = _MODEL.unpack_from(
        memory, at
    )
    text, digest = (raw.split(b"\0")[0].decode("utf-8", "replace") for raw in (path, build_id))
    name, weights = "".join(c for c in text if c.isprintable()), tuple(crash.weights.get(number, ()))
    return RecordedModel(
        name, digest[:62], max(generation, begun), calls, weights, before, last, deleted, by, side,
        tuple(filter(None, swaps)), crash.stacks.get((MOST_SLOTS + number, 0), ()),
    )  # fmt: skip


def _calls(
    memory: mmap.mmap, path: Path, slot: int, slot_bytes: int, left: int, crash: CrashFile
) -> Iterator[RecordedCall]:
    base, newest, at = HEADER_BYTES + slot * slot_bytes, _newest(memory, slot), 0
    while at + _RECORD.size <= left:
        head = _RECORD.unpack_from(memory, base + at)
        magic, length, sequence, check = head[0], head[1], head[2], head[12]
        sane = magic == _RECORD_MAGIC and _RECORD.size <= length <= left - at
        sane = sane and sequence <= newest and check == (sequence * 2654435761 & 0xFFFFFFFF) ^ at
        call = _call(memory, path, slot, base + at, head, crash) if sane else None
        if call is not None:
            yield call
        at += -(-length // _LINE) * _LINE if call is not None else _LINE


def _call(
    memory: mmap.mmap, path: Path, slot: int, start: int, head: tuple[int, ...], crash: CrashFile
) -> RecordedCall | None:
    length, sequence, begin, end, thread, model, code, total, written, before, after = head[1:12]
    host_sp, (stack, frames, sites, place_in_process) = head[13], head[-4:]
    if not written <= total <= MOST_INPUTS:
        return None
    inputs: list[RecordedInput] = []
    at, last = start + _RECORD.size, start + length
    for number in range(written):
        if at + _INPUT.size > last:
            return None
        dim = memory[at]
        if dim > MOST_DIM or at + _INPUT.size + 16 * dim > last:
            return None
        left_at_failure = crash.payloads.get((slot, sequence, number))
        inputs.append(_input(memory, path, at, start, length, left_at_failure))
        at += _INPUT.size + 16 * dim
    done = end or None
    fits = max(frames, sites) <= MOST_FRAMES and stack + 8 * (frames + sites) <= length
    found = struct.unpack_from(f"<{frames + sites}Q", memory, start + stack) if fits else ()
    addresses = found[:frames] or crash.stacks.get((slot, sequence), ())
    return RecordedCall(
        slot, sequence, thread, model, begin, done, code if done else None, before, after if done else None,
        any(i.device.startswith("cuda") for i in inputs), total, tuple(inputs), addresses, place_in_process,
        host_sp, tuple(found[n : n + SITES - 1] for n in range(frames, len(found), SITES)),
        tuple(found[frames + SITES - 1 :: SITES]),
    )  # fmt: skip


def _input(
    memory: mmap.mmap, path: Path, at: int, start: int, length: int, left_at_failure: Bytes | None
) -> RecordedInput:
    dim, kept, dtype, device, index, _, payload, address, span = _INPUT.unpack_from(memory, at)
    layout = struct.unpack_from(f"<{2 * dim}q", memory, at + _INPUT.size)
    place = DEVICES.get(device, f"device type {device}")
    name = DTYPES.get(dtype, f"dtype {dtype}")
    when: Kept = "no"
    where: Bytes | None = None
    if kept in (1, 3) and span and payload + span <= length:
        here = memory[start + payload : start + payload + span] if kept == 3 else b""
        if kept == 1 or here.strip(_PATTERN):  # otherwise the stream never reached the copy
            when, where = "before the call", Bytes(path, start + payload, span)
    elif left_at_failure is not None and left_at_failure.length == span:
        when, where = "at failure", left_at_failure
    return RecordedInput(
        name, f"{place}:{index}" if place == "cuda" else place, layout[:dim], layout[dim:], span, when, where,
        address,
    )  # fmt: skip


@dataclass
class CrashFile:
    """The entries of a crash file: whole inputs by (slot, sequence, input), the rest by (slot, sequence).

    `failed` has place and length of a failed call's record, and the time when it returned.
    """

    crash: Crash | None = None
    payloads: dict[tuple[int, int, int], Bytes] = field(default_factory=dict)
    failed: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    stacks: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    maps: str = ""
    weights: dict[int, list[RecordedWeights]] = field(default_factory=dict)  # by number of the model
    changes: list[Change] = field(default_factory=list)


MOST_MAPS = 4 << 20  # characters that are read


def read_crash(path: Path) -> CrashFile:
    """Read a crash file up to the first damaged entry. Raise `ProblemError` if it cannot be mapped."""
    found = CrashFile()
    with mapped(path, 1, MOST_CRASH) as memory:
        at = 0
        for _ in range(MOST_ENTRIES):
            if at + _ENTRY.size > len(memory):
                break
            magic, kind, sequence, length, done, slot, number, thread, signal, address = _ENTRY.unpack_from(
                memory, at
            )
            start = at + _ENTRY.size
            if magic != _ENTRY_MAGIC or done > length or start + done > len(memory):
                break
            if kind == _FATAL:
                found.crash = Crash(signal, address, thread, sequence, alive=slot | number << 32)
            elif kind == _PAYLOAD and done == length:
                found.payloads[slot, sequence, number] = Bytes(path, start, length)
            elif kind == _FAILED and done == length >= _RECORD.size:
                found.failed[slot, sequence] = (start, length, address)
            elif kind == _STACK and length <= 8 * 64:
                found.stacks[slot, sequence] = struct.unpack_from(f"<{done // 8}Q", memory, start)
            elif kind == _WEIGHTS and done:
                held, stack = _constants(memory, path, start, done, number)
                update = RecordedWeights(sequence, bool(signal), held, thread, stack)
                found.weights.setdefault(slot, []).append(update)
            elif kind == _CHANGED and length <= LONGEST_NAME:
                name = memory[start : start + done].decode("utf-8", "replace")
                found.changes.append(Change(slot, sequence, thread, number, name, bool(signal), address))
            elif kind == _MAPS and len(found.maps) < MOST_MAPS:
                found.maps += memory[start : start + min(done, MOST_MAPS)].decode("utf-8", "replace")
            at = start + -(-length // 8) * 8
    if found.crash is not None:
        found.crash = replace(found.crash, stack=found.stacks.get((0, 0), ()))
    return found


def _constants(
    memory: mmap.mmap, path: Path, start: int, length: int, count: int
) -> tuple[dict[str, RecordedInput], tuple[int, ...]]:
    """Read the constants that an update gave, up to the first that does not fit, and its return addresses."""
    found: dict[str, RecordedInput] = {}
    at, last = start, start + length
    for _ in range(min(count, MOST_CONSTANTS)):
        if at + _INPUT.size > last or memory[at] > MOST_DIM:
            return found, ()
        dim, kept, *_, named, _, _, span = _INPUT.unpack_from(memory, at)
        begin = at + _INPUT.size + 16 * dim
        values = begin + -(-named // 8) * 8
        size = span if kept == 1 else 0
        if named > LONGEST_NAME or values + size > last:
            return found, ()
        name = memory[begin : begin + named].decode("utf-8", "replace")
        place = Bytes(path, values, span) if kept == 1 and span else None
        found[name] = _input(memory, path, at, at, 0, place)
        at = values + -(-size // 8) * 8
    frames = max(0, min((last - at) // 8, MOST_FRAMES))
    return found, struct.unpack_from(f"<{frames}Q", memory, at)


def recordings_in(folder: Path) -> list[Path]:
    """List the rings in a folder, newest first. Raise `ProblemError` if there are none."""
    paths = [folder] if folder.is_file() else sorted(folder.glob("*.ring")) if folder.is_dir() else []
    if not paths:
        raise ProblemError(
            "no recording in this folder" if folder.is_dir() else "no such folder of recordings",
            value=str(folder),
            allowed="a .ring file, or a folder of them; a host in which no call failed leaves one only with "
            "AOTI_RECORDER_KEEP=1",
            next_call="aoti-debug record model.pt2 --out recorded.pt2",
        )
    return sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)
