"""`--symptom slow-load`: the load as it is, and without the test of the processor's instructions."""

from __future__ import annotations

from mcp_server.cost.verdicts import LEAST_WIN, Lever, Win, loss, no_loss, told
from mcp_server.errors import ProblemError
from mcp_server.model import Component, PackageWorkload, Verdict
from mcp_server.runtime.context import Context
from mcp_server.worker.events import LoadedIn

PAIRS = 3
ISA_OK = "TORCHINDUCTOR_VEC_ISA_OK"
WITHOUT_TEST = Lever(
    f"with {ISA_OK}=1",
    "set the variable on machines like the one that the package was built for",
    f"{ISA_OK}=1",
    "the instructions are no longer tested, so a package for other ones is loaded, too",
)


async def diagnose_load(context: Context, workload: PackageWorkload) -> Verdict:
    """Both loads in turns, each in a process of its own. Raises `ProblemError`."""
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
