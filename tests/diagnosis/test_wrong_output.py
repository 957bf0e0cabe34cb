"""Packages that diverge from their exported program, and rounding, which is no fault."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes.compiler import KEY, casts_trial
from mcp_server.diagnosis.components import own_code
from mcp_server.diagnosis.diagnose import detect, diagnose
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.diagnosis.state import DiagnosisState
from mcp_server.diagnosis.verdict import conclude, confidence, ranked
from mcp_server.diagnosis.words import health_summary
from mcp_server.model import ScriptWorkload, Verdict
from mcp_server.package.pytorch.text import ConstantValues
from mcp_server.runtime.context import decode
from mcp_server.tools.failing import FailureShown
from tests.conftest import Zoo, torch_environment
from tests.diagnosis.support import (
    OTHER_DATA,
    by,
    called,
    capture,
    diverged,
    look,
    package_case,
    phase,
    run,
    trial,
    worker_run,
)
from tests.served import served
from tests.worker.support import context_in
from tests.zoo.names import thorough


def test_other_constants_explain_a_departure(zoo: Zoo) -> None:
    """Other weights in the package are the cause. The launch that diverges only shows it."""
    case = diverged(zoo)
    assert case.with_eager is not None
    case.with_eager = case.with_eager.model_copy(update={"other_constants": [decode(OTHER_DATA)]})
    best = ranked(detect(case), case)[0]
    assert (best.category, best.guilty.name) == ("constants", "inp.weight")
    assert "3 of 64" in best.summary and confidence(best, case) == "likely"


LAST = {"3.matrix.weight": 1, "3.matrix.bias": 1}


@pytest.mark.parametrize(
    ("name", "shape", "others", "told"),
    [
        ("norm.weight", (8,), {}, True),
        ("table", (4, 2), {}, True),
        ("head.bias", (8,), {"a.bias": 1, "b.bias": 1}, True),
        ("head.bias", (8,), {"a.bias": 1, "norm.bias": 0}, False),  # of an untrained model
        ("head.bias", (8,), {"a.bias": 1}, False),
        ("h.1.out.bias", (8,), {"h.0.out.bias": 1, "h.0.norm.bias": 0, "h.1.norm.bias": 0}, True),
        ("h.1.norm.bias", (8,), {"h.0.norm.bias": 0, "h.0.out.bias": 1}, False),
        # A norm among linear layers, whose weights are matrices.
        ("2.bias", (8,), {"2.weight": 1, "0.matrix.weight": 1, "0.matrix.bias": 1, **LAST}, False),
    ],
)
def test_zeros_are_remarked_where_constants_of_that_name_have_none(
    zoo: Zoo, name: str, shape: tuple[int, ...], others: dict[str, int], told: bool
) -> None:
    """A matrix or weight of zeros is unusual. A bias is, only if other layers' or all biases are not zero."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called(), {"event": "compared_expected", "equal": False})
    assert case.package is not None
    known = case.package.constants[0]
    others_of = ((fqn, (8,) * (1 + ("matrix.w" in fqn)), 8 - 8 * some) for fqn, some in others.items())
    named = [(replace(known, fqn=fqn, shape=at), zeros) for fqn, at, zeros in ((name, shape, 8), *others_of)]
    case.constants_read = tuple(ConstantValues(w, Path("0.bin"), 8, zeros, 1.0) for w, zeros in named)
    found = [each.guilty.name for each in by("constants.detect", case)]
    assert (name in found) == told


def test_a_weight_that_makes_values_overflow_is_tried_smaller(zoo: Zoo) -> None:
    """It is far larger than the others. Its outputs are not finite, so no expected ones are needed."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called(nan=1))
    assert case.package is not None
    large, usual = (replace(case.package.constants[0], fqn=name) for name in ("gate.weight", "out.weight"))
    case.constants_read = tuple(
        ConstantValues(each, Path("0.bin"), 8, 0, size) for each, size in ((large, 3e4), (usual, 1.0))
    )
    (found,) = by("constants.detect", case)
    assert found.guilty.name == "gate.weight" and found.intervention is not None


def test_weights_of_one_shape_are_tried_under_each_others_names(zoo: Zoo) -> None:
    """Weights are first exchanged in every layer, like a renaming. Those that helped are named."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called(), {"event": "compared_expected", "equal": False})
    assert case.package is not None
    names = ("h.0.up.weight", "h.0.gate.weight", "h.1.up.weight", "h.1.gate.weight", "h.1.out.bias")
    known = [replace(case.package.constants[0], fqn=name, shape=(8 + ("bias" in name),)) for name in names]
    case.constants_read = tuple(ConstantValues(each, Path("0.bin"), 8, 0, 1.0) for each in known)
    (found,) = by("constants.detect_exchanged", case)
    assert found.weak and found.intervention is not None
    first, *rest = found.intervention.options.alternatives or ()
    assert first["exchanged"] == dict(zip(names[:4], (names[1], names[0], names[3], names[2]), strict=True))
    assert all(names[4] not in each["exchanged"] for each in rest)  # type: ignore[operator]
    case.trials[found.intervention.key] = trial(found.intervention, Effect.SAME)
    assert by("constants.detect_exchanged", case) == []


def test_an_operator_of_torch_is_not_the_users(zoo: Zoo) -> None:
    """The package calls both through the proxy executor."""
    case = package_case(zoo("plugin"))
    assert case.package is not None and own_code(case) == ["aoti_torch_cpu_halve_rows"]
    vars(case.package)["proxy_calls"] = ({"target": "aten::median.dim"},)
    assert own_code(case) == []


