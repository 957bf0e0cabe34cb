"""A symptom, an expectation or a check command, given with a real package on the CPU."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload
from mcp_server.render import as_text
from tests.conftest import CACHE, ROOT, Zoo, compiled_once, torch_environment
from tests.support.command import output_of
from tests.support.tools import BY_NAME, of_call, tool
from tests.zoo.names import nightly, thorough

CHECK = """import sys, torch
scores = torch.load(sys.argv[1], weights_only=True)[0]
sys.exit(0 if {condition} else "the scores are not right")
"""


@pytest.fixture(scope="session")
def scaled() -> Path:
    """scaled.pt2, with its inputs and expected outputs beside it (see `models.py`)."""
    return compiled_once(CACHE.parent / "symptom" / "scaled.pt2", "tests.symptom.models", "scaled")


def expecting(package: Path, name: str = "right") -> Symptom:
    return Symptom(expect=package.with_name(f"scaled.{name}.pt"))


def checking(directory: Path, condition: str) -> tuple[str, ...]:
    """Write a command that judges the scores."""
    script = directory / "check.py"
    script.write_text(CHECK.format(condition=condition))
    return (sys.executable, str(script))


@pytest.mark.parametrize("right", ["other-right", *nightly("")])
def test_a_number_that_the_code_does_not_have_is_possible(scaled: Path, tmp_path: Path, right: str) -> None:
    """The verdict names the argument, its value and similar literals. It is never "no fault"."""
    found = of_call(tmp_path, scaled, "other", expecting(scaled, right) if right else Symptom())
    assert (found.outcome, found.category, found.confidence) == ("fault", "input_mismatch", "possible")
    assert found.guilty is not None and found.guilty.value == "0.3 (exported: 0.7 or 3.5)"
    assert "args[1] = 0.3" in found.summary and "0.7 in kernel.cpp:" in found.summary


def test_an_argument_more_than_exported_is_named(scaled: Path, tmp_path: Path) -> None:
    """The package ignores it without an error."""
    found = of_call(tmp_path, scaled, "surplus", Symptom())
    assert (found.category, found.confidence) == ("input_mismatch", "possible")
    assert "args[2] = 12 is an argument that the model was not exported with" in found.summary


@thorough
def test_an_expectation_that_is_met_is_no_fault(scaled: Path, tmp_path: Path) -> None:
    """The outputs are right, whatever the symptom says, and the check command passes."""
    check = checking(tmp_path, "bool((scores.sum(-1) - 1).abs().max() < 1e-5)")
    given = Symptom("wrong-output", scaled.with_name("scaled.right.pt"), check=check)
    found = of_call(tmp_path, scaled, "inputs", given)
    assert found.outcome == "no_fault" and "as expected" in found.summary


def test_wrong_output_without_an_expectation_is_open(scaled: Path, tmp_path: Path) -> None:
    """The verdict is not "no fault", but says what to pass, as valid calls."""
    found = of_call(tmp_path, scaled, "inputs", Symptom("wrong-output"))
    assert found.outcome == "inconclusive" and "expect" in found.summary
    assert [step.tool for step in found.next_steps] == ["diagnose", "compare_with_eager"]
    BY_NAME["diagnose"].arguments.model_validate(found.next_steps[0].arguments)


@thorough
def test_a_program_that_ends_well_is_judged_by_its_last_call(scaled: Path, tmp_path: Path) -> None:
    """The script checks nothing. The expectation belongs to its second call, with 0.3."""
    program = tmp_path / "serve.py"
    program.write_text(
        "import torch\n"
        f"model = torch._inductor.aoti_load_package({str(scaled)!r})\n"
        f"for name in ('inputs', 'other'):\n"
        f"    model(*torch.load({str(scaled.with_name('scaled'))!r} + '.' + name + '.pt'))\n"
    )
    right = scaled.with_name("scaled.other-right.pt")
    found = tool("diagnose", tmp_path / "job", script=program, expect=right, budget_s=240)
    assert (found.outcome, found.category, found.confidence) == ("fault", "input_mismatch", "possible")
    assert found.guilty is not None and "0.3" in str(found.guilty.value)


def test_wrong_outputs_without_a_cause_lead_to_the_reference(scaled: Path, tmp_path: Path) -> None:
    """Nothing about the call is wrong: only the program or the intended weights can settle it.

    Nothing was compared with eager mode, and no line says so.
    """
    found = of_call(tmp_path, scaled, "inputs", expecting(scaled, "other-right"))
    assert (found.outcome, found.category, found.confidence) == ("fault", "wrong_output", "possible")
    assert [step.tool for step in found.next_steps] == ["compare_with_eager", "decompile", "try_fix"]
    for step in found.next_steps:
        BY_NAME[step.tool].arguments.model_validate(step.arguments)
    assert "from eager" not in as_text(found, verbose=True)


@thorough
def test_a_layer_unlike_the_others_is_proven_without_its_source(tmp_path: Path) -> None:
    """With the other layers' code in its launch, the outputs are as expected."""
    package = compiled_once(CACHE.parent / "symptom" / "tower.pt2", "tests.symptom.models", "tower")
    found = of_call(tmp_path, package, "inputs", Symptom(expect=package.with_name("tower.right.pt")))
    assert (found.category, found.confidence) == ("wrong_output", "proven"), found.summary
    assert found.guilty is not None and found.guilty.kind == "kernel"
    assert "unlike the 3 others of its kind" in found.summary and "It is in layer layers.2." in found.summary
    assert found.fix is not None and "* 0.25" in str(found.fix.before) and "* 0.5" in str(found.fix.after)


