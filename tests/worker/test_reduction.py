"""Parts of real programs, cut out and run as the scripts that they become."""

from __future__ import annotations

import re
import runpy
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

from mcp_server.worker.encode import BY_OPERATOR
from mcp_server.worker.interpret import bind
from mcp_server.worker.protocol import Plan
from mcp_server.worker.reduction import Minimiser, minimise_while
from mcp_server.worker.reduction.program import (
    Cut,
    Cutter,
    Program,
    Recorded,
    Recorder,
    Uncuttable,
    flatten_program,
    shrinkable,
    stand_ins,
)
from mcp_server.worker.reduction.script import Setting, write
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


def run(found: Cut, directory: Path, of_seed: tuple[str, ...] = ()) -> tuple[torch.Tensor, ...]:
    """The outputs of the written script's model on the script's own arguments."""
    write(found, frozenset(of_seed), SETTING, str(directory))
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
    plan = Plan(tuple(program.units[:1]), seeded=("x", "p_inp_weight", "p_inp_bias"))
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


# Delta debugging: what a failure needs.


def minimised(size: int, first_failing: Callable[[Sequence[Sequence[int]]], int | None]) -> tuple[int, ...]:
    search = Minimiser(tuple(range(size)))
    while options := search.candidates():
        search.found(first_failing(options))
    return search.kept


@given(st.lists(st.frozensets(st.integers(0, 11), min_size=1), min_size=1, max_size=6))
def test_nothing_can_be_left_out_of_the_result(ways: list[frozenset[int]]) -> None:
    """A failure that comes about in several ways is cut down to one of which every element is needed."""

    def fails(kept: Sequence[int]) -> bool:
        return any(way <= set(kept) for way in ways)

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        return next((n for n, option in enumerate(options) if fails(option)), None)

    left = minimised(12, first_failing)
    assert fails(left) and list(left) == sorted(left)
    assert len(left) == 1 or not any(fails([x for x in left if x != out]) for out in left)


@given(st.integers(2, 2000), st.data())
def test_one_element_is_found_by_halving(size: int, data: st.DataObject) -> None:
    """A failure of one element takes a logarithmic number of rounds."""
    needed, rounds = data.draw(st.integers(0, size - 1)), []

    def first_failing(options: Sequence[Sequence[int]]) -> int | None:
        rounds.append(options)
        return next((n for n, option in enumerate(options) if needed in option), None)

    assert minimised(size, first_failing) == (needed,)
    assert len(rounds) <= log2(size) + 2


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