@pytest.mark.parametrize(("off", "weak"), [(0.12, True), (0.5, False)])
def test_differences_as_large_as_rounding_accuse_nobody(zoo: Zoo, off: float, weak: bool) -> None:
    """In bfloat16, one step is 1/256 of a number, and the package has no more digits."""
    case = package_case(zoo("ranker"))
    assert case.package is not None
    constants = tuple(replace(each, dtype="bfloat16") for each in case.package.constants)
    vars(case.package)["constants"] = constants  # cached: read once from the wrapper
    case.symptom = Symptom(expect=Path("right.pt"))
    first = {"index": [0, 0], "before": "16.0", "after": "16.12"}
    output = {"output": 0, "elements": 8, "changed": 3, "first": [first]}
    event = {"event": "compared_expected", "given": True, "equal": False}
    outputs = [{**output, "by": off, "reach": 16.0}]
    case.runs["plain"] = run("plain", "", called(), {**event, "outputs": outputs})
    (found,) = detect(case)
    assert found.weak == weak and ("bfloat16" in found.summary) == weak


CASTS = "aoti_compile_and_package(..., inductor_configs={'emulate_precision_casts': True})"
CHECKED = "AssertionError: Tensor-likes are not close!"


def compared(zoo: Zoo, *, reference: bool | None = True, within: bool = True) -> DiagnosisState:
    """Make a script whose check rejected outputs that differ from eager's, compared with float64."""
    case = package_case(zoo("ranker"))
    case.workload = ScriptWorkload(script=Path("serve.py"))
    case.capture = capture(calls=[phase(3, load=1, thread=1, file="inputs.pt")])
    case.runs["script"] = run("script", CHECKED)
    shapes = [{"output": 0, "elements": 4, "changed": 2, "by": 0.06}]
    case.runs["plain"] = run("plain", "", {"event": "compared_expected", "equal": False, "outputs": shapes})
    outputs = [{"within": within, "error": 0.002, "eager_error": 0.06}]
    case.interpreted = worker_run(
        {"event": "compared", "equal": False, "outputs": shapes},
        {"event": "rounding", "outputs": outputs, "reference": reference, "narrow": True},
    )
    return case


def concluded(case: DiagnosisState, directory: Path) -> Verdict:
    return conclude(detect(case), case, context_in(directory / "job"))


@pytest.mark.parametrize("effect, sure", [(None, "likely"), (Effect.SAME, "likely"), (Effect.GONE, "proven")])
def test_a_check_stricter_than_rounding(zoo: Zoo, tmp_path: Path, effect: Effect | None, sure: str) -> None:
    """Nobody is accused, and the verdict says how much the check must allow.

    A compile that rounds like eager proves it. If it changes nothing, the float64 reference still counts.
    """
    case = compared(zoo)
    assert look("emulate_precision_casts").gain(case, []) > 0
    if effect is not None:
        case.trials[KEY] = casts_trial(FailureShown(kind="departs"), effect)
    found = concluded(case, tmp_path)
    assert (found.outcome, found.guilty, found.confidence) == ("no_fault", None, sure)
    assert "only by rounding" in found.summary and found.fix is not None
    assert (found.fix.after == CASTS and found.fix.ran is not None) == (effect is Effect.GONE)
    assert effect is Effect.GONE or "0.062" in found.fix.text


@pytest.mark.parametrize("more", [{"within": False}, {"reference": False}, {"reference": None}])
def test_what_rounding_does_not_explain_stays_a_fault(zoo: Zoo, tmp_path: Path, more: dict[str, Any]) -> None:
    """One wrong element, or a check that compares with other values than eager's, stays a fault."""
    case = compared(zoo, **more)
    assert look("emulate_precision_casts").gain(case, []) == 0
    assert concluded(case, tmp_path).outcome != "no_fault"


SCRIPT = """
import tempfile
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = x * 3.7 - x * x * 3.7
        return x

if __name__ == "__main__":
    x = torch.rand(64, generator=torch.Generator().manual_seed(1)).to("DEVICE", torch.bfloat16)
    program = torch.export.export(Model(), (x,))
    path = tempfile.mkdtemp() + "/model.pt2"
    package = torch._inductor.aoti_compile_and_package(program, package_path=path)
    torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x), Model()(x))
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@thorough
def test_a_bf16_script_is_cleared_by_a_real_compile(tmp_path: Path, device: str) -> None:
    """The package is closer to float64 than eager. Compiled with eager's rounding, it passes its check."""
    script = tmp_path / "serve.py"
    script.write_text(SCRIPT.replace("DEVICE", device))
    workload = ScriptWorkload(script=script, env=torch_environment())
    found = served(diagnose, context_in(tmp_path / "job"), workload, budget_s=240)
    assert (found.outcome, found.confidence) == ("no_fault", "proven"), found.summary
    assert found.fix is not None and found.fix.after == CASTS


def test_a_verdict_says_which_of_several_calls_was_checked(zoo: Zoo) -> None:
    """The outputs of one call are compared with the expected ones, so nothing is said of the others."""
    case = package_case(zoo("ranker"))
    case.runs["plain"] = run("plain", "", called(), {"event": "checked_outputs", "status": 0})
    calls = [phase(number, load=1, thread=1, file="call.pt") for number in (1, 2, 3)]
    case.capture = capture(calls=calls)
    assert "Only call 3 of 3 was checked: its outputs are as expected." in health_summary(case)
    case.capture = capture(calls=calls[-1:])
    assert "The outputs are as expected." in health_summary(case)
