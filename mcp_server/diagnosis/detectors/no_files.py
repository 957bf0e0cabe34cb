"""A compile, load or call that failed when its process could open no more files."""

from __future__ import annotations

from collections.abc import Iterator

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.hypothesis import Depth, Hypothesis
from mcp_server.evidence.captured import Phase
from mcp_server.model import Evidence, Fix, Party
from mcp_server.steps.replay_plan import failing_phase


def detect(case: Case) -> Iterator[Hypothesis]:
    """One hypothesis; that the same load goes well in a process of its own confirms it."""
    seen = case.capture
    phase = failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None
    if phase is not None and phase.error is not None and phase.error.no_files is not None:
        yield _hypothesis(phase, phase.error.no_files, case)


def _hypothesis(phase: Phase, limit: int, case: Case) -> Hypothesis:
    plain = case.runs.get("plain")
    alone = plain is not None and plain.failure == "none"
    fact = f"when it failed, the process could open no more files: its limit is {limit}"
    return Hypothesis(
        category="environment",
        guilty=Party(
            kind="environment", name="open files", value=f"limit {limit}", model_locations=phase.stack
        ),
        summary=f"The process had as many files open as it may, {limit}; the error is due to that, whatever "
        "its text says.",
        depth=Depth.BUILD,
        sources=frozenset({"capture", *({"made again"} if alone else ())}),
        evidence=(
            Evidence(step="capture", fact=fact),
            *(
                (Evidence(step="run", fact="the same, made again in a process of its own, went well"),)
                if alone
                else ()
            ),
        ),
        fix=Fix(
            action="close files that are not needed any more, or raise the limit on open files (ulimit -n)"
        ),
        harmful=case.failed,
    )
