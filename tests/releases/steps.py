"""Every kind of step, and a diagnosis of three bad calls, with packages that a release made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.tools.check_devices import check_devices
from mcp_server.tools.compare_with_eager import compare_with_eager
from mcp_server.tools.dump_kernel_io import dump_kernel_io
from mcp_server.tools.locate_fault import locate_fault
from mcp_server.tools.run_deterministic import run_deterministic
from tests.releases.trial import Outcome, Release, Trials

DIAGNOSED = (
    ("ranker", "bad-index", "index_out_of_bounds"),
    ("ranker", "bad-dtype", "input_mismatch"),
    ("logarithm", "bad-nan", "nan_or_inf"),
)
CALL = (
    "import sys, torch._inductor.codecache\n"  # torch 2.10.0 needs it and does not import it
    "model = torch._inductor.aoti_load_package(sys.argv[1])\n"
    "print(model(*torch.load(sys.argv[2], weights_only=True)))\n"
)


def _unless(held: bool, told: object) -> Outcome:
    return "" if held else str(told)


class Steps:
    """The steps on packages of one release."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self.script = release.directory / "call.py"
        self.script.write_text(CALL)

    async def bad_index_is_located(self) -> Outcome:
        release = self.release
        found = await locate_fault(
            release.context(), release.call("ranker", "bad-index"), cache=release.cache
        )
        launch = found.fault.launch if found.fault else None
        return _unless(launch is not None and launch.index == 0, found.summary)

    async def diagnosed(self, name: str, kind: str, category: str) -> Outcome:
        """A package and its inputs are all that `diagnose` gets."""
        verdict = await diagnose(self.release.context(), self.release.call(name, kind))
        held = (verdict.outcome, verdict.category) == ("fault", category)
        return _unless(held, f"{verdict.outcome} {verdict.category}: {verdict.summary}")

    async def values_are_seen(self) -> Outcome:
        seen = await dump_kernel_io(self.release.context(), self.release.call("ranker"))
        held = seen.returned and seen.seen == len(seen.launches) > 0
        return _unless(held, f"{seen.seen} launches")

    async def eager_agrees(self) -> Outcome:
        workload = self.release.call("ranker")
        exported = workload.package.with_name("ranker.exported.pt2")
        compared = await compare_with_eager(self.release.context(), workload, exported)
        return _unless(compared.outcome == "agrees", compared.summary)

    async def wrong_dtype_of_an_input_is_told(self) -> Outcome:
        checked = await check_devices(self.release.context(), self.release.call("ranker", "bad-dtype"))
        return _unless("int32" in checked.summary, checked.summary)

    async def failure_is_stable(self) -> Outcome:
        workload = self.release.call("ranker", "bad-index")
        repeated = await run_deterministic(self.release.context(), workload, repeats=2)
        return _unless(repeated.pattern == "stable" and repeated.failing == 2, repeated.pattern)

    def trials(self) -> Trials:
        steps: tuple[Callable[[], Awaitable[Outcome]], ...] = (
            self.bad_index_is_located,
            self.values_are_seen,
            self.eager_agrees,
            self.wrong_dtype_of_an_input_is_told,
            self.failure_is_stable,
        )
        named = {step.__name__.replace("_", " "): step for step in steps}
        for name, kind, category in DIAGNOSED:
            named[f"{name} {kind} is diagnosed"] = partial(self.diagnosed, name, kind, category)
        return {name: partial(anyio.run, step) for name, step in named.items()}
