"""Whether a fault shows in a plain run, under the official flags, or only under a checker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from mcp_server.model import PackageWorkload, Record
from mcp_server.steps.context import Context, WorkerRun
from mcp_server.steps.failure import read_failure
from mcp_server.steps.requests import run_request
from mcp_server.steps.run_deterministic import BLOCKING, CACHING_OFF

How = Literal["plain", "official_flags", "flaky", "silent", "not_seen"]

FLAGS = {**CACHING_OFF, **BLOCKING}


class PlainRun(Record):
    """One run without a checker: `flags` that were set, and how it ended (empty: well)."""

    flags: dict[str, str]
    failed: bool
    text: str = ""
    seconds: float


class Visibility(Record):
    """`silent`: no run without a checker failed. `flaky`: only some of the plain runs did (`failing` of
    `runs`). `not_seen`: nothing at all was found."""

    how: How
    summary: str
    failing: int = 0
    runs: list[PlainRun] = Field(default_factory=list)


async def run_plainly(
    context: Context, workload: PackageWorkload, flags: Mapping[str, str], name: str
) -> PlainRun:
    """The original package, once. It takes no lease of a GPU: it runs beside the checker."""
    done = await context.worker(
        "run",
        run_request(workload),
        name=name,
        env={**workload.env, **flags},
        timeout_s=workload.timeout_s,
        python=workload.python,
        cwd=workload.cwd,
        gpus=(),
        alone=True,
    )
    failure = read_failure(done.finished)
    text = f"{failure.signal or failure.returncode}: {failure.text}"[:300] if failure else ""
    return PlainRun(
        flags=dict(flags), failed=_failed(done), text=text, seconds=round(done.finished.wall_s, 3)
    )


def _failed(done: WorkerRun) -> bool:
    return not done.finished.ok or done.last("called") is None


def judge(runs: list[PlainRun], found: bool) -> Visibility | None:
    """None when no such run was made."""
    if not runs:
        return None
    plain = [run for run in runs if not run.flags]
    flagged = [run for run in runs if run.flags]
    failing = sum(run.failed for run in plain)
    how = _how(failing, len(plain), any(run.failed for run in flagged), found)
    summary = _WORDS[how].format(failing=failing, plain=len(plain))
    return Visibility(how=how, summary=summary, failing=failing, runs=runs)


def _how(failing: int, plain: int, flagged: bool, found: bool) -> How:
    if plain and failing == plain:
        return "plain"
    if failing:
        return "flaky"
    if flagged:
        return "official_flags"
    return "silent" if found else "not_seen"


_WORDS: dict[How, str] = {
    "plain": "A plain run fails too.",
    "official_flags": "A plain run passes; with the caching allocator off and blocking launches it fails.",
    "flaky": "Flaky: {failing} of {plain} plain runs fail.",
    "silent": "No run without a checker fails: wrong numbers are all that a user would see, if that.",
    "not_seen": "No run failed, with or without a checker.",
}
