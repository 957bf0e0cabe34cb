"""Makes first inputs for the fuzzer of readers without small recordings."""

import io
import random
import re
import struct
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from mcp_server.recorder import ring
from tests.recorded import RECORDINGS
from tools.made import MADE

JOURNALS = RECORDINGS / "journals"
WRAPPERS = RECORDINGS / "wrappers"
LARGEST = 40_000
METADATA = (
    b'{"AOTI_DEVICE_KEY": "cuda", "AOTI_MACHINE": "x86_64", "AOTI_PLATFORM": "linux", "cubin": ["a", 1]}'
)
SOURCE = 'extern "C" int add(int a) { return a + 1; } const char* name = "weight"; double table[64] = {1};'
CAPTURE = b"""\
{"event": "process", "n": 1, "pid": 7, "t": 1.5, "parent": 1, "argv": ["python", "a.py"],
 "executable": "python", "python": "3.11.7", "cwd": "/app"}
{"event": "compiling", "n": 2, "pid": 7, "t": 2.0, "compile": 0, "how": "aoti_compile_and_package"}
{"event": "compiled", "n": 3, "pid": 7, "t": 9.0, "compile": 0, "package": "m.pt2", "seconds": 7.0}
{"event": "loading", "n": 4, "pid": 7, "t": 9.2, "load": 0, "loader": "l", "package": "m.pt2", "options": {}}
{"event": "loaded", "n": 5, "pid": 7, "t": 9.5, "load": 0, "seconds": 0.1}
{"event": "calling", "n": 6, "pid": 7, "t": 9.6, "call": 0, "load": 0, "thread": 1, "leaves": [],
 "frames": [{"file": "a.py", "line": 3}]}
{"event": "call_failed", "n": 7, "pid": 7, "t": 9.7, "call": 0, "type": "RuntimeError", "text": "index"}
""".replace(b",\n", b",")
COMPILED = b"""\
// Compile cmd
// g++ /a/m.wrapper.cpp -D TORCH_INDUCTOR_CPP_WRAPPER -DA=1 -fPIC -O3 -std=c++20 -march=native -fopenmp \
-I/usr/include/python3.11 -I/b/torch/include -D_GLIBCXX_USE_CXX11_ABI=1 -include /c/x.h -o /d/m.o -c 'a b'
"""
TREE = b"""\
[1, {"type": "builtins.tuple", "context": "null", "children_spec": [
{"type": "builtins.tuple", "context": "null", "children_spec": [
{"type": "builtins.dict", "context": "[\\"user\\"]", "children_spec": [
{"type": null, "context": null, "children_spec": []}]}]},
{"type": "builtins.dict", "context": "[]", "children_spec": []}]}]
"""
PROXY = b"""\
{"nodes": [{"name": "buf0", "node": {"target": "shop::halve", "metadata": {"torch_library_custom_op": "1"},
"inputs": [{"name": "x", "arg": {"as_tensor": {"name": "arg0_1"}}, "kind": 1}],
"outputs": [{"as_tensors": [{"name": "buf1"}, {"name": "buf2"}]}]}}]}
"""
RANKS = b"""\
E1121 01:02:03 77 torch/distributed/elastic/api.py:984] failed (exitcode: -6) local_rank: 1 (pid: 7)
[default1]:RuntimeError: index out of bounds
srun: job 5 queued and waiting for resources
srun: job 5 has been allocated resources
srun: error: node1: tasks 0-1,3: Exited with exit code 1
srun: error: Unable to allocate resources: Requested node configuration is not available
"""
PLAN = b"""\
defaults: {budget_s: 120}
cases:
  - {name: ranker, package: ranker.pt2, inputs: calls/bad.pt}
  - {package: "nightly/*.pt2", inputs: calls/one.pt}
  - {script: serve.py, gpus: 0}
"""


def packages() -> Iterator[bytes]:
    """Yield archives with a recorded wrapper and no library. They are stored, so that changed bytes count."""
    for wrapper in sorted(WRAPPERS.glob("*.cpp")):
        if wrapper.stat().st_size < LARGEST:
            yield _archive(wrapper.read_bytes())


