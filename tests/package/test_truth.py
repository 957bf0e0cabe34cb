"""The reader against runs: real ones of the zoo, seen from outside, and recorded ones on a GPU.

The witness (tests/witness) sits in the dynamic linker: it sees each call that leaves the package's library,
with its arguments, and knows nothing of the wrapper's text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mcp_server.package.archive import open_package, read_constants
from mcp_server.package.dataflow import Dataflow
from mcp_server.package.wrapper import Wrapper, read_wrapper
from tests.conftest import build
from tests.package.summaries import WRAPPERS
from tests.recorded import RECORDINGS
from tests.witness.agree import Agreement, compare
from tests.witness.running import Run, agreement, join, needs_audit, witnessed
from tests.zoo.names import CPU_MODELS, THOROUGH, TRIED

TOGETHER = ("counter", "loop")
"""These two are packed into one package."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Run, Path]]:
    """Every model of the zoo, run once, and what the run called."""
    directory = tmp_path_factory.mktemp("witness")
    single = {name: build(name) for name in TRIED}
    both = directory / "both.pt2"
    join(both, {name: single[name] for name in TOGETHER})
    runs = [Run(both if n in TOGETHER else p, n if n in TOGETHER else "model", p) for n, p in single.items()]
    recorded = witnessed(directory, runs)
    return {run.name: (run, recorded[run.name]) for run in runs}


@pytest.mark.slow
@needs_audit
@pytest.mark.parametrize("name", TRIED)
def test_a_run_does_what_was_read(runs: Mapping[str, tuple[Run, Path]], name: str) -> None:
    """Order of launches, tensors behind every argument, shapes, strides, numbers and roles: as read."""
    found = agreement(*runs[name])
    assert found.differences == []
    assert found.launches and found.checked["memory"] >= 4 and found.checked["shape"] >= 4


@pytest.mark.slow
@needs_audit
@pytest.mark.skipif(not THOROUGH, reason="it takes every model: AOTI_DEBUG_THOROUGH=1 runs it")
def test_every_kind_of_fact_is_compared(runs: Mapping[str, tuple[Run, Path]]) -> None:
    """The zoo leaves no comparison unused."""
    checked = [agreement(*run).checked for run in runs.values()]
    kinds = "shape stride dtype offset memory input constant changed number array text null item distinct"
    assert [kind for kind in kinds.split() if not any(c[kind] for c in checked)] == []


@pytest.mark.slow
@needs_audit
def test_a_loop_is_followed_turn_by_turn(runs: Mapping[str, tuple[Run, Path]]) -> None:
    """Three turns of the body, the condition once more, and the launch behind the loop."""
    assert agreement(*runs["loop"]).launches == (*[0, 1, 2] * 3, 0, 3)


def read(run: Run) -> tuple[Wrapper, dict[str, str]]:
    package = open_package(run.package, run.model)
    names = {c.name: c.fqn for c in package.constants}
    return read_wrapper(package.wrapper_text, package.kernel_text), names


@pytest.mark.slow
@needs_audit
@pytest.mark.parametrize("gone", range(5))
def test_a_skipped_launch_is_found(runs: Mapping[str, tuple[Run, Path]], gone: int) -> None:
    """Whichever launch a reader leaves out, the run has a call too many."""
    run, recorded = runs["attention"]
    wrapper, constants = read(run)
    launches = tuple(n for n in wrapper.launches if n.index != gone)
    blind = replace(wrapper, run=replace(wrapper.run, launches=launches))
    (difference,) = compare(blind, constants, json.loads(recorded.read_text())).differences
    assert difference.startswith("the run called")


@pytest.mark.slow
@needs_audit
@pytest.mark.parametrize(("launch", "first", "second"), [(0, 2, 3), (1, 1, 2), (2, 0, 1), (4, 0, 1)])
def test_exchanged_arguments_are_found(
    runs: Mapping[str, tuple[Run, Path]], launch: int, first: int, second: int
) -> None:
    """Two exchanged tensors do not pass, of one shape or not."""
    run, recorded = runs["attention"]
    wrapper, constants = read(run)
    node = wrapper.launches[launch]
    given = list(node.arguments)
    one, other = given[first], given[second]
    given[first] = replace(one, target=other.target, view=other.view)
    given[second] = replace(other, target=one.target, view=one.view)
    launches = [*wrapper.launches]
    launches[launch] = replace(node, arguments=tuple(given))
    wrong = replace(wrapper, run=replace(wrapper.run, launches=tuple(launches)))
    assert compare(wrong, constants, json.loads(recorded.read_text())).differences


RUNS = sorted((RECORDINGS / "truth").glob("*.json"))


def wrapper_of(run: Path) -> Wrapper:
    kernels = RECORDINGS / "kernels" / f"{run.stem}.cpp"
    kernel_text = kernels.read_text(encoding="utf-8") if kernels.exists() else ""
    return read_wrapper((WRAPPERS / f"{run.stem}.cpp").read_text(encoding="utf-8"), kernel_text)


def recorded_agreement(run: Path) -> Agreement:
    wrapper = wrapper_of(run)
    names = {constant.name: constant.fqn for constant in read_constants(wrapper.text)}
    return compare(wrapper, names, json.loads(run.read_text(encoding="utf-8")))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.stem)
def test_a_recorded_run_does_what_is_read(run: Path) -> None:
    """Order of launches, tensors behind every argument, shapes, strides, numbers and roles: as read."""
    found = recorded_agreement(run)
    assert found.differences == []
    assert found.launches and found.checked["memory"] >= 3


def test_every_model_of_the_zoo_ran_on_cuda() -> None:
    """The recordings leave out none of the models, user kernels included."""
    ran = {run.name.partition(".")[0] for run in RUNS if run.stem.endswith("cuda")}
    assert ran >= {*CPU_MODELS, "user_lookup", "user_shift", "user_spread"}


def test_constants_are_folded_by_launches_of_their_own() -> None:
    """A run begins with the launches of constant folding; what they leave is the folded constant."""
    run = next(run for run in RUNS if run.stem == "folding.torch-2.13-cpu")
    wrapper = wrapper_of(run)
    assert wrapper.folding is not None
    assert [n.kernel for n in wrapper.folding.launches] == [
        "cpp_fused_exp_mul_unsqueeze_0",
        "aoti_torch_cpu_mm_out",
    ]
    called = [call["name"] for call in json.loads(run.read_text())["calls"]]
    assert called == [n.kernel for n in (*wrapper.folding.launches, *wrapper.launches)]
    assert wrapper.folded == {"_FOLDED_CONST_permute": 0}
    behind = Dataflow(wrapper.folding).backward(wrapper.folding.outputs[0])
    assert (behind.launches, sorted(behind.constants)) == ((0, 1), ["other", "scale", "weight"])
