"""The same call again, and with other bytes in new memory: what no reference is needed for to see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mcp_server.diagnosis.actions.watch_launches import as_package
from mcp_server.diagnosis.case import Case
from mcp_server.diagnosis.detectors.random_numbers import drawing_launches
from mcp_server.diagnosis.limits import limit_of
from mcp_server.diagnosis.suspect import Suspect
from mcp_server.instrument.build import instrument
from mcp_server.instrument.types import Options
from mcp_server.model import PackageWorkload
from mcp_server.steps.context import Context, WorkerRun

LONGEST_CALL_S = 15.0
MOST_BYTES = 1 << 30  # of a package that is loaded four times


class RepeatCall:
    """Make a call that ended well three times, each in a fresh load, the last with new memory filled anew."""

    name = "repeat_call"
    seconds = 5.0
    alone = False

    def gain(self, case: Case, open_ones: Sequence[Suspect]) -> float:
        plain = case.runs.get("plain")
        if plain is None or plain.failure != "none" or not _cheap(case, plain.finished.wall_s):
            return 0.0
        explained = any(h.harmful and not h.weak for h in open_ones)
        return 0.0 if explained else 0.25

    async def act(self, case: Case, context: Context) -> None:
        case.repeated = await _repeat(case, context, "repeats")


class WatchRepeats:
    """The same with every launch watched, to see where the outputs part."""

    name = "watch_repeats"
    seconds = 14.0
    alone = True

    def gain(self, case: Case, _open: Sequence[Suspect]) -> float:
        unexplained = case.differs_in("second") and not drawing_launches(case)
        return 0.7 if unexplained or case.reads_unset else 0.0

    async def act(self, case: Case, context: Context) -> None:
        workload = as_package(case)
        python = context.python_for(workload)
        rebuilt = await instrument(workload.package, Options(), context, python=python, env=workload.env)
        env = {"LD_PRELOAD": " ".join(rebuilt.preload)} if rebuilt.preload else {}
        more = {"package": rebuilt.package, "probes": True}
        case.repeated_watched = await _repeat(case, context, "repeats-watched", more, env)


def _cheap(case: Case, wall_s: float) -> bool:
    """A package on the CPU, whose memory the C library gives, and which is soon loaded and called again."""
    package = case.call.package if case.call is not None else None
    if not isinstance(case.workload, PackageWorkload) or package is None or case.device != "cpu":
        return False
    return wall_s < LONGEST_CALL_S and package.stat().st_size < MOST_BYTES


async def _repeat(
    case: Case,
    context: Context,
    name: str,
    more: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
) -> WorkerRun:
    assert case.call is not None and case.workload is not None
    given = case.surroundings
    limit = limit_of(case)
    done = await context.worker(
        "repeat",
        {**case.call.request, **(more or {})},
        name=name,
        **{**given, "env": {**given["env"], **(env or {})}},
        timeout_s=limit.seconds,
    )
    limit.check(done.finished, "the repeated call")
    context.cost.runs += len(done.all("calling")) - 1 if not done.finished.reused else 0
    return done
