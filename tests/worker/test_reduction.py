"""Parts of real programs, cut out and run as the scripts that they become."""

from __future__ import annotations

import os
import re
import runpy
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, export

from mcp_server.runtime.context import read_events, stream_events
from mcp_server.tools.reduce.failing import STATUS, FailureShown, Kind
from mcp_server.worker.encode import BY_OPERATOR
from mcp_server.worker.events import Kept
from mcp_server.worker.interpret import bind
from mcp_server.worker.protocol import FailureClass
from mcp_server.worker.reduction import script, trials
from mcp_server.worker.reduction.minimise import minimise, minimise_while
from mcp_server.worker.reduction.program import (
    Cut,
    Cutter,
    Plan,
    Program,
    Recorded,
    Recorder,
    Uncuttable,
    flatten_program,
    shrinkable,
    stand_ins,
)
from mcp_server.worker.reduction.script import Setting, write
from mcp_server.worker.reduction.trials import (
    Child,
    Ended,
    Limits,
    OutOfTime,
    Trials,
    in_parallel,
    is_gone,
    shown_by,
)
from mcp_server.worker.report import Report

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")
SETTING = Setting('a "title"', {"max_autotune": False}, {"TORCHINDUCTOR_NAN_ASSERTS": "1"}, ())


class Chain(nn.Module):
    """Weights, an operator of several results, one that changes its input, and a literal size."""

    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(12, 8)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(x).view(-1, 8) * self.scale
        values, _ = h.topk(4, -1)
        return values.log().add_(1)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) * 2


@torch.library.custom_op("reduced::centre", mutates_args=())
def centre(x: torch.Tensor, scale: float) -> list[torch.Tensor]:
    return [x - x.mean(), x.sum(0) * scale]


@centre.register_fake
def _(x: torch.Tensor, scale: float) -> list[torch.Tensor]:
    return [torch.empty_like(x), x.new_empty(x.shape[1])]


class Centred(nn.Module):
    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.twice = twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.ops.reduced.centre(x.relu(), 2.0)
        return first + second + (torch.ops.reduced.centre(x[:, :1], 1.0)[0] if self.twice else 0)


