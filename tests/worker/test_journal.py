"""The capture's journal: bounded, ordered, and complete at its end."""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mcp_server.logs import captured
from mcp_server.logs.capture_journal import read_capture
from mcp_server.worker.capture import events
from mcp_server.worker.capture import journal as module
from mcp_server.worker.capture.events import TensorFacts
from mcp_server.worker.capture.journal import Journal, around
from mcp_server.worker.events import Refused
from mcp_server.worker.report import Report, plain


def numbers(directory: Path) -> list[int]:
    """`n` of every event that is still there, in order."""
    lines = [line for path in directory.glob("*.jsonl") for line in path.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=200))
def test_a_full_journal_keeps_its_beginning_and_its_end(sizes: list[int]) -> None:
    """Whatever the sizes of events, the first and the latest are kept, and the files stay bounded."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FULL", 4000)
        patch.setattr(module, "TAIL", 2000)
        journal = Journal(name)
        for size in sizes:
            journal.event(events.HookFailed("filler", "x" * size))
        os.close(journal.file)
        kept, last = numbers(Path(name)), len(sizes) + 1
        assert kept[0] == 1 and kept[-1] == last and len(set(kept)) == len(kept)
        suffix = [n for n in kept if n > last - 3]
        assert len(suffix) == min(3, last)
        total = sum(path.stat().st_size for path in Path(name).glob("*.jsonl"))
        assert total <= 4000 + 2 * 2000 + 2 * 600


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    """Events of several threads neither mix nor get lost."""
    journal = Journal(str(tmp_path))

    def write() -> None:
        for _ in range(50):
            journal.event(events.HookFailed("filler", "y" * 300))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(journal.file)
    assert numbers(tmp_path) == list(range(1, 402))


def test_numbers_that_json_does_not_know() -> None:
    """Non-finite numbers become words, at any depth, and unknown objects their repr."""
    assert plain({"a": [float("nan"), (float("-inf"), 1.5)], 2: object}) == {
        "a": ["nan", ["-inf", 1.5]],
        "2": repr(object),
    }


def test_a_hook_that_fails_changes_nothing(tmp_path: Path) -> None:
    """What the hook's own code raises is journaled; the program gets its result and its exceptions."""
    journal = Journal(str(tmp_path))

    def original(x: int) -> int:
        """The program's function."""
        return 10 // x

    def before(x: int) -> int:
        if x == 2:
            raise KeyError("mine")
        return x

    def after(_state: Any, _result: Any, _error: BaseException | None) -> None:
        raise OSError("disk full")

    wrapped = around(journal, original, before, after)
    assert wrapped(2) == wrapped(x=2) == 5 and wrapped(5) == 2 and wrapped.__doc__ == original.__doc__
    with pytest.raises(ZeroDivisionError):
        wrapped(0)
    os.close(journal.file)
    (process,) = read_capture(tmp_path).processes
    assert process.hook_failures == ["KeyError: 'mine'", "OSError: disk full"]


def test_a_report_is_strict_json(tmp_path: Path) -> None:
    """A number that JSON does not have, or a value of another kind, is told as text."""
    report = Report(str(tmp_path / "report.jsonl"))
    mean = TensorFacts(mean=math.nan, shape=[2, 3])
    report.event(Refused("no", value={"low": -math.inf, 1: True, "path": tmp_path, "of": mean}))
    report.event(Refused("\udce9", value=0.5))
    first, second = map(json.loads, (tmp_path / "report.jsonl").read_text().splitlines())
    of = {"mean": "nan", "shape": [2, 3]}
    assert first["value"] == {"low": "-inf", "1": True, "path": repr(tmp_path), "of": of}
    assert second["value"] == 0.5


NAMES = {"copy": "copy_path", "frames": "stack", "package_path": "package"}  # in the record
NUMBERS = {"compile", "load", "update", "call"}
UNREAD = {"bytes", "sha256", "largest"}  # of the package of a host
OF_THE_ERROR = {"type", "text", "no_files", "file_bytes", "stopped_at"}


@pytest.mark.parametrize(
    ("kinds", "record"),
    [
        ((events.Compiling, events.Compiled, events.CompileFailed), captured.CapturedCompile),
        ((events.Packaging,), captured.CapturedPackaging),
        ((events.Loading, events.Loaded, events.LoadFailed), captured.CapturedLoad),
        ((events.Host,), captured.CapturedHost),
        ((events.Updating, events.Updated, events.UpdateFailed), captured.CapturedUpdate),
        ((events.Calling, events.Called, events.CallFailed), captured.CapturedCall),
        ((events.Exporting,), captured.CapturedExport),
        ((events.InputLetGo, events.GraphInputGone), captured.FreedInput),
        ((events.AssertionFailed,), captured.CapturedAssertion),
        ((events.ProgramFailed,), captured.CapturedEnd),
    ],
)
def test_the_record_has_what_the_hook_writes(kinds: tuple[Any, ...], record: type[BaseModel]) -> None:
    """Each field of the events of a phase is one of the record that the server reads, or of its error."""
    known = set(record.model_fields)
    for kind in kinds:
        names = {NAMES.get(field.name, field.name) for field in fields(kind)}
        assert names - known - NUMBERS <= (OF_THE_ERROR if issubclass(kind, events.Failed) else UNREAD)
