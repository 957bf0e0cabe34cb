"""A compile, load or call that failed at a limit of its process: on open files, or on the size of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import CapturedError, CapturedLoad, Phase
from mcp_server.model import Evidence, Fix, Party
from mcp_server.steps.replay_plan import failing_phase


@dataclass(frozen=True)
class _Reached:
    """A limit that was reached: its name, value, how that is known, and whether a second source says so."""

    name: str
    value: int
    fact: str
    fix: str
    second: str = ""


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis for the phase that failed; that it goes well in a process of its own confirms it."""
    seen = case.capture
    phase = failing_phase(seen, ended_well=seen.finished.ok) if seen is not None else None
    reached = _reached(phase, phase.error, case) if phase is not None and phase.error is not None else None
    if phase is not None and reached is not None:
        yield _suspect(phase, reached, case)


def _reached(phase: Phase, error: CapturedError, case: Case) -> _Reached | None:
    if error.no_files is not None:
        fact = f"when it failed, the process could open no more files: its limit is {error.no_files}"
        fix = "close files that are not needed any more, or raise the limit on open files (ulimit -n)"
        return _Reached("open files", error.no_files, fact, fix)
    if isinstance(phase, CapturedLoad) and "extract" in error.text:
        return _unpacked(phase, error.file_bytes, case)
    return None


def _unpacked(load: CapturedLoad, limit: int | None, case: Case) -> _Reached | None:
    """A member of the package that the loader may not unpack."""
    members = case.package.members if case.package is not None else ()
    largest = max((member.size for member in members), default=load.largest)
    if limit is None or largest is None or largest <= limit:
        return None
    fact = f"no file of the process may be larger than {limit} bytes, and one in the package has {largest}"
    fix = "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE) before the load"
    return _Reached("file size", limit, fact, fix, "package file")


def _suspect(phase: Phase, reached: _Reached, case: Case) -> Suspect:
    plain = case.runs.get("plain")
    alone = plain is not None and plain.failure == "none"
    party = Party(
        kind="environment",
        name=reached.name,
        value=f"limit {reached.value}",
        model_locations=phase.stack,
    )
    return Suspect(
        category="environment",
        guilty=party,
        summary=f"The process had reached its limit on {reached.name}, {reached.value}; the error is due to "
        "that, whatever its text says.",
        level=CausalLevel.BUILD,
        evidence=(
            Evidence(step="capture", fact=reached.fact),
            *((Evidence(step="run", fact=_ALONE),) if alone else ()),
        ),
        fix=Fix(action=reached.fix),
        harmful=case.failed,
    )


_ALONE = "the same, made again in a process of its own, went well"