Made = Callable[..., tuple[Program, Recorded]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Export and record a model on an input."""

    def make(model: nn.Module, x: torch.Tensor, dynamic: Any = None) -> tuple[Program, Recorded]:
        torch.manual_seed(3)
        program = flatten_program(export(model, (x,), dynamic_shapes=dynamic, strict=False), (x,), {})
        directory = tmp_path_factory.mktemp("values")
        Recorder(program, str(directory), Report(str(directory / "report.jsonl"))).record()
        return program, Recorded(str(directory), frozenset())

    return make


@pytest.fixture(scope="module")
def chain(made: Made) -> tuple[Program, Recorded]:
    return made(Chain(), torch.randn(6, 12), ({0: Dim("n", min=2, max=64)},))


def run(found: Cut, directory: Path, of_seed: frozenset[str] = frozenset()) -> tuple[torch.Tensor, ...]:
    """The outputs of the written script's model on the script's own arguments."""
    write(found, of_seed, SETTING, str(directory))
    names = runpy.run_path(str(directory / "repro.py"))
    weights, arguments = names["values"]()
    outputs: tuple[torch.Tensor, ...] = names["Model"](weights)(*arguments)
    return outputs


def test_every_part_computes_what_the_whole_did(chain: tuple[Program, Recorded], tmp_path: Path) -> None:
    """Each single operator, cut out with recorded inputs, gives its recorded value again."""
    program, recorded = chain
    for number, unit in enumerate(program.units):
        (tmp_path / str(number)).mkdir()
        outputs = run(Cutter(program, Plan((unit,)), recorded).cut(), tmp_path / str(number))
        wanted = unit if (Path(recorded.directory) / f"{unit}.pt").exists() else "getitem"
        torch.testing.assert_close(outputs[0], recorded(wanted), equal_nan=True)


def test_the_whole_keeps_weights_inputs_and_settings(chain: tuple[Program, Recorded], tmp_path: Path) -> None:
    """All nodes take what the program took and give what it gave; open sizes, options and variables too."""
    program, recorded = chain
    found = Cutter(program, Plan(tuple(program.units), dynamic=True), recorded).cut()
    assert set(found.arguments) == {"x"}
    assert set(found.weights) == {"p_inp_weight", "p_inp_bias", "b_scale"}
    torch.testing.assert_close(run(found, tmp_path)[-1], recorded(program.units[-1]), equal_nan=True)
    text = (tmp_path / "repro.py").read_text()
    assert "0: torch.export.Dim.AUTO(min=2, max=64)" in text and "{'max_autotune': False}" in text
    assert "os.environ.setdefault('TORCHINDUCTOR_NAN_ASSERTS', '1')" in text


def test_a_size_is_made_smaller_everywhere(
    chain: tuple[Program, Recorded], made: Made, tmp_path: Path
) -> None:
    """A window cuts inputs, weights and literal sizes of views; rows of a table are indexed, and stay."""
    program, recorded = chain
    units = tuple(program.units[:3])
    whole = run(Cutter(program, Plan(units), recorded).cut(), tmp_path)
    assert shrinkable(program, Cutter(program, Plan(units), recorded).cut()) == [12, 8, 6]
    (small,) = run(Cutter(program, Plan(units, windows=((8, (0, 4)),)), recorded).cut(), tmp_path)
    torch.testing.assert_close(small, whole[0][:, :4])
    program, recorded = made(nn.Sequential(nn.Embedding(32, 6), nn.ReLU()), torch.arange(10))
    assert shrinkable(program, Cutter(program, Plan(tuple(program.units)), recorded).cut()) == [10]


def test_a_branch_keeps_its_subgraphs_and_values_come_from_a_seed(
    chain: tuple[Program, Recorded], made: Made, tmp_path: Path
) -> None:
    """The subgraphs of `cond` become classes of the script; for made values no file is needed."""
    program, recorded = made(Branching(), torch.ones(3))
    outputs = run(Cutter(program, Plan(tuple(program.units)), recorded).cut(), tmp_path)
    torch.testing.assert_close(outputs[0], torch.ones(3).sin() * 2)
    (tmp_path / "inputs.pt").unlink()
    program, recorded = chain
    plan = Plan(tuple(program.units[:1]), seeded=frozenset({"x", "p_inp_weight", "p_inp_bias"}))
    first, second = (run(Cutter(program, plan, recorded).cut(), tmp_path, plan.seeded) for _ in range(2))
    assert not (tmp_path / "inputs.pt").exists() and torch.equal(first[0], second[0])


def test_bad_and_missing_values_are_no_start(chain: tuple[Program, Recorded]) -> None:
    """A part whose inputs are already bad, or were not recorded, is not cut out."""
    program, recorded = chain
    last = program.units[-1]
    before = Recorded(recorded.directory, frozenset({"log"}))
    with pytest.raises(Uncuttable, match="log is already bad"):
        Cutter(program, Plan((last,)), before).cut()
    with pytest.raises(Uncuttable, match="no value"):
        Cutter(program, Plan((last,)), Recorded("/nowhere", frozenset())).cut()


def test_an_operator_is_replaced_by_its_fake_layout(made: Made, tmp_path: Path) -> None:
    """Without the user's code the script defines an operator of this schema and of these results' layouts."""
    program, recorded = made(Centred(), torch.randn(6, 4), ({0: Dim("n", min=2, max=64)},))
    found = Cutter(program, Plan(tuple(program.units)), recorded).cut()
    symbols = bind(program.module, list(program.values.values()))
    found = replace(found, stand_ins=stand_ins(found, symbols))
    shims = {"reduced.centre.default": ["first"], "others.gone.default": ["second"], "aten.sin.default": []}
    setting = replace(SETTING, configs={BY_OPERATOR: shims, "a": 1}, extra_imports=("nowhere.py",))
    write(found, frozenset(), setting, str(tmp_path))
    text = (tmp_path / "repro.py").read_text()
    assert "nowhere" not in text
    configs = "{torch.ops.reduced.centre.default: ['first'], torch.ops.aten.sin.default: []}}"
    assert f"{{'a': 1, '{BY_OPERATOR}': {configs}" in text
    # Under another name: this process has the real one.
    (tmp_path / "repro.py").write_text(re.sub(r"\breduced(::|\.)", r"stood_in\1", text))
    names = runpy.run_path(str(tmp_path / "repro.py"))
    results = torch.ops.stood_in.centre(torch.ones(1), 3.0)
    assert [tuple(result.shape) for result in results] == [(6, 4), (4,)]
    weights, arguments = names["values"]()
    again = export(names["Model"](weights), arguments, strict=False)
    assert "stood_in.centre.default" in str(again.graph)
    # One that gives other layouts in another place is kept: the user's own is needed.
    program, recorded = made(Centred(twice=True), torch.randn(6, 4))
    with pytest.raises(Uncuttable, match="differ between its uses"):
        stand_ins(Cutter(program, Plan(tuple(program.units)), recorded).cut(), {})


# Delta debugging: what a failure needs, which candidates count as failing alike, and their clock.


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1), min_size=1, max_size=6))
def test_nothing_can_be_left_out_of_the_result(ways: list[frozenset[int]]) -> None:
    """A failure that comes about in several ways is cut down to one of which every element is needed."""

    def fails(kept: Sequence[int]) -> bool:
        return any(way <= set(kept) for way in ways)

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        return next((n for n, option in enumerate(options) if fails(option)), None)

    left = minimise(range(12), first_failing)
    assert fails(left) and list(left) == sorted(left)
    assert len(left) == 1 or not any(fails([x for x in left if x != out]) for out in left)


@given(st.integers(2, 2000), st.data())
def test_one_element_is_found_by_halving(size: int, data: st.DataObject) -> None:
    """A failure of one element takes a logarithmic number of rounds."""
    needed, rounds = data.draw(st.integers(0, size - 1)), []

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        rounds.append(options)
        return next((n for n, option in enumerate(options) if needed in option), None)

    assert minimise(range(size), first_failing) == (needed,)
    assert len(rounds) <= log2(size) + 2


def scripts(monkeypatch: pytest.MonkeyPatch, by_node: dict[str, str]) -> None:
    """Plans stand for small scripts by their first node: what is tried here is the trying."""

    def write(found: Cut, _made: Any, _setting: Any, directory: str) -> None:
        (Path(directory) / "repro.py").write_text(by_node[next(iter(found.arguments))])

    monkeypatch.setattr(trials, "write", write)


def cut_of(plan: Plan) -> Cut:
    if "uncuttable" in plan.keep:
        raise Uncuttable("no value was recorded")
    return Cut(torch.fx.Graph(), {plan.keep[0]: torch.ones(2)})


def trials_in(tmp_path: Path, seconds: float = 60) -> Trials:
    limits = Limits(time.monotonic() + seconds, 60, 2)
    failure = FailureClass("error", phase="calling", essence="no such size")
    report = Report(str(tmp_path / "report.jsonl"))
    setting = Setting("title", {}, {}, ())
    empty = Program(torch.fx.GraphModule({}, torch.fx.Graph()), (), {}, frozenset(), {})
    return Trials(empty, cut_of, failure, setting, limits, True, str(tmp_path), report)


FAILS = "print('phase: calling', flush=True); raise ValueError('no such size')"
OTHER = "print('phase: calling', flush=True); raise KeyError('another')"


def test_the_first_that_fails_alike_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several that fail the first in order counts, though a later one ended earlier; it is kept.

    A plan that was seen to be healthy, or to fail, is not run again.
    """
    slow = "import time; time.sleep(0.5); " + FAILS
    scripts(monkeypatch, {"healthy": "", "other": OTHER, "slow": slow, "quick": FAILS})
    tried = trials_in(tmp_path)
    plans = [Plan((name,)) for name in ("uncuttable", "other", "healthy", "slow", "quick")]
    assert tried.first_failing(plans) == 3
    report = tmp_path / "report.jsonl"
    before = read_events(report)
    assert tried.first_failing(plans) == 3 and tried.first_failing([Plan(("healthy",))]) is None
    assert read_events(report) == before  # nothing is tried twice
    (*_, kept) = stream_events(tmp_path / "report.jsonl", Kept)
    assert (kept.real, kept.bytes) == (["slow"], 8)
    assert slow == (tmp_path / "best" / "repro.py").read_text()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "best",
        Path(kept.directory).name,
    }


