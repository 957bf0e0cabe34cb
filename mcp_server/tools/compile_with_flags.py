"""Compiles an exported program: under chosen flags, or with provenance for analysis."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import anyio.to_thread
from pydantic import Field

from mcp_server.errors import ProblemError
from mcp_server.flags import Chosen, Moment, select
from mcp_server.model import Artifact, Cost, ExportedWorkload, PackageWorkload, Record
from mcp_server.package.exported import exported_device
from mcp_server.package.view import view_package
from mcp_server.probes.build import find_toolchain
from mcp_server.runtime.context import Context
from mcp_server.runtime.failure import Failure, check_built, read_failure
from mcp_server.worker import events


class AppliedFlag(Record):
    name: str
    value: str
    given_as: Literal["environment", "config"]
    acts: list[Moment]
    shows: str
    misses: str
    cost: str


class Compiled(Record):
    """The outcome of one compile; `failure` is None if it produced a package.

    `kernels` counts the launches of each kernel in wrapper.cpp. `seconds` is the compiler's own time, without
    the import of torch and the loading of the program.
    """

    ok: bool
    package: Artifact | None = None
    seconds: float | None = None
    torch: str
    device: str | None = None
    flags: list[AppliedFlag] = Field(default_factory=list)
    launches: int = 0
    kernels: dict[str, int] = Field(default_factory=dict)
    provenance: bool = False
    warnings: list[str] = Field(default_factory=list)
    failure: Failure | None = None
    log: Artifact
    cost: Cost


async def compile_with_flags(
    context: Context, workload: ExportedWorkload, flags: Mapping[str, object]
) -> Compiled:
    """Compile the workload's program into a new package of this job's directory; its inputs are not used.

    `flags` maps names of the flag table to values. A compile that fails is a result. Raise ProblemError for a
    flag that cannot act, or a file that is not an exported program.
    """
    version = (await find_toolchain(context.python_for(workload), context, workload.env)).torch_version
    device = await anyio.to_thread.run_sync(exported_device, workload.exported)
    known = version if version[:1].isdigit() else None
    plan = select(flags, moment="compile", torch_version=known, device=device)
    work = context.fresh("package")
    done = await context.worker(
        "compile",
        {
            "exported": workload.exported,
            "package_path": work / f"{workload.exported.name.split('.')[0]}.pt2",
            "inductor_configs": plan.config,
            "extra_imports": workload.extra_imports,
        },
        env={"TORCHINDUCTOR_CACHE_DIR": str(work / "cache"), **workload.env, **plan.env},
        workload=workload,
    )
    check_built(done.finished, "the program")
    compiled = done.last(events.Compiled)
    made: dict[str, Any] = {"warnings": list(plan.warnings)}
    if compiled is not None:
        view = await anyio.to_thread.run_sync(view_package, Path(compiled.package))
        problems = [f"wrapper.cpp:{each.line}: {each.what}" for each in view.wrapper.problems[:10]]
        made = {
            "package": context.artifact(view.package.path, "package compiled with the flags"),
            "seconds": round(compiled.seconds, 2),
            "launches": len(view.wrapper.launches),
            "kernels": dict(Counter(launch.kernel for launch in view.wrapper.launches)),
            "provenance": bool(view.package.kernel_information),
            "warnings": [*plan.warnings, *problems],
        }
    return Compiled(
        ok=compiled is not None,
        torch=version,
        device=device,
        flags=[_applied(one) for one in plan.chosen],
        failure=read_failure(done.finished),
        log=context.artifact(done.finished.output, "output of the compile"),
        cost=context.cost.cost(),
        **made,
    )


def _applied(chosen: Chosen) -> AppliedFlag:
    flag = chosen.flag
    return AppliedFlag(
        name=flag.name,
        value=chosen.value,
        given_as="environment" if flag.env else "config",
        acts=list(flag.acts),
        shows=flag.shows,
        misses=flag.misses,
        cost=flag.cost,
    )


async def compiled_package(context: Context, workload: ExportedWorkload) -> PackageWorkload:
    """Compile `workload` into a package with its inputs. Raise ProblemError if it does not compile."""
    # Set the variable: torch 2.8 has no provenance, so it would reject the flag.
    traced = workload.model_copy(update={"env": {"INDUCTOR_PROVENANCE": "1", **workload.env}})
    made = await compile_with_flags(context, traced, {})
    if made.package is None:
        raise ProblemError(
            "the exported program does not compile",
            value=made.failure.text if made.failure else "",
            next_call="compile_with_flags, or diagnose",
        )
    shared = workload.model_dump(include={"env", "python", "cwd", "timeout_s", "extra_imports"})
    return PackageWorkload(package=made.package.path, inputs=workload.inputs, **shared)
