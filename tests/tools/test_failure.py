"""How the failure of a child is read from its output, and large logs in a process of their own."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.jobs.command import Ending, Finished
from mcp_server.runtime.failure import (
    SMALL_BYTES,
    look_ahead,
    read_failure,
    read_output,
    read_text,
    read_users_log,
)

INDEX = "RuntimeError: index out of bounds: 0 <= tmp2 < 32L"


def finished(
    output: Path, ending: Ending = "exit", returncode: int | None = 1, signal: str | None = None
) -> Finished:
    return Finished(ending, returncode, signal, 1.0, output, output, output)


def test_a_child_that_ended_well_has_no_failure(tmp_path: Path) -> None:
    """Whatever it printed: the exit status decides."""
    output = tmp_path / "output.log"
    output.write_text(f"{INDEX}\n")
    assert read_failure(finished(output, returncode=0)) is None


def test_the_root_error_names_the_failure(tmp_path: Path) -> None:
    """Family, text and line are those of the root error, and not of the last line."""
    output = tmp_path / "output.log"
    output.write_text(f"loading\n{INDEX}\nbye\n")
    failure = read_failure(finished(output))
    assert failure is not None
    assert (failure.family, failure.line, failure.candidates[0]) == (
        "cpu_index_assert",
        2,
        "index_out_of_bounds",
    )
    assert failure.text == INDEX.removeprefix("RuntimeError: ") or failure.text == INDEX
    assert failure.meaning and failure.guide


@pytest.mark.parametrize(("text", "line"), [("", 0), ("one\ntwo\n", 2)])
def test_without_a_known_error_the_last_words_are_shown(tmp_path: Path, text: str, line: int) -> None:
    """A child that was killed has no family; its last line is quoted, if it printed one."""
    output = tmp_path / "output.log"
    output.write_text(text)
    failure = read_failure(finished(output, "signal", None, "SIGKILL"))
    assert failure is not None
    assert (failure.family, failure.signal, failure.line) == ("", "SIGKILL", line)
    assert failure.text == ("two" if text else "")


def test_a_child_without_an_output_file_has_a_failure(tmp_path: Path) -> None:
    """One that was never started left no file."""
    failure = read_failure(finished(tmp_path / "none.log", "not_started", None))
    assert failure is not None and (failure.text, failure.line) == ("", 0)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=12))
def test_a_text_and_an_output_file_give_the_same_facts(lines: list[str]) -> None:
    """A quoted error and the same words in a log have one root, on the line that an editor shows."""
    text = "\n".join([*lines, INDEX])
    with TemporaryDirectory() as folder:
        output = Path(folder, "output.log")
        output.write_text(text, encoding="utf-8", newline="")
        found = [anyio.run(read_text, text), read_output(output)]
    line = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    assert [facts.root.line if facts.root else 0 for facts in found] == [line, line]


def test_a_large_output_is_read_once_and_the_same(tmp_path: Path) -> None:
    """`look_ahead` reads it in a process of its own, and `read_output` takes that; a change is seen."""
    output = tmp_path / "output.log"
    noise = "a line of progress that says nothing\n" * (SMALL_BYTES // 36 + 1)
    output.write_text(f"{noise}{INDEX}\n")
    anyio.run(look_ahead, output)
    facts = read_output(output)
    assert facts is read_output(output)
    assert facts.root is not None and facts.root.line == noise.count("\n") + 1
    output.write_text("all is well\n")
    assert read_output(output).root is None


def test_a_log_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """No such file, and a directory."""
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(ProblemError):
            anyio.run(read_users_log, path)
