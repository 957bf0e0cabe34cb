"""Verdicts on bad calls: the cause, sentences that are true of the tensors, and a proof that runs."""

import ast
import math
import re
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree

from benchmarks.plant.faults.models import replace_bytes
from mcp_server import brief
from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.program_seen import Symptom
from mcp_server.model import PROOF_FILE, PackageWorkload, ScriptWorkload, Verdict
from mcp_server.package.archive import open_package
from mcp_server.package.pytorch.text import read_constants
from mcp_server.runtime.context import Context
from tests.conftest import Zoo
from tests.served import served
from tests.support.command import output_of
from tests.support.tools import of_package, verdict
from tests.zoo.names import nightly, thorough

pytestmark = pytest.mark.slow

# Category, kind of the cause, its value, and the code at its line of the model.
CAUSES = {
    ("ranker", "bad-index"): ("index_out_of_bounds", "input", "32 at [0, 5] (allowed: 0..31)", "table(ids)"),
    ("ranker", "bad-dtype"): ("input_mismatch", "input", "int32 (compiled: int64)", "self.table(ids)"),
    ("logarithm", "bad-nan"): ("nan_or_inf", "kernel", "nan at [0, 5]", "torch.log(scale)"),
}
ELEMENT = re.compile(r"args\[(?P<place>\d+)\]\[(?P<index>[\d, ]+)\] = (?P<value>[-\w.]+)")
FIRST = re.compile(r"Element \[(?P<index>[\d, ]+)\] of input (?P<place>\d+) \(.*?\) is (?P<value>-?\d+)\.")
TABLE = re.compile(r"constant (?P<name>[\w.]+) of shape \[(?P<rows>\d+), .*where 0 to (?P<last>\d+) are")
DTYPES = re.compile(
    r"Input (?P<place>\d+) .* is (?P<given>\w+), but the package was compiled for (?P<meant>\w+)"
)
RETURNED = re.compile(r"returned (?P<count>\d+) NaN values? in output (?P<output>\d+)")


class Case:
    """A package of the zoo with its bad inputs, its exported program, and the verdict on them."""

    def __init__(self, package: Path, inputs: str, folder: Path) -> None:
        given = package.with_name(f"{package.stem}.{inputs}.pt")
        exported = package.with_name(f"{package.stem}.exported.pt2")
        loaded = torch.load(given)
        self.args: list[Any] = list(loaded["args"] if isinstance(loaded, dict) else loaded)
        self.package, self.program = package, torch.export.load(exported)
        self.cause = CAUSES[package.stem, inputs]
        context = Context(directory=folder, python=Path(sys.executable))
        workload = PackageWorkload(package=package, inputs=given)
        seen = Symptom(program=exported)
        self.found: Verdict = served(diagnose, context, workload, budget_s=120, symptom=seen)
        self.text = brief.text(self.found)

    def outputs(self, call: Callable[..., Any]) -> list[torch.Tensor]:
        return [each for each in _pytree.tree_leaves(call(*self.args)) if isinstance(each, torch.Tensor)]


@pytest.fixture(
    scope="module",
    params=[("ranker", "bad-index"), *nightly(*((e,) for e in CAUSES if e != ("ranker", "bad-index")))],
    ids="-".join,
)
def case(request: pytest.FixtureRequest, zoo: Zoo, tmp_path_factory: pytest.TempPathFactory) -> Case:
    name, inputs = request.param
    return Case(zoo(name), inputs, tmp_path_factory.mktemp("job"))


def test_the_cause_is_named(case: Case) -> None:
    """The verdict has the category, the component with its value, and the model's line."""
    guilty = case.found.guilty
    assert guilty is not None and case.found.confidence == "proven", case.text
    assert (case.found.category, guilty.kind, guilty.value) == case.cause[:3]
    assert case.cause[3] in guilty.model_locations[0].code


def test_the_launch_is_shown_as_pytorch(case: Case) -> None:
    """The verdict shows a few lines of the program, with the check that failed."""
    assert len(case.found.program) <= 12
    if case.found.category == "index_out_of_bounds":
        assert any("check(" in line and "'launch 0'" in line for line in case.found.program)


