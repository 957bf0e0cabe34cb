"""Core files, processes and recordings that are not what they claim give a clear error at little cost."""

import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.recorder import ring
from mcp_server.recorder.core_file import open_core
from mcp_server.recorder.live_process import open_process
from mcp_server.recorder.replay import candidates
from mcp_server.recorder.unwind import Unwinder
from tests.conftest import Zoo
from tests.fuzz.made import SLOT, call, recording
from tests.support.command import typed

X86, ARM = 62, 183
SPARSE = 3 << 30  # bytes
CODE = 0x10000


def note(kind: int, data: bytes, *, says: int | None = None, named: int = 0) -> bytes:
    """A note. `says` and `named` are wrong sizes."""
    name = b"CORE\0"
    head = struct.pack("<III", named or len(name), len(data) if says is None else says, kind)
    return head + name.ljust(-(-len(name) // 4) * 4, b"\0") + data.ljust(-(-len(data) // 4) * 4, b"\0")


def status(thread: int, pc: int = CODE, sp: int = 0x7000, received: int = 6) -> bytes:
    """NT_PRSTATUS of a thread that got the signal `received`."""
    raw = bytearray(336)
    struct.pack_into("<h", raw, 12, received)
    struct.pack_into("<i", raw, 32, thread)
    struct.pack_into("<Q", raw, 112 + 8 * 16, pc)
    struct.pack_into("<Q", raw, 112 + 8 * 19, sp)
    return note(1, bytes(raw))


def files(*paths: str, count: int | None = None) -> bytes:
    """NT_FILE. `count` is a wrong number of files."""
    raw = struct.pack("<QQ", len(paths) if count is None else count, 4096)
    raw += b"".join(struct.pack("<QQQ", CODE * (n + 1), CODE * (n + 2), 0) for n in range(len(paths)))
    return note(0x46494C45, raw + b"".join(path.encode() + b"\0" for path in paths))


def core(
    notes: bytes, *, page: bytes = b"", machine: int = X86, size: int = 0, count: int = 2, kind: int = 4
) -> bytes:
    """An ELF file with notes in a segment of claimed size `size`, and `page` at CODE."""
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0)
    first = struct.pack("<IIQQQQQQ", 4, 4, 176, 0, 0, size or len(notes), 0, 4)
    second = struct.pack("<IIQQQQQQ", 1, 5, 176 + len(notes), CODE, 0, len(page), len(page), 4096)
    return ident + head + first + second + notes + page


ONE = status(7)
REFUSED = {
    "a description larger than its segment": (core(ONE + note(6, b"abcd", says=2_900_000_000)), "2900000000"),
    "a name larger than its segment": (core(ONE + note(6, b"abcd", named=2_900_000_000)), "2900000000"),
    "more mapped files than it has bytes": (core(ONE + files("/lib/a.so", count=4_000_000)), "4000000"),
    "fewer names than mapped files": (core(ONE + files("/a", "/b").replace(b"/b\0", b"/b/")), "1 of 2 names"),
    "a thread without registers": (core(note(1, b"\0" * 100)), "NT_PRSTATUS"),
    "a note without its head": (core(ONE + b"\1\0\0"), "ends in the middle of a note"),
    "no thread": (core(files("/lib/a.so")), "no thread"),
    "another architecture": (core(ONE, machine=ARM), "AArch64"),
    "a program": (core(ONE, kind=2), "type 2"),
    "32 bits": (core(ONE).replace(b"ELF\x02", b"ELF\x01"), "32 bits"),
    "the head of a file": (core(ONE)[:70], "cut off"),
    "notes behind the end": (core(ONE, size=1 << 20), "cut off"),
    "more segments than bytes": (core(ONE, count=60_000), "cut off"),
    "nothing": (b"", "not an ELF file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_lies_or_is_another_is_refused(case: str, tmp_path: Path) -> None:
    """The error quotes the note, or says what the file is, and what is allowed."""
    raw, told = REFUSED[case]
    (tmp_path / "core").write_bytes(raw)
    with pytest.raises(ProblemError, match=re.escape(told)) as error, open_core(tmp_path / "core"):
        pass
    assert error.value.allowed and bool(error.value.next_call) == ("cannot be read" in str(error.value))


SPARSE_CORES = {
    "description": note(6, b"abcd", says=2_900_000_000),
    "files": files("/lib/a.so", count=4_000_000),
    "many small notes": note(6, b"") * 300_000,
}
READ = """
import contextlib, sys
from pathlib import Path
from mcp_server.errors import ProblemError
from mcp_server.recorder.core_file import open_core
for path in map(Path, sys.argv[1:]):
    with contextlib.suppress(ProblemError), open_core(path):
        sys.exit(f"{path} was read")
"""


def test_a_sparse_core_takes_little(tmp_path: Path) -> None:
    """A wrong size is not read, even if the sparse file has that many bytes."""
    paths = [tmp_path / name for name in SPARSE_CORES]
    for path in paths:
        path.write_bytes(core(ONE + SPARSE_CORES[path.name]))
        os.truncate(path, SPARSE)
    limit = 1 << 30
    run = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        timeout=60,
    )
    assert run.returncode == 0, run.stderr[-500:]


def test_an_error_of_the_caller_passes(tmp_path: Path) -> None:
    """An exception of the caller, while a core file or process is open, passes unchanged."""
    (tmp_path / "core").write_bytes(core(ONE))
    with pytest.raises(KeyError), open_core(tmp_path / "core"):
        raise KeyError
    with pytest.raises(PermissionError), open_process(os.getpid()):
        raise PermissionError


CHURN = """
import threading
print("ready", flush=True)
while threading.active_count():
    for each in [threading.Thread(target=lambda: None) for _ in range(40)]:
        each.start()
"""


def test_threads_that_end_meanwhile_are_left_out() -> None:
    """While threads start and end, those that exist are listed."""
    with subprocess.Popen([sys.executable, "-c", CHURN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            until = time.monotonic() + 1.5
            while time.monotonic() < until:
                with open_process(process.pid) as remains:
                    assert remains.maps
        finally:
            process.kill()


def test_a_process_that_ended_is_said() -> None:
    """The error says whether the process ended before the inspection or during it."""
    with subprocess.Popen(["sleep", "100"]) as process:
        with pytest.raises(ProblemError, match="ended during the inspection"), open_process(process.pid):
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProblemError, match="has ended"), open_process(process.pid):
            pass


def test_mapped_files_of_all_kinds_are_no_trouble(tmp_path: Path) -> None:
    """Mapped pipes, devices, folders, missing files and impossible names give no frames and no error."""
    os.mkfifo(tmp_path / "pipe")
    names = (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path), "/nowhere/libx.so", "x" * 5000, "/proc/kmsg")
    threads = b"".join(status(n, CODE * (n + 1) + 16) for n in range(len(names)))
    (tmp_path / "core").write_bytes(core(threads + files(*names)))
    with open_core(tmp_path / "core") as remains:
        found = [Unwinder(remains, Path).addresses(thread) for thread in remains.threads]
    assert found == [[CODE * (n + 1) + 16] for n in range(len(names))]


def library(rules: bytes) -> bytes:
    """A shared object whose one function, at 0x1000, has these rules in .eh_frame."""
    common = struct.pack("<IIB", 20, 0, 1) + b"zR\0\1\x78\x10\1\x1b".ljust(15, b"\0")
    at, names = 0x2000, b"\0.eh_frame_hdr\0.eh_frame\0.names\0"
    frames = common + struct.pack("<IIiIB", 13 + len(rules), 28, 0x1000 - at - 32, 0x100, 0) + rules
    table = struct.pack("<4BiIii", 1, 0x1B, 3, 0x3B, 0, 1, 0x1000 - 0x1800, at + 24 - 0x1800)
    place = at + len(frames)
    rows = ((0, 0, 0), (1, 0x1800, len(table)), (15, at, len(frames)), (25, place, len(names)))
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", name, 3 if name == 25 else bool(name), 2, begin, begin, size, 0, 0, 1, 0)
        for name, begin, size in rows
    )
    whole = place + len(names) + len(sections)
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 3, X86, 1, 0, 64, place + len(names), 0, 64, 56, 1, 64, 4, 3
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, whole, whole, 4096)
    return (head + load).ljust(0x1800, b"\0") + table.ljust(0x800, b"\0") + frames + names + sections


