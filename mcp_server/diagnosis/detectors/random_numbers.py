"""A package that draws random numbers, held against a reference that drew others or none.

Alone, without program or reference, a package does not tell whether its numbers are meant: a model that
samples draws them on purpose. Dropout is another matter: a model that was exported for use has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.model import Evidence, Fix, PackageWorkload, Party
from mcp_server.package.launches import Launch

# Operators that draw, as they stand in names of kernels and shims, and in the list of ATen operators.
DRAWS = re.compile(
    r"(?:^|[_.])(native_dropout|dropout|bernoulli|multinomial|rand(?:n|int|perm)?(?:_like)?)(?=[_.]|$)"
)
_TRAINING = ("native_dropout", "dropout")


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where outputs depart from a reference, or where dropout makes them differ."""
    drawing = drawing_launches(case)
    if not drawing:
        return
    op = next((name for name, _ in drawing if name in _TRAINING), drawing[0][0])
    launch = next(launch for name, launch in drawing if name == op)
    if _departs(case):
        yield _departing(op, launch, case)
    elif op in _TRAINING and isinstance(case.workload, PackageWorkload):
        yield _training(op, launch, case)


def _party(op: str, launch: Launch, case: Case) -> Party:
    assert case.view is not None
    return Party(
        kind="op",
        name=op,
        launch_index=launch.index,
        model_locations=list(case.view.provenance(launch).locations[:3]) or case.call_locations,
    )


def _training(op: str, launch: Launch, case: Case) -> Suspect:
    """Dropout in a package; that it is not meant is likely, and nothing in the package says so."""
    differs = bool(case.differs_in("second"))
    seen = (Evidence(step="repeat_call", fact="two calls on the same inputs give other outputs"),)
    return Suspect(
        category="wrong_output",
        guilty=_party(op, launch, case),
        summary=f"Launch {launch.index} drops values at random ({op}): the model was exported in training "
        f"mode{', and the same call gives other outputs each time' if differs else ''}.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="inspect_package", fact=f"launch {launch.index} is {launch.kernel}"),
            *(seen if differs else ()),
        ),
        fix=_fix(op),
        weak=True,
        settle="That is the fault unless dropout is meant to stay on; one in evaluation mode settles it.",
    )


def _departing(op: str, launch: Launch, case: Case) -> Suspect:
    return Suspect(
        category="wrong_output",
        guilty=_party(op, launch, case),
        summary=f"The package draws random numbers (launch {launch.index}, {op}): its outputs differ from "
        "those of any reference that draws others or none.",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="inspect_package", fact=f"launch {launch.index} is {launch.kernel}"),
            Evidence(step="run", fact="the outputs differ from what they are compared with"),
        ),
        fix=_fix(op),
        harmful=case.failed,
    )


def _fix(op: str) -> Fix:
    if op in _TRAINING:
        return Fix(action="export the model in evaluation mode", before="model", after="model.train(False)")
    return Fix(
        action=f"draw outside the model and pass the numbers as an input, instead of {op} in the model"
    )


def drawing_launches(case: Case) -> list[tuple[str, Launch]]:
    """Launches that draw, each with its operator."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    found = [(DRAWS.search(text), launch) for launch in launches for text in (launch.kernel, *launch.atens)]
    return [(match[1], launch) for match, launch in found if match is not None]


def _departs(case: Case) -> bool:
    compared = case.interpreted.last("compared") if case.interpreted is not None else None
    return case.plain_departs or (compared is not None and not compared["equal"])
