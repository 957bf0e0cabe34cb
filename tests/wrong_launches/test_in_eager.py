"""Launches judged one by one, and a wrong launch computed in eager mode, on a GPU and by try-fix as well."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options
from mcp_server.diagnosis.interventions.kernel import eager_key, try_in_eager
from mcp_server.diagnosis.interventions.run import TriedCall, call_of_package, try_intervention
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload, Verdict
from mcp_server.package.view import view_package
from mcp_server.worker.protocol import EagerLaunches
from tests.conftest import CACHE, Zoo, compiled_once, torch_environment
from tests.gpu.conftest import HAS_CUDA
from tests.served import served
from tests.support.tools import tool
from tests.worker.support import context_in
from tests.zoo.names import thorough

# A wrong launch computed in eager mode, from its own inputs: the failure disappears, and returns without it.

Wrong = Callable[[str], Path]
# Of tests/wrong_launches/models.py, which imports the compiler.
SCALE, WRONG_SCALE = 0.5, 0.25


def judged_call(package: Path, found: Any) -> TriedCall:
    """The call, with eager mode's outputs as the expectation."""
    assert found.eager_outputs is not None
    return call_of_package(call_of(package), Symptom(expect=found.eager_outputs.path))


@thorough
def test_the_verdict_names_the_launch_and_the_call_that_proves_it(wrong: Wrong, tmp_path: Path) -> None:
    """One kernel of eight launches is wrong."""
    package = wrong("one")
    found = verdict(tmp_path, package)
    assert (found.category, found.confidence) == ("wrong_output", "proven"), found.summary
    assert found.guilty is not None and found.intervention is not None
    second = kernels_with(package, "mul_tanh")[1]
    assert found.guilty.launch_index == second
    assert found.intervention.what.startswith(f"the call with launch {second} (")
    assert "run in eager mode" in found.intervention.what and found.intervention.result == "gone"
    assert found.fix is not None and found.confirmed is not None and "eager mode" in found.confirmed.what
    assert f"--launch {second} --as eager" in found.confirmed.command


@thorough
@pytest.mark.parametrize(("program", "confidence"), [(True, "proven"), (False, "likely")])
def test_a_size_outside_its_range_comes_before_the_launch_that_it_breaks(
    wrong: Wrong, tmp_path: Path, program: bool, confidence: str
) -> None:
    """Sums ignore rows beyond the compiled range. A part of the batch gives the same values.

    With the program, sizes in the range are tried, for which the package agrees with it.
    """
    package = wrong("sized")
    given = package.with_name("sized.exported.pt2") if program else None
    symptom = Symptom(seen="wrong-output", expect=package.with_name("sized.expected.pt"), program=given)
    found = served(diagnose, context_in(tmp_path), call_of(package), symptom=symptom)
    assert (found.category, found.confidence) == ("shape_out_of_range", confidence), found.summary
    assert found.guilty is not None and (found.guilty.input_index, found.guilty.dim) == (0, 0)
    assert found.fix is not None and "parts of 2 to 100" in found.fix.text
    assert not program or "resized to 100" in found.confirmed.what  # type: ignore[union-attr]


@thorough
def test_an_index_of_32_bits_is_proven_by_one_of_64(wrong: Wrong, tmp_path: Path) -> None:
    """A product wraps: the verdict names it with sizes and limit. In 64 bits the call is right."""
    found = verdict(tmp_path, wrong("wrapped"))
    assert (found.category, found.confidence) == ("wrong_output", "proven"), found.summary
    assert "`67108864 * x0`" in found.summary and "it is 2,147,483,648, beyond 2,147,483,647" in found.summary
    assert found.guilty is not None and (found.guilty.kind, found.guilty.launch_index) == ("kernel", 0)
    assert found.intervention is not None and found.fix is not None and found.confirmed is not None
    assert "64-bit indices" in found.intervention.what and "64 bits" in found.confirmed.what
    assert found.evidence[0].command.startswith("aoti-debug inspect-package ")


