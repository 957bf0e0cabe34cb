"""Changes of inputs: their text form, and which elements they change."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_server.diagnosis.interventions.input import read_change, spell
from mcp_server.errors import ProblemError
from mcp_server.worker import intervene
from mcp_server.worker.inputs import apply
from mcp_server.worker.protocol import Change, Where
from mcp_server.worker.report import Refused
from tests.conftest import ROOT
from tests.support.command import typed
from tests.worker.support import saved
from tests.zoo.names import few

NAN, INF = float("nan"), float("inf")


def changed(tensor: torch.Tensor, **change: Any) -> torch.Tensor:
    asked: Any = {"change": "elements", "input": 0, **change}
    found: torch.Tensor = apply([tensor], [asked])[0]
    return found


@pytest.mark.parametrize(
    ("choice", "places"),
    [
        ({"flat": [1, 4]}, [1, 4]),
        ({"index": [1, 0]}, [3]),
        ({"rows": [1]}, [3, 4, 5]),
        ({"rows": [2], "dim": 1}, [2, 5]),
        ({"where": {"below": 1, "above": 4}}, [0, 5]),
        ({"where": {"equals": 3}}, [3]),
        ({"stride": 2, "offset": 1}, [1, 3, 5]),
        ({"rows": [0], "where": {"above": 0}}, [1, 2]),
        ({}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_only_the_chosen_elements_change(choice: dict[str, object], places: list[int]) -> None:
    """Elements are chosen by place, row, condition or step, or by several of these."""
    before = torch.arange(6).view(2, 3)
    after = changed(before, value=77, **choice)
    assert (after.view(-1) == 77).nonzero().view(-1).tolist() == places
    assert before.tolist() == [[0, 1, 2], [3, 4, 5]] and after.dtype == before.dtype


NOT_FINITE = torch.tensor([1.0, NAN, -INF])
TABLE = torch.arange(6).view(2, 3)


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        (torch.tensor([[5, -3], [40, 9]]).t(), {"low": 0.0, "high": 31.0}, [[5, 31], [0, 9]]),
        (NOT_FINITE, {"value": 0, "where": {"nan": True}}, [1.0, 0.0, -INF]),
        (NOT_FINITE, {"value": 2, "where": {"equals": "-inf"}}, [1.0, NAN, 2.0]),
        (NOT_FINITE, {"value": 0, "where": {"non_finite": True}}, [1.0, 0.0, 0.0]),
        (TABLE, {"change": "drop_rows", "dim": 1, "rows": [0, 2]}, [[1], [4]]),
        (TABLE, {"change": "pad", "dim": 0, "size": 3, "value": -1}, [[0, 1, 2], [3, 4, 5], [-1, -1, -1]]),
        (TABLE, {"change": "pad", "dim": 1, "size": 2}, [[0, 1], [3, 4]]),
        (TABLE, {"change": "reorder", "order": [1, 0]}, [[0, 3], [1, 4], [2, 5]]),
        (TABLE, {"change": "flip", "dim": 1}, [[2, 1, 0], [5, 4, 3]]),
        (TABLE, {"change": "reread", "dtype": "int32"}, [[0, 0, 1], [0, 2, 0]]),
        (-TABLE, {"change": "sort", "dim": 0}, [[-3, -4, -5], [0, -1, -2]]),
        (TABLE * 2.0, {"change": "divide", "value": 2}, [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]),
    ],
    ids=[
        *("clamp", "nan", "inf", "not finite", "drop rows", "pad", "cut", "order"),
        *("flip", "reread", "sort", "divide"),
    ],
)
def test_what_a_change_makes(before: torch.Tensor, change: dict[str, Any], after: list[Any]) -> None:
    """Integers stay integers if a limit is missing, and a transposed tensor stays transposed."""
    made = changed(before, **change)
    torch.testing.assert_close(made, torch.tensor(after), equal_nan=True, check_stride=False)
    assert made.stride() == before.stride() or made.shape != before.shape


@pytest.mark.parametrize(
    "change",
    [
        {"flat": [6], "value": 0},
        {"index": [0], "value": 0},
        {"rows": [2], "value": 0},
        {"rows": [0], "dim": 2, "value": 0},
        {"where": {"odd": True}, "value": 0},
        {"value": "nan"},
        {"value": "many"},
        {},
    ],
)
def test_what_the_input_does_not_have_is_refused(change: dict[str, object]) -> None:
    """A place, condition or value that does not fit is rejected."""
    with pytest.raises(Refused):
        changed(torch.arange(6).view(2, 3), **change)


NUMBERS = st.one_of(
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["nan", "inf", "-inf"]),
)
PLACES = st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple)
WHERE = st.builds(
    Where,
    below=st.none() | NUMBERS,
    above=st.none() | NUMBERS,
    equals=st.none() | NUMBERS,
    non_finite=st.booleans(),
    nan=st.booleans(),
).filter(lambda where: where != Where())
ELEMENTS = st.builds(
    Change,
    change=st.just("elements"),
    input=st.just(1),
    value=NUMBERS,
    flat=st.none() | PLACES,
    index=st.none() | PLACES,
    rows=st.none() | PLACES,
    dim=st.none() | st.integers(0, 3),
    where=st.none() | WHERE,
)
OTHERS = st.sampled_from(
    [
        Change("cast", 1, dtype="int64"),
        Change("reread", 1, dtype="int32"),
        Change("move", 1, device="cuda:0"),
        Change("contiguous", 1),
        Change("align", 1),
        Change("restride", 1, stride=(8, 1)),
        Change("reorder", 1, order=(1, 0)),
        Change("divide", 1, value=255.0),
        Change("resize", 1, dim=0, size=8),
        Change("pad", 1, dim=1, size=8, value=0),
        Change("drop_rows", 1, dim=0, rows=(3, 4)),
        Change("elements", 1, low=0, high=9, where=Where(below=0, above=9), stride=2, offset=1),
        Change("elements", 1, low=-1.5),
        Change("permute", order=(1, 0, 2)),
        Change("sort", 1, dim=0),
        Change("take", 1, size=2, file="/jobs/inputs-7-3.pt"),
    ]
)


def test_an_input_takes_the_values_of_another_call(tmp_path: Path) -> None:
    """The values are the chosen tensor's of the other call's file, in the input's layout."""
    file = saved(tmp_path, "earlier.pt", (torch.zeros(3), torch.ones(2, 3)))
    found = changed(torch.zeros(3, 2).t(), change="take", size=1, file=str(file))
    assert found.tolist() == [[1.0] * 3] * 2 and found.stride() == (1, 2)
    with pytest.raises(Refused, match="no such tensor"):
        changed(torch.zeros(3), change="take", size=1, file=str(file))


