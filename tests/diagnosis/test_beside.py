"""The module that a package is compared with, against the one that was exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcp_server.diagnosis.case import CallSpec, Case, CounterResult
from mcp_server.diagnosis.detectors import beside
from mcp_server.diagnosis.judge import confidence
from tests.diagnosis.support import capture, phase, run, worker_run

DIFFERS = {"event": "compared_expected", "equal": False, "outputs": [{"shape": [[4], [4]]}]}
CALLED = {"event": "called", "outputs": [{"nan": 0, "inf": 0}]}
EXPORTED = {"level": "3.0", "training": "False", "body.training": "False"}
WEIGHTS = {"body.weight": "one", "body.bias": "two"}


def module(name: str = "model", **more: Any) -> dict[str, Any]:
    """A module near the comparison, as it was exported and compiled unless told otherwise."""
    return {"name": name, "type": "Gate", "digests": WEIGHTS, "attributes": EXPORTED, "file": "m.pt", **more}


def compared(*modules: dict[str, Any], updates: int = 0) -> Case:
    """A call that gives other numbers than the script's reference, once again when it is made again."""
    case = Case(None)
    case.capture = capture(
        exports=[phase(1, type="Gate", attributes=EXPORTED)],
        compiles=[phase(2, how="aoti_compile_and_package", package="m.pt2", digests=WEIGHTS)],
        loads=[phase(3, loader="AOTIModelPackageLoader", package="m.pt2")],
        updates=[phase(4, load=1, how="load_constants")] * updates,
        calls=[phase(5, load=1, thread=1, file="inputs.pt")],
        assertions=[phase(6, file="both.pt", modules=modules)],
    )
    case.call = CallSpec("replay", {"steps": [{"do": "call"}]}, Path("m.pt2"), Path("inputs.pt"))
    case.runs["script"] = run("script", "AssertionError: Tensor-likes are not close!")
    case.runs["plain"] = run("plain", "", CALLED, DIFFERS)
    return case


def test_weights_that_changed_after_the_compile_are_tried_in_the_package() -> None:
    """Other values are a suspicion; the package that agrees once it has them makes it proven."""
    case = compared(module(digests={**WEIGHTS, "body.bias": "three"}))
    (found,) = beside.detect(case)
    assert (found.category, found.guilty.name) == ("constants", "body.bias")
    assert found.counter is not None and confidence(found, case) == "possible"
    given, call = found.counter.options["steps"]
    assert (given["how"], given["file"], call) == ("load_constants", Path("m.pt"), {"do": "call"})
    case.counters[found.counter.key] = CounterResult(True, "passes")
    assert confidence(found, case) == "proven"


@pytest.mark.parametrize(
    ("changed", "name"),
    [({"level": "2.0"}, "Gate.level"), ({"training": "True", "body.training": "True"}, "Gate.training")],
)
def test_attributes_that_changed_after_the_export_are_named(changed: dict[str, str], name: str) -> None:
    """Export wrote them into the code; that package and program agree is the second observation."""
    case = compared(module(attributes={**EXPORTED, **changed}))
    (found,) = beside.detect(case)
    assert (found.category, found.guilty.name, confidence(found, case)) == ("wrong_output", name, "possible")
    case.interpreted = worker_run({"event": "compared", "equal": True, "outputs": []})
    (found,) = beside.detect(case)
    assert confidence(found, case) == "likely"


def test_a_module_as_it_was_compiled_accuses_nobody() -> None:
    """It is as it was, or another one is, or the package got weights since, or it is of another model."""
    assert not list(beside.detect(compared(module())))
    louder = module("louder", attributes={**EXPORTED, "level": "9.0"})
    assert not list(beside.detect(compared(louder, module())))
    assert not list(beside.detect(compared(module(digests={**WEIGHTS, "body.bias": "three"}), updates=1)))
    assert not list(beside.detect(compared(module(digests={"other": "one"}))))
