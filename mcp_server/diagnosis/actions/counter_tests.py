"""Counter-tests: the call again without the suspected cause."""

from __future__ import annotations

from collections.abc import Sequence

from mcp_server.diagnosis.actions.runs import run_call
from mcp_server.diagnosis.case import Case, CounterResult, RunSeen
from mcp_server.diagnosis.hypothesis import CounterTest, Hypothesis
from mcp_server.diagnosis.judge import ranked
from mcp_server.steps.context import Context


class CounterTests:
    """Try to refute the leading hypothesis that has a test left."""

    seconds = 6.0
    alone = False

    def __init__(self) -> None:
        self.tried = 0

    @property
    def name(self) -> str:
        return f"counter_test_{self.tried}"

    def gain(self, case: Case, open_hypotheses: Sequence[Hypothesis]) -> float:
        if case.call is None or self.tried >= 4 or "plain" not in case.runs:
            return 0.0
        return 0.7 if next_test(case, open_hypotheses) else 0.0

    async def act(self, case: Case, context: Context) -> None:
        self.tried += 1
        hypotheses = case.hypotheses
        test = next_test(case, hypotheses)
        if test is None:
            return
        label = f"counter-{self.tried}"
        seen = await run_call(
            case, context, label, extra={"changes": list(test.changes), **test.options}, record=False
        )
        case.counters[test.key] = judge(test, case.runs["plain"], seen)


def next_test(case: Case, hypotheses: Sequence[Hypothesis]) -> CounterTest | None:
    """The untried test of the best hypothesis that has one; only a failure can be made to go away.

    Or the call be made to give what the program held when its own check failed, or to change its inputs.
    """
    plain = case.runs["plain"]
    if plain.failure == "none" and all(plain.held.values()) and not plain.left_alone:
        return None
    for hypothesis in ranked(hypotheses, case):
        if hypothesis.counter is not None and hypothesis.counter.key not in case.counters:
            return hypothesis.counter
    return None


def judge(test: CounterTest, before: RunSeen, after: RunSeen) -> CounterResult:
    """Gone: the cause was removed with the failure. The same failure: it was not the cause."""
    moved = [change["input"] for change in test.changes if change["change"] == "align"]
    if moved and before.failure in ("none", "differs"):
        return _by_change(test, moved[0], before, after)
    if before.failure == "none":
        return _by_held(test, before, after)
    if after.failure == "none":
        return CounterResult(
            True, f"{test.what} passes; without that change it fails ({before.failure})", after
        )
    if before.same_failure(after):
        return CounterResult(False, f"{test.what} still fails in the same way ({after.failure})", after)
    what = f"{test.what} fails in another way ({after.failure}: {after.family or 'no known error text'})"
    return CounterResult(False, what, after, decided=False)


def _by_change(test: CounterTest, place: int, before: RunSeen, after: RunSeen) -> CounterResult:
    """Whether the call now changes the input that it left as it was."""
    if after.failure not in ("none", "differs"):
        return CounterResult(False, f"{test.what} fails ({after.failure})", after, decided=False)
    if place in before.left_alone and place in after.changed:
        return CounterResult(True, f"{test.what} changes it; as the call was made it stays as it was", after)
    return CounterResult(False, f"{test.what} leaves it as it was, too", after)


def _by_held(test: CounterTest, before: RunSeen, after: RunSeen) -> CounterResult:
    """Whether the call now gives what the program held beside it, such as what it expected."""
    reached = [name for name, equal in after.held.items() if equal and not before.held.get(name, True)]
    if not reached:
        return CounterResult(False, f"{test.what} gives nothing that the program held", after, decided=False)
    name = next((name for name in reached if not name.startswith("_")), reached[0])
    what = f"{test.what} gives what the program held as {name!r}; as it was made it gives something else"
    return CounterResult(True, what, after)