def test_the_end_of_the_search_is_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that the search's own clock ended is neither healthy nor failing; later none is started."""
    scripts(monkeypatch, {"slow": "import time; time.sleep(60)"})
    tried = trials_in(tmp_path, seconds=0.5)
    with pytest.raises(OutOfTime):
        tried.first_failing([Plan(("slow",))])
    assert tried.tried == {}
    with pytest.raises(OutOfTime):
        next(in_parallel([str(tmp_path)], Limits(time.monotonic(), 60, 2), fork=False))


INDEX = "what():  index out of bounds: 0 <= tmp7 < 1000L"
SMALLER = "noise\n  what():  index out of bounds: 0 <= tmp2 < 8L\nmore"
ABORT = FailureShown(kind="crash", signal="SIGABRT", family="cpu_index_assert", text=INDEX)
UNKNOWN = FailureShown(kind="error", phase="compiling", text="ValueError: 7 is no size of /tmp/a1.py")
LOWERING = FailureShown(
    kind="error",
    phase="compiling",
    family="lowering",
    text="torch._inductor.exc.InductorError: LoweringException: AssertionError: cpp_fused_a_1 has no dtype",
)


NOT_FINITE = FailureShown(kind="not_finite", nan=True)
INF = "not finite: output 0 holds 0 nan and 2 inf"


