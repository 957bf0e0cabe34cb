"""Reading logs: which error is the root, where it points, and facts on lines that are no errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_server.logs.details import DETAILS, MAX_LOCATIONS, look
from mcp_server.logs.families import FAMILIES, Rank
from mcp_server.logs.log import MAX_ERRORS, read_log, read_log_file
from mcp_server.logs.text import read_line
from tests.logs.support import digest, gold, lines_of, read

IMA = "CUDA error: an illegal memory access was encountered"
ASSERT = (
    "/c/ab.py:40: unknown: block: [{},0,0], thread: [2,0,0] "
    "Assertion `index out of bounds: 0 <= tmp4 < ks0` failed."
)
RUN = (
    "RuntimeError: run_func_( container_handle_, input_handles.data() ) API call failed at "
    "/pytorch/torch/csrc/inductor/aoti_runner/model_container_runner.cpp, line 144"
)
LOGS = json.loads(Path(__file__).with_name("logs.json").read_text(encoding="utf-8"))
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/app/serve.py", line 12, in <module>',
    "    main()",
    '  File "/app/serve.py", line 9, in main',
    "    y = runner(x)",
    "        ^^^^^^^^^",
    '  File "/venv/lib/python3.12/site-packages/torch/export/pt2_archive/_package.py", line 733, in __call__',
    "    flat_outputs = self.loader.boxed_run(flat_inputs)",
)


@pytest.mark.parametrize("name", sorted(gold()))
def test_recording(name: str) -> None:
    """A recorded log is read as the gold file says."""
    assert digest(read_log(lines_of(name))) == gold()[name]


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case["root"])
def test_root_is_the_cause(case: dict[str, Any]) -> None:
    """Of several errors the one that explains the others is the root; they narrow its candidates."""
    root = read(*case["lines"]).root
    assert root is not None and root.family.id == case["root"]
    assert list(root.candidates) == case.get("candidates", list(root.candidates))


def test_teardown_alone_is_no_root() -> None:
    """What is printed while CUDA is torn down is never the root."""
    facts = read(
        "Failed to destroy CUDA event in AOTInductor model: an illegal memory access was encountered"
    )
    assert facts.root is None and facts.errors[0].rank == Rank.NOISE


def test_teardown_tells_what_the_device_met() -> None:
    """A cuBLAS status takes its candidates from the status that the teardown prints."""
    facts = read(
        "RuntimeError: CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasCreate(handle)`",
        "Failed to destroy CUDA event in AOTInductor model: device-side assert triggered",
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  CUDA error: device-side assert triggered",
    )
    assert facts.root is not None
    assert facts.root.family.id == "cublas_status"
    assert facts.root.candidates[0] == "index_out_of_bounds"


def test_first_of_a_chain() -> None:
    """Of chained exceptions without a family, the one that the others follow from is the root."""
    facts = read(
        *TRACEBACK[:3],
        "KeyError: 'price'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        *TRACEBACK[:3],
        "ValueError: bad request",
    )
    assert [item.type for item in facts.exceptions] == ["KeyError", "ValueError"]
    assert facts.root is not None and facts.root.text == "KeyError: 'price'"


def test_survived_errors_do_not_outweigh_the_last() -> None:
    """Of equal errors the one of the traceback that ended the program is the root."""
    facts = read(
        "ERROR handled: RuntimeError: Constant not found: a",
        *TRACEBACK,
        "RuntimeError: Could not find schema for mylib::f",
    )
    assert facts.root is not None and facts.root.family.id == "op_not_registered"


def test_frames_are_the_users() -> None:
    """Only the user's frames are given, with their code."""
    facts = read(*TRACEBACK, "RuntimeError: expected inputs vector size to be 2, but got 1")
    assert [(frame.line, frame.code) for frame in facts.frames] == [(12, "main()"), (9, "y = runner(x)")]


def test_code_in_tracebacks_is_no_error() -> None:
    """A source line that quotes an error text is not an error."""
    facts = read(
        "Traceback (most recent call last):",
        '  File "/app/a.py", line 3, in f',
        '    raise KeyError("Constant not found: x")',
        "KeyError: 'gone'",
    )
    assert [error.family.id for error in facts.errors] == ["own_check"]


@pytest.mark.parametrize(
    ("code", "error", "family"),
    [
        ('raise RuntimeError(f"{a} labels")', "RuntimeError: 32 labels for 29 images", "own_check"),
        ("assert ok, 'late'", "AssertionError: late", "own_check"),
        ("rows = table[key]", "KeyError: 'a'", "script_exception"),
    ],
)
def test_script_errors(code: str, error: str, family: str) -> None:
    """A check of the program is told from a mistake in it."""
    facts = read(
        "Traceback (most recent call last):", '  File "/app/a.py", line 3, in <module>', f"    {code}", error
    )
    assert facts.root is not None and facts.root.family.id == family