RULES = {
    "right ones": (b"\x0c\7\x08\x90\1", 2),  # the CFA is rsp + 8, and the return address is just below it
    "a size beyond all memory": (b"\x0f" + b"\xff" * 10 + b"\x0f", 1),
    "a number without an end": (b"\x0e" + b"\xff" * 60_000, 1),
    "rows that are set aside for ever": (b"\x0a" * 60_000, 1),
    "registers without number": (b"".join(b"\5" + bytes((n | 128, 1, 1)) for n in range(128)) * 400, 1),
    "more than any function has": (b"\0" * 3_000_000, 1),
}


@pytest.mark.parametrize("case", RULES)
def test_rules_of_frames_that_never_end_are_left(case: str, tmp_path: Path) -> None:
    """A thread is followed as far as the rules are valid, without delay."""
    rules, frames = RULES[case]
    (tmp_path / "libx.so").write_bytes(library(rules))
    notes = status(1, CODE + 0x1010, CODE) + files(str(tmp_path / "libx.so"))
    (tmp_path / "core").write_bytes(core(notes, page=struct.pack("<QQ", 0x1234, 0)))
    begun = time.monotonic()
    with open_core(tmp_path / "core") as remains:
        found = Unwinder(remains, Path).addresses(remains.threads[0])
    assert found == [CODE + 0x1010, 0x1234][:frames]
    assert time.monotonic() - begun < 60


