"""`reduce`: a small script that fails in the same way as a program."""

import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError, argument
from mcp_server.jobs.child import Command, Finished
from mcp_server.model import (
    Artifact,
    Cost,
    ExportedWorkload,
    ModelLocation,
    PackageWorkload,
    Record,
    ScriptWorkload,
)
from mcp_server.runtime.context import WORKER_ENV, Context, WorkerRun
from mcp_server.tools.failing import (
    Failing,
    FailureShown,
    Target,
    failing_program,
    result_of_script,
    run_worker,
    try_script,
)
from mcp_server.tools.switches import most_children
from mcp_server.worker import events
from mcp_server.worker.protocol import Plan
from mcp_server.worker.reduction import Minimiser

SCRIPT = "repro.py"
VERIFIED = 3  # reproductions tried under a plain interpreter, the smallest first
PASSED_ON = 1 << 20  # bytes that are easily sent to others
SMALL = 64 << 10  # bytes of real values for which seeded values are not tried
MOST_NOTES = 5
# torch/_inductor/exc.py (2.8-2.15), OperatorIssue: the operator that could not be lowered.
TARGET = re.compile(r"^ *target: (\S+)$", re.MULTILINE)
# A reproduction keeps the variables that affect torch, and no others.
STEERING = ("TORCH", "PYTORCH", "AOT_", "INDUCTOR", "TRITON", "CUDA_", "OMP_")


class ReducedNode(Record):
    """One operator of the reproduction, and the model's lines that made it."""

    name: str
    operator: str
    locations: list[ModelLocation] = Field(default_factory=list)


class Reduced(Record):
    """A reproduction that fails in the same way under a plain interpreter, or the reason why there is none.

    `files` are the script and what must be in the same folder. `real` names tensors with values of the
    workload, `seeded` those that the script generates. `complete` is False if time ran out before everything
    was tried. Exit status of the script: 0 no fault, 1 an exception, 3 an output is not finite, 4 it differs
    from eager, 5 it cannot be exported.
    """

    outcome: Literal["reduced", "not_reduced"]
    summary: str
    failure: FailureShown
    command: str = ""
    exit_status: int | None = None
    files: list[Artifact] = Field(default_factory=list)
    nodes: list[ReducedNode] = Field(default_factory=list)
    nodes_before: int = 0
    real: list[str] = Field(default_factory=list)
    seeded: list[str] = Field(default_factory=list)
    candidates: int = 0
    complete: bool = True
    notes: list[str] = Field(default_factory=list)
    log: Artifact
    cost: Cost


async def reduce(
    context: Context, workload: PackageWorkload | ExportedWorkload | ScriptWorkload, *, budget_s: float = 300
) -> Reduced:
    """Find, within `budget_s` seconds, a few operators of an exported program that fail as it does.

    The program is cut down in separate child processes. A script is run once, and its failing or suspect call
    is used. If the job is stopped, the link `best` in its folder points to the best reproduction so far.
    Raise ProblemError for a package, a program that does not fail or hangs, or a script without a program.
    """
    if isinstance(workload, PackageWorkload):
        raise ProblemError(
            "a package does not hold the graph that it was compiled from",
            value=str(workload.package),
            allowed=f"{argument('exported')} with the program it was compiled from, or a script",
        )
    async with context.sharing_imports():
        return await reduce_program(context, await failing_program(context, workload), budget_s)


async def reduce_program(context: Context, failing: Failing, budget_s: float) -> Reduced:
    target, attempt, failure = failing.target, failing.attempt, failing.failure
    # The values of the nodes are recorded in a new process if the failure ended the attempt.
    ended = not attempt.phases("evaluating")
    recorded = await run_worker(context, "record", target) if ended else attempt
    units = recorded.last(events.Units) or events.Units({})
    bad = [event.node for event in recorded.all(events.Value) if event.nan or event.inf]
    suspected = bad if failure.kind == "not_finite" else _suspected(failing, recorded)
    env = target.workload.env
    steering = [name for name in env if name.startswith(STEERING) and not name.endswith("CACHE_DIR")]
    request = {
        "values": recorded.directory / "values",
        "bad": bad,
        "repro_imports": target.imports if target.taken else (),
        "title": f"Reproduction of a failure of AOTInductor: {one_line(str(failure))}",
        "environment": {name: env[name] for name in steering},
    }
    context.progress("cutting the program down")
    search = Reduction(context, failing, units, request)
    with anyio.move_on_after(budget_s) as scope:
        await search.run(suspected[0] if suspected else "")
    return await _verified(context, failing, search, complete=not scope.cancelled_caught)


def one_line(text: str) -> str:
    """Bound a text, and make it safe in the docstring of a script."""
    return " ".join(text.replace("\\", "/").replace('"', "'").split())[:200]


