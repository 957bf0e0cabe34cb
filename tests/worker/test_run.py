"""The worker on packages: its events for good calls, failures, deaths and repeats."""

import sys
import zipfile
from collections.abc import Callable, Sequence
from math import log2
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mcp_server.errors import ProblemError
from mcp_server.worker import events
from mcp_server.worker.reduction import Minimiser, minimise_while
from mcp_server.worker.report import Refused
from tests.conftest import Zoo
from tests.worker.support import here, saved, work

DIES = """
import os, torch
from torch.library import custom_op

@custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    os.abort()
"""


@pytest.mark.slow
def test_a_good_call_reports_each_phase_and_the_outputs_of_eager_each_time(zoo: Zoo, tmp_path: Path) -> None:
    """Phases come in order, and calls with equal inputs give the exported program's outputs."""
    package = zoo("ranker")
    inputs = package.with_name("ranker.inputs.pt")
    program = torch.export.load(package.with_name("ranker.exported.pt2"))
    expected = saved(tmp_path, "expected.pt", program.module()(*torch.load(inputs, weights_only=True)))
    done = work(tmp_path, "run", {"package": package, "inputs": inputs, "calls": 2, "expect": expected})
    phases = ["importing_torch", "loading", "loaded", "finished"]
    assert done.finished.ok and [e.event for e in done.events if e.event in phases] == phases
    first, second = (event.outputs[0] for event in done.all(events.Called))
    assert first.shape == [8, 6, 4] and first.dtype == "float32"
    assert first.checksum == second.checksum
    assert first.nan == first.inf == 0 and first.min is not None and 0 < first.min < 1
    compared = done.last(events.ComparedExpected)
    assert compared is not None and compared.equal and compared.counts == [1, 1]


@pytest.mark.slow
def test_an_abort_leaves_what_was_known(zoo: Zoo, tmp_path: Path) -> None:
    """A process that dies inside the call has reported its inputs and the call's start."""
    (tmp_path / "dying_ops.py").write_text(DIES)
    package = zoo("plugin")
    inputs = package.with_name("plugin.inputs.pt")
    done = work(tmp_path, "run", {"package": package, "inputs": inputs, "extra_imports": ["dying_ops"]})
    assert (done.finished.signal, done.phase) == ("SIGABRT", "calling")
    given = done.last(events.Given)
    assert given is not None and given.leaves[0].shape == [8, 8]


@pytest.mark.slow
def test_arguments_in_a_list_or_by_name_reach_the_right_inputs(zoo: Zoo, tmp_path: Path) -> None:
    """{"args": ...} is unpacked, and the file of a list is the arguments. NaN is counted."""
    package = zoo("logarithm")
    args = torch.load(package.with_name("logarithm.bad-nan.pt"), weights_only=True)
    files = [saved(tmp_path, "list.pt", args), saved(tmp_path, "args.pt", {"args": args})]
    done = [work(tmp_path, "run", {"package": package, "inputs": file}) for file in files]
    (first,), (second,) = (each.all(events.Called) for each in done)
    assert first.outputs[0].checksum == second.outputs[0].checksum and first.outputs[0].nan == 8


OPERATOR = """
import torch
from torch.library import custom_op

@custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    y = torch.{made}(x[: x.shape[0] // 2])
    y[1:] = x[1 : x.shape[0] // 2]
    return y
"""


@pytest.mark.slow
@pytest.mark.parametrize(("made", "same"), [("zeros_like", True), ("empty_like", False)])
def test_only_unwritten_memory_changes_the_result(zoo: Zoo, tmp_path: Path, made: str, same: bool) -> None:
    """A fully written result is the same in all calls. Otherwise the call with other fill bytes differs."""
    operators = tmp_path / "operators.py"
    operators.write_text(OPERATOR.format(made=made))
    package = zoo("plugin")
    inputs = package.with_name("plugin.inputs.pt")
    request = {"package": package, "inputs": inputs, "extra_imports": [str(operators)]}
    done = work(tmp_path, "repeat", request)
    told = {event.run: event.equal for event in done.all(events.Repeated)}
    assert told == {"second": True, "filled": same}


# Requests and interpreters that the worker rejects.


class NotTensors:
    """Can only be saved by pickle."""


def refusal(directory: Path, operation: str, request: dict[str, object], **options: object) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        work(directory, operation, request, **options)
    return caught.value


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.pt", "no such inputs file"),
        ("text.pt", "not written by torch.save"),
        ("object.pt", "pickle"),
        ("number.pt", "no tensors"),
        ("empty.pt", "is empty"),
        ("cut.pt", "cannot be read"),
        (".", "Is a directory"),
    ],
)
def test_bad_inputs_files(tmp_path: Path, name: str, words: str) -> None:
    """Missing, cut, foreign and pickled files, and files without tensors, are rejected."""
    (tmp_path / "text.pt").write_text("these are not tensors")
    (tmp_path / "empty.pt").write_bytes(b"")
    saved(tmp_path, "object.pt", [NotTensors()])
    whole = saved(tmp_path, "number.pt", 3)
    (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:100])
    with pytest.raises(Refused) as caught:
        here(tmp_path, "describe_inputs", {"inputs": tmp_path / name})
    assert words in caught.value.what and caught.value.value == str(tmp_path / name)


