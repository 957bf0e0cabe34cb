"""A package that does not fit the machine it is loaded on."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.from_log import DEPTHS
from mcp_server.diagnosis.detectors.log_words import PARTIES
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.model import Category, Evidence, Party, PartyKind
from mcp_server.steps.fit import Problem

# What the load asks for: `device_index` is an argument of the call that loads.
KINDS: dict[Category, PartyKind] = {**PARTIES, "device_mismatch": "call"}


def detect(case: Case) -> Iterator[Hypothesis]:
    """Certain problems of package and machine; defects of the file are another detector's."""
    defects = {defect.what for defect in case.package.defects} if case.package is not None else set()
    for problem in case.problems:
        if problem.certain and problem.what not in defects:
            yield _hypothesis(problem, case)


def _hypothesis(problem: Problem, case: Case) -> Hypothesis:
    agrees = any(
        facts.root is not None and problem.category in facts.root.candidates for _, facts in case.logs
    )
    return Hypothesis(
        category=problem.category,
        guilty=_party(problem, case),
        summary=f"{problem.what[:1].upper()}{problem.what[1:]}.",
        depth=DEPTHS[problem.category],
        sources=frozenset({"package and machine", *({"log"} if agrees else ())}),
        evidence=(Evidence(step="check_devices", fact=problem.what),),
        fix=problem.fix,
        harmful=case.failed,
    )


def _party(problem: Problem, case: Case) -> Party:
    kind = KINDS[problem.category]
    name = case.package.path.name if kind == "package" and case.package is not None else problem.what[:120]
    value = problem.what[:200] if name != problem.what else None
    return Party(kind=kind, name=name, value=value, model_locations=case.failing_locations)
