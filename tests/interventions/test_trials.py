"""Interventions on real packages: unchanged, changed, and unchanged again; replays, flaky failures."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.interventions import input as inputs
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options, Seen
from mcp_server.diagnosis.interventions.run import TriedCall, chance_of, effect_of, side_effects_of
from mcp_server.diagnosis.try_fix import with_variables
from mcp_server.worker import events
from mcp_server.worker.protocol import Where
from mcp_server.worker.report import TensorFacts
from tests.conftest import Zoo
from tests.interventions.support import offered, the_call, tried
from tests.worker.support import saved
from tests.zoo.names import nightly, thorough

IDS = inputs.Leaf(0, "args[0]")


@pytest.mark.slow
def test_nan_goes_with_its_element_and_stays_with_another(zoo: Zoo, tmp_path: Path) -> None:
    """Rows without NaN stay the same within tolerance."""
    package = zoo("logarithm")
    scale = inputs.Leaf(1, "args[1]")
    call = the_call(package, package.with_name("logarithm.bad-nan.pt"))
    fix = inputs.replace_where(scale, Where(below=0), 1.0)
    other = inputs.replace_element(scale, (3, 3), 1.0)
    right, wrong = tried(tmp_path, call, [fix, other])
    assert offered(right) and right.before.failure == right.again.failure == "nonfinite"
    assert right.after.facts is not None and right.after.facts.compared is not None
    assert right.after.facts.compared.cured == 8 and right.after.facts.compared.left == 0
    assert wrong.effect is Effect.SAME and wrong.side_effects.rows == (3,)


@pytest.mark.slow
def test_a_change_that_does_not_fit_says_so_and_others_are_tried(zoo: Zoo, tmp_path: Path) -> None:
    """A missing element, another environment and an invalid package are tried with one that works.

    Another package is loaded only for its own call: the calls around it stay the same.
    """
    package, broken = zoo("ranker"), tmp_path / "broken.pt2"
    broken.write_bytes(b"no zip")
    call = the_call(package, package.with_name("ranker.bad-index.pt"))
    missing = inputs.replace_element(IDS, (99, 0), 1)
    threads, fix = with_variables({"OMP_NUM_THREADS": "1"}), inputs.keep_in_range(IDS, 0, 31)
    other = Intervention("b", Kind.KERNEL, "", options=Options(package=broken))
    nothing, same, unread, gone = tried(tmp_path, call, [missing, threads, other, fix])
    assert nothing.effect is Effect.NOT_APPLICABLE and "no such element" in nothing.reason
    assert unread.effect is Effect.NOT_APPLICABLE and "not reached" in unread.reason
    assert unread.before.failure == unread.again.failure == "exception"
    assert same.effect is Effect.SAME and gone.effect is Effect.GONE


# Fails for NaN in every second call that has any. Hangs if two rows have NaN.
OPERATOR = """
import itertools, os, time, torch
turn = itertools.count()

@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    rows = int(x.isnan().any(1).sum())
    if rows > 1:
        time.sleep(600)
    if rows and next(turn) % 3:
        raise ValueError("not this time")
    n = x.shape[0] // 2
    y = x.nan_to_num() if rows else x
    return y[: n * 2].reshape(n, 2, *x.shape[1:]).sum(1).contiguous()