@pytest.mark.slow
def test_a_package_is_no_exported_program_and_the_other_way_round(zoo: Zoo, tmp_path: Path) -> None:
    """A package passed as an exported program is recognized, and so is an archive that is neither."""
    with pytest.raises(Refused, match="an AOTInductor package"):
        here(tmp_path, "compile", {"exported": zoo("ranker"), "package_path": tmp_path / "m.pt2"})
    other = tmp_path / "other.pt2"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme", "nothing")
    with pytest.raises(Refused, match="another kind of archive"):
        here(tmp_path, "compile", {"exported": other, "package_path": tmp_path / "m.pt2"})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"shape": [8, 6], "dtype": "int65"}, "unknown dtype"),
        ({"shape": [8, 6], "dtype": "int64", "low": 5, "high": 1}, "low is greater"),
        ({"shape": [8, 6], "stride": [1]}, "stride does not fit"),
        ({"shape": [8, 6], "device": "cuda:99"}, "cannot put an input there"),
    ],
)
def test_bad_specs(tmp_path: Path, spec: dict[str, object], words: str) -> None:
    """Specs with an unknown dtype, a bad range or stride, or a missing device are rejected."""
    with pytest.raises(Refused, match=words):
        here(tmp_path, "describe_inputs", {"inputs": [spec]})


def test_interpreters_that_cannot_work(tmp_path: Path) -> None:
    """A missing file, a file that is not executable or no Python, and one without torch are rejected."""
    plain = tmp_path / "plain"
    plain.write_text("")
    for python, words in (
        (tmp_path / "nothing", "no such interpreter"),
        (plain, "not an executable"),
        (Path("/bin/ls"), "cannot run the worker"),
    ):
        problem = refusal(tmp_path, "probe", {}, python=python)
        assert words in problem.what and problem.value == str(python)
        assert "AOTI_DEBUG_PYTHON" in problem.next_call
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    problem = refusal(tmp_path, "probe", {}, env={"PYTHONPATH": str(tmp_path)})
    assert "torch cannot be imported (no torch here)" in problem.what and problem.value == sys.executable


@pytest.mark.slow
def test_files_of_the_user_are_not_shadowed(tmp_path: Path) -> None:
    """A user's module with the name of a worker's file is the one imported."""
    code = "import sys\nprint('mine', __file__)\nassert 'inputs' not in sys.modules\n"
    (tmp_path / "report.py").write_text(code)
    inputs = saved(tmp_path, "x.pt", torch.zeros(2))
    (tmp_path / "ops.py").write_text("import report\n")
    package = tmp_path / "none.pt2"
    problem = refusal(tmp_path, "run", {"package": package, "inputs": inputs, "extra_imports": ["ops"]})
    assert (problem.what, problem.value) == ("no such package", str(package))
    (log,) = tmp_path.glob("*/*-run/stdout.log")
    assert log.read_text().startswith(f"mine {tmp_path}")


# Delta debugging.


def minimised(size: int, first_failing: Callable[[Sequence[Sequence[int]]], int | None]) -> tuple[int, ...]:
    search = Minimiser(tuple(range(size)))
    while options := search.candidates():
        search.found(first_failing(options))
    return search.kept


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1), min_size=1, max_size=6))
def test_nothing_can_be_left_out_of_the_result(ways: list[frozenset[int]]) -> None:
    """A failure with several causes is reduced to a set of which every element is needed."""

    def fails(kept: Sequence[int]) -> bool:
        return any(way <= set(kept) for way in ways)

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        return next((n for n, option in enumerate(options) if fails(option)), None)

    left = minimised(12, first_failing)
    assert fails(left) and list(left) == sorted(left)
    assert len(left) == 1 or not any(fails([x for x in left if x != out]) for out in left)


@given(st.integers(2, 2000), st.data())
def test_one_element_is_found_by_halving(size: int, data: st.DataObject) -> None:
    """The one needed element is found in a logarithmic number of rounds."""
    needed, rounds = data.draw(st.integers(0, size - 1)), []

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        rounds.append(options)
        return next((n for n, option in enumerate(options) if needed in option), None)

    assert minimised(size, first_failing) == (needed,)
    assert len(rounds) <= log2(size) + 2


SIZES = st.integers(1, 60)
NEEDS = SIZES.flatmap(lambda size: st.tuples(st.just(size), st.frozensets(st.integers(0, size - 1))))

# A search that is stopped early.


@given(NEEDS, st.integers(0, 30))
def test_a_spent_search_gives_what_still_fails(case: tuple[int, frozenset[int]], allowed: int) -> None:
    """The result always fails. If the search finished, every element of it is needed."""
    size, needed = case
    tried: list[Sequence[int]] = []

    def fails(kept: Sequence[int]) -> bool:
        tried.append(kept)
        return needed <= set(kept)

    left, complete = minimise_while(range(size), fails, lambda: len(tried) >= allowed)
    assert needed <= set(left) and len(tried) <= allowed
    assert not complete or not needed or set(left) == needed