def test_the_proof_fails_passes_and_fails(case: Case) -> None:
    """The proof has at most 25 lines, imports only torch, and prints what the verdict claims."""
    (proof,) = (each for each in case.found.artifacts if each.path.name == PROOF_FILE)
    text = proof.path.read_text()
    assert text.count("\n") <= 25
    nodes = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Import | ast.ImportFrom)]
    assert {alias.name.partition(".")[0] for each in nodes for alias in each.names} == {"torch"}
    before = processor_seconds()
    done = output_of([sys.executable, proof.path])
    ends = [line.rpartition(": ")[2] for line in done.stdout.splitlines()]
    assert (ends, done.stderr) == (["fails", "passes", "fails"], ""), done
    assert processor_seconds() - before < 60, "in seconds of a processor: others use the machine, too"


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_each_element_has_the_value_that_is_told(case: Case) -> None:
    """Elements in the summary and root cause have the quoted values, and not those of the experiment."""
    told = "\n".join([case.found.summary, *(case.found.guilty.elements if case.found.guilty else ())])
    for found in [*ELEMENT.finditer(told), *FIRST.finditer(told)]:
        index = tuple(map(int, found["index"].split(",")))
        assert case.args[int(found["place"])][index].item() == float(found["value"]), found[0]


def test_limits_and_dtypes_are_those_of_model_and_input(case: Case) -> None:
    """Table rows and dtypes in the summary are those of the model and inputs."""
    text = case.found.summary
    for found in TABLE.finditer(text):
        rows = case.program.state_dict[found["name"]].shape[0]
        assert (int(found["rows"]), int(found["last"])) == (rows, rows - 1)
    for found in DTYPES.finditer(text):
        place = int(found["place"])
        assert str(case.args[place].dtype) == f"torch.{found['given']}"
        example = case.program.example_inputs
        assert example is None or str(example[0][place].dtype) == f"torch.{found['meant']}"
    assert TABLE.search(text) or DTYPES.search(text) or case.found.category == "nan_or_inf"


def test_what_the_calls_returned_is_what_they_return(case: Case) -> None:
    """The package gives the quoted counts of NaN, or raises an error."""
    run = case.found.confirmed
    assert run is not None and run.before == run.again, case.text
    counted = RETURNED.search(run.before)
    if counted is None:
        with pytest.raises(RuntimeError):
            case.outputs(torch._inductor.aoti_load_package(str(case.package)))
        return
    outputs = case.outputs(torch._inductor.aoti_load_package(str(case.package)))
    nan = [int(each.isnan().sum()) for each in outputs]
    assert nan[int(counted["output"])] == int(counted["count"])
    assert case.found.headline == f"NaN in output {next(place for place, count in enumerate(nan) if count)}"


def test_eager_mode_does_what_is_told_of_it(case: Case) -> None:
    """`same` means that the program raises or gives values that are not finite."""
    try:
        finite = all(bool(each.isfinite().all()) for each in case.outputs(case.program.module()))
    except (RuntimeError, IndexError):
        finite = False
    if case.found.category in ("index_out_of_bounds", "nan_or_inf"):
        assert case.found.eager == ("differs" if finite else "same"), case.text
    else:
        assert case.found.eager == "not_known"


def test_a_proven_verdict_is_short_and_never_ships_what_was_made_up(case: Case) -> None:
    """At most 15 lines and 1,200 characters; a changed value is no fix, and has a warning below it."""
    assert case.found.confidence == "proven" and case.text.count("\n") < 15 and len(case.text) <= 1200
    assert case.found.fix is not None and case.found.confirmed is not None
    made_up = case.found.category != "input_mismatch"
    assert bool(case.found.confirmed.not_for_shipping) == made_up
    assert not made_up or "clamp(" not in f"{case.found.fix.text}{case.found.fix.after}"


# Verdicts on other bad calls and programs.


INDICES = [
    ("jagged", 1, "9 at [3] (allowed: -6..5)", 0, "values[starts]"),
    pytest.param("scatter", 1, "300 at [7] (allowed: -12..11)", 2, "index_put", marks=thorough),
]


