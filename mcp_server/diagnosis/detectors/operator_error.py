"""An exception that a Python operator of the user's own raised inside a call of the package."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.own_code import TORCHS, own_operators
from mcp_server.diagnosis.parties import operator_of
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.facts import ErrorFact
from mcp_server.model import Evidence, Fix, ModelLocation, Party


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the operator whose own frames an exception names, and which is known."""
    for source, facts in case.logs:
        root = facts.root
        if root is None or root.family.id != "operator_raised" or case.package is None:
            continue
        op = _operator(root, case)
        if op and not op.startswith(TORCHS):
            yield _suspect(op, root, source, case)
            return


def _operator(root: ErrorFact, case: Case) -> str:
    """By the number of the node; up to torch 2.12 none is told, and the package's only own operator is it."""
    if "node" in root.fields and case.package is not None:
        return case.package.proxy_target(int(root.fields["node"]))
    own = own_operators(case)
    return own[0] if len(own) == 1 else ""


def _suspect(op: str, root: ErrorFact, source: str, case: Case) -> Suspect:
    launch = _launch(op, case)
    at = ModelLocation(file=root.fields["at_file"], line=int(root.fields["at_line"]))
    place = f"{at.file}:{at.line}, in {root.fields['at_function']}"
    return Suspect(
        category="custom_op",
        guilty=Party(
            kind="op",
            name=op,
            launch_index=launch,
            value=root.text[:200],
            model_locations=[at, *_lines(launch, case)],
        ),
        summary=f"Operator {op} raised an exception on what it was given: {root.text[:200]}",
        level=CausalLevel.STATE,
        evidence=(
            Evidence(step="run", fact=root.text[:300], source=f"{source}:{root.line}"),
            Evidence(step="run", fact=f"the exception comes from {place}, which the operator calls"),
        ),
        fix=Fix(action=f"let {op} handle such arguments, or keep them from it in the model", before=place),
    )


def _launch(op: str, case: Case) -> int | None:
    """The only launch that calls the operator."""
    launches = case.view.wrapper.launches if case.view is not None else ()
    found = [launch.index for launch in launches if operator_of(launch.index, case) == op]
    return found[0] if len(found) == 1 else None


def _lines(launch: int | None, case: Case) -> list[ModelLocation]:
    if launch is None or case.view is None:
        return []
    return list(case.view.provenance(case.view.wrapper.launches[launch]).locations[:2])
