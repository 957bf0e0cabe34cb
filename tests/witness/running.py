"""Starts recorded runs: builds the audit module, runs the recorder under it, reads what it wrote."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mcp_server.package.archive import open_package
from mcp_server.package.wrapper import read_wrapper
from tests.conftest import ROOT
from tests.witness.agree import Agreement, compare

_SOURCE = Path(__file__).with_name("audit.c")
_JOIN = (
    "import json, sys, torch._inductor.package\n"
    "torch._inductor.package.package_aoti(sys.argv[1], json.loads(sys.argv[2]))\n"
)


@dataclass(frozen=True)
class Run:
    """A model of a package to run on the zoo's inputs of that name."""

    package: Path
    model: str
    zoo: Path

    @property
    def name(self) -> str:
        return self.zoo.stem


def can_audit() -> bool:
    """Whether this machine has what the audit module is written for."""
    library, version = platform.libc_ver()
    recent = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 35)
    return recent and platform.machine() == "x86_64" and compiler() is not None


def compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")


def witnessed(directory: Path, runs: Iterable[Run], python: Path = Path(sys.executable)) -> dict[str, Path]:
    """Run each model once under `python`; the files that tell what it called, by the zoo's name."""
    runs = list(runs)
    audit = directory / "audit.so"
    argv = [compiler() or "cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(audit), str(_SOURCE)]
    subprocess.run(argv, check=True)
    told = {run.name: directory / f"{run.name}.json" for run in runs}
    (directory / "tasks.json").write_text(json.dumps([_task(run, told[run.name]) for run in runs]))
    environment = {
        **os.environ,
        "LD_AUDIT": str(audit),
        "AUDIT_REGISTER": str(directory / "register"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    argv = [str(python), "-W", "ignore", "-m", "tests.witness.record", str(directory / "tasks.json")]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return told


def _task(run: Run, told: Path) -> dict[str, str]:
    return {
        "package": str(run.package),
        "model": run.model,
        "inputs": str(run.zoo.with_suffix(".inputs.pt")),
        "exported": str(run.zoo.with_suffix(".exported.pt2")),
        "told": str(told),
    }


def agreement(run: Run, told: Path) -> Agreement:
    """What the reader says of the package, against that run."""
    package = open_package(run.package, run.model)
    wrapper = read_wrapper(package.wrapper_text, package.kernel_text)
    seen: dict[str, Any] = json.loads(told.read_text())
    return compare(wrapper, {c.name: c.fqn for c in package.constants}, seen)


def join(package: Path, models: Mapping[str, Path]) -> None:
    """One package of several models, as torch packs it, from packages of one model each."""
    files = {}
    for name, source in models.items():
        folder = package.parent / name
        with zipfile.ZipFile(source) as archive:
            archive.extractall(folder)
        files[name] = [str(path) for path in folder.rglob("data/aotinductor/model/*")]
    argv = [sys.executable, "-W", "ignore", "-c", _JOIN, str(package), json.dumps(files)]
    subprocess.run(argv, check=True, capture_output=True)


needs_audit = pytest.mark.skipif(not can_audit(), reason="needs gcc, x86-64 and glibc 2.35 or newer")
