"""What a child prints becomes harmless text, in order and in bounded space, and is not lost when it dies."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from pathlib import Path

import anyio
import pytest

from mcp_server.jobs.output import BoundedFile, Capture, InOrder, clean
from tests.jobs.support import python

HEAD, TAIL = 100, 200


def kept(path: Path, data: bytes, pieces: int = 7) -> tuple[bytes, int]:
    """The file after `data` was written in pieces, and the bytes left out."""
    file = BoundedFile(path, HEAD, TAIL)
    for start in range(0, len(data), pieces):
        file.write(data[start : start + pieces])
        assert path.stat().st_size <= HEAD + TAIL
    dropped = file.close()
    return path.read_bytes(), dropped


def test_streams_are_joined_by_lines(tmp_path: Path) -> None:
    """A line of one stream is not cut in two by the other stream."""
    file = BoundedFile(tmp_path / "log")
    joined = InOrder(file)
    for stream, data in [
        ("stdout", b"one "),
        ("stderr", b"error\n"),
        ("stdout", b"line\nlast"),
        ("stderr", b"end"),
    ]:
        joined.feed(stream, data)
    joined.finish()
    file.close()
    assert (tmp_path / "log").read_bytes() == b"error\none line\nlast\nend"


def test_full_disk_is_noted(tmp_path: Path) -> None:
    """When the disk takes no more, what came is kept, the rest is counted, and the reason is kept."""
    code = """
import resource, signal, sys
from pathlib import Path
from mcp_server.jobs.output import BoundedFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = BoundedFile(Path(sys.argv[1]))
file.write(b"x" * 1500)
file.write(b"y" * 100)
print(file.close(), file.error)
"""
    argv = [*python(code)[:1], "-c", code, str(tmp_path / "log")]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "600 File too large\n"
    assert (tmp_path / "log").read_bytes() == b"x" * 1000


@pytest.mark.anyio
async def test_flood_costs_bounded_memory_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that prints without end costs no more than the limits on disk, and little memory."""
    monkeypatch.setattr(BoundedFile.__init__, "__defaults__", (1 << 20, 1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = 64 << 20
    with Capture(tmp_path) as capture:
        code = f"import os\nfor _ in range({size >> 20}): os.write(1, b'0123456789abcde\\n' * 65536)"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(capture.pump)
            with subprocess.Popen(python(code), stdout=capture.stdout, stderr=capture.stderr) as child:
                capture.started()
                await anyio.to_thread.run_sync(child.wait)
    (left_out,) = re.findall(rb"\[(\d+) bytes left out here\]", (tmp_path / "output.log").read_bytes())
    assert 0 <= int(left_out) - (size - (2 << 20)) <= 16  # up to one line more, for whole lines
    assert (tmp_path / "output.log").stat().st_size < (2 << 20) + 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # KiB


@pytest.mark.anyio
async def test_reading_ends_although_a_pipe_is_held(tmp_path: Path) -> None:
    """A process out of reach that keeps the pipe open cannot hold the result back."""
    with Capture(tmp_path) as capture, anyio.fail_after(60):
        os.write(capture.stdout, b"said\n")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(capture.pump)
            await anyio.sleep(0.05)
            capture.end_within(0.05)
    assert (tmp_path / "stdout.log").read_text() == "said\n"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1;31merror\x1b[0m", "error"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x07c\x9bd", "abcd"),
        ("safe\u202etxt.exe\u2066", "safetxt.exe"),
        ("hid\u200bden\U000e0041", "hidden"),
        ("tab\tand é 漢", "tab\tand é 漢"),
        ("\x1b", ""),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    """Escapes, control characters and invisible characters go, text stays."""
    assert clean(raw) == shown
