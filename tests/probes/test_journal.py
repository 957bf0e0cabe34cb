"""The journal can be read wherever it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.logs.journal import read_journal, read_journal_file
from tests.recorded import RECORDINGS

GOLD = RECORDINGS / "journals"


def read(name: str) -> str:
    return (GOLD / name).read_text()


def test_a_finished_call_is_read_whole() -> None:
    """Launches, arguments, times and the return of a recorded call of the ranker."""
    journal = read_journal(read("returned.jsonl").splitlines())
    assert [launch.kernel for launch in journal.launches][:2] == [
        "cpp_fused_embedding_0",
        "aoti_torch_cpu_addmm_out",
    ]
    first = journal.launches[0]
    table = first.arguments[1]
    assert (table.name, table.parameter, table.role) == ("table_weight", "in_ptr1", "read")
    assert table.tensor is not None
    assert (table.tensor.dtype, table.tensor.shape, table.tensor.stride) == ("float32", (32, 16), (16, 1))
    assert table.tensor.storage_offset == 0
    assert first.arguments[-1].value == 8
    assert first.seconds is not None and 0 < first.seconds < 1
    assert journal.ending.how == "returned" and journal.ending.launch == journal.launches[-1]


@pytest.mark.parametrize("torch", ["2.8", "2.15"])
def test_journals_written_with_other_torches_read_the_same(torch: str) -> None:
    """The `branch` of the zoo, recorded by tests.releases: the launches of the side taken, each
    tensor described although torch 2.8 has no function that tells whether it is defined."""
    journal = read_journal(read(f"branch.torch-{torch}.jsonl").splitlines())
    assert journal.cut_lines == 0 and journal.ending.how == "returned"
    first = [launch.arguments[0].name for launch in journal.launches]
    assert first == ["arg0_1", "true_graph_0_arg0_1", "true_graph_0_buf1", "buf4"]
    arguments = [argument for launch in journal.launches for argument in launch.arguments]
    assert all(argument.tensor is not None or argument.value is not None for argument in arguments)
    assert journal.launches[2].kernel == "aoti_torch_cpu_mm_out"


def test_the_ending_is_the_launch_that_did_not_come_back() -> None:
    """Cutting the journal after a launch's beginning makes that launch the one during which it died."""
    lines = read("returned.jsonl").splitlines()
    begun = next(i for i, line in enumerate(lines) if '"phase":"before","launch":3' in line)
    ending = read_journal(lines[: begun + 1]).ending
    assert ending.how == "died" and ending.launch is not None and ending.launch.launch == 3
    ending = read_journal(lines[: begun + 2]).ending
    assert ending.how == "between" and ending.launch is not None and ending.launch.launch == 3


def test_an_exception_is_told_from_a_death() -> None:
    """A call that threw ends at the launch that did not come back."""
    ending = read_journal(read("threw.jsonl").splitlines()).ending
    assert (
        ending.how == "threw"
        and ending.launch is not None
        and ending.launch.kernel == "cpp_fused_embedding_0"
    )


def test_a_device_fault_names_its_launch() -> None:
    """The fault line written by the synchronous mode closes the launch with the device's text."""
    lines = read("returned.jsonl").splitlines()
    place = next(i for i, line in enumerate(lines) if '"phase":"after","launch":2' in line)
    fault = {
        **json.loads(lines[place]),
        "event": "fault",
        "error": "cudaErrorIllegalAddress: an illegal memory access",
    }
    ending = read_journal([*lines[:place], json.dumps(fault)]).ending
    assert ending.how == "fault" and ending.launch is not None
    assert ending.launch.launch == 2 and "cudaErrorIllegalAddress" in ending.launch.fault


@given(st.integers(min_value=0, max_value=len(read("returned.jsonl"))))
def test_every_prefix_of_a_journal_parses(size: int) -> None:
    """A kill leaves a prefix: at most its last line is unreadable, and nothing that was written is lost."""
    text = read("returned.jsonl")[:size]
    journal = read_journal(text.splitlines())
    whole = [line for line in text.split("\n")[:-1] if '"phase":"before"' in line]
    assert journal.cut_lines <= 1
    assert len(journal.launches) >= len(whole)


@given(st.lists(st.text() | st.just('{"event":"launch","pid":1}') | st.just("[]") | st.just("null")))
def test_foreign_lines_are_counted_and_raise_nothing(lines: list[str]) -> None:
    """Text that is no journal gives an empty journal."""
    journal = read_journal(lines)
    assert journal.launches == () and journal.ending.how == "not_started"
    assert journal.cut_lines == sum(bool(line.strip()) for line in lines)


def test_the_older_half_of_a_rotated_journal_is_read_first(tmp_path: Path) -> None:
    """`path.1` holds what came before; a missing file is an empty journal."""
    lines = read("returned.jsonl").splitlines(keepends=True)
    (tmp_path / "j.jsonl.1").write_text("".join(lines[:4]))
    (tmp_path / "j.jsonl").write_text("".join(lines[4:]))
    assert read_journal_file(tmp_path / "j.jsonl").launches == read_journal(lines).launches
    assert read_journal_file(tmp_path / "none.jsonl").runs == ()
