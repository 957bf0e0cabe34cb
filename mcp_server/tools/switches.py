"""Compiles a program with changed compiler options, several compiles at once, and judges the results.

This needs neither a reduced program nor a second export. `bisect` finds which pass or lowering is at fault.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import anyio
import anyio.to_thread
from pydantic import Field

from mcp_server.model import Artifact, Cost, ModelLocation, Record
from mcp_server.runtime.context import Context, WorkerRun
from mcp_server.tools.failing import Failing, FailureShown, Result, result_of_attempt, run_worker
from mcp_server.worker import events, protocol
from mcp_server.worker.reduction import split

Kind = Literal["pass", "switch", "decomposition", "lowering"]
Outcome = Literal["decision", "rounding", "not_found"]

# Options of torch._inductor.config that undo a compiler decision (2.8-2.15; the worker skips those that the
# release lacks). The value is the careful choice, which costs speed and nothing else.
SWITCHES: dict[str, dict[str, object]] = {
    "cpu": {
        "cpp.simdlen": 1,
        "cpp.threads": 1,
        "cpp.enable_loop_tail_vec": False,
        "cpp.enable_tiling_heuristics": False,
        "cpp.weight_prepack": False,
        "cpp.enable_unsafe_math_opt_flag": False,
        "cpp.enable_floating_point_contract_flag": "off",
    },
    "cuda": {
        "triton.autotune_at_compile_time": False,
        "triton.persistent_reductions": False,
        "split_reductions": False,
        "use_fast_math": False,
    },
    "any": {
        "max_fusion_size": 1,
        "epilogue_fusion": False,
        "prologue_fusion": False,
        "allow_buffer_reuse": False,
        "inplace_buffers": False,
        "layout_optimization": False,
        "comprehensive_padding": False,
        "memory_planning": False,
        "reorder_for_locality": False,
        "loop_ordering_after_fusion": False,
    },
}
# Rounds intermediate results of bf16 and fp16 as eager does (torch/_inductor/config.py, 2.6 and later).
PRECISION = {"emulate_precision_casts": True}
TIMED = {"timed_calls": 5}  # timed calls of the whole program, with and without the workaround
ROUNDED = tuple(PRECISION)
ROUNDING = (
    "The difference is rounding, not a fault: with intermediate results rounded as in eager "
    "(emulate_precision_casts) the outputs agree."
)
COMES_FROM: dict[Kind, str] = {
    "pass": "the graph pass {names}",
    "switch": "the code generation that {names} takes back",
    "decomposition": "the decomposition of {names}",
    "lowering": "the generated code of {names}",
}


def comes_from(failure: FailureShown, kind: Kind, names: Iterable[str]) -> str:
    return f"The failure ({failure}) comes from {COMES_FROM[kind].format(names=', '.join(names))}."


class Decision(Record):
    """One decision of the compiler.

    `rewrites` are the functions of torch that changed the graph in a pattern pass. `change` lists the lines
    that a pass removed from the graph and added to it.
    """

    kind: Kind
    name: str
    operator: str = ""
    location: ModelLocation | None = None
    rewrites: list[str] = Field(default_factory=list)
    change: list[str] = Field(default_factory=list)


class Workaround(Record):
    """Code before or in the compile. `reduced` and `whole`: what it does to the failure in these programs.

    `reduced` is None if the reduced program was not compiled with it. `price` is the time of a call of the
    whole program with the workaround divided by the time without; None if it crashes without.
    """

    code: str
    reduced: Result | None = None
    whole: Result
    price: float | None = None


class Experiment(Record):
    """One compile of the whole or the reduced program, and whether the failure disappeared in it."""

    label: str
    result: Result
    seconds: float


class Bisected(Record):
    """What makes the program fail: `decision` (a fault of the compiler), `rounding` (no fault), or not found.

    `report` is a text for PyTorch's issue tracker.
    """

    outcome: Outcome
    summary: str
    failure: FailureShown
    decisions: list[Decision] = Field(default_factory=list)
    workaround: Workaround | None = None
    experiments: list[Experiment] = Field(default_factory=list)
    compiles: int
    reproduction: list[Artifact] = Field(default_factory=list)
    report: Artifact | None = None
    notes: list[str] = Field(default_factory=list)
    log: Artifact
    cost: Cost


def switches_of(failing: Failing) -> dict[str, object]:
    """The options to try for a program; if its device is unknown, those of all devices."""
    device = failing.target.device
    kinds = ("any", device) if device else ("any", "cpu", "cuda")
    found = {name: value for kind in kinds for name, value in SWITCHES[kind].items()}
    return {**found, **(PRECISION if failing.failure.kind in ("departs", "not_finite") else {})}


def price(before: WorkerRun, after: WorkerRun) -> float | None:
    """The time of a call after the change divided by the time before. None if one was not timed."""
    timed, again = before.last(events.Timed), after.last(events.Timed)
    if not (timed and again and timed.seconds):
        return None
    return round(again.seconds / timed.seconds, 2)


def workaround_lines(asked: protocol.Workaround) -> str:
    """The code of a workaround."""
    lines = [
        f"torch._inductor.decomposition.{table}.pop(torch.ops.{name}, None)"
        for name in asked.get("decompositions", ())
        for table in (
            "decompositions",
            "select_decomp_table()",
        )  # from the first compile on, this is a copy of `decompositions`
    ]
    for name in asked.get("fallbacks", ()):
        lines.append(f"torch._inductor.decomposition.decompositions.pop(torch.ops.{name}, None)")
        lines.append(
            f"torch._inductor.lowering.make_fallback(torch.ops.{name}, warn=False, override_decomp=True)"
        )
    if asked.get("configs"):
        lines.append(f"aoti_compile_and_package(..., inductor_configs={dict(asked['configs'])!r})")
    return "\n".join(lines)


# This option is tried alone first, since many faults are in vector code: six public reports were reduced to
# switches, all to this one (benchmarks/results.json).
TELLING = "cpp.simdlen"
AGAIN = "nothing is switched off"

Names = tuple[str, ...]
Compile = Callable[[Names], Awaitable[tuple[Result, WorkerRun]]]


def most_children() -> int:
    return min(8, len(os.sched_getaffinity(0)))


@dataclass
class Wave:
    """Compiles the program once for each group of names. `label` says what the names change."""

    compile: Compile
    label: str
    seen: list[Experiment] = field(default_factory=list)
    results: dict[Names, Result] = field(default_factory=dict)
    runs: dict[Names, WorkerRun] = field(default_factory=dict)

    async def run(self, groups: Sequence[Names]) -> list[Result]:
        """Compile and call once for each group of names; repeat the empty group each time it is requested."""
        limit = anyio.CapacityLimiter(most_children())

        async def attempt(names: Names) -> None:
            async with limit:
                self.results[names], self.runs[names] = await self.compile(names)
            label = self.label.format(", ".join(names)) if names else AGAIN
            took = round(self.runs[names].finished.wall_s, 2)
            self.seen.append(Experiment(label=label[:300], result=self.results[names], seconds=took))

        async with anyio.create_task_group() as group:
            for names in groups:
                if not names or names not in self.results:
                    group.start_soon(attempt, names)
        return [self.results[names] for names in groups]


def switched(runs: Mapping[Names, WorkerRun], names: Names) -> Names:
    """The names that exist in this release of torch."""
    found = [event for run in runs.values() if (event := run.last(events.Switched)) is not None]
    return tuple(name for name in names if any(name in event.names for event in found))


async def try_options(context: Context, failing: Failing, options: Mapping[str, object]) -> Bisected:
    """Find the fewest options whose careful values make the failure disappear. Compile again without them.

    `rounding`: the numbers agree once intermediate results are rounded as in eager mode.
    """
    failure = failing.failure

    async def compile_with(names: Names) -> tuple[Result, WorkerRun]:
        request = {"switches": {name: options[name] for name in names}, **TIMED}
        done = await run_worker(context, "attempt", failing.target, request)
        return result_of_attempt(done, failure), done

    wave = Wave(compile_with, "with {}")
    context.progress("compiling with careful options")
    everything = tuple(options)
    alone = (TELLING,) if TELLING in options else everything[:1]
    helping = await fewest(everything, alone, most_children(), wave.run)
    names = switched(wave.runs, helping)
    reason = f"none of {len(switched(wave.runs, everything))} options makes it disappear"
    steady, rounding = await _confirmed(names, options, failing, wave) if names else (True, False)
    if not steady:
        names, reason = (), "it is intermittent, from compile to compile or from call to call"
    workaround = None
    if names:
        configs = {name: options[name] for name in (ROUNDED if rounding else names)}
        cost = price(failing.attempt, wave.runs[ROUNDED if rounding else helping])
        workaround = Workaround(code=workaround_lines({"configs": configs}), whole="gone", price=cost)
    not_found = f"No option of the compiler was found behind the failure ({failure}): {reason}."
    found = ROUNDING if rounding else comes_from(failure, "switch", names)
    last = list(wave.runs.values())[-1].finished.output
    return Bisected(
        outcome="not_found" if not names else "rounding" if rounding else "decision",
        summary=found if names else not_found,
        failure=failure,
        decisions=[Decision(kind="switch", name=name) for name in names if not rounding],
        workaround=workaround,
        experiments=wave.seen,
        compiles=len(wave.seen) + 1,
        log=context.artifact(last, "output of the last compile"),
        cost=context.cost.cost(),
    )


async def _confirmed(
    names: Names, options: Mapping[str, object], failing: Failing, wave: Wave
) -> tuple[bool, bool]:
    """Compile again without the options. Return whether the failure is steady, and whether it is rounding."""
    departs = failing.failure.kind == "departs"
    as_eager = departs and names != ROUNDED and bool(set(ROUNDED) & set(options))
    again, *rounded = await wave.run([(), ROUNDED] if as_eager else [()])
    timed = (run.last(events.Timed) for run in (failing.attempt, *wave.runs.values()))
    steady = again == "same" and all(event.steady for event in timed if event is not None)
    return steady, departs and (names == ROUNDED or rounded == ["gone"])


async def fewest(
    names: Names, alone: Names, parallel: int, run: Callable[[Sequence[Names]], Awaitable[list[Result]]]
) -> Names:
    """The fewest of `names` that were seen to help. Empty if not even all of them help.

    `run` returns the result for each group of names, `parallel` of them at once. Names in `alone` are tried
    first. The others are split as long as one part helps by itself.
    """
    with_all, *rest = await run(list(dict.fromkeys([names, alone or names])))
    if alone and [with_all, *rest][-1] == "gone":
        return alone
    if with_all == "same":
        return ()
    # Combined, the options may cause a different failure.
    helping, left = names if with_all == "gone" else (), tuple(name for name in names if name not in alone)
    while left and len(helping) != 1:
        parts = [tuple(part) for part in split(left, min(len(left), max(2, parallel)))]
        results = await run(parts)
        if "gone" not in results:
            return helping  # no part helps by itself
        helping = left = parts[results.index("gone")]
    return helping