@thorough
def test_each_of_two_wrong_launches_is_proven(wrong: Wrong, tmp_path: Path) -> None:
    """Neither alone makes the call right. Each is tried while the other is in eager mode in all calls."""
    package = wrong("two")
    found = judged(tmp_path / "judged", package)
    trials = served(try_in_eager, context_in(tmp_path / "tried"), judged_call(package, found), found)
    assert list(trials) == [eager_key(each.launch) for each in found.wrong] and len(trials) == 2
    assert all(trial.effect is Effect.GONE and trial.proves for trial in trials.values())
    assert not any(trial.side_effects for trial in trials.values())
    named = verdict(tmp_path / "verdict", package)
    assert named.confidence == "proven" and named.guilty is not None
    assert named.guilty.launch_index == found.wrong[0].launch


@thorough
def test_nan_of_one_kernel_is_proven_by_eager_mode_and_not_by_a_guard(wrong: Wrong, tmp_path: Path) -> None:
    """A clamp under the root would be finite but wrong, because the exported program has no NaN there."""
    found = verdict(tmp_path, wrong("nan"))
    assert (found.category, found.confidence) == ("nan_or_inf", "proven"), found.summary
    assert found.guilty is not None and "sqrt" in found.guilty.name
    assert found.intervention is not None and "eager mode" in found.intervention.what
    assert found.fix is not None and "clamp" not in found.fix.text


@pytest.mark.slow
def test_a_launch_in_eager_mode_computes_from_what_it_reads_itself(wrong: Wrong, tmp_path: Path) -> None:
    """With layer 2 in eager mode, layer 0's fault stays, as computed by hand with torch."""
    package = wrong("two")
    found = judged(tmp_path / "judged", package)
    weights = torch.export.load(package.with_name("two.exported.pt2")).state_dict
    (x,) = torch.load(package.with_name("two.inputs.pt"))
    for layer in range(4):
        weight, bias = (weights[f"lins.{layer}.{part}"] for part in ("weight", "bias"))
        product = torch.nn.functional.linear(x, weight, bias)
        x = product.tanh() * (WRONG_SCALE if layer == 0 else SCALE)
    torch.save([x], tmp_path / "by_hand.pt")
    call = replace(judged_call(package, found), symptom=Symptom(expect=tmp_path / "by_hand.pt"))
    assert _in_eager(tmp_path, call, found, found.wrong[1].launch) == (Effect.GONE, "")


def _in_eager(directory: Path, call: TriedCall, found: Any, launch: int) -> tuple[Effect, str]:
    """The effect of computing one launch in eager mode, whatever the others do."""
    assert found.plan is not None
    package = found.plan.path.read_text().partition('"package": "')[2].partition('"')[0]
    asked = EagerLaunches(plan=str(found.plan.path), launches=[launch])
    tried = Intervention("it", Kind.KERNEL, "the call with it", options=Options(eager=asked))
    call = replace(call, request={**call.request, "package": package})
    trial = served(try_intervention, context_in(directory / "tried"), call, tried)
    return trial.effect, trial.reason


# Every launch compared on correct inputs.


@thorough
@pytest.mark.parametrize("name", ["two", "half"])
def test_all_wrong_kernels_are_listed_and_no_other(wrong: Wrong, tmp_path: Path, name: str) -> None:
    """Layers 0 and 2 are wrong. Layers 1 and 3, and products after layer 0, only get bad inputs."""
    package = wrong(name)
    result = compared(tmp_path, package)
    found = result.every_launch
    assert (result.outcome, result.kind) == ("differs", "error")
    first, _, third, _ = kernels_with(package, "mul_tanh")
    assert [each.launch for each in found.wrong] == [first, third], found.summary
    assert [each.difference.node for each in found.wrong] == ["mul", "mul_2"]
    assert all("SCALE" in each.locations[0].code for each in found.wrong)
    assert found.unjudged == [] and found.outputs_right
    for each in found.wrong:
        right, actual = map(float, each.difference.values)
        assert actual == pytest.approx(right / 2, rel=0.02), "each by itself is half of what is right"


# `try-fix --as eager`.


def tried(directory: Path, package: Path, launch: int, **asked: Any) -> Any:
    program = package.with_name(f"{package.stem}.exported.pt2")
    given = {"launch": launch, "exported": program, "how": "eager", **asked}
    return tool("try_fix", directory, call_of(package), **given)


