"""The packages of `models.py` compared with their programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.diagnosis.symptom import Symptom
from mcp_server.model import PackageWorkload, Verdict
from mcp_server.package.view import view_package
from mcp_server.tools.compare_with_eager import compare_with_eager
from mcp_server.tools.divergence import ComparedWithEager, EveryLaunch
from tests.served import served
from tests.worker.support import context_in


def call_of(package: Path, **fields: Any) -> PackageWorkload:
    """The call with the inputs next to a package."""
    given = {"inputs": package.with_name(f"{package.stem}.inputs.pt"), **fields}
    return PackageWorkload.model_validate({"package": package, **given})


def compared(
    directory: Path, package: Path, exported: Path | None = None, **fields: Any
) -> ComparedWithEager:
    """A package with every launch judged, by the program next to it or by another."""
    program = exported or package.with_name(f"{package.stem}.exported.pt2")
    call = call_of(package, **fields)
    return served(compare_with_eager, context_in(directory), call, program, every=True)


def judged(directory: Path, package: Path, **fields: Any) -> EveryLaunch:
    """What that says of the launches."""
    found = compared(directory, package, **fields).every_launch
    assert found is not None
    return found


def kernels_with(package: Path, part: str) -> list[int]:
    """The launches whose kernel has that in its name, in the order of the call."""
    launches = view_package(package).wrapper.launches
    return [launch.index for launch in launches if part in launch.kernel]


RANDOM_OP = """
import torch

@torch.library.custom_op("aotizoo::halve_rows", mutates_args=())
def halve_rows(x: torch.Tensor) -> torch.Tensor:
    return x[::2].contiguous() + torch.rand(1)

@halve_rows.register_fake
def _(x):
    return x.new_empty(x.shape[0] // 2, *x.shape[1:])
"""


def verdict(directory: Path, package: Path) -> Verdict:
    """The diagnosis of a package whose program was given."""
    program = package.with_name(f"{package.stem}.exported.pt2")
    return served(diagnose, context_in(directory), call_of(package), symptom=Symptom(program=program))