def core_of(package: Path, threads: bytes, *, build: bytes = b"") -> bytes:
    """The core of a process that had loaded the package, or one with another `build` id."""
    with zipfile.ZipFile(package) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".wrapper.so")]
        page = archive.read(name)[:4096]
    at = page.index(struct.pack("<III", 4, 20, 3) + b"GNU\0") + 16
    page = page[:at] + (build or page[at : at + 20]) + page[at + 20 :]
    return core(threads + files(f"/elsewhere/{PurePosixPath(name).name}"), page=page)


@pytest.mark.slow
def test_another_build_of_the_package_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    """Addresses of one build mean nothing in another. The error names both builds and the next call."""
    (tmp_path / "core").write_bytes(core_of(zoo("ranker"), ONE, build=b"\xab" * 20))
    run = typed("post-mortem", str(tmp_path / "core"), "--package", str(zoo("ranker")))
    assert run.returncode == 2 and "another build of this package" in run.stderr
    assert f"the package with build {'ab' * 20}" in run.stderr and "try: post-mortem" in run.stderr


@pytest.mark.slow
def test_threads_beyond_the_limit_are_not_called_elsewhere(zoo: Zoo, tmp_path: Path) -> None:
    """Of 300 threads, 44 are reported as not examined, and only the others are counted."""
    threads = b"".join(status(n, pc=0x999) for n in range(300))
    (tmp_path / "core").write_bytes(core_of(zoo("ranker"), threads))
    run = typed("post-mortem", str(tmp_path / "core"), "--package", str(zoo("ranker")))
    assert run.returncode == 0, run.stderr
    assert "44 threads of 300 were not examined" in run.stdout and "build" not in run.stdout
    assert "256 elsewhere" in run.stdout and "300 elsewhere" not in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "address", "says"), [(1, 0x6FF8, "its stack is used up"), (1, 8, "a null pointer"), (0, 8, "")]
)
def test_how_a_process_died_is_told(zoo: Zoo, tmp_path: Path, code: int, address: int, says: str) -> None:
    """A used-up stack and a null pointer are named. If the signal was sent by somebody, only it is named."""
    access = note(0x53494749, struct.pack("<iii4xQ", 11, 0, code, address))
    (tmp_path / "core").write_bytes(core_of(zoo("ranker"), status(7, 0x999, received=11) + access))
    told = typed("post-mortem", str(tmp_path / "core"), "--package", str(zoo("ranker"))).stdout
    assert "died of SIGSEGV" in told and says in told
    assert says or "SIGSEGV;" in told


