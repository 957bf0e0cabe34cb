"""The call with its custom operators watched, and once more with their fake functions' promises kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mcp_server.diagnosis.actions.counter_tests import judge
from mcp_server.diagnosis.actions.interpret import interpret
from mcp_server.diagnosis.actions.runs import run_call
from mcp_server.diagnosis.case import Case, CounterResult, RunSeen
from mcp_server.diagnosis.detectors.operator_results import REPAIRED, SAME
from mcp_server.diagnosis.hypothesis import Hypothesis
from mcp_server.diagnosis.own_code import own_operators
from mcp_server.steps.context import Context, WorkerRun


class WatchOperators:
    """Hold what each custom operator returns against its fake function; see whether a difference matters."""

    name = "watch_operators"
    seconds = 5.0
    alone = False

    def gain(self, case: Case, _open: Sequence[Hypothesis]) -> float:
        if case.call is None or case.call.operation == "compile" or "plain" not in case.runs:
            return 0.0
        if case.runs["plain"].failure == "timeout" and "trace_launches" not in case.done:
            return 0.0  # it would hang again, and the trace tells where
        return 0.8 if own_operators(case) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        watched = await run_call(case, context, "operators", extra={"operators": "watch"}, record=False)
        case.operators = watched.worker
        if watched.worker is None or not watched.worker.all("operator"):
            return
        repaired = await run_call(case, context, "repaired", extra={"operators": "repair"}, record=False)
        found = effect(case.runs["plain"], watched, repaired)
        if found.decided and not found.passed and not case.equals_eager:
            kept = (
                await interpret(case, context, operators="repair") if case.interpreted is not None else None
            )
            found = in_eager(kept, found)
        case.counters[REPAIRED.key] = found


def in_eager(kept: WorkerRun | None, found: CounterResult) -> CounterResult:
    """What the promises do to the model, where the package does not depend on them but departs from it.

    Memory that an operator writes without saying so may be read by the model alone: the package, which was
    told of no such write, computes that value again or has it elsewhere.
    """
    told = kept.last("compared") if kept is not None else None
    if told is None or not told["equal"]:
        return replace(found, decided=False)
    what = "the exported program gives what the package gives once the operators keep their promises"
    return CounterResult(True, what, found.run)


def effect(plain: RunSeen, watched: RunSeen, repaired: RunSeen) -> CounterResult:
    """Whether the promises change how the call ends, or what a call that ends well returns."""
    if plain.failure != "none" or repaired.failure != "none":
        return judge(REPAIRED, plain, repaired)
    if _digests(plain) != _digests(watched):
        return CounterResult(False, "the outputs differ from run to run anyway", repaired, decided=False)
    changed = _digests(watched) != _digests(repaired)
    told = "returns other values" if changed else SAME
    return CounterResult(changed, f"{REPAIRED.what} {told}", repaired)


def _digests(run: RunSeen) -> list[Any]:
    return [output.get("checksum") for output in run.outputs]
