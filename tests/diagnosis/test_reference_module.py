"""The module that a package is compared with, against the one that was exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.causes import invalid_package
from mcp_server.diagnosis.interventions.base import Effect
from mcp_server.diagnosis.state import CallSpec, DiagnosisState
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.diagnosis.verdict import confidence, ranked
from mcp_server.logs.captured import CapturedEnd
from mcp_server.model import Component, ModelLocation
from tests.conftest import ZooPackage
from tests.diagnosis.support import capture, package_case, phase, run, trial, worker_run

DIFFERS = {"event": "compared_expected", "equal": False, "outputs": [{"shape": [[4], [4]]}]}
CALLED = {"event": "called", "outputs": [{"nan": 0, "inf": 0}]}
EXPORTED = {"level": "3.0", "training": "False", "body.training": "False"}
WEIGHTS = {"table.weight": "one", "hidden.weight": "two", "head.weight": "three"}
OTHER = {**WEIGHTS, "head.weight": "four"}


def module(name: str = "model", **more: Any) -> dict[str, Any]:
    """A module near the comparison, as it was exported and compiled unless `more` says otherwise."""
    return {"name": name, "type": "Gate", "digests": WEIGHTS, "attributes": EXPORTED, "file": "m.pt", **more}


def compared(package: Path, *modules: dict[str, Any], given: dict[str, str] | None = None) -> DiagnosisState:
    """A call that differs from the script's reference, also made again; the package was `given` weights."""
    case = package_case(package)
    update = phase(4, load=1, how="load_constants", digests=given)
    case.capture = capture(
        exports=[phase(1, type="Gate", attributes=EXPORTED)],
        compiles=[phase(2, how="aoti_compile_and_package", package="m.pt2", digests=WEIGHTS)],
        loads=[phase(3, loader="AOTIModelPackageLoader", package="m.pt2")],
        updates=[update] if given else [],
        calls=[phase(5, load=1, thread=1, file="inputs.pt")],
        assertions=[phase(6, file="both.pt", modules=modules)],
    )
    case.call = CallSpec("replay", {"steps": [{"do": "call"}]}, Path("m.pt2"), Path("inputs.pt"))
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    case.runs["plain"] = run("plain", "", CALLED, DIFFERS)
    return case


def test_weights_that_changed_after_the_compile_are_tried_in_the_package(zoo: ZooPackage) -> None:
    """Other values are a suspicion; the package that agrees once it has them makes it proven."""
    case = compared(zoo("ranker"), module(digests=OTHER))
    (found,) = invalid_package.detect_other_model(case)
    assert (found.category, found.guilty.name) == ("constants", "head.weight")
    assert found.intervention is not None and confidence(found, case) == "possible"
    given, call = found.intervention.options.steps or ()
    assert (given["how"], given["file"], call) == ("load_constants", "m.pt", {"do": "call"})
    case.trials[found.intervention.key] = trial(found.intervention, Effect.GONE)
    assert confidence(found, case) == "proven"


def test_constants_that_were_given_in_each_others_place_are_told(zoo: ZooPackage) -> None:
    """After an update the package holds what the update gave it, also where that is another constant's."""
    swapped = {"table.weight": "one", "hidden.weight": "four", "head.weight": "two"}
    case = compared(zoo("ranker"), module(digests=OTHER), given=swapped)
    (found,) = invalid_package.detect_other_model(case)
    assert (found.guilty.name, found.guilty.value) == ("hidden.weight", "holds the values of head.weight")


def test_what_the_program_manages_is_not_held_against_it(zoo: ZooPackage) -> None:
    """User-managed constants change with the program's tensors: the values of the update are past."""
    case = compared(zoo("ranker"), module(digests=OTHER), given=WEIGHTS)
    assert case.capture is not None
    leaves = {name: {"dtype": "float32"} for name in WEIGHTS}
    managed = phase(
        4, load=1, how="load_constants", digests=WEIGHTS, constants=leaves, arguments=[False, True, True]
    )
    assert len(list(invalid_package.detect_other_model(case))) == 1
    case.capture = capture(**{**dict(case.capture), "updates": [managed]})
    assert not list(invalid_package.detect_other_model(case))


def test_an_update_that_left_a_constant_out_is_shown(zoo: ZooPackage) -> None:
    """The line of the update comes first, also where the constant still has the value of the compile."""
    case = compared(zoo("ranker"), module(digests=OTHER), given={"table.weight": "one"})
    assert case.capture is not None
    line = ModelLocation(file="/app/sync.py", line=8, code="package.load_constants(some)")
    update = case.capture.updates[0].model_copy(update={"stack": [line]})
    case.capture = case.capture.model_copy(update={"updates": [update]})
    (found,) = invalid_package.detect_other_model(case)
    assert found.guilty.name == "head.weight" and found.guilty.model_locations[0] == line


def test_a_constant_that_no_update_reaches_is_another_detectors(zoo: ZooPackage) -> None:
    """What was folded into the code keeps its value, and giving it to the package would refute nothing."""
    folded = {**WEIGHTS, "folded": "zero"}
    case = compared(zoo("ranker"), module(digests={**OTHER, "folded": "one"}), given=OTHER)
    assert case.capture is not None
    compiled = case.capture.compiles[0].model_copy(update={"digests": folded})
    case.capture = case.capture.model_copy(update={"compiles": [compiled]})
    assert not list(invalid_package.detect_other_model(case))


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"level": "2.0"}, "Gate.level"), ({"training": "True", "body.training": "True"}, "Gate.training")],
)
def test_attributes_that_changed_after_the_export_are_named(
    zoo: ZooPackage, changed: dict[str, str], name: str
) -> None:
    """Export wrote them into the code; that package and program agree is the second observation."""
    case = compared(zoo("ranker"), module(attributes={**EXPORTED, **changed}))
    (found,) = invalid_package.detect_other_model(case)
    assert (found.category, found.guilty.name, confidence(found, case)) == ("wrong_output", name, "possible")
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": []})
    (found,) = invalid_package.detect_other_model(case)
    assert confidence(found, case) == "likely"