@pytest.mark.parametrize(("name", "place", "value", "launch", "code"), INDICES, ids=lambda value: str(value))
def test_a_bad_index_is_put_on_the_input(
    zoo: Zoo, tmp_path: Path, name: str, place: int, value: str, launch: int, code: str
) -> None:
    """The verdict has the element, its value and bound, the launch and the model's line."""
    found = of_package(zoo, tmp_path, name, "bad-index")
    assert (found.category, found.confidence) == ("index_out_of_bounds", "proven"), found.summary
    assert found.guilty is not None and found.crashing is not None
    assert (found.guilty.kind, found.guilty.input_index, found.guilty.value) == ("input", place, value)
    assert found.crashing.launch_index == launch
    assert code in found.guilty.model_locations[0].code


def test_a_weight_that_is_nan_is_proven_from_the_package_alone(zoo: Zoo, tmp_path: Path) -> None:
    """The weight's bytes are read from the file. With 0 in its place, outputs are finite."""
    package, source = tmp_path / "changed.pt2", zoo("logarithm")
    read = {each.constant.fqn: each for each in read_constants(open_package(source), tmp_path / "c", 1 << 20)}
    old = read["inp.weight"].file.read_bytes()
    at = 4 * (3 * 16 + 5)
    new = old[:at] + struct.pack("<f", math.nan) + old[at + 4 :]
    assert replace_bytes(source, package, old, new)
    inputs = source.with_name("logarithm.inputs.pt")
    found = verdict(tmp_path, PackageWorkload(package=package, inputs=inputs))
    assert (found.category, found.confidence) == ("constants", "proven"), found.summary
    assert found.guilty is not None
    assert (found.guilty.name, found.guilty.value) == ("inp.weight", "nan at [3, 5]")


def test_an_infinite_element_is_proven_although_masks_hold_infinities(zoo: Zoo, tmp_path: Path) -> None:
    """A call with a finite number in its place returns finite outputs, and the element is named."""
    inputs = tmp_path / "inputs.pt"
    x, scale = torch.load(zoo("logarithm").with_name("logarithm.inputs.pt"), weights_only=True)
    scale[2, 5] = -math.inf
    torch.save((x, scale), inputs)
    found = verdict(tmp_path, PackageWorkload(package=zoo("logarithm"), inputs=inputs))
    assert (found.category, found.confidence) == ("nan_or_inf", "proven"), found.summary
    assert found.guilty is not None and found.guilty.elements == ["args[1][2, 5] = -inf"]


def test_a_call_with_too_many_tensors_is_refused_by_the_package(zoo: Zoo, tmp_path: Path) -> None:
    """The refusal has both numbers, so nothing else can be at fault."""
    inputs = tmp_path / "inputs.pt"
    given = torch.load(zoo("logarithm").with_name("logarithm.inputs.pt"), weights_only=True)
    torch.save((*given, given[0]), inputs)
    found = verdict(tmp_path, PackageWorkload(package=zoo("logarithm"), inputs=inputs))
    assert (found.category, found.confidence) == ("input_mismatch", "proven"), found.summary


def test_a_program_that_dies_after_its_call_is_told_where(zoo: Zoo, tmp_path: Path) -> None:
    """Without a cause, the verdict has the line of the death, and that the package's call had returned."""
    script, package = tmp_path / "serve.py", zoo("ranker")
    inputs = package.with_name("ranker.inputs.pt")
    script.write_text(
        "import os, signal, torch\n"
        f"model = torch._inductor.aoti_load_package({str(package)!r})\n"
        f"model(*torch.load({str(inputs)!r}))\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    found = verdict(tmp_path, ScriptWorkload(script=script))
    assert (found.outcome, found.guilty) == ("inconclusive", None), found.summary
    assert "serve.py:4: 1 call had returned. The call returns when it is repeated alone." in found.summary
    assert "error in the script" in found.summary and "compiler" not in found.summary


def test_a_log_alone_starts_nothing_and_proves_nothing(tmp_path: Path) -> None:
    """An index assertion in a log gives a candidate category, no run, and the call that would settle it."""
    log = tmp_path / "crash.log"
    log.write_text("Error: index out of bounds: 0 <= tmp2 < 32L\n")
    found = verdict(tmp_path, None, log)
    assert found.confidence != "proven" and found.cost.runs == 0
    assert "index_out_of_bounds" in (found.category or found.summary)
    assert [step.tool for step in found.next_steps] == ["diagnose"]
