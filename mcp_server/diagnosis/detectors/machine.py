"""A package that does not fit the machine it is loaded on."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.from_log import LEVELS
from mcp_server.diagnosis.detectors.log_words import PARTIES
from mcp_server.diagnosis.refusals import WRONG_ARCHITECTURE
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.model import Category, Evidence, Party, PartyKind
from mcp_server.steps.fit import Problem

# What the load asks for: `device_index` is an argument of the call that loads.
KINDS: dict[Category, PartyKind] = {**PARTIES, "device_mismatch": "call"}


def detect(case: Case) -> Iterator[Suspect]:
    """Certain problems of package and machine; defects of the file are another detector's."""
    defects = {defect.what for defect in case.package.defects} if case.package is not None else set()
    for problem in case.problems:
        if problem.certain and problem.what not in defects:
            yield _suspect(problem, case)


def _suspect(problem: Problem, case: Case) -> Suspect:
    refused = any(
        facts.root is not None and problem.category in facts.root.candidates for _, facts in case.logs
    )
    return Suspect(
        category=problem.category,
        guilty=_party(problem, case),
        summary=f"{problem.what[:1].upper()}{problem.what[1:]}.",
        level=LEVELS[problem.category],
        evidence=(Evidence(step="check_devices", fact=problem.what),),
        fix=problem.fix,
        refusal=WRONG_ARCHITECTURE if refused and problem.category == "arch_mismatch" else "",
        harmful=case.failed,
    )


def _party(problem: Problem, case: Case) -> Party:
    kind = KINDS[problem.category]
    name = case.package.path.name if kind == "package" and case.package is not None else problem.what[:120]
    value = problem.what[:200] if name != problem.what else None
    return Party(kind=kind, name=name, value=value, model_locations=case.failing_locations)