@pytest.mark.parametrize(
    ("modules", "loads", "found"),
    [
        ([module(type="GateV2")], 1, [("wrong_output", "GateV2")]),
        ([module(type="GateV2")], 2, [("invalid_package", "m.pt2")]),
        ([module("v1"), module("v2", type="GateV2", named=True)], 2, [("invalid_package", "m.pt2")]),
        ([module("v1"), module("v2", type="GateV2")], 2, []),
        ([module("v1", named=True), module("v2", type="GateV2")], 2, []),
    ],
    ids=["another", "an old package", "named", "either", "the exported one"],
)
def test_a_module_of_another_class_is_another_model(
    zoo: ZooPackage, modules: list[dict[str, Any]], loads: int, found: list[tuple[str, str]]
) -> None:
    """The weights may be the same; a package that was loaded before is a stale one. Never proven by that."""
    case = compared(zoo("ranker"), *modules)
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": []})
    assert case.capture is not None
    case.capture = case.capture.model_copy(update={"loads": case.capture.loads * loads})
    suspects = list(invalid_package.detect_other_model(case))
    assert [(h.category, h.guilty.name) for h in suspects] == found
    assert all(confidence(h, case) == "likely" for h in suspects)


@pytest.mark.parametrize(
    ("loads", "first"), [(1, "lanes"), (2, "m.pt2")], ids=["a reference", "an old package"]
)
def test_a_fault_at_a_launch_explains_more_than_a_reference_of_another_class(
    zoo: ZooPackage, loads: int, first: str
) -> None:
    """Who writes a reference on purpose gives it a class of its own; an old package explains every launch."""
    case = compared(zoo("ranker"), module(type="Reference"))
    assert case.capture is not None
    case.capture = case.capture.model_copy(update={"loads": case.capture.loads * loads})
    launch = Suspect(
        category="wrong_output",
        guilty=Component(kind="kernel", name="lanes"),
        summary="masked lanes",
        level=CausalLevel.FAULT_SITE,
    )
    assert ranked([*invalid_package.detect_other_model(case), launch], case)[0].guilty.name == first


CHECK = """Traceback (most recent call last):
  File "/app/serve.py", line 9, in main
    raise RuntimeError("too far apart")
RuntimeError: too far apart"""


@pytest.mark.parametrize(
    ("text", "changed", "names"),
    [
        (CHECK, {"attributes": {**EXPORTED, "level": "2.0"}}, ["Gate.level"]),
        (CHECK, {"digests": OTHER}, ["head.weight"]),
        (
            CHECK.replace("raise RuntimeError", "table[9]").replace("RuntimeError", "KeyError"),
            {"digests": OTHER},
            [],
        ),
    ],
    ids=["attribute", "weights", "no check"],
)
def test_a_check_of_the_programs_own_may_see_the_module(
    zoo: ZooPackage, text: str, changed: dict[str, Any], names: list[str]
) -> None:
    """Without numbers to hold the package against, what changed is possible, only after a failed check."""
    case = compared(zoo("ranker"), module(**changed))
    assert case.capture is not None
    end = CapturedEnd.model_validate(phase(7, modules=case.capture.assertions[0].modules))
    case.capture = case.capture.model_copy(update={"assertions": [], "ends": [end]})
    case.runs = {"script": run("script", text), "plain": run("plain", "", CALLED)}
    found = list(invalid_package.detect_other_model(case))
    assert [h.guilty.name for h in found] == names
    assert all(confidence(h, case) == "possible" for h in found)


@pytest.mark.parametrize(
    ("equal", "sure"),
    [({"got": True, "want": False}, "likely"), ({"x": False}, "likely"), ({"got": True}, "likely")],
)
def test_what_the_check_held_tells_that_it_compared(
    zoo: ZooPackage, equal: dict[str, bool], sure: str
) -> None:
    """The output of the call and another tensor of its layout are a comparison, either alone is none."""
    case = compared(zoo("ranker"), module(attributes={**EXPORTED, "level": "2.0"}))
    assert case.capture is not None
    end = CapturedEnd.model_validate(phase(7, modules=case.capture.assertions[0].modules))
    case.capture = case.capture.model_copy(update={"assertions": [], "ends": [end]})
    held = {"event": "compared_frame_tensors", "equal": equal}
    case.runs = {"script": run("script", CHECK), "plain": run("plain", "", CALLED, held)}
    case.interpreted = worker_run({"event": "compared", "equal": True})
    (found,) = invalid_package.detect_other_model(case)
    assert confidence(found, case) == sure


def test_a_module_as_it_was_compiled_accuses_nobody(zoo: ZooPackage) -> None:
    """It is as it was, or another one is, or the package was given its weights, or it is of another model."""
    package = zoo("ranker")
    assert not list(invalid_package.detect_other_model(compared(package, module())))
    louder = module("louder", attributes={**EXPORTED, "level": "9.0"})
    assert not list(invalid_package.detect_other_model(compared(package, louder, module())))
    assert not list(invalid_package.detect_other_model(compared(package, module(digests=OTHER), given=OTHER)))
    assert not list(invalid_package.detect_other_model(compared(package, module(digests={"other": "one"}))))
