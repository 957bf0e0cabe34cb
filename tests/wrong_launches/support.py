"""The packages of `models.py` compared with their programs."""

from __future__ import annotations

from pathlib import Path

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.symptom import Symptom
from mcp_server.model import PackageWorkload, Verdict
from mcp_server.package.view import view_package
from mcp_server.tools.compare_with_eager import compare_with_eager
from mcp_server.tools.divergence import ComparedWithEager, EveryLaunch
from tests.served import served
from tests.worker.support import context_in


def call_of(package: Path) -> PackageWorkload:
    """The call with the inputs next to a package."""
    return PackageWorkload(package=package, inputs=package.with_name(f"{package.stem}.inputs.pt"))


def compared(directory: Path, package: Path) -> ComparedWithEager:
    """A package with every launch judged by the program next to it."""
    program = package.with_name(f"{package.stem}.exported.pt2")
    return served(compare_with_eager, context_in(directory), call_of(package), program)


def judged(directory: Path, package: Path) -> EveryLaunch:
    """What that says of the launches."""
    return compared(directory, package).every_launch


def kernels_with(package: Path, part: str) -> list[int]:
    """The launches whose kernel has that in its name, in the order of the call."""
    launches = view_package(package).wrapper.launches
    return [launch.index for launch in launches if part in launch.kernel]


def verdict(directory: Path, package: Path) -> Verdict:
    """The diagnosis of a package whose program was given."""
    program = package.with_name(f"{package.stem}.exported.pt2")
    return served(diagnose, context_in(directory), call_of(package), symptom=Symptom(program=program))
