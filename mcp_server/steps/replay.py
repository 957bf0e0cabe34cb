"""`replay`: do the captured call again in our worker, and say whether it fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from mcp_server.evidence.captured import Captured, Phase
from mcp_server.evidence.facts import ErrorFact, LogFacts
from mcp_server.jobs.types import Finished
from mcp_server.model import Record
from mcp_server.steps.capture import Capture
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.logs import read_output
from mcp_server.steps.replay_plan import Operation, ReplayPlan, failing_phase, plan_replay

Verdict = Literal["reproduced", "different", "needs_script"]

OUTPUTS = "outputs.pt"

# What differs between two runs of one program: addresses, numbers of lines and elements stay, paths go.
_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|(?:/[\w.+\-]+)+/|\b[a-z0-9]{40,}\b")


class Replayed(Record):
    """How the replay ended. `operation` and `request` can be given to the worker again, under other flags."""

    verdict: Verdict
    reason: str
    phase: str
    operation: Operation
    request: dict[str, Any]
    finished: Finished
    directory: Path
    outputs: Path | None = None
    root: str = ""
    notes: list[str]


async def replay(
    context: Context,
    seen: Capture,
    *,
    phase: Phase | None = None,
    previous: bool = False,
    python: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    gpus: tuple[int, ...] | None = None,
) -> Replayed:
    """Replay `phase` of the capture, by default the one that failed.

    The program's own file is imported, for its custom ops, only when the replay fails before the point where
    the program was, and only if that does not run the program. `timeout_s` defaults to 300, or to 60 for a
    program that did not end. Raises `ProblemError` if there is nothing to replay.
    """
    phase = phase or failing_phase(seen)
    plan = plan_replay(seen, phase, previous=previous)
    assert phase is not None
    limit = timeout_s or (60 if seen.finished.ending == "timeout" else 300)

    async def attempt(imports: list[str]) -> tuple[WorkerRun, dict[str, Any]]:
        directory = context.fresh("replay")
        request = {
            **plan.request,
            "extra_imports": imports,
            **_results(plan, directory),
            **_actual(seen, phase),
        }
        done = await context.worker(
            plan.operation,
            request,
            directory=directory,
            env=env,
            timeout_s=limit,
            python=python,
            cwd=cwd,
            gpus=gpus,
        )
        return done, request

    done, request = await attempt([])
    if plan.imports and not _reached(plan, done):
        done, request = await attempt(plan.imports)
    return _judge(seen, phase, plan, done, request)


def _actual(seen: Captured, phase: Phase) -> dict[str, Path]:
    """What the program compared after that call, to see whether the replay gives the same."""
    after = [
        each.file for each in seen.assertions if each.pid == phase.pid and each.n > phase.n and each.file
    ]
    return {"actual": after[0]} if after else {}


def _results(plan: ReplayPlan, directory: Path) -> dict[str, Path]:
    if plan.operation == "compile":
        return {"package_path": directory / "model.pt2"}
    return {"save_outputs": directory / OUTPUTS}


# The event that shows that the replay came to the phase that the program was in.
ARRIVED = {"compile": "compiling", "load": "loading", "update": "updating_constants", "call": "calling"}


def _reached(plan: ReplayPlan, done: WorkerRun) -> bool:
    """Whether what must go well before the phase did: the ops are known, the package loads."""
    if plan.phase == "load":  # an op that is not registered fails the load itself
        return done.last("loaded") is not None
    return done.last(ARRIVED[plan.phase]) is not None


def _judge(
    seen: Capture, phase: Phase, plan: ReplayPlan, done: WorkerRun, request: dict[str, Any]
) -> Replayed:
    log = read_output(done.finished.output)
    verdict, reason = _compare(seen, phase, plan, done, log)
    outputs = done.directory / OUTPUTS
    return Replayed(
        verdict=verdict,
        reason=reason,
        phase=plan.phase,
        operation=plan.operation,
        request=request,
        finished=done.finished,
        directory=done.directory,
        outputs=outputs if outputs.exists() else None,
        root=log.root.text if log.root else "",
        notes=plan.notes,
    )


def _compare(
    seen: Capture, phase: Phase, plan: ReplayPlan, done: WorkerRun, log: LogFacts
) -> tuple[Verdict, str]:
    if not _reached(plan, done) and plan.phase != "load":
        return "needs_script", f"the replay did not come to the {plan.phase}: it ended in {done.phase}"
    if phase.outcome == "failed" and phase.error is not None:
        return _compare_error(phase.error.text, done, log)
    if phase.outcome == "unfinished":
        return _compare_death(seen, done, log)
    return _compare_success(seen, phase, done)


def _compare_error(text: str, done: WorkerRun, log: LogFacts) -> tuple[Verdict, str]:
    failed = done.last("failed")
    if failed is None:
        ending = "succeeded" if done.finished.ok else f"ended with {describe(done.finished)}"
        return "needs_script", f"the program's call raised, the replay {ending}"
    if _essence(text) == _essence(str(failed["text"])):
        return "reproduced", "the same error text"
    root = f", root {log.root.text[:200]}" if log.root else ""
    return "different", f"the replay raised another error: {str(failed['text'])[:300]}{root}"


def _compare_death(seen: Capture, done: WorkerRun, log: LogFacts) -> tuple[Verdict, str]:
    """The program died or hung inside the phase."""
    if done.finished.ok:
        return (
            "needs_script",
            f"the program ended with {describe(seen.finished)} inside it, the replay succeeded",
        )
    if (done.finished.ending, done.finished.signal) != (seen.finished.ending, seen.finished.signal):
        return "different", f"{describe(done.finished)} instead of {describe(seen.finished)}"
    root = read_output(seen.finished.output).root
    if root and log.root and _named(root) != _named(log.root):
        return (
            "different",
            f"the same ending, but the cause reads {_named(log.root)} instead of {_named(root)}",
        )
    cause = "the same cause" if root and log.root else "not both say why"
    return "reproduced", f"the same ending ({describe(done.finished)}), and {cause}"


def _compare_success(seen: Capture, phase: Phase, done: WorkerRun) -> tuple[Verdict, str]:
    """The phase itself went well: its results are what can be wrong."""
    if not done.finished.ok:
        return "different", f"the program came past it, the replay ended with {describe(done.finished)}"
    before = [(leaf.shape, leaf.nan, leaf.inf) for leaf in getattr(phase, "outputs", [])]
    called = done.last("called") or {"outputs": []}
    after = [(leaf.get("shape"), leaf.get("nan", 0), leaf.get("inf", 0)) for leaf in called["outputs"]]
    if before != after:
        return "different", f"(shape, nan, inf) of the outputs: {after} instead of {before}"[:500]
    if any(nan or inf for _, nan, inf in before):
        return "reproduced", "the same counts of NaN and infinity in the outputs"
    compared = done.last("compared")
    if compared and compared["equal"]:
        return "reproduced", "the same outputs as those that the program found wrong"
    if compared:
        return "needs_script", "what the program found wrong is not what the replay gives"
    if seen.finished.ok:
        return "reproduced", "both the program and the replay ended well"
    return "needs_script", "the call is healthy: the failure is outside of it"


def _essence(text: str) -> str:
    """The first line without what changes from run to run."""
    lines = text.strip().splitlines()
    return _VOLATILE.sub("", lines[0]).strip() if lines else ""


def _named(root: ErrorFact) -> str:
    return f"{root.family.id}: {_essence(root.text)}"


def describe(finished: Finished) -> str:
    """An ending in a few words."""
    if finished.ending == "exit":
        return f"exit status {finished.returncode}"
    if finished.ending == "signal":
        return finished.signal or "a signal"
    return finished.ending.replace("_", " ")
