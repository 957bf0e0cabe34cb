"""The sweep: what is known already is taken, the rest is tried, and what was lost is tried again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mcp_server.model import Verdict
from mcp_server.sweep.attempt import Done, Tried
from mcp_server.sweep.plan import SweepCase
from mcp_server.sweep.record import Attempt, CaseRecord, Results, Sweep


class Executor(Protocol):
    """Where cases run."""

    async def each(self, cases: Sequence[SweepCase], done: Done) -> None: ...


Told = Callable[[CaseRecord], None]


async def sweep(
    cases: Sequence[SweepCase],
    results: Results,
    executor: Callable[[], Executor],
    *,
    retries: int = 1,
    told: Told = lambda _record: None,
) -> Sweep:
    """Diagnose every case that has no verdict yet. `told` hears of each case that has ended.

    A case whose process or node died is tried again, `retries` times. `executor` is asked for only when there
    is something to run.
    """
    records = {case.name: record for case in cases if (record := results.known(case))}
    reused = len(records)
    attempts: dict[str, list[Attempt]] = {case.name: [] for case in cases}

    def done(case: SweepCase, tried: Tried) -> None:
        attempts[case.name].append(tried.attempt)
        if tried.attempt.ended == "lost" and len(attempts[case.name]) <= retries:
            return
        records[case.name] = _record(case, attempts[case.name], tried)
        results.keep(case, records[case.name])
        told(records[case.name])

    while left := [case for case in cases if case.name not in records]:
        await executor().each(left, done)
    return Sweep(cases=[records[case.name] for case in cases], reused=reused)


def _record(case: SweepCase, attempts: list[Attempt], tried: Tried) -> CaseRecord:
    verdict = Verdict.model_validate(tried.verdict) if tried.verdict is not None else None
    ended = tried.attempt.ended
    return CaseRecord(
        name=case.name, digest=case.digest, ended=ended, attempts=list(attempts), verdict=verdict
    )