@pytest.mark.parametrize(
    ("shown", "status", "phase", "text", "same"),
    [
        (ABORT, -signal.SIGABRT, "calling", SMALLER, True),
        (ABORT, -signal.SIGSEGV, "calling", SMALLER, False),
        (ABORT, -signal.SIGABRT, "calling", "free(): invalid pointer", False),
        (ABORT, 1, "calling", SMALLER, False),
        (ABORT, None, "calling", SMALLER, False),
        (UNKNOWN, 1, "compiling", "ValueError: 12 is no size of /tmp/b7.py", True),
        (UNKNOWN, 1, "loading", "ValueError: 12 is no size of /tmp/b7.py", False),
        (UNKNOWN, 1, "compiling", "KeyError: 12", False),
        (LOWERING, 1, "compiling", LOWERING.text.replace("a_1", "b_2"), True),
        (LOWERING, 1, "compiling", LOWERING.text.replace("has no dtype", "has no size"), False),
        (NOT_FINITE, 3, "", INF.replace("0 nan", "2 nan"), True),
        (NOT_FINITE, 3, "", INF, False),
        (FailureShown(kind="not_finite"), 3, "", INF, True),
        (FailureShown(kind="not_finite"), 0, "", "", False),
        (FailureShown(kind="departs"), 4, "", "departs: output 0", True),
        (FailureShown(kind="departs"), 5, "exporting", "", False),
    ],
)
def test_only_the_same_failure_counts(
    shown: FailureShown, status: int | None, phase: str, text: str, same: bool
) -> None:
    """Signal, phase and family of text must agree; what changes from run to run does not matter."""
    assert shown_by(shown.request(), status, phase, text) is same


@pytest.mark.parametrize(
    ("kind", "status", "text", "absent"),
    [
        ("departs", 0, "", True),
        ("departs", 3, "not finite: output 0 holds 0 nan and 3 inf of 3", True),
        ("departs", 3, "not finite: output 0 holds 0 nan and 3 inf of 3\ndeparts: output 0 in 3", False),
        ("departs", 4, "departs: output 0 in 3 of 3 elements", False),
        ("not_finite", 3, "not finite: output 0 holds 0 nan and 3 inf of 3", False),
    ],
)
def test_an_infinity_of_eager_mode_is_no_difference(kind: Kind, status: int, text: str, absent: bool) -> None:
    """A package that gives eager's infinity has nothing left of a failure that was another number."""
    assert (STATUS["not_finite"], STATUS["departs"]) == (script.NOT_FINITE, script.DEPARTS)
    assert is_gone(FailureShown(kind=kind).request(), status, text) is absent