def written(folder: Path, content: bytes) -> Path:
    path = folder / "1-1-0.ring"
    path.write_bytes(content)
    return path


def test_a_record_is_read_whole(tmp_path: Path) -> None:
    """Sizes, dtype and the location of the input's bytes are read; a link to the file is not followed."""
    path = written(tmp_path, recording(call(1, 0), call(2, 192, end=0)))
    found = ring.read_recording(path)
    assert [(c.sequence, c.end_ns, c.complete) for c in found.calls] == [(1, 9, True), (2, None, True)]
    (first,) = found.calls[0].inputs
    assert (first.dtype, first.sizes, first.kept) == ("int64", (2,), "before the call")
    assert first.bytes is not None
    assert path.read_bytes()[first.bytes.offset :][:16] == b"\1" * 16
    (tmp_path / "link.ring").symlink_to(path)
    with pytest.raises(ProblemError):
        ring.read_recording(tmp_path / "link.ring")


def test_a_write_during_a_call_is_read(tmp_path: Path) -> None:
    """The crash file says which input of which call changed, and where."""
    path = written(tmp_path, recording(call(1, 0)))
    entry = struct.pack("<IIQQQIIIIQ", 0xA0710CE2, 7, 1, 0, 0, 0, 0, 1, 0, 8)
    path.with_suffix(".crash").write_bytes(entry)
    (found,) = ring.read_recording(path).changes
    assert (found.sequence, found.input, found.offset) == (1, 0, 8)


@pytest.mark.parametrize("slot", [SLOT, 1 << 60])
def test_a_cut_ring_is_read_as_far_as_it_goes(tmp_path: Path, slot: int) -> None:
    """The calls before the cut are read. The recording says that others may be missing."""
    content = recording(call(1, 0), call(2, 192, end=0))
    content = content.replace(struct.pack("<Q", SLOT), struct.pack("<Q", slot), 1)
    found = ring.read_recording(written(tmp_path, content[: ring.HEADER_BYTES + 200]))
    assert [each.sequence for each in found.calls] == [1]
    assert "cut: calls of 1 thread may be missing" in found.loss


def test_the_call_in_flight_comes_before_one_that_failed(tmp_path: Path) -> None:
    """A process that died was in the call without an end."""
    content = recording(call(1, 0, code=1), call(2, 192, end=0), call(3, 384))
    order = list(candidates(ring.read_recording(written(tmp_path, content))))
    assert [each.call.sequence for each in order] == [2, 1, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has 0 bytes"),
        (b"\1" * ring.HEADER_BYTES, "first bytes"),
        (b"\0" * ring.HEADER_BYTES, "still making it"),
        (recording().replace(b"AOTIREC2\4", b"AOTIREC2\2"), "version 2 of the file"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """The error says what is wrong, and the claimed contents are not read."""
    with pytest.raises(ProblemError, match=says):
        ring.read_recording(written(tmp_path, content))


WHOLE = recording(call(1, 0), call(2, 192, end=0), call(3, 384, code=1))


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 8), st.integers(0, 2**64 - 1)), max_size=12))
def test_damage_gives_a_recording_or_a_clear_error(changes: list[tuple[int, int]]) -> None:
    """No other exception is raised, and no input extends beyond its file."""
    content = bytearray(WHOLE)
    for at, value in changes:
        content[at : at + 8] = struct.pack("<Q", value)
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), bytes(content))
        try:
            found = ring.read_recording(path)
        except ProblemError:
            return
        for each in found.calls:
            for tensor in each.inputs:
                if tensor.bytes is not None:
                    assert tensor.bytes.offset + tensor.bytes.length <= len(content)


@given(st.binary(max_size=400))
def test_any_crash_file_is_read_without_an_exception(content: bytes) -> None:
    """Reading stops at garbage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.crash"
        path.write_bytes(struct.pack("<II", 0xA0710CE2, 2) + content)
        ring.read_crash(path)