@given(ELEMENTS | OTHERS)
def test_what_is_spelled_is_read_again(change: Change) -> None:
    """Reading the text of any change gives the same change."""
    assert read_change(spell(change, "args[1]"), lambda name: {"args[1]": 1}[name]) == change


NO_CHANGES = [
    *("clamp - -", "clamp 9 0", "squash 3", "set", "set 0 where", "set 0 where < 1 and > 2", "cast"),
    *("contiguous now", "set one", "set 0 every 2 of 3", "set 'open"),
]


@pytest.mark.parametrize("text", ["clamp 0 9", "order a,b", "", *(f"args[1]: {each}" for each in NO_CHANGES)])
def test_what_is_no_change_is_refused_with_the_forms_that_are(text: str) -> None:
    """The error repeats the text and lists the forms."""
    with pytest.raises(ProblemError) as refused:
        read_change(text, lambda _name: 1)
    assert refused.value.value == text and "clamp LOW HIGH" in refused.value.allowed


# The fewest changed elements that make a call pass.


SIZE = 24


class Call:
    """Fails while one of the `needed` elements of its two inputs has its original value, 0."""

    def __init__(self, needed: set[int]) -> None:
        self.needed = needed
        self.calls = 0

    def __call__(self, leaves: list[Any]) -> list[torch.Tensor] | None:
        self.calls += 1
        flat = torch.cat([leaf.reshape(-1) for leaf in leaves])
        return [flat] if all(flat[place] != 0 for place in self.needed) else None