def _suspected(failing: Failing, recorded: WorkerRun) -> list[str]:
    """List nodes that the compiler named, that raised, or that broke their fake function's promise."""
    last = recorded.last(events.Node)
    raised = [last.node] if last and not recorded.phases("recorded") else []
    mismatches = [event.node for event in recorded.all(events.FakeMismatch)]
    return [*_named_by_compiler(failing, recorded), *raised, *mismatches]


def _named_by_compiler(failing: Failing, recorded: WorkerRun) -> list[str]:
    """List nodes whose operator the compiler named: as its target, or in a name that was not found."""
    failure, output = failing.failure, failing.attempt.finished.output
    if failure.kind != "error" or failure.phase != "compiling":
        return []
    targets = set(TARGET.findall(output.read_text(encoding="utf-8", errors="replace")))
    words = re.split(r"\W+", failure.text)
    found = []
    for event in recorded.all(events.Node):
        operator = event.op
        # The C shim of a user's operator has a name that ends with the operator's name.
        name = operator.split(".")[1] if "." in operator else operator
        users = not operator.startswith(("aten.", "prims.", "<", "prim."))
        if operator in targets or (users and any(w == name or w.endswith("_" + name) for w in words)):
            found.append(event.node)
    return found


@dataclass
class Reduction:
    """Searches for fewer nodes, then for values drawn from a seed.

    `cuts` are the scripts of plans; `tried`: whether each fails in the same way; `kept`: those that do.
    """

    context: Context
    failing: Failing
    units: events.Units
    request: Mapping[str, object]
    cuts: dict[Plan, events.Cut] = field(default_factory=dict)
    tried: dict[Plan, bool] = field(default_factory=dict)
    kept: list[Plan] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    async def run(self, guess: str) -> None:
        """Search, beginning with the part around the node `guess`."""
        start = await self._start(guess)
        if start is None:
            return
        search = Minimiser(start.keep)
        while options := search.candidates():
            search.found(await self.first_failing([replace(start, keep=keep) for keep in options]))
        await self._seed(replace(start, keep=search.kept))

    async def first_failing(self, plans: Sequence[Plan]) -> int | None:
        """The number of the first plan that still fails in the same way, or None."""
        known = next((n for n, plan in enumerate(plans) if self.tried.get(plan)), None)
        cuts = await self._cut([plan for plan in plans[:known] if plan not in self.tried])
        limit, ended = anyio.CapacityLimiter(most_children()), set[Plan]()

        async def attempt(plan: Plan, cut: events.Cut) -> None:
            async with limit:
                result, done = await try_script(self.context, self.failing, Path(cut.script))
            self.tried[plan] = result == "same"
            ended.add(plan)
            if result == "other":
                self.notes.append(f"a candidate ended otherwise: {one_line(done.why)}")
            # Stop when a plan fails in the same way and all before it have ended differently.
            first = next((plan for plan in cuts if plan not in ended or self.tried[plan]), None)
            if first in ended:
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for plan, cut in cuts.items():
                group.start_soon(attempt, plan, cut)
        found = next((plan for plan in cuts if self.tried.get(plan)), None)
        if found is None:
            return known
        self._keep(found)
        return plans.index(found)

    async def _cut(self, plans: list[Plan]) -> dict[Plan, events.Cut]:
        """The scripts of the plans that yield a program."""
        if not plans:
            return {}
        directory = self.context.fresh("candidates")
        request = {**self.request, "plans": [asdict(plan) for plan in plans], "directory": directory}
        done = await run_worker(self.context, "cut", self.failing.target, request)
        for event in done.all(events.Uncuttable):
            self.tried[plans[event.number]] = False
            self.notes.append(f"not cut: {event.reason}")
        found = {plans[event.number]: event for event in done.all(events.Cut)}
        self.cuts |= found
        return found

    def _keep(self, plan: Plan) -> None:
        """Point the link `best` to this reproduction, in one step: the job may be stopped at any time."""
        self.kept.append(plan)
        link = self.context.directory / "best.new"
        link.unlink(missing_ok=True)
        link.symlink_to(Path(self.cuts[plan].script).parent)
        link.replace(link.with_name("best"))

    async def _start(self, guess: str) -> Plan | None:
        """A plan that fails. Parts around the suspect node come first, as they compile much sooner."""
        units = tuple(self.units.readers)
        parts = [Plan(keep) for keep in self._around(guess) if len(keep) < len(units)]
        whole = [Plan(units), Plan(units, dynamic=True)] if self.units.dynamic else [Plan(units)]
        for plans in (parts[:1], parts[1:], whole):
            found = await self.first_failing(plans)
            if found is not None:
                return plans[found]
        return None

    def _around(self, guess: str) -> list[tuple[str, ...]]:
        """Three candidates: the node, the node with its readers, the node with all its dependents."""
        readers = self.units.readers
        if guess not in readers:
            return []
        later = direct = {guess, *readers[guess]}
        while more := {each for unit in later for each in readers[unit]} - later:
            later = later | more
        parts = ({guess}, direct, later)
        return list(dict.fromkeys(tuple(unit for unit in readers if unit in part) for part in parts))

    async def _seed(self, plan: Plan) -> None:
        """Replace real values with seeded ones: all at once, or one tensor after another.

        A few values stay, except for an error of the compiler, which needs none.
        """
        tensors, failure = self.cuts[plan].tensors, self.failing.failure
        compiling = (failure.kind, failure.phase) == ("error", "compiling")
        if not compiling and sum(tensors.values()) <= SMALL:
            return
        if await self.first_failing([replace(plan, seeded=tuple(tensors))]) is not None:
            return
        for name in sorted(tensors, key=lambda name: -tensors[name]):
            if sum(size for each, size in tensors.items() if each not in plan.seeded) <= SMALL:
                break
            wanted = replace(plan, seeded=(*plan.seeded, name))
            if await self.first_failing([wanted]) is not None:
                plan = wanted


