"""What every trial of a release shares: its interpreter, its packages, and children that it runs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from mcp_server.model import PackageWorkload
from mcp_server.probes.cache import Cache
from mcp_server.runtime.context import Context
from tests.conftest import ROOT
from tests.zoo.names import CPU_MODELS

# What came of a thing tried: "" when it held, else why not.
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
        """A run of the release's Python in the repository."""
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
        """Compile what is missing of the zoo in one process; the output."""
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