"""


@pytest.fixture
def bad(zoo: Zoo, tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """The package, inputs with one row of NaN, and the operator."""
    operators = tmp_path / "operators.py"
    operators.write_text(OPERATOR)
    package = zoo("plugin")
    values = [leaf.clone() for leaf in torch.load(package.with_name("plugin.inputs.pt"), weights_only=True)]
    values[0][3] = float("nan")
    return package, saved(tmp_path, "bad.pt", values), [str(operators)]


@thorough
@pytest.mark.parametrize("damages", [False, True])
def test_a_flaky_failure_is_made_as_often_as_chance_needs(
    bad: tuple[Path, Path, list[str]], tmp_path: Path, damages: bool
) -> None:
    """Without the cause, enough calls pass that the probability of chance is below 1 %.

    A failure may damage its process: then all later calls in it fail, also those without the cause.
    """
    package, given, imports = bad
    if damages:
        text = OPERATOR.replace("if rows and", "if damaged or rows and").replace(
            "raise V", "damaged.append(1); raise V"
        )
        Path(imports[0]).write_text(f"damaged = []\n{text}")
    call = the_call(package, given, extra_imports=imports)
    first = inputs.Leaf(0, "args[0]")
    changes = [inputs.replace_where(first, Where(nan=True), 0.5), inputs.whole(first, "contiguous")]
    right, wrong = tried(tmp_path, call, changes)
    assert right.effect is Effect.GONE and right.proves and 0 < right.chance < 0.01
    assert 0 < right.failed < right.calls and f"failed {right.failed} of {right.calls} times" in right.reason
    assert wrong.effect is Effect.SAME and not wrong.proves


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "ended"),
    [("time.sleep(600)", "timeout"), *nightly(("os.abort()", "died"))],
    ids=["hangs", "dies"],
)
def test_a_change_that_hangs_or_kills_the_process_is_a_result_and_the_rest_goes_on(
    bad: tuple[Path, Path, list[str]], tmp_path: Path, end: str, ended: str
) -> None:
    """An operator raises for one row of NaN, and hangs or dies for two. The rest gets another process."""
    package, given, imports = bad
    always = OPERATOR.replace("rows and next(turn) % 3", "rows").replace("time.sleep(600)", end)
    Path(imports[0]).write_text(always)
    call = the_call(package, given, extra_imports=imports, timeout_s=12)
    first = inputs.Leaf(0, "args[0]")
    worse = inputs.replace_element(first, (0, 0), "nan")
    good = inputs.replace_where(first, Where(nan=True), 0.5)
    other, gone = tried(tmp_path, call, [worse, good])
    assert (other.before.ended, other.after.ended) == ("raised", ended)
    assert other.effect is Effect.CHANGED and gone.effect is Effect.GONE
    assert ended != "died" or other.after.signal == "SIGABRT"


def captured(package: Path, given: Path, *before: Mapping[str, object]) -> TriedCall:
    """The request of a replay: the steps before, then the call."""
    steps = [*before, {"do": "call", "file": str(given), "threads": 1}]
    return TriedCall({"package": package, "steps": steps})


def constants_of(directory: Path, constants: Mapping[str, torch.Tensor]) -> dict[str, object]:
    """The step that updates these constants."""
    file = str(saved(directory, "constants.pt", constants))
    return {"do": "constants", "file": file, "how": "load_constants", "arguments": [False, False]}


@pytest.mark.slow
def test_an_update_with_nan_is_the_cause_and_the_compiled_values_remove_it(zoo: Zoo, tmp_path: Path) -> None:
    """A new load omits both constants of the update, then only the one that is enough, with its element."""
    package = zoo("logarithm")
    bias = torch.zeros(16).index_fill(0, torch.tensor([7]), float("nan"))
    update = constants_of(tmp_path, {"inp.bias": bias, "inp.weight": torch.zeros(16, 16)})
    call = captured(package, package.with_name("logarithm.inputs.pt"), update)
    every = inputs.compiled_values(["inp.bias", "inp.weight"])
    right, wrong = tried(tmp_path, call, [every, inputs.constant_own_memory(["inp.bias"])])
    assert right.after.facts is not None
    assert (right.after.facts.constants, right.after.facts.bad_places) == (("inp.bias",), ((7,),))
    assert right.before.failure == "nonfinite" and right.effect is Effect.GONE and right.proves
    assert wrong.effect is Effect.SAME


@pytest.mark.slow
def test_an_update_that_ends_the_process_is_tried_by_itself(zoo: Zoo, tmp_path: Path) -> None:
    """Only the update: 32 MB are copied over a constant of 64 bytes, unless it has its own memory."""
    update = constants_of(tmp_path, {"inp.bias": torch.zeros(8 << 20)[:16]})
    call = TriedCall({"package": zoo("logarithm"), "steps": [update]})
    (trial,) = tried(tmp_path, call, [inputs.constant_own_memory(["inp.bias"])])
    assert trial.before.ended == trial.again.ended == "died"
    assert trial.after.failure == "none" and trial.proves


# The effect of an intervention, from three calls.


def good(nan: int = 0, found: events.Comparison | None = None) -> Seen:
    output = TensorFacts(nan=nan, inf=0)
    return Seen("ok", events.CallFacts("x", "k", "ok", outputs=(output,), compared=found))


def raised(text: str, family: str = "", during: str = "calling") -> Seen:
    facts = events.CallFacts("x", "k", "raised", during=during)
    return Seen("raised", facts, text=text, family=family, essence=text)


def compared(cured: int, left: int, new: int, innocent: int = 0) -> events.Comparison:
    change = events.OutputChange(0, 4, changed=cured + innocent, innocent=innocent)
    return events.Comparison("before", (change,), cured, left, new)


BOUND = raised("index out of bounds: 0 <= tmp2 < 32L", "cpu_index_assert")


@pytest.mark.parametrize(
    ("before", "after", "effect"),
    [
        (BOUND, good(), Effect.GONE),
        (BOUND, BOUND, Effect.SAME),
        (BOUND, replace(BOUND, ended="died", signal="SIGABRT"), Effect.SAME),
        (BOUND, raised("index out of bounds: 0 <= tmp9 < 8L", "cpu_index_assert"), Effect.CHANGED),
        (BOUND, Seen("died", signal="SIGSEGV"), Effect.CHANGED),
        (Seen("died", signal="SIGABRT", essence="index"), Seen("died", signal="SIGABRT"), Effect.SAME),
        (Seen("died", signal="SIGABRT"), Seen("died", signal="SIGSEGV"), Effect.CHANGED),
        (BOUND, good(nan=1), Effect.CHANGED),
        (BOUND, Seen("refused", text="no such element"), Effect.NOT_APPLICABLE),
        (BOUND, raised("no such file", during="loading"), Effect.NOT_APPLICABLE),
        (good(), good(), Effect.NOT_APPLICABLE),
        (good(nan=4), good(nan=1, found=compared(3, 1, 0)), Effect.CHANGED),
        (good(nan=4), good(nan=4, found=compared(0, 4, 0)), Effect.SAME),
        (good(nan=4), good(nan=4, found=compared(1, 3, 1)), Effect.SAME),
        (good(nan=4), good(found=compared(4, 0, 0)), Effect.GONE),
        (Seen("timeout"), Seen("timeout"), Effect.SAME),
        (Seen("timeout"), good(), Effect.GONE),
    ],
)
def test_the_effect_is_read_from_how_the_calls_ended(before: Seen, after: Seen, effect: Effect) -> None:
    """The effect is gone, changed, same, or not applicable."""
    assert effect_of(before, after)[0] is effect


def test_a_call_that_names_another_element_each_time_has_not_changed() -> None:
    """Threads race: other numbers in the text are an effect only if the unchanged call repeats its own."""
    first, second = (raised(f"index {n} is out of bounds", "index") for n in (3, 7))
    assert effect_of(first, second, first)[0] is Effect.CHANGED
    assert effect_of(first, raised("index 9 is out of bounds", "index"), second)[0] is Effect.SAME
    assert effect_of(first, raised("no such file", "file"), second)[0] is Effect.CHANGED


def test_elements_that_were_not_at_fault_are_side_effects() -> None:
    """Side effects are unknown without a comparison, and if repeated calls differ by themselves."""
    steady = good(nan=1, found=compared(0, 1, 0))
    assert not side_effects_of(good(found=compared(1, 0, 0)), steady)
    assert side_effects_of(good(found=compared(1, 0, 0, innocent=2)), steady).elements == 2
    assert not side_effects_of(good(), steady).known
    random = good(nan=1, found=compared(0, 1, 0, innocent=3))
    assert not side_effects_of(good(found=compared(1, 0, 0, innocent=2)), random).known


def test_the_chance_is_that_of_fishers_exact_test() -> None:
    """5 failures in 10 calls, none in 10 others: 252 of 15504 ways. Without a failure, it is 1."""
    assert chance_of(10, 5, 10) == pytest.approx(252 / 15504)
    assert chance_of(10, 5, 12) < 0.01 < chance_of(10, 5, 11)
    assert chance_of(10, 0, 90) == 1.0