def test_not_a_number_in_a_comparison() -> None:
    """A comparison that fails on NaN points at the numbers first."""
    facts = read(
        "AssertionError: Tensor-likes are not close!",
        "",
        "Mismatched elements: 1 / 40 (2.5%)",
        "Greatest absolute difference: nan at index (3, 1) (up to 0.02 allowed)",
    )
    assert facts.root is not None and facts.root.candidates[0] == "nan_or_inf"


@pytest.mark.parametrize(
    ("operator", "candidates"),
    [("input", ("input_mismatch", "shape_out_of_range")), ("torch.ops.mylib.f.default", ("custom_op",))],
)
def test_size_assert_blames_input_or_operator(operator: str, candidates: tuple[str, ...]) -> None:
    """The same size assertion is the caller's fault for an input and the fake function's for an operator."""
    facts = read("RuntimeError: expected size 5==10, stride 3==3 at dim=0", f"Error in op: {operator}")
    assert facts.root is not None and facts.root.candidates == candidates


def test_crash_in_load_constants() -> None:
    """The stack that faulthandler prints puts the stage's category first."""
    facts = read(
        "Fatal Python error: Segmentation fault",
        "",
        "Current thread 0x00007f2b8a7fd740 (most recent call first):",
        '  File "/venv/lib/python3.12/site-packages/torch/_package.py", line 756 in load_constants',
        '  File "/app/refresh.py", line 40 in <module>',
        "",
    )
    assert facts.root is not None and facts.root.candidates[0] == "constants"
    assert [frame.file for frame in facts.frames] == ["/app/refresh.py"]


def test_ranks_are_told_apart() -> None:
    """Interleaved processes keep their own tracebacks."""
    lines = []
    for text in (*TRACEBACK, "RuntimeError: Constant not found: a"):
        lines += [f"[rank0]: {text}", f"[rank1]: {text.replace('serve', 'other')}"]
    facts = read(*lines)
    assert set(facts.processes) == {"0", "1"}
    assert {exception.user_frames[0].file for exception in facts.exceptions} == {
        "/app/serve.py",
        "/app/other.py",
    }


def test_repeated_asserts_are_counted() -> None:
    """One line per thread is one error with a count."""
    facts = read(*(ASSERT.format(block) for block in range(1000)))
    assert facts.root is not None
    assert (facts.root.count, len(facts.errors)) == (1000, 1)


def test_open_launch_is_named() -> None:
    """The launch announced last without an end is given, with what finished before."""
    facts = read("[ before_launch: a_0 ]", "[ after_launch: a_0 ]", "[ before_launch: b_1 ]")
    assert facts.last_launch is not None
    assert (facts.last_launch.kernel, facts.last_launch.finished) == ("b_1", 1)


def test_truncated_traceback() -> None:
    """A traceback without its last line is reported as cut off."""
    assert "line 1" in read(*TRACEBACK).truncated
    assert read(*TRACEBACK, RUN).truncated == ""


@pytest.mark.parametrize(
    "lines",
    [
        TRACEBACK[1:],
        [f"      {text}" for text in TRACEBACK],
        [f"(Worker pid=913) ERROR 03-31 17:21:15 [executor.py:932] {text}" for text in TRACEBACK],
        [f"Oct 04 15:02:41 llm serve[394]: {text}" for text in TRACEBACK],
    ],
    ids=["without its head", "indented", "of a server", "of a journal"],
)
def test_frames_of_a_pasted_traceback(lines: list[str]) -> None:
    """A traceback is read without its first line, indented, or behind the prefixes of a server."""
    before = lines[-1].partition("flat_outputs")[0].removesuffix("    ")
    facts = read(*lines, f"{before}RuntimeError: expected inputs vector size to be 2, but got 1")
    assert [(frame.line, frame.code) for frame in facts.frames] == [(12, "main()"), (9, "y = runner(x)")]
    assert facts.truncated == ""


def test_frames_without_a_head_need_the_name_of_an_exception() -> None:
    """A stack that was printed for another reason makes no exception of the next word."""
    facts = read("Created at:", TRACEBACK[1], TRACEBACK[2], "Done", *["step"] * 9, "Ready: yes")
    assert facts.exceptions == () and facts.truncated == ""


def test_a_passed_over_exception_ended_nothing() -> None:
    """What Python says of an exception in a callback at the exit did not end the program."""
    head = "Exception ignored in atexit callback: <function shutdown_compile_workers at 0x7f88>"
    facts = read(head, *TRACEBACK, "subprocess.TimeoutExpired: Command '['a']' timed out after 300 seconds")
    assert facts.root is not None and not facts.fatal


def test_unknown_text_keeps_telling_lines() -> None:
    """Without a known error the most telling lines are kept for a person."""
    facts = read("step 1", "frobnicator panic: widget 7 is sad", "step 2")
    assert facts.root is None
    assert facts.best_lines == ((2, "frobnicator panic: widget 7 is sad"),)


