"""A release: its interpreter, the children that it runs, and the zoo's packages that it compiles and runs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import anyio

from mcp_server.logs.journal import read_journal_file
from mcp_server.model import PackageWorkload
from mcp_server.package.view import view_package
from mcp_server.probes.build import instrument
from mcp_server.probes.cache import Cache
from mcp_server.probes.commands import Instrumented, Options
from mcp_server.runtime.context import Context
from tests.conftest import ROOT
from tests.support.tools import asked
from tests.zoo.names import CPU_MODELS

# "" if a trial held, else why not.
Outcome = str
Trials = Mapping[str, Callable[[], Outcome]]

_BUILD = (
    "import sys, traceback\n"
    "from tests.zoo.build import main\n"
    "for name in sys.argv[2:]:\n"
    "    try:\n"
    "        main(name, sys.argv[1])\n"
    "    except Exception:\n"
    "        traceback.print_exc()\n"
)


class Release:
    """One interpreter's torch, and a directory for what is made with it."""

    def __init__(self, python: Path, directory: Path) -> None:
        self.python, self.directory = python, directory
        self.zoo, self.cache = directory / "zoo", Cache(directory / "cache")
        self.zoo.mkdir(parents=True, exist_ok=True)
        self.torch, self.python_version = self._versions()

    def _versions(self) -> tuple[str, str]:
        code = "import platform, torch; print(torch.__version__, platform.python_version())"
        torch, python = self.child("-c", code).stdout.split()[-2:]
        return torch, python

    @property
    def release(self) -> tuple[int, int]:
        major, minor = self.torch.split(".")[:2]
        return int(major), int(minor)

    def child(self, *argv: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the release's Python in the repository."""
        environment = {
            **os.environ,
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "inductor"),
            "AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL": "O0",
            "PYTHONPATH": str(ROOT),
            **(env or {}),
        }
        return subprocess.run(
            [str(self.python), "-W", "ignore", *argv],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
        )

    def build(self) -> str:
        """Compile what is missing of the zoo in one process, and return its output."""
        missing = [name for name in CPU_MODELS if not self.package(name).exists()]
        if not missing:
            return ""
        return self.child("-c", _BUILD, str(self.zoo), *missing, env={"INDUCTOR_PROVENANCE": "1"}).stderr

    def package(self, name: str) -> Path:
        return self.zoo / f"{name}.pt2"

    def inputs(self, name: str, kind: str = "inputs") -> Path:
        return self.zoo / f"{name}.{kind}.pt"

    def context(self) -> Context:
        return Context(Path(tempfile.mkdtemp(dir=self.directory)), self.python)

    def call(self, name: str, kind: str = "inputs") -> PackageWorkload:
        return PackageWorkload(
            package=self.package(name),
            inputs=self.inputs(name, kind),
            python=self.python,
            cwd=ROOT,
            extra_imports=["tests.zoo.models"],
        )


class Packages:
    """The zoo under one release; the results of runs are kept for other trials."""

    def __init__(self, release: Release) -> None:
        self.release = release
        self._same: dict[str, bool] | None = None

    def compiled(self, name: str) -> Outcome:
        """The release compiles the model."""
        output = self.release.build()
        return "" if self.release.package(name).exists() else f"not compiled: {output[-300:]}"

    def read(self, name: str) -> Outcome:
        """Every statement is understood, every launch can be inspected, and nothing is called damaged."""
        path = self.release.package(name)
        view = view_package(path)
        lines = [f"line {p.line}: {p.what}" for p in view.wrapper.problems]
        lines += [f"defect: {defect}" for defect in view.package.defects]
        for launch in view.wrapper.launches:
            view.flow_of(launch).backward_from(launch.index)
        context = self.release.context()
        for question in ({}, *({"launch": each.index} for each in view.wrapper.launches)):
            anyio.run(partial(asked, "inspect_package", context, package=path, **question))
        return "; ".join(lines) if lines or view.wrapper.launches else "no launch was read"

    def same_program(self, name: str) -> Outcome:
        """Rebuilt with a probe at every launch, the package returns the same bits in three calls."""
        if self._same is None:
            self._same = self._compared()
        return "" if self._same[name] else "outputs differ, or a launch has no probe"

    def journal(self, name: str) -> Outcome:
        """The journal has the launches of each call, in the wrapper's order if that has one path."""
        journal = self.release.directory / f"{name}.returned.jsonl"
        journal.unlink(missing_ok=True)
        rebuilt = self.release.directory / "rebuilt" / f"{name}.pt2"
        code = (
            "import sys, torch, tests.zoo.models\n"
            "m = torch._C._aoti.AOTIModelPackageLoader(sys.argv[1], 'model', False, 1, -1)\n"
            "m.run(torch.load(sys.argv[2], weights_only=True))\n"
        )
        env = {"AOTI_DEBUG_JOURNAL": str(journal)}
        done = self.release.child("-c", code, str(rebuilt), str(self.release.inputs(name)), env=env)
        found = read_journal_file(journal)
        if found.ending.how != "returned" or done.returncode:
            return f"the journal ends with {found.ending.how}: {done.stderr[-200:]}"
        launches = view_package(self.release.package(name)).wrapper.launches
        if any(launch.context for launch in launches):
            return ""  # the run decides on branches and turns
        told = [[n.launch for n in call.launches] for call in found.calls]
        read = [launch.index for launch in launches]
        return "" if told == [read] * len(told) else f"the journal says {told}, the wrapper {read}"

    def _compared(self) -> dict[str, bool]:
        pairs, whole = {}, {}
        (self.release.directory / "rebuilt").mkdir(exist_ok=True)
        for name in CPU_MODELS:
            package = self.release.package(name)
            rebuilt = anyio.run(partial(self._rebuild, package))
            target = self.release.directory / "rebuilt" / package.name
            target.write_bytes(rebuilt.package.read_bytes())
            launches = len(view_package(package).wrapper.launches)
            whole[name] = not rebuilt.skipped and rebuilt.probed["model"] == launches
            pairs[name] = {
                "original": str(package),
                "rebuilt": str(target),
                "inputs": str(self.release.inputs(name)),
            }
        listed = self.release.directory / "pairs.json"
        listed.write_text(json.dumps([*pairs.values()]))
        done = self.release.child("-m", "tests.probes.pairs", str(listed))
        same = json.loads(done.stdout.splitlines()[-1])
        return {name: whole[name] and bits for name, bits in zip(pairs, same, strict=True)}

    async def _rebuild(self, package: Path) -> Instrumented:
        return await instrument(package, Options(), self.release.context(), cache=self.release.cache)

    def trials(self) -> Trials:
        kinds = {
            "compiles": self.compiled,
            "is read whole": self.read,
            "with probes is the same program": self.same_program,
            "journals its launches in order": self.journal,
        }
        return {
            f"{name} {what}": partial(trial, name) for what, trial in kinds.items() for name in CPU_MODELS
        }