def _archive(wrapper: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/version", "3\n")  # torch reads it first
        archive.writestr("m/data/aotinductor/model/a.wrapper.cpp", wrapper)
        archive.writestr("m/data/aotinductor/model/a_metadata.json", METADATA)
        archive.writestr("m/data/aotinductor/model/kernel_information.json", b"{}")
    return buffer.getvalue()


def damaged(archive: bytes, dice: random.Random) -> bytes:
    """The archive with one to three changes, mostly to the locations of its members."""
    data = bytearray(archive)
    headers = [
        found.start() for found in re.finditer(rb"PK[\x01\x03\x05\x06\x07][\x02\x04\x06\x07\x08]", archive)
    ]
    for _ in range(dice.randint(1, 3)):
        at = min(dice.choice(headers) + dice.randrange(46), len(data) - 1)
        at = dice.choice((at, at, at, dice.randrange(len(data))))
        match dice.randrange(6):
            case 0:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                data[at] = dice.choice((0, 1, 0x7F, 0xFF))
            case 2:
                data[at:at] = data[at : at + dice.randrange(80)]
            case 3:
                del data[at : at + dice.randrange(1, 8)]
            case 4:
                other = dice.choice(headers)
                data[at : at + 22] = data[other : other + 22]
            case _:  # a locator of a 64-bit directory, which only some readers follow
                end = data.rfind(b"PK\x05\x06")
                place = dice.choice((0, dice.choice(headers), len(data)))
                data[end:end] = struct.pack("<4sLQL", b"PK\x06\x07", 0, place, 1)
    return bytes(data)


def journals() -> Iterator[bytes]:
    """Yield the journals of instrumented packages."""
    for journal in sorted(JOURNALS.iterdir()):
        yield journal.read_bytes()[:LARGEST]


def programs() -> Iterator[bytes]:
    """Yield the exported programs of the zoo that tests have built."""
    for program in sorted((MADE / "zoo").glob("*.exported.pt2")):
        yield program.read_bytes()


def libraries() -> Iterator[bytes]:
    """Yield a small shared library, with and without debug information."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "a.cpp"
        source.write_text(SOURCE)
        for options in (["-g"], ["-s"]):
            target = source.with_suffix(".so")
            subprocess.run(["g++", "-shared", "-fPIC", *options, "-o", target, source], check=True)
            yield target.read_bytes()


SLOT = 4096  # bytes of a ring


def call(
    sequence: int, at: int, *, end: int = 9, code: int = 0, payload: bytes = b"\1" * 16, thread: int = 7
) -> bytes:
    """A record with an int64 input of two elements, kept completely."""
    inputs = struct.pack("<BBhhhIIQQ2q", 1, 1, 4, 0, 0, 0, 96 + 48, 1, len(payload), 2, 1)
    check = (sequence * 2654435761 & 0xFFFFFFFF) ^ at
    head = struct.pack(
        "<IIQQQIIiIIIIIQQIIQ",
        0xA0710CA2,
        96 + 48 + len(payload),
        sequence,
        5,
        end,
        thread,
        0,
        code,
        1,
        1,
        0,
        0,
        check,
        *(0, 0, 0, 0),
        sequence,
    )
    body = head + inputs + payload
    return body + b"\0" * (-len(body) % 64)


VERSION = (ring.MAGIC, ring.VERSION)


def recording(*calls: bytes, pid: int = 1 << 22, newest: int = 9) -> bytes:
    """A ring with one slot and one model."""
    head = struct.pack("<8sIIIIQQQIIII", *VERSION, ring.HEADER_BYTES, pid, 1, SLOT, 3, 0, 1, 0, 0, 0)
    slots = struct.pack("<IIQQ40x", 7, 1, 0, newest) + b"\0" * (63 * 64)
    models = struct.pack("<512s64sI60x", b"/tmp/model.so", b"ab12", 0)
    body = b"".join(calls)
    return (head + slots + models).ljust(ring.HEADER_BYTES, b"\0") + body.ljust(SLOT, b"\0")


CRASH = struct.pack("<II", 0xA0710CE2, 2) + bytes(200)  # an entry of a crash file, and what follows