def test_late_cause_finds_room() -> None:
    """A cause is kept although the list of errors is full of lesser ones."""
    lines = [f"ValueError: number {number} is odd" for number in range(MAX_ERRORS * 2)]
    facts = read(*lines, ASSERT.format(1))
    assert facts.root is not None and facts.root.family.id == "device_assert_index"
    assert len(facts.errors) == MAX_ERRORS and facts.dropped_errors == MAX_ERRORS + 1


def test_file_with_one_endless_line(tmp_path: Path) -> None:
    """A file of one line of 2 MB is read in pieces."""
    path = tmp_path / "x.log"
    path.write_text("x" * 2_000_000 + "\n" + IMA + "\n", encoding="utf-8")
    root = read_log_file(path).root
    assert root is not None and root.family.id == "cuda_illegal_access"


PIECES = st.one_of(
    st.text(max_size=120),
    st.sampled_from([family.example for family in FAMILIES]),
    st.sampled_from(
        [*TRACEBACK, RUN, ASSERT, "[ before_launch: k ]", "========= Invalid __global__ read of size 4"]
    ),
    st.tuples(
        st.sampled_from(["[rank1]: ", "\x1b[31m", "3: ", "E1120 19:29:33.789000 417 a.py:8] "]),
        st.text(max_size=40),
    ).map("".join),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=60))
def test_never_raises_and_stays_bounded(lines: list[str]) -> None:
    """Any mixture of texts gives facts of bounded size, with a root that is one of the errors."""
    facts = read_log(lines)
    assert len(facts.errors) <= MAX_ERRORS
    assert all(len(error.text) <= 500 and 1 <= error.line <= len(lines) for error in facts.errors)
    assert facts.root is None or facts.root.line in {error.line for error in facts.errors}


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.sampled_from([family.example for family in FAMILIES]), min_size=1, max_size=10),
    st.integers(0, 300),
)
def test_root_does_not_depend_on_noise(lines: list[str], noise: int) -> None:
    """Ordinary output before the errors does not change which one is the root."""
    before = read_log(lines).root
    after = read_log([*(f"step {number} ok" for number in range(noise)), *lines]).root
    assert (before and before.family.id) == (after and after.family.id)


def test_memory_is_bounded_on_varied_lines() -> None:
    """A hundred thousand different lines leave no more than the bounded lists."""

    def lines() -> Iterator[str]:
        for number in range(100_000):
            word = "".join(chr(97 + (number // 26**place) % 26) for place in range(5))
            yield f"{word} error {word[::-1]}"

    facts = read_log(lines())
    assert facts.lines == 100_000
    assert len(facts.best_lines) == 20


ERROR = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x17 and 16x32)"


@pytest.mark.parametrize("pattern", DETAILS, ids=lambda pattern: pattern.pattern[:40])
@settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_prefilter_announces_every_detail(pattern: re.Pattern[str], data: st.DataObject) -> None:
    """A line in which a pattern is found is one that the prefilter lets this pattern look at."""
    text = data.draw(st.from_regex(pattern, alphabet=st.characters(codec="ascii", exclude_categories=["Cc"])))
    line = read_line(text, 1)
    if pattern.search(line.text):
        assert pattern in look([line])[0].details


def test_lines_of_a_batch_are_looked_at_each_for_itself() -> None:
    """Lines that differ in their numbers share what is looked for; other lines do not."""
    first, second, other = (
        read_line(text, 1) for text in ("a.kernel.cpp:30: error", "a.kernel.cpp:31: error", "nothing")
    )
    found = look([first, other, second])
    assert found[0] == found[2] != found[1] and found[:1] == look([first])


def test_the_first_version_of_each_part_counts() -> None:
    """Versions as reports print them; a later, other one changes nothing."""
    facts = read("PyTorch version: 2.11.0+cu130", "triton==3.6.0", "torch 2.8.0", "CUDA Version: 13.0")
    assert facts.versions == {"torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0"}


def test_locations_are_bounded_and_each_is_kept_once() -> None:
    """Lines of generated C++ in the order of the log."""
    lines = [f"/c/ab.wrapper.cpp:{number}" for number in (7, 3, 7, *range(10, 60))]
    places = read(*lines).locations
    assert [place.rpartition(":")[2] for place in places[:3]] == ["7", "3", "10"]
    assert len(places) == MAX_LOCATIONS == len(set(places))


def test_a_detail_belongs_to_the_error_before_it() -> None:
    """A size of the difference is added to an error shortly before it, and never replaces its own fields."""
    root = read("AssertionError: Tensor-likes are not close!", "Mismatched elements: 3 / 8").root
    assert root is not None and (root.fields["mismatched"], root.fields["elements"]) == ("3", "8")
    far = read(ERROR, *["x"] * 60, "Error in op: mm").root
    near = read(ERROR, "Error in op: mm").root
    assert far is not None and near is not None
    assert ("op" in far.fields, near.fields["op"]) == (False, "mm")
