"""`--symptom slow`, `slow-load` and `slow-build`: nothing fails, but something takes too long."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mcp_server.cost.build import diagnose_build
from mcp_server.cost.call import diagnose_call
from mcp_server.cost.verdicts import ISA_OK, LEAST_WIN, Lever, Win, loss, no_loss, told
from mcp_server.diagnosis.observe.program import suspect_call
from mcp_server.errors import ProblemError
from mcp_server.model import (
    Component,
    CostSymptom,
    ExportedWorkload,
    PackageWorkload,
    ScriptWorkload,
    Verdict,
    Workload,
)
from mcp_server.runtime.context import Context
from mcp_server.tools.capture import capture
from mcp_server.worker.events import LoadedIn


@dataclass(frozen=True)
class _Subject:
    """What a workload provides: its package, the program it was built from, and the options of that build."""

    package: PackageWorkload | None = None
    program: Path | None = None
    configs: dict[str, object] = field(default_factory=dict)


async def diagnose_cost(
    context: Context, workload: Workload | None, exported: Path | None, symptom: CostSymptom, budget_s: float
) -> Verdict:
    """Return a `cost` verdict, or `no_fault` with what was timed. Raise `ProblemError` without a subject."""
    subject = await _subject(context, workload, exported)
    if symptom == "slow-build":
        if subject.program is None or workload is None:
            raise ProblemError("timing a build needs the exported program", allowed="exported, or script")
        return await diagnose_build(context, workload, subject.program, subject.configs, budget_s=budget_s)
    if subject.package is None:
        raise ProblemError("this symptom is about a package", allowed="package with inputs, or script")
    if symptom == "slow-load":
        return await diagnose_load(context, subject.package)
    return await diagnose_call(context, subject.package, subject.program, budget_s=budget_s)


async def _subject(context: Context, workload: Workload | None, exported: Path | None) -> _Subject:
    """Find what to time: of a script, the last call and build. Raise `ProblemError` if there is none."""
    if isinstance(workload, PackageWorkload):
        return _Subject(workload, exported)
    if isinstance(workload, ExportedWorkload):
        return _Subject(None, workload.exported)
    if not isinstance(workload, ScriptWorkload):
        raise ProblemError("this symptom is about a package", allowed="package with inputs, or script")
    seen = await capture(context, workload)
    call, builds = suspect_call(seen), [each for each in seen.compiles if each.exported]
    package = None
    if call is not None and call.inputs is not None:
        around = workload.model_dump(include={"cwd", "env", "python", "timeout_s"})
        package = PackageWorkload(package=call.package, inputs=call.inputs, **around)
    if package is None and not builds:
        raise ProblemError(
            "the script builds no package and calls none",
            value=str(workload.script),
            allowed="package and inputs",
        )
    return _Subject(package, builds[-1].exported if builds else None, builds[-1].configs if builds else {})


PAIRS = 3
WITHOUT_TEST = Lever(
    f"with {ISA_OK}=1",
    "set the variable on machines like the one that the package was built for",
    f"{ISA_OK}=1",
    "the instructions are no longer tested, so a package for other ones is loaded, too",
)


async def diagnose_load(context: Context, workload: PackageWorkload) -> Verdict:
    """Time loads with and without the test in turn, each in its own process. May raise `ProblemError`."""
    plain: list[float] = []
    changed: list[float] = []
    request = {"package": str(workload.package), "model_name": workload.model_name}
    for _ in range(PAIRS):
        for found, value in ((plain, ""), (changed, "1")):
            env, unset = ({ISA_OK: value}, ()) if value else ({}, (ISA_OK,))
            run = await context.worker("time_load", request, env=env, unset=unset, workload=workload)
            event = run.last(LoadedIn)
            if event is None:
                raise ProblemError(f"the package could not be loaded: {run.why}")
            found.append(event.seconds)
    ratios = sorted(a / b for a, b in zip(plain, changed, strict=True))
    usual, quick = (told(sorted(each)[PAIRS // 2]) for each in (plain, changed))
    middle = f"The load takes {usual}, {quick} with {ISA_OK}=1"
    if ratios[0] < LEAST_WIN:
        return no_loss(f"{middle}: no change won time.", context.cost.cost())
    faster = f"{ratios[PAIRS // 2]:.1f} times as fast"
    win = Win(WITHOUT_TEST, plain[0], changed[0], plain[1], faster, "load")
    summary = f"{middle}: torch compiles a test of the vector instructions when it loads a package."
    party = Component(kind="environment", name=ISA_OK)
    return loss("the load compiles a test of the processor", summary, party, win, context.cost.cost())
