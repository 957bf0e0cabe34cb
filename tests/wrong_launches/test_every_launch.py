"""Every launch judged on right inputs: all wrong ones are listed, and none that only got bad inputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mcp_server.package.archive import open_package
from tests.conftest import ZooPackage
from tests.package.archives import changed, without
from tests.tools.test_compare_with_eager import RANDOM_OP
from tests.wrong_launches.support import compared, judged, kernels_with
from tests.zoo.names import thorough

pytestmark = pytest.mark.slow

Wrong = Callable[[str], Path]


@pytest.mark.parametrize(
    "name",
    [
        "attention",
        *(pytest.param(one, marks=thorough) for one in ("norms", "conv", "ranker", "jagged", "bags")),
    ],
)
def test_no_launch_of_a_healthy_package_is_wrong(zoo: ZooPackage, tmp_path: Path, name: str) -> None:
    """Recomputed nodes, memory used again, copied weights and biases, and views are no faults."""
    found = judged(tmp_path, zoo(name))
    assert found.wrong == [] and found.outputs_right
    assert found.unjudged == [], found.summary
    assert found.judged == len(open_package(zoo(name)).wrapper.launches)


@thorough
@pytest.mark.parametrize("name", ["two", "half"])
def test_all_wrong_kernels_are_listed_and_no_other(wrong: Wrong, tmp_path: Path, name: str) -> None:
    """Layers 0 and 2 are wrong; layers 1 and 3, and every product after layer 0, only get bad inputs."""
    package = wrong(name)
    result = compared(tmp_path, package)
    found = result.every_launch
    assert found is not None and result.outcome == "differs"
    first, _, third, _ = kernels_with(package, "mul_tanh")
    assert [each.launch for each in found.wrong] == [first, third], found.summary
    assert [each.difference.node for each in found.wrong] == ["mul", "mul_2"]
    assert all("SCALE" in each.locations[0].code for each in found.wrong)
    assert found.unjudged == [] and found.outputs_right
    for each in found.wrong:
        right, actual = map(float, each.difference.values)
        assert actual == pytest.approx(right / 2, rel=0.02), "each by itself is half of what is right"


@thorough
def test_launches_of_branches_are_named_as_not_judged(zoo: ZooPackage, tmp_path: Path) -> None:
    """Their nodes stand for the whole branch, of which one launch is a part."""
    found = judged(tmp_path, zoo("branch"))
    assert found.wrong == [] and found.unjudged_count == 5
    assert {each.why for each in found.unjudged} == {"it is in a branch or a loop"}
    assert "5 not judged" in found.summary


@thorough
def test_a_package_without_provenance_says_how_to_get_it(zoo: ZooPackage, tmp_path: Path) -> None:
    """Without nodes for its launches nothing is judged, and nothing is accused."""
    package = changed(zoo("norms"), tmp_path / "norms.pt2", without("kernel_information.json"))
    exported, inputs = (zoo("norms").with_name(f"norms.{kind}") for kind in ("exported.pt2", "inputs.pt"))
    result = compared(tmp_path, package, exported, inputs=inputs)
    assert result.every_launch is not None and result.every_launch.judged == 0
    assert "INDUCTOR_PROVENANCE=1" in result.summary and result.outcome == "agrees"


@thorough
def test_an_eager_program_that_varies_judges_no_launch(zoo: ZooPackage, tmp_path: Path) -> None:
    """With random numbers in eager mode no value is the right one."""
    module = tmp_path / "ops.py"
    module.write_text(RANDOM_OP)
    result = compared(tmp_path, zoo("plugin"), extra_imports=[str(module)])
    assert result.outcome == "inconclusive" and result.every_launch is not None
    assert result.every_launch.wrong == [] and "eager has no values to go by" in result.summary


def test_a_launch_of_another_weight_is_not_called_a_wrong_kernel(zoo: ZooPackage, tmp_path: Path) -> None:
    """It is listed, with the weight that is not the program's."""
    program = torch.export.load(zoo("norms").with_name("norms.exported.pt2"))
    with torch.no_grad():
        program.state_dict["lins.3.weight"][2, 5] += 0.01
    torch.export.save(program, tmp_path / "other.pt2")
    result = compared(tmp_path, zoo("norms"), tmp_path / "other.pt2")
    assert result.every_launch is not None
    (found,) = result.every_launch.wrong
    assert (found.launch, found.constant) == (7, "lins.3.weight") and "not the program's" in found.summary


@thorough
def test_the_plan_says_what_each_launch_stores_and_reads(wrong: Wrong, tmp_path: Path) -> None:
    """That is what a launch is done in eager mode from."""
    found = judged(tmp_path, wrong("two"))
    assert found.plan is not None and found.eager_outputs is not None
    plan = json.loads(found.plan.path.read_text())
    stored = {number: [one["node"] for one in held.values()] for number, held in plan["stored"].items()}
    assert stored == {str(n): [node] for n, node in enumerate(NODES)}
    assert list(plan["sources"]["2"].values()) == [[1, "buf1"]]
    (output,) = torch.load(found.eager_outputs.path)
    assert output.shape == (8, 16)


NODES = ("linear", "mul", "linear_1", "mul_1", "linear_2", "mul_2", "linear_3", "mul_3")