@pytest.mark.slow
def test_a_check_that_fails_on_right_outputs_is_an_error(scaled: Path, tmp_path: Path) -> None:
    """The expectation is met, but the command rejects it, so the command is wrong."""
    given = Symptom(expect=scaled.with_name("scaled.right.pt"), check=checking(tmp_path, "False"))
    with pytest.raises(ProblemError, match="fails on the expected outputs, too: the scores are not right"):
        of_call(tmp_path, scaled, "inputs", given)


@pytest.mark.parametrize(
    ("made", "what"),
    [
        ([torch.zeros(2, 2), torch.zeros(6)], r"output 0 has shape \[6, 16\] instead of \[2, 2\]"),
        (None, "the expectation was not written by torch.save"),
    ],
    ids=["shape", "no file of torch"],
)
def test_impossible_expectations_are_errors(scaled: Path, tmp_path: Path, made: object, what: str) -> None:
    """The expectation has another shape than the output, or is no file of torch.save."""
    path = tmp_path / "expect.pt"
    if made is None:
        path.write_text("no tensors")
    else:
        torch.save(made, path)
    with pytest.raises(ProblemError, match=what):
        of_call(tmp_path, scaled, "inputs", Symptom(expect=path))


def test_nan_that_is_expected_is_no_fault(scaled: Path, tmp_path: Path) -> None:
    """A missing value in an input makes NaN. The expected outputs have it, up to rounding."""
    package, given = tmp_path / "scaled.pt2", torch.load(scaled.with_name("scaled.inputs.pt"))
    shutil.copy(scaled, package)
    given[0][0, 0] = float("nan")
    torch.save(given, package.with_name("scaled.missing.pt"))
    outputs = torch._inductor.aoti_load_package(str(package))(*given)
    torch.save([each + 1e-6 for each in outputs], tmp_path / "right.pt")
    found = of_call(tmp_path, package, "missing", Symptom(expect=tmp_path / "right.pt"))
    assert found.outcome == "no_fault" and "with NaN in its outputs" in found.summary
    assert "exported program" not in found.summary, "none was given"
    assert "which is within the tolerance. A check that compares bits" in found.summary


def test_a_check_that_itself_fails_accuses_nobody(scaled: Path, tmp_path: Path) -> None:
    """Status 1 means wrong outputs. Any other status means that the check failed."""
    check = (sys.executable, "-c", "import sys; sys.exit(2)")
    with pytest.raises(ProblemError, match="ended with status 2, which says nothing about the outputs"):
        of_call(tmp_path, scaled, "inputs", Symptom(check=check))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"check": ["no-such-program"]}, "the check command cannot be started: no such program"),
        ({"expect": "nowhere.pt"}, "no such file for `expect`"),
        ({"rtol": 0.1}, "tolerances are given without correct outputs"),
        ({"expect": "scaled.right.pt", "inputs": ""}, "`expect` is given without the inputs"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    scaled: Path, tmp_path: Path, given: dict[str, object], what: str
) -> None:
    """The command or file is missing, or arguments exclude each other."""
    fields = {"cwd": str(scaled.parent), "package": "scaled.pt2", "inputs": "scaled.inputs.pt", **given}
    with pytest.raises(ProblemError, match=what):
        tool("diagnose", tmp_path, **fields)


def test_a_log_has_no_outputs_to_judge(scaled: Path, tmp_path: Path) -> None:
    """A log is judged neither by an expectation nor by a check command."""
    log = tmp_path / "failed.log"
    log.touch()
    for given in ({"expect": scaled.with_name("scaled.right.pt")}, {"check": ["true"]}):
        with pytest.raises(ProblemError, match="does not apply to a log, which calls no package"):
            tool("diagnose", tmp_path, log=log, **given)