async def _verified(context: Context, failing: Failing, search: Reduction, *, complete: bool) -> Reduced:
    """Run the kept scripts, smallest first, until one fails in the same way under a plain interpreter."""
    failure = failing.failure
    limit = "" if complete else " in this time (budget_s)"
    result = Reduced(
        outcome="not_reduced",
        summary=f"The program fails ({failure}), but no part that was cut out and exported did{limit}.",
        failure=failure,
        nodes_before=len(search.units.readers),
        candidates=len(search.tried),
        complete=complete,
        log=context.artifact(failing.attempt.finished.output, "output of the whole program"),
        cost=context.cost.cost(),
    )
    notes = []
    for plan in search.kept[: -VERIFIED - 1 : -1]:
        cut, directory = search.cuts[plan], context.fresh("reproduction")
        shutil.copytree(Path(cut.script).parent, directory, dirs_exist_ok=True)
        finished = await run_script(context, failing.target, directory)
        if result_of_script(finished, failure) != "same":
            notes.append(f"a reproduction of {cut.operators} operators did not fail alone")
            continue
        update = _reproduced(context, failing, directory, finished, cut, plan)
        counts = f"{cut.operators} of {result.nodes_before} operators"
        update["summary"] = f"{counts} still fail in the same way: {str(failure).rstrip('.')}."
        update["notes"] = [*notes, *_of_values(cut, plan)]
        return result.model_copy(update={**update, "cost": context.cost.cost()})
    why = list(dict.fromkeys(search.notes))[:MOST_NOTES]
    return result.model_copy(update={"notes": [*notes, *why], "cost": context.cost.cost()})


def _reproduced(
    context: Context, failing: Failing, directory: Path, finished: Finished, cut: events.Cut, plan: Plan
) -> dict[str, object]:
    """The fields of the result that the reproduction in `directory` gives."""
    python = str(context.python_for(failing.target.workload))
    return {
        "outcome": "reduced",
        "command": shlex.join([python, str(directory / SCRIPT)]),
        "exit_status": finished.returncode,
        "files": _files(context, directory),
        "nodes": _nodes(cut.nodes),
        "real": sorted(cut.tensors.keys() - set(plan.seeded)),
        "seeded": sorted(plan.seeded),
        "log": context.artifact(finished.output, "output of the reproduction"),
    }


def _of_values(cut: events.Cut, plan: Plan) -> list[str]:
    """Say that the reproduction has values of the workload, and how many bytes if it needs many."""
    real = [size for name, size in cut.tensors.items() if name not in plan.seeded]
    notes = ["inputs.pt holds values of the workload"] if real else []
    if sum(real) > PASSED_ON:
        notes.append(f"the failure needs {sum(real)} bytes of real values")
    return notes


async def run_script(context: Context, target: Target, directory: Path) -> Finished:
    """Run the reproduction in `directory` as a user would, with only the interpreter and the script."""
    argv = (str(context.python_for(target.workload)), SCRIPT)
    env = {**WORKER_ENV, "PYTHONDONTWRITEBYTECODE": "1"}
    timeout_s = target.workload.timeout_s
    command = Command(argv=argv, cwd=directory, env=env, timeout_s=timeout_s, gpus=target.gpus)
    return await context.run(command, "reproduction-run", runs=1)


def _files(context: Context, directory: Path) -> list[Artifact]:
    return [
        context.artifact(path, "reproduction" if path.name == SCRIPT else "needed in the same folder")
        for path in sorted(directory.iterdir())
        if path.is_file()
    ]


def _nodes(nodes: Collection[events.OfNode]) -> list[ReducedNode]:
    return [
        ReducedNode(
            name=node.node,
            operator=node.op,
            locations=[
                ModelLocation(file=frame.file, line=frame.line or 0, code=frame.code) for frame in node.stack
            ],
        )
        for node in nodes
    ]
