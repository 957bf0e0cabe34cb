"""The whole way under another torch: compile, instrument, compare, and every kind of step.

`python -m tests.instrument.other_torch PYTHON [DIRECTORY]` compiles a few models of the zoo with the torch of
PYTHON and prints one line for each thing tried, and whether it held. DIRECTORY keeps the packages; it also
gets the journals `<model>.<kind>.jsonl`, of which `tests/instrument/journals` holds some.

Held with torch 2.8.0 (Python 3.9) and 2.15.0 (Python 3.12) on a CPU, all lines. What differs:

| torch | differs | how it is met |
|---|---|---|
| 2.8 | no `aoti_torch_is_defined`, no `aoti_torch_get_layout` | weak symbols in runtime.cpp |
| up to 2.12 | a shim that fails prints `Exception in aoti_torch` | runtime.cpp asks before it looks |
| 2.13.0+cpu | a package does not need libtorch.so, as others do | link_command names no library |
| older package (2.8, 2.13) in a newer torch | rebuilt and run, bit-identical | nothing to do |
| newer package (2.13, 2.15) in an older torch | the wrapper does not compile | refused, with the reason |
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import anyio

from mcp_server.diagnose import diagnose
from mcp_server.evidence.journal import read_journal_file
from mcp_server.instrument.build import instrument
from mcp_server.instrument.cache import Cache
from mcp_server.instrument.types import Options
from mcp_server.model import ExportedWorkload, PackageWorkload, ScriptWorkload
from mcp_server.steps.capture import capture
from mcp_server.steps.check_devices import check_devices
from mcp_server.steps.compare_with_eager import compare_with_eager
from mcp_server.steps.context import Context
from mcp_server.steps.dump_kernel_io import dump_kernel_io
from mcp_server.steps.locate_fault import locate_fault
from mcp_server.steps.replay import replay
from mcp_server.steps.run_deterministic import run_deterministic
from tests.conftest import ROOT

MODELS = ("ranker", "branch", "loop", "scatter", "plugin")
CALL = (
    "import sys, torch\n"
    "model = torch._inductor.aoti_load_package(sys.argv[1])\n"
    "print(model(*torch.load(sys.argv[2], weights_only=True)))\n"
)


class Trial:
    """One interpreter's torch, and a directory for its packages."""

    def __init__(self, python: Path, directory: Path) -> None:
        self.python, self.directory = python, directory
        self.cache = Cache(directory / "cache")
        (directory / "call.py").write_text(CALL)

    def built(self, name: str) -> Path:
        package = self.directory / f"{name}.pt2"
        environment = {
            **os.environ,
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            "INDUCTOR_PROVENANCE": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "inductor"),
        }
        argv = [str(self.python), "-W", "ignore", "-m", "tests.zoo.build", name, str(self.directory)]
        if not package.exists():
            subprocess.run(argv, env=environment, cwd=ROOT, check=True, capture_output=True)
        return package

    def context(self) -> Context:
        return Context(Path(tempfile.mkdtemp(dir=self.directory)), self.python)

    def call(self, name: str, kind: str = "inputs") -> PackageWorkload:
        package = self.built(name)
        return PackageWorkload(
            package=package,
            inputs=package.with_name(f"{name}.{kind}.pt"),
            python=self.python,
            cwd=ROOT,
            extra_imports=["tests.zoo.models"],
        )

    async def same_program(self, name: str) -> bool:
        """Bit-identical outputs, and a journal of every launch."""
        workload, context = self.call(name), self.context()
        rebuilt = await instrument(workload.package, Options(), context, cache=self.cache)
        journal = self.directory / f"{name}.returned.jsonl"
        journal.unlink(missing_ok=True)
        mine = await self._outputs(workload, rebuilt.package, {"AOTI_DEBUG_JOURNAL": str(journal)})
        theirs = await self._outputs(workload, workload.package, {})
        whole = read_journal_file(journal).ending.how == "returned"
        return whole and not rebuilt.skipped and mine == theirs != b""

    async def _outputs(self, workload: PackageWorkload, package: Path, env: dict[str, str]) -> bytes:
        """What one call returned, as it was saved; empty when it failed."""
        context = self.context()
        target = context.directory / "outputs.pt"
        request = {"package": package, "inputs": workload.inputs, "save_outputs": target}
        asked = {**request, "extra_imports": workload.extra_imports}
        done = await context.worker("run", asked, env=env, cwd=ROOT)
        return target.read_bytes() if done.finished.ok else b""

    async def bad_index_is_located(self) -> bool:
        found = await locate_fault(self.context(), self.call("ranker", "bad-index"), cache=self.cache)
        launch = found.fault.launch if found.fault else None
        return launch is not None and launch.index == 0

    async def bad_index_is_diagnosed(self) -> bool:
        verdict = await diagnose(self.context(), self.call("ranker", "bad-index"))
        return (verdict.category, verdict.confidence) == ("index_out_of_bounds", "proven")

    async def values_are_seen(self) -> bool:
        seen = await dump_kernel_io(self.context(), self.call("ranker"))
        return seen.backend == "probes" and seen.returned and seen.seen == 5

    async def eager_agrees(self) -> bool:
        workload = self.call("ranker")
        exported = workload.package.with_name("ranker.exported.pt2")
        return (await compare_with_eager(self.context(), workload, exported)).outcome == "agrees"

    async def machine_and_inputs_are_told(self) -> bool:
        checked = await check_devices(self.context(), self.call("ranker", "bad-dtype"))
        return "int32" in checked.summary

    async def failure_is_stable(self) -> bool:
        repeated = await run_deterministic(self.context(), self.call("ranker", "bad-index"), repeats=2)
        return repeated.pattern == "stable" and repeated.failing == 2

    async def captured_call_replays(self) -> bool:
        args = [str(self.built("ranker")), str(self.directory / "ranker.bad-index.pt")]
        script = ScriptWorkload(script=self.directory / "call.py", args=args, python=self.python)
        context = self.context()
        seen = await capture(context, script)
        return (await replay(context, seen, python=self.python)).verdict == "reproduced"

    async def printer_shows_values(self) -> bool:
        exported = self.built("ranker").with_name("ranker.exported.pt2")
        workload = ExportedWorkload(
            exported=exported, inputs=exported.with_name("ranker.inputs.pt"), python=self.python
        )
        seen = await dump_kernel_io(self.context(), workload, backend="printer")
        return seen.returned and any(a.mean is not None for launch in seen.launches for a in launch.arguments)

    def trials(self) -> dict[str, Callable[[], Awaitable[bool]]]:
        same = {f"{name} is the same program": partial(self.same_program, name) for name in MODELS}
        others = (
            self.bad_index_is_located,
            self.bad_index_is_diagnosed,
            self.values_are_seen,
            self.eager_agrees,
            self.machine_and_inputs_are_told,
            self.failure_is_stable,
            self.captured_call_replays,
            self.printer_shows_values,
        )
        return {**same, **{trial.__name__.replace("_", " "): trial for trial in others}}


def run(python: Path, directory: Path) -> dict[str, bool]:
    """Whether each thing tried held."""
    held = {}
    for name, trial in Trial(python, directory).trials().items():
        held[name] = anyio.run(trial)
        print(f"{'holds' if held[name] else 'FAILS':6} {name}", flush=True)
    return held


if __name__ == "__main__":
    where = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
    sys.exit(not all(run(Path(sys.argv[1]), where).values()))