@thorough
@pytest.mark.parametrize(
    ("package", "body", "category", "named"),
    [
        (
            "logarithm",
            "x, scale = torch.rand(8, 16) + 0.1, torch.rand(8, 16) + 1\n"
            "right = torch.tensor(model(x, scale).tolist())\n"
            "found = model(scale, x)\n",
            "input_mismatch",
            "scale and x are exchanged",
        ),
        (
            "norms",
            "shapes = [(f'{n}.{i}.{p}', (24,) * (1 + (n + p == 'linsweight'))) for n in ('lins', 'norms')"
            " for i in range(6) for p in ('weight', 'bias')]\n"
            "state, x = {name: torch.randn(shape) for name, shape in shapes}, torch.randn(8, 24)\n"
            "model.load_constants(state, check_full_update=True)\n"
            "right = torch.tensor(model(x).tolist())\n"
            "one, other = 'lins.1.weight', 'lins.4.weight'\n"
            "state |= {one: state[other], other: state[one]}\n"
            "model.load_constants(state, check_full_update=True)\n"
            "found = model(x)\n",
            "constants",
            "lins.1.weight and lins.4.weight are exchanged",
        ),
    ],
)
def test_what_is_in_each_others_place_is_proven(
    zoo: Zoo, package: str, body: str, category: str, named: str, tmp_path: Path
) -> None:
    """Both have the same dtype and shape. Only a call with them exchanged gives the expected outputs."""
    program, load = tmp_path / "serve.py", f"torch._inductor.aoti_load_package({str(zoo(package))!r})"
    check = "torch.testing.assert_close(found, right)\n"
    program.write_text(f"import torch\nmodel = {load}\n{body}{check}")
    found = tool("diagnose", tmp_path / "job", script=program, budget_s=240)
    assert (found.outcome, found.category, found.confidence) == ("fault", category, "proven")
    assert named in found.summary


@thorough
def test_an_infinity_is_followed_through_a_product_to_its_input(zoo: Zoo, tmp_path: Path) -> None:
    """A negative factor changes its sign. The product that first shows it did not create it."""
    x = torch.randn(8, 10, 32)
    x[2, 4, 7] = float("-inf")
    torch.save([x], tmp_path / "inputs.pt")
    given = {"package": zoo("attention"), "inputs": tmp_path / "inputs.pt", "symptom": "nan"}
    found = tool("diagnose", tmp_path / "job", **given, budget_s=240)
    assert (found.category, found.confidence) == ("nan_or_inf", "proven")
    assert found.guilty is not None and found.guilty.kind == "input"
    assert found.guilty.elements == ["args[0][2, 4, 7] = -inf"] and "inputs were good" not in found.summary


# Faults that report nothing, found by an expectation alone, without a program or source.


@pytest.fixture(
    scope="session", params=[pytest.param("cpu", marks=thorough), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def silent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """silent.pt2, with its inputs and expected outputs beside it."""
    if request.param == "cpu":
        return compiled_once(CACHE.parent / "symptom" / "silent.pt2", "tests.symptom.models", "silent")
    folder = tmp_path_factory.mktemp("silent")
    # CUDA cannot be used in a fork of a process that has initialized it.
    argv = [sys.executable, "-W", "ignore", "-m", "tests.symptom.models", "silent", str(folder), "cuda"]
    env = torch_environment()
    done = output_of(argv, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "silent.pt2"


def beside(package: Path, name: str) -> Path:
    return package.with_name(f"silent.{name}.pt")


@pytest.mark.slow
def test_a_product_that_does_not_fit_is_proven_by_64_bits(silent: Path, tmp_path: Path) -> None:
    """The product is taken modulo a size, so every index is within its bound."""
    found = of_call(tmp_path, silent, "far", Symptom(expect=beside(silent, "far-right")))
    assert (found.outcome, found.category, found.confidence) == ("fault", "wrong_output", "proven")
    assert "args[0] * 46021" in found.summary and "32 bits" in found.summary
    assert found.fix is not None and ".long()" in found.fix.text and found.confirmed is not None


@thorough
def test_a_check_command_takes_part_in_the_trials(silent: Path, tmp_path: Path) -> None:
    """The command rejects the results of 32 bits, and accepts those of 64."""
    script = tmp_path / "check.py"
    right = str(beside(silent, "far-right"))
    script.write_text(
        "import sys, torch\n"
        f"given, right = (torch.load(each, weights_only=True)[0] for each in (sys.argv[1], {right!r}))\n"
        "sys.exit(not torch.allclose(given.cpu(), right.cpu(), atol=1e-4))\n"
    )
    found = of_call(tmp_path, silent, "far", Symptom(check=(sys.executable, str(script))))
    assert (found.category, found.confidence) == ("wrong_output", "proven")
    assert found.intervention is not None and "check command" in found.intervention.before


@thorough
def test_a_product_that_fits_is_cleared(silent: Path, tmp_path: Path) -> None:
    """The kernel in 64 bits gives the same numbers, so something else is wrong."""
    found = of_call(tmp_path, silent, "inputs", Symptom(expect=beside(silent, "meant-right")))
    assert (found.category, found.confidence) == ("wrong_output", "possible")
    assert any("32 bits" in cleared.hypothesis for cleared in found.bystanders)


@pytest.mark.slow
def test_the_constant_that_differs_is_found_among_those_given(silent: Path, tmp_path: Path) -> None:
    """All constants are passed. The one that the package has permuted is enough."""
    workload = PackageWorkload(package=silent, inputs=beside(silent, "inputs"))
    given = {"constants": beside(silent, "weights"), "expect": beside(silent, "meant-right")}
    found = tool("try_fix", tmp_path, workload, **given)
    assert found.outcome == "fixed" and found.enough_constants == ["head.weight"]
    assert "Of the constants, head.weight is enough." in found.summary