SIZES = st.integers(1, 60)
NEEDS = SIZES.flatmap(lambda size: st.tuples(st.just(size), st.frozensets(st.integers(0, size - 1))))

# A search that may not go on gives the best that it found.


@given(NEEDS, st.integers(0, 30))
def test_a_search_that_is_spent_gives_what_still_fails(
    case: tuple[int, frozenset[int]], allowed: int
) -> None:
    """What is left fails in any case; when the search came to its end, every element of it is needed."""
    size, needed = case
    tried: list[Sequence[int]] = []

    def fails(kept: Sequence[int]) -> bool:
        tried.append(kept)
        return needed <= set(kept)

    left, complete = minimise_while(range(size), fails, lambda: len(tried) >= allowed)
    assert needed <= set(left) and len(tried) <= allowed
    assert not complete or not needed or set(left) == needed


# Reproductions that crash, hang and start processes of their own.


SCRIPTS = {
    "raises": "print('phase: compiling', flush=True); raise ValueError('no such size')",
    "exits": "import sys; sys.exit(3)",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGABRT)",
    "hangs": "import time; time.sleep(60)",
}


def directory_of(tmp_path: Path, name: str, text: str) -> str:
    directory = tmp_path / name
    directory.mkdir()
    (directory / "repro.py").write_text(text)
    return str(directory)


def limits(each_s: float, parallel: int = 1) -> Limits:
    return Limits(time.monotonic() + 60, each_s, parallel)


def finished(child: Child) -> Ended:
    while (ended := child.poll()) is None:
        time.sleep(0.01)
    return ended


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize(("name", "status"), [("raises", 1), ("exits", 3), ("dies", -6), ("hangs", None)])
def test_every_end_is_told(tmp_path: Path, name: str, status: int | None, fork: bool) -> None:
    """A script that raises, exits, dies or hangs ends with its status, forked or in a new interpreter."""
    ended = finished(Child(directory_of(tmp_path, name, SCRIPTS[name]), fork, limit_s=5 if status else 0.5))
    assert ended.status == status
    assert name != "raises" or (ended.phase, "no such size" in ended.text) == ("compiling", True)


def test_what_a_script_started_ends_with_it(tmp_path: Path) -> None:
    """A compiler that a killed script left behind is killed, too."""
    started = tmp_path / "pid"
    text = (
        "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '60'])\n"
        f"open({str(started)!r} + '.new', 'w').write(str(child.pid))\n"
        f"os.rename({str(started)!r} + '.new', {str(started)!r}); time.sleep(60)\n"
    )
    child = Child(directory_of(tmp_path, "a", text), False, limit_s=60)
    while not started.exists():
        time.sleep(0.01)
    child.kill()
    until = time.monotonic() + 2
    while _alive(int(started.read_text())):
        assert time.monotonic() < until
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_closing_ends_those_that_still_run(tmp_path: Path) -> None:
    """Once an answer is there, the other candidates are ended instead of waited for."""
    pid = tmp_path / "pid"
    slow = f"import os; open({str(pid)!r}, 'w').write(str(os.getpid())); {SCRIPTS['hangs']}"
    quick = f"import os, time\nwhile not os.path.exists({str(pid)!r}): time.sleep(0.01)\n{SCRIPTS['exits']}"
    paths = [directory_of(tmp_path, "quick", quick), directory_of(tmp_path, "slow", slow)]
    run = in_parallel(paths, limits(60, parallel=2), fork=False)
    number, ended = next(run)
    assert (number, ended.status) == (0, 3)
    run.close()
    assert not _alive(int(pid.read_text()))


def test_no_more_than_asked_run_at_once(tmp_path: Path) -> None:
    """With one place, scripts run in their order; closing after one of two that hang together is no error."""
    paths = [directory_of(tmp_path, name, SCRIPTS["exits"]) for name in ("a", "b", "c")]
    assert [number for number, _ in in_parallel(paths, limits(20), fork=False)] == [0, 1, 2]
    hanging = [directory_of(tmp_path, name, SCRIPTS["hangs"]) for name in ("d", "e")]
    run = in_parallel(hanging, limits(0.2, parallel=2), fork=False)
    assert next(run)[1].status is None
    run.close()
