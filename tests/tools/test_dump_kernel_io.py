"""Inputs and outputs of kernels of real packages, through launch probes."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from mcp_server.errors import ProblemError
from mcp_server.model import PackageWorkload
from mcp_server.package.archive import open_package
from mcp_server.package.view import PackageView
from mcp_server.tools.kernel_io import ArgumentValues, LaunchValues, find_first_bad
from mcp_server.worker.report import OddElement
from tests.conftest import Zoo
from tests.package.archives import changed, without
from tests.support.tools import tool

pytestmark = pytest.mark.slow


def dumped(directory: Path, workload: PackageWorkload, **options: Any) -> Any:
    return tool("dump_kernel_io", directory, workload, **options)


def package(zoo: Zoo, name: str, inputs: str) -> PackageWorkload:
    path = zoo(name)
    return PackageWorkload(package=path, inputs=path.with_name(f"{name}.{inputs}.pt"))


def model_of(zoo: Zoo, name: str) -> PackageView:
    opened = open_package(zoo(name))
    return PackageView(opened)


def test_probes_name_the_kernel_that_made_the_first_nan(zoo: Zoo, tmp_path: Path) -> None:
    """NaN is put on the launch of the logarithm, with element and model line, and not on later launches."""
    seen = dumped(tmp_path, package(zoo, "logarithm", "bad-nan"))
    assert seen.returned and seen.first_bad is not None
    bad = seen.first_bad
    assert (bad.kind, bad.argument, bad.element.index, bad.element.count) == ("kernel", "buf1", [0, 5], 1)
    assert "log" in bad.kernel and bad.inputs_were_good is True
    assert [location.code for location in bad.locations] == ["h = h.sigmoid() * torch.log(scale)"]
    assert seen.launches[0].bad and seen.cost.compiles == 0
    assert seen.json_file is not None and len(json.loads(seen.json_file.path.read_text())) == seen.seen == 3


def test_probes_name_the_input_whose_index_is_out_of_bounds(zoo: Zoo, tmp_path: Path) -> None:
    """The bad index is found before the launch that would fail, with its position and bound."""
    seen = dumped(tmp_path, package(zoo, "ranker", "bad-index"))
    assert not seen.returned and seen.failure is not None and seen.first_bad is not None
    bad = seen.first_bad
    assert (bad.what, bad.kind, bad.element.value, bad.element.index) == ("outside", "input", "32", [0, 5])
    assert "args[0]" in bad.name and "0 <= index < 32" in bad.summary
    assert seen.last_launch == bad.kernel == "cpp_fused_embedding_0"


def test_an_operators_index_is_held_against_what_it_indexes(zoo: Zoo, tmp_path: Path) -> None:
    """A scatter has no assert, so its index is compared with the dimension that it writes."""
    bad = dumped(tmp_path, package(zoo, "scatter", "bad-index"), launches=[1]).first_bad
    assert bad is not None and (bad.what, bad.kind, bad.launch) == ("outside", "input", 1)
    assert (bad.element.value, bad.argument) == ("300", "arg1_1") and "0 <= index < 12" in bad.summary


def test_an_index_is_held_against_a_size_of_the_call(zoo: Zoo, tmp_path: Path) -> None:
    """A bound that is another input's size is read from the launch."""
    bad = dumped(tmp_path / "bad", package(zoo, "jagged", "bad-index")).first_bad
    assert bad is not None and (bad.what, bad.kind, bad.element.value) == ("outside", "input", "9")
    assert "< 6 = ks1" in bad.summary
    assert dumped(tmp_path / "good", package(zoo, "jagged", "inputs")).first_bad is None


def test_a_run_that_was_stopped_on_purpose_is_no_failure(zoo: Zoo, tmp_path: Path) -> None:
    """With stop_at_first_bad, the call ends at the finding, which is not reported as a failure."""
    seen = dumped(tmp_path, package(zoo, "logarithm", "bad-nan"), stop_at_first_bad=True)
    assert seen.stopped and not seen.returned and seen.failure is None
    assert seen.first_bad is not None and seen.first_bad.argument == "buf1"
    assert seen.seen == 2


def test_a_healthy_call_has_no_bad_value(zoo: Zoo, tmp_path: Path) -> None:
    """Good inputs give statistics of every launch and no finding, and tensors are saved."""
    call = package(zoo, "logarithm", "inputs")
    seen = dumped(tmp_path, call, launches=[1], buffers=["buf1"], save=True)
    assert seen.returned and seen.first_bad is None and seen.failure is None
    assert {a.name for launch in seen.launches for a in launch.arguments} == {"buf1"}
    after = next(a for a in seen.launches[0].arguments if a.when == "after")
    assert after.nan == after.inf == 0 and after.min is not None and after.saved is not None
    assert after.saved.path.name == f"1-{seen.launches[0].kernel}-buf1-after.safetensors"
    values = load_file(after.saved.path)["buf1"]
    assert (list(values.shape), values.min().item()) == (after.shape, after.min)


