"""A program that its own limit ended: on processor time (SIGXCPU, or SIGKILL), or on the size of a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcp_server.diagnosis.case import Case, RunSeen
from mcp_server.diagnosis.suspect import CausalLevel, Suspect
from mcp_server.evidence.captured import Phase
from mcp_server.model import Evidence, Fix, Party

FILE_SIZE = "raise the limit on the size of files (ulimit -f, RLIMIT_FSIZE), or write less"
TIME = "raise the limit on processor time (ulimit -t, RLIMIT_CPU), or find out what takes so long"


@dataclass(frozen=True)
class _Limit:
    name: str
    variable: str
    fix: str


LIMITS = {
    "SIGXCPU": _Limit("processor time", "RLIMIT_CPU", TIME),
    "SIGXFSZ": _Limit("file size", "RLIMIT_FSIZE", FILE_SIZE),
}


def detect(case: Case) -> Iterator[Suspect]:
    """One hypothesis, where the program's own run was ended by such a signal."""
    run = case.runs.get("script") or case.runs.get("command")
    if run is None:
        return
    phase = _inside(case)
    limit = LIMITS.get(run.finished.signal or "")
    if limit is not None:
        yield _suspect(limit, run, phase, case)
    elif run.finished.signal == "SIGKILL" and phase is not None and _used_up(phase, run):
        yield _suspect(LIMITS["SIGXCPU"], run, phase, case)


def _inside(case: Case) -> Phase | None:
    """What the program was at, as far as the hook saw it."""
    seen = case.capture
    phases: list[Phase] = [*seen.compiles, *seen.loads, *seen.calls] if seen is not None else []
    begun = [phase for phase in phases if phase.outcome == "unfinished"]
    return max(begun or phases, key=lambda phase: phase.t, default=None)


def _used_up(phase: Phase, run: RunSeen) -> bool:
    """Whether it ran for so long that a hard limit, which kills, may be used up: of one thread at least."""
    return phase.processor_s is not None and run.finished.wall_s >= phase.processor_s


def _suspect(limit: _Limit, run: RunSeen, phase: Phase | None, case: Case) -> Suspect:
    seconds = phase.processor_s if phase is not None and limit is LIMITS["SIGXCPU"] else None
    plain = case.runs.get("plain")
    alone = plain is not None and plain.failure == "none"
    sure = run.finished.signal in LIMITS
    value = f"limit {seconds} s" if seconds is not None else limit.variable
    where = phase.stack[:2] if phase is not None else []
    signal = run.finished.signal
    facts = [Evidence(step="run", fact=f"{signal} ended the program after {run.finished.wall_s:.1f} s")]
    if seconds is not None:
        told = f"the hook saw a limit of {seconds} s on the processor time of the process ({limit.variable})"
        facts.append(Evidence(step="capture", fact=told))
    if alone:
        facts.append(Evidence(step="run", fact="the call, made again in a process of its own, went well"))
    return Suspect(
        category="environment",
        guilty=Party(kind="environment", name=limit.name, value=value, model_locations=where),
        summary=f"The process was ended by {signal}: it had reached its limit on {limit.name} "
        f"({limit.variable}{f', {seconds} s' if seconds is not None else ''}).",
        level=CausalLevel.BUILD,
        evidence=tuple(facts),
        fix=Fix(action=limit.fix),
        observed=sure,
    )
