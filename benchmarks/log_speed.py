"""Speed and memory of the log reader and the sanitizer parser on logs made on the spot.

    python benchmarks/log_speed.py [MEGABYTES]

Prints wall and processor seconds (the machine may be shared) and the process's peak memory. Targets: a log
of 100 MB within 10 s (usual text, device asserts), a report of 150,000 sanitizer records with all their
frames (560 MB) within 3 s and 200 MB.
"""

from __future__ import annotations

import itertools
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mcp_server.logs.log import read_log
from mcp_server.logs.sanitizer import read_sanitizer_file
from tests.recorded import RECORDINGS

RECORDS = 150_000
_MARK = "========="
_WORDS = ["".join(random.Random(seed).choices("etaoinshrdlu", k=seed % 8 + 2)) for seed in range(2_000)]


def usual(number: int) -> str:
    """A training log: the same line with other numbers."""
    clock = f"2026-11-20 21:00:01,{number % 1000:03}"
    return f"{clock} INFO step {number} loss 0.{number % 9973:04} lr 1e-4 tokens/s {number * 7}"


def device_assert(number: int) -> str:
    """One assertion line per thread."""
    place = "/cache/ab/cgorgww36dchenp7xji7ayir6wzzxcryejfxwcmyvznwhtjmw25v.py:40: unknown"
    thread = f"block: [{number // 64},0,0], thread: [{number % 64},0,0]"
    return f"{place}: {thread} Assertion `index out of bounds: 0 <= tmp4 < ks0` failed."


def launches(number: int) -> str:
    """The value printer's level 3."""
    when = ("before", "after")[number % 2]
    return f"[ {when}_launch: triton_poi_fused_add_addmm_native_layer_norm_{number // 2 % 300} ]"


def varied(number: int) -> str:
    """Text whose lines have no template in common."""
    return " ".join(random.Random(number).choices(_WORDS, k=16))


def lines_of(make: Callable[[int], str], size: int) -> Iterator[str]:
    """Lines until `size` characters are reached, from a thousand prepared ones."""
    prepared = [make(number) for number in range(1_000 if make is not varied else 50_000)]
    written = 0
    for line in itertools.cycle(prepared):
        written += len(line) + 1
        yield line
        if written > size:
            return


def write_text(path: Path, count: int) -> None:
    """A text report: the first recorded record, for one thread after the other."""
    text = (RECORDINGS / "ima-user-triton.memcheck.txt").read_text()
    begin = text.index(f"{_MARK} Invalid")
    record = text[begin : text.index(f"{_MARK} \n", begin)] + f"{_MARK} \n"
    with path.open("w") as file:
        for number in range(count):
            thread = f"thread ({number % 128},0,0) in block ({number // 128},0,0)"
            named = record.replace("thread (0,0,0) in block (2,0,0)", thread)
            file.write(named.replace("0x7f8f48983d00", hex(0x7F8F48983D00 + 8 * number)))
        file.write(f"{_MARK} ERROR SUMMARY: {count} errors\n")


def timed(name: str, size: float, unit: str, work: Callable[[], object]) -> None:
    """Print wall and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rate = f"{size / processor:.1f} {unit}/s"
    print(
        f"{name:14} {size:>7.0f} {unit:7} {wall:6.2f} s wall {processor:6.2f} s cpu {rate:>17}{peak:4.0f} MiB"
    )


def main() -> None:
    """Time every kind of log."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for make in (usual, device_assert, launches, varied):
        stream = lines_of(make, megabytes * 1_000_000)
        timed(make.__name__, megabytes, "MB", lambda stream=stream: read_log(stream))  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "report"
        write_text(path, RECORDS)
        timed("sanitizer", RECORDS, "records", lambda: read_sanitizer_file(path))


if __name__ == "__main__":
    main()