@thorough
def test_the_wrong_launch_is_told_from_a_right_one(wrong: Wrong, tmp_path: Path) -> None:
    """Eager mode's outputs are the default expectation, and the printed command tries it again."""
    package = wrong("one")
    first, second, *_ = kernels_with(package, "mul_tanh")
    found = tried(tmp_path / "second", package, second)
    assert found.outcome == "fixed", found.summary
    assert f"--launch {second} --as eager --exported" in found.command
    assert tried(tmp_path / "first", package, first).outcome == "same"


@thorough
def test_what_cannot_be_done_in_eager_mode_says_why(wrong: Wrong, zoo: Zoo, tmp_path: Path) -> None:
    """There is no such launch, it is in a branch, or a program is passed without need."""
    with pytest.raises(ProblemError, match="no such launch"):
        tried(tmp_path, wrong("one"), 99)
    with pytest.raises(ProblemError, match="it is in a branch or a loop"):
        tried(tmp_path, zoo("branch"), 1)
    with pytest.raises(ProblemError, match="for a launch in eager mode"):
        tried(tmp_path, wrong("one"), 1, how="guard")


# The same on a GPU, with Triton kernels.


@pytest.fixture(scope="session")
def on_cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages, compiled for CUDA."""
    asked = [sys.executable, "-W", "ignore", "-c", HAS_CUDA]
    if subprocess.run(asked, capture_output=True).returncode:
        pytest.skip("no torch with a CUDA device")
    directory = tmp_path_factory.mktemp("wrong-launches")
    for name in ("clean", "two", "nan"):
        words = [sys.executable, "-m", "tests.wrong_launches.models", name, str(directory), "cuda"]
        subprocess.run(words, check=True, env=torch_environment())
    return directory


@pytest.mark.gpu
@pytest.mark.slow
def test_all_wrong_triton_kernels_are_listed(on_cuda: Path, tmp_path: Path) -> None:
    """Two of four layers are listed, and none of a healthy package."""
    wrong = judged(tmp_path / "two", on_cuda / "two.pt2").wrong
    assert [each.difference.node for each in wrong] == ["mul", "mul_2"]
    assert judged(tmp_path / "clean", on_cuda / "clean.pt2").wrong == []


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["two", "nan"])
def test_a_wrong_triton_kernel_is_proven_in_eager_mode(on_cuda: Path, tmp_path: Path, name: str) -> None:
    """The failure disappears with the launch in eager mode, and returns without it."""
    found = verdict(tmp_path, on_cuda / f"{name}.pt2")
    assert found.confidence == "proven" and found.intervention is not None, found.summary
    assert "eager mode" in found.intervention.what


# The packages of `models.py` compared with their programs.


def call_of(package: Path) -> PackageWorkload:
    """The call with the inputs beside a package."""
    return PackageWorkload(package=package, inputs=package.with_name(f"{package.stem}.inputs.pt"))


def compared(directory: Path, package: Path) -> Any:
    """Compare a package with the program beside it, launch by launch."""
    program = package.with_name(f"{package.stem}.exported.pt2")
    return tool("compare_with_eager", directory, call_of(package), exported=program)


def judged(directory: Path, package: Path) -> Any:
    """The result for all launches."""
    return compared(directory, package).every_launch


def kernels_with(package: Path, part: str) -> list[int]:
    """The launches whose kernel's name has that part, in the order of the call."""
    launches = view_package(package).wrapper.launches
    return [launch.index for launch in launches if part in launch.kernel]


def verdict(directory: Path, package: Path) -> Verdict:
    """Diagnose a package with its program."""
    program = package.with_name(f"{package.stem}.exported.pt2")
    return served(diagnose, context_in(directory), call_of(package), symptom=Symptom(program=program))


# The packages of `models.py`, each compiled once.


MADE = CACHE.parent / "wrong_launches"


@pytest.fixture(scope="session")
def wrong() -> Callable[[str], Path]:
    """A function that gives NAME.pt2, with NAME.exported.pt2 and NAME.inputs.pt beside it."""
    return lambda name: compiled_once(MADE / f"{name}.pt2", "tests.wrong_launches.models", name)