def test_launches_are_chosen_by_model_line(zoo: Zoo, tmp_path: Path) -> None:
    """A line of the model selects its launches, and restricts other choices."""
    call = package(zoo, "logarithm", "inputs")
    (place,) = model_of(zoo, "logarithm").locations(1)
    for line in (f"{place.file}:{place.line}", f"{Path(place.file).name}:{place.line}", str(place.line)):
        assert {seen.launch for seen in dumped(tmp_path, call, kernels=[line]).launches} == {1}
    with pytest.raises(ProblemError, match="none of these launches"):
        dumped(tmp_path, call, launches=[0], kernels=[str(place.line)])
    with pytest.raises(ProblemError, match="no launch is known") as refused:
        dumped(tmp_path, call, kernels=["models.py:1"])
    assert f":{place.line}" in str(refused.value)


def test_a_package_without_provenance_knows_no_lines(zoo: Zoo, tmp_path: Path) -> None:
    """The error says how to compile so that lines are known."""
    call = package(zoo, "logarithm", "inputs")
    unknowing = changed(zoo("logarithm"), tmp_path / "p.pt2", without("kernel_information.json"))
    with pytest.raises(ProblemError, match="INDUCTOR_PROVENANCE"):
        dumped(tmp_path, call.model_copy(update={"package": unknowing}), kernels=["7"])


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"launches": [3]}, "no such launch.*0 to 2"),
        ({"kernels": ["log_mul_sigmoid"]}, "no such kernel.*cpp_fused_log_mul_sigmoid_0"),
        ({"buffers": ["buf99"]}, "no such buffer.*buf"),
    ],
)
def test_an_unknown_choice_is_refused_with_near_names(
    zoo: Zoo, tmp_path: Path, choice: dict[str, list[Any]], reason: str
) -> None:
    """A choice that matches nothing is an error, and not an empty result."""
    with pytest.raises(ProblemError, match=reason):
        dumped(tmp_path, package(zoo, "logarithm", "inputs"), **choice)


NAN = OddElement(value="nan", index=[0], count=1)
MASK = OddElement(value="-inf", index=[0], count=4)


def values(launch: int, kernel: str, *arguments: ArgumentValues) -> LaunchValues:
    return LaunchValues(launch=launch, sequence=launch, kernel=kernel, arguments=list(arguments))


def test_a_bad_input_and_a_bad_constant_are_named(zoo: Zoo) -> None:
    """A bad value that no launch wrote is an input or constant, with the name that its owner uses."""
    model = model_of(zoo, "logarithm")
    given = ArgumentValues(name="arg4_1", when="before", role="read", non_finite=NAN)
    weight = ArgumentValues(name="inp_weight", when="before", role="read", non_finite=NAN)
    first = find_first_bad([values(0, "k", given)], model)
    second = find_first_bad([values(0, "k", weight)], model)
    assert first is not None and first.kind == "input" and "args[0]" in first.name
    assert second is not None and (second.kind, second.name) == ("constant", "inp.weight")


def test_an_element_of_a_constant_has_its_place_in_the_model(zoo: Zoo) -> None:
    """A product reads the weight [8, 16] transposed. The result has [5, 12], the owner's index."""
    bad = OddElement(value="nan", index=[12, 5], count=1)
    read = {"name": "out_weight", "when": "before", "role": "read", "shape": [16, 8], "stride": [1, 16]}
    argument = ArgumentValues.model_validate({**read, "non_finite": bad})
    found = find_first_bad([values(2, "k", argument)], model_of(zoo, "logarithm"))
    assert found is not None and (found.name, found.element.index) == ("out.weight", [5, 12])


def test_minus_infinity_counts_only_when_nothing_else_is_bad(zoo: Zoo) -> None:
    """A mask is reported as perhaps intended, and never before a NaN."""
    model = model_of(zoo, "logarithm")
    mask = values(0, "k", ArgumentValues(name="buf0", when="after", role="written", non_finite=MASK))
    nan = values(1, "k", ArgumentValues(name="buf2", when="after", role="written", non_finite=NAN))
    both, alone = find_first_bad([mask, nan], model), find_first_bad([mask], model)
    assert both is not None and both.argument == "buf2" and not both.perhaps_intended
    assert alone is not None and alone.perhaps_intended and "mask" in alone.summary


def test_unset_memory_is_never_bad(zoo: Zoo) -> None:
    """The contents of an output buffer before its launch are ignored."""
    unset = ArgumentValues(name="buf0", when="before", role="written", uninitialised=True, non_finite=NAN)
    assert find_first_bad([values(0, "k", unset)], model_of(zoo, "logarithm")) is None
