"""Whole verdicts of packages."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp_server.diagnosis.diagnose import diagnose
from mcp_server.model import PackageWorkload, Verdict, Workload
from mcp_server.runtime.context import Context
from tests.conftest import ZooPackage
from tests.served import served
from tests.server.clients import MOST_TOKENS, tokens


def verdict(directory: Path, workload: Workload | None, log: Path | None = None) -> Verdict:
    job = directory / "job"
    job.mkdir()
    context = Context(directory=job, python=Path(sys.executable))
    found = served(diagnose, context, workload, log=log, budget_s=120)
    assert tokens(found.model_dump(mode="json")) <= MOST_TOKENS, "an agent reads this"
    return found


def of_package(zoo: ZooPackage, directory: Path, name: str, inputs: str) -> Verdict:
    package = zoo(name)
    return verdict(
        directory, PackageWorkload(package=package, inputs=package.with_name(f"{name}.{inputs}.pt"))
    )
