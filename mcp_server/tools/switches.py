"""Options of the compiler, switched to their careful values on the whole program, side by side.

This needs no smaller program and no second export. Which pass or lowering it is comes from `bisect`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from mcp_server.errors import ProblemError
from mcp_server.package.exported import exported_device
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.tools.bisect import (
    COMES_FROM,
    PRECISION,
    TIMED,
    Bisected,
    Decision,
    Experiment,
    Result,
    Workaround,
    price,
    refuse_others_faults,
    result_of,
    switches_of,
    workaround_lines,
)
from mcp_server.tools.reduce.reduce import Failing, most_children, run_worker
from mcp_server.worker.events import Switched, Timed
from mcp_server.worker.reduction.minimise import split

# Tried alone at once, since many faults are of vector code: six of the six switches that public reports came
# down to (benchmarks/compiler_faults.json).
TELLING = "cpp.simdlen"
AGAIN = "nothing is switched off"

Names = tuple[str, ...]


@dataclass
class Wave:
    """Compiles of the whole program with options switched: all, and the last one of each group of names."""

    context: Context
    failing: Failing
    options: Mapping[str, object]
    parallel: int
    seen: list[Experiment] = field(default_factory=list)
    runs: dict[Names, WorkerRun] = field(default_factory=dict)

    async def run(self, groups: Sequence[Names]) -> list[Result]:
        """Compile and call once for each group of names, side by side."""
        limit = anyio.CapacityLimiter(self.parallel)
        results: dict[Names, Result] = {}

        async def attempt(names: Names) -> None:
            async with limit:
                request = {"switches": {name: self.options[name] for name in names}, **TIMED}
                done = await run_worker(self.context, "attempt", self.failing.target, request)
            try:
                results[names] = result_of(done, self.failing)
            except ProblemError:  # it hangs, say: another failure
                results[names] = "other"
            self.runs[names] = done
            label = f"with {', '.join(names)}" if names else AGAIN
            took = round(done.finished.wall_s, 2)
            self.seen.append(Experiment(label=label[:300], result=results[names], seconds=took))

        async with anyio.create_task_group() as group:
            for names in groups:
                group.start_soon(attempt, names)
        return [results[names] for names in groups]

    def switched(self, names: Names) -> Names:
        """Those of the names that this release of torch has."""
        events = [event for run in self.runs.values() if (event := run.last(Switched)) is not None]
        return tuple(name for name in names if any(name in event.names for event in events))

    @property
    def steady(self) -> bool:
        """Whether each package gave in further calls what it gave in the first: else a run proves nothing."""
        timed = (run.last(Timed) for run in (self.failing.attempt, *self.runs.values()))
        return all(event.steady for event in timed if event is not None)


async def try_switches(context: Context, failing: Failing) -> Bisected:
    """Find the fewest options whose careful values make the failure go away, and compile without them again.

    Raises `ProblemError` for a failure that is not the compiler's (`refuse_others_faults`).
    """
    await refuse_others_faults(context, failing)
    device = await anyio.to_thread.run_sync(exported_device, failing.target.workload.exported)
    options = switches_of(device)
    options |= PRECISION if failing.failure.kind in ("departs", "not_finite") else {}
    parallel = most_children()
    wave = Wave(context, failing, options, parallel)
    context.progress("compiling with careful options")
    everything = tuple(options)
    alone = (TELLING,) if TELLING in options else everything[:1]
    helping = await fewest(everything, alone, parallel, wave.run)
    names = wave.switched(helping)
    reason = f"none of {len(wave.switched(everything))} options makes it go away"
    if names and (await wave.run([()]) != ["same"] or not wave.steady):
        names, reason = (), "it comes and goes by itself, from compile to compile or from call to call"
    failure = failing.failure
    summary = f"No option of the compiler was found behind the failure ({failure}): {reason}."
    workaround = None
    if names:
        summary = f"The failure ({failure}) comes from {COMES_FROM['switch'].format(names=', '.join(names))}."
        code = workaround_lines({"configs": {name: options[name] for name in names}})
        cost = price(failing.attempt, wave.runs[helping])
        workaround = Workaround(code=code, whole="gone", price=cost)
    last = list(wave.runs.values())[-1].finished.output
    return Bisected(
        outcome="decision" if names else "not_found",
        summary=summary,
        failure=failure,
        decisions=[Decision(kind="switch", name=name) for name in names],
        workaround=workaround,
        experiments=wave.seen,
        compiles=len(wave.seen) + 1,
        log=context.artifact(last, "output of the last compile"),
        cost=context.cost.cost(),
    )


async def fewest(
    names: Names, alone: Names, parallel: int, run: Callable[[Sequence[Names]], Awaitable[list[Result]]]
) -> Names:
    """The fewest of `names` that were seen to help; none where not even all of them do.

    `run` gives the result of each group of names, and makes `parallel` of them at once. `alone` is tried at
    once; of the others parts are tried as long as one helps by itself.
    """
    with_all, with_one = await run([names, alone])
    if with_one == "gone":
        return alone
    if with_all == "same":
        return ()
    # All of them together may fail in a way of their own.
    helping, left = names if with_all == "gone" else (), tuple(name for name in names if name not in alone)
    while left and len(helping) != 1:
        parts = [tuple(part) for part in split(left, min(len(left), max(2, parallel)))]
        results = await run(parts)
        if "gone" not in results:
            return helping  # only together, if at all
        helping = left = parts[results.index("gone")]
    return helping
