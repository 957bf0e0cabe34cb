"""The package file itself: unreadable, incomplete, or of another kind."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.model import Evidence, Fix, Party


def detect(case: Case) -> Iterator[Hypothesis]:
    """A package that cannot be read, and fatal defects of one that can."""
    if case.package_error is not None:
        yield _unreadable(case)
    elif case.package is not None:
        yield from _defects(case)


def _unreadable(case: Case) -> Hypothesis:
    error = case.package_error
    assert error is not None
    refused = any(facts.root is not None and facts.root.family.stage == "load" for _, facts in case.logs)
    return Hypothesis(
        category="invalid_package",
        guilty=Party(
            kind="package", name=str(case.found.get("package_path", "the package")), value=error.slug
        ),
        summary=f"The package cannot be read: {error.what}.",
        depth=Depth.BUILD,
        sources=frozenset({"package file", "loader"} if refused else {"package file"}),
        evidence=(Evidence(step="open_package", fact=str(error)),),
        fix=Fix(action=error.next_call or "build or copy the package again, and compare its checksum"),
    )


def _defects(case: Case) -> Iterator[Hypothesis]:
    assert case.package is not None
    for defect in case.package.defects:
        if defect.fatal:
            yield Hypothesis(
                category="invalid_package",
                guilty=Party(kind="package", name=str(case.package.path), value=defect.slug),
                summary=f"The package is incomplete: {defect.what}.",
                depth=Depth.BUILD,
                sources=frozenset({"package file"}),
                evidence=(Evidence(step="open_package", fact=defect.what),),
                fix=Fix(action=defect.fix or "build the package again"),
                harmful=case.failed,
            )
