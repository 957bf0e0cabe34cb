"""A wrong launch done in eager mode, on its own inputs: the failure goes, and comes back without that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.interventions.base import Effect, Intervention, Kind, Options
from mcp_server.diagnosis.interventions.kernel import eager_key, try_in_eager
from mcp_server.diagnosis.interventions.run import TriedCall, call_of_package, try_intervention
from mcp_server.diagnosis.symptom import Symptom
from mcp_server.model import Verdict
from mcp_server.tools.divergence import EveryLaunch
from mcp_server.worker.protocol import EagerLaunches
from tests.served import served
from tests.worker.support import context_in
from tests.wrong_launches.models import SCALE, WRONG_SCALE
from tests.wrong_launches.support import call_of, judged, kernels_with
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

Wrong = Callable[[str], Path]


def verdict(directory: Path, package: Path) -> Verdict:
    """The diagnosis of a package whose program was given."""
    program = package.with_name(f"{package.stem}.exported.pt2")
    return served(diagnose, context_in(directory), call_of(package), symptom=Symptom(program=program))


def judged_call(package: Path, found: EveryLaunch) -> TriedCall:
    """The call, with what eager mode returns as what is expected."""
    assert found.eager_outputs is not None
    return call_of_package(call_of(package), Symptom(expect=found.eager_outputs.path))


@thorough
def test_the_verdict_names_the_launch_and_the_call_that_proves_it(wrong: Wrong, tmp_path: Path) -> None:
    """One wrong kernel of eight launches."""
    package = wrong("one")
    found = verdict(tmp_path, package)
    assert (found.category, found.confidence) == ("wrong_output", "proven"), found.summary
    assert found.guilty is not None and found.intervention is not None
    second = kernels_with(package, "mul_tanh")[1]
    assert found.guilty.launch_index == second
    assert found.intervention.what.startswith(f"the call with launch {second} (")
    assert "done in eager mode" in found.intervention.what and found.intervention.result == "gone"
    assert found.fix is not None and found.fix.ran is not None and "eager mode" in found.fix.ran.result
    step = next(each for each in found.next_steps if each.tool == "try_fix")
    assert step.arguments["launch"] == second and step.arguments["package"] == str(package)


@thorough
def test_an_index_of_32_bits_is_proven_by_one_of_64(wrong: Wrong, tmp_path: Path) -> None:
    """A product that wraps: the verdict names it with sizes and limit; without it the call is right."""
    found = verdict(tmp_path, wrong("wrapped"))
    assert (found.category, found.confidence) == ("wrong_output", "proven"), found.summary
    assert "`67108864 * x0`" in found.summary and "it is 2,147,483,648, beyond 2,147,483,647" in found.summary
    assert found.guilty is not None and (found.guilty.kind, found.guilty.launch_index) == ("kernel", 0)
    assert found.intervention is not None and found.fix is not None and found.fix.ran is not None
    assert "indices of 64 bits" in found.intervention.what and "64 bits" in found.fix.ran.result
    assert found.evidence[0].command.startswith("aoti-debug inspect-package ")


@thorough
def test_each_of_two_wrong_launches_is_proven(wrong: Wrong, tmp_path: Path) -> None:
    """Neither alone makes the call right: each is tried with the other in eager mode in all three calls."""
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
    """A clamp under the root would make it finite and wrong: the exported program has no NaN there."""
    found = verdict(tmp_path, wrong("nan"))
    assert (found.category, found.confidence) == ("nan_or_inf", "proven"), found.summary
    assert found.guilty is not None and "sqrt" in found.guilty.name
    assert found.intervention is not None and "eager mode" in found.intervention.what
    assert found.fix is not None and "clamp" not in found.fix.action


def test_a_launch_in_eager_mode_computes_from_what_it_reads_itself(wrong: Wrong, tmp_path: Path) -> None:
    """With layer 2 in eager mode the fault of layer 0 is left, as torch computes that by hand."""
    package = wrong("two")
    found = judged(tmp_path / "judged", package)
    weights = torch.export.load(package.with_name("two.exported.pt2")).state_dict
    (x,) = torch.load(package.with_name("two.inputs.pt"))
    for layer in range(4):
        product = torch.nn.functional.linear(
            x, weights[f"lins.{layer}.weight"], weights[f"lins.{layer}.bias"]
        )
        x = product.tanh() * (WRONG_SCALE if layer == 0 else SCALE)
    torch.save([x], tmp_path / "by_hand.pt")
    call = replace(judged_call(package, found), symptom=Symptom(expect=tmp_path / "by_hand.pt"))
    assert _in_eager(tmp_path, call, found, found.wrong[1].launch) == (Effect.GONE, "")


@thorough
def test_a_launch_that_the_call_does_not_reach_says_so(wrong: Wrong, tmp_path: Path) -> None:
    """A call in which nothing was replaced is no evidence."""
    package = wrong("one")
    found = judged(tmp_path / "judged", package)
    effect, reason = _in_eager(tmp_path, judged_call(package, found), found, 99)
    assert effect is Effect.NOT_APPLICABLE and "does not reach these launches: [99]" in reason


def _in_eager(directory: Path, call: TriedCall, found: EveryLaunch, launch: int) -> tuple[Effect, str]:
    """The effect of one launch in eager mode on the rebuilt package, whatever others do."""
    assert found.plan is not None
    package = found.plan.path.read_text().partition('"package": "')[2].partition('"')[0]
    asked = EagerLaunches(plan=str(found.plan.path), launches=[launch])
    tried = Intervention("it", Kind.KERNEL, "the call with it", options=Options(eager=asked))
    call = replace(call, request={**call.request, "package": package})
    trial = served(try_intervention, context_in(directory / "tried"), call, tried)
    return trial.effect, trial.reason