def search(call: Call, size: int = SIZE) -> intervene.Search:
    original = [torch.zeros(2, size // 2), torch.zeros(size)]
    return intervene.Search(original, [torch.ones(2, size // 2), torch.ones(size)], call)


@settings(max_examples=few(60), deadline=None)
@given(st.sets(st.integers(0, 2 * SIZE - 1), min_size=1, max_size=4))
def test_exactly_the_needed_elements_are_found(needed: set[int]) -> None:
    """Both inputs are changed completely. Each needed element is named by input and flat position."""
    call = Call(needed)
    found = search(call)
    places = found.run()
    assert {number * SIZE + place for number, place in places} == needed
    assert found.calls == call.calls <= intervene.MOST_CALLS + 1


# `try-fix` on real packages.

pytestmark = pytest.mark.slow


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return typed(*map(str, words))


def command(package: Path, given: str, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status and result of the command."""
    done = run("try-fix", package, "--inputs", package.with_name(given), *words, "--json")
    assert done.stdout, done.stderr[-2000:]
    return done.returncode, json.loads(done.stdout)


def test_a_clamp_says_which_element_was_enough_and_what_else_it_changes(masked: Path) -> None:
    """One of 30 ids is outside the table. A clamp that also changes others is harmful."""
    status, right = command(masked, "masked.index.pt", "--change", "args[0]: clamp 0 11")
    assert status == 0 and right["outcome"] == "fixed" and right["outputs"][0]["innocent"] == 0
    assert right["enough"]["needed"] == 1
    assert right["enough"]["elements"] == [{"where": "args[0][4, 1]", "before": "12", "after": "11"}]
    assert right["code_after"] == "args[0] = args[0].clamp(min=0, max=11)"
    _, wrong = command(masked, "masked.index.pt", "--change", "args[0]: clamp 0 5")
    assert wrong["outcome"] == "harmful" and wrong["side_effects"]
    assert (wrong["enough"]["needed"], wrong["enough"]["changed"]) == (1, wrong["inputs"][0]["changed"])


def test_the_command_that_is_printed_does_the_same_again(masked: Path) -> None:
    """The command has two words after --replace, and quotes where the shell needs them."""
    kernel = json.loads(run("inspect-package", masked, "--launch", "0", "--json").stdout)
    name = next(fact["kernel"] for fact in kernel["facts"] if fact["kind_of_fact"] == "launch")
    words = ("--kernel", name, "--replace", "-std::numeric_limits<float>::infinity()", "-1e30f")
    _, first = command(masked, "masked.nan.pt", *words)
    again = run(*shlex.split(first["command"])[1:], "--json")
    assert first["outcome"] == json.loads(again.stdout)["outcome"] == "fixed"


def test_a_wrong_dtype_is_cast_and_an_expectation_decides(masked: Path, tmp_path: Path) -> None:
    """The package reads float64 as float32 without an error. Only an expectation and the cast show that."""
    x = torch.load(masked.with_name("masked.inputs.pt"), weights_only=True)
    right = tmp_path / "right.pt"
    sys.path.insert(0, str(ROOT))
    loader = torch._C._aoti.AOTIModelPackageLoader(str(masked), "model", False, 1, -1)
    torch.save(loader.run(x), right)
    cast = ("--change", "args[2]: cast float32", "--expect", str(right))
    _, result = command(masked, "masked.dtype.pt", *cast)
    assert result["outcome"] == "fixed" and "unexpected outputs" in result["before"]
    _, silent = command(masked, "masked.dtype.pt", *cast[:2])
    assert silent["outcome"] in ("no_failure", "fixed")


def test_constants_that_the_package_lacks_are_told(masked: Path, tmp_path: Path) -> None:
    """A call that does not fail by itself tests nothing, and the names that were left out are told."""
    weights = {"table.weight": torch.zeros(12, 16), "extra": torch.zeros(2)}
    file = saved(tmp_path, "weights.pt", weights)
    _, result = command(masked, "masked.inputs.pt", "--constants", str(file))
    assert (result["outcome"], result["unknown_constants"]) == ("no_failure", ["extra"])
    assert "lacks them: extra" in result["summary"] and not result.get("enough_constants")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--change", "args[9]: clamp 0 1"], "no such input"),
        (["--change", "args[0]: set 1 at 9,9"], "no such element"),
        (["--change", "args[0]: squash"], "unknown change"),
        (["--kernel", "cpp_x"], "to edit a kernel, give its name and a replacement"),
        (["--kernel", "cpp_x", "--replace", "a", "b"], "no such kernel"),
        (["--launch", "77"], "no such launch"),
        (["--launch", "0", "--as", "eager"], "exported program"),
        ([], "nothing to change"),
        (["--constants", "{weights}"], "the package has none of these constants"),
    ],
)
def test_an_impossible_change_is_an_error(masked: Path, tmp_path: Path, words: list[str], what: str) -> None:
    """Exit status 2, with what is allowed. No file of the user is changed."""
    weights, before = saved(tmp_path, "weights.pt", {"tabel.weight": torch.zeros(2)}), masked.read_bytes()
    asked = [word.format(weights=weights) for word in words]
    done = run("try-fix", masked, "--inputs", masked.with_name("masked.nan.pt"), *asked)
    assert done.returncode == 2 and what in done.stderr
    assert masked.read_bytes() == before
