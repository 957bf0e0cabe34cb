"""Recordings as untrusted files: whatever is in them, a recording or a clear error comes out."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.recorder import ring
from mcp_server.recorder.replay import candidates
from tests.fuzz.made import SLOT, call, recording


def written(folder: Path, content: bytes) -> Path:
    path = folder / "1-1-0.ring"
    path.write_bytes(content)
    return path


def test_a_record_is_read_whole(tmp_path: Path) -> None:
    """Sizes, dtype, and where the bytes of the input lie."""
    path = written(tmp_path, recording(call(1, 0), call(2, 192, end=0)))
    found = ring.read_recording(path)
    assert [(c.sequence, c.end_ns, c.complete) for c in found.calls] == [(1, 9, True), (2, None, True)]
    (first,) = found.calls[0].inputs
    assert (first.dtype, first.sizes, first.kept) == ("int64", (2,), "before the call")
    assert first.bytes is not None
    assert path.read_bytes()[first.bytes.offset :][:16] == b"\1" * 16


def test_the_call_in_flight_comes_before_one_that_failed(tmp_path: Path) -> None:
    """A process that died was in the call that has no end."""
    content = recording(call(1, 0, code=1), call(2, 192, end=0), call(3, 384))
    order = list(candidates(ring.read_recording(written(tmp_path, content))))
    assert [each.call.sequence for each in order] == [2, 1, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "has 0 bytes"),
        (b"\0" * ring.HEADER_BYTES, "first bytes"),
        (recording()[:-1], "is cut"),
        (recording().replace(struct.pack("<Q", SLOT), struct.pack("<Q", 1 << 60), 1), "is cut"),
        (recording().replace(b"AOTIREC2\2", b"AOTIREC2\3"), "version 3"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    """With what is wrong about it, and without reading what it claims to hold."""
    with pytest.raises(ProblemError, match=says):
        ring.read_recording(written(tmp_path, content))


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A recording is a file of its own."""
    path = written(tmp_path, recording(call(1, 0)))
    link = tmp_path / "link.ring"
    link.symlink_to(path)
    with pytest.raises(ProblemError):
        ring.read_recording(link)


WHOLE = recording(call(1, 0), call(2, 192, end=0), call(3, 384, code=1))


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 8), st.integers(0, 2**64 - 1)), max_size=12))
def test_damage_gives_a_recording_or_a_clear_error(changes: list[tuple[int, int]]) -> None:
    """No other exception, and no input that reaches beyond its file."""
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
    """Garbage ends the reading."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "1.crash"
        path.write_bytes(struct.pack("<II", 0xA0710CE2, 2) + content)
        ring.read_crash(path)
